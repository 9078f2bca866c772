"""The pruning loop: alternate pruning a few weights by a method's score and training.

The loop is one stage: the optimiser keeps its state, and masks are part of the weights that are saved, selected and
restored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrize

from spurless.core.config import CheckedConfig, Count, CountOrZero, Fraction, InnerFraction, Positive
from spurless.core.errors import InputError
from spurless.data.loader import Loader, shuffled_order
from spurless.data.split import Batch, Splits
from spurless.methods._config import constant_lr_config
from spurless.models.classifier import Classifier
from spurless.models.pruning.masks import get_weight_masks, make_permanent, named_weight_layers, prune, sparsity
from spurless.models.pruning.size import layer_sparsity
from spurless.train.evaluate import predict
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage

Score: TypeAlias = Callable[[Classifier, int], Mapping[str, Tensor]]
"""From the model and the epoch to scores of weights, by layer name: the lowest are pruned first, those with an infinite
score, or without a score, never."""

MAX_ROWS = 100  # number of epochs of the loop in the record; the explanation has all of them
ROUNDING_TOLERANCE = 1e-9  # 0.07 * 100 is slightly above 7


@dataclass(frozen=True)
class PruningConfig(CheckedConfig):
    """How many weights are pruned, when, and which epoch is selected."""

    candidates: Count = 2  # per pruning, with the lowest scores of all layers together; the paper
    probability: Fraction = 0.5  # that a candidate is pruned; the paper. 0: training without pruning
    epochs: Count = 1200  # in all; the paper
    epochs_between: Count = 1  # from one pruning to the next
    start_epoch: CountOrZero = 0  # epochs before the first pruning
    target_sparsity: InnerFraction | None = None
    """fraction of zeros to reach at the last pruning; replaces ``candidates``"""
    schedule: Literal["cubic", "linear"] = "cubic"  # towards the target; cubic prunes most at first
    floor: Fraction = 0.0  # fraction of each layer's weights that is never pruned
    regrow: bool = False  # set weights to zero without a mask, so that they may grow again
    keep: Literal["validated", "last"] = "validated"
    """select the epoch, and so the sparsity, with the highest validation accuracy, or the last one; a criterion that
    the user names replaces both"""
    overfitted: bool = True  # start from a trained model; False: prune while training from scratch
    lr: Positive | None = None  # None: the run's

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start_epoch >= self.epochs:
            raise InputError("pruning's start_epoch must be one of its epochs", got=self.start_epoch)
        if self.target_sparsity is not None and self.probability == 0:
            raise InputError("pruning's target_sparsity needs a probability above 0", got=self.probability)

    @property
    def uses(self) -> Mapping[str, Any]:
        """Validation labels, if they select the epoch; a trained model, unless pruning starts from scratch."""
        return {"val_labels": self.keep == "validated", "start": "trained" if self.overfitted else "scratch"}

    def is_due(self, epoch: int) -> bool:
        """Return whether the epoch (from 0) begins with a pruning."""
        since = epoch - self.start_epoch
        return since >= 0 and since % self.epochs_between == 0

    def target(self, epoch: int) -> float:
        """Return the fraction of zeros to reach in an epoch (from 0).

        Example:
            >>> [PruningConfig(epochs=2, target_sparsity=0.8).target(epoch) for epoch in range(2)]
            [0.7000000000000001, 0.8]
        """
        rounds = 1 + (self.epochs - 1 - self.start_epoch) // self.epochs_between
        progress = (1 + (epoch - self.start_epoch) // self.epochs_between) / rounds
        return (self.target_sparsity or 0.0) * (progress if self.schedule == "linear" else 1 - (1 - progress) ** 3)


@dataclass(frozen=True)
class Pruned:
    """Sparsity and accuracy of every epoch, and the selected epoch."""

    epoch: int  # the selected one, from 1
    sparsity: float  # fraction of zeros among convolution and linear weights of the selected network
    layers: Mapping[str, float]
    curve: tuple[float, ...]  # fraction of zeros after the pruning of every epoch
    train_accuracy: tuple[float, ...]  # of every epoch, on its training batches
    scores: tuple[float, ...]  # the criterion after every epoch; empty without a criterion


def prune_and_train(model: Classifier, data: Splits, run: Run, config: PruningConfig, score: Score) -> Classifier:
    """Alternate pruning by ``score`` and training, and set the run's explanation."""
    model.to(run.device)
    if not config.regrow:
        prune(model, get_weight_masks(model))  # masks must exist before a checkpoint is loaded
    loader = run.loader(data.train, shuffled_order(len(data.train), run.seeds.child("prune")))
    pruner = _Pruner(model, loader, run, config, score)
    changes = {} if config.lr is None else {"lr": config.lr}
    if not config.overfitted:  # the whole training, so the run's schedule and regularisation apply
        names = ("schedule", "warmup_steps", "l1", "asam")
        changes |= {name: getattr(run.train, name) for name in names}
    train_config = constant_lr_config(run.train, epochs=config.epochs, steps=None, **changes)
    prune_run = replace(run, history=[], score=_criterion(data, run, config))
    minimise(model, loader, pruner, prune_run, Stage("prune", train_config, pruner.memory))
    if not config.regrow:
        make_permanent(model)
    result = pruner.result(prune_run.history)
    run.explain(result)
    for row in _thin_history(prune_run.history, result):
        run.add_history(row, track=False)
    return model


