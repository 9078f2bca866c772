"""Load images from a folder per class."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.seeds import Seeds
from spurless.data.loaders.broken_images import SKIP_HINT, describe_skipped, drop_unreadable
from spurless.data.loaders.images import EXTENSIONS, ImageFiles, read_images
from spurless.data.split import ExampleIds, Split, Splits, Transform
from spurless.data.splitting import SPLIT_NAMES, encode_values, make_splits, name_groups, sort_naturally

IGNORED_FILES = ("thumbs.db", "desktop.ini")
"""Files of the operating system that are ignored, in lower case; hidden files are ignored too."""


def from_folder(  # noqa: PLR0913 - one parameter per option
    root: str | Path,
    *,
    size: int | None = None,
    seed: int = 0,
    stream: bool | None = None,
    cache: bool | None = None,
    skip_bad: bool = False,
    channels: int = 3,
    classes: Sequence[str] | None = None,
    held_out: bool = False,
    transform: Transform | None = None,
    augment: Transform | None = None,
) -> Splits:
    """Load images from class folders.

    Two layouts are supported: ``root/<class>/*``, split at random, stratified, 70/15/15 by ``seed``; and
    ``root/{train,val,test}/<class>/*`` (``val`` may be called valid or validation). A missing val or test split is
    taken from train, 15 % for each. In both, a class folder with subfolders only is read as
    ``<class>/<attribute>/*``; a split without attribute folders has unknown attributes. Folders at deeper levels, and
    those next to the images of a class, are read too and have no meaning.

    Classes and attributes are in natural order of their names; links are followed. Files in a class folder without the
    extension of an image, and images outside the class folders, are skipped with a warning and a note; hidden files are
    ignored.

    Args:
        root: the folder.
        size: resize the short side to this and crop the center; needed if images differ in size.
        seed: seed of the split.
        stream: read images on demand (True), now (False), or now if they fit in 1 GiB (None).
        cache: cache decoded images in ``$SPURLESS_CACHE``; by default, 2,000 images or more are cached.
        skip_bad: skip unreadable images with a warning; every image is read once to find them.
        channels: 3, or 1 to read images as gray.
        classes: the classes, in the order of the model's outputs; by default in natural order.
        held_out: the examples were not trained on: without a train split, none is made, and without any splits all
            examples are test.
        transform: function from a batch of uint8 images to model input.
        augment: transform that is applied first, in training only.
    """
    check_arguments(from_folder, locals())
    root = Path(root)
    files = list(_find_files(root, held_out))
    notes = _warn_skipped(root, files)
    if skip_bad:
        readable, skipped = drop_unreadable([file.path for file in files], [file.label for file in files], root)
        files, notes = [files[i] for i in readable], notes + skipped
    labels, y = encode_values([file.label for file in files])
    attributes, a = encode_values([file.attribute for file in files])
    groups = name_groups(labels, {"attribute": attributes} if attributes else {})
    if any(file.split == 0 for file in files):
        _check_classes(files, root)
    paths = [file.path for file in files]
    x = read_images(ImageFiles(paths, size, channels, hint=SKIP_HINT), stream, cache=cache)
    more = ({"skip_bad": True} if skip_bad else {}) | ({} if channels == 3 else {"channels": channels})
    return make_splits(
        Split(x, y, a, groups, transform, augment, names=ExampleIds.of_files(paths)),
        torch.tensor([file.split for file in files]) if has_split_folders(root) else None,
        seeds=Seeds(seed),
        name=f"folder {root.resolve().name}",
        options={"root": str(root), "size": size, "seed": seed, "stream": stream, **more},
        notes=notes,
        held_out=held_out,
        classes=classes,
    )


@dataclass(frozen=True)
class _File:
    """An image file, with the split, class and attribute of its folders."""

    path: Path
    split: int
    label: str
    attribute: str | None


def _find_files(root: Path, held_out: bool) -> Iterator[_File]:
    folders = subfolders(root)
    if not _are_splits(folders):
        yield from _find_in_classes(root, 0)
        return
    splits: dict[int, Path] = {}
    for folder in folders:
        number = SPLIT_NAMES.get(folder.name.lower())
        if number is None:
            what = "the folder is not a split, unlike its neighbor 'train'"
            raise InputError(what, where=folder, expected="train, val, test")
        if number in splits:
            raise InputError(f"the folders {splits[number].name!r} and {folder.name!r} are the same split", where=root)
        splits[number] = folder
    if 0 not in splits and not held_out:
        got = ", ".join(folder.name for folder in folders)
        hint = "Add one; a model that is trained already can be audited and evaluated without."
        raise InputError("there is no train folder", where=root, got=got, hint=hint)
    for number, folder in splits.items():
        yield from _find_in_classes(folder, number)


def has_split_folders(root: Path) -> bool:
    """Return whether a folder contains folders of splits, such as train and val."""
    return root.is_dir() and _are_splits(subfolders(root))


def _are_splits(folders: list[Path]) -> bool:
    """Return whether folders are splits instead of classes; a class called 'train' contains images."""
    numbers = {SPLIT_NAMES.get(folder.name.lower()) for folder in folders if not images_in(folder)}
    return 0 in numbers or (bool(numbers) and numbers <= {1, 2} and not any(map(images_in, folders)))


def _find_in_classes(root: Path, split: int) -> Iterator[_File]:
    folders = subfolders(root)
    if not folders:
        raise InputError("the folder contains no class folders", where=root, expected=f"{root}/<class>/*.jpg")
    if split == 0 and len(folders) == 1 and not images_in(folders[0]) and subfolders(folders[0]):
        what, got = "the folder contains only one class folder, which contains folders", folders[0].name
        raise InputError(what, where=root, got=got, hint=f"If the classes are one level deeper, pass {folders[0]}.")
    kinds = {}
    for folder in folders:
        inner = [] if images_in(folder) else subfolders(folder)
        kinds[bool(inner)] = folder.name
        for leaf in inner or [folder]:
            attribute = leaf.name if inner else None
            yield from (_File(path, split, folder.name, attribute) for path in _list_images(leaf))
    if len(kinds) == 2:
        what = f"the class {kinds[True]!r} has attribute folders and the class {kinds[False]!r} has none"
        raise InputError(what, where=root)


def _list_images(folder: Path) -> list[Path]:
    """Return the images of a folder and of all folders in it; raise if there are none."""
    images = list(_list_nested(folder))
    if not images:
        others = _list_others(folder)
        got = f"{len(others)} files without the extension of an image, such as {others[0]}" if others else None
        raise InputError("the folder contains no images", where=folder, got=got, hint="Add some, or delete the folder.")
    return images


def _list_nested(folder: Path) -> Iterator[Path]:
    """Yield the images of a folder and of all folders in it."""
    yield from images_in(folder)
    for inner in subfolders(folder):
        yield from _list_nested(inner)


def subfolders(root: Path) -> list[Path]:
    """Return the folders in a folder, in natural order; hidden ones are ignored."""
    if not root.exists():
        raise InputError("no such folder", where=root)
    if not root.is_dir():
        raise InputError("the path is a file instead of a folder", where=root)
    names = {path.name for path in root.iterdir() if not path.name.startswith(".") and path.is_dir()}
    return [root / name for name in sort_naturally(names)]


def images_in(folder: Path) -> list[Path]:
    """Return the images in a folder, in natural order, without hidden files."""
    return [folder / name for name in sort_naturally(image_names(folder))]


def image_names(folder: Path) -> set[str]:
    """Return the names of the images in a folder, in one pass."""
    return {name for name in _file_names(folder) if Path(name).suffix.lower() in EXTENSIONS}


def _warn_skipped(root: Path, files: Sequence[_File]) -> tuple[str, ...]:
    """Warn about skipped files: other files in class folders, and images outside of them."""
    leaves = {file.path.parent: None for file in files}  # in order
    others = [leaf / name for leaf in leaves for name in _list_others(leaf)]
    above = [root, *(folder for folder in subfolders(root) if folder not in leaves)]
    outside = [path for folder in above for path in images_in(folder)]
    skipped = {"files without the extension of an image": others, "images outside the class folders": outside}
    notes = tuple(describe_skipped(what, paths) for what, paths in skipped.items() if paths)
    for note in notes:
        warnings.warn(note, SpurlessWarning, stacklevel=3)
    return notes


def _list_others(folder: Path) -> tuple[str, ...]:
    """Return the files in a folder without the extension of an image, in natural order."""
    others = _file_names(folder) - image_names(folder)
    return sort_naturally({name for name in others if name.lower() not in IGNORED_FILES})


def _file_names(folder: Path) -> set[str]:
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries if not entry.name.startswith(".") and entry.is_file()}


def _check_classes(files: list[_File], root: Path) -> None:
    """Raise if a class is missing in train, for example because of two spellings."""
    train = {file.label for file in files if file.split == 0}
    for file in files:
        if file.label not in train:
            what = f"the class {file.label!r} is not in the train folder"
            raise InputError(what, where=root, got=", ".join(sorted(train)))
