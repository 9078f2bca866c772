r"""Attribute association: do label and attribute go together in the examples that the model learnt from?

With the counts :math:`n_{ya}` of label and attribute in the training split (in the audited one where the other is not
at hand or hides its attributes; the finding says which), the statistic is Cramér's V,

.. math:: V = \sqrt{\frac{\chi^2 / n}{\min(r, c) - 1}}, \qquad
          \chi^2 = \sum_{ya} \frac{(n_{ya} - n_y n_a / n)^2}{n_y n_a / n},

of each overlapping attribute on its own. The null hypothesis is that labels and attributes were put together at
random: attributes are permuted over all examples. Of several attributes, the smallest p is compared with the smallest
of each permutation. The severity is V without its small-sample bias (Bergsma 2013), of the attribute that is named;
its interval is that of a bootstrap over examples, reflected about the estimate, since a resample is biased upwards
once more.

This is *presence*, not use. It cannot tell whether the model leans on the attribute, nor whether the attribute is part
of what the label means: a beard goes with the label "man" for good reasons. What the model does with it is asked by
``attribute_use`` and ``group_gap``.

Cramér, "Mathematical Methods of Statistics", 1946; Bergsma, "A bias-correction for Cramér's V and Tschuprow's T",
Journal of the Korean Statistical Society 42, 2013; Westfall and Young, "Resampling-Based Multiple Testing", 1993.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from spurless.auditing.chance import best_of, shuffled
from spurless.auditing.subject import Subject, rows_first
from spurless.core.figures import Figure
from spurless.core.findings import Finding
from spurless.core.groups import Groups
from spurless.data.grouped import Grouped
from spurless.metrics.association import cramers_v, goodman_kruskal, normalised_information

NAME = "attribute-association"
QUESTION = "Do label and attribute go together in the examples that the model learnt from?"
FLOOR = 0.1
"""V below which nothing is flagged: a small effect by Cohen's convention. Two even labels: 55 of 100 are aligned."""
RESAMPLES = 999
SHOWN = 12
"""Attribute values of a figure."""


@dataclass(frozen=True, eq=False)
class Column:
    """One attribute of the examples whose attributes are known."""

    name: str
    """of an overlapping attribute; empty for the only one"""
    values: tuple[str, ...]
    a: Tensor
    """the number of the value, ``(N,)``"""


@dataclass(frozen=True, eq=False)
class Known:
    """The examples of a split whose label and attributes are known."""

    rows: Tensor
    """where they lie in the split"""
    y: Tensor
    a: Tensor
    groups: Groups

    @property
    def columns(self) -> tuple[Column, ...]:
        """The attribute, crossed ones as one; of overlapping ones each: without it, and with it."""
        if not len(self.rows):
            return ()
        if not self.groups.overlap:
            return (Column("", self.groups.attributes, self.groups.encode(torch.zeros_like(self.y), self.a)),)
        return tuple(
            Column(name, self.groups.column(name).attributes, self.a[:, i])
            for i, name in enumerate(self.groups.attributes)
        )


def known_attributes(split: Grouped) -> Known:
    """Return the examples of which everything is known; an overlapping attribute known of nobody is left out."""
    groups, y, a = replace(split.groups, mixed=False), split.y.cpu(), split.a.cpu()
    if groups.overlap:
        a = a.reshape(len(a), -1)
        seen = (a >= 0).any(dim=0)
        names = tuple(name for name, is_seen in zip(groups.attributes, seen.tolist(), strict=True) if is_seen)
        a, groups = a[:, seen], replace(groups, attributes=names)
    fine = groups.known(a) & (y >= 0) if groups.attributes else torch.zeros(len(y), dtype=torch.bool)
    rows = fine.nonzero().flatten()
    return Known(rows, y[rows], a[rows], groups)


def unanswered(name: str, known: Known, why: str, *, shows_use: bool = True) -> Finding:
    """Return what an audit of attributes says where its question has no answer; ``why`` if attributes are known."""
    if not known.groups.attributes:
        why = "There is no attribute in these examples."
    elif not len(known.rows):
        why = "The attribute of no example is known."
    remedy = "Pass more examples with attributes, several values of each label; or ask the audits that need none."
    return Finding(name, "This could not be asked of these examples", 0.0, False, None, why, remedy, shows_use)


