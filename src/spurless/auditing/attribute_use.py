r"""Attribute use: would predictions change if the attribute were different?

With :math:`\ell_i` the logits of example :math:`i`, least squares :math:`\ell_i \approx \mu_{y_i} + \beta_{a_i}` gives
the effect :math:`\beta_a` of each attribute value on each logit at equal label. The statistic is the fraction of
predictions that change if every example has the effect of another, randomly chosen value :math:`b_i`,

.. math:: T = \frac1n \sum_i \big[ \arg\max(\ell_i - \beta_{a_i} + \beta_{b_i}) \ne \arg\max \ell_i \big],
          \qquad b_i \ne a_i .

Null hypothesis: given the label, the logits are independent of the attribute; logits are permuted among the examples of
each label. Several attribute columns are tested one by one: the standardized statistic of each is compared with the
largest one of every permutation, and the column with the largest severity among the significant ones is named.
Severity: :math:`T` minus its mean over permutations (effects in small groups are noisy), at least 0.

The finding also reports the logit shift (the largest difference in effect between two values, in standard deviations
within groups), the balanced accuracy of a linear probe for the value at equal label, and how predictions and accuracy
change if the directions in which the mean features of the values differ are projected out, compared with random
directions of the same variance.

Limits: the attribute may be part of the meaning of the label, or correlated with something that the model rightly uses.
Effects that differ between labels are averaged. Two values without a common label cannot be compared. A column that is
correlated with a used one, at equal label, follows predictions as well. Examples need a known value of every column.

Related: Ravfogel et al., "Null It Out", ACL 2020, for removal; Elazar et al., "Amnesic Probing", TACL 2021, for use
against presence and for random directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from spurless.auditing._context import AuditContext, make_finding, top_rows
from spurless.auditing._figures import Axis, Series, bars
from spurless.auditing._permutation import adjust_p_values, iter_permutations, p_value
from spurless.auditing.attribute_association import (
    AttributeColumn,
    KnownAttributes,
    attributes_not_tested,
    choose_column,
    describe_columns,
    select_known,
)
from spurless.core.figures import Figure
from spurless.core.findings import Finding
from spurless.core.groups import Groups
from spurless.metrics.groupwise import group_table
from spurless.metrics.intervals import wilson_intervals
from spurless.models.features import compute_logits

NAME = "attribute-use"
QUESTION = "Would predictions change if the attribute were different?"
MIN_EFFECT = 0.15  # smallest severity that is flagged: every model uses everything a little
MIN_EXAMPLES = 5  # examples of an attribute value that is tested
N_RANDOM = 10  # sets of random directions
RIDGE = 0.05  # strength of the probe's ridge, for features of unit variance
MAX_BARS = 12  # attribute values, and classes, in the figure
EPSILON = 1e-12


@dataclass(frozen=True, eq=False)
class AttributeSwitch:
    """One attribute of the examples that can be tested, and another value for each of them."""

    column: AttributeColumn
    keep: Tensor  # indices of the examples among the known ones, ``(n,)``
    values: tuple[str, ...]
    a: Tensor  # index of each example's value
    b: Tensor  # index of the value it is switched to
    centred: Tensor  # one-hot values minus their mean within the label, ``(n, values)``
    inverse: Tensor  # pseudo-inverse of the second moments of ``centred``

    def effects(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the effect of each value on each centred logit, ``(..., values, classes)``, and the deviation."""
        products = self.centred.T @ logits
        effect = self.inverse @ products
        variance = ((logits**2).sum(dim=-2) - (products * effect).sum(dim=-2)) / logits.shape[-2]
        return effect, variance.clamp(min=0).sqrt()

    def flips(self, logits: Tensor, effect: Tensor) -> Tensor:
        """Return which predictions change, ``(..., n)``."""
        switched = logits + effect[..., self.b, :] - effect[..., self.a, :]
        return switched.argmax(dim=-1) != logits.argmax(dim=-1)


