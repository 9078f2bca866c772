"""Repair a trained model that relies on a shortcut, or keep the old model if no repair is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Literal

from torch import nn

from spurless.auditing import AUDITS, swapped_backgrounds
from spurless.auditing import audit as audit_model
from spurless.auditing.transplants import flagged_properties
from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError, UnknownNameError
from spurless.core.findings import Audit
from spurless.core.progress import Progress
from spurless.core.repairs import Attempt, Choice, Repair
from spurless.core.seeds import Seeds
from spurless.data.loaders.objects import as_splits
from spurless.data.split import Split, Splits
from spurless.data.transplants import Transplant, list_transplants
from spurless.data.words import load_spelling
from spurless.fitting import evaluate_given
from spurless.fitting.checks import check_labels
from spurless.fitting.protocol import Protocol
from spurless.fixing.choose import (
    RepairContext,
    choose,
    compute_repair_context,
    get_choice_info,
    list_applicable,
    make_choice,
)
from spurless.fixing.holdout import group_by_word, split_validation
from spurless.fixing.scores import HeldOutExamples, find_holdout_suspects
from spurless.fixing.summary import OPTIMISTIC_AUDIT, summarize
from spurless.fixing.trials import RepairTrials, rank_attempts
from spurless.methods import method_named
from spurless.models.classifier import Classifier
from spurless.models.initial_weights import reset_parameters
from spurless.models.wrapping import wrap
from spurless.reporting import fix_html
from spurless.train.config import TrainConfig
from spurless.train.recipes import make_train_config
from spurless.train.run import Compute, limit_threads, make_run
from spurless.train.selection import get_criterion
from spurless.train.transplant_accuracy import transplant_examples

Tries = Literal["repairs", "all"]
"""``repairs``: every method that repairs a trained model quickly; ``all``: also those that train the whole network."""
LAST_EPOCH = get_criterion("last")
BUDGET = 5.0  # minutes after which a default repair starts no method that trains the whole network


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class Fixed(Repair):
    """A repair with its model; a notebook shows it as a short page."""

    model: Classifier  # the new model, or the old one if that was kept

    def __repr__(self) -> str:
        return f"Fixed({self.summary[0]!r})"

    def _repr_html_(self) -> str:
        return fix_html(self)


def fix(  # noqa: PLR0913 - public API
    model: nn.Module,
    data: Splits | Any,
    *,
    method: str | None = None,
    preset: str | None = None,
    options: Mapping[str, Any] | None = None,
    tries: Tries | str | Sequence[str] = (),
    properties: Sequence[str] | None = None,
    tolerance: float = 0.01,
    budget: float | None = None,
    audit: Audit | None = None,
    train: TrainConfig | Mapping[str, Any] | str | None = None,
    seed: int = 0,
    compute: Compute | None = None,
    folder: Path | str | None = None,
    progress: Progress | None = None,
) -> Fixed:
    """Repair a trained model that relies on a shortcut; keep the old model if no repair is better.

    The model is audited on validation. Methods may train on one half of validation; the held-out half decides. A new
    model is kept if it improves a target by more than chance explains: the worst group; if attributes are unknown, the
    accuracy under transplants of the properties that the audit flags; if there are none either, the worst class, the
    balanced accuracy or the worst *inferred* group. With groups or their substitutes weighted alike, it may lose at
    most ``tolerance``. See :mod:`spurless.fixing.acceptance`. An accepted method that learns from validation is then
    trained on all of it. The test split is only reported. If nothing is flagged, nothing is done. If the data have no
    attributes and the audit finds a word, groups are defined by the word; see :mod:`spurless.fixing.holdout`.

    Args:
        model: a trained classifier, or any module whose head can be found; it is not changed.
        data: three splits, or data of which they are made: a torch Dataset or DataLoader, a Hugging Face dataset, or
            arrays ``(x, y)``. Methods that declare attributes get them, if they are known.
        method: a name in ``METHODS``, or ``FILE.py:METHOD`` of a custom method; by default those that fit the findings
            and the available labels.
        preset: preset of the method; by default it gets settings for a model that was trained elsewhere.
        options: options of the method that override its settings.
        tries: run several methods and keep the best: ``"repairs"``, ``"all"``, or names of methods.
        properties: names of transplants, such as ``"the frame"``, that the label must not depend on; by default those
            that the audit flags without a doubt. Repairs are judged by the accuracy under them.
        tolerance: largest accepted fall of the accuracy on the held-out half, with groups or their substitutes weighted
            alike; 0.01 is one point.
        budget: minutes after which no method that trains the whole network is started; by default 5 if neither a
            method nor tries are given, and no limit otherwise.
        audit: an audit of this model, if there is one.
        train: settings of the loop or the name of a recipe, as in ``fit``, for methods that train the whole network;
            pass those of your training.
        seed: seed of all randomness.
        compute: device, precision and CPU threads.
        folder: folder for checkpoints; an interrupted repair resumes from them, to the same weights.
        progress: called with stage, step, total and a message.

    Raises:
        InputError: the data are not splits, the model is untrained or at chance level (unless a method is named), or
            the arguments contradict each other.
        MissingAttributesError: the named method needs attributes that the data do not have.
    """
    _check_not_one_split(data)
    check_arguments(fix, locals())
    data = as_splits(data, seed=seed)
    request = _Request(method, preset, options or {}, tries, budget)
    settings = make_train_config(train)
    old = _wrap_trained(model, data, tolerance)
    holdout = split_validation(data, seed)
    path = Path(folder) if folder is not None else None
    protocol = Protocol(settings, compute=compute or Compute(), folder=path, progress=progress)
    run = make_run(protocol.compute, seed, settings)
    with limit_threads(run.threads, all_for_inference=True):
        context = compute_repair_context(old, holdout, settings.batch_size, run)
        named = request.list_named(context)
        for choice in named:
            check_labels(get_choice_info(choice), LAST_EPOCH, holdout.data)
            holdout.check_method(choice.method, get_choice_info(choice))
        before = audit or audit_model(old, holdout.whole, seed=seed, compute=protocol.compute, progress=progress)
        if before.chance_level_reason is not None and not named:
            raise _make_chance_level_error(before.chance_level_reason)
        grouped = None if named else group_by_word(data, before)
        if grouped is not None:
            word, grouped_data = grouped
            holdout = replace(split_validation(grouped_data, seed), whole=data, word=word)
            context = compute_repair_context(old, holdout, settings.batch_size, run)
        flagged = _select_transplants(before, data, properties)
        context = replace(
            context,
            properties=tuple(transplant.name for transplant in flagged),
            can_restart=bool(flagged) and _can_restart(old),
            can_infer_groups=_has_images(data.val) and not context.val_attributes,
            has_regions=bool(flagged) and all(transplant.region is not None for transplant in flagged),
        )
        transplanted = transplant_examples(holdout.scoring, flagged) if flagged else None
        examples = HeldOutExamples(holdout.scoring, find_holdout_suspects(old, holdout.scoring, run), transplanted)
        trials = RepairTrials(old, holdout, examples, protocol, run, tolerance, request.minutes, flagged)
        choices = request.list_named(context) or request.choose(before, context)
        attempts, new = trials.run_all(
            choices, ignore_attributes=request.is_comparison, strict=bool(named) and not request.is_comparison
        )
        return _finish(trials, before, attempts, new, ignore_attributes=request.is_comparison)


def _finish(
    trials: RepairTrials, before: Audit, attempts: list[Attempt], judged: Classifier | None, *, ignore_attributes: bool
) -> Fixed:
    """Train the accepted method on all of validation, and return the repair with its reports."""
    holdout, examples, protocol = trials.holdout, trials.examples, trials.protocol
    seed = trials.run.seeds.seed
    old_record = evaluate_given("before", trials.old, trials.reported_data, seed=seed, compute=protocol.compute)
    taken = next((attempt for attempt in attempts if attempt.outcome == "taken"), None)
    new, record, refitted = trials.old, None, False
    if taken is not None and judged is not None:
        new, record, refitted = trials.refit(taken, judged)
    score = trials.old_score if taken is None or taken.score is None else taken.score
    scores = (trials.old_score, score)
    test_change = None if taken is None else trials.measure_on_test(new)
    return Fixed(
        fixed=taken is not None,
        summary=summarize(
            before,
            attempts,
            scores,
            holdout,
            trials.tolerance,
            ignore_attributes=ignore_attributes,
            test_change=test_change,
            refitted=refitted,
        ),
        before=old_record,
        after=record or old_record,
        holdout_scores=scores,
        audit_before=before,
        audit_after=None if taken is None else _audit_again(new, taken, before, trials),
        attempts=rank_attempts(attempts, ignore_attributes=ignore_attributes),
        tolerance=trials.tolerance,
        word=holdout.word,
        properties=() if examples.transplanted is None else examples.transplanted.names,
        change=None if taken is None else taken.change,
        test_change=test_change,
        refitted=refitted,
        model=new,
    )


def _select_transplants(audit: Audit, data: Splits, names: Sequence[str] | None) -> tuple[Transplant, ...]:
    """Return the named properties; by default those that the audit flags without a doubt, if the examples have them.

    A part of the object may be in a doubtful property. Without it a good model is worse, so the user decides.
    """
    known = list_transplants(data.val, load_spelling(data) if isinstance(data.val.x, dict) else None)
    for name in names or ():
        if name not in known:
            raise UnknownNameError("property", name, tuple(known))
    if names is None:
        names = [name for name in flagged_properties(audit, doubtful=False) if name in known]
    return tuple(known[name] for name in dict.fromkeys(names))


def _has_images(split: Split) -> bool:
    return not isinstance(split.x, dict) and len(split.x[0].shape) == 3


def _can_restart(model: Classifier) -> bool:
    """Return whether a copy of the model can be initialised again."""
    try:
        reset_parameters(model, Seeds().generator("restart"))
    except InputError:
        return False
    return True


@dataclass(frozen=True)
class _Request:
    """The methods that the user requested."""

    method: str | None
    preset: str | None
    options: Mapping[str, Any]
    tries: str | Sequence[str]
    budget: float | None

    def __post_init__(self) -> None:
        if self.method is not None and self.tries:
            raise InputError("method and tries cannot be combined", hint="Pass one of them.")
        if self.method is None and (self.preset is not None or self.options):
            raise InputError("preset and options need a method", hint="Name it: method='afr'.")
        if isinstance(self.tries, str) and self.tries and self.tries not in ("repairs", "all"):
            raise UnknownNameError("set of methods", self.tries, ("repairs", "all"))
        if self.budget is not None and not self.budget >= 0:
            raise InputError("the budget must be a number of minutes", expected="at least 0", got=self.budget)
        for name in self._names:
            method_named(name)

    @property
    def minutes(self) -> float:
        """The minutes after which no method that trains the whole network is started."""
        if self.budget is not None:
            return self.budget
        return inf if self._names or self.tries else BUDGET

    @property
    def is_comparison(self) -> bool:
        """Whether several methods are run and compared."""
        return bool(self.tries)

    @property
    def _names(self) -> Sequence[str]:
        if self.method is not None:
            return [self.method]
        return () if isinstance(self.tries, str) else self.tries

    def list_named(self, context: RepairContext) -> list[Choice]:
        """Return the named methods, which are run whatever the findings are."""
        return [
            make_choice(name, context, f"You chose it: {method_named(name).info.summary}.", self.preset, self.options)
            for name in self._names
        ]

    def choose(self, audit: Audit, context: RepairContext) -> list[Choice]:
        """Return the methods that fit the findings; none if nothing is flagged."""
        choices = choose(audit, context)
        return list_applicable(context, training=self.tries == "all") if choices and self.tries else choices


def _check_not_one_split(data: object) -> None:
    if isinstance(data, Split):
        raise InputError(
            "a repair needs train and validation splits, and one split was given",
            expected="Splits",
            got=type(data).__name__,
            hint="Pass what sp.load, sp.from_folder or sp.from_csv returns.",
        )


def _wrap_trained(model: nn.Module, data: Splits, tolerance: float) -> Classifier:
    """Return the model as a classifier; raise if it cannot be repaired."""
    if not 0 <= tolerance <= 1:
        raise InputError(
            "the tolerance must be a fraction of accuracy", expected="0 to 1; 0.01 is a point", got=tolerance
        )
    classifier = wrap(model, example=data.train.example())
    if not classifier.trained:
        raise InputError(
            "the model is untrained, so there is nothing to repair", hint="Fit 'erm' first, or load weights."
        )
    return classifier


def _make_chance_level_error(reason: str) -> InputError:
    """Return the error for a model at chance level: a better one would be a first training, not a repair."""
    return InputError(
        "the model is not better than guessing, so there is nothing to repair",
        got=reason.rstrip("."),
        hint="Fit 'erm' first, or check that the weights, the order of the classes and the preprocessing of the inputs "
        "are those of its training. Name a method to run it nevertheless.",
    )


def _audit_again(new: Classifier, taken: Attempt, before: Audit, trials: RepairTrials) -> Audit:
    """Run the same audits of the new model on the same examples."""
    names = [f.audit for f in before.findings if f.audit in AUDITS and f.audit != swapped_backgrounds.NAME]
    after = audit_model(
        new,
        trials.holdout.whole,
        only=names,
        seed=trials.run.seeds.seed,
        compute=trials.protocol.compute,
        progress=trials.protocol.progress,
    )
    new.to("cpu")
    is_optimistic = get_choice_info(taken.choice).val_labels
    return replace(after, limits=(*after.limits, OPTIMISTIC_AUDIT)) if is_optimistic else after


__all__ = ["Fixed", "Tries", "fix"]
