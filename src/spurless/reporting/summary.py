"""Summarize records in sentences that follow from their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spurless.core.records import Record
from spurless.reporting.aggregate import Change, Comparison, MethodRuns, comparisons
from spurless.reporting.format import (
    clean_name,
    format_count,
    format_interval,
    format_percent,
    format_points,
    join_words,
    quote,
)

LABELS_USED = {
    "train_attributes": "attribute labels of the train split",
    "val_labels": "class labels of the validation split",
    "val_attributes": "attribute labels of the validation split",
}


@dataclass(frozen=True)
class Summary:
    """Headline, findings and cautions for one dataset."""

    comparison: Comparison
    headline: str
    findings: tuple[str, ...]
    cautions: tuple[str, ...]


def summarise(records: Sequence[Record]) -> tuple[Summary, ...]:
    """Return one summary per dataset."""
    return tuple(
        Summary(comparison, headline(comparison), findings(comparison), cautions(comparison))
        for comparison in comparisons(records)
    )


def headline(comparison: Comparison) -> str:
    """Return the headline: the best method against the baseline, or the only method."""
    best = comparison.best
    if not best or comparison.baseline.worst.mean is None:
        return _single_headline(comparison.baseline)
    change, base = comparison.change(best[0]), clean_name(comparison.baseline.name)
    who = join_words([clean_name(runs.name) for runs in best])
    before, after = format_percent(change.before.mean), format_percent(change.after.mean)
    if change.direction == "same":
        return f"No method changes the worst-group accuracy: {base} has {before}, the best other {after}."
    if change.direction == "worse":
        return f"No method has a better worst group than {base}: {base} has {before}, the best other {after}."
    if not change.clear:
        verb = "has" if len(best) == 1 else "have"
        return f"{who} {verb} a better worst group than {base} ({before} to {after}), but this may be chance."
    if len(best) > 1:
        return f"{who} {'both' if len(best) == 2 else 'all'} raise the worst group from {before} to {after}."
    return compare(comparison, best[0])


def findings(comparison: Comparison) -> tuple[str, ...]:
    """Describe the baseline, each method against it, and the best method."""
    sentences = [describe(comparison.baseline)]
    for runs in comparison.methods[1:]:
        doubts = (*describe_doubts(comparison, runs), *_describe_trade_off(comparison, runs))
        sentences.append(" ".join([compare(comparison, runs), *doubts]))
    sentences += [describe(runs) for runs in comparison.best[:1]]
    return (*sentences, *_describe_ties(comparison))


def describe(runs: MethodRuns) -> str:
    """Describe the accuracy of a method on average and on its worst group."""
    who = f"{clean_name(runs.name)} classifies {format_percent(runs.average.mean)} of the test examples correctly"
    who += f" (mean of {len(runs.records)} runs)" if len(runs.records) > 1 else ""
    if runs.worst.mean is None:
        return f"{who}. No group has test examples, so there is no worst group."
    where = f"of {_name_worst_group(runs)} ({_describe_evidence(runs)})"
    if is_behind(runs):
        return f"{who}, but only {format_percent(runs.worst.mean)} {where}."
    return f"{who} and {format_percent(runs.worst.mean)} {where}: no group is clearly worse."


def compare(comparison: Comparison, runs: MethodRuns) -> str:
    """Describe how a method changes the worst group and the average."""
    change, who = comparison.change(runs), clean_name(runs.name)
    if change.direction == "unknown":
        return f"{who} cannot be compared: there is no worst group."
    way = f"{format_percent(change.before.mean)} to {format_percent(change.after.mean)}"
    average = comparison.average_change(runs)
    also = {
        "better": f" and adds {format_points(average.points)} of average accuracy",
        "worse": f" and costs {format_points(average.points)} of average accuracy",
        "same": " at the same average accuracy",
        "unknown": "",
    }[average.direction]
    if change.direction == "same":
        less = "" if change.points == 0 else f" ({way}: less than one example)"
        return f"{who} leaves the worst group at {format_percent(change.before.mean)}{less}{also}."
    return f"{who} {'raises' if change.direction == 'better' else 'lowers'} the worst group from {way}{also}."


def describe_doubts(comparison: Comparison, runs: MethodRuns) -> tuple[str, ...]:
    """Describe why the difference to the baseline may be chance."""
    change = comparison.change(runs)
    if change.direction not in ("better", "worse"):
        return ()
    sentences = []
    if None in (change.before.low, change.after.low):
        sentences.append("Its interval is unknown: this difference may be chance.")
    elif change.overlap:
        sentences.append("The intervals overlap: this difference may be chance.")
    if change.against:
        sentences.append(f"The seeds disagree: {change.against} of {len(change.pairs)} do not show it.")
    return tuple(sentences)


def cautions(comparison: Comparison) -> tuple[str, ...]:
    """Return what a reader should know before trusting the headline."""
    sentences = []
    single = [clean_name(runs.name) for runs in comparison.methods if len(runs.seeds) == 1]
    if len(single) == len(comparison.methods):
        sentences.append("One seed only: run more seeds before trusting a difference.")
    elif single:
        sentences.append(f"One seed only for {join_words(single)}: run more seeds before trusting a difference.")
    sentences += caution_resolution(comparison)
    sentences += [line for runs in comparison.best[:1] for line in _caution_labels(comparison, runs)]
    sentences += [
        f"{clean_name(runs.name)} has several runs of the same seed, so that its spread over seeds is too small."
        for runs in comparison.methods
        if len(runs.seeds) < len(runs.records)
    ]
    return tuple(sentences)


def caution_resolution(comparison: Comparison) -> list[str]:
    """Describe the contribution of one example of the worst group: no smaller difference can be detected."""
    rows = [row for runs in (comparison.baseline, *comparison.best[:1]) for row in runs.worst_rows]
    if not rows:
        return []
    row = min(rows, key=lambda r: r.count)
    return [
        f"One example in the worst group {quote(row.name)} (n = {row.count:,}) changes its accuracy by "
        f"{format_points(100 / row.count)}: smaller differences cannot be detected."
    ]


def describe_supervision(runs: MethodRuns) -> str:
    """Describe which labels a method used beyond the training labels."""
    if not runs.supervision:
        return "Used: nothing beyond the training labels."
    return f"Used: {join_words([LABELS_USED.get(key, clean_name(key)) for key in runs.supervision])}."


def is_behind(runs: MethodRuns) -> bool:
    """Return whether the worst group is below the average of the same runs by more than sampling explains."""
    average, high = runs.average.mean, runs.worst.sampling[1]
    return average is not None and high is not None and high < average


def limits(comparison: Comparison) -> tuple[str, ...]:
    """Describe what these records cannot show."""
    empty = [g for g in comparison.groups if comparison.counts(g)[0] == 0]
    sentences = [
        "Unknown groups. A shortcut without an attribute is not visible here.",
        "Whether a shortcut is gone. A better worst group shows that errors changed, not why; "
        "an audit tests what the model uses.",
        "Accuracy on other data. The intervals are for test examples from the same distribution.",
        f"Selection of the worst group. The worst of {format_count(len(comparison.groups), 'group')} is selected by "
        "its accuracy, which makes it look slightly worse than it is; the interval does not correct for this.",
    ]
    if len(comparison.methods) > 2:
        sentences.append(
            f"The best method on new data. The best of {len(comparison.methods)} was selected on this test split: "
            "confirm it on data that were not used for any choice."
        )
    if empty:
        names = join_words([quote(g) for g in empty[:3]] + ([f"{len(empty) - 3:,} more"] if len(empty) > 3 else []))
        sentences.append(f"Empty groups. {names} {'has' if len(empty) == 1 else 'have'} no test examples.")
    return tuple(sentences)


def _single_headline(runs: MethodRuns) -> str:
    if runs.worst.mean is None:
        return f"{clean_name(runs.name)} has an accuracy of {format_percent(runs.average.mean)}; there are no groups."
    worst, average = format_percent(runs.worst.mean), format_percent(runs.average.mean)
    verdict = "has a clearly worse group" if is_behind(runs) else "has no clearly worse group"
    return f"{clean_name(runs.name)} {verdict}: {worst} accuracy on the worst group, {average} on average."


def _name_worst_group(runs: MethodRuns) -> str:
    if len(runs.worst_names) == 1:
        return quote(runs.worst_names[0])
    few = [quote(n) for n in runs.worst_names[:3]]
    return f"its worst group, which differs between runs: {join_words(few)}"


def _describe_evidence(runs: MethodRuns) -> str:
    sizes = sorted({row.count for row in runs.worst_rows})
    n = f"n = {sizes[0]:,}" if len(sizes) == 1 else f"n = {sizes[0]:,} to {sizes[-1]:,}"
    return n if runs.worst.low is None else f"{n}; 95 % interval {format_interval(runs.worst)}"


def _describe_trade_off(comparison: Comparison, runs: MethodRuns) -> tuple[str, ...]:
    gain, cost = comparison.change(runs).points or 0.0, -(comparison.average_change(runs).points or 0.0)
    return ("It gives up more average accuracy than the worst group gains.",) if cost > gain > 0 else ()


def _describe_ties(comparison: Comparison) -> list[str]:
    """Describe the methods that are as good as the best one, and those whose difference is not clear."""
    best = comparison.best
    tied = [f"{join_words([clean_name(runs.name) for runs in best])} tie on the worst group."] if len(best) > 1 else []
    others = [runs for runs in comparison.methods[1:] if best and runs not in best]
    clear = [runs for runs in others if not comparison.change(runs).overlap]
    near = [clean_name(runs.name) for runs in clear if Change(runs.worst, best[0].worst).overlap]
    if not near:
        return tied
    return [*tied, f"{join_words([clean_name(best[0].name), *near])} cannot be ranked: their intervals overlap."]


def _caution_labels(comparison: Comparison, runs: MethodRuns) -> list[str]:
    extra = [LABELS_USED.get(k, clean_name(k)) for k in runs.supervision if k not in comparison.baseline.supervision]
    base = clean_name(comparison.baseline.name)
    return [f"{clean_name(runs.name)} used more labels than {base}: {join_words(extra)}."] if extra else []
