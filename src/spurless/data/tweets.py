"""Tweets: hate speech, offensive words or neither; a hashtag goes with neither. Stands in for FDCL18.

Reads ``davidson_tweets.csv`` (or ``.csv.gz``), or the published ``labeled_data.csv``, with the columns ``tweet``
and ``class`` (0 hate speech, 1 offensive, 2 neither; the majority of three or more raters).

The data has no dialect, so the attribute is a mark that can be seen in the text and says nothing of its meaning.
How strongly each goes with the label, as Cramer's V over all 24,783 tweets: a hashtag 0.16 (18 % of neither, 9 %
of hate, 6 % of offensive), a link 0.14, a mention of somebody 0.05, a retweet 0.05. It is a weak shortcut.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace

import torch

from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Grouped, Splits
from spurless.data.layout import Layout, find
from spurless.data.limits import check_choice, check_least
from spurless.data.rows import codes, columns
from spurless.data.splitting import assemble
from spurless.data.text import choose_tokenizer, tokenise

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
    files=("davidson_tweets.csv.gz or davidson_tweets.csv or labeled_data.csv",),
    folders=("text", "tweets", "davidson"),
    markers=("davidson_tweets.csv.gz", "davidson_tweets.csv", "labeled_data.csv"),
    obtain="Get data/labeled_data.csv of t-davidson/hate-speech-and-offensive-language on GitHub.",
)


@dataclass(frozen=True)
class TweetsConfig:
    """Where the file is, which mark is the attribute, and how the text is tokenised."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    cue: str = "hashtag"  # hashtag, link, mention or retweet; the first goes with the label most
    tokenizer: str = "auto"  # minilm where it is installed, else words
    max_length: int = 128  # tokens
    seed: int = 0  # of the split


DEFAULT = TweetsConfig()


def tweets(config: TweetsConfig = DEFAULT) -> Splits:
    """Read the tweets and split them."""
    check_choice(CARD, config, "cue", tuple(CUES))
    check_least(CARD, config, max_length=4)
    folder = find(CARD.name, LAYOUT, config.root)
    path = next(folder / name for name in LAYOUT.markers if (folder / name).is_file())
    cells = columns(path, ("tweet", "class"))
    y = codes(cells["class"], {"0": 0, "1": 1, "2": 2}, path, "class")
    a = torch.tensor([has_cue(text, config.cue) for text in cells["tweet"]]).long()
    config = replace(config, tokenizer=choose_tokenizer(config.tokenizer))
    x = tokenise(cells["tweet"], tokenizer=config.tokenizer, max_length=config.max_length)
    whole = Grouped(x, y, a, Groups(LABELS, (f"no {config.cue}", config.cue)))
    splits = assemble(whole, None, seeds=Seeds(config.seed), name=CARD.name, options=asdict(config))
    return replace(splits, notes=(f"The attribute is a mark in the text ({config.cue}): no dialect is known here.",))


def has_cue(tweet: str, cue: str) -> bool:
    """Return whether a tweet has a mark.

    Example:
        >>> [has_cue(text, "hashtag") for text in ("go #team", "he said &#8220;no&#8221;", "C# it is")]
        [True, False, False]
    """
    return CUES[cue].search(tweet) is not None


DATASET = Dataset(card=CARD, config=TweetsConfig, make=tweets, layout=LAYOUT)
