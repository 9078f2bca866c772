r"""Focal loss: let the examples count less that the model is sure of and right about.

Lin, Goyal, Girshick, He and Dollar, "Focal Loss for Dense Object Detection", ICCV 2017, arXiv:1708.02002, equation 4.

.. math:: \min_\theta \frac{1}{N} \sum_i (1 - p_{y_i}(x_i))^\gamma \, \ell(f_\theta(x_i), y_i)

Where a shortcut makes most examples easy, those that it fails count more. Barsbey et al., "Large Learning Rates
Simultaneously Achieve Robustness to Spurious Correlations and Compressibility", 2025, arXiv:2507.17748, compare it with
large learning rates.

Deviations:
    * The mean is over the examples, of any number of classes by softmax; the authors detect objects, with a sigmoid per
      class, and divide by the number of boxes that were assigned to an object.
    * No weight alpha per class, which the authors' best setting has beside gamma = 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from spurless.core.errors import BadInput
from spurless.data.grouped import Batch, Splits
from spurless.data.loader import shuffled
from spurless.methods.base import Info
from spurless.models.classifier import Classifier
from spurless.train.loop import Job, minimise_job
from spurless.train.losses import focal_loss
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class FocalConfig:
    """How much less an easy example counts."""

    gamma: float = 2.0
    """0 is ERM."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gamma) and self.gamma >= 0):
            raise BadInput("gamma of the focal loss must not be negative", got=self.gamma)


FOCAL_COCO = FocalConfig(gamma=2.0)
"""The authors' best, on COCO."""
FOCAL_COLORED_MNIST = FocalConfig(gamma=25.0)
"""The strongest that Barsbey et al. try, in Table 2: from 0.001 on Colored MNIST and Double MNIST, from 0.01 on
MNIST-CIFAR, up to 25. Which was best is not said."""
FOCAL_DOUBLE_MNIST = FocalConfig(gamma=25.0)
FOCAL_MNIST_CIFAR = FocalConfig(gamma=25.0)


class Focal:
    """Train on the data as they are, the hard ones above all."""

    info: ClassVar[Info] = Info("focal", "Lin et al. 2017", "count easy examples less in the mean loss")
    presets: ClassVar[Mapping[str, FocalConfig]] = {
        "coco": FOCAL_COCO,
        "colored-mnist": FOCAL_COLORED_MNIST,
        "double-mnist": FOCAL_DOUBLE_MNIST,
        "mnist-cifar": FOCAL_MNIST_CIFAR,
    }

    def __init__(self, config: FocalConfig = FOCAL_COCO) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train on shuffled batches."""
        minimise_job(self.job(model, data, run))
        return model

    def job(self, model: Classifier, data: Splits, run: Run) -> Job:
        """Return the one stage there is."""
        order = shuffled(len(data.train), run.seeds.child("train"))
        return Job(model, run.loader(data.train, order), self.mean_loss, run, Stage("train", static=True))

    def mean_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean focal loss of a batch."""
        return focal_loss(model(batch.x), batch.y, self.config.gamma).mean()
