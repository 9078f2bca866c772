r"""Balancing: make every class, or every group, count the same.

Idrissi, Arjovsky, Pezeshki and Lopez-Paz, "Simple data balancing achieves competitive worst-group-accuracy",
CLeaR 2022, arXiv:2110.14503, section 3: reweighting, resampling (RWY, RWG) and subsampling (SUBY, SUBG). With cells
:math:`c` (classes, or classes x attributes) of size :math:`n_c`,

.. math:: \min_\theta \frac{1}{|C|} \sum_c \frac{1}{n_c} \sum_{i \in c} \ell(f_\theta(x_i), y_i).

Deviations:
    * The paper calls drawing by weight "reweighting"; here *reweight* weighs the loss and *resample* draws, which
      have the same expectation and different noise (Shimodaira 2000; An, Ying and Zhu 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.data.grouped import Batch, Splits
from spurless.data.loader import balanced, shuffled, subsampled
from spurless.methods.base import Info
from spurless.methods.erm import mean_loss
from spurless.models.classifier import Classifier
from spurless.train.loop import Job, minimise_job
from spurless.train.run import Run
from spurless.train.step import Stage

PAPER = "Idrissi et al. 2022"


@dataclass(frozen=True)
class BalancingConfig:
    """Nothing to set: the counts decide."""


BALANCING_PLAIN = BalancingConfig()


class _Balancing:
    """What the six have in common: the cells they count, and what they do about the counts."""

    info: ClassVar[Info]
    how: ClassVar[Literal["weigh", "draw", "drop"]]
    presets: ClassVar[Mapping[str, BalancingConfig]] = {"plain": BALANCING_PLAIN}

    def __init__(self, config: BalancingConfig = BALANCING_PLAIN) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train so that every cell counts the same."""
        minimise_job(self.job(model, data, run))
        return model

    def job(self, model: Classifier, data: Splits, run: Run) -> Job:
        """Return the one stage there is."""
        train, seeds = data.train, run.seeds.child("train")
        cells = train.g if self.info.train_attributes else train.y
        objective, order = mean_loss, shuffled(len(train), seeds)
        if self.how == "draw":
            order = balanced(cells, seeds)
        elif self.how == "drop":
            order = subsampled(cells, seeds)
        else:
            weight = cell_weights(cells).to(run.device)

            def objective(model: nn.Module, batch: Batch) -> Tensor:
                losses = cross_entropy(model(batch.x), batch.y, reduction="none")
                return (losses * weight[batch.index]).mean()

        return Job(model, run.loader(train, order), objective, run, Stage("train", static=True))


class ClassReweight(_Balancing):
    """Weigh the loss of each class by the inverse of its size."""

    info = Info("class-reweight", PAPER, "weigh the loss so that every class counts the same")
    how = "weigh"


class GroupReweight(_Balancing):
    """Weigh the loss of each group by the inverse of its size."""

    info = Info("group-reweight", PAPER, "weigh the loss so that every group counts the same", train_attributes=True)
    how = "weigh"


class ClassResample(_Balancing):
    """Draw every class equally often (RWY)."""

    info = Info("class-resample", PAPER, "draw every class equally often (RWY)")
    how = "draw"


class GroupResample(_Balancing):
    """Draw every group equally often (RWG)."""

    info = Info("group-resample", PAPER, "draw every group equally often (RWG)", train_attributes=True)
    how = "draw"


class ClassSubsample(_Balancing):
    """Keep as many examples of each class as the smallest has (SUBY)."""

    info = Info("class-subsample", PAPER, "cut every class to the size of the smallest (SUBY)")
    how = "drop"


class GroupSubsample(_Balancing):
    """Keep as many examples of each group as the smallest has (SUBG)."""

    info = Info("group-subsample", PAPER, "cut every group to the size of the smallest (SUBG)", train_attributes=True)
    how = "drop"


def cell_weights(cells: Tensor) -> Tensor:
    """Return one weight per example: every cell that is there sums to the same, and the mean weight is 1.

    Example:
        >>> cell_weights(torch.tensor([0, 0, 0, 2]))
        tensor([0.6667, 0.6667, 0.6667, 2.0000])
    """
    counts = torch.bincount(cells)
    return len(cells) / (int((counts > 0).sum()) * counts[cells])
