"""Entries of ``DATASETS``: description, files and loading function of a dataset."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.core.files import data_folder
from spurless.data.split import Splits

ROOT_HINT = "Set the folder with root= (on the command line --root), or $SPURLESS_DATA."


@dataclass(frozen=True)
class Card:
    """Description of a dataset, for people."""

    name: str
    summary: str
    input: str
    label: str
    attribute: str
    splits: str
    source: str
    licence: str
    citation: str


@dataclass(frozen=True)
class Layout:
    """Files of a dataset, as published, and how to get them."""

    files: tuple[str | tuple[str, ...], ...]
    """Globs of the required files, relative to the dataset's folder; of a tuple of globs, one must match."""
    obtain: str  # source of the files, and instructions
    folders: tuple[str, ...] = ()
    """Names of the dataset's folder in the data folder; the files may also be in the data folder itself."""
    markers: tuple[str, ...] = ()
    """Files or folders, relative to the dataset's folder, one of which identifies the dataset."""
    archives: tuple[str, ...] = ()  # names of the published archives, which ``prepare`` unpacks
    download: Callable[[Path], None] | None = None
    """Function that downloads the files into a folder and checks their checksums; None if there is none."""

    @property
    def globs(self) -> tuple[tuple[str, ...], ...]:
        """The alternative globs of every required file."""
        return tuple((entry,) if isinstance(entry, str) else entry for entry in self.files)

    @property
    def file_names(self) -> tuple[str, ...]:
        """The required files, for messages.

        Example:
            >>> Layout(files=("metadata.csv", ("*.jpg", "*.png")), obtain="").file_names
            ('metadata.csv', '*.jpg or *.png')
        """
        return tuple(map(" or ".join, self.globs))


@dataclass(frozen=True)
class Dataset:
    """An entry of ``DATASETS``: description, options, and the function that loads the splits."""

    card: Card
    config: type[Any]
    make: Callable[[Any], Splits]
    layout: Layout | None = None  # None for a dataset that needs no files
    vocabulary: tuple[str, ...] = ()  # words of the token numbers of a dataset with its own tokens, in order


def find_folder(name: str, layout: Layout, root: str | Path | None) -> Path:
    """Return the folder that contains a marker of the dataset: the data folder, or one in it; or raise."""
    data = data_folder(root)
    if not data.is_dir():
        raise InputError(f"the data folder of {name} does not exist", where=data, hint=f"{ROOT_HINT} {layout.obtain}")
    for folder in (data, *(data / part for part in layout.folders)):
        if any((folder / marker).exists() for marker in layout.markers):
            return folder
    folders = " or ".join(["the folder itself", *(f"{part}/" for part in layout.folders)])
    what, expected = f"the files of {name} are missing", f"{' or '.join(layout.markers)} in {folders}"
    raise InputError(what, where=data, expected=expected, hint=f"{layout.obtain} {ROOT_HINT}")


def require_file(path: Path, name: str) -> Path:
    """Return ``path``, or raise if a file of the dataset is missing."""
    if not path.exists():
        raise InputError(f"a file of {name} is missing", where=path, hint="Unpack or download the dataset again.")
    return path


def check_published_counts(splits: Splits, published: Mapping[str, int | Sequence[int]]) -> Splits:
    """Warn if a split has not the published number of examples, or in each group; return the splits with a note."""
    differences = []
    for name, expected in published.items():
        split = getattr(splits, name)
        counts = len(split) if isinstance(expected, int) else split.counts.tolist()
        if counts != (expected if isinstance(expected, int) else list(expected)):
            differences.append(f"{name} has {_format_counts(counts)} instead of {_format_counts(expected)}")
    if not differences:
        return splits
    note = f"{splits.name} is not complete as published: {'; '.join(differences)}."
    warnings.warn(note, IncompleteDataWarning, stacklevel=3)
    return replace(splits, notes=(*splits.notes, note))


def _format_counts(counts: int | Sequence[int]) -> str:
    return f"{counts:,}" if isinstance(counts, int) else "/".join(f"{count:,}" for count in counts)
