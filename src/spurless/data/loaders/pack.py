"""Reader of packs: npz files that contain many encoded images and their columns.

``img`` (uint8) contains the image files one after another, ``off`` (int64) the offset of each and the end of the last.
Every other array with one row per image is a column of numbers or text.
"""

from __future__ import annotations

import re
import struct
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import torch
from torch import Tensor

from spurless.core.errors import IncompleteDataWarning, InputError, did_you_mean
from spurless.core.hashing import content_hash
from spurless.core.limits import check_bytes, max_unpacked
from spurless.data.loaders.images import check_format, check_shape, decode_image

IMAGES, OFFSETS = "img", "off"
_LENGTHS = 26  # offset of the lengths of name and extra field in the local header of a zip member


@dataclass(frozen=True, eq=False)
class Pack:
    """An open pack. Images that are stored uncompressed stay on disk until they are read."""

    path: Path
    arrays: Mapping[str, Any]  # NumPy arrays other than the images, by name
    content: str = field(repr=False)  # hash of the images
    _bytes: Any = field(repr=False)
    _offsets: Any = field(repr=False)

    @classmethod
    def open(cls, path: str | Path) -> Pack:
        """Open a file, or raise if it is not a valid pack."""
        path = Path(path)
        arrays = read_arrays(path)
        for key in (IMAGES, OFFSETS):
            if key not in arrays:
                what = f"the archive lacks the key {key!r}"
                raise InputError(what, where=path, got=", ".join(arrays), expected="a pack")
        images, offsets = arrays.pop(IMAGES), arrays.pop(OFFSETS)
        _check_offsets(path, images, offsets)
        with ZipFile(path) as archive:
            sums = [archive.getinfo(f"{key}.npy").CRC for key in (IMAGES, OFFSETS)]
        return cls(path, arrays, content_hash("pack", len(images), sums), images, offsets)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __reduce__(self) -> tuple[Any, ...]:
        return Pack.open, (self.path,)  # pickling transfers the path only

    @property
    def columns(self) -> dict[str, Any]:
        """The arrays with one row per image."""
        return {name: array for name, array in self.arrays.items() if array.ndim and len(array) == len(self)}

    def column(self, name: str) -> Any:
        """Return a column by name."""
        columns = self.columns
        if name not in columns:
            hint = f"{did_you_mean(name, columns)} Columns: {', '.join(columns) or 'none'}.".strip()
            raise InputError(f"no column is called {name!r}", where=self.path, hint=hint)
        return columns[name]

    def encoded(self, i: int) -> bytes:
        """Return the encoded bytes of one image."""
        data: bytes = self._bytes[self._offsets[i] : self._offsets[i + 1]].tobytes()
        return data

    def images(self, size: int | None = None, channels: int = 3, rows: Tensor | None = None) -> PackedImages:
        """Return a source of all images, or of the given rows."""
        return PackedImages(self, size, channels, rows)

    def check_count(self, name: str, n: int) -> tuple[str, ...]:
        """Warn if the number of images is not the published one, and return the warning as a note."""
        if len(self) == n:
            return ()
        note = f"{name} is not complete: {self.path} has {len(self):,} images instead of {n:,}."
        warnings.warn(note, IncompleteDataWarning, stacklevel=3)
        return (note,)


@dataclass(frozen=True, eq=False)
class PackedImages:
    """The images of a pack, decoded on demand to uint8 of shape ``(channels, height, width)``.

    With ``size``, the short side is resized to it (bilinear, antialiased) and the center is cropped.
    Without, every image must have the size of the first.
    """

    pack: Pack
    size: int | None = None
    channels: int = 3
    rows: Tensor | None = None  # indices of the images in the pack, in order; None for all

    def __post_init__(self) -> None:
        check_format(self.size, self.channels)

    def __len__(self) -> int:
        return len(self.pack) if self.rows is None else len(self.rows)

    def __getitem__(self, i: int) -> Tensor:
        image = self._decode(i, self.size)
        if self.size is None:
            check_shape(image.shape, self._first_shape, self.where(i), "the first")
        return image

    def where(self, i: int) -> str:
        """Return the file and number of an image, for messages; the first is image 0."""
        return f"{self.pack.path}, image {self._row(i)}"

    def encoded(self, i: int) -> bytes:
        """Return the encoded bytes of one image."""
        return self.pack.encoded(self._row(i))

    def stamp(self) -> str:
        """Return a hash of the path, size and modification time of the pack; no image is read."""
        try:
            state = self.pack.path.stat()
        except OSError as error:
            raise InputError(f"the pack cannot be read: {error.strerror}", where=self.pack.path) from None
        facts = str(self.pack.path.resolve()), state.st_size, state.st_mtime_ns
        return content_hash("packed images", self.size, self.channels, self.rows, facts)

    def fingerprint(self) -> str:
        """Return a content hash, from the checksums in the archive."""
        return content_hash(self.pack.content, self.size, self.channels, self.rows)

    def _row(self, i: int) -> int:
        if not 0 <= i < len(self):
            raise IndexError(f"image {i} of {len(self)}")
        return i if self.rows is None else int(self.rows[i])

    def _decode(self, i: int, size: int | None) -> Tensor:
        return decode_image(self.encoded(i), self.where(i), self.channels, size)

    @cached_property
    def _first_shape(self) -> torch.Size:
        return self._decode(0, None).shape


