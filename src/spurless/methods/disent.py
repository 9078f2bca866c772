r"""DisEnt: separate intrinsic from bias features, then swap the bias features between examples.

Lee, Kim, Lee, Lee and Choo, "Learning Debiased Representation via Disentangled Feature Augmentation", NeurIPS 2021,
arXiv:2107.01372.

Two encoders compute the features :math:`z = [z_i; z_b]`, and two linear heads read all of them. The bias encoder and
head are trained with the generalised cross-entropy, the intrinsic ones with the weights W of LfF; gradients of one side
do not reach the encoder of the other:

.. math:: L_{dis} = W(z) \, \ell(C_i(z), y) + \lambda_{dis} \, \mathrm{GCE}_q(C_b(z), y).

After some steps the bias features are permuted within the batch, :math:`\tilde z = [z_i; \tilde z_b]`, which creates
bias-conflicting examples; :math:`\tilde y` are the labels of the permuted bias features:

.. math:: L_{swap} = W(z) \, \ell(C_i(\tilde z), y) + \lambda_{swap_b} \, \mathrm{GCE}_q(C_b(\tilde z), \tilde y),
    \qquad \min \; L_{dis} + \lambda_{swap} L_{swap}.

The model predicts by :math:`C_i(z)`, with each example's own bias features, as the authors' code does.

Deviations:
    * Both encoders start from the weights of the given model, and both heads are new: the given head reads half as many
      features. The authors initialise everything.
    * The learning rate follows the schedule of the run; the authors' decay begins with the swapping.
    * The authors' network for Colored MNIST divides images in [0, 1] by 255 again, as LfF's; ``mlp`` does so with
      ``divisor=255``.
    * The authors report the best accuracy on the test split; here the epoch is selected on validation, or is the last.
    * With several processes each permutes its own part of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.config import CheckedConfig, CountOrZero, FractionBelowOne, NotNegative, PositiveFraction
from spurless.data.loader import shuffled_order
from spurless.data.split import Batch, Splits
from spurless.methods.base import ConfiguredMethod, Info
from spurless.methods.lff import LossHistory
from spurless.models.classifier import Classifier, extract_tensor, insert_head
from spurless.train.loop import minimise
from spurless.train.losses import generalised_cross_entropy
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class DisEntConfig(CheckedConfig):
    """When features are swapped, and the weights of the loss terms."""

    swap_after: CountOrZero = 10_000  # steps; --curr_step
    swap: NotNegative = 1.0  # lambda_swap; --lambda_swap
    bias: NotNegative = 10.0  # lambda_dis; --lambda_dis_align
    swap_bias: NotNegative = 10.0  # lambda_swap_b; --lambda_swap_align
    q: PositiveFraction = 0.7  # of the generalised cross-entropy
    decay: FractionBelowOne = 0.7  # of the moving averages; --ema_alpha


class DisEnt(ConfiguredMethod[DisEntConfig]):
    """Swap bias features between the examples of a batch; no attributes."""

    info = Info(
        "disent",
        "Lee et al. 2021",
        "separate intrinsic from bias features, and swap the bias features between examples",
        title="DisEnt",
    )
    presets: ClassVar[Mapping[str, DisEntConfig]] = {
        # For the embedded digit datasets and runs of hundreds of steps: as colored-mnist, with the better
        # of 100 and 300 steps on the validation split of colored-digits, five seeds.
        "digits": DisEntConfig(swap_after=100),
        "colored-mnist": DisEntConfig(),
        # In the history of DCWP's code, for its Table 1: with pooled-cnn and the recipe colored-mnist-disent-dcwp.
        "colored-mnist-dcwp": DisEntConfig(bias=1.0, swap_bias=1.0),
        # With 1 and 2 % conflicting examples; with 0.5 and 5 % the authors set both to 1.
        "corrupted-cifar10": DisEntConfig(bias=5.0, swap_bias=5.0),
        "bffhq": DisEntConfig(swap=0.1, bias=2.0, swap_bias=2.0),
    }

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train two encoders and two heads; return both encoders with the intrinsic head."""
        train, config = data.train, self.config
        with run.seeds.seed_global_rng("heads"):
            network = make_two_encoders(model)
            network.add_module("bias_head", deepcopy(network.head))
            cast(nn.Linear, network.bias_head).reset_parameters()
        losses_so_far = LossHistory.of(train, config.decay, run)
        step = torch.zeros((), device=run.device)

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            classifier = cast(Classifier, model)
            order = torch.rand(len(batch), device=run.device).argsort()  # the loop seeds the global generator
            sides = Sides(classifier.features(batch.x), classifier.head, cast(nn.Module, classifier.bias_head))
            losses, biased = sides.intrinsic(batch.y), sides.bias()
            weights = losses_so_far.update(batch, losses, cross_entropy(biased, batch.y, reduction="none"))
            bias_loss = generalised_cross_entropy(biased, batch.y, config.q).mean()
            disentangle = (weights * losses).mean() + config.bias * bias_loss
            swapped = (weights * sides.intrinsic(batch.y, order)).mean()
            swapped_bias = generalised_cross_entropy(sides.bias(order), batch.y[order], config.q).mean()
            is_swapping = step >= config.swap_after  # a tensor, so that the program stays static
            step.add_(1)
            return disentangle + is_swapping * config.swap * (swapped + config.swap_bias * swapped_bias)

        loader = run.loader(train, shuffled_order(len(train), run.seeds.child("train")))
        memory = {**losses_so_far.memory, "step": step}
        minimise(network, loader, objective, run, Stage("train", memory=memory, static=True))
        del network.bias_head
        return network


