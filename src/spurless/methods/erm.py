r"""ERM: minimise the mean loss of the data as they are.

Vapnik, "Principles of Risk Minimization for Learning Theory", NeurIPS 1991.

.. math:: \min_\theta \frac{1}{N} \sum_i \ell(f_\theta(x_i), y_i)

The baseline of every comparison, and the model that post-hoc methods repair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.config import CheckedConfig
from spurless.data.loader import shuffled_order
from spurless.data.split import Batch, Splits
from spurless.methods.base import Info, OneStageMethod
from spurless.models.classifier import Classifier
from spurless.train.loop import Job
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class ERMConfig(CheckedConfig):
    """No settings beyond those of the training loop."""


class ERM(OneStageMethod[ERMConfig]):
    """Train on the data as they are."""

    info = Info("erm", "Vapnik 1991", "minimise the mean loss of the data as they are", title="ERM", fix="never")
    presets: ClassVar[Mapping[str, ERMConfig]] = {"plain": ERMConfig()}

    def job(self, model: Classifier, data: Splits, run: Run) -> Job:
        """Return a stage on shuffled batches."""
        order = shuffled_order(len(data.train), run.seeds.child("train"))
        return Job(model, run.loader(data.train, order), mean_loss, run, Stage("train", static=True))


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of a batch."""
    return cross_entropy(model(batch.x), batch.y)
