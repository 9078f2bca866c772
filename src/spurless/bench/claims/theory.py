"""Claims whose numbers are formulas: on ``planted`` every group accuracy is known in closed form."""

from __future__ import annotations

from spurless.bench.cell import Cell
from spurless.bench.claims.base import Bar, Claim, percent

# Two points either way: the worst of the groups is taken on 5,000 examples each, whose standard error is 0.7.
PLANTED = {"n_train": 20000, "n_val": 2000, "n_test": 20000}
TRAIN = {"epochs": 10, "lr": 0.1, "batch_size": 200, "weight_decay": 0.0, "schedule": "cosine"}

PLANTED_ERM = Claim(
    id="theory/planted-erm",
    place="population optimum of the logistic loss, data/planted.py",
    quantity="worst-group test accuracy of ERM, %",
    cells={"erm": Cell("planted", "linear", "erm", PLANTED, train=TRAIN)},
    measure=percent("erm", "worst_group"),
    paper=39.35,
    spread=None,
    bar=Bar(37.35, 41.35),
    seeds=3,
    cost="cpu",
    minutes=0.5,
)

PLANTED_GROUP_DRO = Claim(
    id="theory/planted-group-dro",
    place="minimax optimum by symmetry, data/planted.py: Phi(1) in every group",
    quantity="worst-group test accuracy of Group DRO, %",
    cells={"group-dro": Cell("planted", "linear", "group-dro", PLANTED, preset="planted", train=TRAIN)},
    measure=percent("group-dro", "worst_group"),
    paper=84.13,
    spread=None,
    bar=Bar(82.13, 86.13),
    seeds=3,
    cost="cpu",
    minutes=0.5,
)

CLAIMS = (PLANTED_ERM, PLANTED_GROUP_DRO)
