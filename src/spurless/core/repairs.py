"""Results of a repair: the methods that were tried, their scores on held-out examples, and the outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from spurless.core.findings import Audit
from spurless.core.records import Record

Outcome = Literal["taken", "passed over", "no better", "too costly", "failed", "not tried"]
"""The result of an attempt; ``OUTCOMES`` describes each."""
OUTCOMES: Mapping[Outcome, str] = {
    "taken": "kept",
    "passed over": "good enough, but another is better",
    "no better": "no better than the old model, or only by chance",
    "too costly": "costs more accuracy than you allow",
    "failed": "not possible with these data",
    "not tried": "not tried: not enough time",
}

Evidence = Literal["groups", "transplants", "validation"]
"""What repairs are judged by:

* ``groups``: the accuracy of groups of label and attribute;
* ``transplants``: the accuracy if the properties that the model follows come from random other examples;
* ``validation``: the accuracy of classes and inferred groups, on data that may be as biased as the training data.
"""

WORST_GROUP, GROUP_MEAN = "the worst group", "the mean over groups"
TRANSPLANTS = "the accuracy under transplants"
WORST_CLASS, INFERRED_GROUP, BALANCED_ACCURACY = "the worst class", "the worst inferred group", "the balanced accuracy"
"""Targets of a repair: of known groups, of flagged properties, and of neither."""
SMALL_GROUP = 20  # examples of a group or class below which its accuracy alone decides nothing
ROUNDING_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Choice:
    """A method with its settings, and the reason for choosing it."""

    method: str
    why: str  # one sentence
    preset: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # options of the method that override the preset
    title: str = ""  # display name of the method
    restart: bool = False  # whether it trains a copy with new initial weights instead of the given weights
    infers_groups: bool = False  # whether it gets groups that are inferred from the followed properties
    hides_regions: bool = False  # whether the followed regions are hidden in its training images

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
    of: str = ""  # the group, class or property, if there are several

    @property
    def is_small(self) -> bool:
        """Whether it is the accuracy of a group or class with few examples."""
        return bool(self.of) and self.count < SMALL_GROUP


@dataclass(frozen=True)
class Change:
    """An accuracy of two models on the same examples, and the interval of the difference."""

    target: str  # what is measured, such as ``WORST_GROUP``
    before: Accuracy
    after: Accuracy
    low: float  # 95 % interval of the difference, from a paired bootstrap over examples
    high: float

    @property
    def difference(self) -> float:
        """The accuracy after minus the accuracy before."""
        return self.after.value - self.before.value

    @property
    def is_improvement(self) -> bool:
        """Whether the accuracy rises by more than chance explains."""
        return self.low > ROUNDING_TOLERANCE


@dataclass(frozen=True)
class RepairScore:
    """Accuracies of a model on the held-out examples that decide."""

    average: Accuracy
    balanced: Accuracy  # mean accuracy over classes
    worst_class: Accuracy
    inferred: Accuracy | None = None
    """the worst inferred group (a label, suspected minority or not); None if too few examples are suspected"""
    worst_group: Accuracy | None = None  # None if attributes are unknown or groups are too small
    group_mean: Accuracy | None = None  # mean over groups, which count alike; None if attributes are unknown
    transplants: Accuracy | None = None
    """the accuracy under the strongest transplant, which is named in ``of``; None if no property is flagged"""
    has_small_groups: bool = False
    """whether groups with fewer than ``SMALL_GROUP`` examples are too small even together to decide"""

    @property
    def evidence(self) -> Evidence:
        """What repairs are judged by."""
        if self.worst_group is not None or self.group_mean is not None:
            return "groups"
        return "transplants" if self.transplants is not None else "validation"

    @property
    def criterion(self) -> Accuracy:
        """The accuracy that ranks repairs without attributes: under transplants, or that of the worst class."""
        return self.worst_class if self.transplants is None else self.transplants

    @property
    def targets(self) -> dict[str, Accuracy]:
        """Accuracies of which a repair must improve one."""
        if self.group_mean is not None and (self.has_small_groups or self.worst_group is None):
            moved = {} if self.transplants is None else {TRANSPLANTS: self.transplants}
            return {**moved, GROUP_MEAN: self.group_mean}
        if self.worst_group is not None:
            return {WORST_GROUP: self.worst_group}
        if self.transplants is not None:
            return {TRANSPLANTS: self.transplants}
        inferred = {} if self.inferred is None else {INFERRED_GROUP: self.inferred}
        return {WORST_CLASS: self.worst_class, **inferred, BALANCED_ACCURACY: self.balanced}


@dataclass(frozen=True)
class Attempt:
    """One method that was tried on a model."""

    choice: Choice
    outcome: Outcome
    seconds: float
    score: RepairScore | None = None  # None if it failed or was not tried
    record: Record | None = None  # results on the test split, which decide nothing
    error: str = ""  # the error message, if it failed
    change: Change | None = None  # the target that rises most, compared with the old model
    cost: Change | None = None  # the accuracy with groups or their substitutes weighted alike, which must not fall


@dataclass(frozen=True)
class Repair:
    """The audit of a model, the methods that were tried, and the outcome."""

    fixed: bool  # whether a new model was kept
    summary: tuple[str, ...]  # what was done and why, in sentences, the outcome first
    before: Record  # the old model on the test split
    after: Record  # the resulting model on the test split; ``before`` if the old model was kept
    holdout_scores: tuple[RepairScore, RepairScore]
    """scores of the old and of the judged model on the held-out examples that decide"""
    audit_before: Audit
    audit_after: Audit | None = None
    """audit of the new model on the same examples; None if the old model was kept"""
    attempts: tuple[Attempt, ...] = ()  # all attempts, the best first, then failed ones and those not tried
    tolerance: float = 0.01  # largest accepted loss of accuracy, with groups or their substitutes weighted alike
    word: str | None = None
    """the word that the audit found and that is used as the attribute; None if attributes were given or none is used"""
    properties: tuple[str, ...] = ()  # the properties that the model follows, by the audit
    change: Change | None = None  # on the held-out examples, of the method that was kept
    test_change: Change | None = None  # of the returned model on the test split; None if test has no groups
    refitted: bool = False
    """whether the judged model learned from half of validation, and the returned one from all of it"""

    @property
    def choice(self) -> Choice | None:
        """The method that was kept; else the best attempt; None if no method was tried."""
        taken = [attempt for attempt in self.attempts if attempt.outcome == "taken"]
        return next((attempt.choice for attempt in (*taken, *self.attempts)), None)

    @property
    def why(self) -> str:
        """The reason for the choice in one sentence; empty if no method was tried."""
        return self.choice.why if self.choice is not None else ""

    @property
    def evidence(self) -> Evidence:
        """What repairs were judged by."""
        return self.holdout_scores[0].evidence

    @property
    def is_confirmed(self) -> bool:
        """Whether the new model is better by more than chance, and not only on data that may be biased."""
        if self.test_change is not None:
            return self.fixed and self.test_change.is_improvement
        return self.fixed and self.evidence != "validation"
