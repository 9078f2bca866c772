"""Tweets: hate speech, offensive words or neither; a public alternative to FDCL18.

It reads ``davidson_tweets.csv`` (or ``.csv.gz``), or the published ``labeled_data.csv``, with the columns ``tweet`` and
``class`` (0 hate speech, 1 offensive, 2 neither; the majority of three or more raters).

The data have no dialects, so the attribute is a feature of the text that is irrelevant to its meaning. The association
with the label is weak; Cramér's V over all 24,783 tweets is 0.16 for a hashtag (18 % of neither, 9 % of hate, 6 % of
offensive), 0.14 for a link, 0.05 for a mention and 0.05 for a retweet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import torch

from spurless.core.groups import Groups
from spurless.data.checks import check_choice
from spurless.data.dataset import Card, Dataset, Layout
from spurless.data.datasets._common import TextConfig, find_file, split_examples, tokenise_with
from spurless.data.loaders.csv import encode_column, read_columns
from spurless.data.split import Split, Splits

LABELS = ("hate", "offensive", "neither")
CUES = {
    "hashtag": re.compile(r"(?<![&\w])#\w"),  # &#8220; is a quotation mark
    "link": re.compile(r"https?://"),
    "mention": re.compile(r"(?<!\w)@\w"),
    "retweet": re.compile(r"\bRT @"),
}
CARD = Card(
    name="tweets",
    summary="Hate speech, offensive words or neither; tweets with a hashtag are more often neither.",
    input="a tweet, at most max_length tokens: input_ids, attention_mask, token_type_ids, int32",
    label="hate, offensive or neither",
    attribute="whether the tweet has a hashtag (or a link, a mention, or is a retweet)",
    splits="24,783 tweets (hate 1,430, offensive 19,190, neither 4,163), 70/15/15 % by seed, stratified",
    source="tweets with words of a hate speech lexicon, rated by crowdworkers",
    licence="MIT",
    citation="Davidson et al., Automated Hate Speech Detection, ICWSM 2017, arXiv:1703.04009",
)
LAYOUT = Layout(
    files=(("davidson_tweets.csv.gz", "davidson_tweets.csv", "labeled_data.csv"),),
    folders=("text", "tweets", "davidson"),
    markers=("davidson_tweets.csv.gz", "davidson_tweets.csv", "labeled_data.csv"),
    obtain="Get data/labeled_data.csv of t-davidson/hate-speech-and-offensive-language on GitHub.",
)


@dataclass(frozen=True)
class TweetsConfig(TextConfig):
    """Options of ``tweets``."""

    cue: str = "hashtag"  # hashtag, link, mention or retweet; the first has the strongest association with the label


def tweets(config: TweetsConfig = TweetsConfig()) -> Splits:
    """Read the tweets and split them."""
    check_choice(CARD, config, "cue", tuple(CUES))
    path = find_file(CARD, LAYOUT, config.root)
    cells = read_columns(path, ("tweet", "class"))
    y = encode_column(cells["class"], {"0": 0, "1": 1, "2": 2}, path, "class")
    a = torch.tensor([has_cue(text, config.cue) for text in cells["tweet"]]).long()
    x, config = tokenise_with(config, cells["tweet"])
    whole = Split(x, y, a, Groups(LABELS, (f"no {config.cue}", config.cue)))
    splits = split_examples(CARD, config, whole, None)
    return replace(splits, notes=(f"The attribute is a feature of the text ({config.cue}), not a dialect.",))


def has_cue(tweet: str, cue: str) -> bool:
    """Return whether a tweet has a cue.

    Example:
        >>> [has_cue(text, "hashtag") for text in ("go #team", "he wrote &#8220;no&#8221;", "C# it is")]
        [True, False, False]
    """
    return CUES[cue].search(tweet) is not None


DATASET = Dataset(card=CARD, config=TweetsConfig, make=tweets, layout=LAYOUT)
