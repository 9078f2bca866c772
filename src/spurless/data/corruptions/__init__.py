"""The nineteen common image corruptions at five severities, batched and seeded per image.

Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR 2019
(arXiv:1903.12261), with the numbers of the authors' code for CIFAR-10-C (32 pixels) and ImageNet-C (224 pixels).

Deviations:
    The random numbers differ: the same distributions, other samples. Results are rounded to the nearest byte, while the
    authors' CIFAR code truncates and their ImageNet code also saves as JPEG of quality 85. Lengths in pixels are not
    scaled with the image, except in the elastic transform.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from spurless.core.errors import InputError, UnknownNameError
from spurless.data.corruptions import blur, digital, noise, weather
from spurless.data.corruptions.ops import Level, to_bytes
from spurless.data.corruptions.rng import ImageRng, rng_for_images

Scale: TypeAlias = Literal["cifar", "imagenet"]

MIN_SIDE = 8
MAX_CIFAR_SIDE = 64  # largest short side in pixels for which the parameters of CIFAR-10-C are the default

VALUES_PER_BATCH = {"cpu": 2**18, "cuda": 2**23}
"""Number of pixel values processed together: fits the cache of a CPU, or keeps a GPU busy."""


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

    The random numbers of an image depend only on the seed, the corruption, the severity and the index of the image: the
    same image gives the same bytes alone, in any batch and on any device.

    Args:
        images: uint8, ``(N, C, H, W)`` with one or three channels, at least 8 pixels a side, on any device.
        name: name of the corruption; see ``CORRUPTIONS``.
        severity: 1 to 5.
        seed: seed of all random numbers.
        index: indices of the images, ``(N,)``; by default 0 to N - 1. Pass it with a part of a dataset.
        scale: ``cifar`` or ``imagenet`` parameters; by default CIFAR-10-C's up to 64 pixels (short side), else
            ImageNet-C's.

    Raises:
        UnknownNameError: no corruption has that name.
        InputError: the images, the severity, the index or the scale cannot be used.

    Example:
        >>> grey = torch.full((1, 1, 8, 8), 100, dtype=torch.uint8)
        >>> int(corrupt(grey, "brightness", 5).unique())  # 100 + 0.3 * 255, rounded
        177
    """
    corruption = get_corruption(name)
    _check(images, severity, scale)
    if index is None:
        index = torch.arange(len(images))
    _check_index(index, len(images))
    scale = scale or ("cifar" if min(images.shape[-2:]) <= MAX_CIFAR_SIDE else "imagenet")
    level = getattr(corruption, scale)[severity - 1]
    index = index.to(images.device)
    out = torch.empty_like(images, memory_format=torch.contiguous_format)
    batch_size = _batch_size(images)
    for start in range(0, len(images), batch_size):
        part = slice(start, start + batch_size)
        rng = rng_for_images(index[part], seed, "corruption", name, severity)
        out[part] = to_bytes(corruption.apply(images[part].to(torch.float64), level, rng))
    return out


