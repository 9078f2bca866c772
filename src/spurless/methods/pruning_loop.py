"""Pruning loop: prune a few weights, train on, prune again; which ones, each method says by a score.

All of it is one stage: the optimiser keeps its moments, and what is pruned is part of the weights that are saved, kept
and restored.
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

from spurless.core.errors import BadInput
from spurless.data.grouped import Batch, Splits
from spurless.data.loader import Loader, shuffled
from spurless.methods.head_tuning import check_counts, steady
from spurless.models.classifier import Classifier
from spurless.models.counting import layer_sparsity
from spurless.models.masks import make_permanent, prune, sparsity, weight_layers, weight_masks
from spurless.train.evaluate import predict
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage

Score: TypeAlias = Callable[[Classifier, int], Mapping[str, Tensor]]
"""From the model and the number of the epoch to a score of weights, by their names: the lowest are pruned first,
and those with an infinite score, or none, never."""

ROWS = 100
"""at most so many epochs of the loop are in the record; the explanation has all of them"""
ROUNDING = 1e-9  # 0.07 * 100 is not 7, and is meant to be


@dataclass(frozen=True)
class PruningConfig:
    """How many weights are pruned, when, and which sparsity is kept."""

    candidates: int = 2  # with the lowest scores of all layers together; the paper
    probability: float = 0.5  # that a candidate is pruned; the paper. 0 trains on without pruning
    epochs: int = 1200  # in all; the paper
    epochs_between: int = 1  # from one pruning to the next
    start_epoch: int = 0  # epochs before the first pruning
    target_sparsity: float | None = None
    """prune so many that this share of zeros is reached at the last pruning, whatever ``candidates`` says"""
    schedule: Literal["cubic", "linear"] = "cubic"  # towards the target; cubic prunes most at first
    floor: float = 0.0  # share of each layer's weights that is never pruned
    regrow: bool = False  # zero the weights only; False: what is pruned stays pruned
    keep: Literal["validated", "last"] = "validated"
    """the epoch, and with it the sparsity, that is most often right on validation, or the last; a criterion that
    the user names takes the place of both"""
    overfitted: bool = True  # begin with a trained model; False: train the given one, and prune on the way
    lr: float | None = None  # None: that of the run

    def __post_init__(self) -> None:
        check_counts(self, "pruning", "candidates", "epochs", "epochs_between")
        if not 0 <= self.probability <= 1:
            raise BadInput("pruning's probability must lie between 0 and 1", got=self.probability)
        if not 0 <= self.start_epoch < self.epochs:
            raise BadInput("pruning's start_epoch must be one of its epochs", got=self.start_epoch)
        if not 0 <= self.floor <= 1:
            raise BadInput("pruning's floor is a share of a layer's weights", expected="0 to 1", got=self.floor)
        if self.target_sparsity is not None and not (0 < self.target_sparsity < 1 and self.probability > 0):
            raise BadInput(
                "pruning's target_sparsity is a share of the weights, and needs a probability above 0",
                expected="above 0, under 1",
                got=(self.target_sparsity, self.probability),
            )

    @property
    def uses(self) -> Mapping[str, Any]:
        """The labels of validation, where they choose the sparsity; a trained model, unless it trains one itself."""
        return {
            "val_labels": self.keep == "validated",
            "start": "trained" if self.overfitted else "scratch",
        }

    def is_due(self, epoch: int) -> bool:
        """Return whether epoch ``epoch``, from 0, begins with a pruning."""
        since = epoch - self.start_epoch
        return since >= 0 and since % self.epochs_between == 0

    def target(self, epoch: int) -> float:
        """Return the share of zeros to reach in epoch ``epoch``, from 0.

        Example:
            >>> [PruningConfig(epochs=2, target_sparsity=0.8).target(epoch) for epoch in range(2)]
            [0.7000000000000001, 0.8]
        """
        rounds = 1 + (self.epochs - 1 - self.start_epoch) // self.epochs_between
        walked = (1 + (epoch - self.start_epoch) // self.epochs_between) / rounds
        return (self.target_sparsity or 0.0) * (walked if self.schedule == "linear" else 1 - (1 - walked) ** 3)


@dataclass(frozen=True)
class Pruned:
    """How sparse the network was on the way, and which epoch was kept."""

    epoch: int
    """the one that was kept, from 1"""
    sparsity: float
    """of the network that was kept: the share of zeros among convolution and linear weights"""
    layers: Mapping[str, float]
    curve: tuple[float, ...]
    """the share of zeros after the pruning of every epoch"""
    train_accuracy: tuple[float, ...]
    """of every epoch, on the batches as they were trained on"""
    scores: tuple[float, ...]
    """what the criterion said after every epoch; empty where none was asked"""


def prune_and_train(model: Classifier, data: Splits, run: Run, config: PruningConfig, score: Score) -> Classifier:
    """Prune by ``score`` and train on the data as they are, by turns; leave with the run how it went."""
    model.to(run.device)
    if not config.regrow:
        prune(model, weight_masks(model))  # from the start on, so that a stage that is loaded finds them
    loader = run.loader(data.train, shuffled(len(data.train), run.seeds.child("prune")))
    pruner = _Pruner(model, loader, run, config, score)
    changes = {} if config.lr is None else {"lr": config.lr}
    if not config.overfitted:  # it is the whole training, so that the rate may fall and all else is as the user says
        plain = ("schedule", "warmup_steps", "l1", "asam")
        changes |= {name: getattr(run.train, name) for name in plain}
    settings = steady(run.train, epochs=config.epochs, steps=None, **changes)
    aside = replace(run, history=[], score=_criterion(data, run, config))
    minimise(model, loader, pruner, aside, Stage("prune", settings, pruner.memory))
    if not config.regrow:
        make_permanent(model)
    run.explanation = found = pruner.found(aside.history)
    run.history.extend(_rows(aside.history, found))
    return model


def lowest(scores: Mapping[str, Tensor], alive: Mapping[str, Tensor], count: int, floor: float) -> dict[str, Tensor]:
    """Return the places of the ``count`` lowest scores among the weights that are alive, all layers in one ranking.

    Args:
        scores: by name; infinite, or no entry, for what must not be pruned.
        alive: the weights that are not zero yet.
        count: how many, or fewer where there are not so many.
        floor: the share of each layer's weights that stays whatever their scores.

    Example:
        >>> scores = {"a": torch.tensor([3.0, 1.0]), "b": torch.tensor([2.0, 9.0])}
        >>> lowest(scores, {"a": torch.tensor([True, True]), "b": torch.tensor([True, True])}, 2, floor=0.0)
        {'a': tensor([1]), 'b': tensor([0])}
    """
    names = [name for name in alive if name in scores]
    if not names or count < 1:
        return {}
    flat = torch.cat([_open(scores[name], alive[name], floor) for name in names])
    first = torch.argsort(flat, stable=True)[:count]  # stable: of equal scores, the same on every machine
    first = first[flat[first].isfinite()]
    chosen, begin = {}, 0
    for name in names:
        end = begin + alive[name].numel()
        chosen[name] = first[(first >= begin) & (first < end)] - begin
        begin = end
    return {name: index for name, index in chosen.items() if len(index)}


def _open(score: Tensor, alive: Tensor, floor: float) -> Tensor:
    """Return a layer's scores, infinite for what is not alive, and for the highest where the floor would be cut."""
    flat, alive = score.double().flatten(), alive.flatten()
    flat = torch.where(alive.to(flat.device), flat, math.inf)
    if floor > 0:
        spare = max(0, int(alive.sum()) - math.ceil(floor * alive.numel() - ROUNDING))
        flat[torch.argsort(flat, stable=True)[spare:]] = math.inf
    return flat