def audit_attribute_association(subject: Subject) -> Finding:
    """Return how strongly label and attribute go together in training."""
    source, where = subject.train, "the training examples"
    known = known_attributes(source) if source is not None else None
    if known is None or not known.columns:
        known, where = known_attributes(subject.split), "the audited examples (those of training are not at hand)"
    columns = [column for column in known.columns if int(column.a.max()) > int(column.a.min())]
    if not columns or int(known.y.max()) == int(known.y.min()):
        why = "All examples whose attribute is known have one label, or one attribute value."
        return unanswered(NAME, known, why, shows_use=False)
    p, which = best_of(_chances(known, columns, subject))
    column = columns[which]
    counts = _table(known.y, column, known.groups)
    v = cramers_v(counts, corrected=True)
    low, high = _interval(counts, v, subject.seeds.generator(NAME, "bootstrap"))
    label, value = divmod(int(_surprise(counts).argmax()), len(column.values))
    said = _said(counts, label, value, known.groups.labels[label], column.values[value])
    flagged = p <= subject.level and v >= FLOOR
    return Finding(
        NAME,
        f"{said[0]} go together in {where}: presence, not use"
        if flagged
        else f"Label and attribute hardly go together in {where}",
        v,
        flagged,
        p,
        f"Cramér's V is {v:.2f} (95 % interval {low:.2f} to {high:.2f}) over {len(known.y):,} of {where}; {said[1]}; "
        f"p = {p:.3g} by {subject.permutations} permutations; flagged from V = {FLOOR:g}.",
        "A model can learn this, and need not have: see attribute-use for whether it did. Balanced examples, group-dro "
        "or dfr take the temptation away."
        if flagged
        else "Nothing to do here.",
        shows_use=False,
        shortcut=column.name or column.values[value],
        numbers={
            "cramers_v": v,
            "low": low,
            "high": high,
            "goodman_kruskal": goodman_kruskal(counts),
            "normalised_information": normalised_information(counts),
            "examples": float(len(known.y)),
            "from_train": float(where == "the training examples"),
        },
        rows=_rare(subject, counts, column.name) if flagged else (),
        items=(_figure(counts, column, known.groups.labels, where),),
    )


def cramers_v_of_each(tables: Tensor, corrected: bool = False) -> Tensor:
    """Return :func:`spurless.metrics.association.cramers_v` of many tables at once, ``(tables, labels, values)``."""
    tables = tables.double()
    y, a, n = tables.sum(dim=2, keepdim=True), tables.sum(dim=1, keepdim=True), tables.sum(dim=(1, 2))
    r, c = (y > 0).sum(dim=(1, 2)), (a > 0).sum(dim=(1, 2))  # a value that never occurs is no value
    expected = y * a / n[:, None, None]
    phi = ((tables - expected) ** 2 / expected).nan_to_num(nan=0.0).sum(dim=(1, 2)) / n
    room = torch.minimum(r, c).double() - 1
    if corrected:
        phi = (phi - (r - 1) * (c - 1) / (n - 1)).clamp(min=0)
        room = torch.minimum(r - (r - 1) ** 2 / (n - 1), c - (c - 1) ** 2 / (n - 1)) - 1
    return torch.where((room > 0) & (torch.minimum(r, c) > 1), (phi / room).clamp(max=1).sqrt(), 0.0)


def _chances(known: Known, columns: list[Column], subject: Subject) -> Tensor:
    """Return V of the truth and of every permutation, of every attribute, ``(1 + permutations, columns)``."""
    generator, n_labels = subject.seeds.generator(NAME, "permutations"), len(known.groups.labels)
    mixed = shuffled(torch.zeros_like(known.y), subject.permutations, generator)
    found = []
    for rows in chain([torch.arange(len(known.y))[None]], mixed):
        of_all = []
        for column in columns:
            cells = n_labels * len(column.values)
            g = column.a[rows] + known.y * len(column.values) + cells * torch.arange(len(rows))[:, None]
            tables = torch.bincount(g.flatten(), minlength=len(rows) * cells).reshape(len(rows), n_labels, -1)
            of_all.append(cramers_v_of_each(tables))
        found.append(torch.stack(of_all, dim=1))
    return torch.cat(found)


