r"""DFR: keep the features and refit the last layer on group-balanced validation data.

Kirichenko, Izmailov and Wilson, "Last Layer Re-Training is Sufficient for Robustness to Spurious Correlations",
ICLR 2023, arXiv:2204.02937, section 6 (DFR-val, with the l1 penalty of appendix B).

Half of the validation split selects the strength C of the penalty by worst-group accuracy; then ``refits`` models are
fitted on group-balanced subsets of the whole validation split, and their coefficients are averaged.

With ``balance="weight"`` no example is left out: one regression is fitted on the whole validation split, with weights
that give every group the same total, and an l2 penalty. Its strength is selected by cross-validation on the same
examples, with folds stratified by group: by the worst group's accuracy, then the mean of the groups, then the stronger
penalty. This is not in the paper.

Deviations:
    * scikit-learn's liblinear has no multinomial loss, so for more than two classes the penalty is l1 with the saga
      solver; the paper's datasets with more classes use the same estimator one-vs-rest.
    * The standardisation is folded into the weights, so that the result is an ordinary linear head. It is that of the
      balanced examples of each refit; the authors' refits share the one of train.
    * The halves are stratified by group; the authors' are not.
    * A class without examples in the validation split is never predicted, and there is a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from spurless.core.config import MAX_COUNT, CheckedConfig, Count, Positive, Range
from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.seeds import Seeds
from spurless.data.loader import subsampled_order
from spurless.data.split import Split, Splits
from spurless.methods._head import check_classes, linear_head, replace_head, split_halves
from spurless.methods.base import ConfiguredMethod, Info
from spurless.metrics.groupwise import group_table
from spurless.models.classifier import Classifier
from spurless.train.embed import compute_features
from spurless.train.run import Run


@dataclass(frozen=True)
class DFRConfig(CheckedConfig):
    """The grid of penalties and the number of refits; values of the authors' code."""

    strengths: tuple[Positive, ...] = (1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01)  # C of the penalty; REG in their code
    refits: Count = 20  # num_retrains
    balance: Literal["subsample", "weight"] = "subsample"
    """average regressions on subsets with equally many examples of every group (the paper), or fit one regression on
    all examples with weights"""
    folds: Annotated[int, Range(2, MAX_COUNT)] = 5  # of the cross-validation of balance="weight"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.strengths:
            raise InputError("DFR needs at least one strength", expected="for example 1.0,0.1,0.01", got=self.strengths)


MAX_ITERATIONS = 1000  # of the saga solver, in passes over the balanced examples, and of lbfgs
CONSTANT = 1e-12  # deviation relative to the mean that is rounding
UNSEEN_CLASS_LOGIT = -1e4  # bias of a class without examples; its optimum is minus infinity


