"""The maps of a sweep: one page on what its lowest and its highest value look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spurless.bench.engines import Machines
    from spurless.bench.sweep import Swept

PAGE, WEIGHTS = "maps.html", "weights"


def place_of(keep: Path | None, maps: int | None, out: Path) -> Path | None:
    """Return where weights are kept, resolved, as other processes need it; maps need some.

    Example:
        >>> place_of(None, None, Path("runs")) is None, place_of(None, 6, Path("runs")).name
        (True, 'weights')
    """
    place = out / WEIGHTS if keep is None and maps is not None else keep
    return None if place is None else place.resolve()


def write_maps(swept: Swept, machines: Machines, count: int, out: Path) -> Path:
    """Write the page and return its path.

    Raises:
        BadInput: there are no two values to compare, or nothing to show of them.
    """
    from spurless.bench.kept import ends_section
    from spurless.reporting import write_sections

    section = ends_section(swept, machines, count)
    return write_sections(out / PAGE, "What the ends of a sweep look at", [section])
