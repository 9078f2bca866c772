r"""Core, spurious, noise: three numbers that stand for an embedding, one of each kind.

With the label's sign :math:`s_y \in \{-1, +1\}` and the attribute :math:`a \in \{0, 1\}`,

.. math:: v = (s_y + n_c, \; a + n_s, \; n_\epsilon), \qquad n_k \sim N(0, \sigma_k^2),

and :math:`P(a = y) = \alpha`: 0.95 on the train split, 0.1 on the test split. The paper has no validation
split; ours is drawn like the train split.

The paper gives variances, :math:`\sigma_c^2 = 0.6` and :math:`\sigma_s^2 = \sigma_\epsilon^2 = 0.1`, and we read
them so. Measured on the train split with scikit-learn's logistic regression, mean and standard deviation
over seeds 0 to 9:

============================  ===========  ===========
reading                       average      worst group
============================  ===========  ===========
variances (this file)         95.3 +- 0.2  61.1 +- 2.7
standard deviations           98.4 +- 0.1  77.5 +- 1.8
the paper                     95.4         66.2
============================  ===========  ===========

Only the variances give the paper's average. Its worst group is within two standard deviations of ours; that
group holds about 125 examples, so one draw scatters by several points.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Grouped, Splits
from spurless.data.limits import check_least, check_shares

GROUPS = Groups(labels=("minus", "plus"), attributes=("zero", "one"))
CARD = Card(
    name="core-spurious-noise",
    summary="Three numbers like an embedding: a noisy label, a less noisy shortcut, and noise.",
    input="3 numbers: core, spurious, noise",
    label="the sign of the core component's mean",
    attribute="the mean of the spurious component, 0 or 1; one goes with plus",
    splits="train and val 5,000 (agreement 0.95), test 5,000 (agreement 0.1)",
    source="drawn by formula",
    licence="Apache-2.0, with this package",
    citation=(
        "Zheng, Ye and Zhang, NeuronTune: Towards Self-Guided Spurious Bias Mitigation, 2025, arXiv:2505.24048, "
        "section 5.3 and appendix A.1"
    ),
)


@dataclass(frozen=True)
class CoreSpuriousNoiseConfig:
    """How noisy each component is and how often the attribute agrees with the label; the paper's values."""

    core_variance: float = 0.6  # sigma_c^2
    spurious_variance: float = 0.1  # sigma_s^2
    noise_variance: float = 0.1  # sigma_eps^2
    agreement: float = 0.95  # alpha, of the train and val split
    test_agreement: float = 0.1  # alpha, of the test split
    n_train: int = 5000  # N
    n_val: int = 5000
    n_test: int = 5000
    seed: int = 0


DEFAULT = CoreSpuriousNoiseConfig()


def core_spurious_noise(config: CoreSpuriousNoiseConfig = DEFAULT) -> Splits:
    """Draw the three splits."""
    _check(config)
    seeds = Seeds(config.seed)
    return Splits(
        _draw(config, config.n_train, config.agreement, seeds.generator("train")),
        _draw(config, config.n_val, config.agreement, seeds.generator("val")),
        _draw(config, config.n_test, config.test_agreement, seeds.generator("test")),
        name=CARD.name,
        options=asdict(config),
    )


def _draw(config: CoreSpuriousNoiseConfig, n: int, agreement: float, generator: torch.Generator) -> Grouped:
    y = torch.randint(2, (n,), generator=generator)
    a = torch.where(torch.rand(n, generator=generator) < agreement, y, 1 - y)
    mean = torch.stack([2.0 * y - 1, a.float(), torch.zeros(n)], dim=1)
    variance = torch.tensor([config.core_variance, config.spurious_variance, config.noise_variance])
    return Grouped(mean + variance.sqrt() * torch.randn(n, 3, generator=generator), y, a, GROUPS)


def _check(config: CoreSpuriousNoiseConfig) -> None:
    check_shares(CARD, config, "agreement", "test_agreement")
    for option in ("core_variance", "spurious_variance", "noise_variance"):
        if not getattr(config, option) >= 0:
            raise BadInput(f"option {option!r} must not be negative", where=CARD.name, got=getattr(config, option))
    check_least(CARD, config, n_train=1, n_val=1, n_test=1)


DATASET = Dataset(card=CARD, config=CoreSpuriousNoiseConfig, make=core_spurious_noise)
