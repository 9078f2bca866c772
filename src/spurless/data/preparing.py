"""Preparing: from what lies in a data folder, packed or not, to the files that a dataset is read from."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from uuid import uuid4

from spurless.core.errors import BadInput, SpurlessError
from spurless.core.files import unwritable
from spurless.core.places import data_folder
from spurless.data.card import Dataset
from spurless.data.checks import check_splits
from spurless.data.checksums import SUMS, Sums, listed, verify
from spurless.data.grouped import Splits
from spurless.data.layout import SAY_WHERE, Layout, find


@dataclass(frozen=True)
class Files:
    """Where the files of a dataset lie."""

    folder: Path
    found: tuple[str, ...]
    """Files that the layout promises and the folder holds; many of a kind are one entry, as in the layout."""
    missing: tuple[str, ...]
    """What the layout promises and the folder does not hold."""


@dataclass(frozen=True)
class Prepared:
    """A dataset that is ready, and what was done for it."""

    splits: Splits
    files: Files | None = None
    """None where the dataset needs none, or finds them by rules of its own."""
    unpacked: tuple[Path, ...] = ()
    downloaded: bool = False
    sums: Sums | None = None
    """None where there is no list of checksums."""


def prepare(dataset: Dataset, config: Any, download: bool = False) -> Prepared:
    """Make a dataset ready: its files are found, else unpacked, else downloaded; then it is loaded once.

    Published archives that lie in the data folder are unpacked. Files that a ``SHA256SUMS`` beside them lists are
    compared with it. What is there is never replaced.

    Args:
        dataset: a row of the table.
        config: its options.
        download: fetch the files where they are not there and the dataset knows how.

    Raises:
        BadInput: the files are not to be had, an archive or a download fails, a checksum is wrong, or what was
            found cannot be loaded.
    """
    layout, name = dataset.layout, dataset.card.name
    if layout is None:
        return Prepared(_load(dataset, config))
    top = data_folder(config.root)
    if _folder(name, layout, top) is None:
        with suppress(SpurlessError):  # some know their files by more than the layout says
            return Prepared(_load(dataset, config))
    unpacked = () if _complete(name, layout, top) else _unpack_archives(name, layout, top)
    downloaded = download and layout.download is not None and not _complete(name, layout, top)
    if downloaded:
        _download(name, layout, top)
    if _folder(name, layout, top) is None:
        raise _not_there(name, layout, top, download)
    files = files_of(name, layout, top)
    sums = check_sums(layout, top, files.folder)
    return Prepared(_load(dataset, config), files, unpacked, downloaded, sums)


def files_of(name: str, layout: Layout, root: str | Path | None = None) -> Files:
    """Say which of the promised files are where.

    Raises:
        BadInput: the folder of the dataset is not there.
    """
    folder = find(name, layout, root)
    held = {entry: _held(folder, entry) for entry in layout.files}
    found = tuple(dict.fromkeys(word for words in held.values() for word in words))
    return Files(folder, found, tuple(entry for entry, words in held.items() if not words))


def check_sums(layout: Layout, top: Path, folder: Path) -> Sums | None:
    """Compare the files of a dataset with the lists of checksums in the data folder and in its own.

    A list may speak of other datasets too: in a folder that several share, the layout says which files are its own.

    Raises:
        BadInput: a checksum is wrong, or a line of a list is none.
    """
    lists = [home / SUMS for home in dict.fromkeys((top, folder)) if (home / SUMS).is_file()]
    if not lists:
        return None
    return verify({path: sum_ for part in lists for path, sum_ in listed(part) if _belongs(path, layout, top, folder)})


def _load(dataset: Dataset, config: Any) -> Splits:
    return check_splits(dataset.make(config))


def _folder(name: str, layout: Layout, top: Path) -> Path | None:
    try:
        return find(name, layout, top)
    except BadInput:
        return None


def _complete(name: str, layout: Layout, top: Path) -> bool:
    return _folder(name, layout, top) is not None and not files_of(name, layout, top).missing


def _unpack_archives(name: str, layout: Layout, top: Path) -> tuple[Path, ...]:
    """Unpack every published archive that lies in the data folder or in the dataset's own."""
    folders = (top, *(top / part for part in layout.folders))
    archives = tuple(path for folder in folders for word in layout.archives if (path := folder / word).is_file())
    for archive in archives:
        with _scratch(archive.parent) as scratch:
            _unpack(archive, scratch)
            home = _home(scratch, layout)
            if home is None:
                raise BadInput(
                    f"the archive holds none of the files of {name}",
                    where=archive,
                    expected=", ".join(layout.files),
                    do=f"If it is an archive of archives, unpack it by hand. {layout.obtain}",
                )
            own = archive.parent if archive.parent != top else None
            _settle(scratch, home, _folder(name, layout, top) or own, top, layout.folders)
    return archives


