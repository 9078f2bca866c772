"""Folders: images in a folder per class, as most people keep them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.core.seeds import Seeds
from spurless.data.grouped import Grouped, Splits, Transform
from spurless.data.images import EXTENSIONS, ImageFiles, read
from spurless.data.names import Names
from spurless.data.splitting import SPLIT_NAMES, assemble, name_groups, name_values, sort_naturally
from spurless.data.unreadable import HINT, left_out, readable

RUBBISH = ("thumbs.db", "desktop.ini")
"""Files that a system leaves among pictures without being asked, in lower case; hidden ones are none of anybody's."""


def from_folder(  # noqa: PLR0913 - a loader's options are its arguments
    root: str | Path,
    *,
    size: int | None = None,
    seed: int = 0,
    stream: bool | None = None,
    cache: bool | None = None,
    skip_bad: bool = False,
    transform: Transform | None = None,
    augment: Transform | None = None,
) -> Splits:
    """Load images from class folders.

    Two layouts are known: ``root/<class>/*`` is split at random, stratified, 70/15/15 by ``seed``;
    ``root/{train,val,test}/<class>/*`` is taken as it is (``val`` may be called valid or validation), and where
    val or test is missing, 15 % of train are cut off for each. In both, a class folder that holds only folders
    is read as ``<class>/<attribute>/*``; a split without attribute folders has unknown attributes.

    Classes and attributes are numbered in natural order of their names; links are followed. Files in a class folder
    that have no image's extension are left out with a warning, and so are images that lie outside the class folders;
    hidden files are ignored. What was left out is in ``notes``.

    Args:
        root: the folder.
        size: resize the short side to this and cut the centre out; needed where images differ in size.
        seed: of the split.
        stream: read images on demand (True), now (False), or now if they fit in 1 GiB (None).
        cache: decode images once and keep them for later runs, in ``$SPURLESS_CACHE`` (True), or decode them each
            time (False); by default they are kept if there are at least 2,000.
        skip_bad: leave out images that cannot be read, with a warning that names them. Every image is read once for
            that, and what was found is remembered.
        transform: from a batch of uint8 images to what the model takes.
        augment: before ``transform``, in training only.

    Raises:
        BadInput: a folder is missing, empty or ambiguous, or an image cannot be read.
    """
    root = Path(root)
    found = list(_files(root))
    notes = _strangers(root, found)
    if skip_bad:
        kept, bad = readable([file.path for file in found], [file.label for file in found], root)
        found, notes = [found[i] for i in kept], notes + bad
    labels, y = name_values([file.label for file in found])
    attributes, a = name_values([file.attribute for file in found])
    groups = name_groups(labels, {"attribute": attributes} if attributes else {})
    _check_classes(found, root)
    paths = [file.path for file in found]
    x = read(ImageFiles(paths, size, hint=HINT), stream, cache=cache)
    return assemble(
        Grouped(x, y, a, groups, transform, augment, names=Names.of_files(paths)),
        torch.tensor([file.split for file in found]),
        seeds=Seeds(seed),
        name=f"folder {root.resolve().name}",
        options={
            "root": str(root),
            "size": size,
            "seed": seed,
            "stream": stream,
            **({"skip_bad": True} if skip_bad else {}),
        },
        notes=notes,
    )


@dataclass(frozen=True)
class _File:
    """One image, and what its place in the tree says about it."""

    path: Path
    split: int
    label: str
    attribute: str | None


def _files(root: Path) -> Iterator[_File]:
    folders = subfolders(root)
    if not _named_for_splits(folders):
        yield from _classes(root, 0)
        return
    splits: dict[int, Path] = {}
    for folder in folders:
        number = SPLIT_NAMES.get(folder.name.lower())
        if number is None:
            raise BadInput("the folder lies beside 'train' and is no split", where=folder, expected="train, val, test")
        if number in splits:
            raise BadInput(f"the folders {splits[number].name!r} and {folder.name!r} are the same split", where=root)
        splits[number] = folder
    if 0 not in splits:
        raise BadInput("there is no train folder", where=root, got=", ".join(folder.name for folder in folders))
    for number, folder in splits.items():
        yield from _classes(folder, number)


