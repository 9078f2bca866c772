r"""Watched ERM: ERM that writes down what examples cost where the shortcut is wrong, and who in the net uses it.

Barsbey, Prieto, Zafeiriou and Birdal, "Large Learning Rates Simultaneously Achieve Robustness to Spurious Correlations
and Compressibility", 2025, arXiv:2507.17748, section 6, proposition 1 and figures 12 and 13. Of every mini-batch
:math:`\Omega` it notes

.. math:: \frac{\sum_{i \in \Omega, y_i \ne a_i} \ell(f_\theta(x_i), y_i)}{\sum_{i \in \Omega} \ell(f_\theta(x_i), y_i)}

and which of the examples with :math:`y_i \ne a_i` are predicted as the shortcut says. After every epoch it notes how
much the neurons that the head reads use the shortcut, see :mod:`spurless.metrics.utilisation`, on the same train
examples every time: up to 2,000, in eval mode, as many of each group as there are and as have room. The attributes of
train are read for that and for nothing else: the weights are those of ERM, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.errors import BadInput
from spurless.core.seeds import Seeds
from spurless.data.grouped import Batch, Grouped, Splits
from spurless.data.loader import Loader, in_order, shuffled
from spurless.data.mined import conflicting_of
from spurless.methods.base import Info
from spurless.metrics.loss_ratio import LossTrace, loss_parts
from spurless.metrics.utilisation import utilisation
from spurless.models.classifier import Classifier
from spurless.models.representations import representations
from spurless.train.evaluate import EVALUATION_BATCH
from spurless.train.loop import Job, minimise_job
from spurless.train.run import Run
from spurless.train.step import Stage

WINDOWS = (1, 10, 100)
"""Steps over which the highest ratio is told, beside a whole epoch."""
LOOKED_AT = 2000
"""Examples on which neurons are looked at; with more groups than that, one of each."""


@dataclass(frozen=True)
class WatchedERMConfig:
    """Nothing to set: the loop's settings are all there is."""


WATCHED_ERM_COLORED_MNIST = WatchedERMConfig()


@dataclass(frozen=True, eq=False)
class LossRatios:
    """How much of the loss conflicting examples had, and how many of them followed the shortcut, step by step."""

    trace: LossTrace
    conflicting: Tensor
    """How many examples of each mini-batch conflict, ``(steps,)``."""
    followed: Tensor
    """How many of those were predicted as the shortcut says, ``(steps,)``."""
    steps_per_epoch: int
    utilisation: tuple[Mapping[str, float], ...] = ()
    """How much neurons used the shortcut after every epoch; empty where that could not be told."""

    @property
    def per_step(self) -> Tensor:
        """The ratio of every mini-batch."""
        return self.trace.ratios()

    @property
    def per_epoch(self) -> Tensor:
        """The ratio of every epoch, over the batches as they came."""
        return self.trace.ratios(self.steps_per_epoch)

    def numbers(self) -> dict[str, float]:
        """Return the highest ratio over mini-batches, over windows of them and over epochs; none that is NaN."""
        highest = {f"over_{window}": self.trace.maximum(window) for window in WINDOWS if window > 1}
        highest = {"": self.trace.maximum(), **highest, "over_an_epoch": self.trace.maximum(self.steps_per_epoch)}
        named = {f"max_loss_ratio_{word}".rstrip("_"): value for word, value in highest.items()}
        return {name: value for name, value in named.items() if value == value}

    def between(self, start: int, end: int) -> dict[str, float | None]:
        """Return what a row of the history says of the steps from ``start`` up to ``end``."""
        part = slice(start, end)
        shares = (
            (self.trace.conflicting[part], self.trace.total[part]),
            (self.followed[part], self.conflicting[part]),
        )
        ratio, followed = (_share(float(some.sum()), float(every.sum())) for some, every in shares)
        return {"loss_ratio": ratio, "follows_shortcut": followed}


