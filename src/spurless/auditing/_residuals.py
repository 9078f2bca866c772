r"""Residuals of errors after accounting for the model's confidence, and how well features predict them.

From every column (errors, features, votes) the mean of its stratum (:mod:`spurless.auditing._permutation`) is
subtracted, and per predicted label the part explained by the predicted probability. With :math:`Z` the columns of these
two, the residual of a column :math:`w` is

.. math:: r = (I - Z (Z^\top Z)^{-1} Z^\top) w .

Ridge regression on the first principal components of the features, with residuals taken in the same way, predicts the
residual. There is one regression per predicted label, because the meaning of a feature depends on the prediction. With
leverages :math:`\ell` of :math:`Z` and :math:`h` of the ridge regression, whose residuals are :math:`e`, the exact
leave-one-out prediction of example :math:`i` is

.. math:: q_i = \frac{r_i}{1 - \ell_i} - \frac{e_i}{1 - \ell_i - h_i} .

The statistic is the correlation of :math:`q` with :math:`r`. By chance it is slightly below 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from spurless.auditing._context import AuditContext
from spurless.auditing._permutation import assign_strata, permute_within_strata

MIN_ERRORS = 15  # errors, and correct predictions, that a comparison needs
MAX_COMPONENTS = 64  # principal components of the features
RIDGE_STRENGTH = 0.3  # in units of the mean squared singular value
MAX_ELEMENTS = 2**22  # elements of all permutations in memory at once: 32 MB per matrix
N_RESAMPLES = 400
EPSILON = 1e-9
MIN_FREEDOM = 1e-3  # of one minus the leverages, below which an example cannot be predicted from the others


@dataclass(frozen=True, eq=False)
class PredictionStrata:
    """The predicted label, the stratum and the confidence of every example."""

    predicted: Tensor  # ``(N,)``
    stratum: Tensor
    confidence: Tensor  # predicted probability minus its stratum mean, scaled to unit length per predicted label

    @cached_property
    def leverage(self) -> Tensor:
        """The leverage of each example: 1 if it is alone in its stratum."""
        return 1 / torch.bincount(self.stratum)[self.stratum].double() + self.confidence**2

    def residuals(self, columns: Tensor) -> Tensor:
        """Return the residuals of columns ``(N, k)`` in float64."""
        centred = subtract_stratum_means(columns, self.stratum)
        slopes = _sum_by_index(self.confidence[:, None] * centred, self.predicted)
        return centred - self.confidence[:, None] * slopes[self.predicted]


def stratify_predictions(context: AuditContext) -> PredictionStrata:
    """Group the examples by predicted label and confidence."""
    predicted, stratum = context.predicted, assign_strata(context.logits)
    confidence = subtract_stratum_means(context.probabilities.amax(dim=1, keepdim=True), stratum)
    length = _sum_by_index(confidence**2, predicted).sqrt()[predicted]
    confidence = torch.where(length > EPSILON, confidence / length.clamp(min=EPSILON), 0.0).flatten()
    return PredictionStrata(predicted, stratum, confidence)


def why_not_testable(context: AuditContext) -> str | None:
    """Return why errors cannot be compared with correct predictions; None if they can."""
    n_errors, n = int(context.incorrect.sum()), len(context)
    if context.chance_level_reason is not None:  # features predict the errors of an untrained model too
        return f"{to_sentence(context.chance_level_reason)} Its errors do not show what it relies on."
    if n_errors < MIN_ERRORS:
        return f"The model makes {n_errors} errors in {n:,} predictions; at least {MIN_ERRORS} are needed."
    if n - n_errors < MIN_ERRORS:
        return f"The model makes {n - n_errors} correct predictions in {n:,}; at least {MIN_ERRORS} are needed."
    if float(context.features.double().std(dim=0).max()) < EPSILON:
        return "The features are the same for every example."
    return None


def to_sentence(clause: str) -> str:
    """Return a clause as a sentence.

    Example:
        >>> to_sentence("the model is at chance level")
        'The model is at chance level.'
    """
    return f"{clause[:1].upper()}{clause[1:]}."


def make_orders(strata: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return ``(1 + count, N)`` indices: the identity, then permutations within strata."""
    return torch.cat([torch.arange(len(strata))[None], permute_within_strata(strata, count, generator)])