def read_arrays(path: Path, keys: str = ".*") -> dict[str, Any]:
    """Read the arrays of an npz archive, never a pickle; uncompressed images are memory-mapped.

    ``keys`` is a regular expression; arrays with other keys are not read.
    """
    try:
        exists = path.is_file()
    except OSError:  # a name that no file can have
        exists = False
    if not exists:
        raise InputError("no such file", where=path, expected="an npz archive")
    with path.open("rb") as file:
        is_array = file.read(6) == b"\x93NUMPY"
    if is_array:
        hint = "Use np.savez(path, x=x, y=y)."
        raise InputError("the file contains one array instead of an archive", where=path, hint=hint)
    try:
        with ZipFile(path) as archive:
            members = [info for info in archive.infolist() if re.fullmatch(rf"({keys})\.npy", info.filename)]
            return {info.filename.removesuffix(".npy"): _read_member(path, archive, info) for info in members}
    except (BadZipFile, EOFError, OSError, zlib.error, struct.error, NotImplementedError, RuntimeError) as error:
        raise InputError(f"the file is not an npz archive, or damaged: {error}", where=path) from None


def _read_member(path: Path, archive: ZipFile, info: ZipInfo) -> Any:
    from numpy.lib import format as npy

    what = f"the array {info.filename.removesuffix('.npy')!r}"
    is_mapped = info.compress_type == ZIP_STORED and info.filename == f"{IMAGES}.npy"
    if not is_mapped:
        check_bytes(info.file_size, what, path, max_unpacked(max(info.compress_size, 1)))
    try:
        if is_mapped:
            return _map(path, info)
        with archive.open(info) as member:
            shape, dtype = _npy_header(member)
        if prod(shape) * dtype.itemsize > info.file_size:
            raise ValueError(f"its header claims {shape}, which is more than its {info.file_size:,} bytes")
        with archive.open(info) as member:
            return npy.read_array(member, allow_pickle=False)
    except (ValueError, TypeError, MemoryError, RecursionError, SyntaxError, TokenError) as error:
        objects = "allow_pickle" in str(error)
        problem = "contains Python objects, which are never loaded" if objects else f"cannot be read: {error}"
        raise InputError(f"{what} {problem}", where=path) from None


def _map(path: Path, info: ZipInfo) -> Any:
    """Memory-map an array that is stored uncompressed, after the local header of its zip member."""
    import numpy as np

    with path.open("rb") as file:
        file.seek(info.header_offset + _LENGTHS)
        start = file.tell() + 4 + sum(struct.unpack("<HH", file.read(4)))
        file.seek(start)
        shape, dtype = _npy_header(file)
        data = file.tell()
    if data - start + prod(shape) * dtype.itemsize != info.file_size:
        raise ValueError("its header does not match its size")
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
        what = "the images must be a one-dimensional array of bytes"
        raise InputError(what, where=path, got=f"{images.dtype} {images.shape}")
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 2:
        raise InputError("the offsets must be two or more integers", where=path, got=f"{offsets.dtype} {offsets.shape}")
    falling = np.flatnonzero(offsets[1:].astype(np.int64) <= offsets[:-1].astype(np.int64))
    if len(falling):
        raise InputError("the offsets must increase: the image has no bytes", where=f"{path}, image {int(falling[0])}")
    if offsets[0] != 0 or offsets[-1] != len(images):
        got = f"{int(offsets[0])} to {int(offsets[-1])}"
        raise InputError("the offsets do not match the images", where=path, expected=f"0 to {len(images)}", got=got)
