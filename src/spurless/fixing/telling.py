"""Telling: what a repair did and why, in sentences that follow from its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from spurless.core.findings import Audit
from spurless.core.repairs import Attempt, Score
from spurless.fixing.holding import Held
from spurless.reporting import opinion
from spurless.reporting.gather import SPELLING
from spurless.reporting.words import percent, points

FLATTERED = (
    "The new model learnt from half of these examples, so this audit flatters it; what the judging examples and test "
    "say does not."
)
NOTHING = "Nothing that a repair could help with is flagged, so nothing was done."
MORE = "Try several methods and keep the best, or allow a larger cost."
LABEL = (
    "Label the attribute of the validation examples, and DFR can use it; where these are as biased as train, it costs "
    "average accuracy there, which you would have to allow."
)


def tell(
    found: Audit,
    tried: Sequence[Attempt],
    judged: tuple[Score, Score],
    held: Held,
    tolerance: float,
    *,
    blind: bool = False,
) -> tuple[str, ...]:
    """Return what happened, the outcome first; ``blind``: the best was chosen without attributes."""
    verdict = f"Before: {opinion(found).headline}"
    if not tried:
        return (f"The old model is kept. {NOTHING}", verdict, "Name a method to run it all the same.")
    taken = next((attempt for attempt in tried if attempt.fate == "taken"), None)
    first = _repaired(taken, judged, tolerance) if taken is not None else _kept(tried, judged[0], tolerance)
    shown = taken or next((attempt for attempt in tried if attempt.fate != "failed"), tried[0])
    cost = (_average(judged),) if taken is not None else ()
    warned = shown.record.warnings[len(held.data.notes) :] if shown.record is not None else ()
    warned = tuple(
        warning for warning in warned if held.named is None or warning != held.named.said
    )  # it is in held.said
    goal = (_goal(judged[0]),) if taken is None and shown.score is not None else ()
    hint = (LABEL,) if taken is None and judged[0].worst_group is None else ()
    return (
        first,
        *cost,
        *goal,
        *hint,
        verdict,
        shown.choice.why,
        held.said,
        *_ranked_by(tried, judged[0], held, blind=blind),
        *warned,
    )


def _repaired(taken: Attempt, judged: tuple[Score, Score], tolerance: float) -> str:
    before, after = judged
    aim = after.raised_over(before, tolerance) or next(iter(before.aims))
    change = f"{percent(before.aims[aim])} to {percent(after.aims[aim])}"
    return f"Repaired by {spelt(taken)}: {aim} rises from {change}."


def _average(judged: tuple[Score, Score]) -> str:
    before, after = (score.average for score in judged)
    return (
        f"That is on {after.count:,} examples that nothing has learnt from; their average goes from "
        f"{percent(before.value)} to {percent(after.value)}."
    )


def _kept(tried: Sequence[Attempt], before: Score, tolerance: float) -> str:
    """Say why nothing was taken."""
    run = [attempt for attempt in tried if attempt.score is not None]
    if not run:
        return f"The old model is kept: no method could be run. {spelt(tried[0])} says: {tried[0].error}"
    if len(run) > 1:
        return (
            f"The old model is kept: none of {len(run)} methods helps at a cost of at most "
            f"{points(100 * tolerance)} of average accuracy."
        )
    (only,) = run
    score = only.score or before
    if only.fate == "too costly":
        cost = 100 * (before.average.value - score.average.value)
        return (
            f"The old model is kept: {spelt(only)} costs {points(cost)} of average accuracy on the judging examples, "
            f"and you allow {points(100 * tolerance)}. {MORE}"
        )
    return f"The old model is kept: {spelt(only)} does not help. {MORE}"


def _ranked_by(tried: Sequence[Attempt], before: Score, held: Held, *, blind: bool) -> tuple[str, ...]:
    if len(tried) < 2:
        return ()
    kind = "worst true group" if held.named is None else f"worst group by {held.named.word}"
    if before.worst_group is not None and not blind:
        return (f"The best of them is the one with the best {kind} of the judging examples.",)
    beside = f" The {kind} stands beside it." if before.worst_group is not None else ""
    return (f"Methods are ranked by the accuracy of the worst class of the judging examples: no attributes.{beside}",)


def _goal(score: Score) -> str:
    """Say what a repair has to raise."""
    *others, last = (f"{aim} ({percent(value)})" for aim, value in score.aims.items())
    return f"To help is to raise {', '.join(others)} or {last}." if others else f"To help is to raise {last}."


def spelt(attempt: Attempt) -> str:
    """Return a method as a person writes it."""
    return SPELLING.get(attempt.choice.method, attempt.choice.method)
