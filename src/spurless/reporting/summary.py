"""Summary: what the records say, in sentences that follow from their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spurless.core.records import Record
from spurless.reporting.arms import Arm, Change, Study
from spurless.reporting.gather import studies
from spurless.reporting.words import listed, name, percent, plural, points, quoted, span

LABELS_USED = {
    "train_attributes": "attribute labels of the train split",
    "val_labels": "class labels of the validation split",
    "val_attributes": "attribute labels of the validation split",
}


@dataclass(frozen=True)
class Summary:
    """One dataset in plain words: the verdict, what was found, and why to doubt it."""

    study: Study
    headline: str
    findings: tuple[str, ...]
    cautions: tuple[str, ...]


def summarise(records: Sequence[Record]) -> tuple[Summary, ...]:
    """Return one summary per dataset."""
    return tuple(Summary(study, headline(study), findings(study), cautions(study)) for study in studies(records))


def headline(study: Study) -> str:
    """Return the verdict: the best method against the baseline, or the only method by itself."""
    best = study.best
    if not best or study.baseline.worst.mean is None:
        return _alone(study.baseline)
    change, who, base = study.change(best[0]), listed([name(arm.name) for arm in best]), name(study.baseline.name)
    before, after = percent(change.before.mean), percent(change.after.mean)
    if change.direction == "same":
        return f"No method moves the worst group: {base} has {before}, the best other {after}."
    if change.direction == "worse":
        return f"No method beats {base} on the worst group: {base} has {before}, the best other {after}."
    if not change.clear:
        verb = "scores" if len(best) == 1 else "score"
        return f"{who} {verb} higher than {base} on the worst group ({before} to {after}), but it may be chance."
    if len(best) > 1:
        return f"{who} {'both' if len(best) == 2 else 'all'} raise the worst group from {before} to {after}."
    return compare(study, best[0])


def findings(study: Study) -> tuple[str, ...]:
    """Return what was found: the baseline, each method against it, and where the failure lies now."""
    found = [describe(study.baseline)]
    found += [" ".join([compare(study, arm), *doubts(study, arm), *_trade(study, arm)]) for arm in study.arms[1:]]
    found += [describe(arm) for arm in study.best[:1]]
    return (*found, *_close(study))


def describe(arm: Arm) -> str:
    """Say how one arm does on average and on its worst group."""
    who = f"{name(arm.name)} is right on {percent(arm.average.mean)} of the test examples"
    who += f" (mean of {len(arm.records)} runs)" if len(arm.records) > 1 else ""
    if arm.worst.mean is None:
        return f"{who}. No group has test examples, so nothing can be said of a worst group."
    where = f"of {_worst_name(arm)} ({_evidence(arm)})"
    if stands_out(arm):
        return f"{who}, but only on {percent(arm.worst.mean)} {where}."
    return f"{who} and on {percent(arm.worst.mean)} {where}: no group is clearly behind."


def compare(study: Study, arm: Arm) -> str:
    """Say what an arm changes in the worst group, and what it does to the average."""
    change, who = study.change(arm), name(arm.name)
    if change.direction == "unknown":
        return f"{who} cannot be compared: a worst group is missing."
    way = f"{percent(change.before.mean)} to {percent(change.after.mean)}"
    average = study.average_change(arm)
    also = {
        "better": f" and adds {points(average.points)} of average accuracy",
        "worse": f" and costs {points(average.points)} of average accuracy",
        "same": " at the same average accuracy",
        "unknown": "",
    }[average.direction]
    if change.direction == "same":
        less = "" if change.points == 0 else f" ({way}: less than one example)"
        return f"{who} leaves the worst group at {percent(change.before.mean)}{less}{also}."
    return f"{who} {'raises' if change.direction == 'better' else 'lowers'} the worst group from {way}{also}."


def doubts(study: Study, arm: Arm) -> tuple[str, ...]:
    """Say why the difference to the baseline may be none."""
    change = study.change(arm)
    if change.direction not in ("better", "worse"):
        return ()
    found = []
    if None in (change.before.low, change.after.low):
        found.append("No interval is known for it: this difference may be chance.")
    elif change.overlap:
        found.append("The intervals overlap: this difference may be chance.")
    if change.against:
        found.append(f"The seeds disagree: {change.against} of {len(change.pairs)} do not show it.")
    return tuple(found)


def cautions(study: Study) -> tuple[str, ...]:
    """Return what a reader should know before trusting the verdict."""
    found = []
    single = [name(arm.name) for arm in study.arms if len(arm.seeds) == 1]
    if len(single) == len(study.arms):
        found.append("One seed only: run more seeds before trusting a difference.")
    elif single:
        found.append(f"One seed only for {listed(single)}: run more seeds before trusting a difference.")
    found += resolution(study)
    found += [line for arm in study.best[:1] for line in _more_labels(study, arm)]
    found += [
        f"{name(arm.name)} has several runs of the same seed; its spread over seeds is too small."
        for arm in study.arms
        if len(arm.seeds) < len(arm.records)
    ]
    return tuple(found)


def resolution(study: Study) -> list[str]:
    """Say what one example of the worst group is worth: no smaller difference can be seen."""
    rows = [row for arm in (study.baseline, *study.best[:1]) for row in arm.worst_rows]
    if not rows:
        return []
    row = min(rows, key=lambda r: r.count)
    return [
        f"One example in the worst group {quoted(row.name)} (n = {row.count:,}) is worth {points(100 / row.count)}: "
        "smaller differences cannot be seen."
    ]


def supervision(arm: Arm) -> str:
    """Say which labels an arm used beyond the training labels."""
    if not arm.supervision:
        return "Used: nothing beyond the training labels."
    return f"Used: {listed([LABELS_USED.get(key, name(key)) for key in arm.supervision])}."


def stands_out(arm: Arm) -> bool:
    """Say whether the worst group is behind the average of the same runs by more than its sampling allows."""
    average, high = arm.average.mean, arm.worst.sampling[1]
    return average is not None and high is not None and high < average


def limits(study: Study) -> tuple[str, ...]:
    """Return what these records cannot tell."""
    empty = [g for g in study.groups if study.counts(g)[0] == 0]
    found = [
        "Groups it was not given. A shortcut that no attribute names does not show here.",
        "Whether a shortcut is gone. A higher worst group shows that errors moved, not why; "
        "an audit of the model tests what it uses.",
        "How the model does elsewhere. The intervals count test examples drawn like these, not new places or times.",
        f"The luck of looking. The worst of {plural(len(study.groups), 'group')} is picked after seeing the scores, "
        "so it tends to look a little worse than it is; the interval does not correct for that.",
    ]
    if len(study.arms) > 2:
        found.append(
            f"Which method wins on fresh data. The best of {len(study.arms)} was picked on this test split: "
            "confirm it on data that no choice was made on."
        )
    if empty:
        shown = listed([quoted(g) for g in empty[:3]] + ([f"{len(empty) - 3:,} more"] if len(empty) > 3 else []))
        found.append(f"Anything about empty groups. {shown} {'has' if len(empty) == 1 else 'have'} no test examples.")
    return tuple(found)


def _alone(arm: Arm) -> str:
    if arm.worst.mean is None:
        return f"{name(arm.name)} is right on {percent(arm.average.mean)} on average; no groups were given."
    numbers = f"{percent(arm.worst.mean)} right on the worst group, {percent(arm.average.mean)} on average."
    verdict = "leaves a group behind" if stands_out(arm) else "leaves no group clearly behind"
    return f"{name(arm.name)} {verdict}: {numbers}"


def _worst_name(arm: Arm) -> str:
    if len(arm.worst_names) == 1:
        return quoted(arm.worst_names[0])
    few = [quoted(n) for n in arm.worst_names[:3]]
    return f"its worst group, which differs between runs: {listed(few)}"


def _evidence(arm: Arm) -> str:
    sizes = sorted({row.count for row in arm.worst_rows})
    n = f"n = {sizes[0]:,}" if len(sizes) == 1 else f"n = {sizes[0]:,} to {sizes[-1]:,}"
    return n if arm.worst.low is None else f"{n}; 95 % interval {span(arm.worst)}"


def _trade(study: Study, arm: Arm) -> tuple[str, ...]:
    gain, cost = study.change(arm).points or 0.0, -(study.average_change(arm).points or 0.0)
    return ("It gives up more average accuracy than the worst group gains.",) if cost > gain > 0 else ()


def _close(study: Study) -> list[str]:
    """Name the methods that tie with the best one, and those that are too near to tell apart."""
    best = study.best
    tied = [f"{listed([name(arm.name) for arm in best])} tie on the worst group."] if len(best) > 1 else []
    near = [
        name(arm.name)
        for arm in study.arms[1:]
        if best and arm not in best and not study.change(arm).overlap and Change(arm.worst, best[0].worst).overlap
    ]
    if not near:
        return tied
    return [*tied, f"{listed([name(best[0].name), *near])} are too close to call: their intervals overlap."]


def _more_labels(study: Study, arm: Arm) -> list[str]:
    extra = [LABELS_USED.get(k, name(k)) for k in arm.supervision if k not in study.baseline.supervision]
    if not extra:
        return []
    return [f"{name(arm.name)} used more labels than {name(study.baseline.name)}: {listed(extra)}."]
