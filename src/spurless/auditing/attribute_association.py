r"""Attribute association: are label and attribute associated in the training examples?

With the counts :math:`n_{ya}` of label and attribute in the training split (in the audited split if the former is not
available or hides its attributes), the statistic is Cramér's V of each attribute column separately,

.. math:: V = \sqrt{\frac{\chi^2 / n}{\min(r, c) - 1}}, \qquad
          \chi^2 = \sum_{ya} \frac{(n_{ya} - n_y n_a / n)^2}{n_y n_a / n} .

Null hypothesis: labels and attributes are independent; attributes are permuted over all examples. With several columns
the standardized V of each is compared with the largest one of every permutation, and the column with the largest V
among the significant ones is named. Severity: the bias-corrected V (Bergsma 2013) of the named column, with a bootstrap
interval reflected about the estimate, because a resample adds the same bias again. This is *presence*, not use:
``attribute_use`` and ``group_gap`` test the model.

Cramér, "Mathematical Methods of Statistics", 1946; Bergsma, "A bias-correction for Cramér's V and Tschuprow's T",
Journal of the Korean Statistical Society 42, 2013; Westfall and Young, "Resampling-Based Multiple Testing", 1993.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress

import torch
from torch import Tensor

from spurless.auditing._context import AuditContext, make_finding, not_tested, top_rows
from spurless.auditing._figures import Axis, Series, bars
from spurless.auditing._permutation import adjust_p_values, iter_permutations
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
MAX_LISTED = 8  # columns in a sentence


@dataclass(frozen=True, eq=False)
class AttributeColumn:
    """One attribute of the examples whose attributes are known."""

    name: str  # name of an overlapping attribute or of a crossed column; empty if there is only one
    values: tuple[str, ...]
    a: Tensor  # index of the value, ``(N,)``


@dataclass(frozen=True, eq=False)
class KnownAttributes:
    """The examples of a split whose label and attributes are known."""

    rows: Tensor  # their indices in the split
    y: Tensor
    a: Tensor
    groups: Groups
    name: str = ""  # name of the crossed column, if there is only one of several

    @property
    def columns(self) -> tuple[AttributeColumn, ...]:
        """The attribute, every crossed column, or one binary column per overlapping attribute."""
        groups = self.groups
        if not len(self.rows):
            return ()
        if groups.columns:
            names_and_values = groups.columns
        elif groups.overlap:
            names_and_values = tuple((name, groups.column(name).attributes) for name in groups.attributes)
        else:
            return (AttributeColumn("", groups.attributes, groups.encode(torch.zeros_like(self.y), self.a)),)
        return tuple(AttributeColumn(*names_and_values[i], self.a[:, i]) for i in range(len(names_and_values)))

    @property
    def parts(self) -> tuple[KnownAttributes, ...]:
        """The same examples once for each crossed column, which is then their only attribute."""
        if not self.groups.columns:
            return (self,)
        labels = self.groups.labels
        return tuple(replace(self, a=c.a, groups=Groups(labels, c.values), name=c.name) for c in self.columns)


def select_known(split: Split) -> KnownAttributes:
    """Return the examples with known label and attributes, without columns that are never known."""
    groups, y, a = replace(split.groups, mixed=False), split.y.cpu(), split.a.cpu()
    if groups.overlap or groups.columns:
        groups, a = _drop_unknown_columns(groups, a)
    is_complete = groups.known(a) & (y >= 0) if groups.attributes else torch.zeros(len(y), dtype=torch.bool)
    rows = is_complete.nonzero().flatten()
    return KnownAttributes(rows, y[rows], a[rows], groups)


def cross_columns(split: Split) -> Split:
    """Return the same examples with the crossed columns as one attribute; unchanged if there are none."""
    if not split.groups.columns:
        return split
    groups, a = split.groups.cross(split.a)
    return replace(split, a=a, groups=groups)


def choose_column(p: Tensor, effects: Tensor, level: float) -> int:
    """Return the column to name: the largest effect among the significant ones, or else the smallest p-value.

    Example:
        >>> choose_column(torch.tensor([0.01, 0.02, 0.5]), torch.tensor([0.1, 0.3, 0.9]), level=0.05)
        1
        >>> choose_column(torch.tensor([0.3, 0.2]), torch.tensor([0.9, 0.1]), level=0.05)
        1
    """
    significant = p <= level
    return int(torch.where(significant, effects, -torch.inf).argmax() if bool(significant.any()) else p.argmin())


def describe_columns(names: Sequence[str], what: str, effects: Tensor, p: Tensor) -> tuple[str, dict[str, float]]:
    """Return a sentence and numbers on all columns, the largest effects first; nothing if there is only one.

    Example:
        >>> describe_columns(["age", "camera"], "gap", torch.tensor([0.01, 0.3]), torch.tensor([0.5, 0.002]))[0]
        ' All columns (gap): camera 0.300 (p = 0.002), age 0.010 (p = 0.5).'
    """
    if len(names) < 2:
        return "", {}
    rows = [(names[i], float(effects[i]), float(p[i])) for i in effects.argsort(descending=True, stable=True).tolist()]
    listed = ", ".join(f"{name} {effect:.3f} (p = {value:.3g})" for name, effect, value in rows[:MAX_LISTED])
    more = f", and {len(rows) - MAX_LISTED} more" if len(rows) > MAX_LISTED else ""
    numbers = {f"{what} of {name}": effect for name, effect, _ in rows} | {
        f"p of {name}": value for name, _, value in rows
    }
    return f" All columns ({what}): {listed}{more}.", numbers


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
    tables = [_count(known.y, column, known.groups) for column in columns]
    effects = torch.tensor([cramers_v(table, corrected=True) for table in tables], dtype=torch.double)
    p_values = adjust_p_values(_compute_statistics(known, columns, context))
    which = choose_column(p_values, effects, context.level)
    column, counts, p, v = columns[which], tables[which], float(p_values[which]), float(effects[which])
    low, high = _bootstrap(counts, v, context.seeds.generator(NAME, "bootstrap"))
    label, value = divmod(int(_adjusted_residuals(counts).argmax()), len(column.values))
    pair = f"“{known.groups.labels[label]}” and “{column.values[value]}”{f' ({column.name})' if column.name else ''}"
    all_columns, more = describe_columns([c.name for c in columns], "V", effects, p_values)
    flagged = p <= context.level and v >= MIN_EFFECT
    numbers = {
        "cramers_v": v, "low": low, "high": high, "goodman_kruskal": goodman_kruskal(counts),
        "normalised_information": normalised_information(counts), "examples": float(len(known.y)),
        "from_train": float(where == "the training examples"), **more,
    }  # fmt: skip
    return make_finding(
        NAME,
        (p, v, flagged),
        f"{pair} are associated in {where}: presence, not use",
        f"Label and attribute are hardly associated in {where}",
        f"Cramér's V is {v:.2f} (95 % interval {low:.2f} to {high:.2f}) over {len(known.y):,} of {where}; "
        f"{_describe_cell(counts, label, value, known.groups.labels[label], column.values[value])}; "
        f"p = {p:.3g} by {context.permutations} permutations; flagged from V = {MIN_EFFECT:g}.{all_columns}",
        "A model can learn this association, but need not: see attribute-use for whether it did. Balanced examples, "
        "group-dro or dfr remove the incentive.",
        shows_use=False,
        shortcut=column.name or column.values[value],
        numbers=numbers,
        rows=_find_conflicting(context, counts, column.name) if flagged else (),
        items=(_plot(counts, column, known.groups.labels, where),),
    )


def _drop_unknown_columns(groups: Groups, a: Tensor) -> tuple[Groups, Tensor]:
    """Return crossed columns or overlapping attributes without those that are never known."""
    a = groups.split_columns(a) if groups.columns else a.reshape(len(a), -1)
    is_known = (a >= 0).any(dim=0)
    if groups.overlap:
        groups = replace(groups, attributes=tuple(compress(groups.attributes, is_known.tolist())))
    elif bool(is_known.any()):
        groups = Groups.crossed(groups.labels, dict(compress(groups.columns, is_known.tolist())))
    else:
        return groups, a
    return groups, a[:, is_known]


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
