r"""DFR: keep the features and refit the last layer on group-balanced validation data.

Kirichenko, Izmailov and Wilson, "Last Layer Re-Training is Sufficient for Robustness to Spurious Correlations",
ICLR 2023, arXiv:2204.02937, section 6 (DFR-val, with the l1 penalty of appendix B).

Half of the validation split selects the strength C of the penalty by worst-group accuracy; then ``refits`` models are
fitted on group-balanced subsets of the whole validation split, and their coefficients are averaged.

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
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.seeds import Seeds
from spurless.data.loader import subsampled_order
from spurless.data.split import Splits
from spurless.methods._head import check_classes, linear_head, replace_head, split_halves
from spurless.methods.base import ConfiguredMethod, Info
from spurless.metrics.groupwise import group_table
from spurless.models.classifier import Classifier
from spurless.train.embed import compute_features
from spurless.train.run import Run


@dataclass(frozen=True)
class DFRConfig:
    """The grid of penalties and the number of refits; values of the authors' code."""

    strengths: tuple[float, ...] = (1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01)  # C of the l1 penalty; REG in their code
    refits: int = 20  # num_retrains


MAX_ITERATIONS = 1000  # of the saga solver, in passes over the balanced examples
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
    presets: ClassVar[Mapping[str, DFRConfig]] = {"waterbirds": DFRConfig()}

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


class LinearFit(NamedTuple):
    """The coefficients of a logistic regression, with a row for every class."""

    weight: Tensor
    bias: Tensor
    converged: bool


def refit(features: Tensor, y: Tensor, strength: float, n_classes: int) -> LinearFit:
    """Return an l1-penalised logistic regression on standardised features, in the scale of the given features."""
    import sklearn
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    mean, std = features.double().mean(dim=0), features.double().std(dim=0, correction=0)
    std = torch.where(std > 0, std, 1.0)
    scaled = ((features.double() - mean) / std).numpy()
    binary = len(torch.unique(y)) == 2
    saga: dict[str, Any] = {"solver": "saga", "max_iter": MAX_ITERATIONS, "tol": 1e-3}
    settings: dict[str, Any] = {"solver": "liblinear"} if binary else saga
    renamed = tuple(int(part) for part in sklearn.__version__.split(".")[:2]) >= (1, 8)
    settings |= {"l1_ratio": 1.0} if renamed else {"penalty": "l1"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # one warning for all refits follows
        fitted = LogisticRegression(C=strength, random_state=0, **settings).fit(scaled, y.numpy())
    coefficients, intercept = torch.from_numpy(fitted.coef_), torch.from_numpy(fitted.intercept_)
    if binary:
        coefficients, intercept = torch.cat([-coefficients, coefficients]) / 2, torch.cat([-intercept, intercept]) / 2
    classes = torch.from_numpy(fitted.classes_)
    weight = torch.zeros(n_classes, len(std), dtype=torch.double).index_copy(0, classes, coefficients / std)
    bias = torch.full((n_classes,), UNSEEN_CLASS_LOGIT, dtype=torch.double)
    bias = bias.index_copy(0, classes, intercept - weight[classes] @ mean)
    return LinearFit(weight.float(), bias.float(), bool((fitted.n_iter_ < fitted.max_iter).all()))
