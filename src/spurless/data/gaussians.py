"""Gaussians: five classes in the plane, some training labels wrong, by a rule or by chance.

Class 0 lies at the origin and the four others around it, all with the same standard deviation. To
``per_class`` clean examples of every class the train split adds ``mislabelled`` ones per class:

* biased: for a derangement ``pi`` (a permutation that leaves no class in place), examples drawn from class
  ``pi(i)`` are labelled ``i``: every class is taken for one other class, always the same;
* unbiased: examples drawn from class ``i`` get any other label, each as likely as the next.

``y`` is the label as observed, right or wrong; validation and test are clean.

Deviation:
    * ``means="circle"`` follows the paper's text: four means on the unit circle. ``means="square"`` follows
      the authors' code: (+-1, +-1), which lie at radius sqrt(2).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Grouped, Splits
from spurless.data.limits import check_least

MEANS = {
    "circle": torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]),
    "square": torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]),
}
GROUPS = Groups(labels=tuple(f"class {i}" for i in range(5)), attributes=("clean", "corrupted"))
CARD = Card(
    name="gaussians",
    summary="Five Gaussian classes in the plane; a few training labels are wrong, by a rule or by chance.",
    input="2 numbers: the place in the plane",
    label="the observed class, 5 classes; wrong for the corrupted",
    attribute="clean, or corrupted: the label is not the class the example was drawn from",
    splits="train 100 clean and 5 corrupted per class, val and test 100 clean per class",
    source="drawn by formula",
    licence="Apache-2.0, with this package",
    citation="Malik and Fern, Frequency based pruning improves latent identification and generalization",
)


@dataclass(frozen=True)
class GaussiansConfig:
    """Where the classes lie, and how many labels are wrong."""

    biased: bool = True  # wrong by a rule; False: by chance. The paper has both
    means: Literal["circle", "square"] = "circle"  # the paper's text; the authors' code
    std: float = 0.2  # per axis; authors' code
    per_class: int = 100  # clean train examples; authors' code
    mislabelled: int = 5  # added train examples with a wrong label, per class; authors' code
    val_per_class: int = 100  # ours; the authors have no validation split
    test_per_class: int = 100  # the authors' code draws 10, which is a coarse ruler
    seed: int = 0


DEFAULT = GaussiansConfig()


def gaussians(config: GaussiansConfig = DEFAULT) -> Splits:
    """Draw the three splits."""
    _check(config)
    seeds = Seeds(config.seed)
    return Splits(
        _train(config, seeds),
        _clean(config, config.val_per_class, seeds.generator("val")),
        _clean(config, config.test_per_class, seeds.generator("test")),
        name=CARD.name,
        options=asdict(config),
    )


def derangement(n: int, generator: torch.Generator) -> Tensor:
    """Return a permutation of ``n`` that leaves nothing in place, each as likely as the next."""
    if n < 2:
        raise BadInput("nothing can move where there are fewer than two", got=n)
    while True:
        order = torch.randperm(n, generator=generator)
        if not bool((order == torch.arange(n)).any()):  # true for one in e, so this ends soon
            return order


def _train(config: GaussiansConfig, seeds: Seeds) -> Grouped:
    kept = torch.arange(5).repeat_interleave(config.per_class)
    moved = torch.arange(5).repeat_interleave(config.mislabelled)
    labels = seeds.generator("labels")
    if config.biased:
        observed, drawn_from = moved, derangement(5, labels)[moved]
    else:
        observed, drawn_from = (moved + torch.randint(1, 5, moved.shape, generator=labels)) % 5, moved
    x = torch.cat(
        [
            _around(kept, config, seeds.generator("train")),
            _around(drawn_from, config, seeds.generator("corrupted")),
        ]
    )
    a = torch.cat([torch.zeros_like(kept), torch.ones_like(moved)])
    return Grouped(x, torch.cat([kept, observed]), a, GROUPS)


def _clean(config: GaussiansConfig, per_class: int, generator: torch.Generator) -> Grouped:
    y = torch.arange(5).repeat_interleave(per_class)
    return Grouped(_around(y, config, generator), y, torch.zeros_like(y), GROUPS)


def _around(origin: Tensor, config: GaussiansConfig, generator: torch.Generator) -> Tensor:
    return MEANS[config.means][origin] + config.std * torch.randn(len(origin), 2, generator=generator)


def _check(config: GaussiansConfig) -> None:
    if config.means not in MEANS:
        raise BadInput("option 'means' is unknown", where=CARD.name, expected=" or ".join(MEANS), got=config.means)
    if not config.std > 0:
        raise BadInput("option 'std' must be above 0", where=CARD.name, got=config.std)
    check_least(CARD, config, per_class=1, mislabelled=0, val_per_class=1, test_per_class=1)


DATASET = Dataset(card=CARD, config=GaussiansConfig, make=gaussians)
