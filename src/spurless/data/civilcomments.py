"""CivilComments: is a comment toxic? Comments that mention some identities were called so more often.

Reads the official file of WILDS, ``all_data_with_identities.csv``: ``comment_text``, ``split`` (train, val, test),
``toxicity`` and a column for each of eight identities; a value of 0.5 or more counts as yes.

Two kinds of groups, which no number may mix. ``groups="overlapping"``, WILDS: label x each identity, 16 groups; a
comment is in a group for every identity that it mentions, and in none if it mentions none. ``groups="coarse"``,
JTT, SELF and others: label x whether any of the eight is mentioned, 4 groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Grouped, Splits
from spurless.data.layout import Layout, compare, find
from spurless.data.limits import check_choice, check_least
from spurless.data.rows import codes, columns
from spurless.data.splitting import assemble
from spurless.data.text import choose_tokenizer, tokenise

LABELS = ("civil", "toxic")
IDENTITIES = ("male", "female", "LGBTQ", "christian", "muslim", "other_religions", "black", "white")
GROUPS = {
    "overlapping": Groups.overlapping(LABELS, IDENTITIES),
    "coarse": Groups(LABELS, ("no identity", "any identity")),
}
SPLITS = {"train": 0, "val": 1, "test": 2}
PUBLISHED = {
    "train": (148186, 90337, 12731, 17784),
    "val": (25159, 14966, 2111, 2944),
    "test": (74780, 43778, 6455, 8769),
}
"""Of the coarse groups; their sums are the sizes of the splits."""

CARD = Card(
    name="civilcomments",
    summary="Toxic comments against civil ones; mentions of some identities come with toxicity more often.",
    input="a text of at most max_length tokens: input_ids, attention_mask, token_type_ids, int32",
    label="civil or toxic",
    attribute="eight identities that a comment mentions, several or none (overlapping), or whether any (coarse)",
    splits="train 269,038, val 45,180, test 133,782",
    source="comments of the Civil Comments platform, rated by crowdworkers; the version of WILDS 1.0",
    licence="CC0",
    citation=(
        "Borkan et al., Nuanced Metrics for Measuring Unintended Bias, WWW 2019, arXiv:1903.04561; "
        "Koh et al., WILDS, ICML 2021, arXiv:2012.07421"
    ),
)
LAYOUT = Layout(
    files=("all_data_with_identities.csv",),
    folders=("civilcomments", "civilcomments_v1.0", "jigsaw/data", "CivilComments"),
    markers=("all_data_with_identities.csv", "all_data_with_identities.csv.gz"),
    obtain="Get civilcomments of WILDS (wilds.stanford.edu; the package wilds downloads it to civilcomments_v1.0).",
)


@dataclass(frozen=True)
class CivilCommentsConfig:
    """Where the file is, which groups are meant, and how the text is tokenised."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    groups: str = "overlapping"  # overlapping (WILDS: 16 groups) or coarse (JTT, SELF: 4 groups)
    tokenizer: str = "auto"  # minilm where installed, else words; SELF: bert-base-uncased
    max_length: int = 220  # tokens; SELF. WILDS: 300
    seed: int = 0  # decides nothing: the splits are published


DEFAULT = CivilCommentsConfig()


def civilcomments(config: CivilCommentsConfig = DEFAULT) -> Splits:
    """Read the three splits."""
    check_choice(CARD, config, "groups", tuple(GROUPS))
    check_least(CARD, config, max_length=4)
    folder = find(CARD.name, LAYOUT, config.root)
    path = next(folder / name for name in LAYOUT.markers if (folder / name).is_file())
    cells = columns(path, ("comment_text", "split", "toxicity", *IDENTITIES))
    texts, split = cells.pop("comment_text"), codes(cells.pop("split"), SPLITS, path, "split")
    y = _yes(cells.pop("toxicity"), path, "toxicity")
    mentioned = torch.stack([_yes(cells.pop(name), path, name) for name in IDENTITIES], dim=1)
    coarse = config.groups == "coarse"
    a = mentioned.any(dim=1).long() if coarse else mentioned
    config = replace(config, tokenizer=choose_tokenizer(config.tokenizer))
    x = tokenise(texts, tokenizer=config.tokenizer, max_length=config.max_length)
    whole = Grouped(x, y, a, GROUPS[config.groups])
    splits = assemble(whole, split, seeds=Seeds(config.seed), name=CARD.name, options=asdict(config))
    return compare(splits, PUBLISHED if coarse else {name: sum(counts) for name, counts in PUBLISHED.items()})


def _yes(values: Sequence[str], path: Path, column: str) -> Tensor:
    """Return where the raters mostly said yes; an empty cell is a no, as in WILDS."""
    known: dict[str, bool] = {"": False}
    for row, value in enumerate(values, start=2):
        if value not in known:
            try:
                known[value] = float(value) >= 0.5
            except ValueError:
                raise BadInput(
                    f"{value!r} is not a value of column {column!r}", where=f"{path}, row {row}", expected="a number"
                ) from None
    return torch.tensor([known[value] for value in values]).long()


DATASET = Dataset(card=CARD, config=CivilCommentsConfig, make=civilcomments, layout=LAYOUT)
