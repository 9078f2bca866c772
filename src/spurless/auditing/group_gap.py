r"""Group gap: is the model worse where the attribute says something else, at the same label?

Of the :math:`n_y` examples of a label, :math:`w_y` are wrong; of those that have the attribute value as well, a group
of :math:`n_g`, :math:`k_g` are. If the value did not matter, :math:`k_g` would be hypergeometric, so with
:math:`p_y = w_y / n_y` every group has the deviation

.. math:: z_g = \frac{k_g - n_g p_y}{\sqrt{n_g p_y (1 - p_y) (n_y - n_g) / (n_y - 1)}}.

Two statistics are taken: the largest :math:`|z_g|`, which one bad group stands out in, and :math:`\sum_g z_g^2`, which
adds up small groups (ten digits in ten colours, three examples each). The better of the two is compared with the
better of the two in every permutation. The null hypothesis is that, given the label, being wrong has nothing to do
with the attribute: attributes are permuted among the examples of each label. Group sizes stay as they are, so that a
group of three is compared with groups of three.

The gap of a group is that between the examples of its label with the value and those without. Named is the one of
which the data vouch for most, which is not the largest :math:`|z_g|`: of many examples a small gap deviates more than
a large one of few, and the few are the minority. A value that hurts is named for the harm; a value without which a
label is lost (a digit that is known in its own colour only) for the help. The severity is the gap that the data vouch
for: the lower end of its 95 % interval (Newcombe's, of two independent shares), at least 0. So three unlucky examples
are no severe gap, and the resolution, what one example of the worse side is worth, is told beside it.

It cannot tell why a group fares worse: it may be harder by nature (small birds on water), without any shortcut;
``attribute_use`` asks whether the attribute itself moves predictions. The p is that of all groups together: that some
differ, not that the named one does. A gap that was chosen because it is large is somewhat too large where groups are
small. It sees little in many groups of three examples where mistakes are spread over all of them. Crossed attributes
make groups of all combinations, overlapping ones are taken one by one.

Newcombe, "Interval estimation for the difference between independent proportions", Statistics in Medicine 17, 1998,
method 10; Sagawa et al., "Distributionally Robust Neural Networks for Group Shifts", ICLR 2020, for the worst group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.auditing.attribute_association import Known, known_attributes, unanswered
from spurless.auditing.chance import best_of, shuffled
from spurless.auditing.subject import Subject, rows_first
from spurless.core.figures import Figure
from spurless.core.findings import Finding
from spurless.metrics.groupwise import GroupTable, group_table
from spurless.metrics.intervals import newcombe

NAME = "group-gap"
QUESTION = "Is the model worse on examples of the same label that have another attribute?"
FLOOR = 0.1
"""Gap that the data must vouch for: a net is never quite even-handed."""
SHOWN = 12
"""Groups of a figure, the worst ones."""


@dataclass(frozen=True)
class Gap:
    """One label, with an attribute value and without it."""

    label: str
    value: str
    hurts: bool
    """whether it is the examples with the value that fare worse"""
    group: int
    worse: tuple[int, int]
    """hits and examples of the side that fares worse"""
    better: tuple[int, int]

    @property
    def size(self) -> float:
        """How much better the better side is."""
        return self.better[0] / self.better[1] - self.worse[0] / self.worse[1]

    @property
    def resolution(self) -> float:
        """What one example of the worse side is worth."""
        return 1 / self.worse[1]

    @property
    def interval(self) -> tuple[float, float]:
        """Newcombe's 95 % interval of the size."""
        return newcombe(self.better, self.worse)


@dataclass(frozen=True, eq=False)
class _Cells:
    """The groups of a split, with the label of each."""

    member: Tensor
    """who is in which, ``(N, G)``"""
    label: Tensor
    size: Tensor
    of_label: Tensor
    """examples of the label of each group"""
    mistakes: Tensor
    """and how many of them are wrong"""

    @property
    def usable(self) -> Tensor:
        """Which groups can differ: neither empty nor all of their label, whose examples are right and wrong."""
        mixed = (self.mistakes > 0) & (self.mistakes < self.of_label)
        return mixed & (self.size > 0) & (self.size < self.of_label)

    def deviations(self, k: Tensor) -> Tensor:
        """Return z of every group that has ``k`` mistakes, ``(..., G)``; 0 of one that cannot differ."""
        n, size, p = self.of_label.double(), self.size.double(), self.mistakes.double() / self.of_label
        spread = (size * p * (1 - p) * (n - size) / (n - 1)).sqrt()
        return torch.where(self.usable, (k - size * p) / spread, 0.0)


