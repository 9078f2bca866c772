r"""Group gap: is the accuracy lower for some attribute value, among examples of the same label?

Of the :math:`n_y` examples of a label, :math:`w_y` are predicted incorrectly; of the :math:`n_g` in a group (the label
with one attribute value), :math:`k_g` are. With :math:`p_y = w_y / n_y`, every group has the deviation

.. math:: z_g = \frac{k_g - n_g p_y}{\sqrt{n_g p_y (1 - p_y) (n_y - n_g) / (n_y - 1)}}.

There are two statistics: the largest :math:`|z_g|`, for one bad group, and :math:`\sum_g z_g^2`, for many small groups.
Null hypothesis: given the label, errors are independent of the attribute; the better of the two statistics is compared
with the better of the two when attributes are permuted among the examples of each label.

The gap of a group is the difference in accuracy between the examples of its label with the value and those without. The
finding names the gap with the largest lower end of its 95 % interval (Newcombe's); a value can be named because it
hurts, or because a label is lost without it. Severity: that lower end, at least 0.

Limits: a group may be harder without any shortcut. The p-value is for all groups together. A gap chosen for its size is
somewhat overestimated in small groups. Each of several attribute columns has its own groups and its own two statistics;
the better one of a column is compared with the largest standardized one of every permutation. The column with the
largest gap among the significant ones is named.

Newcombe, "Interval estimation for the difference between independent proportions", Statistics in Medicine 17, 1998,
method 10; Sagawa et al., "Distributionally Robust Neural Networks for Group Shifts", ICLR 2020, for the worst group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spurless.auditing._context import AuditContext, format_fraction, make_finding, top_rows
from spurless.auditing._figures import Axis, Series, bars
from spurless.auditing._permutation import adjust_p_values, best_p_value, iter_permutations
from spurless.auditing.attribute_association import (
    KnownAttributes,
    attributes_not_tested,
    choose_column,
    describe_columns,
    select_known,
)
from spurless.core.figures import Figure
from spurless.core.findings import Finding
from spurless.core.stats import newcombe_interval
from spurless.metrics.groupwise import GroupTable, group_table

NAME = "group-gap"
QUESTION = "Is the model worse on examples of the same label that have another attribute?"
MIN_EFFECT = 0.1  # smallest lower end of the gap's interval that is flagged: small gaps occur in every model
MAX_BARS = 12  # groups in the figure, the worst ones


@dataclass(frozen=True)
class Gap:
    """The accuracies of one label with an attribute value and without it."""

    label: str
    value: str
    hurts: bool  # whether examples with the value are worse
    group: int
    worse: tuple[int, int]  # correct predictions and examples of the worse side
    better: tuple[int, int]

    @property
    def size(self) -> float:
        """Difference in accuracy."""
        return self.better[0] / self.better[1] - self.worse[0] / self.worse[1]

    @property
    def resolution(self) -> float:
        """Accuracy that one example of the worse side stands for."""
        return 1 / self.worse[1]

    @property
    def interval(self) -> tuple[float, float]:
        """Newcombe's 95 % interval of the size."""
        return newcombe_interval(self.better, self.worse)


@dataclass(frozen=True, eq=False)
class _GroupCounts:
    """The groups of a split with their label, sizes and errors."""

    member: Tensor  # membership, ``(N, G)``
    label: Tensor
    size: Tensor
    label_size: Tensor  # examples of each group's label
    label_errors: Tensor  # errors among them

    @property
    def testable(self) -> Tensor:
        """Groups that can differ: neither empty nor all of their label, which has errors and correct predictions."""
        mixed = (self.label_errors > 0) & (self.label_errors < self.label_size)
        return mixed & (self.size > 0) & (self.size < self.label_size)

    def deviations(self, errors: Tensor) -> Tensor:
        """Return z of every group with the given number of errors, ``(..., G)``; 0 if it cannot differ."""
        n, size, p = self.label_size.double(), self.size.double(), self.label_errors.double() / self.label_size
        spread = (size * p * (1 - p) * (n - size) / (n - 1)).sqrt()
        return torch.where(self.testable, (errors - size * p) / spread, 0.0)


def audit_group_gap(context: AuditContext) -> Finding:
    """Return the group with the largest gap to the other examples of its label."""
    known = select_known(context.split)
    incorrect = context.incorrect[known.rows]
    columns = [
        (part, counts) for part in known.parts if bool((counts := _count_groups(part, incorrect)).testable.any())
    ]
    if not columns:
        why = "No label has more than one attribute value and both errors and correct predictions."
        return attributes_not_tested(NAME, known, why, shows_use=False)
    gaps = [_find_largest_gap(part, counts, incorrect) for part, counts in columns]
    p_values = _test_columns([_compute_statistics(part, counts, incorrect, context) for part, counts in columns])
    lower_ends = torch.tensor([gap.interval[0] for gap in gaps], dtype=torch.double)
    which = choose_column(p_values, lower_ends, context.level)
    (known, counts), gap, p = columns[which], gaps[which], float(p_values[which])
    all_columns, more = describe_columns(
        [part.name for part, _ in columns], "lower end of the gap", lower_ends, p_values
    )
    table = group_table(context.predicted[known.rows], known.y, known.a, known.groups)
    low, high = gap.interval
    flagged = p <= context.level and low >= MIN_EFFECT
    sides = ("with", "without") if gap.hurts else ("without", "with")
    numbers = {
        "gap": gap.size, "low": low, "high": high, "resolution": gap.resolution, "average": table.average,
        "worst_group": table.worst[0], "gap_to_average": table.gap, "worst_group_resolution": table.resolution, **more,
    }  # fmt: skip
    return make_finding(
        NAME,
        (p, low, flagged),
        f"“{gap.label}” is more often incorrect {sides[0]} “{gap.value}”{f' ({known.name})' if known.name else ''}",
        "No group is much worse than the others of its label",
        f"The accuracy of “{gap.label}” {sides[0]} “{gap.value}” is {format_fraction(*gap.worse)}, {sides[1]} it "
        f"{format_fraction(*gap.better)}: a gap of {100 * gap.size:.1f} points (95 % interval {100 * low:.1f} to "
        f"{100 * high:.1f}; one example is worth {100 * gap.resolution:.1f}); p = {p:.3g} by {context.permutations} "
        f"permutations; flagged if the lower end is {100 * MIN_EFFECT:g} or more. The average accuracy is "
        f"{100 * table.average:.1f} %, that of the worst group “{table.worst[1]}” {100 * table.worst[0]:.1f} %."
        + all_columns,
        "Train for the worst group: group-dro if training has attributes, dfr if only some held-out examples do, "
        "neurontune without any; or collect more examples of that group.",
        shows_use=False,  # a group may be hard without a shortcut; attribute-use tests use
        shortcut=known.name or gap.value,
        numbers=numbers,
        rows=_find_errors(context, known, counts, gap),
        items=(_plot(table),),
    )


