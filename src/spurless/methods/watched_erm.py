r"""Watched ERM: ERM that writes down how much of its loss comes from examples where the shortcut is wrong.

Barsbey, Prieto, Zafeiriou and Birdal, "Large Learning Rates Simultaneously Achieve Robustness to Spurious Correlations
and Compressibility", 2025, arXiv:2507.17748, section 6, proposition 1 and figures 12 and 13. Of every mini-batch
:math:`\Omega` it notes

.. math:: \frac{\sum_{i \in \Omega, y_i \ne a_i} \ell(f_\theta(x_i), y_i)}{\sum_{i \in \Omega} \ell(f_\theta(x_i), y_i)}

and which of the examples with :math:`y_i \ne a_i` are predicted as the shortcut says. The attributes of train are read
for that and for nothing else: the weights are those of ERM, to the bit. The figures' other number through training, how
much neurons use the shortcut, needs a look at the model between epochs, which a stage does not have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.data.grouped import Batch, Splits
from spurless.data.loader import shuffled
from spurless.data.mined import conflicting_of
from spurless.methods.base import Info
from spurless.metrics.loss_ratio import LossTrace, loss_parts
from spurless.models.classifier import Classifier
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage

WINDOWS = (1, 10, 100)
"""Steps over which the highest ratio is told, beside a whole epoch."""


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
        a, wrong = data.train.a.to(run.device), conflicting_of(data.train, "Use erm.").to(run.device)
        loader = run.loader(data.train, shuffled(len(data.train), run.seeds.child("train")))
        per_epoch = loader.steps()
        total = run.train.steps or run.train.epochs * per_epoch
        # conflicting loss, all loss, conflicting examples, those that follow the shortcut
        notes = torch.zeros(total, 4, dtype=torch.double, device=run.device)
        step = torch.zeros(1, dtype=torch.long, device=run.device)

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            output = model(batch.x)
            loss = cross_entropy(output, batch.y)
            with torch.no_grad():
                each, against = cross_entropy(output.float(), batch.y, reduction="none"), wrong[batch.index]
                fooled = against & (output.argmax(dim=1) == a[batch.index])
                row = torch.cat([loss_parts(each, against), torch.stack([against.sum(), fooled.sum()])])
                notes.index_copy_(0, step, run.sum(row)[None])
                step.add_(1)
            return loss

        minimise(model, loader, objective, run, Stage("train", memory={"notes": notes, "step": step}, static=True))
        lost, every, against, fooled = notes[: int(step)].cpu().unbind(dim=1)
        run.explanation = found = LossRatios(LossTrace(lost, every), against, fooled, per_epoch)
        _annotate(run.history, found)
        return model


def _annotate(history: Sequence[dict[str, Any]], found: LossRatios) -> None:
    """Add to every epoch of the history what was found in it, so that a record has it."""
    start = 0
    for row in history:
        row.update(found.between(start, row["step"]))
        start = row["step"]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole and math.isfinite(whole) else None
