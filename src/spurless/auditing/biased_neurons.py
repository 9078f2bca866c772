r"""Biased neurons: does a neuron lead the model to errors, beyond its lack of confidence?

NeuronTune calls a feature biased if it is larger among the errors of a label than among its correct predictions
(:mod:`spurless.metrics.spuriousness`). A model without a shortcut has such features too, near the decision boundary. So
the size :math:`|v_i|` of neuron :math:`i` is compared among examples with the same predicted label :math:`c` and equal
confidence. With its residual :math:`x` (:mod:`spurless.auditing._residuals`), errors :math:`w` with residual :math:`r`,
and sums of squares over each stratum :math:`h`,

.. math:: z_{ic} = \frac{\sum_{\hat y_j = c} x_{ij} w_j}{\sqrt{\sum_h S^{xx}_h S^{ww}_h / (n_h - 1)}},
    \qquad \rho_{ic} = \frac{\sum x_{ij} r_j}{\lVert x_i \rVert \lVert r \rVert} .

The sign :math:`s_{ic}` is 1 if the neuron is more active when the model predicts :math:`c`, -1 if it is less active, 0
if neither (a correlation below 0.1). If :math:`s z > 0`, the neuron supports the incorrect prediction; if :math:`s z <
0`, it indicates the true label and the model ignores it. There are two statistics: the largest :math:`s z`, for a
single neuron, and :math:`\sum z^2`, for many neurons and labels with few errors each.

Null hypothesis: the label depends on the example only through the model's output; the better of the two statistics is
compared with the better of the two in every permutation of labels among equally confident predictions. Severity:
:math:`s \rho` of the neuron with the largest :math:`s z`, and 0 if p is above the level.

Zheng, Ye and Zhang, "NeuronTune: Towards Self-Guided Spurious Bias Mitigation", 2025, arXiv:2505.24048.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.auditing._context import MORE_ERRORS, AuditContext, label_name, make_finding, not_tested, top_rows
from spurless.auditing._permutation import best_p_value
from spurless.auditing._residuals import (
    EPSILON,
    PredictionStrata,
    bootstrap_correlation,
    correlate_columns,
    make_orders,
    stratify_predictions,
    subtract_stratum_means,
    why_not_testable,
)
from spurless.core.figures import Figure
from spurless.core.findings import Finding
from spurless.core.progress import progress_reporter
from spurless.explain.figures.neurons import plot_distributions
from spurless.metrics.spuriousness import Scores, spuriousness

NAME = "biased-neurons"
QUESTION = "Does a neuron lead the model to errors, more than its confidence explains?"
MIN_EFFECT = 0.25  # smallest lower end of the correlation's interval that is flagged
MIN_EXAMPLES = 2  # errors, and correct predictions, of a predicted label whose neurons are compared
MIN_CORRELATION = 0.1  # correlation of a neuron with a prediction from which the model follows it
MAX_FIGURES = 3  # neurons that are drawn


@dataclass(frozen=True, eq=False)
class NeuronComparison:
    """For every predicted label and neuron, how much the model follows the neuron into errors."""

    z: Tensor  # ``(labels, d)``; positive if a neuron is more active in errors, 0 if it was not compared
    r: Tensor  # correlations with the residual of errors
    sign: Tensor  # 1 if a neuron supports the prediction, -1 if it opposes it, 0 if neither
    statistics: Tensor  # largest signed z and sum of squares, of data and permutations, ``(1 + permutations, 2)``

    def strongest(self, count: int) -> list[tuple[int, int]]:
        """Return predicted label and neuron of the largest signed z, each neuron once."""
        labels: dict[int, int] = {}
        not_compared = (self.z == 0).all(dim=1, keepdim=True)
        signed_z = (self.sign * self.z).masked_fill(not_compared, -torch.inf)
        for index in signed_z.flatten().argsort(descending=True, stable=True).tolist():
            label, dim = divmod(index, self.z.shape[1])
            labels.setdefault(dim, label)
            if len(labels) == count:
                break
        return [(label, dim) for dim, label in labels.items()]


def audit_biased_neurons(context: AuditContext) -> Finding:
    """Return the neuron that the model follows most into errors, among equally confident predictions."""
    why = why_not_testable(context)
    compared = compare_neurons(context) if why is None else None
    if compared is None:
        needed = f"{MIN_EXAMPLES} errors and {MIN_EXAMPLES} correct predictions"
        return not_tested(NAME, why or f"No predicted label has {needed} that differ in any neuron.", MORE_ERRORS)
    p, which = best_p_value(compared.statistics)
    strongest = compared.strongest(MAX_FIGURES)
    label, dim = strongest[0]
    sign = int(compared.sign[label, dim]) or 1
    observed = sign * float(compared.r[label, dim])
    low, high = _bootstrap(context, label, dim, sign)
    severity = observed if p <= context.level else 0.0
    flagged = p <= context.level and low >= MIN_EFFECT
    scores = spuriousness(context.features, context.y, context.predicted, context.logits.shape[1])
    name = label_name(context, label)
    numbers = {
        "neuron": float(dim), "correlation": observed, "low": low, "high": high,
        "z": sign * float(compared.z[label, dim]), "speaks_for": float(sign > 0), "prediction": float(label),
    }  # fmt: skip
    errors = context.incorrect & (context.predicted == label)
    return make_finding(
        NAME,
        (p, severity, flagged),
        f"The model follows neuron {dim} into errors when it predicts “{name}”",
        "No neuron separates errors from correct predictions much better than the model's confidence",
        f"Among equally confident predictions of “{name}”, neuron {dim} {'supports' if sign > 0 else 'opposes'} the "
        f"prediction and is {'more' if sign > 0 else 'less'} active in errors, with a correlation of {observed:.2f} "
        f"(95 % interval {low:.2f} to {high:.2f}, not corrected for the choice of the neuron); p = {p:.3g} by "
        f"{context.permutations} permutations, for {'the strongest neuron' if which == 0 else 'all neurons together'}; "
        f"flagged if the lower end is {MIN_EFFECT:g} or more. " + _describe_score(context, scores, dim),
        f"neurontune suppresses neurons like {', '.join(str(dim) for _, dim in strongest)} without any attribute; look "
        "first at the examples that activate them.",
        shortcut=f"neuron {dim}" if flagged else None,
        numbers=numbers,
        rows=top_rows(sign * context.features[:, dim].abs(), errors) if flagged else (),
        items=tuple(_plot(context, compared, *pair) for pair in strongest),
    )


def compare_neurons(context: AuditContext) -> NeuronComparison | None:
    """Compare every neuron between errors and correct predictions of each predicted label; None if impossible."""
    strata = stratify_predictions(context)
    order = make_orders(strata.stratum, context.permutations, context.seeds.generator(NAME, "permutations"))
    centred_errors = subtract_stratum_means(context.incorrect[:, None], strata.stratum).flatten()
    residuals = strata.residuals(context.incorrect[:, None])
    n_labels, d = context.logits.shape[1], context.features.shape[1]
    z, r, sign = (torch.zeros(n_labels, d, dtype=torch.double) for _ in range(3))
    size = context.features.double().abs()
    largest, total = (torch.zeros(len(order), dtype=torch.double) for _ in range(2))
    report = progress_reporter("neurons", n_labels)
    for label in range(n_labels):
        report(label)
        rows = (strata.predicted == label).nonzero().flatten()
        n_errors = int(context.incorrect[rows].sum())
        if n_errors < MIN_EXAMPLES or len(rows) - n_errors < MIN_EXAMPLES:
            continue
        x, scale = _size_residuals(size[rows], _select(strata, rows), centred_errors[rows])
        incorrect = (context.y[order[:, rows]] != label).double()  # permutations do not change predictions
        z_all = incorrect @ (x / scale)
        sign[label] = _compute_sign(size, strata.predicted == label)
        largest = torch.maximum(largest, (z_all * sign[label]).amax(dim=1))
        total += (z_all**2).sum(dim=1)
        z[label] = z_all[0]
        r[label] = (residuals[rows].T @ x).flatten() / (x.norm(dim=0) * residuals[rows].norm()).clamp(min=EPSILON)
    return NeuronComparison(z, r, sign, torch.stack([largest, total], dim=1)) if float(total[0]) > 0 else None


def _compute_sign(size: Tensor, is_predicted: Tensor) -> Tensor:
    """Return the sign of every neuron's correlation with a prediction; 0 if it is small."""
    centred, target = size - size.mean(dim=0), is_predicted.double() - is_predicted.double().mean()
    r = correlate_columns(centred, target[:, None])
    return torch.where(r.abs() >= MIN_CORRELATION, r.sign(), 0.0)


