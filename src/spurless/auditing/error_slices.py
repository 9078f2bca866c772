r"""Error slices: do features predict errors better than the model's confidence does?

With the residual :math:`r` of errors after accounting for the model's confidence, and its leave-one-out prediction
:math:`q` from the features (both in :mod:`spurless.auditing._residuals`), the statistic is

.. math:: T = \frac{\sum_i q_i r_i}{\lVert q \rVert \lVert r \rVert} .

Null hypothesis: the label depends on the example only through the model's output; labels are permuted among equally
confident predictions, and everything is fitted again. Severity: :math:`T`, at least 0. There is a minimum effect
because no model is perfectly calibrated, which is significant in thousands of examples.

Slices: of the fifth of the examples with the highest predicted residual, those of each predicted label are clustered
(k-means). The finding reports the slice whose error rate has the highest lower end of its Wilson interval; as the worst
of several, its error rate is slightly overestimated.

Limits: a head that was stopped early, or held-out examples that differ from training, also cause errors that features
predict. It detects nothing if the model uses only the shortcut: then features do not show which examples conflict.

Slice discovery by features and errors: Eyuboglu et al., "Domino", ICLR 2022, arXiv:2203.14960; Sohoni et al., "No
Subclass Left Behind", NeurIPS 2020, arXiv:2011.12945. The leave-one-out form of ridge is Allen's PRESS, 1974; the
permutation of residuals is that of Freedman and Lane, 1983.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.auditing._context import MORE_ERRORS, AuditContext, label_name, make_finding, not_tested, top_rows
from spurless.auditing._figures import Axis, Series, bars, image_rows
from spurless.auditing._permutation import p_value
from spurless.auditing._residuals import (
    PredictionStrata,
    ResidualPredictor,
    bootstrap_correlation,
    correlate_columns,
    make_orders,
    principal_components,
    split_into_chunks,
    stratify_predictions,
    why_not_testable,
)
from spurless.core.figures import Figure, Picture
from spurless.core.findings import Finding
from spurless.core.progress import progress_reporter
from spurless.explain.overlays import has_images
from spurless.metrics.intervals import wilson_intervals

NAME = "error-slices"
QUESTION = "Do errors share features, or are they only where the model is not confident?"
MIN_EFFECT = 0.25  # smallest lower end of the correlation's interval that is flagged
MIN_EFFECT_ALONE = 0.35  # the same if no other finding shows use; clean models of detection.jsonl reached 0.28
MIN_QUANTILE = 0.8  # quantile of the predicted residual from which an example can be in a slice
MIN_EXAMPLES = 8  # examples of a slice
MAX_SLICES = 3  # slices per predicted label
MAX_BARS = 10
EXPECTED = "incorrect among equally confident predictions"


@dataclass(frozen=True, eq=False)
class ErrorSlice:
    """Similar examples with the same prediction and a higher error rate than equally confident predictions."""

    rows: Tensor
    predicted: int
    n_errors: int
    expected: float  # error rate of equally confident predictions

    @property
    def error(self) -> float:
        """Error rate."""
        return self.n_errors / len(self.rows)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the error rate."""
        low, high = wilson_intervals(self.n_errors, len(self.rows))
        return float(low), float(high)

    @property
    def numbers(self) -> dict[str, float]:
        """Numbers of the finding."""
        low, high = self.interval
        numbers = {"slice_size": float(len(self.rows)), "slice_error": self.error, "slice_expected": self.expected}
        return {**numbers, "slice_low": low, "slice_high": high}


