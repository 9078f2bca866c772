"""Packed: many image files in one npz file, opened and read on demand.

``img`` (uint8) holds the files one after another, and ``off`` (int64) where each begins, and where the last one
ends. Every other array of the same number of rows is a column: numbers or text. ``labels`` and ``attributes``
name the numbers of the columns ``y`` and ``a``; ``sizes`` says how many values each column of a crossed ``a`` has.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import torch
from torch import Tensor

from spurless.core.errors import BadInput, Incomplete, did_you_mean
from spurless.core.provenance import digest
from spurless.data.images import decode_image

IMAGES, OFFSETS = "img", "off"
NAMES = ("labels", "attributes", "sizes")
"""Arrays that speak of the columns, and are none."""
_LENGTHS = 26  # where the local header of a zip member says how long its name and its extra field are


@dataclass(frozen=True, eq=False)
class Pack:
    """An open pack. Images that are stored as they are stay on disk until they are read."""

    path: Path
    arrays: Mapping[str, Any]
    """Everything but the images, by name, as NumPy arrays."""
    content: str = field(repr=False)
    """A hash of the images."""
    _bytes: Any = field(repr=False)
    _offsets: Any = field(repr=False)

    @classmethod
    def open(cls, path: str | Path) -> Pack:
        """Open a file.

        Raises:
            BadInput: it is no npz archive, holds Python objects, or its offsets do not fit.
        """
        path = Path(path)
        arrays = read_arrays(path)
        for key in (IMAGES, OFFSETS):
            if key not in arrays:
                raise BadInput(f"there is no key {key!r}", where=path, got=", ".join(arrays), expected="a pack")
        images, offsets = arrays.pop(IMAGES), arrays.pop(OFFSETS)
        _check_offsets(path, images, offsets)
        with ZipFile(path) as archive:
            sums = [archive.getinfo(f"{key}.npy").CRC for key in (IMAGES, OFFSETS)]
        return cls(path, arrays, digest("pack", len(images), sums), images, offsets)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __reduce__(self) -> tuple[Any, ...]:
        return Pack.open, (self.path,)  # to another process goes only the path

    @property
    def columns(self) -> dict[str, Any]:
        """The arrays with a row per image."""
        return {k: v for k, v in self.arrays.items() if k not in NAMES and v.ndim and len(v) == len(self)}

    def column(self, name: str) -> Any:
        """Return a column by name."""
        columns = self.columns
        if name not in columns:
            do = f"{did_you_mean(name, columns)} Columns: {', '.join(columns) or 'none'}.".strip()
            raise BadInput(f"no column is called {name!r}", where=self.path, do=do)
        return columns[name]

    def encoded(self, i: int) -> bytes:
        """Return one image file as it was packed."""
        data: bytes = self._bytes[self._offsets[i] : self._offsets[i + 1]].tobytes()
        return data

    def images(self, size: int | None = None, channels: int = 3, rows: Tensor | None = None) -> PackedImages:
        """Return the images as a source: all of them, or those of some rows."""
        return PackedImages(self, size, channels, rows)

    def expect(self, name: str, n: int) -> tuple[str, ...]:
        """Warn where the number of images is not the one that a dataset is known to have; return it as a note."""
        if len(self) == n:
            return ()
        note = f"This is not the whole {name}: {self.path} has {len(self):,} images and not {n:,}."
        warnings.warn(note, Incomplete, stacklevel=3)
        return (note,)


@dataclass(frozen=True, eq=False)
class PackedImages:
    """The images of a pack, decoded on demand to uint8 of shape ``(channels, height, width)``.

    With ``size``, the short side is resized to it (bilinear, antialiased) and the centre square is cut out.
    Without, every image must have the size of the first.
    """

    pack: Pack
    size: int | None = None
    channels: int = 3
    rows: Tensor | None = None
    """Which images of the pack, and in which order; None for all."""

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise BadInput("the size of an image must be at least 1", got=self.size)
        if self.channels not in (1, 3):
            raise BadInput("an image has 1 or 3 channels", got=self.channels)

    def __len__(self) -> int:
        return len(self.pack) if self.rows is None else len(self.rows)

    def __getitem__(self, i: int) -> Tensor:
        image = self._decode(i, self.size)
        if self.size is None and image.shape != self._first_shape:
            height, width = self._first_shape[1:]
            raise BadInput(
                "the images differ in size",
                where=self.where(i),
                expected=f"{width}x{height} like the first",
                got=f"{image.shape[2]}x{image.shape[1]}",
                do="Bring all to one size with size= (on the command line -D size=64).",
            )
        return image

    def where(self, i: int) -> str:
        """Say where an image is; the first is image 0."""
        return f"{self.pack.path}, image {self._row(i)}"

    def encoded(self, i: int) -> bytes:
        """Return one image file as it was packed."""
        return self.pack.encoded(self._row(i))

    def stamp(self) -> str:
        """Return a hash of the path, size and time of change of the pack; no image is read."""
        try:
            state = self.pack.path.stat()
        except OSError as error:
            raise BadInput(f"the pack is gone: {error.strerror}", where=self.pack.path) from None
        facts = str(self.pack.path.resolve()), state.st_size, state.st_mtime_ns
        return digest("packed images", self.size, self.channels, self.rows, facts)

    def fingerprint(self) -> str:
        """Return a content hash: the archive holds checksums, so that nothing need be read."""
        return digest(self.pack.content, self.size, self.channels, self.rows)

    def _row(self, i: int) -> int:
        if not 0 <= i < len(self):
            raise IndexError(f"image {i} of {len(self)}")
        return i if self.rows is None else int(self.rows[i])

    def _decode(self, i: int, size: int | None) -> Tensor:
        return decode_image(self.encoded(i), self.where(i), self.channels, size)

    @cached_property
    def _first_shape(self) -> torch.Size:
        return self._decode(0, None).shape


def read_arrays(path: Path) -> dict[str, Any]:
    """Read the arrays of an npz archive, never a pickle; images that are stored as they are stay on disk."""
    if not path.is_file():
        raise BadInput("no such file", where=path, expected="an npz archive")
    try:
        with ZipFile(path) as archive:
            members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            return {info.filename.removesuffix(".npy"): _read_member(path, archive, info) for info in members}
    except (BadZipFile, EOFError, OSError, zlib.error, struct.error, NotImplementedError) as error:
        raise BadInput(f"the file is not an npz archive, or damaged: {error}", where=path) from None


def _read_member(path: Path, archive: ZipFile, info: ZipInfo) -> Any:
    from numpy.lib import format as npy

    try:
        if info.compress_type == ZIP_STORED and info.filename == f"{IMAGES}.npy":
            return _map(path, info)
        with archive.open(info) as member:
            return npy.read_array(member, allow_pickle=False)
    except ValueError as error:
        objects = "allow_pickle" in str(error)
        what = "holds Python objects, which are never loaded" if objects else f"cannot be read: {error}"
        raise BadInput(f"the array {info.filename.removesuffix('.npy')!r} {what}", where=path) from None


def _map(path: Path, info: ZipInfo) -> Any:
    """Map an array that lies in the archive as it is; zip puts it behind a header of its own."""
    import numpy as np

    with path.open("rb") as file:
        file.seek(info.header_offset + _LENGTHS)
        start = file.tell() + 4 + sum(struct.unpack("<HH", file.read(4)))
        file.seek(start)
        shape, dtype = _npy_header(file)
        data = file.tell()
    if data - start + prod(shape) * dtype.itemsize != info.file_size:
        raise ValueError("its header does not fit its size")
    return np.memmap(path, dtype, "r", data, shape) if prod(shape) else np.zeros(shape, dtype)


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], Any]:
    from numpy.lib import format as npy

    reader = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = reader(file)
    if dtype.hasobject:
        raise ValueError("allow_pickle")
    return shape, dtype


def _check_offsets(path: Path, images: Any, offsets: Any) -> None:
    import numpy as np

    if images.ndim != 1 or images.dtype != np.uint8:
        raise BadInput("the images are not one row of bytes", where=path, got=f"{images.dtype} {images.shape}")
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 2:
        raise BadInput("the offsets are not two numbers or more", where=path, got=f"{offsets.dtype} {offsets.shape}")
    falling = np.flatnonzero(offsets[1:].astype(np.int64) <= offsets[:-1].astype(np.int64))
    if len(falling):
        raise BadInput("the image has no bytes: the offsets do not rise", where=f"{path}, image {int(falling[0])}")
    if offsets[0] != 0 or offsets[-1] != len(images):
        raise BadInput(
            "the offsets do not fit the images",
            where=path,
            expected=f"0 to {len(images)}",
            got=f"{int(offsets[0])} to {int(offsets[-1])}",
        )
