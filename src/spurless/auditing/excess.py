r"""Excess: what is left of mistakes once what the model says is accounted for, and whether features foresee it.

The null hypothesis of :mod:`spurless.auditing.chance` is that the label depends on the example only through what the
model says. So of every column (mistakes, features, votes) the mean over its stratum is taken off, and per predicted
label what goes with the probability :math:`p_i` of the first guess: a stratum of few examples still mixes sure and
unsure ones, and a clean model errs where it is unsure. With the columns :math:`Z` of those two, the excess is

.. math:: r = (I - Z (Z^\top Z)^{-1} Z^\top) w .

It is foreseen by one ridge regression per predicted label on the features :math:`X` (their first principal
directions, accounted for alike), because what a feature means for a mistake depends on what was said: red speaks for a
mistake where the model says "strawberry". With leverages :math:`\ell` of :math:`Z` and :math:`h` of the ridge, whose
residuals are :math:`e`, the prediction of example :math:`i` from all others is, exactly,

.. math:: q_i = \frac{r_i}{1 - \ell_i} - \frac{e_i}{1 - \ell_i - h_i} ,

and the correlation of :math:`q` with :math:`r` says how well it works. It is a little below 0 by chance. Truth and
permutations go through it together, as matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from spurless.auditing.chance import permutations, strata
from spurless.auditing.subject import Subject

LEAST_MISTAKES = 15
"""With fewer, what they share is anecdote; so is what hits share."""
DIRECTIONS = 64
"""Principal directions of the features, at most."""
SHRINK = 0.3
"""Of the ridge, in mean squared singular values."""
ROOM = 2**22
"""Numbers of all permutations that are held at once: 32 MB a matrix."""
RESAMPLES = 400
TINY = 1e-9


@dataclass(frozen=True, eq=False)
class Said:
    """What the model says of each example, as far as it is accounted for."""

    label: Tensor
    """its first guess, ``(N,)``"""
    within: Tensor
    """the stratum"""
    sure: Tensor
    """the probability of the first guess, of unit length and without its stratum's mean, per first guess"""

    @cached_property
    def leverage(self) -> Tensor:
        """How much an example weighs in what is accounted for: 1 where it is alone in its stratum."""
        return 1 / torch.bincount(self.within)[self.within].double() + self.sure**2

    def excess(self, columns: Tensor) -> Tensor:
        """Return what is left of columns ``(N, k)`` in float64."""
        centred = off_the_mean(columns, self.within)
        shared = _sums(self.sure[:, None] * centred, self.label)
        return centred - self.sure[:, None] * shared[self.label]


def said(subject: Subject) -> Said:
    """Return what the model says of each example."""
    label, within = subject.predicted, strata(subject.logits)
    sure = off_the_mean(subject.probabilities.amax(dim=1, keepdim=True), within)
    length = _sums(sure**2, label).sqrt()[label]
    return Said(label, within, torch.where(length > TINY, sure / length.clamp(min=TINY), 0.0).flatten())


def unanswerable(subject: Subject) -> str | None:
    """Say why mistakes cannot be compared with hits; None where they can."""
    wrong, n = int(subject.wrong.sum()), len(subject)
    if subject.guesses is not None:  # features foresee the mistakes of a model that never listened to them
        return f"{sentence(subject.guesses)} Its mistakes are what it has not learnt, not what it follows."
    if wrong < LEAST_MISTAKES:
        return f"The model makes {wrong} mistakes in {n:,}; it takes {LEAST_MISTAKES} to find what they share."
    if n - wrong < LEAST_MISTAKES:
        return f"The model is right {n - wrong} times in {n:,}; it takes {LEAST_MISTAKES} to compare mistakes with."
    if float(subject.features.double().std(dim=0).max()) < TINY:
        return "The features are the same for every example, so they cannot tell mistakes from hits."
    return None


def sentence(words: str) -> str:
    """Return half a sentence as a whole one.

    Example:
        >>> sentence("the model guesses")
        'The model guesses.'
    """
    return f"{words[:1].upper()}{words[1:]}."


def label_name(subject: Subject, label: int) -> str:
    """Return the name of a label; a model may say labels that the data have no name for."""
    names = subject.split.groups.labels
    return names[label] if label < len(names) else f"label {label}"


