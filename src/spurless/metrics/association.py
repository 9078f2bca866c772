r"""Association of label and attribute: how well the attribute alone predicts the label.

From the counts :math:`n_{ya}` of label and attribute,

.. math::
    \lambda &= \frac{\sum_a \max_y n_{ya} - \max_y n_y}{n - \max_y n_y}, \qquad
    V = \sqrt{\frac{\chi^2 / n}{\min(r, c) - 1}}, \\
    I &= \sum_{ya} p_{ya} \log_2 \frac{p_{ya}}{p_y p_a}, \qquad U = I / H(y),

all 0 if label and attribute are independent, and :math:`\lambda, V, U` are 1 if the attribute determines the label.
Lambda is also 0 if the majority label is the best guess for every attribute; the others are not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.metrics.groupwise import check_labels_and_attributes


@dataclass(frozen=True, eq=False)
class Association:
    """Association of label and attribute over the ``n`` examples with a known attribute."""

    counts: Tensor  # number of examples of each label (rows) and attribute value (columns)
    n: int
    goodman_kruskal: float  # lambda: the fraction of the majority guess's errors that knowing the attribute removes
    cramers_v: float
    cramers_v_corrected: float  # cramér's V without the bias that makes it positive in small samples (Bergsma 2013)
    mutual_information: float  # in bits
    normalised: float  # U: the fraction of the label's entropy that the attribute explains
    attribute: str = ""  # name of the attribute, if attributes overlap
    columns: tuple[Association, ...] = ()
    """The association of each overlapping attribute that is known for at least one example."""


def associate(y: Tensor, a: Tensor, groups: Groups) -> Association:
    """Measure the association of label and attribute on the examples with a known attribute.

    Overlapping attributes are measured one by one, present against absent. The result is that of the attribute that
    explains most of the label's entropy, and ``columns`` contains all of them.

    Example:
        >>> groups = Groups(labels=("no", "yes"), attributes=("left", "right"))
        >>> y, a = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 0, 1])
        >>> associate(y, a, groups).goodman_kruskal  # 75/25: the attribute removes the one error
        1.0
    """
    check_arguments(associate, locals())
    if not groups.attributes:
        raise InputError("the groups have no attribute")
    check_labels_and_attributes(y, a, groups)
    a = a.to(y.device)
    if not groups.overlap:
        return _measure(y, a, groups)
    a = a.reshape(len(a), -1)
    known = [(i, name) for i, name in enumerate(groups.attributes) if bool((a[:, i] >= 0).any())]
    columns = tuple(_measure(y, a[:, i], groups.column(name), name) for i, name in known)
    if not columns:
        raise _unknown_attribute()
    top = max(columns, key=lambda column: column.normalised)
    return replace(top, columns=columns)


def goodman_kruskal(counts: Tensor) -> float:
    """Return lambda of a table of label (rows) by attribute (columns); 0 if there is only one label."""
    counts = _check_counts(counts)
    majority = counts.sum(dim=1).max()
    informed = counts.max(dim=0).values.sum()
    errors = counts.sum() - majority
    return float((informed - majority) / errors) if errors > 0 else 0.0


def cramers_v(counts: Tensor, corrected: bool = False) -> float:
    """Return Cramér's V of a table; 0 if the label or the attribute has only one value.

    Args:
        counts: number of examples of each label (rows) and attribute (columns).
        corrected: subtract the expectation for independent variables (Bergsma 2013).
    """
    counts = _check_counts(counts)
    counts = counts[counts.sum(dim=1) > 0][:, counts.sum(dim=0) > 0]  # drop values that do not occur
    n, (r, c) = float(counts.sum()), counts.shape
    if min(r, c) < 2:
        return 0.0
    expected = counts.sum(dim=1, keepdim=True) * counts.sum(dim=0, keepdim=True) / n
    phi = float(((counts - expected) ** 2 / expected).sum()) / n  # chi^2 / n
    if not corrected:
        return math.sqrt(min(phi / (min(r, c) - 1), 1.0))
    phi = max(0.0, phi - (r - 1) * (c - 1) / (n - 1))
    largest = min(r - (r - 1) ** 2 / (n - 1), c - (c - 1) ** 2 / (n - 1)) - 1
    return math.sqrt(min(phi / largest, 1.0)) if largest > 0 else 0.0  # 0 or less: fewer examples than values


def mutual_information(counts: Tensor) -> float:
    """Return the mutual information of a table, in bits."""
    counts = _check_counts(counts)
    label, attribute, both = map(_entropy_bits, (counts.sum(dim=1), counts.sum(dim=0), counts.flatten()))
    return max(0.0, label + attribute - both)


def normalised_information(counts: Tensor) -> float:
    """Return the fraction of the label's entropy that the attribute explains; 0 if there is only one label."""
    entropy = _entropy_bits(_check_counts(counts).sum(dim=1))
    return min(mutual_information(counts) / entropy, 1.0) if entropy > 0 else 0.0


def _measure(y: Tensor, a: Tensor, groups: Groups, attribute: str = "") -> Association:
    known = groups.known(a)
    if not bool(known.any()):
        raise _unknown_attribute()
    groups = replace(groups, mixed=False)  # domains are counted per label too
    g = groups.encode(y[known], a[known])
    counts = torch.bincount(g, minlength=len(groups)).reshape(len(groups.labels), -1).cpu()
    return Association(
        counts,
        int(known.sum()),
        goodman_kruskal(counts),
        cramers_v(counts),
        cramers_v(counts, corrected=True),
        mutual_information(counts),
        normalised_information(counts),
        attribute,
    )


def _unknown_attribute() -> InputError:
    what = "the attribute is unknown for every example, so its association with the label cannot be measured"
    return InputError(what, hint="Pass data with attributes.")


def _check_counts(counts: Tensor) -> Tensor:
    if counts.dim() != 2 or bool((counts < 0).any()) or float(counts.sum()) <= 0:
        raise InputError("counts must be a non-empty table of labels by attributes", got=counts.tolist())
    return counts.double()


def _entropy_bits(counts: Tensor) -> float:
    p = counts[counts > 0] / counts.sum()
    return float(-(p * p.log2()).sum())
