r"""AFR: retrain the last layer with more weight on examples that the trained model predicts badly.

Qiu, Potapczynski, Izmailov and Wilson, "Simple and Fast Group Robustness by Automatic Feature Reweighting", ICML 2023,
arXiv:2306.11074, the second stage of the method. With :math:`\hat p_i` the probability that the trained model gives
the label of example i, :math:`n_y` the number of examples of class y, and :math:`W_0` the trained head,

.. math:: w_i \propto \frac{1}{n_{y_i}} e^{-\gamma \hat p_i}, \quad \sum_i w_i = 1, \qquad
    \min_W \sum_i w_i \, \ell(W f(x_i), y_i) + \lambda \lVert W - W_0 \rVert^2,

by gradient steps on all examples at once; the bias is part of W. The weights never change. No group label is used.

Deviations:
    * The paper trains the model on 80 % of train and weights the other 20 %: ``on="held-out"``, which trains the
      untrained model again and so needs one. A model that is already trained has seen all of train: the default weights
      the validation split, and uses its labels. There a small ``gamma`` is enough: at 10 an incorrect prediction
      outweighs a correct one by up to e^10, and the model learns the opposite of its shortcut. So the first preset is
      that of CelebA: worst group 76.7 % against 23.0 % with that of Waterbirds, on features of Waterbirds rebuilt (5
      seeds, benchmarks/last_layer.py: a test number).
    * The criterion that selects the step is computed after every ``every`` steps, the authors' after each; with
      ``on="val"`` it is computed on the examples that the head is tuned on.
    * ``gamma`` and ``strength`` are those of one command in the authors' README; for their tables they search both by
      the worst group of validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.config import CheckedConfig, Count, InnerFraction, NotNegative, Positive
from spurless.data.split import Batch, Split, Splits
from spurless.methods._config import constant_lr_config
from spurless.methods._head import (
    check_classes,
    copy_head,
    features_to_tune_on,
    linear_head,
    replace_head,
    score_on_val,
    train_again,
)
from spurless.methods.base import ConfiguredMethod, Info
from spurless.models.classifier import Classifier
from spurless.train.embed import embed_split
from spurless.train.evaluate import logits
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class AFRConfig(CheckedConfig):
    """How examples are weighted, and how far the head may move."""

    gamma: NotNegative = 10.0  # --gamma
    strength: NotNegative = 0.0  # lambda; --reg_coeff
    on: Literal["val", "held-out", "train"] = "val"
    """examples to tune on: validation; a fraction of train that the model is trained without; or all of train"""
    held_out: InnerFraction = 0.2  # of train; --train_prop
    class_balanced: bool = True  # balance_classes; without it 1 / n_y is left out
    lr: Positive = 0.01  # --init_lr
    steps: Count = 500  # --num_epochs; an epoch is one step
    clip: Positive = 1.0  # largest norm of the gradient; --grad_norm
    every: Count = 10  # steps between two evaluations of the criterion

    @property
    def uses(self) -> Mapping[str, bool]:
        """Validation labels, if the head is tuned on validation."""
        return {"val_labels": self.on == "val"}


class AFR(ConfiguredMethod[AFRConfig]):
    """Retrain the last layer with weights from the trained model's predictions; no attributes."""

    info = Info(
        "afr",
        "Qiu et al. 2023",
        "retrain the last layer with more weight on examples that the trained model predicts badly",
        val_labels=True,
        start="trained",
        title="AFR",
        fix="fast",
    )
    presets: ClassVar[Mapping[str, AFRConfig]] = {
        "celeba": AFRConfig(gamma=1.44, strength=0.001, lr=0.02, steps=1000),
        "waterbirds": AFRConfig(),
    }

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Compute the weights once, then tune a copy of the head on all examples at every step."""
        config = self.config
        linear_head(model, "AFR")  # raises before anything is trained
        if config.on == "held-out":
            model, features, run = self._held_out(data, run)
        else:
            features, run = features_to_tune_on(config.on, model, data, run)
        check_classes(features, "AFR")
        head = copy_head(model, "AFR").to(run.device)
        before = logits(head, features, run.device)
        weights = afr_weights(before, features.y, config.gamma, class_balanced=config.class_balanced)
        tune_weighted_head(head, features, weights, config, run)
        return replace_head(model, head)

    def _held_out(self, data: Splits, run: Run) -> tuple[Classifier, Split, Run]:
        """Return a model trained on a part of train, the features of the rest, and the run with its criterion."""
        train, cut = data.train, max(1, round(len(data.train) * self.config.held_out))
        order = torch.randperm(len(train), generator=run.seeds.generator("held out"))
        held_out, rest = order[:cut], order[cut:]
        hint = "Pass an untrained model, or use on='val'."
        model = train_again("erm without the held out", replace(data, train=train.select(rest)), run, run.train, hint)
        return model, embed_split(model, train.select(held_out), run), score_on_val(run, model, data.val)


def afr_weights(logits: Tensor, y: Tensor, gamma: float, *, class_balanced: bool = True) -> Tensor:
    """Return the weight of every example; the weights sum to 1.

    Example:
        >>> sure = torch.tensor([[20.0, 0.0], [0.0, 20.0]])  # correct, then incorrect
        >>> afr_weights(sure, torch.tensor([0, 0]), gamma=2.0)  # exp(-2) to 1
        tensor([0.1192, 0.8808])
    """
    p = logits.double().softmax(dim=1).gather(1, y.cpu()[:, None]).squeeze(1)
    weights = torch.exp(-gamma * (p - p.min()))  # relative to the smallest p: else all would be 0 for a large gamma
    if class_balanced:
        weights = weights / torch.bincount(y.cpu())[y.cpu()]
    return (weights / weights.sum()).float()


def tune_weighted_head(head: nn.Linear, features: Split, weights: Tensor, config: AFRConfig, run: Run) -> None:
    """Minimise the weighted loss plus the squared distance to the initial head, in place."""
    start = [parameter.detach().clone() for parameter in head.parameters()]
    weights = weights.to(run.device)

    def objective(tuned: nn.Module, batch: Batch) -> Tensor:
        losses = cross_entropy(tuned(batch.x), batch.y, reduction="none")
        distance = torch.stack([(p - q).square().sum() for p, q in zip(head.parameters(), start, strict=True)]).sum()
        # every process has a part of the sum, and gradients are averaged over processes
        return run.world * (weights[batch.index] @ losses) + config.strength * distance

    n = len(features) // run.world * run.world
    train_config = constant_lr_config(
        run.train, steps=config.steps, optimiser="sgd", lr=config.lr, momentum=0.0, weight_decay=0.0, clip=config.clip
    )
    loader = run.loader(features, lambda _: torch.arange(n).repeat(min(config.every, config.steps)), n)
    minimise(head, loader, objective, run, Stage("tune", train_config, static=True))
