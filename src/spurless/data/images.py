"""Images: from files and pictures to uint8 tensors, channels first; all at once or one by one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.core.provenance import digest
from spurless.data.grouped import Source

if TYPE_CHECKING:
    from PIL.Image import Image

    from spurless.data.cache import Mapped

EXTENSIONS = frozenset(
    (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
)
LIMIT = 2**30
"""Bytes of pixels that are held in memory unless the user says otherwise."""
MANY = 2000
"""Images from which on decoding is done once and kept, unless the user says otherwise."""

_MODES = {1: "L", 3: "RGB"}
_CHUNK = 64  # images per task: a future per image would weigh more than a small image
_ORIENTATION = 0x0112  # the EXIF tag; 2 to 8 ask for a turn or a flip


@runtime_checkable
class Encoded(Source, Protocol):
    """Images that are stored as JPEG, PNG and the like; see :func:`spurless.data.cache.decoded`."""

    @property
    def size(self) -> int | None:
        """The side of the square that images are brought to; None leaves them as they are."""

    @property
    def channels(self) -> int:
        """1 or 3."""

    def encoded(self, i: int, /) -> bytes:
        """Return one image as it is stored."""

    def stamp(self) -> str:
        """Return what changes when an image may have changed, without reading any: paths, sizes, times."""


@dataclass(frozen=True)
class ImageFiles:
    """Image files, decoded on demand to uint8 of shape ``(channels, height, width)``.

    With ``size``, the short side is resized to it (bilinear, antialiased) and the centre square is cut out.
    Without, every image must have the size of the first.
    """

    paths: Sequence[Path]
    size: int | None = None
    channels: int = 3
    hint: str = ""
    """What else to do about a file that cannot be read."""

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise BadInput("the size of an image must be at least 1", got=self.size)
        if self.channels not in _MODES:
            raise BadInput("an image has 1 or 3 channels", got=self.channels)
        object.__setattr__(self, "paths", tuple(self.paths))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Tensor:
        image = self._read(i)
        if self.size is None and image.shape != self._first_shape:
            raise BadInput(
                "the images differ in size",
                where=self.paths[i],
                expected=f"{_extent(self._first_shape)} like {self.paths[0]}",
                got=_extent(image.shape),
                do="Bring all to one size with size= (on the command line -D size=64).",
            )
        return image

    def encoded(self, i: int) -> bytes:
        """Return one file as it is."""
        try:
            return self.paths[i].read_bytes()
        except OSError as error:
            raise self._hinted(_unreadable(self.paths[i], error)) from None

    def stamp(self) -> str:
        """Return a hash of the paths, file sizes and times of change; no image is read."""
        facts = []
        for path in self.paths:
            try:
                state = path.stat()
            except OSError as error:
                raise _unreadable(path, error) from None
            facts.append((str(path), state.st_size, state.st_mtime_ns))
        return digest("images", self.size, self.channels, facts)

    def fingerprint(self) -> str:
        """Return the stamp: the content of files that are streamed is not read for a hash."""
        return self.stamp()

    @cached_property
    def _first_shape(self) -> torch.Size:
        return self._read(0).shape

    def _read(self, i: int) -> Tensor:
        try:
            return read_image(self.paths[i], self.channels, self.size)
        except BadInput as error:
            raise self._hinted(error) from error

    def _hinted(self, error: BadInput) -> BadInput:
        return BadInput(str(error).removesuffix("."), do=self.hint) if self.hint else error


def read_image(path: Path, channels: int = 3, size: int | None = None) -> Tensor:
    """Read one image file; see :func:`pixels`.

    Raises:
        BadInput: there is no such file, or it holds no whole image.
    """
    return _read(path, path, channels, size)


def decode_image(data: bytes, where: object, channels: int = 3, size: int | None = None) -> Tensor:
    """Read one image from the bytes of its file; ``where`` is what an error calls it. See :func:`pixels`."""
    return _read(BytesIO(data), where, channels, size)


def pixels(image: Image, channels: int = 3, size: int | None = None) -> Tensor:
    """Turn a Pillow image into uint8 ``(channels, height, width)``: upright as its EXIF says, without alpha.

    16-bit images are scaled to 8 bits (Pillow alone would clip them to white).
    """
    import numpy as np

    upright = _upright(image)
    if upright.mode == "F":
        raise BadInput("the image has floating-point pixels", expected="8 or 16 bits", do="Convert it, or use an npz.")
    if upright.mode.startswith("I"):
        upright = _eight_bits(upright)
    if "transparency" in upright.info:
        upright = upright.convert("RGBA")  # Pillow warns when a palette with alpha loses it in one go
    mode = _MODES[channels]
    flat = upright if upright.mode == mode else upright.convert(mode)  # a copy even where there is nothing to convert
    if size is not None:
        flat = _centre(flat, size)
    array = np.asarray(flat).reshape(flat.height, flat.width, channels)
    return torch.from_numpy(array.transpose(2, 0, 1).copy())


def channels_first(x: Tensor) -> Tensor:
    """Bring a batch of uint8 images to ``(N, C, H, W)``; everything else is left as it is.

    ``(N, H, W)`` gets one channel. A last dimension of 1, 3 or 4 holds the channels; a fourth (alpha) is dropped.
    """
    if x.dtype != torch.uint8:
        return x
    if x.dim() == 3:
        return x[:, None]
    if x.dim() == 4 and x.shape[-1] in (1, 3, 4):
        return x[..., :3].permute(0, 3, 1, 2).contiguous()
    return x


def decode_all(source: Source, threads: int | None = None) -> Tensor:
    """Read every example of a source into one tensor; ``threads=1`` where the source is not safe for more."""
    first = source[0]
    out = torch.empty((len(source), *first.shape), dtype=first.dtype)
    with ThreadPoolExecutor(threads or min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(lambda start: fill(out[start : start + _CHUNK], source, start), range(0, len(out), _CHUNK)):
            pass  # the first error is raised here, and what has not begun is cancelled
    return out


def fill(out: Tensor, source: Source, start: int) -> Tensor:
    """Read as many examples as ``out`` has room for, from number ``start`` on, and return it."""
    for place in range(len(out)):
        example = source[start + place]
        if example.shape != out.shape[1:]:  # copying would broadcast some shapes without a word
            raise BadInput(
                f"example {start + place} differs in shape", expected=tuple(out.shape[1:]), got=tuple(example.shape)
            )
        out[place] = example
    return out


def resident_or_streamed(source: Source, limit_bytes: int = LIMIT, threads: int | None = None) -> Tensor | Source:
    """Read a source now if it fits in ``limit_bytes``; return it as it is otherwise."""
    first = source[0]
    fits = len(source) * first.numel() * first.element_size() <= limit_bytes
    return decode_all(source, threads) if fits else source


def read(source: Source, stream: bool | None, threads: int | None = None, cache: bool | None = None) -> Tensor | Source:
    """Stream a source or read it now, as the user says; by what fits in memory where they say nothing.

    With ``cache``, stored images are decoded once and kept for later runs; where the user says nothing, that
    is done from ``MANY`` on. Without, they are decoded each time: at the start, or as they are streamed.
    """
    kept = _keep(source, threads, cache)
    if kept is not None:
        resident = kept.nbytes <= LIMIT if stream is None else not stream
        return kept.tensor() if resident else kept
    if stream is None:
        return resident_or_streamed(source, threads=threads)
    return source if stream else decode_all(source, threads)


def _keep(source: Source, threads: int | None, cache: bool | None) -> Mapped | None:
    """Return the source in its decoded form, unless that is not wanted or cannot be kept anywhere."""
    if cache is False or not isinstance(source, Encoded) or len(source) < (1 if cache else MANY):
        return None
    from spurless.data.cache import NoRoom, decoded

    try:
        return decoded(source, threads=threads)
    except (OSError, NoRoom) as error:
        if cache and isinstance(error, NoRoom):
            raise  # who asked for it is told; who did not can work without
        warnings.warn(
            f"Decoded images cannot be kept: {str(error).partition('. ')[0]}. They are decoded anew each time. Name a "
            "folder that can be written with $SPURLESS_CACHE, or pass cache=False.",
            SpurlessWarning,
            stacklevel=4,  # whoever called the loader that called read
        )
        return None


def _read(file: Path | BytesIO, where: object, channels: int, size: int | None) -> Tensor:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            return pixels(image, channels, size)
    except BadInput as error:
        raise BadInput(str(error).removesuffix("."), where=where) from None
    except UnidentifiedImageError:
        raise _unreadable(where, "it is in no format that is known") from None
    except Exception as error:  # broken bytes raise anything: OSError, SyntaxError, struct.error, a bomb
        raise _unreadable(where, error) from error


def _unreadable(where: object, error: object) -> BadInput:
    if isinstance(error, FileNotFoundError):
        return BadInput("no such image file", where=where)
    return BadInput(f"the image cannot be read: {error}", where=where, do="Repair the file or remove it.")


def _upright(image: Image) -> Image:
    """Turn an image as its EXIF says; one that stands upright is not copied, as Pillow alone would do."""
    from PIL import ImageOps

    image.load()  # a TIFF turns itself meanwhile, and a PNG may have its EXIF after its pixels
    turned = image.getexif().get(_ORIENTATION, 1) != 1
    return ImageOps.exif_transpose(image) if turned else image


def _eight_bits(image: Image) -> Image:
    import numpy as np
    from PIL import Image as Images

    values = np.asarray(image).astype(np.int64)
    return Images.fromarray((values.clip(0, 65535) >> 8).astype(np.uint8))


def _centre(image: Image, size: int) -> Image:
    """Resize the short side and cut the centre out, to the pixel as torchvision's Resize and CenterCrop do."""
    from PIL.Image import Resampling

    short = min(image.size)
    width, height = (size if side == short else int(size * side / short) for side in image.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    resized = image.resize((width, height), Resampling.BILINEAR)
    return resized.crop((left, top, left + size, top + size))


def _extent(shape: Sequence[int]) -> str:
    return f"{shape[-1]}x{shape[-2]}"
