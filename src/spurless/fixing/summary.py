"""Summarize a repair in sentences: the outcome first, then the reasons."""

from __future__ import annotations

from collections.abc import Sequence

from spurless.core.findings import Audit
from spurless.core.repairs import Attempt, RepairScore
from spurless.fixing.holdout import Holdout
from spurless.reporting import summarize_audit
from spurless.reporting.format import format_percent, format_points

OPTIMISTIC_AUDIT = (
    "The new model was trained on half of these examples, so this audit is optimistic; the results on the held-out "
    "half and on the test split are not."
)
NOTHING_FLAGGED = "Nothing is flagged that a repair could improve, so nothing was done."
TRY_MORE = "Try several methods and keep the best, or allow a larger cost."
LABEL_VALIDATION = (
    "Label the attribute of the validation examples, so that DFR can use it. If validation is as biased as train, DFR "
    "costs average accuracy there, which you would have to allow."
)

Scores = tuple[RepairScore, RepairScore]  # scores of the old and of the resulting model


def summarize(
    audit: Audit,
    attempts: Sequence[Attempt],
    scores: Scores,
    holdout: Holdout,
    tolerance: float,
    *,
    ignore_attributes: bool = False,
) -> tuple[str, ...]:
    """Return what was done and why, the outcome first; ``ignore_attributes``: methods were ranked without them."""
    verdict = f"Before: {summarize_audit(audit).headline}"
    if not attempts:
        return (f"The old model is kept. {NOTHING_FLAGGED}", verdict, "Name a method to run it nevertheless.")
    taken = next((attempt for attempt in attempts if attempt.outcome == "taken"), None)
    main = taken or next((attempt for attempt in attempts if attempt.outcome != "failed"), attempts[0])
    if taken is not None:
        outcome = [_summarize_repair(taken, scores, tolerance), _summarize_average(scores)]
    else:
        outcome = [_summarize_failure(attempts, scores[0], tolerance)]
        outcome += [_summarize_targets(scores[0])] if main.score is not None else []
        outcome += [LABEL_VALIDATION] if scores[0].worst_group is None else []
    warnings = main.record.warnings[len(holdout.data.notes) :] if main.record is not None else ()
    return (
        *outcome,
        verdict,
        main.choice.why,
        holdout.description,
        *_summarize_ranking(attempts, scores[0], holdout, ignore_attributes=ignore_attributes),
        *(warning for warning in warnings if warning != holdout.word_note),  # which is in the description
    )


def _summarize_repair(taken: Attempt, scores: Scores, tolerance: float) -> str:
    before, after = scores
    target = after.best_improvement(before, tolerance) or next(iter(before.targets))
    change = f"{format_percent(before.targets[target])} to {format_percent(after.targets[target])}"
    return f"Repaired by {taken.choice.display_name}: {target} rises from {change}."


def _summarize_average(scores: Scores) -> str:
    before, after = (score.average for score in scores)
    return (
        f"This is measured on {after.count:,} held-out examples, whose average accuracy changes from "
        f"{format_percent(before.value)} to {format_percent(after.value)}."
    )


def _summarize_failure(attempts: Sequence[Attempt], before: RepairScore, tolerance: float) -> str:
    """Return why no model was better."""
    completed = [attempt for attempt in attempts if attempt.score is not None]
    if not completed:
        first = attempts[0]
        return f"The old model is kept: no method could be run. {first.choice.display_name}: {first.error}"
    if len(completed) > 1:
        return (
            f"The old model is kept: none of {len(completed)} methods improves it at a cost of at most "
            f"{format_points(100 * tolerance)} of average accuracy."
        )
    (only,) = completed
    name, score = only.choice.display_name, only.score or before
    if only.outcome == "too costly":
        cost = 100 * (before.average.value - score.average.value)
        return (
            f"The old model is kept: {name} costs {format_points(cost)} of average accuracy on the held-out examples, "
            f"and you allow {format_points(100 * tolerance)}. {TRY_MORE}"
        )
    return f"The old model is kept: {name} does not improve it. {TRY_MORE}"


def _summarize_ranking(
    attempts: Sequence[Attempt], before: RepairScore, holdout: Holdout, *, ignore_attributes: bool
) -> tuple[str, ...]:
    if len(attempts) < 2:
        return ()
    group = "worst true group" if holdout.word is None else f"worst group by {holdout.word}"
    if before.worst_group is not None and not ignore_attributes:
        return (f"The best method is the one with the highest accuracy of the {group} of the held-out examples.",)
    more = f" The {group} is shown for comparison." if before.worst_group is not None else ""
    return (f"Methods are ranked by the worst class of the held-out examples, which needs no attributes.{more}",)


def _summarize_targets(score: RepairScore) -> str:
    *others, last = (f"{target} ({format_percent(value)})" for target, value in score.targets.items())
    return f"A repair must improve {', '.join(others)} or {last}." if others else f"A repair must improve {last}."
