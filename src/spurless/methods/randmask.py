"""RandMask: hide a random square of every image, a new one in every epoch.

Asgari Taghanaki, Khani, Khani, Gholami, Tran, Mahdavi-Amiri and Hamarneh, "MaskTune: Mitigating Spurious Correlations
by Forcing to Explore", NeurIPS 2022, arXiv:2210.00055, Section 4.1: the baseline of MaskTune, which shows that it
matters *where* one masks; its numbers are in Table 6. It is DeVries and Taylor's Cutout (arXiv:1708.04552) with a
random side from 2 to half of the image, as in the appendix and in the authors' code.

Deviations:
    * The paper calls it "similar to MaskTune": its code trains as usual, then tunes for one epoch on images with
      squares. Here all of the training uses squares. For the former, pass a trained model and ``train={"epochs": 1}``.
    * Here a square lies within the image. The authors sample its centre anywhere and cut off what lies outside, so that
      a 4 x 4 corner is hidden completely in 3.0 % of samples at 28 pixels, here in 0.2 %; and they make odd sides even.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from spurless.core.config import CheckedConfig, Count
from spurless.core.errors import InputError
from spurless.data.checks import describe_kind
from spurless.data.loader import shuffled_order
from spurless.data.split import Splits
from spurless.data.transforms import Compose, RandomSquare
from spurless.methods.base import ConfiguredMethod, Info
from spurless.methods.erm import mean_loss
from spurless.models.classifier import Classifier
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class RandMaskConfig(CheckedConfig):
    """Smallest side of a square; the largest is half the side of the image."""

    smallest: Count = 2  # pixels; the authors' code


class RandMask(ConfiguredMethod[RandMaskConfig]):
    """Train on images with a random square hidden."""

    info = Info(
        "randmask",
        "Asgari Taghanaki et al. 2022",
        "train on images with a random square hidden",
        title="RandMask",
        fix="never",
    )
    presets: ClassVar[Mapping[str, RandMaskConfig]] = {"biased-mnist": RandMaskConfig()}

    def check(self, _model: Classifier, data: Splits) -> None:
        """Raise if the inputs are not images."""
        x = data.train.example(1)
        if isinstance(x, dict) or not 2 <= x.dim() <= 4:
            raise InputError(
                f"RandMask supports images, but these data are {describe_kind(x)}",
                hint="Use masktune, or erm." if isinstance(x, dict) and "input_ids" in x else "Use erm.",
            )

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train on shuffled batches; the square is applied after the data's augmentation."""
        self.check(model, data)
        square = RandomSquare(self.config.smallest)
        augment = data.train.augment
        train = replace(data.train, augment=square if augment is None else Compose((augment, square)))
        order = shuffled_order(len(train), run.seeds.child("train"))
        minimise(model, run.loader(train, order), mean_loss, run, Stage("train", static=True))
        return model