def lowest(scores: Mapping[str, Tensor], alive: Mapping[str, Tensor], count: int, floor: float) -> dict[str, Tensor]:
    """Return the indices of the ``count`` lowest scores among nonzero weights, all layers in one ranking.

    ``alive`` are masks of the weights that are not zero, and ``floor`` is the fraction of each layer's weights that is
    never pruned.

    Example:
        >>> scores = {"a": torch.tensor([3.0, 1.0]), "b": torch.tensor([2.0, 9.0])}
        >>> lowest(scores, {"a": torch.tensor([True, True]), "b": torch.tensor([True, True])}, 2, floor=0.0)
        {'a': tensor([1]), 'b': tensor([0])}
    """
    names = [name for name in alive if name in scores]
    if not names or count < 1:
        return {}
    flat = torch.cat([_candidate_scores(scores[name], alive[name], floor) for name in names])
    first = torch.argsort(flat, stable=True)[:count]  # stable, so that ties are broken in the same way everywhere
    first = first[flat[first].isfinite()]
    chosen, begin = {}, 0
    for name in names:
        end = begin + alive[name].numel()
        chosen[name] = first[(first >= begin) & (first < end)] - begin
        begin = end
    return {name: index for name, index in chosen.items() if len(index)}


def _candidate_scores(score: Tensor, alive: Tensor, floor: float) -> Tensor:
    """Return a layer's scores, infinite for zeros, and for the highest scores that the floor protects."""
    flat, alive = score.double().flatten(), alive.flatten()
    flat = torch.where(alive.to(flat.device), flat, math.inf)
    if floor > 0:
        spare = max(0, int(alive.sum()) - math.ceil(floor * alive.numel() - ROUNDING_TOLERANCE))
        flat[torch.argsort(flat, stable=True)[spare:]] = math.inf
    return flat


