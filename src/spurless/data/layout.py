"""Layout: where the files of a dataset lie, and whether they are the published ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spurless.core.errors import BadInput, Incomplete
from spurless.core.places import data_folder
from spurless.data.grouped import Splits

SAY_WHERE = "root= (on the command line --root), or $SPURLESS_DATA"


@dataclass(frozen=True)
class Layout:
    """Which files a dataset is read from, and where a person gets them."""

    files: tuple[str, ...]
    """What must lie in the folder of the dataset, as published; alternatives are separated by " or "."""
    obtain: str
    """Where the files come from, and how."""
    folders: tuple[str, ...] = ()
    """What the folder may be called inside the data folder; the files may also lie in the data folder itself."""
    markers: tuple[str, ...] = ()
    """Files or folders, relative to the folder, of which one must be there for it to be this dataset."""
    archives: tuple[str, ...] = ()
    """What the published archives are called; ``prepare`` unpacks them."""
    download: Callable[[Path], None] | None = None
    """Fetch the files into a folder, checksums checked; None where nobody may or can."""


def find(name: str, layout: Layout, root: str | Path | None) -> Path:
    """Return the folder that holds the files of a dataset: the data folder, or one in it.

    Raises:
        BadInput: there is none; says what was looked for, where, and where to get it.
    """
    top = data_folder(root)
    if not top.is_dir():
        raise BadInput(
            f"the data folder of {name} is not there", where=top, do=f"Say where it is: {SAY_WHERE}. {layout.obtain}"
        )
    for folder in (top, *(top / part for part in layout.folders)):
        if any((folder / marker).exists() for marker in layout.markers):
            return folder
    places = " or ".join(["the folder itself", *(f"{part}/" for part in layout.folders)])
    raise BadInput(
        f"the files of {name} are not there",
        where=top,
        expected=f"{' or '.join(layout.markers)} in {places}",
        do=f"{layout.obtain} Say where they are: {SAY_WHERE}.",
    )


def need(path: Path, name: str) -> Path:
    """Return a file or folder that a layout promises, or say that it is missing."""
    if not path.exists():
        raise BadInput(f"a file of {name} is missing", where=path, do="Unpack or download the dataset again.")
    return path


def compare(splits: Splits, published: Mapping[str, int | Sequence[int]]) -> Splits:
    """Warn where the number of examples, or of those in each group, is not the published one; return the splits.

    A part of a dataset can be worked with, but its numbers are not those of the papers: a note says so.

    Args:
        splits: what was loaded.
        published: by split, the number of examples, or of those of every group in the order of the groups.
    """
    wrong = []
    for name, expected in published.items():
        split = getattr(splits, name)
        found = len(split) if isinstance(expected, int) else split.counts.tolist()
        if found != (expected if isinstance(expected, int) else list(expected)):
            wrong.append(f"{name} has {_numbers(found)} and not {_numbers(expected)}")
    if not wrong:
        return splits
    note = f"This is not the whole {splits.name} as published: {'; '.join(wrong)}."
    warnings.warn(note, Incomplete, stacklevel=3)
    return replace(splits, notes=(*splits.notes, note))


def _numbers(counts: int | Sequence[int]) -> str:
    return f"{counts:,}" if isinstance(counts, int) else "/".join(f"{count:,}" for count in counts)
