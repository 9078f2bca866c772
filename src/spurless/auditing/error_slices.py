r"""Error slices: are mistakes where the features say, rather than where the model is unsure?

With the excess :math:`r` of mistakes over what the model's own certainty explains, and the excess :math:`q` that each
example's features foresee from all other examples (both in :mod:`spurless.auditing.excess`), the statistic is

.. math:: T = \frac{\sum_i q_i r_i}{\lVert q \rVert \lVert r \rVert} .

The null hypothesis is that the label depends on the example only through what the model says of it: labels are
permuted among equally sure predictions, and everything is fitted again. The severity is :math:`T`, at least 0: it is
1 where features foresee every mistake among equally sure predictions, and its square is the share of the excess that
they explain.

Then the slices are described: of the fifth of all examples where most excess is foreseen, those of each predicted
label are clustered (k-means), and the slice whose error is surely highest (the lower end of its Wilson interval) is
reported. An example is put into a slice by the labels of others alone, so its own mistake did not choose it; but the
worst of several slices was chosen, so its error is a little too high.

The floor: nets without a shortcut know their own doubt imperfectly, and with thousands of examples that alone is more
than chance. Where many classes share few examples, and few of those break the shortcut, it hides some that lean on one.

It cannot tell what it is that mistakes share, and not whether it is a shortcut: a head that was stopped long before it
was trained, or held-out examples that are unlike those of training, leave mistakes that features foresee too. Of a
model that is no better than guessing it is therefore not asked (:mod:`spurless.auditing.guessing`). It sees nothing
where the model knows nothing but the shortcut: then features do not tell who breaks it, and the accuracy alone says so.
It needs 15 mistakes.

Slice discovery by features and mistakes: Eyuboglu et al., "Domino", ICLR 2022, arXiv:2203.14960; Sohoni et al., "No
Subclass Left Behind", NeurIPS 2020, arXiv:2011.12945. The leave-one-out form of ridge is Allen's PRESS, 1974; the
permutation of residuals is that of Freedman and Lane, 1983.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.auditing.chance import p_value
from spurless.auditing.excess import (
    Foresight,
    Said,
    bootstrap,
    chunks,
    correlation,
    label_name,
    orders,
    principal,
    said,
    unanswerable,
)
from spurless.auditing.subject import Subject, rows_first
from spurless.core.figures import Figure
from spurless.core.findings import Finding
from spurless.core.progress import teller
from spurless.metrics.intervals import wilson

NAME = "error-slices"
QUESTION = "Do mistakes share something that the model sees, or are they just where it is unsure?"
FLOOR = 0.25
"""Correlation that the data must vouch for: the lower end of its interval."""
FORESEEN = 0.8
"""Quantile of the foreseen excess from which on an example may be in a slice."""
LEAST = 8
"""Examples of a slice."""
MOST = 3
"""Slices of a predicted label."""
PARTS = 10
"""Of the figure."""


@dataclass(frozen=True, eq=False)
class Slice:
    """Examples that lie together, of which the model says the same and is wrong more often than it is unsure."""

    rows: Tensor
    said: int
    wrong: int
    expected: float
    """the share that equally sure predictions have wrong"""

    @property
    def error(self) -> float:
        """The share that is wrong."""
        return self.wrong / len(self.rows)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the error."""
        low, high = wilson(self.wrong, len(self.rows))
        return float(low), float(high)

    @property
    def numbers(self) -> dict[str, float]:
        """For machines."""
        low, high = self.interval
        found = {"slice_size": float(len(self.rows)), "slice_error": self.error, "slice_expected": self.expected}
        return {**found, "slice_low": low, "slice_high": high}


