"""Decode image files to uint8 tensors, channels first: at once, one by one, or once into the cache."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from spurless.core.cache import CacheWriteError, DiskFullError, RowStore
from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.files import cache_folder, replace_text
from spurless.core.hashing import content_hash, is_content_hash
from spurless.core.progress import progress_reporter
from spurless.data.loader import prefetch
from spurless.data.split import Source

if TYPE_CHECKING:
    from PIL.Image import Image

EXTENSIONS = {".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}
MAX_RESIDENT_BYTES = 2**30  # bytes of pixels that are held in memory by default
MIN_CACHED_IMAGES = 2000  # number of images from which on decoded images are cached by default
SCHEMA = 1  # part of the cache key: raise it when ``to_pixels`` decodes the same file differently
CHUNK = 256  # images that are decoded and written together
CHUNK_BYTES = 2**23  # limit for large images: a few chunks per thread are held in memory

_MODES = {1: "L", 3: "RGB"}
_CHUNK = 64  # images per task of decode_all: a future per image would be larger than a small image
_ORIENTATION = 0x0112  # the EXIF tag; 2 to 8 stand for a rotation or a flip


@runtime_checkable
class EncodedImages(Source, Protocol):
    """A source of encoded images (JPEG, PNG, ...), which :func:`cache_decoded` can decode once."""

    @property
    def size(self) -> int | None:
        """The side of the square to which images are resized and cropped; None keeps their size."""

    @property
    def channels(self) -> int:
        """1 or 3."""

    def encoded(self, i: int, /) -> bytes:
        """Return the encoded bytes of one image."""

    def stamp(self) -> str:
        """Return a hash of paths, sizes and modification times, without reading an image."""


@dataclass(frozen=True)
class ImageFiles:
    """Image files, decoded on demand to uint8 of shape ``(channels, height, width)``.

    With ``size``, the short side is resized to it (bilinear, antialiased) and the center is cropped.
    Without, every image must have the size of the first.
    """

    paths: Sequence[Path]
    size: int | None = None
    channels: int = 3
    hint: str = ""  # hint that is added to the error for a file that cannot be read

    def __post_init__(self) -> None:
        check_format(self.size, self.channels)
        object.__setattr__(self, "paths", tuple(self.paths))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Tensor:
        image = self._read(i)
        if self.size is None:
            check_shape(image.shape, self._first_shape, self.paths[i], str(self.paths[0]))
        return image

    def encoded(self, i: int) -> bytes:
        """Return the bytes of one file."""
        try:
            return self.paths[i].read_bytes()
        except OSError as error:
            raise self._hinted(_unreadable(self.paths[i], error)) from None

    def stamp(self) -> str:
        """Return a hash of the paths, file sizes and modification times; no image is read."""
        facts = []
        for path in self.paths:
            try:
                state = path.stat()
            except OSError as error:
                raise _unreadable(path, error) from None
            facts.append((str(path), state.st_size, state.st_mtime_ns))
        return content_hash("images", self.size, self.channels, facts)

    def fingerprint(self) -> str:
        """Return the stamp, so that streamed files need not be read for a hash."""
        return self.stamp()

    @cached_property
    def _first_shape(self) -> torch.Size:
        return self._read(0).shape

    def _read(self, i: int) -> Tensor:
        try:
            return read_image(self.paths[i], self.channels, self.size)
        except InputError as error:
            raise self._hinted(error) from error

    def _hinted(self, error: InputError) -> InputError:
        return InputError(str(error).removesuffix("."), hint=self.hint) if self.hint else error


def check_format(size: int | None, channels: int) -> None:
    """Raise if images cannot have this size or number of channels."""
    if size is not None and size < 1:
        raise InputError("the size of an image must be at least 1", got=size)
    if channels not in _MODES:
        raise InputError("an image has 1 or 3 channels", got=channels)


def check_shape(shape: Sequence[int], first: Sequence[int], where: object, like: str) -> None:
    """Raise if an image does not have the shape of the first one, which is called ``like``."""
    if tuple(shape) != tuple(first):
        hint = "Resize all images with size= (on the command line -D size=64)."
        size, first_size = (f"{sides[-1]}x{sides[-2]}" for sides in (shape, first))
        raise InputError(
            "the images differ in size", where=where, expected=f"{first_size} like {like}", got=size, hint=hint
        )


def read_image(path: Path, channels: int = 3, size: int | None = None) -> Tensor:
    """Read one image file, or raise if it does not contain a complete image; see :func:`to_pixels`."""
    return _read(path, path, channels, size)


def decode_image(data: bytes, where: object, channels: int = 3, size: int | None = None) -> Tensor:
    """Decode one image from the bytes of its file; errors name ``where``. See :func:`to_pixels`."""
    return _read(BytesIO(data), where, channels, size)


def to_pixels(image: Image, channels: int = 3, size: int | None = None) -> Tensor:
    """Convert a Pillow image to uint8 ``(channels, height, width)``, rotated by its EXIF tag, without alpha.

    16-bit images are scaled to 8 bits (Pillow alone would clip them to white).
    """
    import numpy as np

    upright = _upright(image)
    if upright.mode == "F":
        what = "the image has floating-point pixels"
        raise InputError(what, expected="8 or 16 bits", hint="Convert it, or use an npz.")
    if upright.mode.startswith("I"):
        upright = _eight_bits(upright)
    if "transparency" in upright.info:
        upright = upright.convert("RGBA")  # Pillow warns if a palette with alpha is converted in one step
    mode = _MODES[channels]
    flat = upright if upright.mode == mode else upright.convert(mode)  # convert always copies
    if size is not None:
        flat = _resize_and_crop(flat, size)
    array = np.asarray(flat).reshape(flat.height, flat.width, channels)
    return torch.from_numpy(array.transpose(2, 0, 1).copy())


def channels_first(x: Tensor) -> Tensor:
    """Convert a batch of uint8 images to ``(N, C, H, W)``; return other tensors unchanged.

    ``(N, H, W)`` gets one channel. A last dimension of 1, 3 or 4 is that of the channels; a fourth (alpha) is dropped.
    """
    if x.dtype != torch.uint8:
        return x
    if x.dim() == 3:
        return x[:, None]
    if x.dim() == 4 and x.shape[-1] in (1, 3, 4):
        return x[..., :3].permute(0, 3, 1, 2).contiguous()
    return x


def decode_all(source: Source, threads: int | None = None) -> Tensor:
    """Read every example of a source into one tensor; pass ``threads=1`` if the source is not thread-safe."""
    first = source[0]
    out = torch.empty((len(source), *first.shape), dtype=first.dtype)
    starts = range(0, len(out), _CHUNK)
    with ThreadPoolExecutor(threads or _default_threads()) as pool:
        for _ in pool.map(lambda start: fill_rows(out[start : start + _CHUNK], source, start), starts):
            pass  # raises the first error and cancels pending tasks
    return out


def fill_rows(out: Tensor, source: Source, start: int) -> Tensor:
    """Fill ``out`` with the examples from number ``start`` on, and return it."""
    for row in range(len(out)):
        example = source[start + row]
        if example.shape != out.shape[1:]:  # copying would broadcast some shapes silently
            what = f"example {start + row} differs in shape"
            raise InputError(what, expected=tuple(out.shape[1:]), got=tuple(example.shape))
        out[row] = example
    return out


def read_or_stream(
    source: Source, limit_bytes: int = MAX_RESIDENT_BYTES, threads: int | None = None
) -> Tensor | Source:
    """Read a source into memory if it fits in ``limit_bytes``; otherwise return the source."""
    first = source[0]
    fits = len(source) * first.numel() * first.element_size() <= limit_bytes
    return decode_all(source, threads) if fits else source


def read_images(
    source: Source, stream: bool | None, threads: int | None = None, cache: bool | None = None
) -> Tensor | Source:
    """Read a source into memory or return one that is read on demand.

    With ``stream=None``, the examples are read now if they fit in ``MAX_RESIDENT_BYTES``. With ``cache=None``, decoded
    images are cached for later runs from ``MIN_CACHED_IMAGES`` on.
    """
    cached = _cache_if_possible(source, threads, cache)
    if cached is not None:
        resident = cached.nbytes <= MAX_RESIDENT_BYTES if stream is None else not stream
        return cached.tensor() if resident else cached
    if stream is None:
        return read_or_stream(source, threads=threads)
    return source if stream else decode_all(source, threads)


@dataclass(frozen=True)
class CachedImages:
    """Decoded images ``(N, C, H, W)`` in a file of raw uint8 pixels, memory-mapped on first access.

    Pickling transfers the path only; the other process maps the file again.
    """

    path: Path
    shape: tuple[int, ...]
    key: str

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, i: int) -> Tensor:
        return torch.from_numpy(self._pixels[i].copy())

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedImages, (self.path, self.shape, self.key)

    @property
    def nbytes(self) -> int:
        """The size of all images in memory."""
        return math.prod(self.shape)

    def batch(self, index: Tensor) -> Tensor:
        """Read many examples at once."""
        return torch.from_numpy(self._pixels.take(index.cpu().numpy(), axis=0))

    def tensor(self) -> Tensor:
        """Read all examples into memory."""
        return torch.from_numpy(self._pixels.copy())

    def fingerprint(self) -> str:
        """Return the hash of the encoded images, their size and their channels."""
        return self.key

    @cached_property
    def _pixels(self) -> Any:  # a numpy array; numpy is imported on first use
        import numpy as np

        return np.asarray(np.memmap(self.path, np.uint8, mode="r", shape=self.shape))


def cache_decoded(source: EncodedImages, folder: Path | None = None, threads: int | None = None) -> CachedImages:
    """Return the decoded images of a source from the cache, decoding them first if needed.

    The cache key is a hash of the content: images that were moved, copied or touched are not decoded again. If one
    has changed, all are. A killed process continues where it stopped; concurrent processes decode once.
    The file is in ``folder``, by default ``images`` in the cache folder.

    Raises:
        InputError: an image cannot be read.
        CacheWriteError: the folder cannot be written, or the disk is full.
    """
    folder = cache_folder() / "images" if folder is None else folder
    threads = threads or _default_threads()
    stamp = source.stamp()
    key_file = folder / f"{content_hash(SCHEMA, source.size, source.channels, stamp)}.key"
    key = _read_key(key_file)
    if key is None:
        key = _content_key(source, threads)
        _check_unchanged(source, stamp)
        with suppress(InputError):  # a read-only cache can still be used
            replace_text(key_file, key)
    store = RowStore(folder, key, len(source), torch.uint8)
    shape = store.shape()
    size, channels = source.size, source.channels
    if (
        shape is None
        or store.damaged_blocks()
        or shape[:2] != (len(source), channels)
        or (size is not None and shape[2:] != (size, size))
    ):
        store.compute(lambda start: _decode_from(source, start, threads, stamp), always_write=True)
        shape = store.shape()
        if shape is None:
            raise CacheWriteError(f"{store.path('rows')} was changed by another program")
    return CachedImages(store.path("rows"), shape, key)


def _decode_from(source: EncodedImages, start: int, threads: int, stamp: str) -> Generator[Tensor]:
    n, size = len(source), source.size
    shape = source[0].shape if size is None else (source.channels, size, size)
    step = max(1, min(CHUNK, CHUNK_BYTES // math.prod(shape)))
    done = progress_reporter("decode", n)

    def decode_chunk(first: int) -> Tensor:
        return fill_rows(torch.empty(min(step, n - first), *shape, dtype=torch.uint8), source, first)

    with closing(prefetch(decode_chunk, range(start, n, step), threads, 2 * threads)) as chunks:
        for chunk in chunks:
            start += len(chunk)
            if start == n:
                _check_unchanged(source, stamp)
            yield chunk
            done(start)


def _content_key(source: EncodedImages, threads: int) -> str:
    """Return a hash of the encoded images in order, and of the size and channels they are decoded to."""
    n, hashes = len(source), bytearray()
    done = progress_reporter("hash", n)

    def hash_chunk(start: int) -> bytes:
        images = (source.encoded(i) for i in range(start, min(start + CHUNK, n)))
        return b"".join(blake2b(image, digest_size=16).digest() for image in images)

    with closing(prefetch(hash_chunk, range(0, n, CHUNK), threads, 2 * threads)) as parts:
        for part in parts:
            hashes += part
            done(len(hashes) // 16)
    return content_hash("decoded images", SCHEMA, source.size, source.channels, bytes(hashes))


def _read_key(path: Path) -> str | None:
    """Return the content key stored for a stamp; None if the file is missing or truncated."""
    try:
        key = path.read_text()
    except (OSError, ValueError):
        return None
    return key if is_content_hash(key) else None


def _check_unchanged(source: EncodedImages, stamp: str) -> None:
    if source.stamp() != stamp:
        raise InputError("image files changed while they were read", hint="Try again when they are complete.")


def _cache_if_possible(source: Source, threads: int | None, cache: bool | None) -> CachedImages | None:
    """Return the decoded images from the cache; None if caching is off or the cache cannot be written."""
    if cache is False or not isinstance(source, EncodedImages) or len(source) < (1 if cache else MIN_CACHED_IMAGES):
        return None
    try:
        return cache_decoded(source, threads=threads)
    except CacheWriteError as error:
        if cache and isinstance(error, DiskFullError):
            hint = "Set $SPURLESS_CACHE to another folder, use smaller images with size=, or pass cache=False."
            raise InputError(f"too little disk space to cache the decoded images: {error}", hint=hint) from None
        note = f"Decoded images cannot be cached: {error}. They are decoded again each time."
        hint = "Set $SPURLESS_CACHE to a writable folder, or pass cache=False."
        warnings.warn(f"{note} {hint}", SpurlessWarning, stacklevel=4)  # the caller of the loader that called read
        return None


def _default_threads() -> int:
    return min(8, os.cpu_count() or 1)


def _read(file: Path | BytesIO, where: object, channels: int, size: int | None) -> Tensor:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            return to_pixels(image, channels, size)
    except InputError as error:
        raise InputError(str(error).removesuffix("."), where=where) from None
    except UnidentifiedImageError:
        raise _unreadable(where, "unknown image format") from None
    except Exception as error:  # broken files raise anything: OSError, SyntaxError, struct.error, ...
        raise _unreadable(where, error) from error


def _unreadable(where: object, error: object) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError("no such image file", where=where)
    return InputError(f"the image cannot be read: {error}", where=where, hint="Repair the file or remove it.")


def _upright(image: Image) -> Image:
    """Rotate an image by its EXIF tag, without a copy if it is upright."""
    from PIL import ImageOps

    image.load()  # this rotates a TIFF, and reads the EXIF data that a PNG may have after its pixels
    is_rotated = image.getexif().get(_ORIENTATION, 1) != 1
    return ImageOps.exif_transpose(image) if is_rotated else image


def _eight_bits(image: Image) -> Image:
    import numpy as np
    from PIL import Image as Images

    values = np.asarray(image).astype(np.int64)
    return Images.fromarray((values.clip(0, 65535) >> 8).astype(np.uint8))


def _resize_and_crop(image: Image, size: int) -> Image:
    """Resize the short side and crop the center; equal to torchvision's Resize and CenterCrop to the pixel."""
    from PIL.Image import Resampling

    short = min(image.size)
    width, height = (size if side == short else int(size * side / short) for side in image.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    resized = image.resize((width, height), Resampling.BILINEAR)
    return resized.crop((left, top, left + size, top + size))
