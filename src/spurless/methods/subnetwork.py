"""Subnetwork: learn which weights to keep while all of them stay as they are, and tell what was pruned."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.data.grouped import Batch, Grouped, Splits
from spurless.data.loader import Order
from spurless.data.mined import Mined
from spurless.methods.head_tuning import check_counts, steady
from spurless.metrics.intervals import wilson
from spurless.models.classifier import Classifier
from spurless.models.counting import layer_sparsity
from spurless.models.learned_masks import absolute_sum, expected_kept, learn_masks, mask_logits, settle, signed_sum
from spurless.models.masks import check_prunable, make_permanent, prune, sparsity, weight_layers, weight_masks
from spurless.models.wrapping import wrap
from spurless.train.evaluate import predict
from spurless.train.loop import minimise
from spurless.train.refusing import check_trainable
from spurless.train.run import Run
from spurless.train.step import Objective, Stage
from spurless.train.tracking import apart

Penalty = Literal["signed", "absolute", "expected"]
PENALTIES: Mapping[Penalty, Callable[[nn.Module], Tensor]] = {
    "signed": signed_sum,
    "absolute": absolute_sum,
    "expected": expected_kept,
}
MOST = 0.5
"""share of the weights that can be pruned under which there is a warning"""
LOOKS = 10
"""how often a mask is looked at while it is learned"""
WATCHED = 250
"""of how many mined examples, and of how many others, the accuracy is taken at a look"""


def prunable(model: Classifier, _data: Splits) -> None:
    """The ``check`` of methods that prune: refuse weights that no mask can be put on, or that cannot learn.

    Recurrent layers and tables of words have no masks: where they are most of a model, there is a warning.
    """
    check_prunable(model)
    check_trainable(model)
    share = sum(layer.weight.numel() for _, layer in weight_layers(model)) / model.parameters_count
    if share < MOST:
        warnings.warn(
            f"Linear and convolutional layers alone are pruned: they hold {share:.0%} of the weights of {model.name}.",
            SpurlessWarning,
            stacklevel=2,
        )


def resettable(model: Classifier) -> None:
    """Refuse, before a mask is learned for it, to go back to weights that nobody knows.

    Raises:
        BadInput: the user brought a trained model.
    """
    if model.trained:
        raise _no_way_back()


@dataclass(frozen=True)
class Look:
    """The mask after some steps: what it would prune, and how right the subnetwork would be on train."""

    step: int
    sparsity: float
    mined: float | None
    """accuracy on mined examples; None where there are none"""
    others: float | None


@dataclass(frozen=True, eq=False)
class Subnetwork:
    """What was pruned, and by which examples."""

    mined: Mined | None
    """None where the mask was learned from all examples alike"""
    sparsity: float
    layers: Mapping[str, float]
    """the share of zeros in every convolution and linear weight"""
    looks: tuple[Look, ...]
    pruned: Classifier | None = None
    """the model after pruning and before retraining, on the CPU; None where no mask was learned"""


class _Learning(Protocol):
    """The fields by which a configuration says how a mask is learned."""

    @property
    def squashed(self) -> bool: ...
    @property
    def init(self) -> float: ...
    @property
    def tau(self) -> float: ...
    @property
    def penalty(self) -> Penalty: ...
    @property
    def sparsity(self) -> float: ...
    @property
    def prune_steps(self) -> int: ...
    @property
    def prune_lr(self) -> float: ...
    @property
    def batch_size(self) -> int: ...


def check_learning(config: _Learning, who: str) -> None:
    """Refuse numbers by which no mask can be learned."""
    check_counts(config, who, "prune_steps", "batch_size")
    for name in ("prune_lr", "tau"):
        if not getattr(config, name) > 0:
            raise BadInput(f"{who}'s {name} must be above 0", got=getattr(config, name))
    if not config.sparsity >= 0:
        raise BadInput(f"{who}'s sparsity must not be negative", got=config.sparsity)


def per_look(steps: int, batch_size: int) -> int:
    """Return how many examples to draw between two looks: an epoch, where draws are with replacement."""
    return batch_size * max(1, steps // LOOKS)


def learn_mask(  # noqa: PLR0913 - a stage: what, from what, by what
    model: Classifier,
    train: Grouped,
    order: Order,
    loss: Objective,
    config: _Learning,
    run: Run,
    mined: Tensor | None = None,
) -> tuple[Look, ...]:
    """Learn a mask by ``loss`` and the penalty, prune by it, in place, and return what it was on the way.

    No weight moves, and the last mask is taken: no criterion is asked. The stage is called "prune". There is a warning
    where the subnetwork does not even know the training examples: then it was learned from noise.
    """
    model.to(run.device)
    learn_masks(model, config.init, config.tau, squashed=config.squashed)
    penalty = PENALTIES[config.penalty]

    def objective(network: nn.Module, batch: Batch) -> Tensor:
        return loss(network, batch) + config.sparsity * penalty(model)

    settings = steady(
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
    watch = _Watch(model, train, run, mined)
    aside = replace(run, score=watch, judge=None, history=[], log=apart(run.log, without="score"))
    loader = run.loader(train, order, config.batch_size)
    minimise(model, loader, objective, aside, Stage("prune", settings, watch.memory, static=True))
    looks = watch.looks([row["step"] for row in aside.history])
    for row, look in zip(aside.history, looks, strict=True):
        del row["score"]  # the number of the look
        run.history.append(row | asdict(look))
    watch.warn_if_ignorant(looks[-1])
    settle(model)
    return looks


class _Watch:
    """Notes what the mask is; called in the place of a criterion, since that is when an epoch ends.

    What it returns goes up with every call, so that the last mask is the one that is kept.
    """

    def __init__(self, model: Classifier, train: Grouped, run: Run, mined: Tensor | None) -> None:
        self.model, self.run = model, run
        mined = torch.zeros(len(train), dtype=torch.bool) if mined is None else mined.cpu()
        self.parts = [_some(train, which) for which in (mined, ~mined)]
        self.memory = {
            "seen": torch.zeros((), dtype=torch.long),
            "rows": torch.full((2 * LOOKS + 1, 3), torch.nan),
        }

    def __call__(self, _: nn.Module) -> float:
        logits = torch.cat([each.detach().flatten() for each in mask_logits(self.model).values()])
        right = [self._accuracy(part) for part in self.parts]
        seen = int(self.memory["seen"])
        self.memory["rows"][seen] = torch.tensor([float((logits < 0).double().mean()), *right])
        self.memory["seen"] += 1
        return float(seen)

    def looks(self, steps: list[int]) -> tuple[Look, ...]:
        """Return what was noted, with the number of steps of each."""
        rows: list[list[Any]] = self.memory["rows"][: len(steps)].tolist()
        return tuple(
            Look(step, share, *(None if part != part else part for part in right))
            for step, (share, *right) in zip(steps, rows, strict=True)
        )

    def warn_if_ignorant(self, last: Look) -> None:
        """Warn where the subnetwork does no better than the most frequent label said of everybody."""
        parts = [(part.y.cpu(), right) for part, right in zip(self.parts, (last.mined, last.others), strict=True)]
        y = torch.cat([labels for labels, _ in parts])
        right = round(sum(len(labels) * (share or 0.0) for labels, share in parts))
        if float(wilson(right, len(y))[0]) > int(y.bincount().max()) / len(y):
            return
        warnings.warn(
            f"The subnetwork is right on {right} of {len(y)} training examples, no more than by always saying the most "
            "frequent label: the mask was learned from noise. Train without a mask, or let the first draws keep more "
            "weights: a larger init, squashed=False.",
            SpurlessWarning,
            stacklevel=3,
        )

    def _accuracy(self, part: Grouped) -> float:
        if not len(part):
            return torch.nan
        return float((predict(self.model, part, self.run.device, self.run.workers) == part.y.cpu()).double().mean())


def _some(train: Grouped, which: Tensor) -> Grouped:
    index = which.nonzero().flatten()
    return train.select(index[:: max(1, -(-len(index) // WATCHED))])


def reset(model: Classifier, run: Run) -> Classifier:
    """Return the untrained model of this run under the masks of a pruned one.

    Raises:
        BadInput: the user brought a trained model.
    """
    if run.fresh is None:
        raise _no_way_back()
    untrained = wrap(run.fresh()).to(run.device)
    prune(untrained, weight_masks(model))
    return untrained


def _no_way_back() -> BadInput:
    return BadInput(
        "the initial weights are not known, for the given model was trained elsewhere",
        do="Give an untrained model, or use reset=False.",
    )


def as_pruned(model: Classifier) -> Classifier:
    """Return a copy of a pruned model as it is now, with real zeros, on the CPU."""
    copy = deepcopy(model).to("cpu")
    make_permanent(copy)
    return copy


def finished(
    model: Classifier, mined: Mined | None, looks: tuple[Look, ...], run: Run, pruned: Classifier | None
) -> Classifier:
    """Write the zeros into the weights, and leave with the run what was found."""
    make_permanent(model)
    found = Subnetwork(mined, sparsity(model), layer_sparsity(model), looks, pruned)
    run.explanation = found
    run.note({"stage": "subnetwork", "sparsity": found.sparsity, "layers": dict(found.layers)})
    return model
