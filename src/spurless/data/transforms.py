"""Transforms of batches on their device, random ones with a draw per example.

The random transforms of torchvision draw once per call, so that all images of a batch get the same. Those here draw per
example, with tensor operations only (``static``), so that a captured CUDA graph draws again each time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from spurless.core.errors import UnknownNameError
from spurless.data.split import Transform


@dataclass(frozen=True)
class Compose:
    """Several transforms in sequence."""

    parts: tuple[Transform, ...]

    @property
    def static(self) -> bool:
        """Whether every part is static."""
        return all(getattr(part, "static", False) for part in self.parts)

    def __call__(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


@dataclass(frozen=True)
class Normalise:
    """Scale uint8 to [0, 1], then subtract the mean and divide by the standard deviation of each channel."""

    mean: Sequence[float]
    std: Sequence[float]
    static: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        from torchvision.transforms.v2 import functional

        scaled = functional.to_dtype(x, torch.float32, scale=True)
        return cast(Tensor, functional.normalize(scaled, list(self.mean), list(self.std)))


@dataclass(frozen=True)
class Resize:
    """Resize to ``(height, width)``, bilinear with antialiasing."""

    height: int
    width: int
    static: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        from torchvision.transforms.v2 import functional

        return cast(Tensor, functional.resize(x, [self.height, self.width], antialias=True))


@dataclass(frozen=True)
class RandomFlip:
    """Mirror each image left to right with probability one half."""

    static: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        flip = torch.rand(len(x), device=x.device) < 0.5
        return torch.where(flip.view(-1, 1, 1, 1), x.flip(-1), x)


@dataclass(frozen=True)
class RandomCrop:
    """Pad each image with ``padding`` zeros and crop the original size at a random position."""

    padding: int = 4
    static: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        n, _, height, width = x.shape
        padded = torch.nn.functional.pad(x, [self.padding] * 4)
        corner = torch.randint(2 * self.padding + 1, (2, n, 1), device=x.device)
        rows = corner[0] + torch.arange(height, device=x.device)
        columns = corner[1] + torch.arange(width, device=x.device)
        which = torch.arange(n, device=x.device).view(-1, 1, 1)
        return padded.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@dataclass(frozen=True)
class RandomAffine:
    """Rotate each image by up to ``degrees``, shift it by up to ``shift`` of its size, and fill with zeros."""

    degrees: float = 15.0
    shift: float = 0.1
    static: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        from torch.nn.functional import affine_grid, grid_sample

        n, _, height, width = x.shape
        draw = torch.rand(3, n, device=x.device) * 2 - 1
        angle, right, down = draw[0] * math.radians(self.degrees), *(2 * self.shift * draw[1:])
        cos, sin, aspect = angle.cos(), angle.sin(), height / width
        rows = torch.stack([cos, -sin * aspect, right, sin / aspect, cos, down], dim=1).view(n, 2, 3)
        grid = affine_grid(rows, [n, 1, height, width], align_corners=False)
        rotated = grid_sample(x.float(), grid, mode="nearest", align_corners=False)
        return rotated.to(x.dtype)


@dataclass(frozen=True)
class RandomSquare:
    """Set a random square of each image to zero, with a side from 2 pixels to half the short side.

    Images are ``(N, channels, height, width)`` or ``(N, height, width)``. Of a row of features, a run of 1 to half of
    them is set to zero. Like MaskTune's RandMask: Cutout with a random side, and completely inside the image.
    """

    smallest: int = 2
    static: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        if x.dim() == 2:
            return torch.where(_draw_runs(x.shape[1], _draw_sides(len(x), 1, x.shape[1] // 2, x)), 0, x)
        height, width = x.shape[-2:]
        side = _draw_sides(len(x), self.smallest, min(height, width) // 2, x)
        inside = _draw_runs(height, side)[:, :, None] & _draw_runs(width, side)[:, None, :]
        return torch.where(inside if x.dim() == 3 else inside[:, None], 0, x)


def _draw_sides(n: int, smallest: int, largest: int, like: Tensor) -> Tensor:
    return torch.randint(smallest, max(smallest, largest) + 1, (n, 1), device=like.device)


def _draw_runs(length: int, side: Tensor) -> Tensor:
    """Return a mask ``(n, length)``: for each example, a run of ``side`` positions at a random start."""
    position = torch.arange(length, device=side.device)
    start = (torch.rand(len(side), 1, device=side.device) * (length - side + 1)).floor()
    return (position >= start) & (position < start + side)


def augmentation(name: str, size: int) -> Transform | None:
    """Return an augmentation by name, for images of ``size`` pixels.

    ``crop-flip`` pads by an eighth of the size: the usual 4 pixels for CIFAR. ``turn`` flips, rotates by up to 15
    degrees and shifts by up to a tenth, as MaskTune does on CIFAR-10.
    """
    if name not in AUGMENTATIONS:
        raise UnknownNameError("augmentation", name, AUGMENTATIONS)
    crop, turn = Compose((RandomCrop(size // 8), RandomFlip())), Compose((RandomFlip(), RandomAffine()))
    return {"none": None, "flip": RandomFlip(), "crop-flip": crop, "turn": turn}[name]


AUGMENTATIONS = ("none", "flip", "crop-flip", "turn")


@dataclass(frozen=True)
class PerExample:
    """A random transform of another library (torchvision v2), applied to each example separately."""

    transform: Transform
    static: ClassVar[bool] = False

    def __call__(self, x: Tensor) -> Tensor:
        return torch.stack([self.transform(example) for example in x])