def _count_groups(known: KnownAttributes, incorrect: Tensor) -> _GroupCounts:
    groups, y = known.groups, known.y
    label = torch.arange(len(groups.labels)).repeat_interleave(max(1, len(groups.attributes)))
    member = groups.membership(y, known.a)
    label_size, label_errors = (torch.bincount(v, minlength=len(groups.labels)) for v in (y, y[incorrect]))
    return _GroupCounts(member, label, member.sum(dim=0), label_size[label], label_errors[label])


def _compute_statistics(
    known: KnownAttributes, counts: _GroupCounts, incorrect: Tensor, context: AuditContext
) -> Tensor:
    """Return the two statistics of the data and of every permutation, ``(1 + permutations, 2)``."""
    member = counts.member.float()  # counts are exact up to 16 million
    generator = context.seeds.generator(NAME, "permutations")
    errors = [incorrect.float()[None] @ member]
    permutations = iter_permutations(known.y, context.permutations, generator)
    errors += [incorrect[rows].float() @ member for rows in permutations]
    z = counts.deviations(torch.cat(errors).double())
    return torch.stack([z.abs().amax(dim=1), (z**2).sum(dim=1)], dim=1)


def _test_columns(statistics: list[Tensor]) -> Tensor:
    """Return the p-value of every column, corrected for the two statistics of each and for the number of columns."""
    if len(statistics) == 1:
        return torch.tensor([best_p_value(statistics[0])[0]], dtype=torch.double)
    return adjust_p_values(torch.cat(statistics, dim=1)).reshape(-1, 2).amin(dim=1)


def _find_largest_gap(known: KnownAttributes, counts: _GroupCounts, incorrect: Tensor) -> Gap:
    """Return the gap with the largest lower end; of two values that mirror each other, the one that hurts."""
    errors = counts.member[incorrect].sum(dim=0)
    z = counts.deviations(errors.double())
    groups = counts.testable.nonzero().flatten().tolist()
    gaps = [_make_gap(known, counts, g, int(errors[g]), hurts=bool(z[g] > 0)) for g in groups]
    return max(gaps, key=lambda gap: (round(gap.interval[0], 9), gap.hurts, abs(float(z[gap.group]))))


def _make_gap(known: KnownAttributes, counts: _GroupCounts, g: int, errors: int, *, hurts: bool) -> Gap:
    n = int(counts.size[g])
    correct, others = n - errors, int(counts.label_size[g]) - n
    inside, outside = (correct, n), (int(counts.label_size[g] - counts.label_errors[g]) - correct, others)
    return Gap(
        known.groups.labels[int(counts.label[g])],
        known.groups.attributes[g % len(known.groups.attributes)],
        hurts,
        g,
        *((inside, outside) if hurts else (outside, inside)),
    )


def _find_errors(context: AuditContext, known: KnownAttributes, counts: _GroupCounts, gap: Gap) -> tuple[int, ...]:
    """Return the errors of the worse side, the most confident first."""
    inside = counts.member[:, gap.group]
    worse = inside if gap.hurts else (known.y == counts.label[gap.group]) & ~inside
    top = top_rows(context.margin[known.rows], worse & context.incorrect[known.rows])
    return tuple(known.rows[list(top)].tolist())


def _plot(table: GroupTable) -> Figure:
    order = table.accuracy.nan_to_num(nan=torch.inf).argsort(stable=True)
    groups = [g for g in order.tolist() if int(table.count[g])][:MAX_BARS]
    names = [table.groups.name(g) for g in groups]
    accuracy, low, high = ((100 * v[groups]).tolist() for v in (table.accuracy, table.low, table.high))
    caption = f"95 % Wilson intervals; the dotted line is the average. {len(groups)} of {len(table.groups)} groups."
    series, axis = [Series("accuracy", accuracy, "@bad", low, high, kind="markers")], Axis("accuracy in %", (-3, 103))
    figure = bars(("Accuracy of the groups", caption), names, series, values=axis, horizontal=True)
    average = {"type": "line", "x0": 100 * table.average, "x1": 100 * table.average, "y0": 0, "y1": 1, "yref": "paper"}
    average |= {"line": {"color": "@muted", "dash": "dot", "width": 1}}
    return replace(figure, spec=figure.spec | {"layout": figure.spec["layout"] | {"shapes": [average]}})