class _Pruner:
    """The mean loss, with a pruning before the first batch of an epoch that is due for one."""

    def __init__(self, model: Classifier, loader: Loader, run: Run, config: PruningConfig, score: Score) -> None:
        self.model, self.run, self.config, self.score = model, run, config, score
        self.per_epoch = loader.steps()
        self.layers = dict(weight_layers(model))
        self.memory = {
            "step": torch.zeros((), dtype=torch.long),
            "sparsity": torch.zeros(config.epochs, dtype=torch.double),
            "right": torch.zeros(config.epochs, dtype=torch.double, device=run.device),
            "seen": torch.zeros(config.epochs, dtype=torch.double, device=run.device),
        }

    def __call__(self, network: nn.Module, batch: Batch) -> Tensor:
        epoch, within = divmod(int(self.memory["step"]), self.per_epoch)
        if within == 0:
            if self.config.is_due(epoch) and self.config.probability > 0:
                self._prune(epoch)
            self.memory["sparsity"][epoch] = sparsity(self.model)
        logits: Tensor = network(batch.x)
        self.memory["right"][epoch] += (logits.detach().argmax(dim=1) == batch.y).sum()
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
        draw = self.run.seeds.generator("prune", epoch)
        for name, index in chosen.items():
            falls = torch.rand(len(index), generator=draw) < self.config.probability
            index = index[falls.to(index.device)]
            if len(index):
                self._drop(name, index.to(alive[name].device), alive[name].shape)

    def _count(self, epoch: int, alive: Mapping[str, Tensor]) -> int:
        """Return how many candidates there are to be."""
        if self.config.target_sparsity is None:
            return self.config.candidates
        total = sum(each.numel() for each in alive.values())
        zeros = total - int(sum(int(each.sum()) for each in alive.values()))
        return round((self.config.target(epoch) * total - zeros) / self.config.probability)

    def _drop(self, name: str, index: Tensor, shape: torch.Size) -> None:
        keep = torch.ones(shape.numel(), dtype=torch.bool, device=index.device)
        keep[index] = False
        if not self.config.regrow:
            prune(self.model, {name: keep.view(shape)})
            return
        layer = self.layers[name]
        masked = parametrize.is_parametrized(layer, "weight")
        weight: Tensor = layer.parametrizations.weight.original if masked else layer.weight
        weight[~keep.view(shape)] = 0

    def found(self, history: list[dict[str, Any]]) -> Pruned:
        """Return how it went."""
        right, seen = self.run.sum(self.memory["right"]), self.run.sum(self.memory["seen"])
        scores = tuple(row["score"] for row in history if "score" in row)
        return Pruned(
            epoch=1 + scores.index(max(scores)) if scores else len(history),
            sparsity=sparsity(self.model),
            layers=layer_sparsity(self.model),
            curve=tuple(self.memory["sparsity"].tolist()),
            train_accuracy=tuple((right / seen.clamp(min=1)).tolist()),
            scores=scores,
        )


def _criterion(data: Splits, run: Run, config: PruningConfig) -> Callable[[nn.Module], float] | None:
    """Return the user's criterion, or the average on validation, or none."""
    if run.score is not None or config.keep == "last":
        return run.score
    val = data.val  # not evaluate, which refuses what is no number: the loop does so at the next step, by its name
    return lambda model: float((predict(model, val, run.device, run.workers) == val.y.cpu()).double().mean())


def _rows(history: Iterable[dict[str, Any]], found: Pruned) -> Iterable[dict[str, Any]]:
    """Return the rows of the record: some epochs, the kept one among them, and what was found."""
    every = max(1, len(found.curve) // ROWS)
    for row in history:
        epoch = row["epoch"]
        if epoch % every == 0 or epoch == found.epoch:
            yield row | {"sparsity": found.curve[epoch - 1], "train_accuracy": found.train_accuracy[epoch - 1]}
    yield {"stage": "pruned", "epoch": found.epoch, "sparsity": found.sparsity, "layers": dict(found.layers)}
