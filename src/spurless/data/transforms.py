"""Transforms: from raw to ready batches, on the device of the batch, each example with its own draw.

torchvision's random transforms draw once per call and so treat a whole batch alike; the random ones here
draw per example, with tensor operations alone (``static``), so that a captured graph draws anew each time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from spurless.core.errors import UnknownName
from spurless.data.grouped import Transform


@dataclass(frozen=True)
class Chain:
    """Several transforms, one after another."""

    parts: tuple[Transform, ...]

    @property
    def static(self) -> bool:
        """Whether every part is."""
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
    """Pad each image by ``padding`` zeros and cut the original size out at a random place."""

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
    """Turn each image by up to ``degrees`` and shift it by up to ``shift`` of its size; what comes in is black."""

    degrees: float = 15.0
    shift: float = 0.1
    static: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        from torch.nn.functional import affine_grid, grid_sample

        n, _, height, width = x.shape
        draw = torch.rand(3, n, device=x.device) * 2 - 1
        angle, aside, down = draw[0] * math.radians(self.degrees), *(2 * self.shift * draw[1:])
        cos, sin, aspect = angle.cos(), angle.sin(), height / width
        rows = torch.stack([cos, -sin * aspect, aside, sin / aspect, cos, down], dim=1).view(n, 2, 3)
        grid = affine_grid(rows, [n, 1, height, width], align_corners=False)
        turned = grid_sample(x.float(), grid, mode="nearest", align_corners=False)
        return turned.to(x.dtype)


@dataclass(frozen=True)
class RandomSquare:
    """Hide a square of each image behind zeros: its side is drawn from 2 to half the short side, then its place.

    Images are ``(N, channels, height, width)`` or ``(N, height, width)``. Of a row of features, a run of 1 to half of
    them is hidden. Like MaskTune's RandMask: Cutout with a side that varies, but all of it within the image.
    """

    smallest: int = 2
    static: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        if x.dim() == 2:
            return torch.where(_run(x.shape[1], _sides(len(x), 1, x.shape[1] // 2, x)), 0, x)
        height, width = x.shape[-2:]
        side = _sides(len(x), self.smallest, min(height, width) // 2, x)
        inside = _run(height, side)[:, :, None] & _run(width, side)[:, None, :]
        return torch.where(inside if x.dim() == 3 else inside[:, None], 0, x)


def _sides(n: int, smallest: int, largest: int, like: Tensor) -> Tensor:
    return torch.randint(smallest, max(smallest, largest) + 1, (n, 1), device=like.device)


def _run(length: int, side: Tensor) -> Tensor:
    """Return ``(n, length)``: for each example, a run of ``side`` places that begins anywhere it fits."""
    place = torch.arange(length, device=side.device)
    begin = (torch.rand(len(side), 1, device=side.device) * (length - side + 1)).floor()
    return (place >= begin) & (place < begin + side)


def augmentation(name: str, size: int) -> Transform | None:
    """Return the augmentation of that name for images of ``size`` pixels.

    ``crop-flip`` pads by an eighth of the size: 4 pixels for CIFAR, as everybody does. ``turn`` mirrors, turns by
    up to 15 degrees and shifts by up to a tenth: MaskTune's on CIFAR-10.
    """
    if name not in AUGMENTATIONS:
        raise UnknownName("augmentation", name, AUGMENTATIONS)
    if name == "crop-flip":
        return Chain((RandomCrop(size // 8), RandomFlip()))
    if name == "turn":
        return Chain((RandomFlip(), RandomAffine()))
    return RandomFlip() if name == "flip" else None


AUGMENTATIONS = ("none", "flip", "crop-flip", "turn")


@dataclass(frozen=True)
class Batched:
    """A random transform from elsewhere (torchvision v2), applied to each example on its own."""

    transform: Transform
    static: ClassVar[bool] = False

    def __call__(self, x: Tensor) -> Tensor:
        return torch.stack([self.transform(example) for example in x])
