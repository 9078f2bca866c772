"""RandMask: hide a random square of every image, anew each time it is met.

Asgari Taghanaki, Khani, Khani, Gholami, Tran, Mahdavi-Amiri and Hamarneh, "MaskTune: Mitigating Spurious Correlations
by Forcing to Explore", NeurIPS 2022, arXiv:2210.00055, Section 4.1: what MaskTune is compared with, to see that it
matters *where* one masks; its numbers are in Table 6. DeVries and Taylor's Cutout (arXiv:1708.04552) with a side that
is drawn from 2 to half of the image, as in the appendix and in the authors' code.

Deviations:
    * The paper calls it "similar to MaskTune": its code trains as usual, then tunes for one epoch on images with
      squares. Here all of the training sees them. For the former, give a trained model and ``train={"epochs": 1}``.
    * Here a square lies within the image. The authors draw its middle anywhere and cut off what lies outside, so that
      a 4 x 4 corner is hidden whole in 3.0 % of draws at 28 pixels, here in 0.2 %; and they make odd sides even.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from spurless.core.errors import BadInput
from spurless.data.checks import kind_of
from spurless.data.grouped import Splits
from spurless.data.loader import shuffled
from spurless.data.transforms import Chain, RandomSquare
from spurless.methods.base import Info
from spurless.methods.erm import mean_loss
from spurless.models.classifier import Classifier
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class RandMaskConfig:
    """How small a square may be; the largest has half the side of the image."""

    smallest: int = 2  # pixels; the authors' code

    def __post_init__(self) -> None:
        if self.smallest < 1:
            raise BadInput("RandMask's smallest must be at least 1", got=self.smallest)


RANDMASK_BIASED_MNIST = RandMaskConfig()


class RandMask:
    """Train on images of which a part is missing, by chance."""

    info: ClassVar[Info] = Info(
        "randmask", "Asgari Taghanaki et al. 2022", "train on images with a random square hidden, anew each time"
    )
    presets: ClassVar[Mapping[str, RandMaskConfig]] = {"biased-mnist": RANDMASK_BIASED_MNIST}

    def __init__(self, config: RandMaskConfig = RANDMASK_BIASED_MNIST) -> None:
        self.config = config

    def check(self, _model: Classifier, data: Splits) -> None:
        """Refuse what has no squares."""
        x = data.train.example(1)
        if isinstance(x, dict) or not 2 <= x.dim() <= 4:
            raise BadInput(
                f"RandMask hides squares of images, and these data are {kind_of(x)}",
                do="Use masktune, or erm." if isinstance(x, dict) and "input_ids" in x else "Use erm.",
            )

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train on shuffled batches; the square comes after the data's own augmentation."""
        self.check(model, data)
        square = RandomSquare(self.config.smallest)
        own = data.train.augment
        train = replace(data.train, augment=square if own is None else Chain((own, square)))
        order = shuffled(len(train), run.seeds.child("train"))
        minimise(model, run.loader(train, order), mean_loss, run, Stage("train", static=True))
        return model
