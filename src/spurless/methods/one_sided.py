r"""One-sided prediction: for every class the largest set with few false positives; abstain outside all of them.

Gangrade, Kag and Saligrama, "Selective Classification via One-Sided Prediction", AISTATS 2021, arXiv:2010.07853.
With a softmax output :math:`f_k` per class, the examples of class k should be in its set and the others not:

.. math:: L_k = \frac{1}{n_k} \sum_{y_i = k} -\log f_k(x_i), \qquad
    \Omega_k = \frac{1}{n_{\ne k}} \sum_{y_i \ne k} -\log(1 - f_k(x_i)),

.. math:: \min_{\theta, \varphi \ge 0} \max_{\lambda \ge 0} \;
    \sum_k L_k + \lambda_k (\Omega_k - \varphi_k) + \mu \varphi_k.

The price :math:`\mu` of a false positive trades coverage for accuracy. At the saddle :math:`\lambda_k = \mu` and
:math:`\varphi_k = \Omega_k`. Class k is predicted where :math:`f_k \ge t`, one t for all classes, the likelier class
where two qualify; so the score is the softmax response, and the model needs no head beside its own.

What the price can do is limited. With two classes :math:`\Omega_0 = L_1`, and all is cross-entropy with equal
weights of the classes. With more, equally frequent, the best :math:`f_k(x)` is :math:`P(y = k \mid x)` at any price:
it matters where the network cannot reach that, or the classes are not as frequent.

Deviations:
    * In the authors' released code the multipliers do not touch :math:`\Omega_k`, so that it trains with
      :math:`\lambda_k = 1` whatever :math:`\mu`; here they do, as in the program above. ``price=1, ascent=0`` is
      what the code trains.
    * The multipliers start at :math:`\mu`, their value at the saddle; the code starts them at :math:`\mu - 0.5`.
      They and the slacks move by plain steps of constant size; the code's optimiser is AdamW for all.
    * The loss is divided by the number of classes, so that a learning rate means the same for any number.
    * A class that is absent from a batch counts as loss 0.
    * The code picks price and threshold per target among several networks on its evaluation split; here a run has
      one price, and the threshold comes from validation.
    * The code's auxiliary head, a second linear layer trained by cross-entropy, is kept during training.

Sources:
    Losses and constants were taken from knowledge of the released code
    (anilkagak2/SelectiveClassification_One_Sided_Prediction) and compared with it. By its own account it lacks parts of
    the program that the paper's numbers come from, such as two time scales and thresholds from validation. The full
    text of the paper could not be read, so the saddle point problem above was not compared with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.errors import BadInput
from spurless.data.grouped import Batch, Splits
from spurless.data.loader import shuffled
from spurless.methods.base import Info
from spurless.models.classifier import Classifier
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class OneSidedConfig:
    """Values of the authors' code."""

    price: float = 0.49  # mu; --mus_list 0.49 1.67
    alpha: float = 0.9  # share of the loss above, the rest is the auxiliary head's; --alpha
    ascent: float = 1e-4  # step of the multipliers lambda; --max_lr
    descent: float = 1e-2  # step of the slacks varphi; --lr
    slack: float = 0.5  # varphi at the start; epsilons

    def __post_init__(self) -> None:
        for name in ("price", "ascent", "descent", "slack"):
            if not getattr(self, name) >= 0:
                raise BadInput(f"one-sided prediction's {name} must not be negative", got=getattr(self, name))
        if not 0 < self.alpha <= 1:
            raise BadInput("one-sided prediction's alpha is a share", expected="above 0 and at most 1", got=self.alpha)


ONE_SIDED_CIFAR10 = OneSidedConfig(price=0.49)
ONE_SIDED_CIFAR10_STRICT = OneSidedConfig(price=1.67)


class OneSided:
    """Learn one set per class that few others enter."""

    info: ClassVar[Info] = Info(
        "one-sided", "Gangrade et al. 2021", "a set per class with few false positives; abstain outside all"
    )
    presets: ClassVar[Mapping[str, OneSidedConfig]] = {
        "cifar10": ONE_SIDED_CIFAR10,
        "cifar10-strict": ONE_SIDED_CIFAR10_STRICT,
    }

    def __init__(self, config: OneSidedConfig = ONE_SIDED_CIFAR10) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train while multipliers and slacks walk to the saddle."""
        config, n = self.config, model.n_classes
        multiplier = torch.full((n,), config.price, device=run.device)
        slack = torch.full((n,), config.slack, device=run.device)
        with run.seeds.borrowed("auxiliary"):
            auxiliary = nn.Linear(model.n_features, n)
        model.add_module("auxiliary", auxiliary.to(next(model.head.parameters())))

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            network = cast(Classifier, model)
            features = network.features(batch.x)
            missed, entered = one_sided_losses(network.head(features), batch.y, run)
            program = missed + multiplier.clone() * (entered - slack) + config.price * slack
            walk(multiplier, slack, run.sum(entered.detach()) / run.world, config)
            every = cross_entropy(cast(nn.Linear, network.auxiliary)(features), batch.y)
            return (config.alpha * program.sum() + (1 - config.alpha) * every) / n

        order = shuffled(len(data.train), run.seeds.child("train"))
        stage = Stage("train", memory={"multiplier": multiplier, "slack": slack}, static=True)
        minimise(model, run.loader(data.train, order), objective, run, stage)
        del model.auxiliary
        return model


def one_sided_losses(logits: Tensor, y: Tensor, run: Run | None = None) -> tuple[Tensor, Tensor]:
    r"""Return :math:`L_k`, what class k misses, and :math:`\Omega_k`, what enters it wrongly, for every class.

    Example:
        >>> logits = torch.tensor([[0.5, 0.5], [0.8, 0.2]]).log()
        >>> missed, entered = one_sided_losses(logits, torch.tensor([0, 1]))
        >>> missed.exp(), entered.exp()  # 1 / 0.5 and 1 / 0.2; 1 / (1 - 0.8) and 1 / (1 - 0.5)
        (tensor([2., 5.]), tensor([5., 2.]))
    """
    log_f = logits.log_softmax(dim=1)
    mine = y[:, None] == torch.arange(logits.shape[1], device=y.device)
    return _class_means(-log_f, mine, run), _class_means(-log_rest(log_f), ~mine, run)


def log_rest(log_f: Tensor) -> Tensor:
    """Return ``log(1 - f)`` from ``log f``, the logarithms of probabilities, without rounding to ``log 0``.

    Only the largest probability of a row can be near 1, and what is left of it is the sum of the others.
    """
    top = log_f.argmax(dim=1, keepdim=True) == torch.arange(log_f.shape[1], device=log_f.device)
    others = log_f.masked_fill(top, -torch.inf)
    return torch.where(top, others.logsumexp(dim=1, keepdim=True), torch.log1p(-others.exp()))


def walk(multiplier: Tensor, slack: Tensor, entered: Tensor, config: OneSidedConfig) -> None:
    """Take one step of ascent in the multipliers and one of descent in the slacks, in place; neither goes below 0."""
    up = (multiplier + config.ascent * (entered - slack)).clamp(min=0)
    down = (slack - config.descent * (config.price - multiplier)).clamp(min=0)
    multiplier.copy_(up)
    slack.copy_(down)


def _class_means(losses: Tensor, where: Tensor, run: Run | None) -> Tensor:
    """Return the mean of every column over the rows where it counts; with several processes, over the whole batch."""
    total, count = (losses * where).sum(dim=0), where.sum(dim=0)
    if run is None or run.world == 1:
        return total / count.clamp(min=1)
    return total * run.world / run.sum(count).clamp(min=1)