def orders(within: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return ``(1 + count, N)``: the order as it is, then permutations of it within strata."""
    return torch.cat([torch.arange(len(within))[None], permutations(within, count, generator)])


def principal(features: Tensor, most: int = DIRECTIONS) -> Tensor:
    """Return the examples in the first principal directions of their features, ``(N, k)`` in float64.

    Example:
        >>> principal(torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]])).abs()  # the second feature says nothing
        tensor([[2.],
                [0.],
                [2.]], dtype=torch.float64)
    """
    x = features.double()
    x = x - x.mean(dim=0)
    size, direction = torch.linalg.eigh(x.T @ x)
    keep = size.flip(0)[:most] > 1e-10 * size[-1].clamp(min=TINY)
    found: Tensor = x @ direction.flip(1)[:, :most][:, keep]
    return found


class Foresight:
    """The ridge of every predicted label, worked out once for any number of columns."""

    def __init__(self, x: Tensor, what: Said, shrink: float = SHRINK) -> None:
        x = what.excess(x)
        self._leverage = what.leverage
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for label in torch.bincount(what.label).nonzero().flatten():
            rows = (what.label == label).nonzero().flatten()
            u, s, _ = torch.linalg.svd(x[rows], full_matrices=False)
            size = s**2
            if float(size.sum()) > TINY:
                self._parts.append((rows, u, size / (size + shrink * size.mean())))

    def of(self, excess: Tensor) -> Tensor:
        """Return the excess ``(N, k)`` of every example as all others foresee it; 0 where they cannot."""
        found = torch.zeros_like(excess)
        for rows, u, kept in self._parts:
            r, free = excess[rows], 1 - self._leverage[rows]
            left = free - (u**2 @ kept)
            residual = r - u @ (kept[:, None] * (u.T @ r))
            able = left > 1e-3  # an example that nobody is like cannot be foreseen
            q = r / free.clamp(min=1e-3)[:, None] - residual / left.clamp(min=1e-3)[:, None]
            found[rows] = torch.where(able[:, None], q, 0.0)
        return found


def correlation(one: Tensor, two: Tensor) -> Tensor:
    """Return the uncentred correlation of columns; 0 where one of them is."""
    length = torch.linalg.vector_norm(one, dim=0) * torch.linalg.vector_norm(two, dim=0)
    found: Tensor = (one * two).sum(dim=0) / length.clamp(min=TINY)
    return found


def chunks(count: int, n: int) -> list[slice]:
    """Return slices of so many permutations of ``n`` examples, few enough at a time for memory.

    Example:
        >>> chunks(5, 2**21)
        [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    step = max(1, ROOM // max(n, 1))
    return [slice(begin, begin + step) for begin in range(0, count, step)]


def bootstrap(one: Tensor, two: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """Return the 95 % percentile interval of the correlation of ``(N,)`` and ``(N,)``, resampling examples."""
    n, found = len(one), []
    parts = torch.stack([one * two, one**2, two**2], dim=1)
    for part in chunks(RESAMPLES, n):
        drawn = torch.randint(n, (len(range(RESAMPLES)[part]), n), generator=generator)
        sums = torch.stack([torch.bincount(row, minlength=n).double() @ parts for row in drawn])
        found.append(sums[:, 0] / (sums[:, 1] * sums[:, 2]).sqrt().clamp(min=TINY))
    low, high = torch.quantile(torch.cat(found), torch.tensor([0.025, 0.975], dtype=torch.double)).tolist()
    return low, high


def off_the_mean(columns: Tensor, within: Tensor) -> Tensor:
    """Return columns ``(N, k)`` without the mean of each stratum, in float64."""
    columns = columns.double()
    count = torch.bincount(within).double().clamp(min=1)
    return columns - (_sums(columns, within) / count[:, None])[within]


def _sums(columns: Tensor, of: Tensor) -> Tensor:
    """Return the sum of each column over each number of ``of``."""
    empty = torch.zeros(int(of.max()) + 1, columns.shape[1], dtype=columns.dtype)
    return empty.index_add(0, of, columns)
