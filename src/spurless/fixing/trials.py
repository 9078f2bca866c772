"""Run repair methods on copies of the old model, and score the results on held-out examples."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from spurless.auditing._context import compute_context
from spurless.auditing.suspects import MIN_GROUP_SIZE, find_suspected
from spurless.core.errors import SpurlessError, SpurlessWarning
from spurless.core.groups import Groups
from spurless.core.progress import Progress
from spurless.core.records import Record
from spurless.core.repairs import ROUNDING_TOLERANCE, Accuracy, Attempt, Choice, Outcome, RepairScore
from spurless.data.split import Split, Splits
from spurless.fitting import evaluate_given
from spurless.fitting.protocol import Fitted, Protocol, fit_with_protocol
from spurless.fixing.holdout import Holdout
from spurless.methods import make_method, method_named
from spurless.metrics.groupwise import GroupTable, group_table
from spurless.metrics.intervals import wilson_intervals
from spurless.models.classifier import Classifier
from spurless.train.evaluate import predict
from spurless.train.run import Run

SUSPECTED_VALUES = ("not suspected", "suspected")


@dataclass(frozen=True, eq=False)
class RepairTrials:
    """A model to repair, the data, and the settings that all attempts share."""

    old: Classifier
    holdout: Holdout
    suspected: Tensor  # held-out examples that are suspected minority examples of the old model, ``(N,)``
    protocol: Protocol
    run: Run
    tolerance: float  # largest accepted loss of average accuracy
    old_score: RepairScore = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "old_score", self.score(self.old))

    @property
    def reported_data(self) -> Splits:
        """The splits for test results: grouped by a word only if the test split has no attributes."""
        whole = self.holdout.whole
        return whole if self.holdout.word is not None and whole.test.has_attributes else self.holdout.data

    def score(self, model: Classifier) -> RepairScore:
        """Return the accuracies of a model on the held-out examples; the model is moved to the CPU."""
        run, split = self.run, self.holdout.scoring
        predicted = predict(model.to(run.device), split, run.device, run.workers).cpu()
        model.to("cpu")
        return score_predictions(predicted, split, self.suspected)

    def run_all(
        self, choices: Sequence[Choice], *, ignore_attributes: bool = False, strict: bool = False
    ) -> tuple[list[Attempt], Classifier | None]:
        """Run methods, and return all attempts and the best acceptable model, if any; of a tie, the first.

        Args:
            choices: the methods to run.
            ignore_attributes: rank by the criterion, which needs no attributes, instead of the first target.
            strict: raise the error of a method that fails, instead of recording it.
        """
        attempts: list[Attempt] = []
        best, best_model = -1, None
        for choice in choices:
            attempt, model = self._run_one(choice, strict=strict)
            attempts.append(attempt)
            if attempt.outcome != "passed over":
                continue
            if best < 0 or _rank_key(attempt, ignore_attributes) > _rank_key(attempts[best], ignore_attributes):
                best, best_model = len(attempts) - 1, model
        if best >= 0:
            attempts[best] = replace(attempts[best], outcome="taken")
            if ignore_attributes:
                attempts[best] = _explain_rank(attempts[best], sum(a.outcome != "failed" for a in attempts))
        return attempts, best_model

    def _run_one(self, choice: Choice, *, strict: bool) -> tuple[Attempt, Classifier | None]:
        """Run one method; its warnings are in its record."""
        begin = time.perf_counter()
        protocol = replace(self.protocol, progress=_rename_stage(self.protocol.progress, choice.method))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SpurlessWarning)
                method = make_method(choice.method, choice.preset, **choice.options)
                fitted = fit_with_protocol(protocol, method, self.old, self.holdout.data, self.run.seeds.seed)
        except SpurlessError as error:
            if strict:
                raise
            return Attempt(choice, "failed", time.perf_counter() - begin, error=str(error)), None
        score = self.score(fitted.model)
        seconds = time.perf_counter() - begin
        return Attempt(choice, self._judge_outcome(score), seconds, score, self._make_record(fitted)), fitted.model

    def _make_record(self, fitted: Fitted) -> Record:
        """Return the record of a run; if groups come from a word, it states that no attributes were given."""
        record = fitted.record
        if self.holdout.word is None:
            return record
        compute = self.protocol.compute
        report = evaluate_given(record.method, fitted.model, self.reported_data, seed=record.seed, compute=compute)
        return replace(
            record,
            data=report.data,
            groups=report.groups,
            metrics=report.metrics,
            supervision={**record.supervision, "train_attributes": False, "val_attributes": False},
            warnings=(*record.warnings, self.holdout.word_note),
        )

    def _judge_outcome(self, score: RepairScore) -> Outcome:
        if score.average.value < self.old_score.average.value - self.tolerance - ROUNDING_TOLERANCE:
            return "too costly"
        return "no better" if score.best_improvement(self.old_score, self.tolerance) is None else "passed over"


def find_holdout_suspects(model: Classifier, split: Split, run: Run) -> Tensor:
    """Return the suspected minority examples of the old model; the model is moved to the CPU."""
    suspected = find_suspected(compute_context(model.to(run.device), split, run)).suspected
    model.to("cpu")
    return suspected


def score_predictions(predicted: Tensor, split: Split, suspected: Tensor) -> RepairScore:
    """Return the accuracies of predictions of a split."""
    y, a, groups = split.y.cpu(), split.a.cpu(), split.groups
    inferred = group_table(predicted, y, suspected.long(), Groups(groups.labels, SUSPECTED_VALUES))
    has_attributes = bool(groups.attributes) and split.has_attributes
    return RepairScore(
        _make_accuracy(inferred.n_correct, inferred.n),
        _average_classes(inferred.class_correct, inferred.class_count),
        _find_lowest(inferred.class_correct, inferred.class_count, groups.labels),
        _find_worst_inferred(inferred),
        _find_worst_group(group_table(predicted, y, a, groups)) if has_attributes else None,
    )


def rank_attempts(attempts: list[Attempt], *, ignore_attributes: bool = True) -> tuple[Attempt, ...]:
    """Return attempts sorted by score, the best first, failed ones last."""
    return tuple(sorted(attempts, key=lambda attempt: _rank_key(attempt, ignore_attributes), reverse=True))


def _rank_key(attempt: Attempt, ignore_attributes: bool) -> tuple[float, float]:
    """Return the criterion, or the first target, and then the average."""
    score = attempt.score
    if score is None:
        return -1.0, -1.0
    first = score.criterion.value if ignore_attributes else next(iter(score.targets.values()))
    return first, score.average.value


def _explain_rank(attempt: Attempt, n_run: int) -> Attempt:
    """Replace the reason for a method by its rank among several."""
    best = f"Of {n_run} methods that were run, it is the best without attributes"
    why = best if n_run > 1 else "It is the only method that could be run"
    summary = method_named(attempt.choice.method).info.summary
    return replace(attempt, choice=replace(attempt.choice, why=f"{why}: {summary}."))


def _rename_stage(progress: Progress | None, name: str) -> Progress | None:
    """Report progress with the name of the method as the stage."""
    return progress and (lambda stage, step, total, message: progress(name, step, total, message or stage))


def _find_worst_inferred(table: GroupTable) -> Accuracy | None:
    """Return the worst inferred group; None if there are too few suspected examples."""
    correct, count = (part.reshape(-1, len(SUSPECTED_VALUES)) for part in (table.correct, table.count))
    if bool((count[:, 1] >= MIN_GROUP_SIZE).any()):
        return _find_lowest(table.correct, table.count, table.groups.names, MIN_GROUP_SIZE)
    correct, count = correct.sum(dim=0), count.sum(dim=0)
    return _find_lowest(correct, count, SUSPECTED_VALUES) if int(count[1]) >= MIN_GROUP_SIZE else None


def _find_worst_group(table: GroupTable) -> Accuracy | None:
    """Return the worst group that is large enough, with all smaller groups counted as one.

    None if these are too few even together: a worst group that omits examples is less informative than the worst class.
    """
    small = (table.count > 0) & (table.count < MIN_GROUP_SIZE)
    rest = int(table.count[small].sum())
    if not bool((table.count >= MIN_GROUP_SIZE).any()) or 0 < rest < MIN_GROUP_SIZE:
        return None
    parts = (table.correct, table.count)
    correct, count = (torch.cat([part, torch.where(small, part, 0).sum()[None]]) for part in parts)
    return _find_lowest(correct, count, (*table.groups.names, f"{int(small.sum())} small groups"), MIN_GROUP_SIZE)


def _find_lowest(correct: Tensor, count: Tensor, names: Sequence[str], min_size: int = 1) -> Accuracy:
    accuracy = torch.where(count >= min_size, correct.double() / count, torch.inf)
    g = int(accuracy.argmin())
    return _make_accuracy(int(correct[g]), int(count[g]), names[g])


def _average_classes(correct: Tensor, count: Tensor) -> Accuracy:
    """Return the mean over classes, with the interval of Zou and Donner from those of the classes.

    "Construction of confidence limits about effect measures", Statistics in Medicine 2008.
    """
    correct, count = correct[count > 0], count[count > 0]
    accuracy, (low, high) = correct.double() / count, wilson_intervals(correct, count)
    below, above = (float((bound - accuracy).norm()) / len(accuracy) for bound in (low, high))
    value = float(accuracy.mean())
    return Accuracy(value, value - below, value + above, int(count.sum()))


def _make_accuracy(correct: int, count: int, of: str = "") -> Accuracy:
    low, high = (float(bound) for bound in wilson_intervals(correct, count))
    return Accuracy(correct / count, low, high, count, of)