def _unpack(archive: Path, folder: Path) -> None:
    from spurless.data.archives import unpack

    unpack(archive, folder)


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """Lend a folder beside the place where its content will go; whatever happens, it does not stay."""
    folder = parent / f".unpacking-{uuid4().hex}"
    try:
        folder.mkdir()
        yield folder
    except OSError as error:
        raise unwritable(parent, error) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _home(scratch: Path, layout: Layout) -> Path | None:
    """Return the folder of what was unpacked that has the files in it, at most two folders down."""
    for folder in (scratch, *sorted(scratch.glob("*/")), *sorted(scratch.glob("*/*/"))):
        marked = any((folder / marker).exists() for marker in layout.markers)
        if marked or any(any(folder.glob(pattern)) for entry in layout.files for pattern in _patterns(entry)):
            return folder
    return None


def _settle(scratch: Path, home: Path, target: Path | None, top: Path, folders: tuple[str, ...]) -> None:
    """Move what was unpacked to where the dataset lies or is looked for."""
    if target is not None:
        _merge(home, target)
    elif not folders or home.relative_to(scratch).as_posix() in folders:
        _merge(scratch, top)
    else:
        _merge(home, top / folders[0])


def _merge(source: Path, target: Path) -> None:
    """Move a tree into another; a file that is there stays as it is."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)
    elif source.is_dir() and target.is_dir():
        for path in list(source.iterdir()):
            _merge(path, target / path.name)


def _download(name: str, layout: Layout, top: Path) -> None:
    if layout.download is None:
        return
    fresh = not top.exists()
    try:
        top.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(top, error) from None
    try:
        layout.download(top)
    except SpurlessError:
        raise
    except Exception as error:  # whoever downloads raises anything: no network, a wrong checksum, a full disk
        raise BadInput(
            f"{name} could not be downloaded: {error}", where=top, do=f"Try again, or fetch it by hand. {layout.obtain}"
        ) from error
    finally:
        if fresh:
            with suppress(OSError):  # not empty: what is there is taken up by the next attempt
                top.rmdir()


def _not_there(name: str, layout: Layout, top: Path, download: bool) -> BadInput:
    """Say what is expected, where to get it, and whether this program can."""
    if layout.download is None:
        get = f"No program may fetch them. {layout.obtain}" if download else layout.obtain
    elif download:
        get = f"What was downloaded is not what was expected. {layout.obtain}"
    else:
        get = f"Download them: spurless data prepare {name} --download. Or by hand: {layout.obtain}"
    places = " or ".join(f"{part}/" for part in layout.folders)
    return BadInput(
        f"the files of {name} are not there",
        where=top,
        expected=f"{', '.join(layout.files)}{f' in {places}' if places else ''}",
        got=None if top.is_dir() else "no such folder",
        do=f"{get} Say where they are: {SAY_WHERE}.",
    )


def _belongs(path: Path, layout: Layout, top: Path, folder: Path) -> bool:
    if not path.is_relative_to(folder):
        return False
    name = path.relative_to(folder).as_posix()
    patterns = [pattern for entry in layout.files for pattern in _patterns(entry)]
    return folder != top or any(fnmatchcase(name, p) or name.startswith(f"{p}/") for p in patterns)


def _held(folder: Path, entry: str) -> list[str]:
    """Return the files of the first alternative of an entry that is there: plain or packed, here or one folder down."""
    for alternative in _alternatives(entry):
        found = [_match(folder, word) for word in alternative]
        if None not in found:
            return [word for word in found if word is not None]
    return []


def _match(folder: Path, word: str) -> str | None:
    pattern = _pattern(word)
    for form in ("{}", "{}.gz", "*/{}", "*/{}.gz"):
        path = next(folder.glob(form.format(pattern)), None)
        if path is not None:
            return word if pattern != word else path.relative_to(folder).as_posix()
    return None


def _patterns(entry: str) -> list[str]:
    return [_pattern(word) for alternative in _alternatives(entry) for word in alternative]


def _pattern(word: str) -> str:
    """Return what a folder can be asked for."""
    return re.sub(r"<[^>]*>", "*", word)


def _alternatives(entry: str) -> list[list[str]]:
    """Take an entry of a layout apart; of one alternative, all must be there.

    Example:
        >>> _alternatives("<species>/<image>.jpg or birds.npz, birds.csv (packed)")
        [['<species>/<image>.jpg'], ['birds.npz', 'birds.csv']]
    """
    plain = re.sub(r"\([^)]*\)", "", entry)
    parts = (re.split(r",| and ", alternative) for alternative in plain.split(" or "))
    found = [[word.strip().strip("/") for word in words if word.strip().strip("/")] for words in parts]
    return [alternative for alternative in found if alternative]
