r"""Biased neurons: is there a neuron that the model follows into mistakes, beyond how unsure it is?

NeuronTune calls a feature biased if its size is larger among the mistakes of a label than among its hits (the score of
:mod:`spurless.metrics.spuriousness`). A clean model has such features too, because its mistakes lie near the boundary.
So the size :math:`|v_i|` of neuron :math:`i` is compared among examples of which the model says the same label
:math:`c`, and is equally sure: with :math:`x` the size less what the model's certainty explains (see
:mod:`spurless.auditing.excess`), mistakes :math:`w`, and sums of squares over each stratum :math:`h`,

.. math:: z_{ic} = \frac{\sum_{\hat y_j = c} x_{ij} w_j}{\sqrt{\sum_h S^{xx}_h S^{ww}_h / (n_h - 1)}},
    \qquad \rho_{ic} = \frac{\sum x_{ij} r_j}{\lVert x_i \rVert \lVert r \rVert},

a sum over its exact deviation under permuted labels, and a correlation with the excess :math:`r` of mistakes. A neuron
that differs between mistakes and hits may be the cause or the one that was not listened to. The sign :math:`s_{ic}`
tells them apart: 1 where the neuron is more active when the model says :math:`c` than when it does not, -1 where it is
less active, 0 where neither (a correlation of less than 0.1). Where :math:`s z > 0`, the model followed the neuron into
its mistakes: it was active and spoke for what was wrongly said, or silent and did not speak against it. Where
:math:`s z < 0`, the neuron knew better.

Two statistics are taken: the largest :math:`s z`, which one neuron stands out in, and :math:`\sum z^2`, which adds up
many neurons and labels with few mistakes each. The better of the two is compared with the better of the two in every
permutation of labels among equally sure predictions.

The severity is :math:`s \rho` of the named neuron, the one with the largest :math:`s z`, and 0 where p is above the
level: of a label with a handful of mistakes, the best of many neurons has a large correlation by chance, which is not
severe. The floor is there for the reason given in :mod:`spurless.auditing.error_slices`.

It cannot tell what a neuron answers to (look at the examples), and the one that is named is one of several that answer
to the same.

Zheng, Ye and Zhang, "NeuronTune: Towards Self-Guided Spurious Bias Mitigation", 2025, arXiv:2505.24048.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.auditing.chance import best_of
from spurless.auditing.excess import (
    TINY,
    Said,
    bootstrap,
    correlation,
    label_name,
    off_the_mean,
    orders,
    said,
    unanswerable,
)
from spurless.auditing.subject import Subject, rows_first
from spurless.core.figures import Figure
from spurless.core.findings import Finding
from spurless.core.progress import teller
from spurless.explain.neurons import distributions
from spurless.metrics.spuriousness import Scores, spuriousness

NAME = "biased-neurons"
QUESTION = "Is there a neuron that the model follows into mistakes, more than its doubt explains?"
FLOOR = 0.25
"""Correlation that the data must vouch for: the lower end of its interval."""
LEAST = 2
"""Mistakes and hits of a prediction, or more, for its neurons to be compared."""
FOLLOWED = 0.1
"""Correlation of a neuron with a prediction below which the model does not follow it there."""
SHOWN = 3
"""Neurons that are drawn."""


@dataclass(frozen=True, eq=False)
class Compared:
    """The neurons of every prediction, and how much the model follows them into its mistakes."""

    z: Tensor
    """``(predictions, d)``; positive where a neuron is more active in mistakes, 0 where it says nothing"""
    r: Tensor
    """correlations with the excess of mistakes"""
    sign: Tensor
    """1 where a neuron speaks for the prediction, -1 against it, 0 where neither"""
    statistics: Tensor
    """largest signed z and sum of squares, of the truth and of every permutation, ``(1 + permutations, 2)``"""

    def strongest(self, count: int) -> list[tuple[int, int]]:
        """Return the predictions and neurons with the largest signed z, each neuron once."""
        found: dict[int, int] = {}
        uncompared = (self.z == 0).all(dim=1, keepdim=True)  # a prediction that is never made, for one
        signed = (self.sign * self.z).masked_fill(uncompared, -torch.inf)
        for place in signed.flatten().argsort(descending=True, stable=True).tolist():
            label, dim = divmod(place, self.z.shape[1])
            found.setdefault(dim, label)
            if len(found) == count:
                break
        return [(label, dim) for dim, label in found.items()]


def audit_biased_neurons(subject: Subject) -> Finding:
    """Return the neuron that the model follows most into mistakes, among equally sure predictions."""
    why = unanswerable(subject)
    compared = compare(subject) if why is None else None
    if compared is None:
        why = why or f"No prediction has {LEAST} mistakes and {LEAST} hits that differ in any neuron."
        remedy = "Pass more held-out examples, among them those that the model gets wrong."
        return Finding(NAME, "This could not be asked of these examples", 0.0, False, None, why, remedy)
    p, which = best_of(compared.statistics)
    strongest = compared.strongest(SHOWN)
    label, dim = strongest[0]
    sign = int(compared.sign[label, dim]) or 1
    observed = sign * float(compared.r[label, dim])
    low, high = _interval(subject, label, dim, sign)
    severity = min(1.0, max(0.0, observed)) if p <= subject.level else 0.0
    flagged = p <= subject.level and low >= FLOOR
    scores = spuriousness(subject.features, subject.y, subject.predicted, subject.logits.shape[1])
    name = label_name(subject, label)
    return Finding(
        NAME,
        f"The model follows neuron {dim} into mistakes when it says “{name}”"
        if flagged
        else "No neuron tells mistakes from hits much better than the model's own doubt",
        severity,
        flagged,
        p,
        f"Among equally sure predictions of “{name}”, neuron {dim} speaks {'for' if sign > 0 else 'against'} it and "
        f"is {'more' if sign > 0 else 'less'} active in mistakes, by a correlation of {observed:.2f} (95 % interval "
        f"{low:.2f} to {high:.2f}, of the neuron that was chosen for it); p = {p:.3g} by {subject.permutations} "
        f"permutations, for {'the strongest neuron' if which == 0 else 'all neurons together'}; flagged where "
        f"the lower end is {FLOOR:g} or more. " + _scored(subject, scores, dim),
        f"neurontune suppresses neurons like {', '.join(str(dim) for _, dim in strongest)} without any attribute; look "
        "first at the examples that activate them."
        if flagged
        else "Nothing to do here.",
        shortcut=f"neuron {dim}" if flagged else None,
        numbers={
            "neuron": float(dim),
            "correlation": observed,
            "low": low,
            "high": high,
            "z": sign * float(compared.z[label, dim]),
            "speaks_for": float(sign > 0),
            "prediction": float(label),
        },
        rows=_rows(subject, label, dim, sign) if flagged else (),
        items=tuple(_drawn(subject, compared, *each) for each in strongest),
    )


def compare(subject: Subject) -> Compared | None:
    """Compare every neuron between mistakes and hits of every prediction; None where nothing can be compared."""
    what = said(subject)
    order = orders(what.within, subject.permutations, subject.seeds.generator(NAME, "permutations"))
    missed = off_the_mean(subject.wrong[:, None], what.within).flatten()
    excess = what.excess(subject.wrong[:, None])
    n_labels, d = subject.logits.shape[1], subject.features.shape[1]
    z, r, sign = (torch.zeros(n_labels, d, dtype=torch.double) for _ in range(3))
    size = subject.features.double().abs()
    largest, total = (torch.zeros(len(order), dtype=torch.double) for _ in range(2))
    done = teller("neurons", n_labels)
    for label in range(n_labels):
        done(label)
        rows = (what.label == label).nonzero().flatten()
        mistakes = int(subject.wrong[rows].sum())
        if mistakes < LEAST or len(rows) - mistakes < LEAST:
            continue
        x, scale = _comparable(size[rows], _part(what, rows), missed[rows])
        wrong = (subject.y[order[:, rows]] != label).double()  # a permutation keeps every example in its prediction
        found = wrong @ (x / scale)
        sign[label] = _spoken(size, what.label == label)
        largest = torch.maximum(largest, (found * sign[label]).amax(dim=1))
        total += (found**2).sum(dim=1)
        z[label] = found[0]
        r[label] = (excess[rows].T @ x).flatten() / (x.norm(dim=0) * excess[rows].norm()).clamp(min=TINY)
    return Compared(z, r, sign, torch.stack([largest, total], dim=1)) if float(total[0]) > 0 else None


def _spoken(size: Tensor, says: Tensor) -> Tensor:
    """Return the sign of every neuron's correlation with a prediction; 0 where it is small."""
    centred, spoken = size - size.mean(dim=0), says.double() - says.double().mean()
    r = correlation(centred, spoken[:, None])
    return torch.where(r.abs() >= FOLLOWED, r.sign(), 0.0)


