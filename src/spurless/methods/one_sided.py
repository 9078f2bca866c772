r"""One-sided prediction: for every class the largest set with few false positives; abstain outside all of them.

Gangrade, Kag and Saligrama, "Selective Classification via One-Sided Prediction", AISTATS 2021, arXiv:2010.07853.
With a softmax output :math:`f_k` per class, the examples of class k should be in its set and the others not:

.. math:: L_k = \frac{1}{n_k} \sum_{y_i = k} -\log f_k(x_i), \qquad
    \Omega_k = \frac{1}{n_{\ne k}} \sum_{y_i \ne k} -\log(1 - f_k(x_i)),

.. math:: \min_{\theta, \varphi \ge 0} \max_{\lambda \ge 0} \;
    \sum_k L_k + \lambda_k (\Omega_k - \varphi_k) + \mu \varphi_k.

The price :math:`\mu` of a false positive trades coverage for accuracy. At the saddle :math:`\lambda_k = \mu` and
:math:`\varphi_k = \Omega_k`. Class k is predicted if :math:`f_k \ge t`, with one t for all classes, and the likelier
class if two qualify; so the score is the softmax response, and the model needs no other head.

The effect of the price is limited. With two classes :math:`\Omega_0 = L_1`, and the loss is cross-entropy with equal
weights of the classes. With more, equally frequent, classes the best :math:`f_k(x)` is :math:`P(y = k \mid x)` at any
price: it matters if the network cannot reach that, or if the classes are not equally frequent.

Deviations:
    * In the authors' released code the multipliers do not affect :math:`\Omega_k`, so that it trains with
      :math:`\lambda_k = 1` whatever :math:`\mu`; here they do, as in the formula above. ``price=1, ascent=0`` is
      what the code trains.
    * The multipliers start at :math:`\mu`, their value at the saddle; the code starts them at :math:`\mu - 0.5`.
      They and the slacks move by plain steps of constant size; the code's optimiser is AdamW for all.
    * The loss is divided by the number of classes, so that a learning rate means the same for any number.
    * A class that is absent from a batch has loss 0.
    * The code selects price and threshold per target among several networks on its evaluation split; here a run has
      one price, and the threshold is chosen on validation.
    * The code's auxiliary head, a second linear layer trained by cross-entropy, is used during training.

Sources:
    Losses and constants were taken from knowledge of the released code
    (anilkagak2/SelectiveClassification_One_Sided_Prediction) and compared with it. According to its README it lacks
    parts of the program behind the paper's numbers, such as two time scales and thresholds from validation. The full
    text of the paper could not be read, so the saddle point problem above was not compared with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.config import CheckedConfig, NotNegative, PositiveFraction
from spurless.data.loader import shuffled_order
from spurless.data.split import Batch, Splits
from spurless.methods.base import ConfiguredMethod, Info
from spurless.models.classifier import Classifier
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class OneSidedConfig(CheckedConfig):
    """Options of one-sided prediction; the defaults are the values of the authors' code."""

    price: NotNegative = 0.49  # mu; --mus_list 0.49 1.67
    alpha: PositiveFraction = 0.9  # weight of the loss above, the rest is the auxiliary head's; --alpha
    ascent: NotNegative = 1e-4  # step of the multipliers lambda; --max_lr
    descent: NotNegative = 1e-2  # step of the slacks varphi; --lr
    slack: NotNegative = 0.5  # varphi at the start; epsilons


class OneSided(ConfiguredMethod[OneSidedConfig]):
    """Learn one set per class with few false positives."""

    info = Info(
        "one-sided",
        "Gangrade et al. 2021",
        "learn a set per class with few false positives, and abstain outside all of them",
        title="One-sided prediction",
        fix="never",
    )
    presets: ClassVar[Mapping[str, OneSidedConfig]] = {
        "cifar10": OneSidedConfig(price=0.49),
        "cifar10-strict": OneSidedConfig(price=1.67),
    }

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train while multipliers and slacks converge to the saddle."""
        config, n = self.config, model.n_classes
        multiplier = torch.full((n,), config.price, device=run.device)
        slack = torch.full((n,), config.slack, device=run.device)
        with run.seeds.seed_global_rng("auxiliary"):
            auxiliary = nn.Linear(model.n_features, n)
        model.add_module("auxiliary", auxiliary.to(next(model.head.parameters())))

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            network = cast(Classifier, model)
            features = network.features(batch.x)
            missed, false_positive = one_sided_losses(network.head(features), batch.y, run)
            program = missed + multiplier.clone() * (false_positive - slack) + config.price * slack
            update_multipliers(multiplier, slack, run.sum(false_positive.detach()) / run.world, config)
            auxiliary_loss = cross_entropy(cast(nn.Linear, network.auxiliary)(features), batch.y)
            return (config.alpha * program.sum() + (1 - config.alpha) * auxiliary_loss) / n

        order = shuffled_order(len(data.train), run.seeds.child("train"))
        stage = Stage("train", memory={"multiplier": multiplier, "slack": slack}, static=True)
        minimise(model, run.loader(data.train, order), objective, run, stage)
        del model.auxiliary
        return model


def one_sided_losses(logits: Tensor, y: Tensor, run: Run | None = None) -> tuple[Tensor, Tensor]:
    r"""Return :math:`L_k`, the misses, and :math:`\Omega_k`, the false positives, of every class.

    Example:
        >>> logits = torch.tensor([[0.5, 0.5], [0.8, 0.2]]).log()
        >>> missed, false_positive = one_sided_losses(logits, torch.tensor([0, 1]))
        >>> missed.exp(), false_positive.exp()  # 1 / 0.5 and 1 / 0.2; 1 / (1 - 0.8) and 1 / (1 - 0.5)
        (tensor([2., 5.]), tensor([5., 2.]))
    """
    log_f = logits.log_softmax(dim=1)
    is_class = y[:, None] == torch.arange(logits.shape[1], device=y.device)
    return _class_means(-log_f, is_class, run), _class_means(-log_complement(log_f), ~is_class, run)


def log_complement(log_f: Tensor) -> Tensor:
    """Return ``log(1 - f)`` from log probabilities ``log f``, without rounding to ``log 0``.

    Only the largest probability of a row can be near 1, and its complement is the sum of the others.
    """
    top = log_f.argmax(dim=1, keepdim=True) == torch.arange(log_f.shape[1], device=log_f.device)
    others = log_f.masked_fill(top, -torch.inf)
    return torch.where(top, others.logsumexp(dim=1, keepdim=True), torch.log1p(-others.exp()))


def update_multipliers(multiplier: Tensor, slack: Tensor, false_positive: Tensor, config: OneSidedConfig) -> None:
    """Take one step of ascent in the multipliers and one of descent in the slacks, in place; neither goes below 0."""
    up = (multiplier + config.ascent * (false_positive - slack)).clamp(min=0)
    down = (slack - config.descent * (config.price - multiplier)).clamp(min=0)
    multiplier.copy_(up)
    slack.copy_(down)


def _class_means(losses: Tensor, mask: Tensor, run: Run | None) -> Tensor:
    """Return the mean of every column over the marked rows; with several processes, over the whole batch."""
    total, count = (losses * mask).sum(dim=0), mask.sum(dim=0)
    if run is None or run.world == 1:
        return total / count.clamp(min=1)
    return total * run.world / run.sum(count).clamp(min=1)