def audit_error_slices(subject: Subject) -> Finding:
    """Return whether features foresee mistakes beyond what the model's doubt explains, and the worst slice."""
    why = unanswerable(subject)
    if why is not None:
        return Finding(NAME, "This could not be asked of these examples", 0.0, False, None, why, _MORE)
    what, x = said(subject), principal(subject.features)
    foresight = Foresight(x, what)
    observed, chance = _statistics(subject, what, foresight)
    p, severity = p_value(observed, chance), max(0.0, observed)
    excess = what.excess(subject.wrong[:, None])
    foreseen = foresight.of(excess)[:, 0]
    low, high = bootstrap(foreseen, excess[:, 0], subject.seeds.generator(NAME, "bootstrap"))
    expected = subject.wrong.double() - excess[:, 0]
    flagged = p <= subject.level and low >= FLOOR
    slices = _slices(subject, x, foreseen, expected) if flagged else []
    return Finding(
        NAME,
        f"Mistakes share something that the model sees: it says {_name(subject, slices[0].said)} and is wrong"
        if flagged
        else "Features foresee hardly more mistakes than the model's own doubt does",
        severity,
        flagged,
        p,
        f"Among equally sure predictions, features foresee mistakes with a correlation of {observed:.2f} (95 % "
        f"interval {low:.2f} to {high:.2f}; p = {p:.3g} by {subject.permutations} permutations; flagged where "
        f"the lower end is {FLOOR:g} or more). " + (_described(subject, slices[0]) if flagged else _doubt(subject)),
        "Look at these examples for what they share; then neurontune needs no attributes, masktune hides what an image "
        "shows too plainly, and group-dro or dfr help once what they share is labelled."
        if flagged
        else "Nothing to do here.",
        numbers={
            "correlation": observed,
            "low": low,
            "high": high,
            "chance": float(chance.median()),
            "error": float(subject.wrong.double().mean()),
            "doubt": float(1 - subject.probabilities.amax(dim=1).mean()),
            **(slices[0].numbers if flagged else {}),
        },
        rows=_rows(subject, slices[0], foreseen) if flagged else (),
        items=(_tenths(subject, foreseen, expected), *([_bars(subject, slices)] if flagged else [])),
    )


_MORE = "Pass more held-out examples, among them those that the model gets wrong."


def _statistics(subject: Subject, what: Said, foresight: Foresight) -> tuple[float, Tensor]:
    """Return the statistic of the truth, and of every permutation."""
    order = orders(what.within, subject.permutations, subject.seeds.generator(NAME, "permutations"))
    found, done = [], teller("foresight", len(order))
    for part in chunks(len(order), len(subject)):
        done(part.start)
        excess = what.excess((what.label != subject.y[order[part]]).T)
        found.append(correlation(foresight.of(excess), excess))
    values = torch.cat(found)
    return float(values[0]), values[1:]


def _slices(subject: Subject, x: Tensor, foreseen: Tensor, expected: Tensor) -> list[Slice]:
    """Return the slices, the one that is surely worst first; there is always one."""
    among = (foreseen >= foreseen.quantile(FORESEEN)) & (foreseen > 0)
    found: list[Slice] = []
    for label in range(subject.logits.shape[1]):
        rows = (among & (subject.predicted == label)).nonzero().flatten()
        found += [_slice(subject, part, label, expected) for part in _clusters(subject, x, rows, label)]
    if not found:  # nobody is foreseen in number: then those of the most frequent prediction
        label = int(torch.bincount(subject.predicted).argmax())
        rows = torch.tensor(rows_first(foreseen, subject.predicted == label, LEAST))
        found = [_slice(subject, rows, label, expected)]
    return sorted(found, key=lambda s: (-s.interval[0], s.said))


