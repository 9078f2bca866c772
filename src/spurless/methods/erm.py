r"""ERM: minimise the mean loss, and learn whatever shortcut lowers it.

Vapnik, "Principles of Risk Minimization for Learning Theory", NeurIPS 1991.

.. math:: \min_\theta \frac{1}{N} \sum_i \ell(f_\theta(x_i), y_i)

The baseline of every table, and the model that post-hoc methods repair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.data.grouped import Batch, Splits
from spurless.data.loader import shuffled
from spurless.methods.base import Info
from spurless.models.classifier import Classifier
from spurless.train.loop import Job, minimise_job
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class ERMConfig:
    """Nothing to set: the loop's settings are all there is."""


ERM_PLAIN = ERMConfig()


class ERM:
    """Train on the data as they are."""

    info: ClassVar[Info] = Info("erm", "Vapnik 1991", "minimise the mean loss of the data as they are")
    presets: ClassVar[Mapping[str, ERMConfig]] = {"plain": ERM_PLAIN}

    def __init__(self, config: ERMConfig = ERM_PLAIN) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train on shuffled batches."""
        minimise_job(self.job(model, data, run))
        return model

    def job(self, model: Classifier, data: Splits, run: Run) -> Job:
        """Return the one stage there is."""
        order = shuffled(len(data.train), run.seeds.child("train"))
        return Job(model, run.loader(data.train, order), mean_loss, run, Stage("train", static=True))


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of a batch."""
    return cross_entropy(model(batch.x), batch.y)