def _comparable(size: Tensor, what: Said, missed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sizes of neurons beyond what certainty explains, and their deviation under permuted labels."""
    x = what.excess(size)
    varies = x.norm(dim=0) > 1e-6 * size.norm(dim=0).clamp(min=TINY)
    count = torch.bincount(what.within).double()
    squares = torch.zeros_like(count).index_add(0, what.within, missed**2) / (count - 1).clamp(min=1)
    scale = (squares[what.within] @ x**2).sqrt()
    return x, scale.where(varies & (scale > TINY), torch.inf)  # what never differs has z = 0


def _part(what: Said, rows: Tensor) -> Said:
    number = (torch.bincount(what.within[rows]) > 0).cumsum(dim=0) - 1  # strata from 0 on
    return Said(torch.zeros_like(rows), number[what.within[rows]], what.sure[rows])


def _interval(subject: Subject, label: int, dim: int, sign: int) -> tuple[float, float]:
    what = said(subject)
    rows = (what.label == label).nonzero().flatten()
    x = _part(what, rows).excess(subject.features[rows, dim : dim + 1].abs())[:, 0]
    excess = what.excess(subject.wrong[:, None])[rows, 0]
    return bootstrap(sign * x, excess, subject.seeds.generator(NAME, "bootstrap"))


def _scored(subject: Subject, scores: Scores, dim: int) -> str:
    """Say the score that NeuronTune gives to the neuron, by the label where it is largest."""
    mine = scores.delta[:, dim]
    if bool(mine.isnan().all()):
        return "NeuronTune's score needs hits and mistakes of one label, and there are none."
    label = int(mine.nan_to_num(nan=-torch.inf).argmax())
    return (
        f"NeuronTune's score of it is {float(mine[label]):.3g} by the {int(scores.mistakes[label])} mistakes and "
        f"{int(scores.hits[label])} hits of the label “{label_name(subject, label)}”."
    )


def _rows(subject: Subject, label: int, dim: int, sign: int) -> tuple[int, ...]:
    """Return the mistakes of the prediction, those first in which the neuron spoke most for it."""
    return rows_first(sign * subject.features[:, dim].abs(), subject.wrong & (subject.predicted == label))


def _drawn(subject: Subject, compared: Compared, label: int, dim: int) -> Figure:
    mine = subject.predicted == label
    name, r = label_name(subject, label), float(compared.r[label, dim])
    title = f"Neuron {dim} where the model says {name}: correlation {r:.2f} at equal doubt"
    return distributions(subject.features[mine, dim].abs(), ~subject.wrong[mine], title)
