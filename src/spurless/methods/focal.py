r"""Focal loss: give less weight to examples that the model predicts correctly with confidence.

Lin, Goyal, Girshick, He and Dollar, "Focal Loss for Dense Object Detection", ICCV 2017, arXiv:1708.02002, equation 4.

.. math:: \min_\theta \frac{1}{N} \sum_i (1 - p_{y_i}(x_i))^\gamma \, \ell(f_\theta(x_i), y_i)

If a shortcut makes most examples easy, the examples that it does not fit have more weight. Barsbey et al., "Large
Learning Rates Simultaneously Achieve Robustness to Spurious Correlations and Compressibility", 2025, arXiv:2507.17748,
compare it with large learning rates.

Deviations:
    * The mean is over examples, with a softmax over any number of classes; the authors detect objects, with a sigmoid
      per class, and divide by the number of boxes that were assigned to an object.
    * No weight alpha per class, which the authors' best setting has in addition to gamma = 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from spurless.core.config import CheckedConfig, NotNegative
from spurless.data.loader import shuffled_order
from spurless.data.split import Batch, Splits
from spurless.methods.base import Info, OneStageMethod
from spurless.models.classifier import Classifier
from spurless.train.loop import Job
from spurless.train.losses import focal_loss
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class FocalConfig(CheckedConfig):
    """The exponent of the focal loss."""

    gamma: NotNegative = 2.0  # 0: ERM


class Focal(OneStageMethod[FocalConfig]):
    """Train with less weight on easy examples."""

    info = Info("focal", "Lin et al. 2017", "give easy examples less weight in the mean loss", title="Focal loss")
    presets: ClassVar[Mapping[str, FocalConfig]] = {
        "coco": FocalConfig(gamma=2.0),  # the authors' best, on COCO
        # The largest value that Barsbey et al. try, in Table 2: from 0.001 on Colored MNIST and Double
        # MNIST, from 0.01 on MNIST-CIFAR, up to 25. They do not report the best one.
        "colored-mnist": FocalConfig(gamma=25.0),
        "double-mnist": FocalConfig(gamma=25.0),
        "mnist-cifar": FocalConfig(gamma=25.0),
    }

    def job(self, model: Classifier, data: Splits, run: Run) -> Job:
        """Return a stage on shuffled batches."""
        order = shuffled_order(len(data.train), run.seeds.child("train"))
        return Job(model, run.loader(data.train, order), self.mean_loss, run, Stage("train", static=True))

    def mean_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean focal loss of a batch."""
        return focal_loss(model(batch.x), batch.y, self.config.gamma).mean()