def _named_for_splits(folders: list[Path]) -> bool:
    """Tell splits from classes: a class may be called 'train' too, but then it holds images."""
    numbers = {SPLIT_NAMES.get(folder.name.lower()) for folder in folders if not images_in(folder)}
    return 0 in numbers or (bool(numbers) and numbers <= {1, 2} and not any(map(images_in, folders)))


def _classes(root: Path, split: int) -> Iterator[_File]:
    folders = subfolders(root)
    if not folders:
        raise BadInput("the folder holds no class folders", where=root, expected=f"{root}/<class>/*.jpg")
    if split == 0 and len(folders) == 1 and not images_in(folders[0]) and subfolders(folders[0]):
        raise BadInput(
            "the folder holds one class folder only, and that holds folders",
            where=root,
            got=folders[0].name,
            do=f"If the classes are one step deeper, pass {folders[0]}.",
        )
    kinds = {}
    for folder in folders:
        inner = [] if images_in(folder) else subfolders(folder)
        kinds[bool(inner)] = folder.name
        for leaf in inner or [folder]:
            attribute = leaf.name if inner else None
            yield from (_File(path, split, folder.name, attribute) for path in _leaf(leaf))
    if len(kinds) == 2:
        raise BadInput(
            f"the class {kinds[True]!r} has attribute folders and the class {kinds[False]!r} has none", where=root
        )


def _leaf(folder: Path) -> list[Path]:
    """Return the images of a folder that must hold some, and nothing deeper."""
    images = images_in(folder)
    if not images:
        others = _others(folder)
        raise BadInput(
            "the folder holds no images",
            where=folder,
            got=f"{len(others)} files that are none by their names, such as {others[0]}" if others else None,
            do="Add some, or delete the folder.",
        )
    if subfolders(folder):
        raise BadInput("the folder holds images beside folders", where=folder, expected="one or the other")
    return images


def subfolders(root: Path) -> list[Path]:
    """Return the folders in a folder, in natural order; hidden ones are ignored."""
    if not root.exists():
        raise BadInput("no such folder", where=root)
    if not root.is_dir():
        raise BadInput("this is a file, not a folder", where=root)
    return [root / name for name in sort_naturally({p.name for p in root.iterdir() if _visible(p) and p.is_dir()})]


def images_in(folder: Path) -> list[Path]:
    """Return the images in a folder, in natural order; hidden files and files without an image's extension are not."""
    return [folder / name for name in sort_naturally(image_names(folder))]


def image_names(folder: Path) -> set[str]:
    """Return the names of the images in a folder, in one pass: a folder may hold a million."""
    with os.scandir(folder) as entries:
        return {
            entry.name
            for entry in entries
            if not entry.name.startswith(".") and Path(entry.name).suffix.lower() in EXTENSIONS and entry.is_file()
        }


def _strangers(root: Path, found: Sequence[_File]) -> tuple[str, ...]:
    """Warn of files that are left out: those in a class folder that are no images, and images outside of any."""
    leaves = {file.path.parent: None for file in found}  # in order
    others = [leaf / name for leaf in leaves for name in _others(leaf)]
    above = [root, *(folder for folder in subfolders(root) if folder not in leaves)]
    astray = [path for folder in above for path in images_in(folder)]
    notes = []
    if others:
        notes.append(left_out("files that are no images by their names", others))
    if astray:
        notes.append(left_out("images that lie outside the class folders", astray))
    for note in notes:
        warnings.warn(note, SpurlessWarning, stacklevel=3)
    return tuple(notes)


def _others(folder: Path) -> tuple[str, ...]:
    """Return the files in a folder that are no images by their names, in natural order."""
    with os.scandir(folder) as entries:
        files = {e.name for e in entries if not e.name.startswith(".") and e.is_file()}
    return sort_naturally({n for n in files - image_names(folder) if n.lower() not in RUBBISH})


def _visible(path: Path) -> bool:
    return not path.name.startswith(".")


def _check_classes(found: list[_File], root: Path) -> None:
    """Refuse a class that train lacks: mostly a folder whose name is spelt in two ways."""
    trained = {file.label for file in found if file.split == 0}
    for file in found:
        if file.label not in trained:
            raise BadInput(
                f"the class {file.label!r} is not in the train folder", where=root, got=", ".join(sorted(trained))
            )
