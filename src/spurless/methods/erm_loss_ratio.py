r"""ERM with loss ratio: ERM that records the fraction of the loss that conflicting examples have.

Barsbey, Prieto, Zafeiriou and Birdal, "Large Learning Rates Simultaneously Achieve Robustness to Spurious Correlations
and Compressibility", 2025, arXiv:2507.17748, section 6, proposition 1 and figures 12 and 13. For every mini-batch
:math:`\Omega` it records

.. math:: \frac{\sum_{i \in \Omega, y_i \ne a_i} \ell(f_\theta(x_i), y_i)}{\sum_{i \in \Omega} \ell(f_\theta(x_i), y_i)}

and how many of the examples with :math:`y_i \ne a_i` are predicted as the shortcut predicts. After every epoch it
records how much the neurons that the head reads use the shortcut, see :mod:`spurless.metrics.utilisation`, on the same
sample of train: up to 2,000 examples, balanced over groups if possible, in eval mode. The attributes of train are used
only for these numbers: the weights are bit-identical to those of ERM.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.config import CheckedConfig
from spurless.core.errors import InputError
from spurless.core.seeds import Seeds
from spurless.data.loader import Loader, sequential_order, shuffled_order
from spurless.data.mined import find_conflicting
from spurless.data.split import Batch, Split, Splits
from spurless.methods.base import Info, OneStageMethod
from spurless.metrics.loss_ratio import LossTrace, loss_parts
from spurless.metrics.utilisation import utilisation
from spurless.models.classifier import Classifier
from spurless.models.features import collect_magnitudes
from spurless.train.evaluate import EVALUATION_BATCH
from spurless.train.loop import Job
from spurless.train.run import Run
from spurless.train.step import Stage

WINDOWS = (1, 10, 100)  # window lengths, in steps, for the highest ratio; a whole epoch is always included
SAMPLE_SIZE = 2000  # examples for the utilisation of neurons; with more groups than that, one of each


@dataclass(frozen=True)
class ERMLossRatioConfig(CheckedConfig):
    """No settings beyond those of the training loop."""


@dataclass(frozen=True, eq=False)
class LossRatios:
    """The loss of conflicting examples, and how many of them are predicted as the shortcut predicts, per step."""

    trace: LossTrace
    conflicting: Tensor  # number of conflicting examples of each mini-batch, ``(steps,)``
    followed: Tensor  # number of those that are predicted as the shortcut predicts, ``(steps,)``
    steps_per_epoch: int
    utilisation: tuple[Mapping[str, float], ...] = ()
    """utilisation of the shortcut by neurons after every epoch; empty if it could not be computed"""

    @property
    def per_step(self) -> Tensor:
        """The ratio of every mini-batch."""
        return self.trace.ratios()

    @property
    def per_epoch(self) -> Tensor:
        """The ratio of every epoch, over its batches."""
        return self.trace.ratios(self.steps_per_epoch)

    def numbers(self) -> dict[str, float]:
        """Return the highest ratio over mini-batches, windows of mini-batches and epochs, without NaN."""
        highest = {f"over_{window}": self.trace.maximum(window) for window in WINDOWS if window > 1}
        highest = {"": self.trace.maximum(), **highest, "over_an_epoch": self.trace.maximum(self.steps_per_epoch)}
        named = {f"max_loss_ratio_{word}".rstrip("_"): value for word, value in highest.items()}
        return {name: value for name, value in named.items() if value == value}

    def between(self, start: int, end: int) -> dict[str, float | None]:
        """Return the history fields for the steps from ``start`` up to ``end``."""
        part = slice(start, end)
        return {
            "loss_ratio": _ratio(self.trace.conflicting[part], self.trace.total[part]),
            "follows_shortcut": _ratio(self.followed[part], self.conflicting[part]),
        }


class ERMLossRatio(OneStageMethod[ERMLossRatioConfig]):
    """Train by ERM, and record the loss of conflicting examples."""

    info = Info(
        "erm-loss-ratio",
        "Barsbey et al. 2025",
        "ERM that records the fraction of the loss that conflicting examples have",
        train_attributes=True,
        title="ERM with loss ratio",
        fix="never",
    )
    presets: ClassVar[Mapping[str, ERMLossRatioConfig]] = {"colored-mnist": ERMLossRatioConfig()}

    def job(self, model: Classifier, data: Splits, run: Run) -> Job:
        """Return a stage of ERM that also records the losses."""
        loader = run.loader(data.train, shuffled_order(len(data.train), run.seeds.child("train")))
        recorder = _LossRecorder(data.train, loader, run)
        memory = {"notes": recorder.rows, "step": recorder.step}
        stage = Stage("train", memory=memory, static=True, watch=recorder.watch, after=recorder.close)
        return Job(model, loader, recorder.objective, run, stage)


class _LossRecorder:
    """Records losses of every step on the device, and neuron utilisation after every epoch."""

    def __init__(self, train: Split, loader: Loader, run: Run) -> None:
        self.run, self.per_epoch = run, loader.steps()
        self.a, self.conflicting = train.a.to(run.device), find_conflicting(train, "Use erm.").to(run.device)
        total = run.train.steps or run.train.epochs * self.per_epoch
        # columns: conflicting loss, total loss, conflicting examples, those predicted as the shortcut predicts
        self.rows = torch.zeros(total, 4, dtype=torch.double, device=run.device)
        self.step = torch.zeros(1, dtype=torch.long, device=run.device)
        self.sample = train.select(_sample_groups(train, run.seeds))

    def objective(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss, as ERM does, and record the part of conflicting examples."""
        output = model(batch.x)
        loss = cross_entropy(output, batch.y)
        with torch.no_grad():
            losses = cross_entropy(output.float(), batch.y, reduction="none")
            conflicting = self.conflicting[batch.index]
            followed = conflicting & (output.argmax(dim=1) == self.a[batch.index])
            row = torch.cat([loss_parts(losses, conflicting), torch.stack([conflicting.sum(), followed.sum()])])
            self.rows.index_copy_(0, self.step, self.run.sum(row)[None])
            self.step.add_(1)
        return loss

    def watch(self, model: nn.Module, step: int) -> dict[str, float | None]:
        """Return the history fields of the epoch that ends with this step."""
        start = (step - 1) // self.per_epoch * self.per_epoch
        return {**self.ratios().between(start, step), **self._utilisation(cast(Classifier, model))}

    def close(self) -> None:
        """Set the run's explanation."""
        rows = [{key: row[key] for key in row if "utilisation" in key} for row in self.run.history]
        self.run.explain(replace(self.ratios(), utilisation=tuple(filter(None, rows))))

    def ratios(self) -> LossRatios:
        """Return the record of the steps so far."""
        conflicting_loss, total_loss, conflicting, followed = self.rows[: int(self.step)].cpu().unbind(dim=1)
        return LossRatios(LossTrace(conflicting_loss, total_loss), conflicting, followed, self.per_epoch)

    def _utilisation(self, model: Classifier) -> dict[str, float]:
        """Return how much neurons use the shortcut; empty if no example separates it from the label."""
        sample, device = self.sample, self.run.device
        loader = Loader(sample, sequential_order(len(sample)), EVALUATION_BATCH, device, workers=self.run.workers)
        try:
            z = collect_magnitudes(model, loader.batches(), device)
            return utilisation(z, sample.y.cpu(), sample.a.cpu()).numbers()
        except InputError:  # training continues if features are not finite
            return {}


def _sample_groups(train: Split, seeds: Seeds) -> Tensor:
    """Return the indices of a sample of train with the same number of every group, if possible."""
    group = train.groups.encode(train.y, train.a).cpu()
    permutation = torch.randperm(len(group), generator=seeds.generator("watch"))
    members = [permutation[group[permutation] == g] for g in torch.unique(group).tolist()]
    per_group = max(1, SAMPLE_SIZE // max(1, len(members)))
    return torch.cat([index[:per_group] for index in members]).sort().values


def _ratio(numerator: Tensor, denominator: Tensor) -> float | None:
    """Return the ratio of two sums; None if the denominator is 0 or not finite."""
    total = float(denominator.sum())
    return float(numerator.sum()) / total if total and math.isfinite(total) else None
