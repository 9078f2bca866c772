"""``spurless data show``: a few examples of every group on one page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spurless.cli.data_facts import PARTS
from spurless.cli.flags import (
    OUTPUT,
    CsvAttribute,
    CsvFeatures,
    CsvFile,
    CsvLabel,
    CsvRoot,
    CsvSplit,
    CsvText,
    DataArgument,
    DataOption,
    Quiet,
    Seed,
    SkipBad,
)
from spurless.cli.sources import Columns, open_data
from spurless.core.errors import UnknownName
from spurless.core.files import check_apart
from spurless.core.options import pairs

if TYPE_CHECKING:
    from torch import Tensor

    from spurless.cli.data_examples import Maker
    from spurless.core.groups import Groups
    from spurless.data.grouped import Grouped, Splits
    from spurless.reporting.sheet import Cell, Part, Sheet

MOST = 400
"""groups that are shown of a split; of more, the largest"""
BUDGET = 2000
"""examples on one page, unless groups alone need more"""


def show(
    source: DataArgument,
    part: Annotated[
        str, typer.Option(help="Split to show: train, val, test or all.", metavar="SPLIT", rich_help_panel=OUTPUT)
    ] = "train",
    per_group: Annotated[
        int | None,
        typer.Option(
            help="Examples of each group, at most.",
            min=1,
            show_default="8, or 1 of more than 16 groups",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Page to write.", metavar="FILE", rich_help_panel=OUTPUT)] = Path(
        "sheet.html"
    ),
    data_option: DataOption = [],
    label: CsvLabel = None,
    attribute: CsvAttribute = None,
    split: CsvSplit = None,
    features: CsvFeatures = None,
    file: CsvFile = None,
    text: CsvText = None,
    root: CsvRoot = None,
    skip_bad: SkipBad = False,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Write one page with random examples of every group of DATA, and print its path.

    Look at it before anything is trained: is the attribute what you think it
    is? The page is one file that works without a network. Pictures are shown as
    they are stored, before any transform.

    Examples:
      spurless data show patched-digits --out digits.html
      spurless data show waterbirds --root ~/data --part all --per-group 4
      spurless data show meta.csv --label y --attribute place --root images
    """
    from spurless.reporting.sheet import write_sheet

    if part not in (*PARTS, "all"):
        raise UnknownName("split", part, (*PARTS, "all"))
    check_apart([out], [source])
    columns = Columns(label, attribute, split, features, file, root, text, skip_bad)
    splits = open_data(source, pairs(data_option, "--data-option"), columns, seed, quiet, lazy=True)
    print(write_sheet(out, collect(splits, PARTS if part == "all" else (part,), per_group, seed)).resolve())


def collect(splits: Splits, parts: tuple[str, ...], per_group: int | None, seed: int) -> Sheet:
    """Choose examples of every group and make them ready for a page; no others are read."""
    from spurless.cli.data_examples import maker_for
    from spurless.reporting.sheet import MANY, Sheet

    found = {name: list(cells_of(getattr(splits, name))) for name in parts}
    wanted = per_group or (1 if max(map(len, found.values())) > MANY else 8)
    maker = maker_for(splits)
    draw = Draw(seed, wanted, corresponds(splits))
    shown = tuple(_part(name, getattr(splits, name), cells, draw, maker) for name, cells in found.items())
    options = {key: value for key, value in splits.options.items() if value not in (None, []) and key != "stream"}
    facts = [("Data", splits.name)]
    facts += [("Options", ", ".join(f"{key}={value}" for key, value in options.items()))] if options else []
    return Sheet(
        title=splits.name,
        about=f"{wanted} random example{'' if wanted == 1 else 's'} of each group, seed {seed}",
        parts=shown,
        columns=maker.columns,
        facts=(*facts, *maker.facts),
        notes=(*splits.notes, *maker.notes),
    )


@dataclass(frozen=True)
class Draw:
    """Which examples are drawn, how many of each group, and whether groups are called aligned or conflicting."""

    seed: int
    wanted: int
    marked: bool


def _part(name: str, split: Grouped, found: list[Members], draw: Draw, maker: Maker) -> Part:
    import torch

    from spurless.core.seeds import Seeds
    from spurless.reporting.sheet import Cell, Part

    if len(found) > MOST:
        found = sorted(found, key=lambda cell: -len(cell.index))[:MOST]
    wanted = max(1, min(draw.wanted, BUDGET // len(found)))
    cells: list[Cell] = []
    for cell in found:
        generator = Seeds(draw.seed).generator("sheet", name, cell.label, cell.attribute)
        chosen = cell.index[torch.randperm(len(cell.index), generator=generator)[:wanted]]
        examples = tuple(maker.make(split, int(i)) for i in chosen)
        side = None if cell.a is None or not draw.marked else cell.y == cell.a
        cells.append(Cell(cell.label, cell.attribute, len(cell.index), examples, side))
    return Part(name, len(split), tuple(cells))


@dataclass(frozen=True)
class Members:
    """The examples of one group."""

    label: str
    attribute: str
    y: int
    a: int | None
    index: Tensor


def cells_of(split: Grouped) -> Iterator[Members]:
    """Yield every group, empty ones too, and then who is in none, by label."""
    import torch

    groups, known = split.groups, split.groups.known(split.a)
    inside = torch.zeros(len(split), dtype=torch.bool)
    for y, label in enumerate(groups.labels):
        labelled = split.y == y
        for a, attribute in enumerate(groups.attributes or ("",)):
            members = labelled & known & _has(split, a)
            inside |= members
            yield Members(label, attribute, y, a if groups.attributes else None, members.nonzero().flatten())
    word = "none of these" if groups.overlap else "attribute unknown"
    for y, label in enumerate(groups.labels):
        rest = ((split.y == y) & ~inside).nonzero().flatten()
        if len(rest):
            yield Members(label, word, y, None, rest)


def _has(split: Grouped, a: int) -> Tensor:
    """Return who has attribute number ``a``, among those whose attribute is known."""
    import torch

    groups: Groups = split.groups
    if not groups.attributes:
        return torch.ones(len(split), dtype=torch.bool)
    if groups.overlap:
        return split.a.reshape(len(split), -1)[:, a] == 1
    known = groups.known(split.a)
    y = torch.zeros_like(split.y)  # label 0: the number of the group is then that of the attribute
    return groups.encode(y, torch.where(known if split.a.dim() == 1 else known[:, None], split.a, 0)) == a


def corresponds(splits: Splits) -> bool:
    """Say whether attribute number i goes with label number i, as the names and the counts of train have it."""
    groups, train = splits.groups, splits.train
    if groups.overlap or groups.sizes or len(groups.attributes) != len(groups.labels):
        return False
    counts = train.counts.reshape(len(groups.labels), -1).double()
    total = float(counts.sum())
    if not total:
        return False
    by_chance = float((counts.sum(dim=0) * counts.sum(dim=1)).sum()) / total
    return float(counts.trace()) > by_chance
