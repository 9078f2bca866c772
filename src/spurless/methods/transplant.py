r"""Transplant training: continue training with properties of every example exchanged for those of random examples.

Our own method, not from a paper. It is for shortcuts with a name in ``spurless.data.transplants``, such as the frame of
an image or its low frequencies, also if no example breaks the shortcut: it needs neither attributes nor conflicting
examples.

Write an example as :math:`x = (s, r)`, where :math:`s` are the named properties and :math:`r` is the rest. In the data
:math:`P(s, r, y)`, :math:`s` predicts :math:`y`. Each example gets the :math:`s'` of a random example of its batch, and
keeps its label. This estimates the risk under the product distribution,

.. math:: R(\theta) = E_{(r, y) \sim P} \; E_{s' \sim P} \; \ell(f_\theta(s', r), y),

under which :math:`s'` is independent of :math:`(r, y)`: it predicts nothing, so that the minimum is reached by the rest
alone. All properties come from the same donor, so that no combination of them predicts the label either.

Limits:
    * The operation leaves artefacts, such as edges around a pasted region, to which the model gets used.
    * Legitimate evidence in the property is destroyed too: train without the color, and a color that belongs to the
      class is not used either. With the whole object as the property nothing is left to learn.
    * The split into :math:`s` and :math:`r` is that of the operation. If the shortcut is partly in the rest, as a color
      is in the center of an image of which only the frame is exchanged, the model can still use it there.
    * Properties overlap: exchanging one also changes what others see of it, as the low frequencies and the frame do.
    * A shortcut that has no name in the list is not removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from spurless.core.config import CheckedConfig, Count, Fraction, Positive
from spurless.core.errors import InputError
from spurless.data.loader import shuffled_order
from spurless.data.split import Split, Splits
from spurless.data.transforms import Compose
from spurless.data.transplants import RandomTransplant, get_transplants, list_transplants
from spurless.data.words import TokenSpelling, load_spelling
from spurless.methods._config import constant_lr_config
from spurless.methods.base import ConfiguredMethod, Info
from spurless.methods.erm import mean_loss
from spurless.models.classifier import Classifier
from spurless.train.checks import check_trainable
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class TransplantConfig(CheckedConfig):
    """Which properties are exchanged, how often, and for how long the model is trained."""

    properties: tuple[str, ...] = ()  # names in spurless.data.transplants, such as "the frame"
    p: Fraction = 1.0  # probability that an example gets the properties of another one
    epochs: Count = 10
    steps: Count | None = None  # overrides epochs
    lr: Positive | None = None  # constant; None: the initial learning rate of the run


class TransplantTraining(ConfiguredMethod[TransplantConfig]):
    """Continue training with named properties of every example taken from random other examples; no attributes."""

    info = Info(
        "transplant",
        "ours",
        "continue training with named properties of every example taken from random other examples",
        start="trained",
        title="Transplant training",
        fix="never",  # the properties must be named; fix takes them from the audit
    )
    presets: ClassVar[Mapping[str, TransplantConfig]] = {"default": TransplantConfig()}

    def check(self, model: Classifier, data: Splits) -> None:
        """Raise if the model cannot be trained, or no property or an unknown one is named."""
        check_trainable(model)
        if not self.config.properties:
            names = list(list_transplants(data.train, _load_spelling(data)))
            known = f"some of {', '.join(map(repr, names[:8]))}{', ...' if len(names) > 8 else ''}"
            raise InputError(
                "transplant needs the names of the properties to exchange",
                expected=known if names else "images, rows of numbers or texts",
                hint="Pass those that the audit flags: properties=(NAME, ...), or -M properties=NAME.",
            )
        exchange_properties(data, self.config)

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train on shuffled batches with exchanged properties."""
        self.check(model, data)
        config = self.config
        order = shuffled_order(len(data.train), run.seeds.child("transplant"))
        lr = run.train.lr if config.lr is None else config.lr
        train_config = constant_lr_config(run.train, epochs=config.epochs, steps=config.steps, lr=lr)
        stage = Stage("transplant", train_config, static=True)
        minimise(model, run.loader(exchange_properties(data, config), order), mean_loss, run, stage)
        return model


def exchange_properties(data: Splits, config: TransplantConfig) -> Split:
    """Return the training split with the properties exchanged in every batch, before any other augmentation."""
    train = data.train
    exchange = RandomTransplant(get_transplants(train, config.properties, _load_spelling(data)), config.p)
    return replace(train, augment=exchange if train.augment is None else Compose((exchange, train.augment)))


def _load_spelling(data: Splits) -> TokenSpelling | None:
    """Return the spelling of the tokens of texts, without the test split, which methods cannot access."""
    return load_spelling(replace(data, test=data.val)) if isinstance(data.train.x, dict) else None
