r"""Views: three cheap looks at examples for those whose label is unexpected; none trains the network.

1. ``robust``: a linear head on the features by generalised cross-entropy, which learns the easiest cue and little else.
2. ``early``: a linear head by cross-entropy, stopped after two steps from 0: it knows the strongest directions only.
   Both are fitted in folds, and an example is found where the head of the other folds gets it wrong.
3. ``loss``: per label, the upper of two clusters (two-means) of the audited model's own loss :math:`1 - p_y`. This is
   generalised cross-entropy with :math:`q = 1`; the log-loss of a sure model has a tail so long that two-means cuts off
   little but its end.

Many labellings of the same examples, such as permutations, go through at once: their heads lie side by side in one
matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from spurless.auditing.excess import principal
from spurless.auditing.subject import Subject
from spurless.core.progress import teller
from spurless.train.losses import generalised_cross_entropy

VIEWS = ("robust", "early", "loss")
FOLDS = 5
DIRECTIONS = 16
"""Principal directions that a head reads."""
OFFSET = 0.5
"""The constant that a head reads beside them, of which the first has variance 1."""
TRAINED = 2048
"""Examples that a head learns from, at most."""
ROOM = 2**23
"""Logits that are held at once: 32 MB, and a few times that for their gradients."""

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Head:
    """How a linear head is fitted: full batches, from 0."""

    loss: Loss
    steps: int
    rate: float


def _robust(logits: Tensor, y: Tensor) -> Tensor:
    return generalised_cross_entropy(logits, y)


def _plain(logits: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(logits, y, reduction="none")


HEADS = (Head(_robust, 10, 4.0), Head(_plain, 2, 2.0))


def look_at(subject: Subject, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return what every view finds of labels ``(P, N)``, and its losses: both ``(views, P, N)``."""
    x = principal(subject.features, DIRECTIONS)
    x = x / x.pow(2).mean(dim=0).max().sqrt() if x.shape[1] else x
    x = torch.cat([x, torch.full((len(x), 1), OFFSET, dtype=x.dtype)], dim=1).float()
    mixed = torch.randperm(len(subject), generator=subject.seeds.generator("views", "folds"))
    seen = [_held_out(x, y, subject.logits.shape[1], head, mixed) for head in HEADS]
    loss = 1 - subject.probabilities.gather(1, y.T).T
    found = [*(wrong for wrong, _ in seen), upper_cluster(loss, y)]
    return torch.stack(found), torch.stack([*(each.double() for _, each in seen), loss])


def _held_out(x: Tensor, y: Tensor, n_labels: int, head: Head, mixed: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether the head of the other folds is wrong about each example, and its loss; both ``(P, N)``."""
    wrong, loss = torch.zeros(y.shape, dtype=torch.bool), torch.zeros(y.shape)
    place = torch.arange(len(x)) % FOLDS
    done = teller("views", FOLDS * len(y))
    for fold in range(FOLDS):
        learnt, asked = mixed[place != fold][:TRAINED], mixed[place == fold]
        step = max(1, ROOM // (max(len(learnt), len(asked)) * n_labels))
        for begin in range(0, len(y), step):
            part = y[begin : begin + step]
            weight = _fitted(x[learnt], part[:, learnt], n_labels, head)
            logits = (x[asked] @ weight).view(len(asked), len(part), n_labels)
            truth = part[:, asked].T
            wrong[begin : begin + step, asked] = (logits.argmax(dim=2) != truth).T
            loss[begin : begin + step, asked] = 1 - logits.softmax(dim=2).gather(2, truth[:, :, None])[:, :, 0].T
            done(fold * len(y) + begin + len(part))
    return wrong, loss


def _fitted(x: Tensor, y: Tensor, n_labels: int, head: Head) -> Tensor:
    """Return the weights of one head per row of labels ``(P, n)``, side by side: ``(d, P * labels)``."""
    weight = torch.zeros(x.shape[1], len(y) * n_labels)
    truth = y.T.flatten()
    for _ in range(head.steps):
        with torch.enable_grad():
            weight.requires_grad_()
            total = head.loss((x @ weight).view(-1, n_labels), truth).sum() / len(x)
            (slope,) = torch.autograd.grad(total, weight)
        weight = weight.detach() - head.rate * slope
    return weight


def upper_cluster(loss: Tensor, y: Tensor) -> Tensor:
    """Return which losses ``(P, N)`` are in the upper of two clusters of their label, row by row.

    Of sorted numbers the two clusters with the least squares within are two runs, so that every split is tried.

    Example:
        >>> upper_cluster(torch.tensor([[0.0, 0.1, 0.9, 0.5]]), torch.tensor([[0, 0, 0, 1]]))
        tensor([[False, False,  True, False]])
    """
    cells = int(y.max()) + 1
    cell = (y + cells * torch.arange(len(y))[:, None]).flatten()
    value = loss.double().flatten()
    order = value.argsort(stable=True)
    order = order[cell[order].argsort(stable=True)]  # by row and label, then by loss
    of, sorted_value = cell[order], value[order]
    n = torch.bincount(cell, minlength=len(y) * cells)
    begin = n.cumsum(dim=0) - n
    total = torch.zeros(len(n), dtype=torch.double).index_add(0, cell, value)
    k = torch.arange(len(of)) - begin[of] + 1
    below = sorted_value.cumsum(dim=0)
    below = below - torch.cat([torch.zeros(1, dtype=torch.double), below])[begin[of]]
    between = below**2 / k + (total[of] - below) ** 2 / (n[of] - k).clamp(min=1)
    best = torch.full((len(n),), -torch.inf, dtype=torch.double).scatter_reduce(0, of, between, "amax")
    chosen = between == best[of]
    edge = torch.full((len(n),), torch.inf, dtype=torch.double)
    edge = edge.scatter_reduce(0, of[chosen], sorted_value[chosen], "amin")
    return (value > edge[cell]).view(loss.shape)


def kappa(views: Tensor) -> Tensor:
    """Return the mean of Cohen's kappa over the pairs of ``(views, permutations, N)``, of every permutation.

    Example:
        >>> same, other = torch.tensor([[True, False, False, False]]), torch.tensor([[False, True, False, False]])
        >>> kappa(torch.stack([same, same])), kappa(torch.stack([same, other]))
        (tensor([1.], dtype=torch.float64), tensor([-0.3333], dtype=torch.float64))
    """
    found = []
    for one, two in combinations(views, 2):
        a, b = one.double().mean(dim=1), two.double().mean(dim=1)
        chance = a * b + (1 - a) * (1 - b)
        same = (one == two).double().mean(dim=1)
        found.append(torch.where(chance < 1, (same - chance) / (1 - chance).clamp(min=1e-12), 0.0))
    return torch.stack(found).mean(dim=0)