def audit_attribute_use(context: AuditContext) -> Finding:
    """Return how many predictions follow the attribute."""
    known = select_known(context.split)
    generator = context.seeds.generator(NAME, "switch")
    switches = [switch for column in known.columns if (switch := _make_switch(known, column, generator)) is not None]
    if not switches:
        why = f"No label has examples with two attribute values that have at least {MIN_EXAMPLES} examples each."
        return attributes_not_tested(NAME, known, why)
    logits = context.logits[known.rows].double()
    logits = logits - logits.mean(dim=1, keepdim=True)
    means = _label_means(logits, known.y, len(known.groups.labels))[known.y]
    centred = logits - means
    flips, shifts = _compute_statistics(known, switches, centred, means, context)
    p_values, effects = adjust_p_values(flips), flips[0] - flips[1:].mean(dim=0)
    which = choose_column(p_values, effects, context.level)
    switch, observed, chance = switches[which], float(flips[0, which]), float(flips[1:, which].mean())
    p, severity = float(p_values[which]), observed - chance
    flagged = p <= context.level and severity >= MIN_EFFECT
    effect, deviation = switch.effects(centred[switch.keep])
    value, target = divmod(int((effect / deviation.clamp(min=EPSILON)).argmax()), effect.shape[1])
    n, rows = len(switch.a), known.rows[switch.keep]
    low, high = (float(bound) for bound in wilson_intervals(round(observed * n), n))
    name, names = switch.column.name, [part.column.name for part in switches]
    all_columns, more = describe_columns(names, "flips above chance", effects, p_values)
    numbers = {
        "flips": observed, "low": low, "high": high, "flips_by_chance": chance, "examples": float(n),
        "logit_shift": float(shifts[0, which]),
        "logit_shift_p": p_value(float(shifts[0, which]), shifts[1:, which]),
        **fit_probe(context.features[rows], context.y[rows], switch),
        **_remove_directions(context, known, switch), **more,
    }  # fmt: skip
    labels = [*known.groups.labels, *(f"class {k}" for k in range(len(known.groups.labels), effect.shape[1]))]
    return make_finding(
        NAME,
        (p, severity, flagged),
        f"Predictions follow the attribute{f' “{name}”' if name else ''}: “{switch.values[value]}” raises the logit of "
        f"“{labels[target]}”",
        "Predictions hardly follow the attribute",
        _describe(numbers, p, context.permutations) + all_columns,
        "Retrain the head on examples balanced over groups (dfr), train with group-dro if training has attributes, "
        "or suppress the features that carry it (neurontune); use masktune if it is a visible region of images.",
        shortcut=name or switch.values[value],
        numbers=numbers,
        rows=_find_errors(context, rows, switch, effect),
        items=(_plot(effect, switch.values, labels),),
    )


def fit_probe(features: Tensor, y: Tensor, switch: AttributeSwitch) -> dict[str, float]:
    """Return the leave-one-out accuracy of a linear probe for the value at equal label, and that of guessing.

    All groups have the same weight. The leave-one-out prediction is ``(fit - h z) / (1 - h)`` with leverage ``h``.
    """
    width = len(switch.values)
    size = torch.bincount(y * width + switch.a, minlength=width * (int(y.max()) + 1)).reshape(-1, width)
    n_values = (size > 0).sum(dim=1).double()  # per label
    weight = 1 / size[y, switch.a].double()

    def centre(columns: Tensor) -> Tensor:
        total = torch.zeros(len(n_values), columns.shape[1], dtype=torch.double)
        total = total.index_add(0, y, weight[:, None] * columns)
        return columns - (total / n_values.clamp(min=1)[:, None])[y]

    z = torch.nn.functional.one_hot(switch.a, width).double()
    x = centre(features.double())
    x = x / x.std(dim=0).clamp(min=EPSILON)
    gram = (x.T * weight) @ x
    gram.diagonal().add_(RIDGE * float(weight.sum()))
    solved = torch.linalg.solve(gram, x.T * weight)
    h = (weight / n_values[y] + (x * solved.T).sum(dim=1)).clamp(max=1 - 1e-6)[:, None]
    fit = (z - centre(z) + x @ (solved @ z) - h * z) / (1 - h)
    tested = weight * (n_values[y] > 1)  # a label with one value tests nothing
    correct = (fit.argmax(dim=1) == switch.a).double()
    return {
        "probe": float((tested * correct).sum() / tested.sum()),
        "probe_by_chance": float((tested / n_values[y]).sum() / tested.sum()),
    }


def _make_switch(known: KnownAttributes, column: AttributeColumn, generator: torch.Generator) -> AttributeSwitch | None:
    """Return the testable examples of an attribute with their other value; None if no label has two values."""
    counts = torch.bincount(column.a, minlength=len(column.values))
    is_frequent = counts >= MIN_EXAMPLES
    keep = is_frequent[column.a].nonzero().flatten()
    n_values = int(is_frequent.sum())
    if n_values < 2:
        return None
    a, y = (is_frequent.cumsum(0) - 1)[column.a[keep]], known.y[keep]
    one_hot = torch.nn.functional.one_hot(a, n_values).double()
    centred = one_hot - _label_means(one_hot, y, len(known.groups.labels))[y]
    moments = centred.T @ centred
    if float(moments.diagonal().max()) < 1e-9:
        return None
    values = tuple(name for name, frequent in zip(column.values, is_frequent.tolist(), strict=True) if frequent)
    b = (a + torch.randint(1, n_values, (len(a),), generator=generator)) % n_values
    return AttributeSwitch(column, keep, values, a, b, centred, torch.linalg.pinv(moments, rtol=1e-9, hermitian=True))


def _label_means(values: Tensor, y: Tensor, n_labels: int) -> Tensor:
    """Return the mean of each label; 0 for a label without examples."""
    total = torch.zeros(n_labels, values.shape[1], dtype=values.dtype).index_add(0, y, values)
    return total / torch.bincount(y, minlength=n_labels).clamp(min=1)[:, None]


