r"""Permutation tests: strata, permutations within strata, and p-values.

There are two null hypotheses:

* With attributes: given the label, the prediction is independent of the attribute. Attributes are permuted among the
  examples of each label.
* Without attributes: the label depends on the example only through the model's output. Labels are permuted among
  examples with the same two most likely labels and about the same margin between them. A model without a shortcut makes
  errors on examples with a small margin; one with a shortcut is confidently wrong on examples that have something in
  common, which a permutation removes.

A search (over neurons, properties or words) is repeated in every permutation, so that the maximum of many is compared
with the maximum of many.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from spurless.core.progress import progress_reporter

MIN_STRATUM_SIZE = 20  # examples per stratum: with fewer, permutations hardly differ
MAX_BINS = 50  # margin bins per pair of most likely labels
MAX_ELEMENTS = 10_000_000  # elements permuted at once: 80 MB
ROUNDING_TOLERANCE = 1e-12


def assign_strata(logits: Tensor) -> Tensor:
    """Return the stratum of every example: its two most likely labels, and the bin of the margin between them.

    For each most likely label, all second labels with fewer than ``MIN_STRATUM_SIZE`` examples form one pair.

    Example:
        >>> logits = torch.tensor([[0.0, 3.0], [0.0, 2.0], [1.0, 0.0]])
        >>> assign_strata(logits)
        tensor([1, 1, 0])
    """
    n_classes = logits.shape[1]
    top = logits.double().topk(min(2, n_classes), dim=1)
    first, second = top.indices[:, 0], top.indices[:, -1]
    margin = top.values[:, 0] - top.values[:, -1]
    pair = first * n_classes + second
    is_rare = torch.bincount(pair, minlength=n_classes**2)[pair] < MIN_STRATUM_SIZE
    pair = torch.where(is_rare, n_classes**2 + first, pair)
    strata, begin = torch.zeros(len(logits), dtype=torch.long), 0
    for number in torch.bincount(pair).nonzero().flatten():
        rows = (pair == number).nonzero().flatten()
        bins = max(1, min(MAX_BINS, len(rows) // MIN_STRATUM_SIZE))
        rank = torch.empty_like(rows)
        rank[margin[rows].argsort(stable=True)] = torch.arange(len(rows))
        strata[rows] = begin + rank * bins // len(rows)
        begin += bins
    return strata


def permute_within_strata(strata: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return ``(count, N)`` indices; every row permutes the examples of each stratum.

    Example:
        >>> rows = permute_within_strata(torch.tensor([0, 1, 0, 1]), 3, torch.Generator().manual_seed(0))
        >>> bool((torch.tensor([0, 1, 0, 1])[rows] == torch.tensor([0, 1, 0, 1])).all())
        True
    """
    n = len(strata)
    grouped = strata.argsort(stable=True)
    permutations = torch.empty(count, n, dtype=torch.long)
    report = progress_reporter("permutations", count)
    for number, row in enumerate(permutations, start=1):
        shuffled = torch.randperm(n, generator=generator)
        row[grouped] = shuffled[strata[shuffled].argsort(stable=True)]
        report(number)
    return permutations


def p_value(observed: float, null: Tensor | Iterable[float]) -> float:
    """Return the permutation p-value ``(1 + number of null values >= observed) / (1 + number of null values)``.

    Example:
        >>> p_value(3.0, [1.0, 2.0, 4.0])
        0.5
    """
    if math.isnan(observed):
        return 1.0
    values = torch.as_tensor(null if isinstance(null, Tensor) else list(null), dtype=torch.double)
    return (1 + int((values >= observed - ROUNDING_TOLERANCE).sum())) / (1 + len(values))


def iter_permutations(strata: Tensor, count: int, generator: torch.Generator, width: int = 1) -> Iterator[Tensor]:
    """Yield permutations within strata in chunks, so that ``width`` numbers per index fit in memory."""
    step = max(1, MAX_ELEMENTS // max(1, len(strata) * width))
    for begin in range(0, count, step):
        yield permute_within_strata(strata, min(step, count - begin), generator)


def best_p_value(statistics: Tensor) -> tuple[float, int]:
    """Return the p-value of the best of several statistics, corrected for the choice, and its index.

    Every statistic ``(1 + permutations, statistics)``, with the data in the first row, is converted to its own p-value.
    The smallest one of the data is compared with the smallest one of every permutation (Westfall and Young).

    Example:
        >>> best_p_value(torch.tensor([[5.0, 1.0], [1.0, 2.0], [2.0, 3.0], [3.0, 1.0]]))
        (0.5, 0)
    """
    statistics = statistics.double().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    size = statistics.abs().nan_to_num(posinf=0.0)
    rounded = statistics - 1e-9 * size  # keeps ties
    ordered = statistics.sort(dim=0).values
    below = torch.searchsorted(ordered.T.contiguous(), rounded.T.contiguous()).T
    p = (len(statistics) - below).double() / len(statistics)
    best = -p.amin(dim=1)
    return p_value(float(best[0]), best[1:]), int(p[0].argmin())


def adjust_p_values(statistics: Tensor) -> Tensor:
    """Return the p-value of each of several statistics, corrected for their number.

    Every statistic ``(1 + permutations, statistics)``, with the data in the first row, is standardized over all rows.
    Each one of the data is compared with the largest one of every permutation (Westfall and Young). The smallest
    p-value that is possible does not depend on the number of statistics, as it does for :func:`best_p_value`.

    Example:
        >>> adjust_p_values(torch.tensor([[5.0, 1.0], [1.0, 2.0], [2.0, 3.0], [3.0, 1.0]])).tolist()
        [0.25, 1.0]
    """
    values = statistics.double()
    z = (values - values.mean(dim=0)) / values.std(dim=0).clamp(min=ROUNDING_TOLERANCE)
    largest = z[1:].amax(dim=1)
    return (1 + (largest[:, None] >= z[0] - 1e-9).sum(dim=0)).double() / len(z)
