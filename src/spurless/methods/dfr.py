r"""DFR: keep the features, refit the last layer on data where every group counts the same.

Kirichenko, Izmailov and Wilson, "Last Layer Re-Training is Sufficient for Robustness to Spurious Correlations",
ICLR 2023, arXiv:2204.02937, section 6 (DFR-val, with the l1 penalty of appendix B).

Half of the validation split chooses the strength C of the penalty by worst-group accuracy; then
``refits`` models are fitted on group-balanced subsets of the whole validation split, and their
coefficients are averaged.

Deviations:
    * scikit-learn's liblinear has no multinomial loss, so for more than two classes the penalty is l1 with the saga
      solver; the paper's datasets with more classes use the same estimator one-vs-rest.
    * The standardisation is folded into the weights, so that the result is an ordinary linear head. It is that of the
      balanced examples of each refit; the authors' refits share the one of train.
    * The halves have the same share of every group; the authors' are drawn without regard to it.
    * A class without examples in the validation split is never predicted, and there is a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.core.seeds import Seeds
from spurless.data.grouped import Splits
from spurless.data.loader import subsampled
from spurless.methods.base import Info
from spurless.methods.head_tuning import check_classes, halves, linear_head, put_head
from spurless.metrics.groupwise import group_table
from spurless.models.classifier import Classifier
from spurless.train.embed import features_of
from spurless.train.run import Run


@dataclass(frozen=True)
class DFRConfig:
    """Values of the authors' code."""

    strengths: tuple[float, ...] = (1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01)  # C of the l1 penalty; REG in their code
    refits: int = 20  # num_retrains


DFR_WATERBIRDS = DFRConfig()
PASSES = 1000
"""Of saga over the balanced examples, at most."""
NEVER = -1e4
"""The logit of a class that no refit has seen: its best one is minus infinity."""


class DFR:
    """Refit the last layer on group-balanced validation data."""

    info: ClassVar[Info] = Info(
        "dfr",
        "Kirichenko et al. 2023",
        "refit the last layer on group-balanced validation data",
        val_labels=True,
        val_attributes=True,
        start="trained",
    )
    presets: ClassVar[Mapping[str, DFRConfig]] = {"waterbirds": DFR_WATERBIRDS}

    def __init__(self, config: DFRConfig = DFR_WATERBIRDS) -> None:
        self.config = config

    def check(self, model: Classifier, data: Splits) -> None:
        """Refuse a head that is not linear, and groups that cannot be halved."""
        val = data.val
        linear_head(model, "dfr")
        check_classes(val, "DFR")
        if int(val.counts[val.counts > 0].min()) < 2:
            raise BadInput(
                "DFR needs two examples of every group in the validation split",
                got=f"{int(val.counts[val.counts > 0].min())} in the smallest",
                do="Use a larger validation split, or a method that needs no groups.",
            )

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Replace the head of ``model``."""
        self.check(model, data)
        seeds = run.seeds.child("dfr")
        features = features_of(model, data.val, run)
        with run.timed("refit"):
            strength = self._choose(features, data, seeds, run)
            weight, bias = self._average(features, data, strength, seeds, run)
        head: nn.Linear = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0])  # type: ignore[no-untyped-call]
        head.load_state_dict({"weight": weight, "bias": bias})
        return put_head(model, head.to(run.device))

    def _choose(self, features: Tensor, data: Splits, seeds: Seeds, run: Run) -> float:
        """Return the penalty under which one half of validation serves the worst group of the other half best."""
        val = data.val
        first, second = halves(val.g, seeds)
        scores = []
        for i, strength in enumerate(self.config.strengths):
            chosen = first[subsampled(val.g[first], seeds.child("tune"))(0)]
            weight, bias, _ = refit(features[chosen], val.y[chosen], strength, len(data.groups.labels))
            pred = (features[second] @ weight.T + bias).argmax(dim=1)
            scores.append(group_table(pred, val.y[second], val.a[second], val.groups).worst[0])
            run.tell("refit", i + 1, len(self.config.strengths) + self.config.refits, "choosing the penalty")
        return self.config.strengths[max(range(len(scores)), key=scores.__getitem__)]

    def _average(
        self, features: Tensor, data: Splits, strength: float, seeds: Seeds, run: Run
    ) -> tuple[Tensor, Tensor]:
        order, n = subsampled(data.val.g, seeds.child("refit")), len(self.config.strengths)
        heads = []
        for i in range(self.config.refits):
            chosen = order(i)
            heads.append(refit(features[chosen], data.val.y[chosen], strength, len(data.groups.labels)))
            run.tell("refit", n + i + 1, n + self.config.refits, f"C = {strength:g}")
        weights, biases, settled = zip(*heads, strict=True)
        if not all(settled):
            warnings.warn(
                f"{settled.count(False)} of {len(settled)} regressions of DFR were cut off before they had settled; "
                "the head is the mean of what they had come to.",
                SpurlessWarning,
                stacklevel=2,
            )
        return torch.stack(weights).mean(dim=0), torch.stack(biases).mean(dim=0)


def refit(features: Tensor, y: Tensor, strength: float, n_classes: int) -> tuple[Tensor, Tensor, bool]:
    """Return weight and bias of an l1-penalised logistic regression, and whether it settled.

    Features are standardised for it, and back. scikit-learn has a row for each class that it saw, here there is one for
    every class.
    """
    import sklearn
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    mean, std = features.double().mean(dim=0), features.double().std(dim=0, correction=0)
    std = torch.where(std > 0, std, 1.0)
    scaled = ((features.double() - mean) / std).numpy()
    binary = len(torch.unique(y)) == 2
    settings: dict[str, Any] = (
        {"solver": "liblinear"} if binary else {"solver": "saga", "max_iter": PASSES, "tol": 1e-3}
    )
    renamed = tuple(int(part) for part in sklearn.__version__.split(".")[:2]) >= (1, 8)
    settings |= {"l1_ratio": 1.0} if renamed else {"penalty": "l1"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of many refits each would say it
        fitted = LogisticRegression(C=strength, random_state=0, **settings).fit(scaled, y.numpy())
    coefficients, intercept = torch.from_numpy(fitted.coef_), torch.from_numpy(fitted.intercept_)
    if binary:
        coefficients, intercept = torch.cat([-coefficients, coefficients]) / 2, torch.cat([-intercept, intercept]) / 2
    seen = torch.from_numpy(fitted.classes_)
    weight = torch.zeros(n_classes, len(std), dtype=torch.double).index_copy(0, seen, coefficients / std)
    bias = torch.full((n_classes,), NEVER, dtype=torch.double).index_copy(0, seen, intercept - weight[seen] @ mean)
    return weight.float(), bias.float(), bool((fitted.n_iter_ < fitted.max_iter).all())