class _Pruner:
    """The mean loss as an objective; prunes before the first batch of an epoch if a pruning is due."""

    def __init__(self, model: Classifier, loader: Loader, run: Run, config: PruningConfig, score: Score) -> None:
        self.model, self.run, self.config, self.score = model, run, config, score
        self.per_epoch = loader.steps()
        self.layers = dict(named_weight_layers(model))
        self.memory = {
            "step": torch.zeros((), dtype=torch.long),
            "sparsity": torch.zeros(config.epochs, dtype=torch.double),
            "correct": torch.zeros(config.epochs, dtype=torch.double, device=run.device),
            "seen": torch.zeros(config.epochs, dtype=torch.double, device=run.device),
        }

    def __call__(self, network: nn.Module, batch: Batch) -> Tensor:
        epoch, batch_index = divmod(int(self.memory["step"]), self.per_epoch)
        if batch_index == 0:
            if self.config.is_due(epoch) and self.config.probability > 0:
                self._prune(epoch)
            self.memory["sparsity"][epoch] = sparsity(self.model)
        logits: Tensor = network(batch.x)
        self.memory["correct"][epoch] += (logits.detach().argmax(dim=1) == batch.y).sum()
        self.memory["seen"][epoch] += len(batch.y)
        self.memory["step"] += 1
        return cross_entropy(logits, batch.y)

    @torch.no_grad()
    def _prune(self, epoch: int) -> None:
        alive = {name: layer.weight != 0 for name, layer in self.layers.items()}
        count = self._count(epoch, alive)
        if count < 1:
            return
        chosen = lowest(self.score(self.model, epoch), alive, count, self.config.floor)
        generator = self.run.seeds.generator("prune", epoch)
        for name, index in chosen.items():
            is_pruned = torch.rand(len(index), generator=generator) < self.config.probability
            index = index[is_pruned.to(index.device)]
            if len(index):
                self._set_to_zero(name, index.to(alive[name].device), alive[name].shape)

    def _count(self, epoch: int, alive: Mapping[str, Tensor]) -> int:
        """Return the number of candidates."""
        if self.config.target_sparsity is None:
            return self.config.candidates
        total = sum(mask.numel() for mask in alive.values())
        zeros = total - int(sum(int(mask.sum()) for mask in alive.values()))
        return round((self.config.target(epoch) * total - zeros) / self.config.probability)

    def _set_to_zero(self, name: str, index: Tensor, shape: torch.Size) -> None:
        keep = torch.ones(shape.numel(), dtype=torch.bool, device=index.device)
        keep[index] = False
        if not self.config.regrow:
            prune(self.model, {name: keep.view(shape)})
            return
        layer = self.layers[name]
        masked = parametrize.is_parametrized(layer, "weight")
        weight: Tensor = layer.parametrizations.weight.original if masked else layer.weight
        weight[~keep.view(shape)] = 0

    def result(self, history: list[dict[str, Any]]) -> Pruned:
        """Return the explanation of the run."""
        correct, seen = self.run.sum(self.memory["correct"]), self.run.sum(self.memory["seen"])
        scores = tuple(row["score"] for row in history if "score" in row)
        return Pruned(
            epoch=1 + scores.index(max(scores)) if scores else len(history),
            sparsity=sparsity(self.model),
            layers=layer_sparsity(self.model),
            curve=tuple(self.memory["sparsity"].tolist()),
            train_accuracy=tuple((correct / seen.clamp(min=1)).tolist()),
            scores=scores,
        )


def _criterion(data: Splits, run: Run, config: PruningConfig) -> Callable[[nn.Module], float] | None:
    """Return the user's criterion, or the validation accuracy, or None."""
    if run.score is not None or config.keep == "last":
        return run.score
    val = data.val  # not evaluate(), which raises for NaN: the loop raises DivergedError at the next step
    return lambda model: float((predict(model, val, run.device, run.workers) == val.y.cpu()).double().mean())


def _thin_history(history: Iterable[dict[str, Any]], result: Pruned) -> Iterable[dict[str, Any]]:
    """Yield the rows of the record: every n-th epoch, the selected one, and a summary."""
    interval = max(1, len(result.curve) // MAX_ROWS)
    for row in history:
        epoch = row["epoch"]
        if epoch % interval == 0 or epoch == result.epoch:
            yield row | {"sparsity": result.curve[epoch - 1], "train_accuracy": result.train_accuracy[epoch - 1]}
    yield {"stage": "pruned", "epoch": result.epoch, "sparsity": result.sparsity, "layers": dict(result.layers)}
