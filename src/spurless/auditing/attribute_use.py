r"""Attribute use: do predictions follow the attribute?

With :math:`\ell_i` the logits of example :math:`i`, least squares with a level for every label and one for every
attribute value,

.. math:: \ell_i \approx \mu_{y_i} + \beta_{a_i},

gives the push :math:`\beta_a` of each value on each logit at equal label. The statistic is the share of predictions
that change when the attribute is switched: when every example has the push of another value, drawn once,

.. math:: T = \frac1n \sum_i \big[ \arg\max(\ell_i - \beta_{a_i} + \beta_{b_i}) \ne \arg\max \ell_i \big],
          \qquad b_i \ne a_i .

This one decides. The null hypothesis is that, given the label, what the model says has nothing to do with the
attribute: logits are permuted among the examples of each label, which is the same as permuting attributes. Of several
overlapping attributes the smallest p is compared with the smallest of each permutation. The severity is :math:`T` less
its mean over permutations (small groups make a noisy push, and noise moves predictions too), at least 0.

An attribute that the features hold and the head does not read moves no logit, so it is not flagged. Reported beside it:

* the shift of the logits: the largest difference of push between two values, over classes, in standard deviations
  within groups, with a p of its own;
* a linear probe: the balanced accuracy of telling the value from the features at equal label by ridge regression,
  each example predicted from all others, beside that of guessing;
* a removal: the directions in which the mean features of the values differ at equal label are projected out; how many
  predictions change, and what becomes of accuracy, beside random directions of as much variance. Directions of
  permuted attributes do not serve: they are those of largest variance, which the head reads in any model.

What it cannot tell: whether the attribute belongs to what the label means, or goes with something else that the model
rightly uses; what the model does where attribute and label interact (a push that differs from label to label is
averaged); and nothing about two values that no label shares. Values of fewer than 5 examples are left out.

Related: Ravfogel et al., "Null It Out", ACL 2020, for removal; Elazar et al., "Amnesic Probing", TACL 2021, for use
against presence and for random directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from spurless.auditing.attribute_association import Column, Known, known_attributes, unanswered
from spurless.auditing.chance import best_of, p_value, shuffled
from spurless.auditing.subject import Subject, rows_first
from spurless.core.figures import Figure
from spurless.core.findings import Finding
from spurless.metrics.groupwise import group_table
from spurless.metrics.intervals import wilson
from spurless.models.features import logits_of_features

NAME = "attribute-use"
QUESTION = "Would the model say something else if the attribute were another?"
FLOOR = 0.15
"""Share of predictions beyond chance that must follow the attribute: a net ignores nothing quite, and with many
examples that alone is more than chance."""
LEAST = 5  # examples of a value that is asked about
RANDOM = 10  # draws of random directions
RIDGE = 0.05  # of the probe, beside features of unit variance
SHOWN = 12  # attribute values and classes of a figure
TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Switch:
    """One attribute of the examples that can be asked, and another value for each of them."""

    column: Column
    keep: Tensor
    """where they lie among the known examples, ``(n,)``"""
    values: tuple[str, ...]
    a: Tensor
    """the number of the value of each"""
    b: Tensor
    """and of the one it is switched to"""
    apart: Tensor
    """values as 0/1 columns, less their share within the label, ``(n, values)``"""
    inverse: Tensor
    """of their second moments"""

    def pushes(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the push of each value on each logit, ``(..., values, classes)``, and the deviation within groups.

        ``logits`` are less their mean within the label, ``(..., n, classes)``.
        """
        together = self.apart.T @ logits
        push = self.inverse @ together
        left = ((logits**2).sum(dim=-2) - (together * push).sum(dim=-2)) / logits.shape[-2]
        return push, left.clamp(min=0).sqrt()

    def flips(self, logits: Tensor, push: Tensor) -> Tensor:
        """Return which predictions change, ``(..., n)``."""
        moved = logits + push[..., self.b, :] - push[..., self.a, :]
        return moved.argmax(dim=-1) != logits.argmax(dim=-1)


