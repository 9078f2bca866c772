"""Results of a repair: the methods that were tried, their scores on held-out examples, and the outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from spurless.core.findings import Audit
from spurless.core.records import Record

Outcome = Literal["taken", "passed over", "no better", "too costly", "failed"]
"""The result of an attempt; ``OUTCOMES`` describes each."""
OUTCOMES: Mapping[Outcome, str] = {
    "taken": "kept",
    "passed over": "good enough, but another is better",
    "no better": "no better than the old model",
    "too costly": "costs more average accuracy than you allow",
    "failed": "not possible with these data",
}

INFERRED_GROUP, BALANCED_ACCURACY = "the worst inferred group", "the balanced accuracy"
"""Targets of a repair without attributes, in addition to the worst class."""
ROUNDING_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Choice:
    """A method with its settings, and the reason for choosing it."""

    method: str
    why: str  # one sentence
    preset: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # options of the method that override the preset
    title: str = ""  # display name of the method

    @property
    def display_name(self) -> str:
        """Return the title of the method; its name if there is none."""
        return self.title or self.method


@dataclass(frozen=True)
class Accuracy:
    """An accuracy with its 95 % interval."""

    value: float
    low: float
    high: float
    count: int  # number of examples
    of: str = ""  # the group or class, if there are several


@dataclass(frozen=True)
class RepairScore:
    """Accuracies of a model on the held-out examples that decide."""

    average: Accuracy
    balanced: Accuracy  # mean accuracy over classes
    worst_class: Accuracy
    inferred: Accuracy | None = None
    """the worst inferred group (a label, suspected minority or not); None if no example is suspected"""
    worst_group: Accuracy | None = None  # None if attributes are unknown or groups are too small

    @property
    def criterion(self) -> Accuracy:
        """The accuracy that ranks repairs: that of the worst class, which needs no attributes."""
        return self.worst_class

    @property
    def targets(self) -> dict[str, float]:
        """Accuracies of which a repair must improve one: the worst group, or its substitutes without attributes."""
        if self.worst_group is not None:
            return {"the worst group": self.worst_group.value}
        inferred = {} if self.inferred is None else {INFERRED_GROUP: self.inferred.value}
        return {"the worst class": self.worst_class.value, **inferred, BALANCED_ACCURACY: self.balanced.value}

    def best_improvement(self, old: RepairScore, tolerance: float) -> str | None:
        """Return the target with the largest gain over another model, among those that gain more than they cost.

        The cost is the loss of average accuracy; for the balanced accuracy, the loss of the worst class if that is
        larger. Wrong labels can form an inferred group, so it only counts if the worst class loses at most
        ``tolerance``. None if no target is improved.
        """
        gains = {name: self.targets[name] - before for name, before in old.targets.items() if name in self.targets}
        cost = max(0.0, old.average.value - self.average.value)
        class_loss = old.worst_class.value - self.worst_class.value
        costs = {
            BALANCED_ACCURACY: max(cost, class_loss),
            INFERRED_GROUP: cost if class_loss <= tolerance + ROUNDING_TOLERANCE else inf,
        }
        improved = [name for name, gain in gains.items() if gain > costs.get(name, cost)]
        return max(improved, key=lambda name: gains[name], default=None)


@dataclass(frozen=True)
class Attempt:
    """One method that was tried on a model."""

    choice: Choice
    outcome: Outcome
    seconds: float
    score: RepairScore | None = None  # None if it failed
    record: Record | None = None  # results on the test split, which decide nothing
    error: str = ""  # the error message, if it failed


@dataclass(frozen=True)
class Repair:
    """The audit of a model, the methods that were tried, and the outcome."""

    fixed: bool  # whether a new model was kept
    summary: tuple[str, ...]  # what was done and why, in sentences, the outcome first
    before: Record  # the old model on the test split
    after: Record  # the resulting model on the test split; ``before`` if the old model was kept
    holdout_scores: tuple[RepairScore, RepairScore]
    """scores of the old and of the resulting model on the held-out examples that decide"""
    audit_before: Audit
    audit_after: Audit | None = None
    """audit of the new model on the same examples; None if the old model was kept"""
    attempts: tuple[Attempt, ...] = ()  # all attempts, the best first, failed ones last
    tolerance: float = 0.01  # largest accepted loss of average accuracy on the held-out examples
    word: str | None = None
    """the word that the audit found and that is used as the attribute; None if attributes were given or none is used"""

    @property
    def choice(self) -> Choice | None:
        """The method that was kept; else the best attempt; None if no method was tried."""
        taken = [attempt for attempt in self.attempts if attempt.outcome == "taken"]
        return next((attempt.choice for attempt in (*taken, *self.attempts)), None)

    @property
    def why(self) -> str:
        """The reason for the choice in one sentence; empty if no method was tried."""
        return self.choice.why if self.choice is not None else ""