def audit_error_slices(context: AuditContext) -> Finding:
    """Return how well features predict errors beyond the model's confidence, and the worst slice."""
    why = why_not_testable(context)
    if why is not None:
        return not_tested(NAME, why, MORE_ERRORS)
    strata, x = stratify_predictions(context), principal_components(context.features)
    predictor = ResidualPredictor(x, strata)
    observed, null = _compute_statistics(context, strata, predictor)
    p = p_value(observed, null)
    residuals = strata.residuals(context.incorrect[:, None])
    predicted = predictor.predict(residuals)[:, 0]
    low, high = bootstrap_correlation(predicted, residuals[:, 0], context.seeds.generator(NAME, "bootstrap"))
    expected = context.incorrect.double() - residuals[:, 0]
    flagged = p <= context.level and low >= MIN_EFFECT
    slices = _find_slices(context, x, predicted, expected) if flagged else []
    numbers = {
        "correlation": observed, "low": low, "high": high, "chance": float(null.median()),
        "error": float(context.incorrect.double().mean()),
        "doubt": float(1 - context.probabilities.amax(dim=1).mean()),
    }  # fmt: skip
    error, doubt = (100 * numbers[name] for name in ("error", "doubt"))
    probabilities = f"The model's probabilities imply an error rate of {doubt:.0f} %; the true one is {error:.0f} %."
    named = _quote(context, slices[0].predicted) if flagged else ""
    return make_finding(
        NAME,
        (p, observed, flagged),
        f"Errors share features that the model uses: it predicts {named} incorrectly",
        "Features predict errors hardly better than the model's confidence",
        f"Among equally confident predictions, features predict errors with a correlation of {observed:.2f} (95 % "
        f"interval {low:.2f} to {high:.2f}; p = {p:.3g} by {context.permutations} permutations; flagged if the lower "
        f"end is {MIN_EFFECT:g} or more). " + (_describe_slice(context, slices[0]) if flagged else probabilities),
        "Look at these examples for what they have in common. neurontune needs no attributes, masktune hides the "
        "image region that dominates the prediction, and group-dro or dfr help once the common property is labelled.",
        numbers=numbers | (slices[0].numbers if flagged else {}),
        rows=_find_errors(context, slices[0], predicted) if flagged else (),
        items=(
            _plot_deciles(context, predicted, expected),
            *([_plot_slices(context, slices)] if flagged else []),
            *(_draw_slice(context, slices[0], predicted) if flagged else ()),
        ),
    )


def _compute_statistics(
    context: AuditContext, strata: PredictionStrata, predictor: ResidualPredictor
) -> tuple[float, Tensor]:
    order = make_orders(strata.stratum, context.permutations, context.seeds.generator(NAME, "permutations"))
    statistics, report = [], progress_reporter("residuals", len(order))
    for part in split_into_chunks(len(order), len(context)):
        report(part.start)
        residuals = strata.residuals((strata.predicted != context.y[order[part]]).T)
        statistics.append(correlate_columns(predictor.predict(residuals), residuals))
    values = torch.cat(statistics)
    return float(values[0]), values[1:]


def _find_slices(context: AuditContext, x: Tensor, predicted: Tensor, expected: Tensor) -> list[ErrorSlice]:
    """Return at least one slice, the one with the highest lower end of its error rate first."""
    candidates = (predicted >= predicted.quantile(MIN_QUANTILE)) & (predicted > 0)
    slices: list[ErrorSlice] = []
    for label in range(context.logits.shape[1]):
        rows = (candidates & (context.predicted == label)).nonzero().flatten()
        slices += [_make_slice(context, part, label, expected) for part in _cluster(context, x, rows, label)]
    if not slices:  # no label has enough candidates: use the most frequent prediction
        label = int(torch.bincount(context.predicted).argmax())
        rows = torch.tensor(top_rows(predicted, context.predicted == label, MIN_EXAMPLES))
        slices = [_make_slice(context, rows, label, expected)]
    return sorted(slices, key=lambda s: (-s.interval[0], s.predicted))