def audit_group_gap(subject: Subject) -> Finding:
    """Return the group that fares worst beside the other examples of its label."""
    known = known_attributes(subject.split)
    wrong = subject.wrong[known.rows]
    cells = _cells(known, wrong)
    if not bool(cells.usable.any()):
        why = "No label has more than one attribute value and both hits and mistakes."
        return unanswered(NAME, known, why, shows_use=False)
    p, _ = best_of(_chances(known, cells, wrong, subject))
    gap = _largest(known, cells, wrong)
    table = group_table(subject.predicted[known.rows], known.y, known.a, known.groups)
    low, high = gap.interval
    severity = max(0.0, low)
    flagged = p <= subject.level and severity >= FLOOR
    sides = ("with", "without") if gap.hurts else ("without", "with")
    return Finding(
        NAME,
        f"“{gap.label}” is more often wrong {sides[0]} “{gap.value}”"
        if flagged
        else "No group fares much worse than the others of its label",
        severity,
        flagged,
        p,
        f"“{gap.label}” {sides[0]} “{gap.value}” is right in {_share(gap.worse)}, {sides[1]} it in "
        f"{_share(gap.better)}: a gap of {100 * gap.size:.1f} points (95 % interval {100 * low:.1f} to "
        f"{100 * high:.1f}; one example is worth {100 * gap.resolution:.1f}); p = {p:.3g} by {subject.permutations} "
        f"permutations; flagged if the lower end is {100 * FLOOR:g} or more. On average {100 * table.average:.1f} % "
        f"are right, of the worst group “{table.worst[1]}” {100 * table.worst[0]:.1f} %.",
        "Train for the worst group: group-dro where training has attributes, dfr where only some held-out examples do, "
        "neurontune without any; or collect more examples of that group."
        if flagged
        else "Nothing to do here.",
        shows_use=False,  # a group may be hard by nature; attribute-use asks whether the attribute moves predictions
        shortcut=gap.value,
        numbers={
            "gap": gap.size,
            "low": low,
            "high": high,
            "resolution": gap.resolution,
            "average": table.average,
            "worst_group": table.worst[0],
            "gap_to_average": table.gap,
            "worst_group_resolution": table.resolution,
        },
        rows=_rows(subject, known, cells, gap),
        items=(_figure(table),),
    )


def _cells(known: Known, wrong: Tensor) -> _Cells:
    groups, y = known.groups, known.y
    label = torch.arange(len(groups.labels)).repeat_interleave(max(1, len(groups.attributes)))
    member = groups.membership(y, known.a)
    per_label, mistakes = (torch.bincount(part, minlength=len(groups.labels)) for part in (y, y[wrong]))
    return _Cells(member, label, member.sum(dim=0), per_label[label], mistakes[label])


def _chances(known: Known, cells: _Cells, wrong: Tensor, subject: Subject) -> Tensor:
    """Return the two statistics of the truth and of every permutation, ``(1 + permutations, 2)``."""
    member = cells.member.float()  # counts are exact up to 16 million
    generator = subject.seeds.generator(NAME, "permutations")
    k = [wrong.float()[None] @ member]
    k += [wrong[rows].float() @ member for rows in shuffled(known.y, subject.permutations, generator)]
    z = cells.deviations(torch.cat(k).double())
    return torch.stack([z.abs().amax(dim=1), (z**2).sum(dim=1)], dim=1)


def _largest(known: Known, cells: _Cells, wrong: Tensor) -> Gap:
    """Return the gap of which the data vouch for most; of two values that mirror each other, the one that hurts."""
    k = cells.member[wrong].sum(dim=0)
    z = cells.deviations(k.double())
    gaps = [_gap(known, cells, g, int(k[g]), hurts=bool(z[g] > 0)) for g in cells.usable.nonzero().flatten().tolist()]
    return max(gaps, key=lambda gap: (round(gap.interval[0], 9), gap.hurts, abs(float(z[gap.group]))))


def _gap(known: Known, cells: _Cells, g: int, wrong: int, *, hurts: bool) -> Gap:
    """Return the gap of a group that has so many mistakes."""
    n = int(cells.size[g])
    hits, others = n - wrong, int(cells.of_label[g]) - n
    inside, outside = (hits, n), (int(cells.of_label[g] - cells.mistakes[g]) - hits, others)
    return Gap(
        known.groups.labels[int(cells.label[g])],
        known.groups.attributes[g % len(known.groups.attributes)],
        hurts,
        g,
        *((inside, outside) if hurts else (outside, inside)),
    )


def _share(side: tuple[int, int]) -> str:
    return f"{100 * side[0] / side[1]:.1f} % of {side[1]:,}"


def _rows(subject: Subject, known: Known, cells: _Cells, gap: Gap) -> tuple[int, ...]:
    """Return the mistakes of the side that fares worse, the surest first."""
    inside = cells.member[:, gap.group]
    worse = inside if gap.hurts else (known.y == cells.label[gap.group]) & ~inside
    among = torch.zeros(len(subject), dtype=torch.bool)
    among[known.rows[worse]] = True
    return rows_first(subject.margin, among & subject.wrong)


def _figure(table: GroupTable) -> Figure:
    """Draw the accuracy of the groups with their intervals, the worst first."""
    order = table.accuracy.nan_to_num(nan=torch.inf).argsort(stable=True)
    shown = [g for g in order.tolist() if int(table.count[g])][:SHOWN]
    names = [table.groups.name(g) for g in shown]
    accuracy, low, high = (100 * part[shown] for part in (table.accuracy, table.low, table.high))
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": accuracy.tolist(),
        "y": names,
        "marker": {"color": "@bad", "size": 9},
        "error_x": {"array": (high - accuracy).tolist(), "arrayminus": (accuracy - low).tolist(), "color": "@muted"},
        "hovertemplate": "%{y}<br>%{x:.1f} %<extra></extra>",
    }
    line = {"type": "line", "x0": 100 * table.average, "x1": 100 * table.average, "y0": 0, "y1": 1, "yref": "paper"}
    layout = {
        "xaxis": {"title": {"text": "% right"}, "range": [-3, 103]},
        "yaxis": {"autorange": "reversed", "automargin": True},
        "shapes": [line | {"line": {"color": "@muted", "dash": "dot", "width": 1}}],
    }
    told = "; ".join(f"{name} {float(v):.1f} %" for name, v in zip(names, accuracy, strict=True))
    caption = f"95 % Wilson intervals; the dotted line is the average. {len(shown)} of {len(table.groups)} groups."
    spec = {"data": [trace], "layout": layout}
    return Figure("Accuracy of the groups", caption, spec, f"Accuracy, worst first: {told}.", 100 + 26 * len(shown))
