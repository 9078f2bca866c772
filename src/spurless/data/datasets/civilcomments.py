"""CivilComments: toxic or civil comments; comments that mention some identities were rated toxic more often.

It reads the official file of WILDS, ``all_data_with_identities.csv``: ``comment_text``, ``split`` (train, val, test),
``toxicity`` and a column for each of eight identities; a value of 0.5 or more counts as yes.

There are two definitions of groups, whose results are not comparable. ``groups="overlapping"`` (WILDS): label x each
identity, 16 groups; a comment is in one group for every identity that it mentions, and in none if it mentions none.
``groups="coarse"`` (JTT, SELF and others): label x whether any of the eight is mentioned, 4 groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from spurless.core.config import Range
from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.data.checks import check_choice
from spurless.data.dataset import Card, Dataset, Layout
from spurless.data.datasets._common import (
    MAX_TOKENS,
    TextConfig,
    find_file,
    split_examples,
    tokenise_with,
    total_counts,
)
from spurless.data.loaders.csv import encode_column, read_columns
from spurless.data.split import Split, Splits

LABELS = ("civil", "toxic")
IDENTITIES = ("male", "female", "LGBTQ", "christian", "muslim", "other_religions", "black", "white")
GROUPS = {
    "overlapping": Groups.overlapping(LABELS, IDENTITIES),
    "coarse": Groups(LABELS, ("no identity", "any identity")),
}
SPLIT_CODES = {"train": 0, "val": 1, "test": 2}
PUBLISHED = {
    "train": (148186, 90337, 12731, 17784),
    "val": (25159, 14966, 2111, 2944),
    "test": (74780, 43778, 6455, 8769),
}
"""Counts of the coarse groups; their sums are the sizes of the splits."""

CARD = Card(
    name="civilcomments",
    summary="Toxic comments against civil ones; mentions of some identities come with toxicity more often.",
    input="a text of at most max_length tokens: input_ids, attention_mask, token_type_ids, int32",
    label="civil or toxic",
    attribute="eight identities that a comment mentions, several or none (overlapping), or whether any (coarse)",
    splits="train 269,038, val 45,180, test 133,782",
    source="comments of the Civil Comments platform, rated by crowdworkers; the version of WILDS 1.0",
    licence="CC0",
    citation="Borkan et al., Nuanced Metrics for Measuring Unintended Bias, WWW 2019, arXiv:1903.04561; "
    "Koh et al., WILDS, ICML 2021, arXiv:2012.07421",
)
LAYOUT = Layout(
    files=("all_data_with_identities.csv",),
    folders=("civilcomments", "civilcomments_v1.0", "jigsaw/data", "CivilComments"),
    markers=("all_data_with_identities.csv", "all_data_with_identities.csv.gz"),
    obtain="Get civilcomments of WILDS (wilds.stanford.edu; the package wilds downloads it to civilcomments_v1.0).",
)


@dataclass(frozen=True)
class CivilCommentsConfig(TextConfig):
    """Options of ``civilcomments``."""

    groups: str = "overlapping"  # overlapping (WILDS: 16 groups) or coarse (JTT, SELF: 4 groups)
    tokenizer: str = "auto"  # minilm if installed, else words; SELF: bert-base-uncased
    max_length: Annotated[int, Range(4, MAX_TOKENS)] = 220  # tokens; SELF. WILDS: 300


def civilcomments(config: CivilCommentsConfig = CivilCommentsConfig()) -> Splits:
    """Read the three splits."""
    check_choice(CARD, config, "groups", tuple(GROUPS))
    path = find_file(CARD, LAYOUT, config.root)
    cells = read_columns(path, ("comment_text", "split", "toxicity", *IDENTITIES))
    texts, split = cells.pop("comment_text"), encode_column(cells.pop("split"), SPLIT_CODES, path, "split")
    y = _parse_ratings(cells.pop("toxicity"), path, "toxicity")
    mentioned = torch.stack([_parse_ratings(cells.pop(name), path, name) for name in IDENTITIES], dim=1)
    coarse = config.groups == "coarse"
    a = mentioned.any(dim=1).long() if coarse else mentioned
    x, config = tokenise_with(config, texts)
    whole = Split(x, y, a, GROUPS[config.groups])
    return split_examples(CARD, config, whole, split, PUBLISHED if coarse else total_counts(PUBLISHED))


def _parse_ratings(values: Sequence[str], path: Path, column: str) -> Tensor:
    """Return 1 for ratings of at least 0.5, else 0; an empty cell is 0, as in WILDS."""
    known: dict[str, bool] = {"": False}
    for row, value in enumerate(values, start=2):
        if value not in known:
            try:
                known[value] = float(value) >= 0.5
            except ValueError:
                raise InputError(
                    f"{value!r} is not a valid value of column {column!r}",
                    where=f"{path}, row {row}",
                    expected="a number",
                ) from None
    return torch.tensor([known[value] for value in values]).long()


DATASET = Dataset(card=CARD, config=CivilCommentsConfig, make=civilcomments, layout=LAYOUT)
