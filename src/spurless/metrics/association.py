r"""Association: how much the attribute alone says about the label.

From the counts :math:`n_{ya}` of label and attribute,

.. math::
    \lambda &= \frac{\sum_a \max_y n_{ya} - \max_y n_y}{n - \max_y n_y}, \qquad
    V = \sqrt{\frac{\chi^2 / n}{\min(r, c) - 1}}, \\
    I &= \sum_{ya} p_{ya} \log_2 \frac{p_{ya}}{p_y p_a}, \qquad U = I / H(y),

all 0 where the attribute says nothing, and :math:`\lambda, V, U` are 1 where it gives the label away.
Lambda is 0 too where the majority label stays the best guess for every attribute; the others are not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.metrics.groupwise import check_cells


@dataclass(frozen=True, eq=False)
class Association:
    """How label and attribute go together, over the ``n`` examples whose attribute is known."""

    counts: Tensor
    """examples of each label (rows) and attribute value (columns)"""
    n: int
    goodman_kruskal: float
    """lambda: the share of the majority guess's mistakes that knowing the attribute removes"""
    cramers_v: float
    cramers_v_corrected: float
    """the same without the bias that makes V positive in small samples (Bergsma 2013)"""
    mutual_information: float
    """in bits"""
    normalised: float
    """U: the share of the label's entropy that the attribute explains"""
    attribute: str = ""
    """which of several overlapping attributes"""
    columns: tuple[Association, ...] = ()
    """one for each overlapping attribute that is known anywhere"""


def associate(y: Tensor, a: Tensor, groups: Groups) -> Association:
    """Measure the association of label and attribute; examples with a hidden attribute are left out.

    Overlapping attributes are measured one by one, having it against not having it. The result is that of
    the attribute that explains most of the label, and ``columns`` has them all.

    Example:
        >>> groups = Groups(labels=("no", "yes"), attributes=("left", "right"))
        >>> y, a = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 0, 1])
        >>> associate(y, a, groups).goodman_kruskal  # 75/25: the attribute removes the one mistake
        1.0

    Raises:
        BadInput: there is no attribute, or it is hidden for every example.
    """
    if not groups.attributes:
        raise BadInput("the groups have no attribute to associate with the label")
    check_cells(y, a, groups)
    a = a.to(y.device)
    if not groups.overlap:
        return _measured(y, a, groups)
    a = a.reshape(len(a), -1)
    columns = tuple(
        _measured(y, a[:, i], groups.column(name), name)
        for i, name in enumerate(groups.attributes)
        if bool((a[:, i] >= 0).any())
    )
    if not columns:
        raise _hidden()
    top = max(columns, key=lambda column: column.normalised)
    return Association(**{**top.__dict__, "columns": columns})


def goodman_kruskal(counts: Tensor) -> float:
    """Return lambda of a table of label (rows) by attribute (columns); 0 where there is one label only."""
    counts = _table(counts)
    majority = counts.sum(dim=1).max()
    informed = counts.max(dim=0).values.sum()
    mistakes = counts.sum() - majority
    return float((informed - majority) / mistakes) if mistakes > 0 else 0.0


def cramers_v(counts: Tensor, corrected: bool = False) -> float:
    """Return Cramér's V of a table; 0 where the label or the attribute has one value only.

    Args:
        counts: examples of each label (rows) and attribute (columns).
        corrected: subtract what independent variables would show by chance (Bergsma 2013).
    """
    counts = _table(counts)
    counts = counts[counts.sum(dim=1) > 0][:, counts.sum(dim=0) > 0]  # a value that never occurs is no value
    n, (r, c) = float(counts.sum()), counts.shape
    if min(r, c) < 2:
        return 0.0
    expected = counts.sum(dim=1, keepdim=True) * counts.sum(dim=0, keepdim=True) / n
    phi = float(((counts - expected) ** 2 / expected).sum()) / n  # chi^2 / n
    if not corrected:
        return math.sqrt(min(phi / (min(r, c) - 1), 1.0))
    phi = max(0.0, phi - (r - 1) * (c - 1) / (n - 1))
    room = min(r - (r - 1) ** 2 / (n - 1), c - (c - 1) ** 2 / (n - 1)) - 1
    return math.sqrt(min(phi / room, 1.0)) if room > 0 else 0.0  # no room: fewer examples than values


def mutual_information(counts: Tensor) -> float:
    """Return the mutual information of a table, in bits."""
    counts = _table(counts)
    return max(0.0, _bits(counts.sum(dim=1)) + _bits(counts.sum(dim=0)) - _bits(counts.flatten()))


def normalised_information(counts: Tensor) -> float:
    """Return the share of the label's entropy that the attribute explains; 0 where there is one label only."""
    entropy = _bits(_table(counts).sum(dim=1))
    return min(mutual_information(counts) / entropy, 1.0) if entropy > 0 else 0.0


def _measured(y: Tensor, a: Tensor, groups: Groups, attribute: str = "") -> Association:
    known = groups.known(a)
    if not bool(known.any()):
        raise _hidden()
    groups = replace(groups, mixed=False)  # of a domain, too, the labels are counted
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


def _hidden() -> BadInput:
    return BadInput(
        "no attribute is known, so nothing can be said of its association with the label",
        do="Pass data with attributes.",
    )


def _table(counts: Tensor) -> Tensor:
    if counts.dim() != 2 or bool((counts < 0).any()) or float(counts.sum()) <= 0:
        raise BadInput("counts must be a table of labels by attributes, not empty", got=counts.tolist())
    return counts.double()


def _bits(counts: Tensor) -> float:
    p = counts[counts > 0] / counts.sum()
    return float(-(p * p.log2()).sum())
