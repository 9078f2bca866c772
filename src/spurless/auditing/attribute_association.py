r"""Attribute association: are label and attribute associated in the training examples?

With the counts :math:`n_{ya}` of label and attribute in the training split (in the audited split if the former is not
available or hides its attributes), the statistic is Cramér's V of each overlapping attribute separately,

.. math:: V = \sqrt{\frac{\chi^2 / n}{\min(r, c) - 1}}, \qquad
          \chi^2 = \sum_{ya} \frac{(n_{ya} - n_y n_a / n)^2}{n_y n_a / n} .

Null hypothesis: labels and attributes are independent; attributes are permuted over all examples. The smallest p-value
of several attributes is compared with the smallest one of each permutation. Severity: the bias-corrected V (Bergsma
2013) of the named attribute, with a bootstrap interval reflected about the estimate, because a resample adds the same
bias again. This is *presence*, not use: ``attribute_use`` and ``group_gap`` test the model.

Cramér, "Mathematical Methods of Statistics", 1946; Bergsma, "A bias-correction for Cramér's V and Tschuprow's T",
Journal of the Korean Statistical Society 42, 2013; Westfall and Young, "Resampling-Based Multiple Testing", 1993.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from spurless.auditing._context import AuditContext, make_finding, not_tested, top_rows
from spurless.auditing._figures import Axis, Series, bars
from spurless.auditing._permutation import best_p_value, iter_permutations
from spurless.core.figures import Figure
from spurless.core.findings import Finding
from spurless.core.groups import Groups
from spurless.data.split import Split
from spurless.metrics.association import cramers_v, goodman_kruskal, normalised_information

NAME = "attribute-association"
QUESTION = "Are label and attribute associated in the training examples?"
MIN_EFFECT = 0.1  # smallest V that is flagged: a small effect by Cohen's convention
N_RESAMPLES = 999
MAX_BARS = 12  # attribute values in the figure


@dataclass(frozen=True, eq=False)
class AttributeColumn:
    """One attribute of the examples whose attributes are known."""

    name: str  # name of an overlapping attribute; empty if there is only one
    values: tuple[str, ...]
    a: Tensor  # index of the value, ``(N,)``


@dataclass(frozen=True, eq=False)
class KnownAttributes:
    """The examples of a split whose label and attributes are known."""

    rows: Tensor  # their indices in the split
    y: Tensor
    a: Tensor
    groups: Groups

    @property
    def columns(self) -> tuple[AttributeColumn, ...]:
        """The attribute (crossed attributes as one), or one binary column per overlapping attribute."""
        if not len(self.rows):
            return ()
        if not self.groups.overlap:
            return (AttributeColumn("", self.groups.attributes, self.groups.encode(torch.zeros_like(self.y), self.a)),)
        return tuple(
            AttributeColumn(name, self.groups.column(name).attributes, self.a[:, i])
            for i, name in enumerate(self.groups.attributes)
        )


def select_known(split: Split) -> KnownAttributes:
    """Return the examples with known label and attributes, without overlapping attributes that are never known."""
    groups, y, a = replace(split.groups, mixed=False), split.y.cpu(), split.a.cpu()
    if groups.overlap:
        a = a.reshape(len(a), -1)
        is_known = (a >= 0).any(dim=0)
        names = tuple(name for name, known in zip(groups.attributes, is_known.tolist(), strict=True) if known)
        a, groups = a[:, is_known], replace(groups, attributes=names)
    is_complete = groups.known(a) & (y >= 0) if groups.attributes else torch.zeros(len(y), dtype=torch.bool)
    rows = is_complete.nonzero().flatten()
    return KnownAttributes(rows, y[rows], a[rows], groups)


def attributes_not_tested(name: str, known: KnownAttributes, why: str, *, shows_use: bool = True) -> Finding:
    """Return the finding of an attribute audit that cannot be computed; ``why`` applies if attributes are known."""
    if not known.groups.attributes:
        why = "There is no attribute in these examples."
    elif not len(known.rows):
        why = "No example has a known attribute."
    remedy = "Pass more examples with attributes, with several values per label, or run the audits that need none."
    return not_tested(name, why, remedy, shows_use=shows_use)


def audit_attribute_association(context: AuditContext) -> Finding:
    """Return how strongly label and attribute are associated in training."""
    source, where = context.train, "the training examples"
    known = select_known(source) if source is not None else None
    if known is None or not known.columns:
        known, where = select_known(context.split), "the audited examples (training examples are not available)"
    columns = [column for column in known.columns if int(column.a.max()) > int(column.a.min())]
    if not columns or int(known.y.max()) == int(known.y.min()):
        why = "All examples with a known attribute have the same label or the same attribute value."
        return attributes_not_tested(NAME, known, why, shows_use=False)
    p, which = best_p_value(_compute_statistics(known, columns, context))
    column = columns[which]
    counts = _count(known.y, column, known.groups)
    v = cramers_v(counts, corrected=True)
    low, high = _bootstrap(counts, v, context.seeds.generator(NAME, "bootstrap"))
    label, value = divmod(int(_adjusted_residuals(counts).argmax()), len(column.values))
    pair = f"“{known.groups.labels[label]}” and “{column.values[value]}”"
    flagged = p <= context.level and v >= MIN_EFFECT
    numbers = {
        "cramers_v": v, "low": low, "high": high, "goodman_kruskal": goodman_kruskal(counts),
        "normalised_information": normalised_information(counts), "examples": float(len(known.y)),
        "from_train": float(where == "the training examples"),
    }  # fmt: skip
    return make_finding(
        NAME,
        (p, v, flagged),
        f"{pair} are associated in {where}: presence, not use",
        f"Label and attribute are hardly associated in {where}",
        f"Cramér's V is {v:.2f} (95 % interval {low:.2f} to {high:.2f}) over {len(known.y):,} of {where}; "
        f"{_describe_cell(counts, label, value, known.groups.labels[label], column.values[value])}; "
        f"p = {p:.3g} by {context.permutations} permutations; flagged from V = {MIN_EFFECT:g}.",
        "A model can learn this association, but need not: see attribute-use for whether it did. Balanced examples, "
        "group-dro or dfr remove the incentive.",
        shows_use=False,
        shortcut=column.name or column.values[value],
        numbers=numbers,
        rows=_find_conflicting(context, counts, column.name) if flagged else (),
        items=(_plot(counts, column, known.groups.labels, where),),
    )


def batched_cramers_v(tables: Tensor, corrected: bool = False) -> Tensor:
    """Return :func:`spurless.metrics.association.cramers_v` of several tables, ``(tables, labels, values)``."""
    tables = tables.double()
    y, a, n = tables.sum(dim=2, keepdim=True), tables.sum(dim=1, keepdim=True), tables.sum(dim=(1, 2))
    r, c = (y > 0).sum(dim=(1, 2)), (a > 0).sum(dim=(1, 2))  # empty rows and columns do not count
    expected = y * a / n[:, None, None]
    phi = ((tables - expected) ** 2 / expected).nan_to_num(nan=0.0).sum(dim=(1, 2)) / n
    maximum = torch.minimum(r, c).double() - 1
    if corrected:
        phi = (phi - (r - 1) * (c - 1) / (n - 1)).clamp(min=0)
        maximum = torch.minimum(r - (r - 1) ** 2 / (n - 1), c - (c - 1) ** 2 / (n - 1)) - 1
    return torch.where((maximum > 0) & (torch.minimum(r, c) > 1), (phi / maximum).clamp(max=1).sqrt(), 0.0)


def _compute_statistics(known: KnownAttributes, columns: list[AttributeColumn], context: AuditContext) -> Tensor:
    """Return V of the data and of every permutation, ``(1 + permutations, columns)``."""
    generator, n_labels = context.seeds.generator(NAME, "permutations"), len(known.groups.labels)
    permutations = iter_permutations(torch.zeros_like(known.y), context.permutations, generator)
    chunks = []
    for rows in chain([torch.arange(len(known.y))[None]], permutations):
        statistics = []
        for column in columns:
            cells = n_labels * len(column.values)
            g = column.a[rows] + known.y * len(column.values) + cells * torch.arange(len(rows))[:, None]
            tables = torch.bincount(g.flatten(), minlength=len(rows) * cells).reshape(len(rows), n_labels, -1)
            statistics.append(batched_cramers_v(tables))
        chunks.append(torch.stack(statistics, dim=1))
    return torch.cat(chunks)


def _count(y: Tensor, column: AttributeColumn, groups: Groups) -> Tensor:
    shape = len(groups.labels), len(column.values)
    return torch.bincount(y * shape[1] + column.a, minlength=shape[0] * shape[1]).reshape(shape)


def _bootstrap(counts: Tensor, v: float, generator: torch.Generator) -> tuple[float, float]:
    """Return the reflected bootstrap interval of the corrected V."""
    # resampling examples and counting them is a multinomial sample, drawn here as successive binomials.
    cells, n = counts.double().flatten(), float(counts.sum())
    left, mass = torch.full((N_RESAMPLES,), n, dtype=torch.double), n
    samples = torch.zeros(N_RESAMPLES, len(cells), dtype=torch.double)
    for i, cell in enumerate(cells.tolist()):
        fraction = torch.full_like(left, min(1.0, cell / mass) if mass > 0 else 0.0)
        samples[:, i] = torch.binomial(left, fraction, generator=generator)
        left, mass = left - samples[:, i], mass - cell
    resampled = batched_cramers_v(samples.reshape(-1, *counts.shape), corrected=True)
    low, high = torch.quantile(resampled, torch.tensor([0.025, 0.975], dtype=torch.double)).tolist()
    return max(0.0, 2 * v - high), min(1.0, max(0.0, 2 * v - low))


def _adjusted_residuals(counts: Tensor) -> Tensor:
    """Return the deviation of each cell from independence, in standard deviations."""
    n = counts.sum().double()
    y, a = counts.sum(dim=1, keepdim=True) / n, counts.sum(dim=0, keepdim=True) / n
    return ((counts - n * y * a) / (n * y * a * (1 - y) * (1 - a)).sqrt()).nan_to_num(nan=-torch.inf)


def _describe_cell(counts: Tensor, label: int, value: int, label_name: str, value_name: str) -> str:
    inside, label_total = int(counts[label, value]), int(counts[label].sum())
    outside, other_total = int(counts[:, value].sum()) - inside, int(counts.sum()) - label_total
    return (
        f"{100 * inside / label_total:.1f} % of “{label_name}” have “{value_name}”, and "
        f"{100 * outside / max(1, other_total):.1f} % of the others"
    )


def _find_conflicting(context: AuditContext, counts: Tensor, name: str) -> tuple[int, ...]:
    """Return audited examples that conflict with the association: the rarest pairs first, errors first among equals."""
    known = select_known(context.split)
    column = next((c for c in known.columns if c.name == name and len(c.values) == counts.shape[1]), None)
    if column is None:
        return ()
    n = counts.sum().double()
    lift = n * counts / (counts.sum(dim=1, keepdim=True) * counts.sum(dim=0, keepdim=True)).clamp(min=1)
    example_lift = lift[known.y, column.a]
    top = top_rows(context.incorrect[known.rows].double() * 1e-3 - example_lift, example_lift < 1)
    return tuple(known.rows[list(top)].tolist())


def _plot(counts: Tensor, column: AttributeColumn, labels: tuple[str, ...], where: str) -> Figure:
    percent = 100 * counts.double() / counts.sum(dim=1, keepdim=True).clamp(min=1)
    values = sorted(counts.sum(dim=0).argsort(descending=True, stable=True)[:MAX_BARS].tolist())
    more = f"; the {MAX_BARS} most frequent values." if len(column.values) > MAX_BARS else "."
    text = "Attributes of each label", f"Counted over {where}{more}"
    series = [Series(column.values[a], percent[:, a].tolist(), f"@series{i % 8}") for i, a in enumerate(values)]
    return bars(text, list(labels), series, values=Axis("% of each label"), horizontal=True, stacked=True)