def _clusters(subject: Subject, x: Tensor, rows: Tensor, label: int) -> list[Tensor]:
    from sklearn.cluster import KMeans

    count = min(MOST, len(rows) // LEAST)
    if count < 2:
        return [rows] if len(rows) >= LEAST else []
    seed = subject.seeds.number(NAME, "clusters", label) % 2**32
    of = torch.as_tensor(KMeans(count, n_init=4, random_state=seed).fit_predict(x[rows].numpy()))
    parts = [rows[of == cluster] for cluster in range(count)]
    return [part for part in parts if len(part) >= LEAST] or [rows]


def _slice(subject: Subject, rows: Tensor, label: int, expected: Tensor) -> Slice:
    return Slice(rows, label, int(subject.wrong[rows].sum()), float(expected[rows].mean().clamp(0, 1)))


def _name(subject: Subject, label: int) -> str:
    return f"“{label_name(subject, label)}”"


def _described(subject: Subject, worst: Slice) -> str:
    low, high = worst.interval
    counts = torch.bincount(subject.y[worst.rows], minlength=subject.logits.shape[1])
    truly = [int(y) for y in counts.argsort(descending=True, stable=True)[:3] if counts[y]]
    labels = ", ".join(f"{int(counts[y])} {_name(subject, y)}" for y in truly)
    return (
        f"The worst slice has {len(worst.rows)} examples of which the model says {_name(subject, worst.said)}: "
        f"{100 * worst.error:.0f} % are wrong ({100 * low:.0f} to {100 * high:.0f} %), where equally sure predictions "
        f"are in {100 * worst.expected:.0f} %; they truly are {labels}."
    )


def _doubt(subject: Subject) -> str:
    wrong, doubt = subject.wrong.double().mean(), 1 - subject.probabilities.amax(dim=1).mean()
    return (
        f"By its own probabilities the model would be wrong in {100 * doubt:.0f} %, and it is in {100 * wrong:.0f} %."
    )


def _rows(subject: Subject, worst: Slice, foreseen: Tensor) -> tuple[int, ...]:
    """Return mistakes: those of the worst slice, then others that were foreseen; the most foreseen first."""
    inside = torch.zeros(len(subject), dtype=torch.bool)
    inside[worst.rows] = True
    return rows_first(foreseen + 10 * (inside & subject.wrong) * foreseen.abs().max(), subject.wrong & (foreseen > 0))


def _tenths(subject: Subject, foreseen: Tensor, expected: Tensor) -> Figure:
    """Draw the error over tenths of the foreseen excess, beside what equally sure predictions have."""
    parts = [part for part in foreseen.argsort(stable=True).chunk(PARTS) if len(part)]
    error = [100 * float(subject.wrong[part].double().mean()) for part in parts]
    usual = [100 * float(expected[part].mean()) for part in parts]
    names = list(range(1, len(parts) + 1))
    traces = [
        {"type": "bar", "x": names, "y": error, "name": "wrong", "marker": {"color": "@bad"}},
        {"x": names, "y": usual, "name": "wrong among equally sure ones", "mode": "lines+markers"}
        | {"line": {"color": "@ink"}},
    ]
    layout = {
        "xaxis": {"title": {"text": "tenth of the examples, by foreseen excess"}, "dtick": 1},
        "yaxis": {"title": {"text": "% wrong"}, "rangemode": "tozero"},
    }
    alt = f"Of the last tenth {error[-1]:.0f} % are wrong, of equally sure ones {usual[-1]:.0f} %; of the first tenth "
    alt += f"{error[0]:.0f} % and {usual[0]:.0f} %."
    caption = "A model that errs only where it is unsure has bars that follow the line."
    return Figure("Mistakes that features foresee", caption, {"data": traces, "layout": layout}, alt)


def _bars(subject: Subject, slices: list[Slice]) -> Figure:
    """Draw the error of every slice with its interval, the worst first."""
    shown = slices[:PARTS]
    names = [f"{i}: says {label_name(subject, s.said)}" for i, s in enumerate(shown, 1)]
    error = [100 * s.error for s in shown]
    up, down = ([100 * abs(s.interval[side] - s.error) for s in shown] for side in (1, 0))
    traces = [
        {"type": "bar", "orientation": "h", "y": names, "x": error, "name": "wrong", "marker": {"color": "@bad"}}
        | {"error_x": {"type": "data", "array": up, "arrayminus": down}},
        {"y": names, "x": [100 * s.expected for s in shown], "name": "wrong among equally sure ones"}
        | {"mode": "markers", "marker": {"color": "@ink", "size": 9}},
    ]
    layout = {"xaxis": {"title": {"text": "% wrong"}, "range": [0, 100]}, "yaxis": {"autorange": "reversed"}}
    told = "; ".join(f"{name}, {e:.0f} % of {len(s.rows)}" for name, e, s in zip(names, error, shown, strict=True))
    caption = "Slices of examples that lie together and of which the model says the same, with 95 % intervals."
    return Figure("Slices", caption, {"data": traces, "layout": layout}, f"Bars. {told}.", 120 + 26 * len(shown))