def audit_attribute_use(subject: Subject) -> Finding:
    """Return how many predictions follow the attribute."""
    known = known_attributes(subject.split)
    generator = subject.seeds.generator(NAME, "switch")
    switches = [switch for column in known.columns if (switch := _switch(known, column, generator)) is not None]
    if not switches:
        why = f"No label has examples with two attribute values, among values of at least {LEAST} examples."
        return unanswered(NAME, known, why)
    centred, level = _levels(subject, known)
    flips, shifts = _chances(known, switches, centred, level, subject)
    p, which = best_of(flips)
    switch, observed, chance = switches[which], float(flips[0, which]), float(flips[1:, which].mean())
    severity = max(0.0, observed - chance)
    flagged = p <= subject.level and severity >= FLOOR
    push, left = switch.pushes(centred[switch.keep])
    value, towards = divmod(int((push / left.clamp(min=TINY)).argmax()), push.shape[1])
    n, rows = len(switch.a), known.rows[switch.keep]
    low, high = (float(bound) for bound in wilson(round(observed * n), n))
    numbers = {
        "flips": observed,
        "low": low,
        "high": high,
        "flips_by_chance": chance,
        "examples": float(n),
        "logit_shift": float(shifts[0, which]),
        "logit_shift_p": p_value(float(shifts[0, which]), shifts[1:, which]),
        **probe(subject.features[rows], subject.y[rows], switch),
        **_removed(subject, known, switch),
    }
    labels = [*known.groups.labels, *(f"class {k}" for k in range(len(known.groups.labels), push.shape[1]))]
    return Finding(
        NAME,
        f"Predictions follow the attribute: “{switch.values[value]}” pushes towards “{labels[towards]}”"
        if flagged
        else "Predictions hardly follow the attribute",
        severity,
        flagged,
        p,
        _because(numbers, p, subject.permutations),
        "Retrain the head on examples balanced over groups (dfr), train with group-dro where training has attributes, "
        "or suppress the features that carry it (neurontune); masktune where it is a visible region of images."
        if flagged
        else "Nothing to do here.",
        shortcut=switch.column.name or switch.values[value],
        numbers=numbers,
        rows=_misled(subject, rows, switch, push),
        items=(_figure(push, switch.values, labels),),
    )


def probe(features: Tensor, y: Tensor, switch: Switch) -> dict[str, float]:
    """Return how well a linear probe tells the value at equal label, and how well guessing does.

    Groups weigh alike; predicted from all others, an example has ``(fit - h z) / (1 - h)``, ``h`` its leverage.
    """
    wide = len(switch.values)
    size = torch.bincount(y * wide + switch.a, minlength=wide * (int(y.max()) + 1)).reshape(-1, wide)
    values = (size > 0).sum(dim=1).double()  # of each label
    weight = 1 / size[y, switch.a].double()

    def apart(part: Tensor) -> Tensor:
        total = torch.zeros(len(values), part.shape[1], dtype=torch.double).index_add(0, y, weight[:, None] * part)
        return part - (total / values.clamp(min=1)[:, None])[y]

    z = torch.nn.functional.one_hot(switch.a, wide).double()
    x = apart(features.double())
    x = x / x.std(dim=0).clamp(min=TINY)
    gram = (x.T * weight) @ x
    gram.diagonal().add_(RIDGE * float(weight.sum()))
    solved = torch.linalg.solve(gram, x.T * weight)
    h = (weight / values[y] + (x * solved.T).sum(dim=1)).clamp(max=1 - 1e-6)[:, None]
    fit = (z - apart(z) + x @ (solved @ z) - h * z) / (1 - h)
    asked = weight * (values[y] > 1)  # a label with one value asks nothing
    hit = (fit.argmax(dim=1) == switch.a).double()
    return {
        "probe": float((asked * hit).sum() / asked.sum()),
        "probe_by_chance": float((asked / values[y]).sum() / asked.sum()),
    }


def _switch(known: Known, column: Column, generator: torch.Generator) -> Switch | None:
    """Return what can be asked of an attribute; None where no label has two values."""
    counts = torch.bincount(column.a, minlength=len(column.values))
    frequent = counts >= LEAST
    keep = frequent[column.a].nonzero().flatten()
    n_values = int(frequent.sum())
    if n_values < 2:
        return None
    a, y = (frequent.cumsum(0) - 1)[column.a[keep]], known.y[keep]
    ones = torch.nn.functional.one_hot(a, n_values).double()
    apart = ones - _means(ones, y, len(known.groups.labels))[y]
    moments = apart.T @ apart
    if float(moments.diagonal().max()) < 1e-9:
        return None
    values = tuple(name for name, is_frequent in zip(column.values, frequent.tolist(), strict=True) if is_frequent)
    b = (a + torch.randint(1, n_values, (len(a),), generator=generator)) % n_values
    return Switch(column, keep, values, a, b, apart, torch.linalg.pinv(moments, rtol=1e-9, hermitian=True))


def _means(values: Tensor, y: Tensor, n_labels: int) -> Tensor:
    """Return the mean of each label; 0 of a label that does not occur."""
    total = torch.zeros(n_labels, values.shape[1], dtype=values.dtype).index_add(0, y, values)
    return total / torch.bincount(y, minlength=n_labels).clamp(min=1)[:, None]


def _levels(subject: Subject, known: Known) -> tuple[Tensor, Tensor]:
    """Return the logits less their mean within the label, and that mean."""
    logits = subject.logits[known.rows].double()
    logits = logits - logits.mean(dim=1, keepdim=True)
    level = _means(logits, known.y, len(known.groups.labels))[known.y]
    return logits - level, level


