"""Learn which weights to keep while the weights stay fixed, and record what was pruned."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from spurless.core.config import CheckedConfig, Count, Finite, NotNegative, Positive
from spurless.core.errors import InputError, SpurlessWarning
from spurless.data.loader import Loader
from spurless.data.mined import MinedExamples
from spurless.data.split import Batch, Split, Splits
from spurless.methods._config import constant_lr_config
from spurless.metrics.intervals import wilson_intervals
from spurless.models.classifier import Classifier
from spurless.models.pruning.learned_masks import (
    absolute_sum,
    add_learned_masks,
    expected_kept,
    finalize_masks,
    get_mask_logits,
    signed_sum,
)
from spurless.models.pruning.masks import (
    check_prunable,
    get_weight_masks,
    make_permanent,
    named_weight_layers,
    prune,
    sparsity,
)
from spurless.models.pruning.size import layer_sparsity
from spurless.models.wrapping import wrap
from spurless.train.checks import check_trainable
from spurless.train.evaluate import predict
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Objective, Stage

Penalty = Literal["signed", "absolute", "expected"]
PENALTIES: Mapping[Penalty, Callable[[nn.Module], Tensor]] = {
    "signed": signed_sum,
    "absolute": absolute_sum,
    "expected": expected_kept,
}
MIN_PRUNABLE_FRACTION = 0.5  # fraction of prunable weights below which there is a warning
SNAPSHOTS = 10  # number of snapshots while a mask is learned
SNAPSHOT_EXAMPLES = 250  # number of mined examples, and of other examples, whose accuracy is in a snapshot


def check_prunable_model(model: Classifier, _data: Splits) -> None:
    """The ``check`` of methods that prune: raise if weights cannot be masked or trained.

    Recurrent layers and embeddings cannot be masked: warn if they contain most of the weights.
    """
    check_prunable(model)
    check_trainable(model)
    fraction = sum(layer.weight.numel() for _, layer in named_weight_layers(model)) / model.parameters_count
    if fraction < MIN_PRUNABLE_FRACTION:
        warnings.warn(
            f"Only linear and convolutional layers are pruned: they contain {fraction:.0%} of the weights of "
            f"{model.name}.",
            SpurlessWarning,
            stacklevel=2,
        )


def check_resettable(model: Classifier) -> None:
    """Raise before a mask is learned if the initial weights, to which ``reset`` returns, are unknown."""
    if model.trained:
        raise _unknown_initial_weights()


@dataclass(frozen=True)
class MaskSnapshot:
    """The mask after some steps: what it would prune, and the accuracy of the subnetwork on train."""

    step: int
    sparsity: float
    mined: float | None  # accuracy on mined examples; None if there are none
    others: float | None


@dataclass(frozen=True, eq=False)
class Subnetwork:
    """What was pruned, and by which examples."""

    mined: MinedExamples | None  # none if the mask was learned from all examples alike
    sparsity: float
    layers: Mapping[str, float]  # fraction of zeros in every convolution and linear weight
    snapshots: tuple[MaskSnapshot, ...]
    pruned: Classifier | None = None
    """the model after pruning and before retraining, on the CPU; None if no mask was learned"""


@dataclass(frozen=True, kw_only=True)
class MaskTraining(CheckedConfig):
    """How a mask is learned."""

    squashed: bool = True
    init: Finite = 1.5  # of every logit
    tau: Positive = 1.0  # of the soft sample
    penalty: Penalty = "signed"
    sparsity: NotNegative = 1e-8  # lambda_1, the weight of the penalty
    prune_steps: Count = 2000
    prune_lr: Positive = 1e-2  # of Adam
    batch_size: Count = 256


def examples_per_snapshot(steps: int, batch_size: int) -> int:
    """Return how many examples to draw between two snapshots: the length of an epoch if drawn with replacement."""
    return batch_size * max(1, steps // SNAPSHOTS)


def learn_mask(
    model: Classifier, loader: Loader, loss: Objective, config: MaskTraining, run: Run, mined: Tensor | None = None
) -> tuple[MaskSnapshot, ...]:
    """Learn a mask by ``loss`` and the penalty, prune by it in place, and return snapshots of the mask.

    The weights stay fixed. The stage is called "prune"; its last mask is used, without a selection criterion. Warn if
    the subnetwork does not classify the training examples better than the most frequent label.
    """
    train = loader.split
    model.to(run.device)
    add_learned_masks(model, config.init, config.tau, squashed=config.squashed)
    penalty = PENALTIES[config.penalty]

    def objective(network: nn.Module, batch: Batch) -> Tensor:
        return loss(network, batch) + config.sparsity * penalty(model)

    mined = torch.zeros(len(train), dtype=torch.bool) if mined is None else mined.cpu()
    mined_sample, other_sample = _sample(train, mined), _sample(train, ~mined)

    def snapshot(_: nn.Module, __: int) -> dict[str, float | None]:
        logits = torch.cat([logit.detach().flatten() for logit in get_mask_logits(model).values()])
        return {
            "sparsity": float((logits < 0).double().mean()),
            "mined": _accuracy(model, mined_sample, run),
            "others": _accuracy(model, other_sample, run),
        }

    train_config = constant_lr_config(
        run.train,
        steps=config.prune_steps,
        batch_size=config.batch_size,
        optimiser="adam",
        lr=config.prune_lr,
        momentum=0.9,
        beta2=0.999,
        weight_decay=0.0,
        clip=None,
    )
    stage = Stage("prune", train_config, static=True, select=False, watch=snapshot)
    minimise(model, loader, objective, run, stage)
    rows = [row for row in run.history if row["stage"] == stage.name]
    snapshots = tuple(MaskSnapshot(row["step"], row["sparsity"], row["mined"], row["others"]) for row in rows)
    _warn_if_uninformative((mined_sample, other_sample), snapshots[-1])
    finalize_masks(model)
    return snapshots


def _sample(train: Split, which: Tensor) -> Split:
    index = which.nonzero().flatten()
    return train.select(index[:: max(1, -(-len(index) // SNAPSHOT_EXAMPLES))])


def _accuracy(model: Classifier, split: Split, run: Run) -> float | None:
    if not len(split):
        return None
    return float((predict(model, split, run.device, run.workers) == split.y.cpu()).double().mean())


def _warn_if_uninformative(samples: tuple[Split, Split], last: MaskSnapshot) -> None:
    """Warn if the subnetwork is not better than always predicting the most frequent label."""
    y = torch.cat([split.y.cpu() for split in samples])
    accuracies = (last.mined or 0.0, last.others or 0.0)
    correct = round(sum(len(split) * accuracy for split, accuracy in zip(samples, accuracies, strict=True)))
    if float(wilson_intervals(correct, len(y))[0]) > int(y.bincount().max()) / len(y):
        return
    warnings.warn(
        f"The subnetwork predicts {correct} of {len(y)} training examples correctly, not more than the most frequent "
        "label would: the mask was learned from noise. Train without a mask, or keep more weights at first: a larger "
        "init, or squashed=False.",
        SpurlessWarning,
        stacklevel=3,
    )


def reset(model: Classifier, run: Run) -> Classifier:
    """Return the untrained model of this run under the masks of a pruned one; raise if it is unknown."""
    if run.make_untrained is None:
        raise _unknown_initial_weights()
    untrained = wrap(run.make_untrained()).to(run.device)
    prune(untrained, get_weight_masks(model))
    return untrained


def _unknown_initial_weights() -> InputError:
    return InputError(
        "the initial weights are unknown: a trained model was passed",
        hint="Pass an untrained model, or use reset=False. If the given weights are those from which to train, such as "
        "those of ImageNet in your own network, pass wrap(model, trained=False).",
    )


def copy_pruned(model: Classifier) -> Classifier:
    """Return a copy of a pruned model, with its masks made permanent, on the CPU."""
    copy = deepcopy(model).to("cpu")
    make_permanent(copy)
    return copy


def finish_pruning(
    model: Classifier,
    mined: MinedExamples | None,
    snapshots: tuple[MaskSnapshot, ...],
    run: Run,
    pruned: Classifier | None,
) -> Classifier:
    """Make the masks permanent, record the sparsity, and set the run's explanation."""
    make_permanent(model)
    subnetwork = Subnetwork(mined, sparsity(model), layer_sparsity(model), snapshots, pruned)
    run.explain(subnetwork)
    run.add_history({"stage": "subnetwork", "sparsity": subnetwork.sparsity, "layers": dict(subnetwork.layers)})
    return model