def _compute_statistics(
    known: KnownAttributes, switches: list[AttributeSwitch], centred: Tensor, means: Tensor, context: AuditContext
) -> tuple[Tensor, Tensor]:
    """Return flips and shifts of the data and of every permutation, ``(1 + permutations, attributes)``."""
    generator = context.seeds.generator(NAME, "permutations")
    permutations = iter_permutations(known.y, context.permutations, generator, width=2 * centred.shape[1])
    chunks = []
    for rows in chain([torch.arange(len(known.y))[None]], permutations):
        statistics = []
        for switch in switches:
            logits = centred[rows[:, switch.keep]]
            effect, deviation = switch.effects(logits)
            shift = ((effect.amax(dim=1) - effect.amin(dim=1)) / deviation.clamp(min=EPSILON)).amax(dim=1)
            changed = switch.flips(logits.add_(means[switch.keep]), effect).double().mean(dim=1)
            statistics.append(torch.stack([changed, shift]))
        chunks.append(torch.stack(statistics, dim=2))
    flips, shifts = torch.cat(chunks, dim=1)
    return flips, shifts


def _remove_directions(context: AuditContext, known: KnownAttributes, switch: AttributeSwitch) -> dict[str, float]:
    """Return how predictions change without the directions of the attribute, and without random directions."""
    features = context.features[known.rows[switch.keep]].double()
    centred = features - features.mean(dim=0)
    _, size, axes = torch.linalg.svd(switch.centred.T @ centred, full_matrices=False)
    axes = axes[size > 1e-8 * size[0].clamp(min=EPSILON)]  # (k, d)

    def predict_without(directions: Tensor, scale: Tensor) -> Tensor:
        remaining = features - (centred @ directions.T * scale) @ directions
        return compute_logits(context.model, remaining.float()).argmax(dim=1)

    before, after = (predict_without(axes, torch.full((len(axes),), s, dtype=torch.double)) for s in (0, 1))
    generator, flips, spread = context.seeds.generator(NAME, "directions"), 0.0, (centred @ axes.T).norm(dim=0)
    for _ in range(N_RANDOM):
        random = torch.linalg.qr(torch.randn(axes.T.shape, generator=generator, dtype=torch.double)).Q.T
        other = (centred @ random.T).norm(dim=0)
        scale = torch.where(other > EPSILON, spread / other.clamp(min=EPSILON), 0.0)  # the attribute's variance
        flips += float((predict_without(random, scale) != before).double().mean()) / N_RANDOM
    y, a, groups = known.y[switch.keep], known.a[switch.keep], known.groups
    if groups.columns:
        a, groups = switch.column.a[switch.keep], Groups(groups.labels, switch.column.values)
    old, new = (group_table(predicted, y, a, groups) for predicted in (before, after))
    return {
        "directions": float(len(axes)),
        "removal_flips": float((after != before).double().mean()),
        "removal_flips_random": flips,
        "removal_average": new.average - old.average,
        "removal_worst_group": new.worst[0] - old.worst[0],
    }


def _describe(numbers: dict[str, float], p: float, permutations: int) -> str:
    percent = {name: f"{100 * value:.1f}" for name, value in numbers.items()}
    return (
        f"{percent['flips']} % of {numbers['examples']:,.0f} predictions change if the attribute is switched (95 % "
        f"interval {percent['low']} to {percent['high']} %; by chance {percent['flips_by_chance']} %); p = {p:.3g} by "
        f"{permutations} permutations; flagged from {100 * MIN_EFFECT:g} points above chance. At equal label the "
        f"attribute shifts a logit by up to {numbers['logit_shift']:.1f} standard deviations. A linear probe predicts "
        f"it from the features with {percent['probe']} % accuracy, guessing with {percent['probe_by_chance']} %. "
        f"Without its {numbers['directions']:.0f} direction(s) {percent['removal_flips']} % of predictions change "
        f"({percent['removal_flips_random']} % without random ones), the accuracy by "
        f"{100 * numbers['removal_average']:+.1f} points, that of the worst group by "
        f"{100 * numbers['removal_worst_group']:+.1f}."
    )


def _find_errors(context: AuditContext, rows: Tensor, switch: AttributeSwitch, effect: Tensor) -> tuple[int, ...]:
    """Return the errors that the attribute supports, the most supported first."""
    effects = effect[switch.a]
    support = effects.gather(1, context.predicted[rows, None]) - effects.gather(1, context.y[rows, None])
    top = top_rows(support[:, 0], support[:, 0] > 0)  # support is 0 if the prediction is correct
    return tuple(rows[list(top)].tolist())


def _plot(effect: Tensor, values: tuple[str, ...], labels: list[str]) -> Figure:
    rows, classes = (
        effect.abs().amax(dim=dim).argsort(descending=True, stable=True)[:MAX_BARS].sort().values.tolist()
        for dim in (1, 0)
    )
    caption = "How much higher each logit is with each attribute value than on average, at equal label."
    text, names = ("Effect of each value on the logits", caption), [labels[k] for k in classes]
    series = [Series(values[a], effect[a, classes].tolist(), f"@series{i % 8}") for i, a in enumerate(rows)]
    return bars(text, names, series, values=Axis("effect"), category_title="logit of")