def _size_residuals(size: Tensor, strata: PredictionStrata, centred_errors: Tensor) -> tuple[Tensor, Tensor]:
    """Return residuals of the sizes of neurons, and their standard deviations under permuted labels."""
    x = strata.residuals(size)
    varies = x.norm(dim=0) > 1e-6 * size.norm(dim=0).clamp(min=EPSILON)
    count = torch.bincount(strata.stratum).double()
    squares = torch.zeros_like(count).index_add(0, strata.stratum, centred_errors**2) / (count - 1).clamp(min=1)
    scale = (squares[strata.stratum] @ x**2).sqrt()
    return x, scale.where(varies & (scale > EPSILON), torch.inf)  # z of a constant neuron is 0


def _select(strata: PredictionStrata, rows: Tensor) -> PredictionStrata:
    """Return the rows of one predicted label, with strata numbered from 0."""
    number = (torch.bincount(strata.stratum[rows]) > 0).cumsum(dim=0) - 1
    return PredictionStrata(torch.zeros_like(rows), number[strata.stratum[rows]], strata.confidence[rows])


def _bootstrap(context: AuditContext, label: int, dim: int, sign: int) -> tuple[float, float]:
    strata = stratify_predictions(context)
    rows = (strata.predicted == label).nonzero().flatten()
    x = _select(strata, rows).residuals(context.features[rows, dim : dim + 1].abs())[:, 0]
    residuals = strata.residuals(context.incorrect[:, None])[rows, 0]
    return bootstrap_correlation(sign * x, residuals, context.seeds.generator(NAME, "bootstrap"))


def _describe_score(context: AuditContext, scores: Scores, dim: int) -> str:
    """Return a sentence with the largest NeuronTune score of the neuron."""
    delta = scores.delta[:, dim]
    if bool(delta.isnan().all()):
        return "NeuronTune's score needs errors and correct predictions of one label, and there are none."
    label = int(delta.nan_to_num(nan=-torch.inf).argmax())
    return (
        f"NeuronTune's score of it is {float(delta[label]):.3g}, from {int(scores.incorrect[label])} errors and "
        f"{int(scores.correct[label])} correct predictions of the label “{label_name(context, label)}”."
    )


def _plot(context: AuditContext, compared: NeuronComparison, label: int, dim: int) -> Figure:
    rows = context.predicted == label
    name, r = label_name(context, label), float(compared.r[label, dim])
    title = f"Neuron {dim} for predictions of {name}: correlation {r:.2f} at equal confidence"
    return plot_distributions(context.features[rows, dim].abs(), ~context.incorrect[rows], title)
