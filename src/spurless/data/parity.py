r"""Parity: the label is the parity of several bits, the shortcut the parity of fewer.

An input is :math:`x = (c_1, \dots, c_C, s_1, \dots, s_S, n_1, \dots, n_N)` with every entry -1 or 1. The label's
sign is :math:`\prod_i c_i`, and the attribute's is :math:`\prod_i s_i`, which equals the label's with
probability ``1 - conflicting`` in training and one half on validation and test. Given its parity, the
spurious vector is uniform; core and noise bits are uniform as such. With :math:`S < C` the shortcut is the
simpler function.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Grouped, Splits
from spurless.data.limits import check_least, check_shares

GROUPS = Groups(labels=("odd", "even"), attributes=("odd", "even"))
CARD = Card(
    name="parity",
    summary="The label is the parity of four bits; one other bit agrees with it in nine of ten.",
    input="core + spurious + noise numbers, each -1 or 1",
    label="odd or even: the number of -1 among the core bits",
    attribute="odd or even: the number of -1 among the spurious bits",
    splits="train 10,000 (conflicting 0.1), val and test 10,000 (conflicting 0.5)",
    source="drawn by formula",
    licence="Apache-2.0, with this package",
    citation=(
        "Qiu, Kuang and Goel, Complexity Matters: Dynamics of Feature Learning in the Presence of Spurious "
        "Correlations, 2024, arXiv:2403.03375; as used by Barsbey et al., Large Learning Rates Simultaneously Achieve "
        "Robustness to Spurious Correlations and Compressibility"
    ),
)


@dataclass(frozen=True)
class ParityConfig:
    """How many bits of each kind there are, and how rarely the shortcut misleads."""

    core: int = 4  # C; the paper gives neither C nor S nor the noise, these three are ours
    spurious: int = 1  # S
    noise: int = 35
    conflicting: float = 0.1  # rho of the train split; the paper
    n_train: int = 10_000  # the paper
    n_val: int = 10_000  # ours; the paper has no validation split
    n_test: int = 10_000  # the paper
    seed: int = 0


DEFAULT = ParityConfig()


def parity(config: ParityConfig = DEFAULT) -> Splits:
    """Draw the three splits."""
    _check(config)
    seeds = Seeds(config.seed)
    return Splits(
        _draw(config, config.n_train, config.conflicting, seeds.generator("train")),
        _draw(config, config.n_val, 0.5, seeds.generator("val")),
        _draw(config, config.n_test, 0.5, seeds.generator("test")),
        name=CARD.name,
        options=asdict(config),
    )


def _draw(config: ParityConfig, n: int, conflicting: float, generator: torch.Generator) -> Grouped:
    core, spurious, noise = (_bits(n, width, generator) for width in (config.core, config.spurious, config.noise))
    sign = core.prod(dim=1)
    wanted = torch.where(torch.rand(n, generator=generator) < conflicting, -sign, sign)
    # the last bit mends the parity; the others stay free, so the vector is uniform given its parity
    spurious[:, -1] *= spurious.prod(dim=1) * wanted
    return Grouped(torch.cat([core, spurious, noise], dim=1), (sign > 0).long(), (wanted > 0).long(), GROUPS)


def _bits(n: int, width: int, generator: torch.Generator) -> Tensor:
    return 2.0 * torch.randint(2, (n, width), generator=generator) - 1


def _check(config: ParityConfig) -> None:
    check_shares(CARD, config, "conflicting")
    check_least(CARD, config, core=1, spurious=1, noise=0, n_train=1, n_val=1, n_test=1)


DATASET = Dataset(card=CARD, config=ParityConfig, make=parity)