def _batch_size(images: Tensor) -> int:
    values = VALUES_PER_BATCH.get(images.device.type, VALUES_PER_BATCH["cuda"])
    return max(1, values // math.prod(images.shape[1:]))


def _check(images: Tensor, severity: int, scale: str | None) -> None:
    if images.dtype != torch.uint8:
        raise InputError("images must be uint8", expected="torch.uint8", got=images.dtype)
    if images.dim() != 4 or images.shape[1] not in (1, 3):
        raise InputError("images must be (N, C, H, W) with one or three channels", got=tuple(images.shape))
    if min(images.shape[-2:]) < MIN_SIDE:
        raise InputError(f"images must be at least {MIN_SIDE} pixels a side", got=tuple(images.shape[-2:]))
    if not isinstance(severity, int) or severity not in range(1, 6):
        raise InputError("severity must be an integer from 1 to 5", got=severity)
    if scale is not None and scale not in get_args(Scale):
        raise InputError("unknown scale", expected="cifar or imagenet", got=scale)


def _check_index(index: Tensor, n: int) -> None:
    if index.shape != (n,):
        raise InputError("index must have one number per image", expected=f"shape ({n},)", got=tuple(index.shape))
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        raise InputError("index must be integers", got=index.dtype)


__all__ = ["CORRUPTIONS", "PAIRED_TEN", "Corruption", "Scale", "corrupt", "get_corruption"]


@dataclass(frozen=True)
class Corruption:
    """One corruption, with the parameters of its five severities."""

    name: str
    family: str  # noise, blur, weather or digital

    cifar: tuple[Level, ...]
    imagenet: tuple[Level, ...]
    apply: Callable[[Tensor, Level, ImageRng], Tensor]
    """Function of pixel values 0 to 255 (float64), parameters and random numbers; returns values before rounding."""

    random: bool = True  # whether the result depends on random numbers


def get_corruption(name: str) -> Corruption:
    """Return the corruption of that name."""
    try:
        return CORRUPTIONS[name]
    except KeyError:
        raise UnknownNameError("corruption", name, CORRUPTIONS) from None


def _corruption(
    apply: Callable[[Tensor, Level, ImageRng], Tensor],
    cifar: Sequence[float | Level],
    imagenet: Sequence[float | Level],
    random: bool = True,
) -> Corruption:
    """Return a corruption, named by its function and the function's module; a level may be a single number."""
    small, large = (tuple(x if isinstance(x, tuple) else (x,) for x in values) for values in (cifar, imagenet))
    family = apply.__module__.rpartition(".")[2]
    return Corruption(apply.__name__.replace("_", "-"), family, small, large, apply, random)


_ELASTIC_SCALE = 244 / 224
"""ImageNet-C's elastic transform defines lengths as fractions of 244 pixels, but its images have 224."""

CORRUPTIONS: dict[str, Corruption] = {
    corruption.name: corruption
    for corruption in (
        _corruption(noise.gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10), (0.08, 0.12, 0.18, 0.26, 0.38)),
        _corruption(noise.shot_noise, (500, 250, 100, 75, 50), (60, 25, 12, 5, 3)),
        _corruption(noise.impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07), (0.03, 0.06, 0.09, 0.17, 0.27)),
        _corruption(noise.speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2), (0.15, 0.2, 0.35, 0.45, 0.6)),
        _corruption(blur.gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1), (1, 2, 3, 4, 6), random=False),
        _corruption(blur.defocus_blur,
            ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
            ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)), random=False),
        _corruption(blur.glass_blur,
            ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
            ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))),
        _corruption(blur.motion_blur,
            ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
            ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))),
        # number of factors in the published ranges: 1 to 1.06 by 0.01 are seven
        _corruption(blur.zoom_blur,
            ((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01)),
            ((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03)), random=False),
        _corruption(weather.snow,
            ((0.1, 0.2, 1, 0.6, 8, 3, 0.95), (0.1, 0.2, 1, 0.5, 10, 4, 0.9), (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85), (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8)),
            ((0.1, 0.3, 3, 0.5, 10, 4, 0.8), (0.2, 0.3, 2, 0.5, 12, 4, 0.7), (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65), (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55))),
        # the third number scales the textures: CIFAR-10-C shrinks its photographs to a fifth
        _corruption(weather.frost,
            ((1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)),
            ((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1))),
        _corruption(weather.fog,
            ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
            ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))),
        _corruption(weather.spatter,
            ((0.62, 0.1, 0.7, 0.7, 0.5, 0), (0.65, 0.1, 0.8, 0.7, 0.5, 0), (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1), (0.65, 0.1, 0.5, 0.68, 0.6, 1)),
            ((0.65, 0.3, 4, 0.69, 0.6, 0), (0.65, 0.3, 3, 0.68, 0.6, 0), (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1), (0.67, 0.4, 1, 0.65, 1.5, 1))),
        _corruption(digital.brightness, (0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5), random=False),
        _corruption(digital.contrast, (0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05), random=False),
        _corruption(digital.saturate,
            ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
            ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)), random=False),
        _corruption(digital.elastic_transform,
            ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
            [tuple(_ELASTIC_SCALE * fraction for fraction in level) for level in (
                (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))]),
        _corruption(digital.pixelate, (0.95, 0.9, 0.85, 0.75, 0.65), (0.6, 0.5, 0.4, 0.3, 0.25), random=False),
        _corruption(digital.jpeg_compression, (80, 65, 58, 50, 40), (25, 18, 15, 10, 7), random=False),
    )
}  # fmt: skip

ORIGINAL = "original"  # the image as it is: the tenth entry of LfF's second list

PAIRED_TEN: dict[str, tuple[str, ...]] = {
    "dcwp-text": (
        "brightness", "contrast", "gaussian-noise", "frost", "elastic-transform",
        "gaussian-blur", "defocus-blur", "impulse-noise", "saturate", "pixelate",
    ),
    "lff-0": (
        "snow", "frost", "fog", "brightness", "contrast",
        "spatter", "elastic-transform", "jpeg-compression", "pixelate", "saturate",
    ),
    "lff-1": (
        "gaussian-noise", "shot-noise", "impulse-noise", "speckle-noise", "gaussian-blur",
        "defocus-blur", "glass-blur", "motion-blur", "zoom-blur", ORIGINAL,
    ),
}  # fmt: skip
"""Lists of corruptions that go with the classes 0 to 9 of CIFAR-10, in that order.

``dcwp-text`` is in appendix E.1 of DCWP (Park et al., 2023). ``lff-0`` and ``lff-1`` are types 0 and 1 in the code of
LfF (Nam et al., 2020); the pictures in the repositories of DisEnt and DCWP show the ten of ``lff-0``.
"""
