r"""Chance: what an audit would say of a model that leans on nothing, by permutation.

Two hypotheses, one for each kind of question:

* With attributes: given the label, what the model says has nothing to do with the attribute. Attributes are permuted
  among the examples of each label.
* Without: the label depends on the example only through what the model says of it. Labels are permuted among examples
  of which the model says nearly the same: the same first and second guess, and about the same margin between them. A
  model without shortcuts errs where it is unsure, and permuted labels do so too; one that leans on a shortcut is wrong
  where it is sure, and on examples that have something in common, which the permutation scatters.

Audits of properties, words and hidden regions ask more of the second: labels are drawn as the model believes, once its
confidence is corrected on the same examples (:mod:`spurless.auditing.leaning`). Where a property and what the model
says always go together, a permutation among equal predictions has nothing to exchange.

A statistic is taken of the truth and of every permutation in the same way; what is searched over (neurons, properties,
words) is searched over in every permutation too, so that the largest of many is compared with the largest of many.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from spurless.core.progress import teller

LEAST = 20
"""Examples of a stratum, or more: with fewer, a permutation has little to exchange."""
BINS = 50
"""Strata by margin of the same two guesses, at most."""
CHUNK = 10_000_000
"""Numbers that are permuted at once: 80 MB of them."""


def strata(logits: Tensor) -> Tensor:
    """Return the stratum of every example: its two first guesses and the bin of the margin between them.

    A second guess that fewer than ``LEAST`` examples share is one with the other rare ones of that first guess.

    Example:
        >>> logits = torch.tensor([[0.0, 3.0], [0.0, 2.0], [1.0, 0.0]])
        >>> strata(logits)
        tensor([1, 1, 0])
    """
    n_classes = logits.shape[1]
    top = logits.double().topk(min(2, n_classes), dim=1)
    first, second = top.indices[:, 0], top.indices[:, -1]
    margin = top.values[:, 0] - top.values[:, -1]
    pair = first * n_classes + second
    rare = torch.bincount(pair, minlength=n_classes**2)[pair] < LEAST
    pair = torch.where(rare, n_classes**2 + first, pair)
    found, begin = torch.zeros(len(logits), dtype=torch.long), 0
    for number in torch.bincount(pair).nonzero().flatten():
        mine = (pair == number).nonzero().flatten()
        bins = max(1, min(BINS, len(mine) // LEAST))
        order = torch.empty_like(mine)
        order[margin[mine].argsort(stable=True)] = torch.arange(len(mine))
        found[mine] = begin + order * bins // len(mine)
        begin += bins
    return found


def permutations(within: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return ``(count, N)`` indices, each row a permutation that keeps every example within its stratum.

    Example:
        >>> rows = permutations(torch.tensor([0, 1, 0, 1]), 3, torch.Generator().manual_seed(0))
        >>> bool((torch.tensor([0, 1, 0, 1])[rows] == torch.tensor([0, 1, 0, 1])).all())
        True
    """
    n = len(within)
    home = within.argsort(stable=True)
    found = torch.empty(count, n, dtype=torch.long)
    done = teller("permutations", count)
    for number, row in enumerate(found, start=1):
        mixed = torch.randperm(n, generator=generator)
        row[home] = mixed[within[mixed].argsort(stable=True)]
        done(number)
    return found


def p_value(observed: float, chance: Tensor | Iterable[float]) -> float:
    """Return how often chance does as well: one more than how many do, of one more than all. It is never 0.

    Example:
        >>> p_value(3.0, [1.0, 2.0, 4.0])
        0.5
    """
    if math.isnan(observed):
        return 1.0  # what cannot be told is no evidence
    values = torch.as_tensor(chance if isinstance(chance, Tensor) else list(chance), dtype=torch.double)
    return (1 + int((values >= observed - 1e-12).sum())) / (1 + len(values))


def shuffled(within: Tensor, count: int, generator: torch.Generator, width: int = 1) -> Iterator[Tensor]:
    """Yield permutations within strata, some at a time, so that ``width`` numbers for each entry fit in memory."""
    step = max(1, CHUNK // max(1, len(within) * width))
    for begin in range(0, count, step):
        yield permutations(within, min(step, count - begin), generator)


def best_of(statistics: Tensor) -> tuple[float, int]:
    """Return the p of the best of several statistics, and which one it is.

    Each is turned into its own p, and the smallest of the truth is compared with the smallest of every permutation,
    so that the search costs what it must.

    Args:
        statistics: ``(1 + permutations, statistics)``, those of the truth first; larger is more.

    Example:
        >>> best_of(torch.tensor([[5.0, 1.0], [1.0, 2.0], [2.0, 3.0], [3.0, 1.0]]))
        (0.5, 0)
    """
    statistics = statistics.double().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    size = statistics.abs().nan_to_num(posinf=0.0)
    rounded = statistics - 1e-9 * size  # a tie must stay one after rounding
    order = statistics.sort(dim=0).values
    below = torch.searchsorted(order.T.contiguous(), rounded.T.contiguous()).T
    p = (len(statistics) - below).double() / len(statistics)
    least = -p.amin(dim=1)
    return p_value(float(least[0]), least[1:]), int(p[0].argmin())
