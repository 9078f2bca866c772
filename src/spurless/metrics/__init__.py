"""Metrics: tensors in, numbers out; the table says what each number is and what it needs."""

from __future__ import annotations

from dataclasses import dataclass

from spurless.metrics.association import Association, associate
from spurless.metrics.calibration import calibration_by_group, expected_calibration_error
from spurless.metrics.groupwise import GroupTable, group_table
from spurless.metrics.intervals import Paired, Spread, bootstrap_worst, over_seeds, paired, wilson
from spurless.metrics.selective import (
    COVERAGES,
    Kept,
    RiskCoverage,
    Selective,
    risk_coverage,
    selective_table,
    threshold_for,
    thresholds_for,
)


@dataclass(frozen=True)
class MetricInfo:
    """One row of the table of metrics."""

    name: str
    what: str
    needs: str


METRICS: dict[str, MetricInfo] = {
    info.name: info
    for info in (
        # the names of GroupTable.summary(), in its order
        MetricInfo("average", "accuracy over the split as it is", "labels"),
        MetricInfo("adjusted_average", "group accuracies weighted by training size", "attributes, training counts"),
        MetricInfo("balanced_average", "mean accuracy of the groups", "attributes"),
        MetricInfo("worst_group", "lowest accuracy of a group", "attributes"),
        MetricInfo("gap", "average minus worst group", "attributes"),
        MetricInfo("unbiased", "mean accuracy of the groups, attribute independent of label", "paired attributes"),
        MetricInfo("aligned", "mean accuracy where the shortcut is right", "paired attributes"),
        MetricInfo("conflicting", "mean accuracy where the shortcut is wrong", "paired attributes"),
        MetricInfo("worst_class", "lowest recall of a class", "labels"),
        MetricInfo("balanced_accuracy", "mean recall of the classes", "labels"),
        MetricInfo("resolution", "what one example of the worst group is worth", "attributes"),
        # the others
        MetricInfo("ece", "expected calibration error of the split", "probabilities, labels"),
        MetricInfo("worst_group_ece", "highest calibration error of a group", "probabilities, attributes"),
        MetricInfo("loss", "mean cross-entropy of the split", "probabilities, labels"),
        MetricInfo("ece_by_group", "expected calibration error of every group", "probabilities, attributes"),
        MetricInfo("goodman_kruskal", "mistakes of the majority guess that the attribute removes", "attributes"),
        MetricInfo("cramers_v", "association of label and attribute by chi-squared", "attributes"),
        MetricInfo("cramers_v_corrected", "the same without its small-sample bias", "attributes"),
        MetricInfo("mutual_information", "what the attribute says about the label, in bits", "attributes"),
        MetricInfo("normalised", "share of the label's entropy that the attribute explains", "attributes"),
        # the names of Selective.summary(), in its order
        MetricInfo("aurc", "area under the risk-coverage curve: mean error of the k surest", "scores, labels"),
        MetricInfo("excess_aurc", "AURC minus that of a score that puts every mistake last", "scores, labels"),
        MetricInfo("worst_group_aurc", "highest AURC within a group", "scores, attributes"),
        *(
            MetricInfo(f"{name}_at_{100 * coverage:g}", f"{what} at a threshold for {coverage:.0%} of val", needs)
            for coverage in COVERAGES
            for name, what, needs in (
                ("coverage", "share of the split that is predicted", "scores"),
                ("error", "error of what is predicted", "scores, labels"),
                ("worst_group_error", "highest error of a group among what is predicted", "scores, attributes"),
            )
        ),
        # what a sweep adds, and its --study
        MetricInfo("val_average", "accuracy on the validation split, by which a sweep stops", "validation labels"),
        MetricInfo("activation_compressibility", "how much of a representation a tenth of it holds", "representations"),
        MetricInfo("activation_sparsity", "share of zeros in representations", "representations"),
        MetricInfo("pq_index", "sparsity of representations by the ratio of two norms", "representations"),
        MetricInfo("class_separation", "R squared of classes among representations", "representations, labels"),
        MetricInfo("bias_separation", "the same of attributes", "representations, attributes"),
        MetricInfo("csi", "how much a neuron prefers one class, mean over neurons", "representations, labels"),
        MetricInfo("bsi", "the same of attributes", "representations, attributes"),
        MetricInfo("prunability", "share of accuracy left, mean over shares of pruned neurons", "weights, labels"),
        MetricInfo("pruned_accuracy", "accuracy, mean over shares of pruned neurons", "weights, labels"),
    )
}
"""Every metric by name. "paired attributes" are as many as the labels, value i going with label i."""

__all__ = [
    "COVERAGES",
    "METRICS",
    "Association",
    "GroupTable",
    "Kept",
    "MetricInfo",
    "Paired",
    "RiskCoverage",
    "Selective",
    "Spread",
    "associate",
    "bootstrap_worst",
    "calibration_by_group",
    "expected_calibration_error",
    "group_table",
    "over_seeds",
    "paired",
    "risk_coverage",
    "selective_table",
    "threshold_for",
    "thresholds_for",
    "wilson",
]
