"""Claims of AVP: Malik and Fern, "Frequency based pruning improves latent identification and generalization".

The paper's toy has figures and no numbers, so the bars are ours: what pruning brings over training on for as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spurless.bench.cell import Cell
from spurless.bench.claims.base import Bar, Claim
from spurless.bench.fitting import Fitted
from spurless.core.records import Record
from spurless.data import load
from spurless.models.masks import sparsity
from spurless.train.evaluate import predict

NET: dict[str, Any] = {"depth": 3, "width": 32, "activation": "tanh", "bias": True}
# Section 4.1: Adam, until there is no training error; full batches as in the authors' code. The rate is in neither: of
# 0.01, 0.02, 0.03 and 0.05, the one that overfits soonest, on seeds that the claims do not use.
OVERFIT: dict[str, Any] = {
    "epochs": 10_000,
    "batch_size": 525,
    "optimiser": "adam",
    "lr": 0.03,
    "weight_decay": 0.0,
    "stop_accuracy": 1.0,
}
EARLY = {**OVERFIT, "epochs": 300}
"""Enough: over 900 epochs and more of seed 0, validation is at its best in the eighth, on both sets."""


def obedience(fitted: Fitted) -> Mapping[str, float]:
    """Return the share of wrong training labels that the model still predicts, and its share of zeros."""
    train = load("gaussians", **fitted.record.data["options"]).train
    wrong = train.select((train.a == 1).nonzero().flatten())
    obeyed = predict(fitted.model, wrong) == wrong.y
    return {"obeyed": float(obeyed.double().mean()), "sparsity": sparsity(fitted.model)}


def gain(records: Mapping[str, Record]) -> float:
    """Measure how much higher accuracy on the clean test split is than without pruning, in points."""
    pruned, plain = (records[cell].metrics["average"] or 0.0 for cell in ("avp", "no pruning"))
    return 100 * (pruned - plain)


def _cells(biased: bool) -> dict[str, Cell]:
    data = {"biased": biased}
    return {
        "overfitted": Cell("gaussians", "mlp", "erm", data, NET, train=OVERFIT),
        "early stopping": Cell("gaussians", "mlp", "erm", data, NET, train=EARLY, select="val-average"),
        "no pruning": Cell(
            "gaussians",
            "mlp",
            "random-prune",
            data,
            NET,
            method_options={"probability": 0.0, "keep": "last"},
            train=OVERFIT,
        ),
        "no pruning, best epoch": Cell(  # what choosing on validation brings by itself
            "gaussians", "mlp", "random-prune", data, NET, method_options={"probability": 0.0}, train=OVERFIT
        ),
        "avp": Cell("gaussians", "mlp", "avp", data, NET, train=OVERFIT),
        "avp, min-max": Cell("gaussians", "mlp", "avp", data, NET, method_options={"reading": "minmax"}, train=OVERFIT),
        "avp, authors' code": Cell("gaussians", "mlp", "avp", data, NET, preset="gaussians-authors", train=OVERFIT),
        "random": Cell("gaussians", "mlp", "random-prune", data, NET, train=OVERFIT),
        "magnitude": Cell("gaussians", "mlp", "magnitude-prune", data, NET, train=OVERFIT),
    }


def _claim(biased: bool, row: str) -> Claim:
    word = "biased" if biased else "unbiased"
    return Claim(
        id=f"avp/gaussians-{word}",
        place=f"Section 4.1 and figure 1, {row}: boundaries come close to the true classes; the bar is ours",
        quantity="accuracy on clean data above training on without pruning, points, on every seed",
        cells=_cells(biased),
        measure=gain,
        paper=None,
        spread=None,
        bar=Bar(0.01),  # any gain: one of the 500 test examples is 0.2 points
        seeds=10,
        cost="cpu",
        minutes=10,
        over="min",
        extra=obedience,
    )


BIASED = _claim(biased=True, row="wrong labels by a rule")
UNBIASED = _claim(biased=False, row="wrong labels by chance")
CLAIMS = (BIASED, UNBIASED)
