"""Repairs: what a fix tried, how each was judged, and what was kept; read by the page, by machines, by notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from spurless.core.findings import Audit
from spurless.core.records import Record

Fate = Literal["taken", "passed over", "no better", "too costly", "failed"]
"""What became of an attempt; see ``FATES``."""
FATES: Mapping[Fate, str] = {
    "taken": "kept",
    "passed over": "good enough, but another is better",
    "no better": "no better than the old model",
    "too costly": "costs more average accuracy than you allow",
    "failed": "cannot be done with these data",
}


INFERRED, BALANCED = "the worst inferred group", "the balanced accuracy"
"""What a repair may raise where attributes are unknown, beside the worst class."""
ROUNDING = 1e-9


@dataclass(frozen=True)
class Choice:
    """A method as it is to be run, and why this one."""

    method: str
    why: str
    """one sentence"""
    preset: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """of the method, over the preset's"""


@dataclass(frozen=True)
class Measure:
    """A share of examples that are right, with its 95 % interval."""

    value: float
    low: float
    high: float
    count: int
    """of examples"""
    of: str = ""
    """which group or class, where there are several"""


@dataclass(frozen=True)
class Score:
    """How a model does on the examples that judge."""

    average: Measure
    balanced: Measure
    """mean accuracy over classes"""
    worst_class: Measure
    inferred: Measure | None = None
    """the worst inferred group: a label, suspected or not; None where nobody is suspected"""
    worst_group: Measure | None = None
    """where attributes are known, and a group is large enough"""

    @property
    def criterion(self) -> Measure:
        """What repairs are ranked by: the worst class; no attribute is needed for it."""
        return self.worst_class

    @property
    def aims(self) -> dict[str, float]:
        """What a repair has to raise, one of these: the worst group where attributes are known; else what stands in."""
        if self.worst_group is not None:
            return {"the worst group": self.worst_group.value}
        inferred = {} if self.inferred is None else {INFERRED: self.inferred.value}
        return {"the worst class": self.worst_class.value, **inferred, BALANCED: self.balanced.value}

    def raised_over(self, old: Score, tolerance: float) -> str | None:
        """Return the aim that rose most over another model, of those that rose by more than they cost; None: none did.

        The cost is what the average falls by, and for what stands in for groups also what the worst class falls by: the
        balanced accuracy must rise by more. An inferred group may be made of wrong labels, so that it counts only where
        the worst class falls by no more than ``tolerance``.
        """
        rises = {aim: self.aims[aim] - before for aim, before in old.aims.items() if aim in self.aims}
        cost = max(0.0, old.average.value - self.average.value)
        lost = old.worst_class.value - self.worst_class.value
        paid = {BALANCED: max(cost, lost), INFERRED: cost if lost <= tolerance + ROUNDING else inf}
        raised = [aim for aim, rise in rises.items() if rise > paid.get(aim, cost)]
        return max(raised, key=lambda aim: rises[aim], default=None)


@dataclass(frozen=True)
class Attempt:
    """One method that was tried on a model."""

    choice: Choice
    fate: Fate
    seconds: float
    score: Score | None = None
    """None where it failed"""
    record: Record | None = None
    """on the test split, which decides nothing"""
    error: str = ""
    """the sentence, where it failed"""


@dataclass(frozen=True)
class Repair:
    """What was found, what was tried, and what came of it."""

    fixed: bool
    """whether a new model was taken"""
    said: tuple[str, ...]
    """what was done and why, a sentence or two each"""
    before: Record
    """the old model on the test split"""
    after: Record
    """the model that is kept on the test split; ``before`` where that is the old one"""
    judged: tuple[Score, Score]
    """the old model and the one that is kept, on the examples that judge"""
    audit_before: Audit
    audit_after: Audit | None = None
    """of the new model, on the same examples; None where the old one was kept"""
    tried: tuple[Attempt, ...] = ()
    """by the criterion, the best first; what failed last"""
    tolerance: float = 0.01
    """how much average accuracy on the judging examples a repair may cost"""
    named: str | None = None
    """the word that an audit named and that stands in for the attribute, where nobody gave one"""

    @property
    def choice(self) -> Choice | None:
        """What was taken; where nothing was, what came first; None where nothing was tried."""
        taken = [attempt for attempt in self.tried if attempt.fate == "taken"]
        return next((attempt.choice for attempt in (*taken, *self.tried)), None)

    @property
    def why(self) -> str:
        """Why this method, in one sentence; empty where nothing was tried."""
        return self.choice.why if self.choice is not None else ""