class DFR(ConfiguredMethod[DFRConfig]):
    """Refit the last layer on group-balanced validation data."""

    info = Info(
        "dfr",
        "Kirichenko et al. 2023",
        "refit the last layer on group-balanced validation data",
        val_labels=True,
        val_attributes=True,
        start="trained",
        title="DFR",
        fix="fast",
    )
    presets: ClassVar[Mapping[str, DFRConfig]] = {
        "waterbirds": DFRConfig(),
        "celeba": DFRConfig(
            strengths=(3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
        ),  # the authors state its ends; the steps are assumed
    }

    def check(self, model: Classifier, data: Splits) -> None:
        """Raise if the head is not linear, or a group has too few examples to be halved."""
        val = data.val
        linear_head(model, "dfr")
        check_classes(val, "DFR")
        if int(val.counts[val.counts > 0].min()) < 2:
            raise InputError(
                "DFR needs at least two examples of every group in the validation split",
                got=f"{int(val.counts[val.counts > 0].min())} in the smallest",
                hint="Use a larger validation split, or a method without groups, such as afr.",
            )

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Replace the head of ``model``."""
        self.check(model, data)
        seeds = run.seeds.child("dfr")
        features = compute_features(model, data.val, run)
        with run.timed("refit"):
            if self.config.balance == "weight":
                weight, bias = self._fit_weighted(features, data.val, seeds, run)
            else:
                strength = self._select_strength(features, data, seeds, run)
                weight, bias = self._average_refits(features, data, strength, seeds, run)
        head: nn.Linear = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0])  # type: ignore[no-untyped-call]
        head.load_state_dict({"weight": weight, "bias": bias})
        return replace_head(model, head.to(run.device))

    def _select_strength(self, features: Tensor, data: Splits, seeds: Seeds, run: Run) -> float:
        """Return the penalty that, fitted on one half of validation, has the best worst group on the other half."""
        val = data.val
        first, second = split_halves(val.g, seeds)
        total, scores = len(self.config.strengths) + self.config.refits, []
        for i, strength in enumerate(self.config.strengths):
            chosen = first[subsampled_order(val.g[first], seeds.child("tune"))(0)]
            head = refit(features[chosen], val.y[chosen], strength, len(data.groups.labels))
            pred = (features[second] @ head.weight.T + head.bias).argmax(dim=1)
            scores.append(group_table(pred, val.y[second], val.a[second], val.groups).worst[0])
            run.report_progress("refit", i + 1, total, "selecting the penalty")
        return self.config.strengths[max(range(len(scores)), key=scores.__getitem__)]

    def _average_refits(
        self, features: Tensor, data: Splits, strength: float, seeds: Seeds, run: Run
    ) -> tuple[Tensor, Tensor]:
        order, n = subsampled_order(data.val.g, seeds.child("refit")), len(self.config.strengths)
        heads = []
        for i in range(self.config.refits):
            chosen = order(i)
            heads.append(refit(features[chosen], data.val.y[chosen], strength, len(data.groups.labels)))
            run.report_progress("refit", n + i + 1, n + self.config.refits, f"C = {strength:g}")
        n_cut = sum(not head.converged for head in heads)
        if n_cut:
            warnings.warn(
                f"{n_cut} of {len(heads)} regressions of DFR did not converge; the head is the mean of all of them.",
                SpurlessWarning,
                stacklevel=2,
            )
        weights, biases = (torch.stack(part) for part in ([h.weight for h in heads], [h.bias for h in heads]))
        return weights.mean(dim=0), biases.mean(dim=0)

    def _fit_weighted(self, features: Tensor, val: Split, seeds: Seeds, run: Run) -> tuple[Tensor, Tensor]:
        """Fit one regression on all examples, with group weights and the strength selected by cross-validation."""
        folds, n_classes = stratified_folds(val.g, self.config.folds, seeds), len(val.groups.labels)
        scores: dict[float, tuple[float, float, float]] = {}
        for strength in self.config.strengths:
            pred = torch.zeros_like(val.y)
            for fold in range(self.config.folds):
                inside, outside = folds == fold, folds != fold
                head = refit(features[outside], val.y[outside], strength, n_classes, group_weights(val.g[outside]))
                pred[inside] = (features[inside] @ head.weight.T + head.bias).argmax(dim=1)
            table = group_table(pred, val.y, val.a, val.groups)
            scores[strength] = (table.worst[0], table.balanced, -strength)
            run.report_progress("refit", len(scores), len(self.config.strengths), "selecting the penalty")
        head = refit(features, val.y, max(scores, key=scores.__getitem__), n_classes, group_weights(val.g))
        if not head.converged:
            warnings.warn("The regression of DFR did not converge.", SpurlessWarning, stacklevel=2)
        return head.weight, head.bias


class LinearFit(NamedTuple):
    """The coefficients of a logistic regression, with a row for every class."""

    weight: Tensor
    bias: Tensor
    converged: bool


def group_weights(g: Tensor) -> Tensor:
    """Return weights of examples with a mean of 1 and the same total for every group.

    Example:
        >>> group_weights(torch.tensor([0, 0, 0, 2]))
        tensor([0.6667, 0.6667, 0.6667, 2.0000], dtype=torch.float64)
    """
    counts = torch.bincount(g)
    return (len(g) / int((counts > 0).sum()) / counts.double())[g]


def stratified_folds(cells: Tensor, k: int, seeds: Seeds) -> Tensor:
    """Return a fold from 0 to ``k - 1`` for every example: random, and as even as possible in every cell and overall.

    Example:
        >>> folds = stratified_folds(torch.tensor([0, 0, 0, 0, 1, 1]), 3, Seeds(0))
        >>> folds.bincount().tolist(), sorted(folds[:4].bincount().tolist())
        ([2, 2, 2], [1, 1, 2])
    """
    order = torch.randperm(len(cells), generator=seeds.generator("folds"))
    order = order[cells[order].argsort(stable=True)]  # cell by cell, in random order
    return torch.empty_like(cells).index_copy_(0, order, torch.arange(len(cells)) % k)


def refit(features: Tensor, y: Tensor, strength: float, n_classes: int, weight: Tensor | None = None) -> LinearFit:
    """Return a logistic regression on standardised features, in the scale of the given features.

    Without a ``weight`` of every example, the penalty is l1, else l2.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn's own, not annotated

    mean, std = _moments(features.double(), weight)
    scaled = ((features.double() - mean) / std).numpy()
    binary = len(torch.unique(y)) == 2
    settings = _l1_settings(binary) if weight is None else {"solver": "lbfgs", "max_iter": MAX_ITERATIONS}
    with threadpool_limits(1), warnings.catch_warnings():  # BLAS has threads of its own, which round differently
        warnings.simplefilter("ignore", ConvergenceWarning)  # one warning for all refits follows
        regression = LogisticRegression(C=strength, random_state=0, **settings)
        fitted = regression.fit(scaled, y.numpy(), None if weight is None else weight.numpy())
    coefficients, intercept = torch.from_numpy(fitted.coef_), torch.from_numpy(fitted.intercept_)
    if binary:
        coefficients, intercept = torch.cat([-coefficients, coefficients]) / 2, torch.cat([-intercept, intercept]) / 2
    classes = torch.from_numpy(fitted.classes_)
    weight = torch.zeros(n_classes, len(std), dtype=torch.double).index_copy(0, classes, coefficients / std)
    bias = torch.full((n_classes,), UNSEEN_CLASS_LOGIT, dtype=torch.double)
    bias = bias.index_copy(0, classes, intercept - weight[classes] @ mean)
    return LinearFit(weight.float(), bias.float(), bool((fitted.n_iter_ < fitted.max_iter).all()))


def _moments(features: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of every feature; the deviation of a constant one is replaced by 1."""
    if weight is None:
        mean, std = features.mean(dim=0), features.std(dim=0, correction=0)
    else:
        fraction = (weight / weight.sum())[:, None]
        mean = (fraction * features).sum(dim=0)
        std = (fraction * (features - mean).square()).sum(dim=0).sqrt()
    return mean, torch.where(std > CONSTANT * mean.abs(), std, 1.0)


def _l1_settings(binary: bool) -> dict[str, Any]:
    """Return scikit-learn's settings for an l1 penalty."""
    import sklearn

    saga: dict[str, Any] = {"solver": "saga", "max_iter": MAX_ITERATIONS, "tol": 1e-3}
    settings: dict[str, Any] = {"solver": "liblinear"} if binary else saga
    renamed = tuple(int(part) for part in sklearn.__version__.split(".")[:2]) >= (1, 8)
    return settings | ({"l1_ratio": 1.0} if renamed else {"penalty": "l1"})
