"""The maps of a sweep: one page on what its lowest and its highest value look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spurless.cli.flags import OUTPUT
from spurless.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from spurless.bench.engines import Machines
    from spurless.bench.sweep import Swept

PAGE, WEIGHTS, AUTO = "maps.html", "weights", "auto"
Maps = Annotated[
    int | None,
    typer.Option(
        help="Write OUT/maps.html: what the lowest and the highest value look at in so many test examples. Weights "
        "are kept for it, in OUT/weights without --keep.",
        min=1,
        metavar="N",
        rich_help_panel=OUTPUT,
    ),
]
Backgrounds = Annotated[
    str | None,
    typer.Option(
        help="With --maps: how much lies on the background of photographs, which DeepLabV3 finds. A file of "
        "torchvision's weights for it; or auto, for those in its cache or, once, from the network.",
        metavar="FILE|auto",
        rich_help_panel=OUTPUT,
    ),
]


def check_maps(maps: int | None, background: str | None, values: Mapping[str, Sequence[object]]) -> nn.Module | None:
    """Refuse what no page can show, before anything is trained; return what finds the background, if that is asked."""
    if maps is not None and all(len(each) < 2 for each in values.values()):
        raise BadInput(
            "--maps shows the lowest value beside the highest, and there is one", do="Sweep over two or more."
        )
    if background is None:
        return None
    if maps is None:
        raise BadInput("--backgrounds is told on the page of maps, and there is none", do="Pass --maps 6 too.")
    from spurless.models.segmentation import deeplab

    return deeplab(None if background == AUTO else background)


def place_of(keep: Path | None, maps: int | None, out: Path) -> Path | None:
    """Return where weights are kept, resolved, as other processes need it; maps need some.

    Example:
        >>> place_of(None, None, Path("runs")) is None, place_of(None, 6, Path("runs")).name
        (True, 'weights')
    """
    place = out / WEIGHTS if keep is None and maps is not None else keep
    return None if place is None else place.resolve()


def write_maps(swept: Swept, machines: Machines, count: int, out: Path, segmenter: nn.Module | None = None) -> Path:
    """Write the page and return its path.

    Raises:
        BadInput: there are no two values to compare, or nothing to show of them.
    """
    from spurless.bench.kept import ends_section
    from spurless.reporting import write_sections

    section = ends_section(swept, machines, count, segmenter)
    return write_sections(out / PAGE, "What the ends of a sweep look at", [section])
