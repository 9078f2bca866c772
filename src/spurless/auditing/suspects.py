r"""Suspects: which examples seem to conflict with a shortcut, and are they similar?

A *suspected minority example* has an unexpected label: it looks like an example that conflicts with a shortcut. It is
detected by at least two of three detectors (:mod:`spurless.auditing._minority_views`). Its score is :math:`(v + \bar u)
/ 4`, with its votes :math:`v` and the mean :math:`\bar u` of its percentiles by the three losses.

The statistic is how well features predict the votes among equally confident predictions: the leave-one-out correlation
of :mod:`spurless.auditing._residuals`. Null hypothesis: the label depends on the example only through the model's
output; labels are permuted among equally confident predictions, and all detectors run again for each permutation (at
most 99). Severity: that correlation minus its median over permutations, at least 0.

Limits: mislabelled and hard examples are among the suspects. The accuracy of the worst inferred group (a label,
suspected or not) is pessimistic, because suspects are selected for being unexpected. If the audited examples conflict
with the shortcut as often as not, the heads do not learn the shortcut and detect few of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spurless.auditing._context import MORE_ERRORS, AuditContext, label_name, make_finding, not_tested, top_rows
from spurless.auditing._figures import Axis, Series, bars
from spurless.auditing._minority_views import FOLDS, VIEWS, mean_kappa, run_views
from spurless.auditing._permutation import p_value
from spurless.auditing._residuals import (
    ResidualPredictor,
    bootstrap_correlation,
    correlate_columns,
    make_orders,
    principal_components,
    stratify_predictions,
    why_not_testable,
)
from spurless.core.figures import Figure, Picture
from spurless.core.findings import Finding, Suspect
from spurless.core.groups import Groups
from spurless.data.split import Split
from spurless.data.words import decode_text
from spurless.explain.overlays import encode_image, has_images, load_images, make_thumbnails, to_rgb
from spurless.metrics.groupwise import group_table
from spurless.metrics.intervals import wilson_intervals

NAME = "suspects"
QUESTION = "Which examples seem to conflict with a shortcut, and are they similar?"
MIN_EFFECT = 0.25  # smallest severity that is flagged
MAX_PERMUTATIONS = 99  # every permutation trains two heads per fold
MIN_GROUP_SIZE = 5  # examples of an inferred group whose accuracy is reported
MAX_BARS = 12
MAX_PICTURES = 48  # suspects with a picture, so that the page stays small enough for mail
MAX_TYPICAL = 2  # labels with a typical example
MAX_TEXT_LENGTH = 600


@dataclass(frozen=True, eq=False)
class SuspectedMinority:
    """The suspected minority examples of a split."""

    score: Tensor  # ``(N,)`` in [0, 1]; at least 1/2 exactly if suspected
    suspected: Tensor  # detected by at least two views, ``(N,)``
    views: Mapping[str, Tensor]  # detections of each view
    agreement: float  # mean kappa over pairs of views: 0 by chance, 1 if they are equal


def find_suspected(context: AuditContext) -> SuspectedMinority:
    """Return the suspected minority examples; none if there are too few examples for cross-fitting."""
    if len(context) < 2 * FOLDS:
        none = torch.zeros(len(context), dtype=torch.bool)
        return SuspectedMinority(none.double(), none, dict.fromkeys(VIEWS, none), 0.0)
    detected, losses = run_views(context, context.y[None])
    votes = detected[:, 0].sum(dim=0)
    percentile = losses[:, 0].argsort(dim=1, stable=True).argsort(dim=1).double() / len(context)
    score = (votes + percentile.mean(dim=0)) / (1 + len(VIEWS))
    views = {name: detected[i, 0] for i, name in enumerate(VIEWS)}
    return SuspectedMinority(score, votes >= 2, views, float(mean_kappa(detected)[0]))


def audit_suspects(context: AuditContext) -> Finding:
    """Return the suspected minority, and whether its examples have features in common."""
    why = why_not_testable(context)
    if why is not None:
        return not_tested(NAME, why, MORE_ERRORS, shows_use=False)
    minority = find_suspected(context)
    strata = stratify_predictions(context)
    predictor = ResidualPredictor(principal_components(context.features), strata)
    n_permutations = min(MAX_PERMUTATIONS, context.permutations)
    order = make_orders(strata.stratum, n_permutations, context.seeds.generator(NAME, "permutations"))
    views = run_views(context, context.y[order])[0]
    residuals = strata.residuals(views.double().mean(dim=0).T)
    predicted = predictor.predict(residuals)
    statistics, agreement = correlate_columns(predicted, residuals), mean_kappa(views)
    observed, p = float(statistics[0]), p_value(float(statistics[0]), statistics[1:])
    low, high = bootstrap_correlation(predicted[:, 0], residuals[:, 0], context.seeds.generator(NAME, "bootstrap"))
    chance, count = float(statistics[1:].median()), int(minority.suspected.sum())
    severity = observed - chance
    flagged = p <= context.level and severity >= MIN_EFFECT
    accuracy, worst_group = _describe_worst_group(context, minority.suspected)
    numbers = {
        "correlation": observed, "low": low, "high": high, "chance": chance, "suspected": float(count),
        "agreement": minority.agreement, "agreement_chance": float(agreement[1:].median()),
        "agreement_p": p_value(float(agreement[0]), agreement[1:]), **accuracy,
    }  # fmt: skip
    return make_finding(
        NAME,
        (p, severity, flagged),
        f"{count:,} examples seem to conflict with a shortcut: their labels are unexpected, and they are similar",
        "Examples with unexpected labels are hardly similar",
        f"Among equally confident predictions, features predict which examples are suspected with a correlation of "
        f"{observed:.2f} (95 % interval {low:.2f} to {high:.2f}; {chance:.2f} by chance, p = {p:.3g} by "
        f"{n_permutations} permutations; flagged from {MIN_EFFECT:g} above chance). "
        f"{count:,} of {len(context):,} are suspected by two of three detectors, which agree by kappa = "
        f"{minority.agreement:.2f} ({float(agreement[1:].median()):.2f} by chance). {worst_group}",
        "Look through them. If they have something in common, neurontune or jtt need no attributes; dfr or group-dro "
        "are better once it is labelled. If their labels are wrong, correct the labels.",
        shows_use=False,  # the same evidence as error-slices, through the labels
        numbers=numbers,
        rows=top_rows(minority.score, minority.suspected),
        items=(_plot(context, minority.suspected),),
    )


def _describe_worst_group(context: AuditContext, suspected: Tensor) -> tuple[dict[str, float], str]:
    """Return the accuracy of the worst inferred group, as numbers and as a sentence."""
    groups = Groups(context.split.groups.labels, ("not suspected", "suspected"))
    table = group_table(context.predicted, context.y, suspected.long(), groups)
    accuracy = torch.where(table.count >= MIN_GROUP_SIZE, table.accuracy, torch.inf)
    if not bool(accuracy.isfinite().any()):
        return {}, "No inferred group is large enough for an accuracy."
    g = int(accuracy.argmin())
    low, high = (float(bound) for bound in wilson_intervals(table.correct[g], table.count[g]))
    numbers = {"worst_inferred": float(accuracy[g]), "worst_low": low, "worst_high": high}
    return numbers, (
        f"The accuracy of the worst inferred group, “{groups.name(g)}”, is {100 * float(accuracy[g]):.0f} % of "
        f"{int(table.count[g]):,} (95 % interval {100 * low:.0f} to {100 * high:.0f} %). It is pessimistic, because "
        "these examples are selected for unexpected labels."
    )


def _plot(context: AuditContext, suspected: Tensor) -> Figure:
    n = context.logits.shape[1]
    errors, correct = (
        torch.bincount(context.y[suspected & part], minlength=n) for part in (context.incorrect, ~context.incorrect)
    )
    labels = (errors + correct).argsort(descending=True, stable=True)[:MAX_BARS].tolist()
    names = [label_name(context, y) for y in labels]
    series = [
        Series("incorrect", errors[labels].tolist(), "@bad"),
        Series("correct", correct[labels].tolist(), "@series1"),
    ]
    text, axis = ("Suspects", "Suspected examples of each label, by prediction."), Axis("suspected examples")
    return bars(text, names, series, values=axis, horizontal=True, stacked=True)


def list_suspects(
    context: AuditContext, minority: SuspectedMinority, max_pictures: int = MAX_PICTURES
) -> tuple[Suspect, ...]:
    """Return the suspected examples, the most suspected first, with pictures of the first ones."""
    rows = minority.suspected.nonzero().flatten()
    rows = rows[minority.score[rows].argsort(descending=True, stable=True)]
    pictures = _draw_pictures(context, rows[:max_pictures])
    return tuple(
        Suspect(
            row=row,
            label=label_name(context, int(context.y[row])),
            predicted=label_name(context, int(context.predicted[row])),
            score=float(minority.score[row]),
            suspected=True,
            attribute=_get_attribute(context.split, row),
            file=example_file(context.split, row),
            text=_get_text(context, row),
            picture=pictures[rank][0] if rank < len(pictures) else None,
            heat=pictures[rank][1] if rank < len(pictures) else None,
        )
        for rank, row in enumerate(rows.tolist())
    )


def list_typical(
    context: AuditContext, minority: SuspectedMinority, suspects: Sequence[Suspect]
) -> tuple[Suspect, ...]:
    """Return the most typical example of up to ``MAX_TYPICAL`` labels, those of the first suspects first.

    It is predicted correctly, not suspected, and the nearest to the mean features of such examples.
    """
    if not has_images(context.split):
        return ()
    names = list(dict.fromkeys(suspect.label for suspect in suspects if suspect.picture is not None))
    counts = torch.bincount(context.y, minlength=context.logits.shape[1])
    frequent = counts.argsort(descending=True, stable=True).tolist()
    labels = sorted(frequent, key=lambda y: names.index(name) if (name := label_name(context, y)) in names else 1e9)
    rows: list[int] = []
    for label in labels:
        inside = ((context.y == label) & ~context.incorrect & ~minority.suspected).nonzero().flatten()
        if len(inside) and len(rows) < MAX_TYPICAL:
            x = context.features[inside].double()
            rows.append(int(inside[(x - x.mean(dim=0)).norm(dim=1).argmin()]))
    if not rows:
        return ()
    images = to_rgb(load_images(context.split, rows)[1])
    typical = []
    for row, image in zip(rows, images, strict=True):
        name = label_name(context, int(context.y[row]))
        picture = Picture(f"Example {row}", "", encode_image(image), f"A typical example: row {row}, {name}.")
        file, attribute = example_file(context.split, row), _get_attribute(context.split, row)
        score = float(minority.score[row])
        typical.append(Suspect(row, name, name, score, False, attribute, file, picture=picture))
    return tuple(typical)


def example_file(split: Split, row: int) -> str | None:
    """Return the file that an example was read from, or its position in a file; None if it was generated."""
    if split.names is not None:
        return split.names[row]
    source: Any = split.x
    while source is not None:
        paths = getattr(source, "paths", None)
        if paths is not None:
            return str(paths[row])
        index = getattr(source, "index", None)
        source = getattr(source, "source", None)
        row = int(index[row]) if index is not None and source is not None else row
    return None


def _draw_pictures(context: AuditContext, rows: Tensor) -> list[tuple[Picture, Picture | None]]:
    """Return image and heat map of each example; the heat map is None if no gradient reaches the input."""
    if not len(rows) or not has_images(context.split):
        return []
    thumbnails = make_thumbnails(context.model, context.split, rows)
    pictures = []
    for row, (image, heat) in zip(rows.tolist(), thumbnails, strict=True):
        title, alt = f"Example {row}", f"Heat map of example {row}; lighter is hotter."
        heat_map = None if heat is None else Picture(title, "", heat, alt)
        pictures.append((Picture(title, "", image, f"{title} of the audited split."), heat_map))
    return pictures


def _get_attribute(split: Split, row: int) -> str | None:
    if not split.has_attributes or split.groups.overlap:
        return None
    value = int(split.groups.encode(split.y[row : row + 1], split.a[row : row + 1])) % len(split.groups.attributes)
    return split.groups.attributes[value]


def _get_text(context: AuditContext, row: int) -> str | None:
    """Return the original text, or else the text decoded from its tokens."""
    split = context.split
    text = split.names.text(row) if split.names is not None else None
    if text is None and isinstance(split.x, dict) and context.spelling is not None and "input_ids" in split.x:
        text = decode_text(split, row, context.spelling)
    return text if text is None or len(text) <= MAX_TEXT_LENGTH else text[: MAX_TEXT_LENGTH - 1] + "…"
