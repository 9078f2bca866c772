"""Images: from files and pictures to uint8 tensors, channels first; all at once or one by one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.provenance import digest
from spurless.data.grouped import Source

if TYPE_CHECKING:
    from PIL.Image import Image

EXTENSIONS = frozenset(
    (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
)
LIMIT = 2**30
"""Bytes of pixels that are held in memory unless the user says otherwise."""

_MODES = {1: "L", 3: "RGB"}
_CHUNK = 64  # images per task: a future per image would weigh more than a small image


@dataclass(frozen=True)
class ImageFiles:
    """Image files, decoded on demand to uint8 of shape ``(channels, height, width)``.

    With ``size``, the short side is resized to it (bilinear, antialiased) and the centre square is cut out.
    Without, every image must have the size of the first.
    """

    paths: Sequence[Path]
    size: int | None = None
    channels: int = 3

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise BadInput("the size of an image must be at least 1", got=self.size)
        if self.channels not in _MODES:
            raise BadInput("an image has 1 or 3 channels", got=self.channels)
        object.__setattr__(self, "paths", tuple(self.paths))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Tensor:
        image = read_image(self.paths[i], self.channels, self.size)
        if self.size is None and image.shape != self._first_shape:
            raise BadInput(
                "the images differ in size",
                where=self.paths[i],
                expected=f"{_extent(self._first_shape)} like {self.paths[0]}",
                got=_extent(image.shape),
                do="Bring all to one size with size= (on the command line -D size=64).",
            )
        return image

    def fingerprint(self) -> str:
        """Return a hash of the paths, file sizes and times of change; no image is read."""
        states = ((path, path.stat()) for path in self.paths)
        facts = [(str(path), state.st_size, state.st_mtime_ns) for path, state in states]
        return digest("images", self.size, self.channels, facts)

    @cached_property
    def _first_shape(self) -> torch.Size:
        return read_image(self.paths[0], self.channels).shape


def read_image(path: Path, channels: int = 3, size: int | None = None) -> Tensor:
    """Read one image file; see :func:`pixels`.

    Raises:
        BadInput: there is no such file, or it holds no whole image.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            return pixels(image, channels, size)
    except FileNotFoundError:
        raise BadInput("no such image file", where=path) from None
    except BadInput as error:
        raise BadInput(str(error).removesuffix("."), where=path) from None
    except Exception as error:  # broken bytes raise anything: OSError, SyntaxError, struct.error, a bomb
        raise BadInput(f"the image cannot be read: {error}", where=path, do="Repair the file or remove it.") from error


def pixels(image: Image, channels: int = 3, size: int | None = None) -> Tensor:
    """Turn a Pillow image into uint8 ``(channels, height, width)``: upright as its EXIF says, without alpha.

    16-bit images are scaled to 8 bits (Pillow alone would clip them to white).
    """
    import numpy as np
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(image)
    if upright.mode == "F":
        raise BadInput("the image has floating-point pixels", expected="8 or 16 bits", do="Convert it, or use an npz.")
    if upright.mode.startswith("I"):
        upright = _eight_bits(upright)
    if "transparency" in upright.info:
        upright = upright.convert("RGBA")  # Pillow warns when a palette with alpha loses it in one go
    flat = upright.convert(_MODES[channels])
    if size is not None:
        flat = _centre(flat, size)
    array = torch.from_numpy(np.array(flat))
    return array.view(flat.height, flat.width, channels).permute(2, 0, 1).contiguous()


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

    def fill(start: int) -> None:
        for i in range(start, min(start + _CHUNK, len(source))):
            example = source[i]
            if example.shape != first.shape:  # copying would broadcast some shapes without a word
                raise BadInput(f"example {i} differs in shape", expected=tuple(first.shape), got=tuple(example.shape))
            out[i] = example

    with ThreadPoolExecutor(threads or min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(fill, range(0, len(source), _CHUNK)):
            pass  # the first error is raised here, and what has not begun is cancelled
    return out


def resident_or_streamed(source: Source, limit_bytes: int = LIMIT, threads: int | None = None) -> Tensor | Source:
    """Read a source now if it fits in ``limit_bytes``; return it as it is otherwise."""
    first = source[0]
    fits = len(source) * first.numel() * first.element_size() <= limit_bytes
    return decode_all(source, threads) if fits else source


def read(source: Source, stream: bool | None, threads: int | None = None) -> Tensor | Source:
    """Stream a source or read it now, as the user says; by what fits in memory where they say nothing."""
    if stream is None:
        return resident_or_streamed(source, threads=threads)
    return source if stream else decode_all(source, threads)


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