class Encoders(nn.Module):
    """Two backbones side by side: intrinsic features first, then bias features."""

    def __init__(self, intrinsic: nn.Module, bias: nn.Module) -> None:
        super().__init__()
        self.intrinsic, self.bias = intrinsic, bias

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the features of both, of shape ``(N, 2 d)``."""
        return torch.cat([extract_tensor(part(*args, **kwargs)) for part in (self.intrinsic, self.bias)], dim=1)


@dataclass(frozen=True)
class Sides:
    """The outputs of both heads for a batch, without gradients to the other side's encoder."""

    features: Tensor
    head: nn.Module
    bias_head: nn.Module

    def intrinsic(self, y: Tensor, order: Tensor | None = None) -> Tensor:
        """Return the losses of the intrinsic head; with an order, with permuted bias features."""
        intrinsic, bias = self._halves(order)
        return cross_entropy(self.head(torch.cat([intrinsic, bias.detach()], dim=1)), y, reduction="none")

    def bias(self, order: Tensor | None = None) -> Tensor:
        """Return the logits of the bias head; with an order, with permuted bias features."""
        intrinsic, bias = self._halves(order)
        logits: Tensor = self.bias_head(torch.cat([intrinsic.detach(), bias], dim=1))
        return logits

    def _halves(self, order: Tensor | None) -> tuple[Tensor, Tensor]:
        intrinsic, bias = self.features.chunk(2, dim=1)
        return intrinsic, bias if order is None else bias[order]


def make_two_encoders(model: Classifier) -> Classifier:
    """Return a model with two encoders and a new head; call it before loading weights of such a model.

    Example:
        >>> model = make_two_encoders(Classifier(nn.Flatten(), nn.Linear(4, 3), name="tiny"))
        >>> model.n_features, model.n_classes, model.name
        (8, 3, 'tiny, two encoders')
    """
    encoders = Encoders(model.backbone, deepcopy(model.backbone))
    insert_head(encoders, nn.Identity())  # a wrapped module has a placeholder for its head
    head = nn.Linear(2 * model.n_features, model.n_classes).to(next(model.head.parameters()))
    return Classifier(encoders, head, name=f"{model.name}, two encoders", options=model.options)
