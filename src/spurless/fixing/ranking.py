"""Ranking: how well a repaired model does on examples that nothing has learnt from, without any attribute.

The average hides what a shortcut does, and groups are what a user without attributes does not have. Repairs are ranked
by the accuracy of the *worst class*: of the criteria that need no attribute, the one that Yang et al. 2023 found the
best for choosing models under subpopulation shift. To be taken, a repair has to raise it, or the balanced accuracy by
more than the worst class falls, or the worst *inferred* group: a label, and whether an example is of the suspected
minority of the old model, see :mod:`spurless.auditing.suspects`. Groups are inferred once, from the old model: a method
that moved its own suspects could not be compared with another.
Where no label has ``LEAST`` suspects, those of all labels are one group; where all labels together have fewer, none is.
Suspects are chosen for unexpected labels, so that wrong labels are among them, and a method may do well on those and
nowhere else: the inferred group may let a repair in, but ranks nothing.

Selection must not use the test split, or the number reported there would be that of the luckiest model; nor group
labels, or a method would only win where they exist. Where they do, the accuracy of the worst true group stands beside
the criterion, as the oracle. A group of fewer than ``LEAST`` examples has no accuracy worth the name; beside larger
ones such groups are one together, since it is they who break the shortcut; too few for that, and no group is judged.

Yang, Zhang, Katabi and Ghassemi, "Change is Hard: A Closer Look at Subpopulation Shift", ICML 2023, arXiv:2302.12254.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.auditing.subject import look
from spurless.auditing.suspects import LEAST, suspicion
from spurless.core.groups import Groups
from spurless.core.repairs import Attempt, Measure, Score
from spurless.data.grouped import Grouped
from spurless.metrics.groupwise import GroupTable, group_table
from spurless.metrics.intervals import wilson
from spurless.models.classifier import Classifier
from spurless.train.evaluate import predict
from spurless.train.run import Run

SUSPECTED = ("not suspected", "suspected")


@dataclass(frozen=True, eq=False)
class Judge:
    """Examples to judge by, and who of them the old model suspects."""

    split: Grouped
    suspected: Tensor

    def score(self, model: Classifier, run: Run) -> Score:
        """Return how a model does on them; it comes back on the CPU."""
        pred = predict(model.to(run.device), self.split, run.device, run.workers).cpu()
        model.to("cpu")
        return self.of(pred)

    def of(self, pred: Tensor) -> Score:
        """Return how these predicted labels do."""
        y, a, groups = self.split.y.cpu(), self.split.a.cpu(), self.split.groups
        inferred = group_table(pred, y, self.suspected.long(), Groups(groups.labels, SUSPECTED))
        known = bool(groups.attributes) and self.split.has_attributes
        return Score(
            _measure(inferred.hits, inferred.n),
            _mean(inferred.class_correct, inferred.class_count),
            _lowest(inferred.class_correct, inferred.class_count, groups.labels),
            _inferred(inferred),
            _worst(group_table(pred, y, a, groups)) if known else None,
        )


def judge_by(model: Classifier, split: Grouped, run: Run) -> Judge:
    """Let the old model say who is suspected."""
    found = Judge(split, suspicion(look(model.to(run.device), split, run)).suspected)
    model.to("cpu")
    return found


def ranked(tried: list[Attempt], *, blind: bool = True) -> tuple[Attempt, ...]:
    """Return attempts by what they are worth, the best first; what failed last."""
    return tuple(sorted(tried, key=lambda attempt: worth(attempt, blind), reverse=True))


def worth(attempt: Attempt, blind: bool) -> tuple[float, float]:
    """Return the criterion, which looks at no attribute, or else what a repair has to raise; then the average."""
    score = attempt.score
    if score is None:
        return -1.0, -1.0
    aim = score.criterion.value if blind else next(iter(score.aims.values()))
    return aim, score.average.value


def _inferred(table: GroupTable) -> Measure | None:
    """Return the worst of the inferred groups, if enough are suspected to make one."""
    correct, count = (part.reshape(-1, len(SUSPECTED)) for part in (table.correct, table.count))
    if bool((count[:, 1] >= LEAST).any()):
        return _lowest(table.correct, table.count, table.groups.names, LEAST)
    correct, count = correct.sum(dim=0), count.sum(dim=0)
    return _lowest(correct, count, SUSPECTED) if int(count[1]) >= LEAST else None


def _worst(table: GroupTable) -> Measure | None:
    """Return the worst group that is large enough, if there is one; beside it, those that are not count as one.

    None where they are too few even together: a worst group that leaves somebody out says less than the worst class.
    """
    small = (table.count > 0) & (table.count < LEAST)
    rest = int(table.count[small].sum())
    if not bool((table.count >= LEAST).any()) or 0 < rest < LEAST:
        return None
    parts = (table.correct, table.count)
    correct, count = (torch.cat([part, torch.where(small, part, 0).sum()[None]]) for part in parts)
    return _lowest(correct, count, (*table.groups.names, f"{int(small.sum())} small groups"), LEAST)


def _lowest(correct: Tensor, count: Tensor, names: Sequence[str], least: int = 1) -> Measure:
    accuracy = torch.where(count >= least, correct.double() / count, torch.inf)
    g = int(accuracy.argmin())
    return _measure(int(correct[g]), int(count[g]), names[g])


def _mean(correct: Tensor, count: Tensor) -> Measure:
    """Return the mean over classes; its interval is that of Zou and Donner, from those of the classes.

    "Construction of confidence limits about effect measures", Statistics in Medicine 2008.
    """
    correct, count = correct[count > 0], count[count > 0]
    each, (low, high) = correct.double() / count, wilson(correct, count)
    under, over = (float((bound - each).norm()) / len(each) for bound in (low, high))
    value = float(each.mean())
    return Measure(value, value - under, value + over, int(count.sum()))


def _measure(correct: int, count: int, of: str = "") -> Measure:
    low, high = (float(bound) for bound in wilson(correct, count))
    return Measure(correct / count, low, high, count, of)
