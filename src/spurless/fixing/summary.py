"""Summarize a repair in sentences: the outcome first, then the reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from spurless.auditing.transplants import flagged_properties
from spurless.core.findings import Audit
from spurless.core.repairs import (
    ROUNDING_TOLERANCE,
    TRANSPLANTS,
    WORST_CLASS,
    WORST_GROUP,
    Accuracy,
    Attempt,
    Change,
    Evidence,
    RepairScore,
)
from spurless.fitting.comparison import HINT as COMPARISON_HINT
from spurless.fixing.holdout import Holdout
from spurless.fixing.trials import REFITTED
from spurless.reporting import summarize_audit
from spurless.reporting.format import format_change, format_percent, format_points, join_words

OPTIMISTIC_AUDIT = (
    "The new model was trained on these examples, so this audit is optimistic; the results on the held-out half and on "
    "the test split are not."
)
NOTHING_FLAGGED = "Nothing is flagged that a repair could improve, so nothing was done."
TRY_MORE = "Try several methods and keep the best, or allow a larger cost."
LABEL_VALIDATION = (
    "Label the attribute of the validation examples, so that DFR can use it and groups can be compared. If validation "
    "is as biased as train, a repair costs average accuracy there."
)
BIASED_DATA = (
    "No group is known and no property can be transplanted, so this is measured on data that may be as biased as the "
    "training data: it may not hold where the shortcut is absent."
)
AVERAGE_FALLS = {
    "groups": "Most of these examples agree with the shortcut, so a model that stops using it has more errors on them; "
    "with groups weighted alike, it is better.",
    "transplants": "Most of these examples may agree with the shortcut, so a model that stops using it has more errors "
    "on them; with the property of random other examples, it has fewer.",
    "validation": "With inferred groups or classes weighted alike, it does not fall by more than you allow.",
}
COST_NAMES: Mapping[Evidence, str] = {
    "groups": "of the accuracy with groups weighted alike",
    "transplants": "of the accuracy under transplants",
    "validation": "of the accuracy with inferred groups or classes weighted alike",
}

Scores = tuple[RepairScore, RepairScore]  # scores of the old and of the judged model


def summarize(  # noqa: PLR0913 - one argument for each part of a repair
    audit: Audit,
    attempts: Sequence[Attempt],
    scores: Scores,
    holdout: Holdout,
    tolerance: float,
    *,
    ignore_attributes: bool = False,
    test_change: Change | None = None,
    refitted: bool = False,
) -> tuple[str, ...]:
    """Return what was done and why, the outcome first.

    Args:
        audit: the audit of the old model.
        attempts: all attempts, in any order.
        scores: scores of the old and of the judged model on the held-out examples.
        holdout: how validation was used.
        tolerance: largest accepted fall of the accuracy with groups or their substitutes weighted alike.
        ignore_attributes: whether methods were ranked without attributes.
        test_change: the change of the groups of the test split.
        refitted: whether the returned model was trained on all of validation.
    """
    verdict = f"Before: {summarize_audit(audit).headline}"
    if not attempts:
        hint = _describe_doubtful(audit) or "Name a method to run it nevertheless."
        return (f"The old model is kept. {NOTHING_FLAGGED}", verdict, hint)
    taken = next((attempt for attempt in attempts if attempt.outcome == "taken"), None)
    main = taken or next((attempt for attempt in attempts if attempt.score is not None), attempts[0])
    if taken is not None:
        outcome = [*_summarize_repair(taken, scores[0].evidence, test_change), *_summarize_average(scores, tolerance)]
    else:
        outcome = [_summarize_failure(attempts, scores[0], tolerance)]
        outcome += [_summarize_targets(scores[0])] if main.score is not None else []
        outcome += [LABEL_VALIDATION] if scores[0].evidence != "groups" else []
    doubtful = _describe_doubtful(audit) if scores[0].evidence == "validation" else ""
    return (
        *outcome,
        verdict,
        *([doubtful] if doubtful else []),
        main.choice.why,
        holdout.description,
        *([REFITTED] if refitted else []),
        *_summarize_ranking(attempts, scores[0], holdout, ignore_attributes=ignore_attributes),
        *_summarize_budget(attempts),
        *_list_warnings(main, holdout),
    )


def describe_change(change: Change) -> str:
    """Describe a change in words.

    Example:
        >>> low, high = Accuracy(3 / 7, 0.2, 0.7, 7, "cow, sand"), Accuracy(0.71, 0.6, 0.8, 100, "camel, grass")
        >>> describe_change(Change("the worst group", low, high, 0.1, 0.4))
        'the worst group rises from 3 of 7 examples to 71.0 % of 100 examples'
    """
    target, before, after = change.target, change.before, change.after
    if target == TRANSPLANTS and before.of == after.of:
        target = f"the accuracy with {after.of} of random other examples"
        before, after = replace(before, of=""), replace(after, of="")
    if change.difference == 0:
        return f"{target} stays at {_format_accuracy(after)}"
    verb = "rises" if change.difference > 0 else "falls"
    return f"{target} {verb} from {_format_accuracy(before)} to {_format_accuracy(after)}"


def _summarize_repair(taken: Attempt, evidence: Evidence, test_change: Change | None) -> list[str]:
    """Return the headline, and what was measured on the held-out examples."""
    name, change = taken.choice.display_name, taken.change
    if change is None:
        return [f"Repaired by {name}."]
    examples = f"{change.after.count:,} held-out validation examples"
    size = f"{format_change(100 * change.difference)} (95 % interval {_format_interval(change)})"
    caveat = [BIASED_DATA] if evidence == "validation" else []
    if test_change is not None:
        return [_summarize_test(name, test_change), f"On {examples}, {describe_change(change)}: {size}.", *caveat]
    verb = "Improved on these validation data" if evidence == "validation" else "Repaired"
    return [f"{verb} by {name}: {describe_change(change)}.", f"Measured on {examples}: {size}.", *caveat]


def _summarize_test(name: str, change: Change) -> str:
    """Return the headline if test has groups; a change that chance may explain is not called a repair."""
    if change.is_improvement:
        return f"Repaired by {name}: on the test split, {describe_change(change)}."
    return (
        f"{name} is kept for the held-out examples, but the test split does not confirm it: {describe_change(change)} "
        f"(95 % interval of the difference {_format_interval(change)})."
    )


def _summarize_average(scores: Scores, tolerance: float) -> list[str]:
    before, after = (score.average for score in scores)
    old, new = format_percent(before.value), format_percent(after.value)
    change = f"stays at {new}" if old == new else f"changes from {old} to {new}"
    sentence = f"The average accuracy of the {after.count:,} held-out examples {change}."
    falls = after.value < before.value - tolerance - ROUNDING_TOLERANCE
    return [f"{sentence} {AVERAGE_FALLS[scores[0].evidence]}" if falls else sentence]


def _summarize_failure(attempts: Sequence[Attempt], before: RepairScore, tolerance: float) -> str:
    """Return why no model was better."""
    completed = [attempt for attempt in attempts if attempt.score is not None]
    if not completed:
        first = next((attempt for attempt in attempts if attempt.error), attempts[0])
        reason = f"{first.choice.display_name}: {first.error}" if first.error else "There was not enough time for any."
        return f"The old model is kept: no method could be run. {reason}"
    if len(completed) > 1:
        return (
            f"The old model is kept: none of {len(completed)} methods improves it beyond chance at a cost of at most "
            f"{format_points(100 * tolerance)} {COST_NAMES[before.evidence]}."
        )
    (only,) = completed
    name = only.choice.display_name
    if only.outcome == "too costly" and only.cost is not None:
        return (
            f"The old model is kept: {name} costs {format_points(100 * only.cost.difference)} "
            f"{COST_NAMES[before.evidence]} on the held-out examples, and you allow {format_points(100 * tolerance)}. "
            f"{TRY_MORE}"
        )
    if only.change is not None and only.change.difference > 0:
        return (
            f"The old model is kept: with {name} {describe_change(only.change)}, which chance or a cost elsewhere "
            f"explains (95 % interval of the difference {_format_interval(only.change)}). {TRY_MORE}"
        )
    return f"The old model is kept: {name} does not improve it. {TRY_MORE}"


def _summarize_ranking(
    attempts: Sequence[Attempt], before: RepairScore, holdout: Holdout, *, ignore_attributes: bool
) -> tuple[str, ...]:
    if len(attempts) < 2:
        return ()
    target, evidence = next(iter(before.targets)), before.evidence
    if evidence == "groups" and not ignore_attributes and target != TRANSPLANTS:
        source = "true groups" if holdout.word is None else f"groups by {holdout.word}"
        measure = "highest accuracy of the worst group" if target == WORST_GROUP else "highest mean over groups"
        return (f"The best method is the one with the {measure}, by {source} of the held-out examples.",)
    criterion = TRANSPLANTS if before.transplants is not None else WORST_CLASS
    group = "worst true group" if holdout.word is None else f"worst group by {holdout.word}"
    more = f" The {group} is shown for comparison." if evidence == "groups" else ""
    return (f"Methods are ranked by {criterion} of the held-out examples, which needs no attributes.{more}",)


def _summarize_budget(attempts: Sequence[Attempt]) -> list[str]:
    names = [attempt.choice.display_name for attempt in attempts if attempt.outcome == "not tried"]
    if not names:
        return []
    return [f"Not tried, because there was not enough time: {join_words(names)}. Allow more minutes with --budget."]


def _describe_doubtful(audit: Audit) -> str:
    """Return how to repair a model that follows a property in which a part of the object may be; else nothing."""
    names = set(flagged_properties(audit)) - set(flagged_properties(audit, doubtful=False))
    if not names:
        return ""
    name = min(names)
    return (
        f"The model follows {name}, in which a part of the object may be, so that is not repaired without you. Look at "
        f"the pairs of images on the audit page. If the label must not depend on it, pass --property '{name}'."
    )


def _summarize_targets(score: RepairScore) -> str:
    *others, last = (f"{target} ({_format_accuracy(value)})" for target, value in score.targets.items())
    targets = f"{', '.join(others)} or {last}" if others else last
    return f"A repair must improve {targets} by more than chance explains."


def _list_warnings(main: Attempt, holdout: Holdout) -> list[str]:
    """Return the warnings of a run that are not in the other sentences."""
    warnings = main.record.warnings[len(holdout.data.notes) :] if main.record is not None else ()
    return [text for text in warnings if text != holdout.word_note and not text.endswith(COMPARISON_HINT)]


def _format_accuracy(accuracy: Accuracy) -> str:
    """Format an accuracy; that of a group or class with its number of examples, of a small one as a count."""
    if accuracy.is_small:
        return f"{round(accuracy.value * accuracy.count)} of {accuracy.count} examples"
    percent = format_percent(accuracy.value)
    return f"{percent} of {accuracy.count:,} examples" if accuracy.of else percent


def _format_interval(change: Change) -> str:
    return f"{100 * change.low:.1f} to {100 * change.high:.1f} points"
