"""``spurless ls``: what there is, where it comes from, and what it needs."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable
from typing import Annotated

import typer

from spurless.cli.console import table
from spurless.cli.flags import Json
from spurless.core.errors import UnknownName

Rows = list[dict[str, str]]


def ls(
    what: Annotated[str, typer.Argument(help="methods, datasets, models, metrics, criteria or claims.")] = "methods",
    json: Json = False,
) -> None:
    """List what there is: methods, datasets, models, metrics, criteria or claims.

    Example:

      spurless ls datasets
    """
    if what not in TABLES:
        raise UnknownName("list", what, TABLES)
    rows = TABLES[what]()
    if json:
        print(json_module.dumps(rows, indent=2))
    else:
        table(what, list(rows[0]), [list(row.values()) for row in rows])


def methods_rows() -> Rows:
    """One row per method."""
    from spurless.methods import METHODS

    return [
        {
            "method": name,
            "paper": method.info.paper,
            "what it does": method.info.summary,
            "labels it uses": _labels(method.info.train_attributes, method.info.val_labels, method.info.val_attributes),
            "starts from": {"scratch": "scratch", "trained": "a trained model"}[method.info.start],
            "presets": ", ".join(method.presets),
        }
        for name, method in METHODS.items()
    ]


def datasets_rows() -> Rows:
    """One row per dataset."""
    from dataclasses import fields

    from spurless.data import DATASETS

    return [
        {
            "dataset": name,
            "what it is": dataset.card.summary,
            "shortcut": dataset.card.attribute,
            "options": ", ".join(f"{option.name}={option.default}" for option in fields(dataset.config)),
        }
        for name, dataset in DATASETS.items()
    ]


def models_rows() -> Rows:
    """One row per model."""
    from spurless.models import MODELS

    return [{"model": name, "what it is": row.description} for name, row in MODELS.items()]


def metrics_rows() -> Rows:
    """One row per metric."""
    from spurless.metrics import METRICS

    return [{"metric": name, "what it is": row.what, "needs": row.needs} for name, row in METRICS.items()]


def criteria_rows() -> Rows:
    """One row per selection criterion."""
    from spurless.train.select import CRITERIA

    return [
        {
            "criterion": name,
            "keeps the epoch with the best": row.what,
            "looks at": _labels(False, row.labels, row.attributes),
        }
        for name, row in CRITERIA.items()
    ]


def claims_rows() -> Rows:
    """One row per claim."""
    from spurless.bench.claims import CLAIMS

    return [
        {
            "claim": claim.id,
            "quantity": claim.quantity,
            "paper": f"{claim.paper:g}",
            "bar": str(claim.bar),
            "seeds": str(claim.seeds),
            "cost": f"{claim.cost}, {claim.minutes:g} min",
            "place": claim.place,
        }
        for claim in CLAIMS.values()
    ]


TABLES: dict[str, Callable[[], Rows]] = {
    "methods": methods_rows,
    "datasets": datasets_rows,
    "models": models_rows,
    "metrics": metrics_rows,
    "criteria": criteria_rows,
    "claims": claims_rows,
}


def _labels(train_attributes: bool, val_labels: bool, val_attributes: bool) -> str:
    words = []
    if train_attributes:
        words.append("attributes of train")
    if val_attributes:
        words.append("labels and attributes of val")
    elif val_labels:
        words.append("labels of val")
    return ", ".join(words) or "none beyond the training labels"
