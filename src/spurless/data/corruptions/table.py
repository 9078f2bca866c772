"""Table: the nineteen corruptions with the published numbers of their five levels.

From the authors' code for CIFAR-10-C (32 pixels) and ImageNet-C (224 pixels). What the numbers of a level are is said
by the function that takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import Tensor

from spurless.core.errors import UnknownName
from spurless.data.corruptions import blur, digital, noise, weather
from spurless.data.corruptions.draws import Draws
from spurless.data.corruptions.pixels import Level

Family: TypeAlias = Literal["noise", "blur", "weather", "digital"]


@dataclass(frozen=True)
class Corruption:
    """One corruption, with the numbers of its five levels."""

    name: str
    family: Family
    cifar: tuple[Level, ...]
    imagenet: tuple[Level, ...]
    apply: Callable[[Tensor, Level, Draws], Tensor]
    """From grey levels 0 to 255 as doubles, a level and draws to grey levels, not yet rounded or clamped."""

    random: bool = True
    """Whether the outcome depends on the draws."""


def corruption_named(name: str) -> Corruption:
    """Return the corruption of that name."""
    try:
        return CORRUPTIONS[name]
    except KeyError:
        raise UnknownName("corruption", name, CORRUPTIONS) from None


def _each(*numbers: float) -> tuple[Level, ...]:
    """Return five levels of one number."""
    return tuple((number,) for number in numbers)


_WRITTEN = 244 / 224
"""ImageNet-C's elastic transform writes its lengths as shares of 244 pixels; its images have 224."""

CORRUPTIONS: dict[str, Corruption] = {
    corruption.name: corruption
    for corruption in (
        Corruption(
            "gaussian-noise",
            "noise",
            cifar=_each(0.04, 0.06, 0.08, 0.09, 0.10),
            imagenet=_each(0.08, 0.12, 0.18, 0.26, 0.38),
            apply=noise.gaussian_noise,
        ),
        Corruption(
            "shot-noise",
            "noise",
            cifar=_each(500, 250, 100, 75, 50),
            imagenet=_each(60, 25, 12, 5, 3),
            apply=noise.shot_noise,
        ),
        Corruption(
            "impulse-noise",
            "noise",
            cifar=_each(0.01, 0.02, 0.03, 0.05, 0.07),
            imagenet=_each(0.03, 0.06, 0.09, 0.17, 0.27),
            apply=noise.impulse_noise,
        ),
        Corruption(
            "speckle-noise",
            "noise",
            cifar=_each(0.06, 0.1, 0.12, 0.16, 0.2),
            imagenet=_each(0.15, 0.2, 0.35, 0.45, 0.6),
            apply=noise.speckle_noise,
        ),
        Corruption(
            "gaussian-blur",
            "blur",
            cifar=_each(0.4, 0.6, 0.7, 0.8, 1),
            imagenet=_each(1, 2, 3, 4, 6),
            apply=blur.gaussian_blur,
            random=False,
        ),
        Corruption(
            "defocus-blur",
            "blur",
            cifar=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
            imagenet=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
            apply=blur.defocus_blur,
            random=False,
        ),
        Corruption(
            "glass-blur",
            "blur",
            cifar=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
            imagenet=((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
            apply=blur.glass_blur,
        ),
        Corruption(
            "motion-blur",
            "blur",
            cifar=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
            imagenet=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
            apply=blur.motion_blur,
        ),
        Corruption(
            "zoom-blur",
            "blur",
            # the published ranges, counted out: 1 to 1.06 by 0.01 are seven factors
            cifar=((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01)),
            imagenet=((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03)),
            apply=blur.zoom_blur,
            random=False,
        ),
        Corruption(
            "snow",
            "weather",
            cifar=(
                (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
                (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
                (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
                (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
                (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
            ),
            imagenet=(
                (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
                (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
                (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
                (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
                (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
            ),
            apply=weather.snow,
        ),
        Corruption(
            "frost",
            "weather",
            # the third number scales the textures: CIFAR-10-C shrinks its photographs to a fifth
            cifar=((1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)),
            imagenet=((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
            apply=weather.frost,
        ),
        Corruption(
            "fog",
            "weather",
            cifar=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
            imagenet=((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
            apply=weather.fog,
        ),
        Corruption(
            "spatter",
            "weather",
            cifar=(
                (0.62, 0.1, 0.7, 0.7, 0.5, 0),
                (0.65, 0.1, 0.8, 0.7, 0.5, 0),
                (0.65, 0.3, 1, 0.69, 0.5, 0),
                (0.65, 0.1, 0.7, 0.69, 0.6, 1),
                (0.65, 0.1, 0.5, 0.68, 0.6, 1),
            ),
            imagenet=(
                (0.65, 0.3, 4, 0.69, 0.6, 0),
                (0.65, 0.3, 3, 0.68, 0.6, 0),
                (0.65, 0.3, 2, 0.68, 0.5, 0),
                (0.65, 0.3, 1, 0.65, 1.5, 1),
                (0.67, 0.4, 1, 0.65, 1.5, 1),
            ),
            apply=weather.spatter,
        ),
        Corruption(
            "brightness",
            "digital",
            cifar=_each(0.05, 0.1, 0.15, 0.2, 0.3),
            imagenet=_each(0.1, 0.2, 0.3, 0.4, 0.5),
            apply=digital.brightness,
            random=False,
        ),
        Corruption(
            "contrast",
            "digital",
            cifar=_each(0.75, 0.5, 0.4, 0.3, 0.15),
            imagenet=_each(0.4, 0.3, 0.2, 0.1, 0.05),
            apply=digital.contrast,
            random=False,
        ),
        Corruption(
            "saturate",
            "digital",
            cifar=((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
            imagenet=((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
            apply=digital.saturate,
            random=False,
        ),
        Corruption(
            "elastic-transform",
            "digital",
            cifar=((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
            imagenet=tuple(
                tuple(_WRITTEN * share for share in level)
                for level in ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
            ),
            apply=digital.elastic_transform,
        ),
        Corruption(
            "pixelate",
            "digital",
            cifar=_each(0.95, 0.9, 0.85, 0.75, 0.65),
            imagenet=_each(0.6, 0.5, 0.4, 0.3, 0.25),
            apply=digital.pixelate,
            random=False,
        ),
        Corruption(
            "jpeg-compression",
            "digital",
            cifar=_each(80, 65, 58, 50, 40),
            imagenet=_each(25, 18, 15, 10, 7),
            apply=digital.jpeg_compression,
            random=False,
        ),
    )
}

DCWP_TEN = (
    "brightness",
    "contrast",
    "gaussian-noise",
    "frost",
    "elastic-transform",
    "gaussian-blur",
    "defocus-blur",
    "impulse-noise",
    "saturate",
    "pixelate",
)
"""The corruptions that DCWP (Park et al., 2023) pairs with the classes 0 to 9 of CIFAR-10, in that order."""
