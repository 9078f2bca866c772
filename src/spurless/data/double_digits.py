"""Double digits: two digits side by side, the dim left one is the label; the small offline twin of Double MNIST.

The label is the digit on the left, ``dim`` times as bright as the one on the right. In training the right
one is of the same class, but for exactly ``round(conflicting * n)`` of the ``n`` images of every class.
Validation and test are unbiased: every class is as frequent on the right as any other. The right image is
drawn from the split that the left one is in, so that no image is met in two splits.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from spurless.core.errors import BadInput
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
    load_digits_28,
    pair,
    split_digits,
)
from spurless.data.grouped import Grouped, Splits
from spurless.data.limits import check_shares

GROUPS = Groups(labels=DIGITS, attributes=tuple(f"{digit} on the right" for digit in DIGITS))
CARD = Card(
    name="double-digits",
    summary="Two digits side by side: the dim left one is the label, the bright right one mostly agrees.",
    input="grey image, 1 x size x 2 size, uint8",
    label="the left digit, 10 classes",
    attribute="the right digit, 10 values; digit y goes with label y",
    splits="train 1,000 (biased), val 297 and test 500 (unbiased)",
    source=f"{DIGITS_SOURCE}; paired as in Double MNIST",
    licence=DIGITS_LICENCE,
    citation=(
        "Barsbey, Prieto, Zafeiriou and Birdal, Large Learning Rates Simultaneously Achieve Robustness to Spurious "
        f"Correlations and Compressibility; {DIGITS_CITATION}"
    ),
)


@dataclass(frozen=True)
class DoubleDigitsConfig:
    """How rarely the right digit misleads, and how dim the left one is."""

    conflicting: float = 0.025  # rho of the train split; the paper
    dim: float = 0.5  # brightness of the left digit; the paper does not give it, this is our choice
    size: int = 28  # pixels of one digit; as MNIST
    seed: int = 0


DEFAULT = DoubleDigitsConfig()


def double_digits(config: DoubleDigitsConfig = DEFAULT) -> Splits:
    """Pair the digits of the three splits."""
    check_shares(CARD, config, "conflicting")
    if not 0 < config.dim <= 1:
        raise BadInput("option 'dim' is out of range", where=CARD.name, expected="above 0, at most 1", got=config.dim)
    seeds = Seeds(config.seed)
    images, y = load_digits_28(config.size)

    def split(name: str, index: Tensor, conflicting: float) -> Grouped:
        a = assign(y[index], len(DIGITS), conflicting, seeds.generator("attribute", name))
        partner = _partners(y[index], a, seeds.generator("partner", name))
        x = pair(images[index], images[index[partner]], config.dim)
        return Grouped(x, y[index], a, GROUPS)

    train, val, test = split_digits(y, seeds)
    return Splits(
        split("train", train, config.conflicting),
        split("val", val, CONFLICTING_UNBIASED),
        split("test", test, CONFLICTING_UNBIASED),
        name=CARD.name,
        options=asdict(config),
    )


def _partners(y: Tensor, a: Tensor, generator: torch.Generator) -> Tensor:
    """Return, for each example, one of class ``a``; the members of a class are used equally often, to within one."""
    partner = torch.empty_like(y)
    for wanted in torch.unique(a):
        places = (a == wanted).nonzero().flatten()
        members = (y == wanted).nonzero().flatten()
        rounds = -(-len(places) // len(members))
        drawn = torch.cat([members[torch.randperm(len(members), generator=generator)] for _ in range(rounds)])
        partner[places] = drawn[: len(places)]
    return partner


DATASET = Dataset(card=CARD, config=DoubleDigitsConfig, make=double_digits)