def _table(y: Tensor, column: Column, groups: Groups) -> Tensor:
    """Return how many examples have each label (rows) and value (columns)."""
    shape = len(groups.labels), len(column.values)
    return torch.bincount(y * shape[1] + column.a, minlength=shape[0] * shape[1]).reshape(shape)


def _interval(counts: Tensor, v: float, generator: torch.Generator) -> tuple[float, float]:
    """Return the reflected bootstrap interval of the corrected V."""
    # Drawing as many examples again and counting them is a multinomial draw: one binomial after another.
    cells, n = counts.double().flatten(), float(counts.sum())
    left, mass = torch.full((RESAMPLES,), n, dtype=torch.double), n
    drawn = torch.zeros(RESAMPLES, len(cells), dtype=torch.double)
    for i, cell in enumerate(cells.tolist()):
        share = torch.full_like(left, min(1.0, cell / mass) if mass > 0 else 0.0)
        drawn[:, i] = torch.binomial(left, share, generator=generator)
        left, mass = left - drawn[:, i], mass - cell
    again = cramers_v_of_each(drawn.reshape(-1, *counts.shape), corrected=True)
    low, high = torch.quantile(again, torch.tensor([0.025, 0.975], dtype=torch.double)).tolist()
    return max(0.0, 2 * v - high), min(1.0, max(0.0, 2 * v - low))


def _surprise(counts: Tensor) -> Tensor:
    """Return the adjusted residual of each cell: by how many deviations it is fuller than independence has it."""
    n = counts.sum().double()
    y, a = counts.sum(dim=1, keepdim=True) / n, counts.sum(dim=0, keepdim=True) / n
    return ((counts - n * y * a) / (n * y * a * (1 - y) * (1 - a)).sqrt()).nan_to_num(nan=-torch.inf)


def _said(counts: Tensor, label: int, value: int, name: str, word: str) -> tuple[str, str]:
    mine, all_of = int(counts[label, value]), int(counts[label].sum())
    others, all_others = int(counts[:, value].sum()) - mine, int(counts.sum()) - all_of
    return (
        f"“{name}” and “{word}”",
        f"{100 * mine / all_of:.1f} % of “{name}” have “{word}”, and {100 * others / max(1, all_others):.1f} % of the "
        "others",
    )


def _rare(subject: Subject, counts: Tensor, name: str) -> tuple[int, ...]:
    """Return the audited examples that break the association: the rarest pairs first, mistakes before hits."""
    here = known_attributes(subject.split)
    column = next((c for c in here.columns if c.name == name and len(c.values) == counts.shape[1]), None)
    if column is None:
        return ()
    n = counts.sum().double()
    lift = n * counts / (counts.sum(dim=1, keepdim=True) * counts.sum(dim=0, keepdim=True)).clamp(min=1)
    mine = lift[here.y, column.a]
    score, among = torch.zeros(len(subject), dtype=torch.double), torch.zeros(len(subject), dtype=torch.bool)
    score[here.rows] = subject.wrong[here.rows].double() * 1e-3 - mine
    among[here.rows] = mine < 1
    return rows_first(score, among)


def _figure(counts: Tensor, column: Column, labels: tuple[str, ...], where: str) -> Figure:
    """Draw how the values are spread over each label; of many values the most frequent."""
    share = 100 * counts.double() / counts.sum(dim=1, keepdim=True).clamp(min=1)
    shown = sorted(counts.sum(dim=0).argsort(descending=True, stable=True)[:SHOWN].tolist())
    traces = [
        {"type": "bar", "orientation": "h", "y": list(labels), "x": share[:, a].tolist(), "name": column.values[a]}
        | {"marker": {"color": f"@arm{i % 8}"}, "hovertemplate": "%{x:.1f} %"}
        for i, a in enumerate(shown)
    ]
    layout = {"barmode": "stack", "xaxis": {"title": {"text": "% of each label"}}, "yaxis": {"autorange": "reversed"}}
    alt = "; ".join(
        f"{label}: " + ", ".join(f"{column.values[a]} {float(share[y, a]):.0f} %" for a in shown)
        for y, label in enumerate(labels[:SHOWN])
    )
    caption = f"Counted over {where}" + (f"; the {SHOWN} most frequent values." if len(column.values) > SHOWN else ".")
    spec = {"data": traces, "layout": layout}
    return Figure("Attributes of each label", caption, spec, f"Stacked bars. {alt}.", 120 + 26 * min(len(labels), 20))