class WatchedERM:
    """Train on the data as they are, and note what conflicting examples cost."""

    info: ClassVar[Info] = Info(
        "watched-erm",
        "Barsbey et al. 2025",
        "ERM that notes the share of the loss that conflicting examples have",
        train_attributes=True,
    )
    presets: ClassVar[Mapping[str, WatchedERMConfig]] = {"colored-mnist": WATCHED_ERM_COLORED_MNIST}

    def __init__(self, config: WatchedERMConfig = WATCHED_ERM_COLORED_MNIST) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train on shuffled batches, and leave the ratios of all steps as the run's explanation."""
        minimise_job(self.job(model, data, run))
        return model

    def job(self, model: Classifier, data: Splits, run: Run) -> Job:
        """Return the one stage there is, and who watches it."""
        loader = run.loader(data.train, shuffled(len(data.train), run.seeds.child("train")))
        notebook = _Notebook(data.train, loader, run)
        memory = {"notes": notebook.notes, "step": notebook.step}
        stage = Stage("train", memory=memory, static=True, watch=notebook.watch, after=notebook.close)
        return Job(model, loader, notebook.objective, run, stage)


class _Notebook:
    """What is written down of a run: at every step on the device, at the end of every epoch here."""

    def __init__(self, train: Grouped, loader: Loader, run: Run) -> None:
        self.run, self.per_epoch = run, loader.steps()
        self.a, self.wrong = train.a.to(run.device), conflicting_of(train, "Use erm.").to(run.device)
        total = run.train.steps or run.train.epochs * self.per_epoch
        # conflicting loss, all loss, conflicting examples, those that follow the shortcut
        self.notes = torch.zeros(total, 4, dtype=torch.double, device=run.device)
        self.step = torch.zeros(1, dtype=torch.long, device=run.device)
        self.sample = train.select(_of_every_group(train, run.seeds))

    def objective(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss, as ERM has it, and write down whose it is."""
        output = model(batch.x)
        loss = cross_entropy(output, batch.y)
        with torch.no_grad():
            each, against = cross_entropy(output.float(), batch.y, reduction="none"), self.wrong[batch.index]
            fooled = against & (output.argmax(dim=1) == self.a[batch.index])
            row = torch.cat([loss_parts(each, against), torch.stack([against.sum(), fooled.sum()])])
            self.notes.index_copy_(0, self.step, self.run.sum(row)[None])
            self.step.add_(1)
        return loss

    def watch(self, model: nn.Module, step: int) -> dict[str, float | None]:
        """Return what the history says of the epoch that ends with this step."""
        start = (step - 1) // self.per_epoch * self.per_epoch
        return {**self.found().between(start, step), **self._used(cast(Classifier, model))}

    def close(self) -> None:
        """Leave everything as the run's explanation."""
        rows = [{key: row[key] for key in row if "utilisation" in key} for row in self.run.history]
        self.run.explanation = replace(self.found(), utilisation=tuple(filter(None, rows)))

    def found(self) -> LossRatios:
        """Return what is written down of the steps so far."""
        lost, every, against, fooled = self.notes[: int(self.step)].cpu().unbind(dim=1)
        return LossRatios(LossTrace(lost, every), against, fooled, self.per_epoch)

    def _used(self, model: Classifier) -> dict[str, float]:
        """Return how much neurons use the shortcut; nothing where no example tells it from the label."""
        sample, device = self.sample, self.run.device
        loader = Loader(sample, in_order(len(sample)), EVALUATION_BATCH, device, workers=self.run.workers)
        try:
            z = representations(model, loader.batches(), device)
            return utilisation(z, sample.y.cpu(), sample.a.cpu()).numbers()
        except BadInput:  # features that are not finite are no reason to end a training
            return {}


def _of_every_group(train: Grouped, seeds: Seeds) -> Tensor:
    """Return the numbers of the examples that are looked at, as many of each group as have room."""
    group = train.groups.encode(train.y, train.a).cpu()
    shuffled_once = torch.randperm(len(group), generator=seeds.generator("watch"))
    members = [shuffled_once[group[shuffled_once] == g] for g in torch.unique(group).tolist()]
    room = max(1, LOOKED_AT // max(1, len(members)))
    return torch.cat([some[:room] for some in members]).sort().values


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole and math.isfinite(whole) else None
