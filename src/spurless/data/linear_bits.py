r"""Linear bits: one bit that is the label and many that often agree with it.

With the label's sign :math:`s_y \in \{-1, +1\}`, an input is :math:`x = (s_y, z_1, \dots, z_D)`, where each
spurious bit :math:`z_i` is :math:`s_y` with probability :math:`p`, else :math:`-s_y`, on its own;
:math:`p = 1/2` on validation and test. The attribute is the majority vote of the spurious bits. One bit is
enough for every label, and still a linear classifier spreads its weight over all of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf, log

import torch

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Grouped, Splits
from spurless.data.limits import check_least

GROUPS = Groups(labels=("minus", "plus"), attributes=("minus", "plus"))
CARD = Card(
    name="linear-bits",
    summary="One bit is the label; fifteen others agree with it often in training and by chance in the test.",
    input="D + 1 numbers, each -1 or 1: the invariant bit, then the spurious ones",
    label="the invariant bit",
    attribute="the majority vote of the spurious bits",
    splits="train 10,000 (p = 0.95), val and test 10,000 (p = 0.5)",
    source="drawn by formula",
    licence="Apache-2.0, with this package",
    citation=(
        "Park, Lee, Lee and Ye, Training Debiased Subnetworks with Contrastive Weight Pruning, CVPR 2023, "
        "arXiv:2210.05247, section 3.2"
    ),
)


@dataclass(frozen=True)
class LinearBitsConfig:
    """How many spurious bits there are and how often each agrees with the label."""

    spurious: int = 15  # D; odd, so that a vote has a winner; the paper's simulation
    p: float = 0.95  # of the train split; the paper's simulation goes from 0.6 to 0.99
    n_train: int = 10_000  # the paper does not say
    n_val: int = 10_000
    n_test: int = 10_000
    seed: int = 0


DEFAULT = LinearBitsConfig()


def linear_bits(config: LinearBitsConfig = DEFAULT) -> Splits:
    """Draw the three splits."""
    _check(config)
    seeds = Seeds(config.seed)
    return Splits(
        _draw(config, config.n_train, config.p, seeds.generator("train")),
        _draw(config, config.n_val, 0.5, seeds.generator("val")),
        _draw(config, config.n_test, 0.5, seeds.generator("test")),
        name=CARD.name,
        options=asdict(config),
    )


def spurious_limit(config: LinearBitsConfig = DEFAULT) -> float:
    r"""Return where gradient flow on the exponential loss takes each spurious weight.

    That is :math:`w = \frac12 \log \frac{p}{1-p}`. There :math:`p e^{-w} = (1 - p) e^{w}`, so the weight no
    longer moves, while that of the invariant bit grows without bound, as :math:`\log t` (the paper's appendix).
    """
    return inf if config.p == 1 else log(config.p / (1 - config.p)) / 2


def _draw(config: LinearBitsConfig, n: int, p: float, generator: torch.Generator) -> Grouped:
    y = torch.randint(2, (n,), generator=generator)
    sign = 2.0 * y - 1
    agrees = torch.rand(n, config.spurious, generator=generator) < p
    bits = torch.where(agrees, sign[:, None], -sign[:, None])
    return Grouped(torch.cat([sign[:, None], bits], dim=1), y, (bits.sum(dim=1) > 0).long(), GROUPS)


def _check(config: LinearBitsConfig) -> None:
    if config.spurious < 1 or config.spurious % 2 == 0:
        raise BadInput(
            "option 'spurious' must be odd and positive, so that the vote of the bits has a winner",
            where=CARD.name,
            got=config.spurious,
        )
    if not 0.5 <= config.p <= 1:
        raise BadInput("option 'p' is out of range", where=CARD.name, expected="0.5 to 1", got=config.p)
    check_least(CARD, config, n_train=1, n_val=1, n_test=1)


DATASET = Dataset(card=CARD, config=LinearBitsConfig, make=linear_bits)