def _chances(
    known: Known, switches: list[Switch], centred: Tensor, level: Tensor, subject: Subject
) -> tuple[Tensor, Tensor]:
    """Return flips and shifts of the truth and of every permutation, of every attribute."""
    generator = subject.seeds.generator(NAME, "permutations")
    mixed = shuffled(known.y, subject.permutations, generator, width=2 * centred.shape[1])
    found = []
    for rows in chain([torch.arange(len(known.y))[None]], mixed):
        of_all = []
        for switch in switches:
            logits = centred[rows[:, switch.keep]]
            push, left = switch.pushes(logits)
            shift = ((push.amax(dim=1) - push.amin(dim=1)) / left.clamp(min=TINY)).amax(dim=1)
            changed = switch.flips(logits.add_(level[switch.keep]), push).double().mean(dim=1)
            of_all.append(torch.stack([changed, shift]))
        found.append(torch.stack(of_all, dim=2))
    both = torch.cat(found, dim=1)
    return both[0], both[1]


def _removed(subject: Subject, known: Known, switch: Switch) -> dict[str, float]:
    """Return what becomes of predictions without the directions of the attribute, and without random ones."""
    features = subject.features[known.rows[switch.keep]].double()
    centre = features - features.mean(dim=0)
    _, size, axes = torch.linalg.svd(switch.apart.T @ centre, full_matrices=False)
    axes = axes[size > 1e-8 * size[0].clamp(min=TINY)]  # (k, d)

    def predicted(directions: Tensor, scale: Tensor) -> Tensor:
        left = features - (centre @ directions.T * scale) @ directions
        return logits_of_features(subject.model, left.float()).argmax(dim=1)

    before, after = (predicted(axes, torch.full((len(axes),), share, dtype=torch.double)) for share in (0, 1))
    generator, flips, spread = subject.seeds.generator(NAME, "directions"), 0.0, (centre @ axes.T).norm(dim=0)
    for _ in range(RANDOM):
        random = torch.linalg.qr(torch.randn(axes.T.shape, generator=generator, dtype=torch.double)).Q.T
        other = (centre @ random.T).norm(dim=0)
        scale = torch.where(other > TINY, spread / other.clamp(min=TINY), 0.0)  # as much variance as the attribute's
        flips += float((predicted(random, scale) != before).double().mean()) / RANDOM
    y, a = known.y[switch.keep], known.a[switch.keep]
    was, now = (group_table(part, y, a, known.groups) for part in (before, after))
    return {
        "directions": float(len(axes)),
        "removal_flips": float((after != before).double().mean()),
        "removal_flips_random": flips,
        "removal_average": now.average - was.average,
        "removal_worst_group": now.worst[0] - was.worst[0],
    }


def _because(numbers: dict[str, float], p: float, permutations: int) -> str:
    percent = {name: f"{100 * value:.1f}" for name, value in numbers.items()}
    return (
        f"{percent['flips']} % of {numbers['examples']:,.0f} predictions change when the attribute is switched (95 % "
        f"interval {percent['low']} to {percent['high']} %; by chance {percent['flips_by_chance']} %); p = {p:.3g} by "
        f"{permutations} permutations; flagged from {100 * FLOOR:g} points beyond chance. At equal label the attribute "
        f"shifts a logit by up to {numbers['logit_shift']:.1f} deviations; a linear probe reads it from the features "
        f"in {percent['probe']} % of cases, guessing in {percent['probe_by_chance']} %. Without its "
        f"{numbers['directions']:.0f} direction(s) {percent['removal_flips']} % of predictions change "
        f"({percent['removal_flips_random']} % without random ones), the accuracy by "
        f"{100 * numbers['removal_average']:+.1f} points, that of the worst group by "
        f"{100 * numbers['removal_worst_group']:+.1f}."
    )


def _misled(subject: Subject, rows: Tensor, switch: Switch, push: Tensor) -> tuple[int, ...]:
    """Return the mistakes that the attribute pushes to, the hardest pushed first."""
    mine = push[switch.a]
    pushed = mine.gather(1, subject.predicted[rows, None]) - mine.gather(1, subject.y[rows, None])
    score, among = torch.zeros(len(subject), dtype=torch.double), torch.zeros(len(subject), dtype=torch.bool)
    score[rows], among[rows] = pushed[:, 0], pushed[:, 0] > 0
    return rows_first(score, among)  # what is pushed past its label is wrong


def _figure(push: Tensor, values: tuple[str, ...], labels: list[str]) -> Figure:
    """Draw the push of each value on each logit, where there are many of the strongest."""
    shown, classes = (
        push.abs().amax(dim=dim).argsort(descending=True, stable=True)[:SHOWN].sort().values.tolist() for dim in (1, 0)
    )
    names = [labels[k] for k in classes]
    traces = [
        {"type": "bar", "x": names, "y": push[a, classes].tolist(), "name": values[a]}
        | {"marker": {"color": f"@arm{i % 8}"}, "hovertemplate": "%{x}: %{y:.2f}"}
        for i, a in enumerate(shown)
    ]
    layout = {"barmode": "group", "xaxis": {"title": {"text": "logit of"}, "type": "category"}}
    top = [(values[a], labels[int(push[a].argmax())], float(push[a].max())) for a in shown]
    told = "; ".join(f"{value} pushes most towards {label}, by {size:.2f}" for value, label, size in top)
    caption = "How much higher a logit is with each attribute value than on average, at equal label."
    return Figure("What each value does to the logits", caption, {"data": traces, "layout": layout}, f"{told}.")
