r"""Three inexpensive detectors ("views") of examples whose label is unexpected; none trains the network.

1. ``robust``: a linear head on the features, trained with generalised cross-entropy, which fits the easiest pattern.
2. ``early``: a linear head trained with cross-entropy for two steps from 0. Both heads are cross-fitted: an example is
   detected if the head of the other folds predicts it incorrectly.
3. ``loss``: per label, the upper of two clusters (two-means) of the audited model's loss :math:`1 - p_y`; the log-loss
   of a confident model has too long a tail.

Several labellings of the same examples, such as permutations, are computed at once, with their heads in one matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from spurless.auditing._context import AuditContext
from spurless.auditing._residuals import principal_components
from spurless.core.progress import progress_reporter
from spurless.train.losses import generalised_cross_entropy

VIEWS = ("robust", "early", "loss")
FOLDS = 5
N_COMPONENTS = 16  # principal components in the input of a head
BIAS_INPUT = 0.5  # constant input of a head; the first component has variance 1
MAX_TRAIN_EXAMPLES = 2048
MAX_ELEMENTS = 2**23  # logits in memory at once: 32 MB, and several times that for gradients


@dataclass(frozen=True)
class HeadFit:
    """Settings of full-batch gradient descent of a linear head from 0."""

    loss: Callable[[Tensor, Tensor], Tensor]
    steps: int
    lr: float


HEADS = (HeadFit(generalised_cross_entropy, 10, 4.0), HeadFit(partial(cross_entropy, reduction="none"), 2, 2.0))


def run_views(context: AuditContext, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the detections of every view for labels ``(P, N)``, and the losses: both ``(views, P, N)``."""
    x = principal_components(context.features, N_COMPONENTS)
    x = x / x.pow(2).mean(dim=0).max().sqrt() if x.shape[1] else x
    x = torch.cat([x, torch.full((len(x), 1), BIAS_INPUT, dtype=x.dtype)], dim=1).float()
    order = torch.randperm(len(context), generator=context.seeds.generator("views", "folds"))
    fits = [_cross_fit(x, y, context.logits.shape[1], head, order) for head in HEADS]
    loss = 1 - context.probabilities.gather(1, y.T).T
    detected = [*(incorrect for incorrect, _ in fits), find_upper_cluster(loss, y)]
    return torch.stack(detected), torch.stack([*(head_loss.double() for _, head_loss in fits), loss])


def _cross_fit(x: Tensor, y: Tensor, n_labels: int, head: HeadFit, order: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether the head of the other folds is incorrect on each example, and its loss; both ``(P, N)``."""
    incorrect, loss = torch.zeros(y.shape, dtype=torch.bool), torch.zeros(y.shape)
    fold_of = torch.arange(len(x)) % FOLDS
    report = progress_reporter("views", FOLDS * len(y))
    for fold in range(FOLDS):
        train, test = order[fold_of != fold][:MAX_TRAIN_EXAMPLES], order[fold_of == fold]
        step = max(1, MAX_ELEMENTS // (max(len(train), len(test)) * n_labels))
        for begin in range(0, len(y), step):
            labels = y[begin : begin + step]
            weight = _fit_heads(x[train], labels[:, train], n_labels, head)
            logits = (x[test] @ weight).view(len(test), len(labels), n_labels)
            truth = labels[:, test].T
            incorrect[begin : begin + step, test] = (logits.argmax(dim=2) != truth).T
            loss[begin : begin + step, test] = 1 - logits.softmax(dim=2).gather(2, truth[:, :, None])[:, :, 0].T
            report(fold * len(y) + begin + len(labels))
    return incorrect, loss


def _fit_heads(x: Tensor, y: Tensor, n_labels: int, head: HeadFit) -> Tensor:
    """Return the weights of one head per row of labels ``(P, n)``, side by side: ``(d, P * labels)``."""
    weight = torch.zeros(x.shape[1], len(y) * n_labels)
    truth = y.T.flatten()
    for _ in range(head.steps):
        with torch.enable_grad():
            weight.requires_grad_()
            total = head.loss((x @ weight).view(-1, n_labels), truth).sum() / len(x)
            (grad,) = torch.autograd.grad(total, weight)
        weight = weight.detach() - head.lr * grad
    return weight


def find_upper_cluster(loss: Tensor, y: Tensor) -> Tensor:
    """Return which losses ``(P, N)`` are in the upper of two clusters of their label, row by row.

    The optimal clusters of sorted numbers are contiguous, so that all splits are tried.

    Example:
        >>> find_upper_cluster(torch.tensor([[0.0, 0.1, 0.9, 0.5]]), torch.tensor([[0, 0, 0, 1]]))
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


def mean_kappa(views: Tensor) -> Tensor:
    """Return Cohen's kappa of ``(views, permutations, N)``, averaged over pairs of views, per permutation.

    Example:
        >>> same, other = torch.tensor([[True, False, False, False]]), torch.tensor([[False, True, False, False]])
        >>> mean_kappa(torch.stack([same, same])), mean_kappa(torch.stack([same, other]))
        (tensor([1.], dtype=torch.float64), tensor([-0.3333], dtype=torch.float64))
    """
    kappas = []
    for one, two in combinations(views, 2):
        a, b = one.double().mean(dim=1), two.double().mean(dim=1)
        chance = a * b + (1 - a) * (1 - b)
        same = (one == two).double().mean(dim=1)
        kappas.append(torch.where(chance < 1, (same - chance) / (1 - chance).clamp(min=1e-12), 0.0))
    return torch.stack(kappas).mean(dim=0)
