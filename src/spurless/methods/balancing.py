r"""Balancing: give every class, or every group, the same weight.

Idrissi, Arjovsky, Pezeshki and Lopez-Paz, "Simple data balancing achieves competitive worst-group-accuracy",
CLeaR 2022, arXiv:2110.14503, section 3: reweighting, resampling (RWY, RWG) and subsampling (SUBY, SUBG). With cells
:math:`c` (classes, or classes x attributes) of size :math:`n_c`,

.. math:: \min_\theta \frac{1}{|C|} \sum_c \frac{1}{n_c} \sum_{i \in c} \ell(f_\theta(x_i), y_i).

Deviations:
    * The paper calls weighted sampling "reweighting"; here *reweight* weights the loss and *resample* samples, which
      have the same expectation and different variance (Shimodaira 2000; An, Ying and Zhu 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.config import CheckedConfig
from spurless.data.loader import balanced_order, shuffled_order, subsampled_order
from spurless.data.split import Batch, Splits
from spurless.methods.base import Info, OneStageMethod
from spurless.methods.erm import mean_loss
from spurless.models.classifier import Classifier
from spurless.train.loop import Job
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class BalancingConfig(CheckedConfig):
    """No settings."""


def _info(name: str, summary: str, title: str) -> Info:
    return Info(name, "Idrissi et al. 2022", summary, train_attributes=name.startswith("group"), title=title)


class _Balancing(OneStageMethod[BalancingConfig]):
    """Base class of the six methods: which cells are balanced, and how."""

    how: ClassVar[Literal["reweight", "resample", "subsample"]]
    presets: ClassVar[Mapping[str, BalancingConfig]] = {"plain": BalancingConfig()}

    def job(self, model: Classifier, data: Splits, run: Run) -> Job:
        """Return a stage in which every cell has the same weight."""
        train, seeds = data.train, run.seeds.child("train")
        cells = train.g if self.info.train_attributes else train.y
        objective, order = mean_loss, shuffled_order(len(train), seeds)
        if self.how == "resample":
            order = balanced_order(cells, seeds)
        elif self.how == "subsample":
            order = subsampled_order(cells, seeds)
        else:
            weight = cell_weights(cells).to(run.device)

            def objective(model: nn.Module, batch: Batch) -> Tensor:
                losses = cross_entropy(model(batch.x), batch.y, reduction="none")
                return (losses * weight[batch.index]).mean()

        return Job(model, run.loader(train, order), objective, run, Stage("train", static=True))


class ClassReweight(_Balancing):
    """Weight the loss of each class by the inverse of its size."""

    info = _info("class-reweight", "weight the loss so that every class counts the same", "Class reweighting")
    how = "reweight"


class GroupReweight(_Balancing):
    """Weight the loss of each group by the inverse of its size."""

    info = _info("group-reweight", "weight the loss so that every group counts the same", "Group reweighting")
    how = "reweight"


class ClassResample(_Balancing):
    """Sample every class equally often (RWY)."""

    info = _info("class-resample", "sample every class equally often (RWY)", "Class resampling")
    how = "resample"


class GroupResample(_Balancing):
    """Sample every group equally often (RWG)."""

    info = _info("group-resample", "sample every group equally often (RWG)", "Group resampling")
    how = "resample"


class ClassSubsample(_Balancing):
    """Keep as many examples of each class as the smallest has (SUBY)."""

    info = _info("class-subsample", "subsample every class to the size of the smallest (SUBY)", "Class subsampling")
    how = "subsample"


class GroupSubsample(_Balancing):
    """Keep as many examples of each group as the smallest has (SUBG)."""

    info = _info("group-subsample", "subsample every group to the size of the smallest (SUBG)", "Group subsampling")
    how = "subsample"


def cell_weights(cells: Tensor) -> Tensor:
    """Return one weight per example: the weights of every cell have the same sum, and the mean weight is 1.

    Example:
        >>> cell_weights(torch.tensor([0, 0, 0, 2]))
        tensor([0.6667, 0.6667, 0.6667, 2.0000])
    """
    counts = torch.bincount(cells)
    return len(cells) / (int((counts > 0).sum()) * counts[cells])
