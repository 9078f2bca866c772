r"""SelectiveNet: a prediction head and a selection head, trained for a target coverage.

Geifman and El-Yaniv, "SelectiveNet: A Deep Neural Network with an Integrated Reject Option", ICML 2019,
arXiv:1901.09192. With the prediction head :math:`f`, the selection head :math:`g \in [0, 1]`, an auxiliary head
:math:`h` that is trained on all examples, and the coverage :math:`\hat\phi = \frac1m \sum_i g(x_i)` of a batch,

.. math:: \min \; \alpha \Big( \frac{\frac1m \sum_i \ell(f(x_i), y_i) g(x_i)}{\hat\phi}
    + \lambda \max(0, c - \hat\phi)^2 \Big) + (1 - \alpha) \frac1m \sum_i \ell(h(x_i), y_i).

Without the auxiliary head the network would not learn from the examples that it rejects, and overfit to the others.
A network is trained for one coverage c; others are reached by the threshold on g, chosen on validation.

Deviations:
    * The authors' code does not divide the risk by the coverage. ``cifar10`` follows the code, ``cifar10-paper`` the
      formula. On four classes with noise in a fifth of the plane (tests/methods/test_selectivenet.py), at 80 %
      coverage, both have an error of 2 to 3 % with Adam; with SGD at 0.1 the code has 2 % and the formula 17 to 20 %,
      since it lets g rise to 1 everywhere, where the gradient vanishes.
    * The hidden layer of g is linear, ReLU, batch norm, with a scale that starts at 1/10, in the order of the code.
      With batch norm first, a ReLU can be inactive in a whole region, and g was constant there.
    * The score is the log odds of g, which has the order of g and does not round to 1.
    * The auxiliary head is removed after training; g stays as the submodule ``selector`` of the model.
    * With several processes each reaches the coverage on its own part of a batch.

Sources:
    Loss, heads and constants were taken from knowledge of the released code (geifmany/selectivenet) and compared with
    it. The full text of the paper could not be read, so the formula above was not compared with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.config import CheckedConfig, Fraction, NotNegative, PositiveFraction, Width
from spurless.core.errors import InputError
from spurless.data.loader import shuffled_order
from spurless.data.split import Batch, Splits
from spurless.methods.base import ConfiguredMethod, Info
from spurless.models.classifier import Classifier
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class SelectiveNetConfig(CheckedConfig):
    """Options of SelectiveNet; the defaults are the values of the authors' code."""

    coverage: PositiveFraction = 0.8  # c; the default of their models, which they train for 0.7 to 0.95
    penalty: NotNegative = 32.0  # lambda; lamda
    alpha: Fraction = 0.5  # --alpha
    width: Width = 512  # units of the selection head
    divide: bool = False  # the risk by the coverage: the formula does, their code does not


class SelectiveNet(ConfiguredMethod[SelectiveNetConfig]):
    """Train a selection head for a target coverage."""

    info = Info(
        "selectivenet",
        "Geifman and El-Yaniv 2019",
        "train a head that selects which examples to predict, at a target coverage",
        score="selector",
        title="SelectiveNet",
        fix="never",
    )
    presets: ClassVar[Mapping[str, SelectiveNetConfig]] = {
        "cifar10": SelectiveNetConfig(),
        "cifar10-paper": SelectiveNetConfig(divide=True),
    }

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train the three heads together; the returned model has a ``selector``."""
        config = self.config
        if run.train.batch_size // run.world < 2:
            what = "SelectiveNet needs the coverage of a batch"
            raise InputError(what, expected="a batch size of at least 2 per device")
        with run.seeds.seed_global_rng("selector"):
            attach_gate(model, config.width)
            auxiliary = nn.Linear(model.n_features, model.n_classes)
        model.add_module("auxiliary", auxiliary.to(next(model.head.parameters())))

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            network = cast(Classifier, model)
            features = network.features(batch.x)
            logits: Tensor = network.head(features)
            selected = cast(Gate, network.selector)(features, logits).sigmoid()
            losses = cross_entropy(logits, batch.y, reduction="none")
            auxiliary_loss = cross_entropy(cast(nn.Linear, network.auxiliary)(features), batch.y)
            return config.alpha * selective_loss(losses, selected, config) + (1 - config.alpha) * auxiliary_loss

        order = shuffled_order(len(data.train), run.seeds.child("train"))
        minimise(model, run.loader(data.train, order), objective, run, Stage("train", static=True))
        del model.auxiliary
        return model


class Gate(nn.Module):
    """The selection head: from features to the log odds of selecting an example."""

    def __init__(self, n_features: int, width: int) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(width)
        nn.init.constant_(norm.weight, 0.1)
        self.layers = nn.Sequential(nn.Linear(n_features, width), nn.ReLU(), norm, nn.Linear(width, 1))

    def forward(self, features: Tensor, _logits: Tensor) -> Tensor:
        """Return one score per example; higher is more confident."""
        odds: Tensor = self.layers(features)
        return odds.squeeze(1)


def attach_gate(model: Classifier, width: int = SelectiveNetConfig.width) -> None:
    """Add an untrained selection head to a model as ``selector``; call it before loading weights that have one."""
    model.add_module("selector", Gate(model.n_features, width).to(next(model.head.parameters())))


def selective_loss(losses: Tensor, selected: Tensor, config: SelectiveNetConfig) -> Tensor:
    """Return the loss of selected examples plus the penalty for a coverage below the target.

    ``selected`` is the selection of every example, from 0 to 1.
    """
    coverage = selected.mean()
    risk = (losses * selected).mean()
    if config.divide:
        risk = risk / coverage.clamp(min=1e-6)  # a batch without selected examples has no risk, only the penalty
    return risk + config.penalty * (config.coverage - coverage).clamp(min=0) ** 2
