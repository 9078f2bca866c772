r"""Moon and star: a crescent or a five-pointed star, and where it lies.

An image is black with one white shape, shifted from the middle by :math:`(x, y)` pixels, right and down. In
training a moon lies on the falling diagonal (:math:`xy > 0`) and a star on the rising one, in the boxes
below, but for exactly ``round(conflicting * per_class)`` images of each class, which lie in the boxes of the
other. On validation and test both shapes are placed alike, uniformly over the whole range, so that the place
says nothing; there a shift along an axis counts as rising.

With :math:`r` the radius and :math:`p` a point around the middle of the shape,

* moon: :math:`|p| \le r` and :math:`|p - (0.35 r, 0)| > 0.85 r`;
* star: :math:`p \cdot n_k \le r \cos 72°` for at least four of the five directions :math:`n_k` to its points.

Deviations:
    * The shapes of the original are not to be had here; these two are ours, with about the same number of pixels.
    * ``size`` scales the boxes and the shapes; 200 is the original.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import cos, pi

import torch
from torch import Tensor

from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.digits import assign
from spurless.data.grouped import Grouped, Splits
from spurless.data.limits import check_least, check_shares

BOXES = (
    ((46, 60, 39, 70), (-53, -39, -65, -34)),  # falling: the moon's
    ((-46, -22, 44, 64), (55, 78, -56, -33)),  # rising: the star's
)
"""Shifts ``(x_low, x_high, y_low, y_high)`` of each diagonal at size 200, the high end left out (authors' code)."""
WHOLE = (-53, 78, -65, 70)
"""The smallest box around all four, over which validation and test are uniform."""
RADIUS = 22  # at size 200: the largest shape that stays inside at a shift of 77

GROUPS = Groups(labels=("moon", "star"), attributes=("falling", "rising"))
CARD = Card(
    name="moon-star",
    summary="Moons against stars; in training most moons lie on one diagonal and most stars on the other.",
    input="grey image, 1 x size x size, uint8, 0 or 255",
    label="moon or star",
    attribute="the diagonal that the shape lies on: falling goes with moon, rising with star",
    splits="train 2,000 per class (biased), val and test 500 per class (any place)",
    source="drawn by formula; places of rgeirhos/shortcut-perspective, shapes ours",
    licence="Apache-2.0, with this package",
    citation=(
        "Geirhos et al., Shortcut Learning in Deep Neural Networks, 2020, arXiv:2004.07780; as used by Barsbey et al., "
        "Large Learning Rates Simultaneously Achieve Robustness to Spurious Correlations and Compressibility"
    ),
)


@dataclass(frozen=True)
class MoonStarConfig:
    """How rarely the place misleads, and how many images there are."""

    conflicting: float = 0.1  # rho of the train split, Barsbey et al.; 0 is Geirhos et al.
    per_class: int = 2000  # train images; Geirhos et al.
    val_per_class: int = 500  # ours
    test_per_class: int = 500  # ours
    size: int = 200  # pixels; Geirhos et al.
    seed: int = 0


DEFAULT = MoonStarConfig()


def moon_star(config: MoonStarConfig = DEFAULT) -> Splits:
    """Place the shapes of the three splits."""
    _check(config)
    seeds = Seeds(config.seed)

    def unbiased(name: str, per_class: int) -> Grouped:
        y = torch.arange(2).repeat_interleave(per_class)
        shift = _uniform(torch.tensor(WHOLE).expand(len(y), 4), config.size, seeds.generator("place", name))
        rising = shift[:, 0] * shift[:, 1] <= 0
        return Grouped(place(y, shift, config.size), y, rising.long(), GROUPS)

    y = torch.arange(2).repeat_interleave(config.per_class)
    a = assign(y, 2, config.conflicting, seeds.generator("attribute", "train"))
    generator = seeds.generator("place", "train")
    box = torch.tensor(BOXES)[a, torch.randint(2, a.shape, generator=generator)]
    x = place(y, _uniform(box, config.size, generator), config.size)
    return Splits(
        Grouped(x, y, a, GROUPS),
        unbiased("val", config.val_per_class),
        unbiased("test", config.test_per_class),
        name=CARD.name,
        options=asdict(config),
    )


def shapes(radius: int) -> tuple[Tensor, Tensor]:
    """Return the moon and the star as masks of ``2 radius`` by ``2 radius`` pixels."""
    centre = torch.arange(2 * radius, dtype=torch.double) + 0.5 - radius
    y, x = torch.meshgrid(centre, centre, indexing="ij")
    moon = (x**2 + y**2 <= radius**2) & ((x - 0.35 * radius) ** 2 + y**2 > (0.85 * radius) ** 2)
    angle = 2 * pi / 5 * torch.arange(5, dtype=torch.double) - pi / 2  # one point upwards
    towards = x[..., None] * angle.cos() + y[..., None] * angle.sin()
    star = (towards <= radius * cos(2 * pi / 5)).sum(dim=-1) >= 4
    return moon, star


def place(y: Tensor, shift: Tensor, size: int) -> Tensor:
    """Draw shape ``y`` of each image ``shift`` (x, y) from the middle; return ``(N, 1, size, size)``."""
    radius = RADIUS * size // 200
    x = torch.zeros(len(y), 1, size, size, dtype=torch.uint8)
    corner = shift + size // 2 - radius
    for label, shape in enumerate(shapes(radius)):
        which = (y == label).nonzero()
        rows, columns = shape.nonzero().unbind(dim=1)
        x[which, 0, corner[which, 1] + rows, corner[which, 0] + columns] = 255
    return x


def _uniform(box: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Draw one shift per row of ``box``, in whole pixels."""
    scaled = torch.div(box * size, 200, rounding_mode="floor")
    low, high = scaled[:, [0, 2]], scaled[:, [1, 3]]
    # a product of whole numbers, so that no float can round up to the high end
    return low + torch.randint(2**31, low.shape, generator=generator) * (high - low) // 2**31


def _check(config: MoonStarConfig) -> None:
    check_shares(CARD, config, "conflicting")
    check_least(CARD, config, per_class=1, val_per_class=1, test_per_class=1, size=40)


DATASET = Dataset(card=CARD, config=MoonStarConfig, make=moon_star)
