r"""SELF: tune the last layer on the few examples where the trained model and a less trained one disagree most.

LaBonte, Muthukumar and Kumar, "Towards Last-layer Retraining for Group Robustness with Fewer Annotations", NeurIPS
2023, arXiv:2309.08534, selective last-layer finetuning. With the trained model f and a regularised one g, the
examples of held-out data with the largest

.. math:: \frac{1}{K} \sum_{k=1}^K g_k(x) \log \frac{g_k(x)}{f_k(x)}

are kept, n of them, and the head goes on from the trained one on class-balanced batches of these. The regularised
model is one of an earlier time of the same training (``early``), or the trained one with dropout on what the head reads
(``dropout``); ``mistakes`` keeps the n examples of largest loss instead. To choose takes no label unless by mistakes;
to tune takes the labels of the n chosen examples. No group label is used.

Half of validation is chosen from, the other half is left to the criterion.

Deviations:
    * The criterion reads all of validation, the half that is chosen from too: it is the same for every method here.
    * The early model is trained again from the untrained one, with the same order of examples. Under a schedule that
      depends on the length of training (cosine, linear, one-cycle) it is the end of a shorter schedule, not a point on
      the longer one.
    * Dropout is on the features only, and the backbone is in eval mode; the authors put the whole network in train
      mode, whose batch normalisation then disagrees as well.
    * Halves are drawn with the same share of every class, and the features of the chosen are computed once, without
      augmentation. The authors' starting model is trained on class-balanced batches; here it is the user's, or ERM's.
    * ``momentum`` is 0 for SGD: the authors' code sets 0.9 where PyTorch does not read it.
    * n, rate and time of the early model are those of the authors' demonstration on Waterbirds. They search n in
      20, 100 and 500, the time in 10, 20 and 50 % of training, dropout in 0.5, 0.7 and 0.9 and the rate in 1e-4 to
      1e-2 (texts: 1e-6 to 1e-4) by the worst group of validation; the other presets are points of that grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.errors import BadInput
from spurless.data.grouped import Grouped, Splits
from spurless.data.loader import balanced, in_order
from spurless.methods.base import Info
from spurless.methods.head_tuning import (
    check_classes,
    check_counts,
    halves,
    head_to_tune,
    judged_on,
    put_head,
    settings_of,
    trained_again,
    tune_head,
)
from spurless.models.classifier import Classifier
from spurless.train.config import Optimiser, TrainConfig
from spurless.train.embed import embedded
from spurless.train.evaluate import logits
from spurless.train.run import Run


@dataclass(frozen=True)
class SelfConfig:
    """Which examples are kept, and how long the head is tuned on them."""

    disagreement: Literal["early", "dropout", "mistakes"] = "early"
    n: int = 500  # finetune_num_data
    early: float = 0.5  # share of the training after which the early model is taken; early_stop_num
    dropout: float = 0.5  # share of the features; dropout_prob
    epochs: int = 10  # of 25 batches: finetune_steps 250
    batches: int = 25  # per epoch
    batch_size: int = 32
    optimiser: Optimiser = "sgd"
    lr: float = 1e-2  # finetune_lr
    momentum: float = 0.0
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        check_counts(self, "SELF", "n", "epochs", "batches", "batch_size")
        for name in ("early", "dropout"):
            if not 0 < getattr(self, name) < 1:
                raise BadInput(f"SELF's {name} must be a share, between 0 and 1", got=getattr(self, name))


SELF_WATERBIRDS = SelfConfig()
SELF_CELEBA = SelfConfig(batch_size=100)
SELF_TEXT = SelfConfig(epochs=20, batch_size=16, optimiser="adamw", lr=1e-5, momentum=0.9)


@dataclass(frozen=True)
class Chosen:
    """Which examples of the validation split the head was tuned on, and how much the two models disagree there."""

    index: Tensor
    disagreement: Tensor


class Self:
    """Ask for no attribute: where two models disagree stands in for the minority."""

    info: ClassVar[Info] = Info(
        "self",
        "LaBonte et al. 2023",
        "tune the last layer where the trained model and a less trained one disagree most",
        val_labels=True,
        start="trained",
    )
    presets: ClassVar[Mapping[str, SelfConfig]] = {
        "waterbirds": SELF_WATERBIRDS,
        "celeba": SELF_CELEBA,
        "civilcomments": SELF_TEXT,
        "multinli": SELF_TEXT,
    }

    def __init__(self, config: SelfConfig = SELF_WATERBIRDS) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Choose, then tune a copy of the head on the chosen."""
        config, head = self.config, head_to_tune(model, "SELF").to(run.device)
        half = halves(data.val.y, run.seeds)[1]
        if config.n > len(half):
            raise BadInput(
                "SELF chooses n examples of one half of the validation split, and it has fewer",
                expected=f"n of at most {len(half)}",
                got=config.n,
                do="Set n lower, or use a larger validation split.",
            )
        val = embedded(model, data.val, run)
        score = self._disagreement(head, data, val.select(half), half, run)
        best = score.sort(descending=True, stable=True).indices[: config.n]
        run.explanation = Chosen(half[best], score[best])
        rows = val.select(half[best])
        check_classes(rows, "SELF", "Choose more (a larger n) of data with every class.")
        order = balanced(rows.y, run.seeds.child("tune"), config.batches * config.batch_size)
        settings = replace(settings_of(config, run.train), momentum=config.momentum)
        tune_head(head, rows, order, judged_on(run, val), "tune", settings)
        return put_head(model, head)

    def _disagreement(self, head: nn.Linear, data: Splits, rows: Grouped, half: Tensor, run: Run) -> Tensor:
        """Return how much the regularised model disagrees with the trained one on every example of the half."""
        final = logits(head, rows, run.device).double()
        if self.config.disagreement == "mistakes":
            return cross_entropy(final, rows.y.cpu(), reduction="none")
        if self.config.disagreement == "dropout":
            return divergence(logits(head, dropped(rows, self.config.dropout, run), run.device), final)
        do = "Give an untrained model, or use disagreement='dropout' or 'mistakes'."
        per_epoch = run.loader(data.train, in_order(len(data.train))).steps()
        early = trained_again("early", data, run, shortened(run.train, per_epoch, self.config.early), do)
        return divergence(logits(early, data.val.select(half), run.device, run.workers), final)


def divergence(regularised: Tensor, final: Tensor) -> Tensor:
    """Return the divergence of the trained model from the regularised one, over K, from the logits of both.

    Example:
        >>> sure, torn = torch.tensor([[100.0, 0.0]]), torch.tensor([[0.0, 0.0]])
        >>> divergence(sure, torn)  # log(2) / 2
        tensor([0.3466], dtype=torch.float64)
    """
    p, q = regularised.double().log_softmax(dim=1), final.double().log_softmax(dim=1)
    return (p.exp() * (p - q)).mean(dim=1)


def dropped(rows: Grouped, share: float, run: Run) -> Grouped:
    """Return the features with a share of them set to 0 and the others raised in turn."""
    x = torch.as_tensor(rows.x)
    kept = torch.rand(x.shape, generator=run.seeds.generator("dropout")) >= share
    return replace(rows, x=x * kept / (1 - share))


def shortened(train: TrainConfig, per_epoch: int, share: float) -> TrainConfig:
    """Return the settings of the first part of a training, by how many steps an epoch has."""
    total = train.steps or train.epochs * per_epoch
    return replace(train, steps=max(1, round(share * total)))
