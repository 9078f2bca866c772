"""The table of metrics: name, label, unit and direction of every number that a record can contain.

:mod:`spurless.metrics` computes them; this module does not import torch, so that pages can be built without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

Unit: TypeAlias = Literal["fraction", "points", "number"]
"""How to print a value: a fraction as 93.1 %, a difference of fractions as 4.2 points, any other number as it is."""

COVERAGES = (1.0, 0.95, 0.9, 0.85, 0.8)  # default target coverages of a selective model (MaskTune, table 7)


@dataclass(frozen=True)
class MetricInfo:
    """One row of the table of metrics."""

    name: str  # key in ``record.metrics``
    label: str  # short title for tables and pages
    description: str  # what is measured, as a phrase without a full stop
    needs: str  # what the metric is computed from, besides predictions
    unit: Unit = "fraction"  # how to print the value
    higher_is_better: bool | None = True  # direction of improvement; None if neither direction is better


_lower = partial(MetricInfo, higher_is_better=False)
_neutral = partial(MetricInfo, unit="number", higher_is_better=None)


def _selective_metrics(coverage: float) -> tuple[MetricInfo, ...]:
    """Return the three metrics of a model that predicts on about ``coverage`` of the data."""
    suffix, title = f"_at_{100 * coverage:g}", f"at {coverage:.0%}"
    condition = f"at the threshold that accepts {coverage:.0%} of val"
    error, worst = "error on accepted examples", "highest error of a group on accepted examples"
    return (
        MetricInfo(f"coverage{suffix}", f"Coverage {title}", f"fraction of examples accepted {condition}", "scores"),
        _lower(f"error{suffix}", f"Error {title}", f"{error} {condition}", "scores, labels"),
        _lower(
            f"worst_group_error{suffix}", f"Worst-group error {title}", f"{worst} {condition}", "scores, attributes"
        ),
    )


_GROUP_METRICS = (  # the keys of GroupTable.summary(), in its order
    MetricInfo("average", "Average", "accuracy on the whole split", "labels"),
    MetricInfo(
        "adjusted_average",
        "Adjusted average",
        "group accuracies weighted by the group's size in train",
        "attributes, train counts",
    ),
    MetricInfo("balanced_average", "Balanced average", "unweighted mean of the group accuracies", "attributes"),
    MetricInfo("worst_group", "Worst group", "lowest accuracy of a group", "attributes"),
    _lower("gap", "Gap", "average minus worst group", "attributes", "points"),
    MetricInfo(
        "unbiased",
        "Unbiased",
        "unweighted mean of the group accuracies, if each label has its own attribute",
        "paired attributes",
    ),
    MetricInfo("aligned", "Aligned", "mean accuracy of the groups in which the shortcut is right", "paired attributes"),
    MetricInfo(
        "conflicting", "Conflicting", "mean accuracy of the groups in which the shortcut is wrong", "paired attributes"
    ),
    MetricInfo("worst_class", "Worst class", "lowest recall of a class", "labels"),
    MetricInfo("balanced_accuracy", "Balanced accuracy", "unweighted mean of the class recalls", "labels"),
    MetricInfo(
        "resolution",
        "Resolution",
        "change of the worst-group accuracy by one example of that group",
        "attributes",
        "points",
        higher_is_better=None,
    ),
)
_CALIBRATION_METRICS = (
    _lower("ece", "Calibration error", "expected calibration error of the split", "probabilities, labels"),
    _lower(
        "worst_group_ece",
        "Worst-group calibration error",
        "highest expected calibration error of a group",
        "probabilities, attributes",
    ),
    _lower("loss", "Log loss", "mean cross-entropy", "probabilities, labels", "number"),
    _lower(
        "ece_by_group",
        "Calibration error by group",
        "expected calibration error of each group",
        "probabilities, attributes",
    ),
)
_ASSOCIATION_METRICS = (  # of the data, so neither direction is better
    _neutral(
        "goodman_kruskal",
        "Goodman-Kruskal lambda",
        "fraction of the majority guess's errors that the attribute removes",
        "attributes",
    ),
    _neutral("cramers_v", "Cramér's V", "chi-squared association of label and attribute", "attributes"),
    _neutral("cramers_v_corrected", "Cramér's V, corrected", "Cramér's V without its small-sample bias", "attributes"),
    _neutral(
        "mutual_information", "Mutual information", "mutual information of label and attribute in bits", "attributes"
    ),
    MetricInfo(
        "normalised",
        "Normalised mutual information",
        "fraction of the label's entropy that the attribute explains",
        "attributes",
        "fraction",
        None,
    ),
)
_SELECTIVE_METRICS = (  # the keys of Selective.summary(), in its order
    _lower(
        "aurc",
        "Risk-coverage area",
        "area under the risk-coverage curve: mean error over all coverages",
        "scores, labels",
    ),
    _lower(
        "excess_aurc",
        "Excess risk-coverage area",
        "risk-coverage area minus that of the best possible score",
        "scores, labels",
    ),
    _lower(
        "worst_group_aurc",
        "Worst-group risk-coverage area",
        "highest risk-coverage area of a group",
        "scores, attributes",
    ),
    *(metric for coverage in COVERAGES for metric in _selective_metrics(coverage)),
)
_SWEEP_METRICS = (  # what a sweep adds to its records, the last ten with --study
    MetricInfo("val_average", "Validation average", "accuracy on the validation split", "validation labels"),
    _neutral(
        "activation_compressibility",
        "Compressibility",
        "how well its largest tenth approximates a representation",
        "representations",
    ),
    _neutral("activation_sparsity", "Activation sparsity", "fraction of zeros in representations", "representations"),
    _neutral("pq_index", "PQ index", "sparsity of representations as a ratio of two norms", "representations"),
    _neutral(
        "class_separation", "Class separation", "R squared of the classes in representations", "representations, labels"
    ),
    _neutral(
        "bias_separation",
        "Bias separation",
        "R squared of the attributes in representations",
        "representations, attributes",
    ),
    _neutral(
        "csi", "Class selectivity", "preference of a neuron for one class, mean over neurons", "representations, labels"
    ),
    _neutral(
        "bsi",
        "Bias selectivity",
        "preference of a neuron for one attribute, mean over neurons",
        "representations, attributes",
    ),
    MetricInfo(
        "prunability",
        "Prunability",
        "fraction of the accuracy left, mean over fractions of pruned neurons",
        "weights, labels",
        "number",
    ),
    MetricInfo(
        "prunability_above_chance",
        "Prunability above chance",
        "fraction of the accuracy above 1 / classes that is left, mean over fractions of pruned neurons",
        "weights, labels",
        "number",
    ),
    MetricInfo(
        "pruned_accuracy",
        "Accuracy under pruning",
        "accuracy, mean over fractions of pruned neurons",
        "weights, labels",
    ),
)

METRICS: dict[str, MetricInfo] = {
    metric.name: metric
    for metric in (*_GROUP_METRICS, *_CALIBRATION_METRICS, *_ASSOCIATION_METRICS, *_SELECTIVE_METRICS, *_SWEEP_METRICS)
}
"""Every metric by name. "Paired attributes" means as many attributes as labels, attribute i going with label i."""
