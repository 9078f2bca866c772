"""Corruptions: the nineteen common corruptions of images, at five levels, batched and seeded per image.

Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR 2019
(arXiv:1903.12261), with the numbers of the authors' code for CIFAR-10-C (32 pixels) and ImageNet-C (224 pixels).

Deviations:
    The random numbers are our own: the same kind of noise, other draws. Results are rounded to the nearest byte,
    where the authors' CIFAR code cuts the fraction off and their ImageNet code also saves as JPEG of quality 85.
    Lengths in pixels are not scaled with the image, except in the elastic transform.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.data.corruptions.draws import draws_of
from spurless.data.corruptions.pixels import to_bytes
from spurless.data.corruptions.table import CORRUPTIONS, DCWP_TEN, Corruption, corruption_named

Scale: TypeAlias = Literal["cifar", "imagenet"]

SMALLEST = 8
CIFAR_UP_TO = 64
"""The longest short side, in pixels, at which the numbers of CIFAR-10-C are the default."""

VALUES_AT_ONCE = {"cpu": 2**18, "cuda": 2**23}
"""How many grey levels are worked on at once: on a CPU what its cache holds, elsewhere what keeps a device busy."""


def corrupt(
    images: Tensor,
    name: str,
    severity: int = 5,
    *,
    seed: int = 0,
    index: Tensor | None = None,
    scale: Scale | None = None,
) -> Tensor:
    """Return corrupted copies of images.

    An image's draws depend on the seed, the corruption, the severity and the image's number, and on nothing else: the
    same image gives the same bytes alone, in any batch and on any device.

    Args:
        images: uint8, ``(N, C, H, W)`` with one or three channels, at least 8 pixels a side, on any device.
        name: which corruption; see ``CORRUPTIONS``.
        severity: 1 to 5.
        seed: of all draws.
        index: the images' numbers, ``(N,)``; 0 to N - 1 where not given. Give it when passing a part of a dataset.
        scale: whose numbers to use; where not given, CIFAR-10-C's up to 64 pixels (short side), else ImageNet-C's.

    Raises:
        UnknownName: no corruption has that name.
        BadInput: the images, the severity, the index or the scale cannot be used.

    Example:
        >>> grey = torch.full((1, 1, 8, 8), 100, dtype=torch.uint8)
        >>> int(corrupt(grey, "brightness", 5).unique())  # 100 + 0.3 * 255, rounded
        177
    """
    corruption = corruption_named(name)
    _check(images, severity, scale)
    if index is None:
        index = torch.arange(len(images))
    _check_index(index, len(images))
    chosen = scale or ("cifar" if min(images.shape[-2:]) <= CIFAR_UP_TO else "imagenet")
    level = getattr(corruption, chosen)[severity - 1]
    numbers = index.to(images.device)
    out = torch.empty_like(images, memory_format=torch.contiguous_format)
    at_once = _at_once(images)
    for start in range(0, len(images), at_once):
        part = slice(start, start + at_once)
        draws = draws_of(numbers[part], seed, "corruption", name, severity)
        out[part] = to_bytes(corruption.apply(images[part].to(torch.float64), level, draws))
    return out


def _at_once(images: Tensor) -> int:
    values = VALUES_AT_ONCE.get(images.device.type, VALUES_AT_ONCE["cuda"])
    return max(1, values // math.prod(images.shape[1:]))


def _check(images: Tensor, severity: int, scale: str | None) -> None:
    if images.dtype != torch.uint8:
        raise BadInput("images to corrupt must be bytes", expected="torch.uint8", got=images.dtype)
    if images.dim() != 4 or images.shape[1] not in (1, 3):
        raise BadInput("images must be (N, C, H, W) with one or three channels", got=tuple(images.shape))
    if min(images.shape[-2:]) < SMALLEST:
        raise BadInput(f"images must be at least {SMALLEST} pixels a side", got=tuple(images.shape[-2:]))
    if not isinstance(severity, int) or severity not in range(1, 6):
        raise BadInput("severity is a whole number from 1 to 5", got=severity)
    if scale is not None and scale not in get_args(Scale):
        raise BadInput("no such scale", expected="cifar or imagenet", got=scale)


def _check_index(index: Tensor, n: int) -> None:
    if index.shape != (n,):
        raise BadInput("index must hold one number per image", expected=f"shape ({n},)", got=tuple(index.shape))
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        raise BadInput("index must hold whole numbers", got=index.dtype)


__all__ = ["CORRUPTIONS", "DCWP_TEN", "Corruption", "Scale", "corrupt", "corruption_named"]
