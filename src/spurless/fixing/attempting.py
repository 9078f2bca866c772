"""Attempting: run methods on a copy of the old model, and let the judging examples say which is worth taking."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from spurless.bench.fitting import Fitted, Protocol, evaluate_given, fit_under
from spurless.core.errors import SpurlessError, SpurlessWarning
from spurless.core.progress import Progress
from spurless.core.records import Record
from spurless.core.repairs import ROUNDING, Attempt, Choice, Fate, Score
from spurless.data.grouped import Splits
from spurless.fixing.holding import Held
from spurless.fixing.ranking import Judge, worth
from spurless.methods import make_method, method_named
from spurless.models.classifier import Classifier
from spurless.train.run import Run


@dataclass(frozen=True, eq=False)
class Workshop:
    """A model, what may be learnt from, and who judges."""

    old: Classifier
    held: Held
    judge: Judge
    protocol: Protocol
    run: Run
    tolerance: float
    score: Score = field(init=False)
    """of the old model"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "score", self.judge.score(self.old, self.run))

    @property
    def told(self) -> Splits:
        """The data whose test split is told of: in the groups of a named word only where nobody gave others."""
        whole = self.held.whole
        return whole if self.held.named is not None and whole.test.has_attributes else self.held.data

    def best_of(
        self, choices: Sequence[Choice], *, blind: bool = False, strict: bool = False
    ) -> tuple[list[Attempt], Classifier | None]:
        """Run all of them, and return the attempts, and the best model, if one is to be taken; of a tie, the first.

        Of the models only the best so far is held.

        Args:
            choices: what to run.
            blind: the best by the criterion, which looks at no attribute; else by what a repair has to raise.
            strict: raise the error of a method that cannot be run, in the place of a row.
        """
        tried: list[Attempt] = []
        best, kept = -1, None
        for choice in choices:
            attempt, model = self._attempt(choice, strict=strict)
            tried.append(attempt)
            if attempt.fate == "passed over" and (best < 0 or worth(attempt, blind) > worth(tried[best], blind)):
                best, kept = len(tried) - 1, model
        if best >= 0:
            run = sum(attempt.fate != "failed" for attempt in tried)
            several = f"Of {run} methods that were run it does best without attributes"
            why = several if run > 1 else "It is the only one that could be run"
            tried[best] = _taken(tried[best], why if blind else "")
        return tried, kept

    def _attempt(self, choice: Choice, *, strict: bool) -> tuple[Attempt, Classifier | None]:
        """Run one method; what it refuses is its row, and what it warns of is in its record."""
        begin = time.perf_counter()
        protocol = replace(self.protocol, progress=_named(self.protocol.progress, choice.method))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SpurlessWarning)
                method = make_method(choice.method, choice.preset, **choice.options)
                fitted = fit_under(protocol, method, self.old, self.held.data, self.run.seeds.seed)
        except SpurlessError as error:
            if strict:
                raise
            return Attempt(choice, "failed", time.perf_counter() - begin, error=str(error)), None
        score = self.judge.score(fitted.model, self.run)
        seconds = time.perf_counter() - begin
        return Attempt(choice, self._fate(score), seconds, score, self._recorded(fitted)), fitted.model

    def _recorded(self, fitted: Fitted) -> Record:
        """Return the record of a run; groups that an audit named were given by nobody, and it says so."""
        record, named = fitted.record, self.held.named
        if named is None:
            return record
        told = evaluate_given(record.method, fitted.model, self.told, seed=record.seed, engine=self.protocol.engine)
        return replace(
            record,
            data=told.data,
            groups=told.groups,
            metrics=told.metrics,
            supervision={**record.supervision, "train_attributes": False, "val_attributes": False},
            warnings=(*record.warnings, named.said),
        )

    def _fate(self, score: Score) -> Fate:
        if score.average.value < self.score.average.value - self.tolerance - ROUNDING:
            return "too costly"
        return "no better" if score.raised_over(self.score, self.tolerance) is None else "passed over"


def _taken(attempt: Attempt, why: str = "") -> Attempt:
    """Mark what is kept; where it was one of several, the reason is that it did best."""
    choice = attempt.choice
    summary = method_named(choice.method).info.summary
    return replace(attempt, fate="taken", choice=replace(choice, why=f"{why}: {summary}.") if why else choice)


def _named(progress: Progress | None, name: str) -> Progress | None:
    """Report progress under the name of the method."""
    return progress and (lambda stage, step, total, word: progress(name, step, total, word or stage))
