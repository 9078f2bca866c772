"""Dominoes of digits: a digit on top of a pattern, which is the label; the small offline twin of MNIST-CIFAR.

The label is the class of the lower half, one of the ten :mod:`spurless.data.textures`. In training the digit above it
is of the same number, but for exactly ``round(conflicting * n)`` of the ``n`` images of every class. Validation and
test are unbiased: every digit is as frequent as any other in each class. A digit is drawn from its own split, so that
none is met in two splits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.digits import (
    CONFLICTING_UNBIASED,
    DIGITS,
    DIGITS_CITATION,
    DIGITS_LICENCE,
    DIGITS_SOURCE,
    assign,
    partners,
    raw_digits,
)
from spurless.data.double_digits import PAPER
from spurless.data.grouped import Grouped, Splits
from spurless.data.limits import check_shares
from spurless.data.raw import Raw, Three
from spurless.data.textures import NAMES, draw_textures

ON_TOP = tuple(f"{digit} on top" for digit in DIGITS)
SHAH = "Shah et al., The Pitfalls of Simplicity Bias in Neural Networks, NeurIPS 2020, arXiv:2006.07710"
GROUPS = Groups(labels=NAMES, attributes=ON_TOP)
CARD = Card(
    name="dominoes-digits",
    summary="A digit on top of a noisy pattern: the pattern is the label, the digit mostly agrees.",
    input="RGB image, 3 x 64 x 32, uint8",
    label="the pattern below, 10 classes",
    attribute="the digit above, 10 values; digit y goes with pattern y",
    splits="train 1,000 (biased), val 297 and test 500 (unbiased)",
    source=f"{DIGITS_SOURCE}; patterns drawn by formula; stacked as in MNIST-CIFAR",
    licence=DIGITS_LICENCE,
    citation=f"{SHAH}; {PAPER}; {DIGITS_CITATION}",
)


@dataclass(frozen=True)
class DominoesDigitsConfig:
    """How rarely the digit misleads."""

    conflicting: float = 0.1  # rho of the train split; Barsbey et al.
    seed: int = 0


DEFAULT = DominoesDigitsConfig()


def dominoes_digits(config: DominoesDigitsConfig = DEFAULT) -> Splits:
    """Stack the halves of the three splits."""
    check_shares(CARD, config, "conflicting")
    seeds = Seeds(config.seed)
    top = raw_digits(28, seeds)
    sizes = {name: len(index) for name, index in top.parts.items()}
    parts = stacked(top, raw_textures(sizes, seeds), config.conflicting, GROUPS, seeds)
    return Splits(*parts, name=CARD.name, options=asdict(config))


def raw_textures(sizes: Mapping[str, int], seeds: Seeds) -> Raw:
    """Draw patterns for every split, each class as often as any other to within one."""
    labels, images = [], []
    for name, size in sizes.items():
        y = torch.arange(size) % len(NAMES)
        y = y[torch.randperm(size, generator=seeds.generator("label", name))]
        labels.append(y)
        images.append(draw_textures(y, seeds.generator("texture", name)))
    train, val, test = torch.split(torch.arange(sum(sizes.values())), list(sizes.values()))
    return Raw(torch.cat(images), torch.cat(labels), train, val, test)


def stacked(top: Raw, bottom: Raw, conflicting: float, groups: Groups, seeds: Seeds) -> Three:
    """Put a digit on top of every image: grey ``(N, 28, 28)`` on RGB ``(N, 3, 32, 32)``; MNIST-CIFAR goes through here.

    In train a share ``conflicting`` of each class has a digit of another number; val and test are unbiased.
    """
    shares = {"train": conflicting, "val": CONFLICTING_UNBIASED, "test": CONFLICTING_UNBIASED}

    def split(name: str) -> Grouped:
        lower, upper = bottom.parts[name], top.parts[name]
        y = bottom.y[lower]
        a = assign(y, len(DIGITS), shares[name], seeds.generator("attribute", name))
        chosen = upper[partners(top.y[upper], a, seeds.generator("partner", name))]
        return Grouped(domino(top.x[chosen], bottom.x[lower]), y, a, groups)

    return split("train"), split("val"), split("test")


def domino(grey: Tensor, rgb: Tensor) -> Tensor:
    """Return ``(N, 3, 64, 32)``: the grey images of 28 pixels, padded to 32, above the RGB ones."""
    padded = torch.nn.functional.pad(grey, [2] * 4)[:, None].expand(-1, 3, -1, -1)
    return torch.cat([padded, rgb], dim=2)


DATASET = Dataset(card=CARD, config=DominoesDigitsConfig, make=dominoes_digits)