def principal_components(features: Tensor, limit: int = MAX_COMPONENTS) -> Tensor:
    """Return the first principal components of the features, ``(N, k)`` in float64.

    Example:
        >>> principal_components(torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]])).abs()  # the second is constant
        tensor([[2.],
                [0.],
                [2.]], dtype=torch.float64)
    """
    x = features.double()
    x = x - x.mean(dim=0)
    size, direction = torch.linalg.eigh(x.T @ x)
    keep = size.flip(0)[:limit] > 1e-10 * size[-1].clamp(min=EPSILON)
    components: Tensor = x @ direction.flip(1)[:, :limit][:, keep]
    return components


class ResidualPredictor:
    """One ridge regression per predicted label, factorised once for any number of columns."""

    def __init__(self, x: Tensor, strata: PredictionStrata, strength: float = RIDGE_STRENGTH) -> None:
        x = strata.residuals(x)
        self._leverage = strata.leverage
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for label in torch.bincount(strata.predicted).nonzero().flatten():
            rows = (strata.predicted == label).nonzero().flatten()
            u, s, _ = torch.linalg.svd(x[rows], full_matrices=False)
            size = s**2
            if float(size.sum()) > EPSILON:
                self._parts.append((rows, u, size / (size + strength * size.mean())))

    def predict(self, residuals: Tensor) -> Tensor:
        """Return leave-one-out predictions of residuals ``(N, k)``; 0 for an example without similar ones."""
        predicted = torch.zeros_like(residuals)
        for rows, u, weight in self._parts:
            r, free = residuals[rows], 1 - self._leverage[rows]
            freedom = free - (u**2 @ weight)
            ridge_residual = r - u @ (weight[:, None] * (u.T @ r))
            q = r / free.clamp(min=MIN_FREEDOM)[:, None] - ridge_residual / freedom.clamp(min=MIN_FREEDOM)[:, None]
            predicted[rows] = torch.where((freedom > MIN_FREEDOM)[:, None], q, 0.0)
        return predicted


def correlate_columns(one: Tensor, two: Tensor) -> Tensor:
    """Return the uncentred correlation of columns; 0 if one of them is 0."""
    length = torch.linalg.vector_norm(one, dim=0) * torch.linalg.vector_norm(two, dim=0)
    correlation: Tensor = (one * two).sum(dim=0) / length.clamp(min=EPSILON)
    return correlation


def split_into_chunks(count: int, n: int) -> list[slice]:
    """Return slices over ``count`` permutations of ``n`` examples, each small enough for memory.

    Example:
        >>> split_into_chunks(5, 2**21)
        [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    step = max(1, MAX_ELEMENTS // max(n, 1))
    return [slice(begin, begin + step) for begin in range(0, count, step)]


def bootstrap_correlation(one: Tensor, two: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """Return the 95 % bootstrap percentile interval of the correlation of two vectors ``(N,)``."""
    n, correlations = len(one), []
    products = torch.stack([one * two, one**2, two**2], dim=1)
    for part in split_into_chunks(N_RESAMPLES, n):
        samples = torch.randint(n, (len(range(N_RESAMPLES)[part]), n), generator=generator)
        sums = torch.stack([torch.bincount(row, minlength=n).double() @ products for row in samples])
        correlations.append(sums[:, 0] / (sums[:, 1] * sums[:, 2]).sqrt().clamp(min=EPSILON))
    low, high = torch.quantile(torch.cat(correlations), torch.tensor([0.025, 0.975], dtype=torch.double)).tolist()
    return low, high


def subtract_stratum_means(columns: Tensor, strata: Tensor) -> Tensor:
    """Return columns ``(N, k)`` minus the mean of each stratum, in float64."""
    columns = columns.double()
    count = torch.bincount(strata).double().clamp(min=1)
    return columns - (_sum_by_index(columns, strata) / count[:, None])[strata]


def _sum_by_index(columns: Tensor, index: Tensor) -> Tensor:
    empty = torch.zeros(int(index.max()) + 1, columns.shape[1], dtype=columns.dtype)
    return empty.index_add(0, index, columns)
