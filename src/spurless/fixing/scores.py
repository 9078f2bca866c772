"""Score models on the held-out examples that decide: classes, inferred and known groups, and transplants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spurless.auditing._context import compute_context
from spurless.auditing.suspects import find_suspected
from spurless.core.groups import Groups
from spurless.core.repairs import SMALL_GROUP, Accuracy, RepairScore
from spurless.data.split import Split
from spurless.metrics.groupwise import GroupTable, group_table
from spurless.metrics.intervals import wilson_intervals
from spurless.models.classifier import Classifier
from spurless.train.evaluate import predict
from spurless.train.run import Run
from spurless.train.transplant_accuracy import TransplantedExamples

SUSPECTED_VALUES = ("not suspected", "suspected")
MIN_POOL_SIZE = 5  # examples of all small groups together, from which their accuracy is reported
Z = 1.96  # normal quantile of 95 % intervals


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a model predicts on the held-out examples."""

    predicted: Tensor  # labels, ``(N,)``
    transplanted: Mapping[str, Tensor] = field(default_factory=dict)
    """correctness under transplants, ``(donors, M)`` by name of the property"""


@dataclass(frozen=True, eq=False)
class HeldOutExamples:
    """The examples that decide, and what is known of them."""

    split: Split
    suspected: Tensor  # suspected minority examples of the old model, ``(N,)``
    transplanted: TransplantedExamples | None = None  # None if no property is flagged

    @property
    def has_groups(self) -> bool:
        """Whether the group of every example is known."""
        return has_groups(self.split)

    @property
    def inferred_groups(self) -> Groups:
        """Groups of label and suspicion."""
        return Groups(self.split.groups.labels, SUSPECTED_VALUES)

    def compute_outputs(self, model: Classifier, run: Run) -> Outputs:
        """Return the predictions of a model; the model is moved to the CPU."""
        model.to(run.device)
        predicted = predict(model, self.split, run.device, run.workers).cpu()
        part = self.transplanted
        transplanted = {} if part is None else part.compute_correct(model, run.device, run.workers)
        model.to("cpu")
        return Outputs(predicted, transplanted)

    def score(self, outputs: Outputs) -> RepairScore:
        """Return the accuracies of a model."""
        split, predicted = self.split, outputs.predicted
        y, a = split.y.cpu(), split.a.cpu()
        inferred = group_table(predicted, y, self.suspected.long(), self.inferred_groups)
        known = group_table(predicted, y, a, split.groups) if self.has_groups else None
        return RepairScore(
            make_accuracy(inferred.n_correct, inferred.n),
            _average(inferred.class_correct, inferred.class_count),
            _find_lowest(inferred.class_correct, inferred.class_count, split.groups.labels),
            _find_worst_inferred(inferred),
            None if known is None else _find_worst_group(known),
            None if known is None else _average(known.correct, known.count),
            self._score_transplants(outputs),
            known is not None and not pool_small_groups(known.count)[1],
        )

    def _score_transplants(self, outputs: Outputs) -> Accuracy | None:
        """Return the accuracy under the strongest transplant; its interval is that of independent examples."""
        if self.transplanted is None:
            return None
        y = self.transplanted.y
        value, name = self.transplanted.find_lowest(outputs.transplanted)
        values = outputs.transplanted[name].double().mean(dim=0)
        variances = [values[y == label].var(correction=0) / int((y == label).sum()) for label in torch.unique(y)]
        half = Z * float(torch.stack(variances).sum().sqrt()) / len(variances)
        return Accuracy(value, max(0.0, value - half), min(1.0, value + half), len(y), name)


def pool_small_groups(count: Tensor) -> tuple[Tensor, bool]:
    """Return which groups are small, and whether all others and the small ones together have enough examples.

    Example:
        >>> pool_small_groups(torch.tensor([100, 0, 12, 9]))
        (tensor([False, False,  True,  True]), True)
    """
    small = (count > 0) & (count < SMALL_GROUP)
    rest = int(count[small].sum())
    return small, bool((count >= SMALL_GROUP).any()) and not 0 < rest < SMALL_GROUP


def has_groups(split: Split) -> bool:
    """Return whether a split has attributes, and that of every example is known."""
    return bool(split.groups.attributes) and split.has_attributes


def find_holdout_suspects(model: Classifier, split: Split, run: Run) -> Tensor:
    """Return the suspected minority examples of the old model; the model is moved to the CPU."""
    suspected = find_suspected(compute_context(model.to(run.device), split, run)).suspected
    model.to("cpu")
    return suspected


def score_predictions(predicted: Tensor, split: Split, suspected: Tensor) -> RepairScore:
    """Return the accuracies of predictions of a split, without transplants."""
    return HeldOutExamples(split, suspected).score(Outputs(predicted))


def make_accuracy(correct: int, count: int, of: str = "") -> Accuracy:
    """Return an accuracy with its Wilson interval."""
    low, high = (float(bound) for bound in wilson_intervals(correct, count))
    return Accuracy(correct / count, low, high, count, of)


def _find_worst_inferred(table: GroupTable) -> Accuracy | None:
    """Return the worst inferred group; None if there are too few suspected examples."""
    correct, count = (part.reshape(-1, len(SUSPECTED_VALUES)) for part in (table.correct, table.count))
    if bool((count[:, 1] >= SMALL_GROUP).any()):
        return _find_lowest(table.correct, table.count, table.groups.names, SMALL_GROUP)
    correct, count = correct.sum(dim=0), count.sum(dim=0)
    return _find_lowest(correct, count, SUSPECTED_VALUES) if int(count[1]) >= SMALL_GROUP else None


def _find_worst_group(table: GroupTable) -> Accuracy | None:
    """Return the worst group that is large enough, with all smaller groups counted as one.

    None if these are too few even together: a worst group that omits examples is less informative than the worst class.
    """
    small, _ = pool_small_groups(table.count)
    rest = int(table.count[small].sum())
    if not bool((table.count >= SMALL_GROUP).any()) or 0 < rest < MIN_POOL_SIZE:
        return None
    parts = (table.correct, table.count)
    correct, count = (torch.cat([torch.where(small, 0, part), part[small].sum()[None]]) for part in parts)
    return _find_lowest(correct, count, (*table.groups.names, f"{int(small.sum())} small groups"))


def _find_lowest(correct: Tensor, count: Tensor, names: Sequence[str], min_size: int = 1) -> Accuracy:
    accuracy = torch.where(count >= min_size, correct.double() / count, torch.inf)
    g = int(accuracy.argmin())
    return make_accuracy(int(correct[g]), int(count[g]), names[g])


def _average(correct: Tensor, count: Tensor) -> Accuracy:
    """Return the mean over classes or groups, with the interval of Zou and Donner from their intervals.

    "Construction of confidence limits about effect measures", Statistics in Medicine 2008.
    """
    correct, count = correct[count > 0], count[count > 0]
    accuracy, (low, high) = correct.double() / count, wilson_intervals(correct, count)
    below, above = (float((bound - accuracy).norm()) / len(accuracy) for bound in (low, high))
    value = float(accuracy.mean())
    return Accuracy(value, value - below, value + above, int(count.sum()))
