"""Packs: own images in one npz file; loaded, and made of class folders or of a CSV file.

A pack travels as one file, and is opened without a walk over a hundred thousand small ones. For what is in it see
:mod:`spurless.data.packed`; :mod:`spurless.data.packing` makes one of anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.folder import from_folder
from spurless.data.grouped import Grouped, Picked, Splits, Transform
from spurless.data.images import read
from spurless.data.names import Names
from spurless.data.packed import IMAGES, NAMES, OFFSETS, Pack
from spurless.data.packing import Packed, pack_images
from spurless.data.splitting import assemble, name_groups, name_values, number_split
from spurless.data.table import from_csv
from spurless.data.tensors import whole

FILE = "file"
"""The column that says which file an image was, where there is one."""


def from_pack(  # noqa: PLR0913 - a loader's options are its arguments
    path: str | Path,
    *,
    label: str | None = None,
    attribute: str | Sequence[str] | None = None,
    split: str | None = None,
    size: int | None = None,
    seed: int = 0,
    stream: bool | None = None,
    cache: bool | None = None,
    transform: Transform | None = None,
    augment: Transform | None = None,
) -> Splits:
    """Load a pack.

    Where a pack names the numbers of ``y`` and ``a``, these are the names; otherwise the names are the different
    values of the column in natural order, with the name of the column before bare numbers ("place 0"). Where there
    is no column of splits, or it names no val or no test image, the missing splits are cut from train at random,
    stratified, 15 % of it for each.

    Args:
        path: the file.
        label: the column of the class; by default ``y``.
        attribute: the column of the attribute, or several to cross; by default ``a`` if it is there. -1 or empty
            text is an unknown attribute.
        split: the column of the split, 0, 1, 2 or train, val, test; by default ``split`` if it is there.
        size: resize the short side to this and cut the centre out; needed where images differ in size.
        seed: of the split.
        stream: read images on demand (True), now (False), or now if they fit in 1 GiB (None).
        cache: decode images once and keep them for later runs, in ``$SPURLESS_CACHE`` (True), or decode them each
            time (False); by default they are kept if there are at least 2,000.
        transform: from a batch of uint8 images to what the model takes.
        augment: before ``transform``, in training only.

    Raises:
        BadInput: the file, a column or an image cannot be used.
    """
    pack = Pack.open(path)
    attributes = [attribute] if isinstance(attribute, str) else list(attribute or ())
    labels, y = _named(pack, label or "y")
    if bool((y < 0).any()):
        raise BadInput(f"the column {label or 'y'!r} lacks a label", where=f"{pack.path}, image {int(y.argmin())}")
    groups, a = _attributes(pack, labels, attributes)
    split = split or ("split" if "split" in pack.columns else None)
    where = None if split is None else _splits(pack, split)
    x = read(pack.images(size), stream, cache=cache)
    return assemble(
        Grouped(x, y, torch.full_like(y, -1) if a is None else a, groups, transform, augment, names=_names(pack)),
        where,
        seeds=Seeds(seed),
        name=f"pack {pack.path.name}",
        options={
            "path": str(path),
            "label": label,
            "attribute": attributes,
            "split": split,
            "size": size,
            "seed": seed,
            "stream": stream,
        },
    )


def is_pack(path: Path) -> bool:
    """Tell a pack from other npz archives, by its keys."""
    try:
        with ZipFile(path) as archive:
            return {f"{IMAGES}.npy", f"{OFFSETS}.npy"} <= set(archive.namelist())
    except (BadZipFile, OSError):
        return False


def pack_folder(
    root: str | Path,
    out: str | Path,
    size: int | None = None,
    quality: int | None = None,
    seed: int = 0,
    *,
    skip_bad: bool = False,
) -> Packed:
    """Pack class folders, such that ``from_pack(out)`` gives what ``from_folder`` with these options does."""
    splits = from_folder(root, seed=seed, skip_bad=skip_bad, stream=True, cache=False)
    return _pack_splits(splits, out, size, quality, Path(root))


def pack_table(  # noqa: PLR0913 - a loader's options are its arguments
    path: str | Path,
    out: str | Path,
    *,
    label: str,
    attribute: str | Sequence[str] | None = None,
    split: str | None = None,
    root: str | Path | None = None,
    file: str | None = None,
    size: int | None = None,
    quality: int | None = None,
    seed: int = 0,
    delimiter: str = ",",
    skip_bad: bool = False,
) -> Packed:
    """Pack a CSV file of images, such that ``from_pack(out)`` gives what ``from_csv`` with these options does."""
    splits = from_csv(
        path,
        label=label,
        attribute=attribute,
        split=split,
        root=root,
        file=file,
        seed=seed,
        delimiter=delimiter,
        skip_bad=skip_bad,
        stream=True,
        cache=False,
    )
    if not splits.train.streamed:
        raise BadInput("this is a table of numbers, not of images", where=path, do="Name the column with file=.")
    return _pack_splits(splits, out, size, quality)


def _pack_splits(
    splits: Splits, out: str | Path, size: int | None, quality: int | None, root: Path | None = None
) -> Packed:
    """Pack the files of streamed splits in the order in which they were found; their names start from ``root``."""
    parts = [splits.train, splits.val, splits.test]
    picked = [part.x for part in parts if isinstance(part.x, Picked)]
    index = torch.cat([x.index for x in picked])
    order = index.argsort()
    source: Any = picked[0].source
    columns: dict[str, Any] = {
        "y": torch.cat([part.y for part in parts])[order],
        "split": torch.cat([torch.full_like(part.y, k) for k, part in enumerate(parts)])[order],
        "labels": splits.groups.labels,
    }
    if splits.groups.attributes:
        columns |= {"a": torch.cat([part.a for part in parts])[order], "attributes": splits.groups.attributes}
    if splits.groups.sizes:
        columns["sizes"] = splits.groups.sizes
    called = [part.names[i] for part in parts if part.names is not None for i in range(len(part))]
    names = [str(called[i]) for i in order.tolist()]
    columns[FILE] = names if root is None else [str(Path(name).relative_to(root)) for name in names]
    return pack_images([source.paths[i] for i in index[order].tolist()], out, columns, size=size, quality=quality)


def _names(pack: Pack) -> Names:
    """Call every image by the file that it was, or else by its number in the pack."""
    files = pack.columns.get(FILE)
    every = torch.arange(len(pack))
    known = files is not None and files.ndim == 1 and files.dtype.kind == "U"
    return Names(every, files) if known else Names(every, place=f"{pack.path.name}, image")


def _named(pack: Pack, column: str) -> tuple[tuple[str, ...], Tensor]:
    """Return the names and the numbers of the values of a column."""
    values, names = pack.column(column), pack.arrays.get({"y": "labels", "a": "attributes"}.get(column, ""))
    if values.ndim != 1:
        raise BadInput(f"the column {column!r} must be one value per image", where=pack.path, got=values.shape)
    if values.dtype.kind in "US":
        if names is None:
            return name_values([str(value).strip() or None for value in values])
        raise BadInput(f"the column {column!r} is text, and yet its numbers are named", where=pack.path)
    codes = whole(values, f"values of column {column!r}")
    if names is not None:
        return tuple(map(str, names)), codes
    known, codes = name_values([None if value == -1 and column != "y" else value for value in codes.tolist()])
    return tuple(f"{column} {name}" for name in known), codes


def _attributes(pack: Pack, labels: tuple[str, ...], columns: Sequence[str]) -> tuple[Groups, Tensor | None]:
    if not columns and "a" not in pack.columns:
        return name_groups(labels, {}), None
    if list(columns) in ([], ["a"]) and pack.column("a").ndim == 2:
        return _crossed(pack, labels)
    named = {column: _named(pack, column) for column in columns or ["a"]}
    codes = [a for _, a in named.values()]
    groups = name_groups(labels, {column: names for column, (names, _) in named.items()})
    return groups, codes[0] if len(codes) == 1 else torch.stack(codes, dim=1)


def _crossed(pack: Pack, labels: tuple[str, ...]) -> tuple[Groups, Tensor]:
    """Return the groups of a column ``a`` that is several, with the names of their combinations."""
    a, (names, sizes) = whole(pack.column("a"), "attributes"), (pack.arrays.get(key) for key in NAMES[1:])
    if names is None or sizes is None or len(sizes) != a.shape[1] or int(sizes.prod()) != len(names):
        raise BadInput(
            "the column 'a' is several, and their values are not named",
            where=pack.path,
            expected="'sizes' with the number of values of each, and 'attributes' with every combination",
        )
    return Groups(labels, tuple(map(str, names)), tuple(map(int, sizes))), a


def _splits(pack: Pack, column: str) -> Tensor:
    return torch.tensor(
        [number_split(value, f"{pack.path}, image {i}") for i, value in enumerate(pack.column(column).tolist())]
    )