def _cluster(context: AuditContext, x: Tensor, rows: Tensor, label: int) -> list[Tensor]:
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn's own, not annotated

    count = min(MAX_SLICES, len(rows) // MIN_EXAMPLES)
    if count < 2:
        return [rows] if len(rows) >= MIN_EXAMPLES else []
    seed = context.seeds.number(NAME, "clusters", label) % 2**32
    with threadpool_limits(1):  # BLAS has threads of its own, which round differently
        cluster = torch.as_tensor(KMeans(count, n_init=4, random_state=seed).fit_predict(x[rows].numpy()))
    parts = [rows[cluster == number] for number in range(count)]
    return [part for part in parts if len(part) >= MIN_EXAMPLES] or [rows]


def _make_slice(context: AuditContext, rows: Tensor, label: int, expected: Tensor) -> ErrorSlice:
    return ErrorSlice(rows, label, int(context.incorrect[rows].sum()), float(expected[rows].mean().clamp(0, 1)))


def _quote(context: AuditContext, label: int) -> str:
    return f"“{label_name(context, label)}”"


def _describe_slice(context: AuditContext, worst: ErrorSlice) -> str:
    low, high = worst.interval
    counts = torch.bincount(context.y[worst.rows], minlength=context.logits.shape[1])
    top = [int(y) for y in counts.argsort(descending=True, stable=True)[:3] if counts[y]]
    labels = ", ".join(f"{int(counts[y])} {_quote(context, y)}" for y in top)
    return (
        f"The worst slice has {len(worst.rows)} examples that are predicted as {_quote(context, worst.predicted)}: "
        f"{100 * worst.error:.0f} % are incorrect ({100 * low:.0f} to {100 * high:.0f} %), compared with "
        f"{100 * worst.expected:.0f} % of equally confident predictions; their labels are {labels}."
    )


def _find_errors(context: AuditContext, worst: ErrorSlice, predicted: Tensor) -> tuple[int, ...]:
    """Return errors: those of the worst slice first, then others by their predicted residual."""
    inside = torch.zeros(len(context), dtype=torch.bool)
    inside[worst.rows] = True
    score = predicted + 10 * (inside & context.incorrect) * predicted.abs().max()
    return top_rows(score, context.incorrect & (predicted > 0))


def _draw_slice(context: AuditContext, worst: ErrorSlice, predicted: Tensor) -> tuple[Picture, ...]:
    """Draw errors of the worst slice; nothing if the examples are not images."""
    rows = _find_errors(context, worst, predicted) if has_images(context.split) else ()
    inside = set(worst.rows.tolist())
    return image_rows(context, [row for row in rows if row in inside], "Errors of the worst slice")


def _plot_deciles(context: AuditContext, predicted: Tensor, expected: Tensor) -> Figure:
    """Draw the error rate by deciles of the predicted residual, and that of equally confident predictions."""
    parts = [part for part in predicted.argsort(stable=True).chunk(MAX_BARS) if len(part)]
    error = [100 * float(context.incorrect[part].double().mean()) for part in parts]
    usual = [100 * float(expected[part].mean()) for part in parts]
    caption = "If the model makes errors only where it is not confident, the bars follow the line."
    text, names = ("Errors that features predict", caption), [str(number) for number in range(1, len(parts) + 1)]
    series = [Series("incorrect", error, "@bad"), Series(EXPECTED, usual, "@ink", kind="lines+markers")]
    category_title = "decile of the examples, by predicted residual"
    return bars(text, names, series, values=Axis("% incorrect", "tozero"), category_title=category_title)


def _plot_slices(context: AuditContext, slices: list[ErrorSlice]) -> Figure:
    """Draw the error rate of every slice with its interval, the worst first."""
    top = slices[:MAX_BARS]
    names = [f"{i}: predicted {label_name(context, s.predicted)}" for i, s in enumerate(top, 1)]
    error, low, high = ([100 * v for v in part] for part in zip(*((s.error, *s.interval) for s in top), strict=True))
    caption = "Slices of similar examples with the same prediction, with 95 % intervals."
    expected = [100 * s.expected for s in top]
    series = [Series("incorrect", error, "@bad", low, high), Series(EXPECTED, expected, "@ink", kind="markers")]
    return bars(("Slices", caption), names, series, values=Axis("% incorrect", (0, 100)), horizontal=True)
