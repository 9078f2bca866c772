"""Run repair methods on copies of the old model within a time budget, and compare the results with it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

import torch

from spurless.core.errors import DataChangedError, SpurlessError, SpurlessWarning
from spurless.core.progress import Progress
from spurless.core.records import Record
from spurless.core.repairs import Attempt, Change, Choice, RepairScore
from spurless.data.input_masks import InputMask, join_masks
from spurless.data.split import Split, Splits
from spurless.data.transplants import Transplant
from spurless.fitting import evaluate_given
from spurless.fitting.protocol import Fitted, Protocol, fit_with_protocol
from spurless.fixing.acceptance import judge_repair, make_group_target, measure_change
from spurless.fixing.choose import get_choice_info, trains_network
from spurless.fixing.holdout import Holdout
from spurless.fixing.scores import HeldOutExamples, Outputs, has_groups
from spurless.fixing.typical_groups import group_by_properties
from spurless.methods import make_method, method_named
from spurless.models.classifier import Classifier
from spurless.models.initial_weights import reset_parameters
from spurless.train.evaluate import predict
from spurless.train.run import Run

REFITTED = (
    "This method was judged after training on half of the validation examples; this model was trained with the same "
    "settings on all of them."
)
TIMED_EXAMPLES = 256  # examples whose forward pass is timed
INFERRED_NOTE = (
    "No attribute is given, so groups are inferred: a label, with the class of which the followed property is typical."
)


@dataclass(frozen=True, eq=False)
class RepairTrials:
    """A model to repair, the data, and the settings that all attempts share."""

    old: Classifier
    holdout: Holdout
    examples: HeldOutExamples  # the examples that decide
    protocol: Protocol
    run: Run
    tolerance: float  # largest accepted fall of the accuracy with groups or their substitutes weighted alike
    budget: float = inf
    """minutes after which no method that trains the whole network is started, nor one that takes twice as long alone"""
    flagged: tuple[Transplant, ...] = ()  # properties from which groups are inferred for choices that need them
    old_outputs: Outputs = field(init=False)
    old_score: RepairScore = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "old_outputs", self.examples.compute_outputs(self.old, self.run))
        object.__setattr__(self, "old_score", self.examples.score(self.old_outputs))

    @property
    def reported_data(self) -> Splits:
        """The splits for test results: grouped by a word only if the test split has no attributes."""
        whole = self.holdout.whole
        return whole if self.holdout.word is not None and whole.test.has_attributes else self.holdout.data

    def score(self, model: Classifier) -> RepairScore:
        """Return the accuracies of a model on the held-out examples; the model is moved to the CPU."""
        return self.examples.score(self.examples.compute_outputs(model, self.run))

    def run_all(
        self, choices: Sequence[Choice], *, ignore_attributes: bool = False, strict: bool = False
    ) -> tuple[list[Attempt], Classifier | None]:
        """Run methods, and return all attempts and the best acceptable model, if any; of a tie, the first.

        Args:
            choices: the methods to run, in this order; those that train the whole network only within the budget.
            ignore_attributes: rank by the criterion, which needs no attributes, instead of the first target.
            strict: raise the error of a method that fails, instead of recording it.
        """
        attempts: list[Attempt] = []
        best, best_model, begin = -1, None, time.monotonic()
        for number, choice in enumerate(choices, start=1):
            minutes = (time.monotonic() - begin) / 60
            if trains_network(choice) and (minutes >= self.budget or self._takes_too_long(choice)):
                attempts.append(Attempt(choice, "not tried", 0.0))
                continue
            stage = self._name_stage(choice, number, len(choices), minutes)
            attempt, model = self._run_one(choice, stage, len(choices), strict=strict)
            attempts.append(attempt)
            if attempt.outcome != "passed over":
                continue
            if best < 0 or _rank_key(attempt, ignore_attributes) > _rank_key(attempts[best], ignore_attributes):
                best, best_model = len(attempts) - 1, model
        if best >= 0:
            attempts[best] = replace(attempts[best], outcome="taken")
            if ignore_attributes:
                attempts[best] = _explain_rank(attempts[best], sum(a.score is not None for a in attempts))
        return attempts, best_model

    def refit(self, taken: Attempt, judged: Classifier) -> tuple[Classifier, Record | None, bool]:
        """Train an accepted method on all of validation, with the same settings.

        Returns:
            The model, its record, and whether it was trained again; the judged model and its record if the method does
            not learn from validation, or if the new model is worse than the old one by the target.
        """
        if not self.holdout.is_split or not get_choice_info(taken.choice).val_labels:
            return judged, taken.record, False
        try:
            fitted = self._fit(taken.choice, f"{taken.choice.display_name} on all of validation", full=True)
        except SpurlessError:
            return judged, taken.record, False
        target = next(iter(self.old_score.targets)) if taken.change is None else taken.change.target
        score = self.score(fitted.model)
        if target not in score.targets or score.targets[target].value < self.old_score.targets[target].value:
            return judged, taken.record, False
        record = self._make_record(taken.choice, fitted)
        return fitted.model, replace(record, warnings=(*record.warnings, REFITTED)), True

    def measure_on_test(self, new: Classifier) -> Change | None:
        """Return the change of the worst group of the test split, or of the mean over small groups; None without any.

        It decides nothing but the words of the summary.
        """
        split, run = self.reported_data.test, self.run
        if not has_groups(split):
            return None
        examples = HeldOutExamples(split, torch.zeros(len(split), dtype=torch.bool))
        before, after = (examples.compute_outputs(model, run) for model in (self.old, new))
        target = make_group_target(split)
        accuracies = [examples.score(outputs).targets[target.name] for outputs in (before, after)]
        return measure_change(target, before, after, accuracies=(accuracies[0], accuracies[1]))

    def _run_one(
        self, choice: Choice, stage: str, comparisons: int, *, strict: bool
    ) -> tuple[Attempt, Classifier | None]:
        """Run one method; its warnings are in its record."""
        begin = time.perf_counter()
        try:
            fitted = self._fit(choice, stage)
        except SpurlessError as error:
            if strict or isinstance(error, DataChangedError):
                raise
            return Attempt(choice, "failed", time.perf_counter() - begin, error=str(error)), None
        outputs = self.examples.compute_outputs(fitted.model, self.run)
        result = judge_repair(self.examples, self.old_outputs, outputs, self.tolerance, comparisons)
        attempt = Attempt(
            choice,
            result.outcome,
            time.perf_counter() - begin,
            self.examples.score(outputs),
            self._make_record(choice, fitted),
            change=result.change,
            cost=result.cost,
        )
        return attempt, fitted.model

    def _fit(self, choice: Choice, stage: str, *, full: bool = False) -> Fitted:
        """Run a method on the half of validation that does not decide, or on all of it."""
        protocol = replace(self.protocol, progress=_rename_stage(self.protocol.progress, stage))
        seeds, data = self.run.seeds, self.holdout.full if full else self.holdout.data
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SpurlessWarning)
            method = make_method(choice.method, choice.preset, **choice.options)
            if choice.infers_groups:
                data = group_by_properties(data, self.flagged, seeds)
            if choice.hides_regions:
                data = replace(data, train=hide_regions(data.train, self.flagged))
            model = reset_parameters(self.old, seeds.generator("fix", "restart")) if choice.restart else self.old
            return fit_with_protocol(protocol, method, model, data, seeds.seed)

    def _make_record(self, choice: Choice, fitted: Fitted) -> Record:
        """Return the record of a run; if groups are not those of the data, it states that no attributes were given."""
        record, note = fitted.record, INFERRED_NOTE if choice.infers_groups else self.holdout.word_note
        if not note:
            return record
        compute = self.protocol.compute
        report = evaluate_given(record.method, fitted.model, self.reported_data, seed=record.seed, compute=compute)
        return replace(
            record,
            data=report.data,
            groups=report.groups,
            metrics=report.metrics,
            supervision={**record.supervision, "train_attributes": False, "val_attributes": False},
            warnings=(*record.warnings, note),
        )

    def _takes_too_long(self, choice: Choice) -> bool:
        """Return whether a method alone is estimated to take more than twice the budget."""
        return self.budget < inf and self.estimate_minutes(choice) > 2 * self.budget

    def estimate_minutes(self, choice: Choice) -> float:
        """Return how long a method that trains the whole network takes, roughly: from the time of a forward pass.

        A step takes about as long as three forward passes of its batch; a method that restarts trains two networks.
        """
        config, train = make_method(choice.method, choice.preset, **choice.options).config, self.protocol.train
        n_steps, batch_size = getattr(config, "steps", train.steps), getattr(config, "batch_size", train.batch_size)
        epochs = getattr(config, "epochs", train.epochs)
        examples = epochs * len(self.holdout.data.train) if n_steps is None else n_steps * batch_size
        return 3 * examples * (2 if choice.restart else 1) * self._seconds_per_example / 60

    @cached_property
    def _seconds_per_example(self) -> float:
        split = self.holdout.scoring.select(torch.arange(min(len(self.holdout.scoring), TIMED_EXAMPLES)))
        self.old.to(self.run.device)
        begin = time.perf_counter()
        predict(self.old, split, self.run.device, self.run.workers)
        seconds = time.perf_counter() - begin
        self.old.to("cpu")
        return seconds / len(split)

    def _name_stage(self, choice: Choice, number: int, n: int, minutes: float) -> str:
        """Return the name of a method in the progress: of several, its number and the time that was used."""
        if n == 1:
            return choice.method
        used = "" if self.budget == inf else f", {minutes:.1f} of {self.budget:g} minutes"
        return f"candidate {number} of {n}: {choice.display_name}{used}"


def hide_regions(split: Split, transplants: Sequence[Transplant]) -> Split:
    """Return a split with the regions of these properties hidden in every image."""
    regions = [transplant.region for transplant in transplants if transplant.region is not None]
    mask = InputMask.of(torch.stack(regions).any(dim=0)[None])
    return replace(split, hidden=join_masks(split.hidden, replace(mask, bits=mask.bits.repeat(len(split), 1))))


def rank_attempts(attempts: list[Attempt], *, ignore_attributes: bool = True) -> tuple[Attempt, ...]:
    """Return attempts sorted by score, the best first, then failed ones, then those that were not tried."""
    return tuple(sorted(attempts, key=lambda attempt: _rank_key(attempt, ignore_attributes), reverse=True))


def _rank_key(attempt: Attempt, ignore_attributes: bool) -> tuple[float, float]:
    """Return the criterion, or the first target, and then the average."""
    score = attempt.score
    if score is None:
        return (-1.0, -1.0) if attempt.outcome == "failed" else (-2.0, -2.0)
    first = score.criterion if ignore_attributes else next(iter(score.targets.values()))
    return first.value, score.average.value


def _explain_rank(attempt: Attempt, n_run: int) -> Attempt:
    """Replace the reason for a method by its rank among several."""
    best = f"Of {n_run} methods that were run, it is the best without attributes"
    why = best if n_run > 1 else "It is the only method that could be run"
    summary = method_named(attempt.choice.method).info.summary
    return replace(attempt, choice=replace(attempt.choice, why=f"{why}: {summary}."))


def _rename_stage(progress: Progress | None, name: str) -> Progress | None:
    """Report progress with the name of the method as the stage."""
    return progress and (lambda stage, step, total, message: progress(name, step, total, message or stage))
