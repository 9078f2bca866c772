"""Claims from theory: on ``planted`` every group accuracy is known in closed form."""

from __future__ import annotations

from spurless.bench.claims.base import Bar, Claim, percent
from spurless.bench.experiment import Experiment

# Two points either way: each group has 5,000 examples, so that the standard error of its accuracy is 0.7.
PLANTED = {"n_train": 20000, "n_val": 2000, "n_test": 20000}
TRAIN = {"epochs": 10, "lr": 0.1, "batch_size": 200, "weight_decay": 0.0, "schedule": "cosine"}


def _planted(name: str, method: str, preset: str | None, source: str, paper: float) -> Claim:
    return Claim(
        id=f"theory/planted-{method}",
        source=source,
        quantity=f"worst-group test accuracy of {name}, %",
        experiments={method: Experiment("planted", "linear", method, PLANTED, preset=preset, train=TRAIN)},
        measure=percent(method, "worst_group"),
        paper=paper,
        bar=Bar(round(paper - 2, 2), round(paper + 2, 2)),
        seeds=3,
        minutes=0.5,
    )


OPTIMUM = "population optimum of the logistic loss, data/datasets/synthetic.py"
MINIMAX = "minimax optimum by symmetry, data/datasets/synthetic.py: Phi(1) in every group"
PLANTED_ERM = _planted("ERM", "erm", None, OPTIMUM, 39.35)
PLANTED_GROUP_DRO = _planted("Group DRO", "group-dro", "planted", MINIMAX, 84.13)
CLAIMS = (PLANTED_ERM, PLANTED_GROUP_DRO)
