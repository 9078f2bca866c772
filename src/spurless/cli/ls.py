"""``spurless ls``: what there is, where it comes from, and what it needs."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from spurless.cli.console import table
from spurless.cli.flags import Json
from spurless.core.errors import UnknownName

Row = dict[str, Any]
CARD_FIELDS = ("summary", "input", "label", "attribute", "splits", "source", "licence", "citation")


@dataclass(frozen=True)
class Listing:
    """One table: its rows in full, for machines, and what fits on 80 columns, for people."""

    rows: Callable[[], list[Row]]
    shown: tuple[str, ...]
    right: tuple[int, ...] = ()
    more: str = ""
    """Where to read on."""


def ls(
    what: Annotated[
        str, typer.Argument(help="methods, datasets, models, audits, metrics, criteria or claims.", metavar="WHAT")
    ] = "methods",
    json: Json = False,
) -> None:
    """List what there is: methods, datasets, models, audits, metrics, criteria or claims.

    The table shows what fits; --json prints everything, options and presets too.

    Examples:
      spurless ls datasets
      spurless ls methods --json
    """
    if what not in TABLES:
        raise UnknownName("list", what, TABLES)
    listing = TABLES[what]
    rows = listing.rows()
    if json:
        print(json_module.dumps(rows, indent=2))
        return
    table(what, listing.shown, [[row[name] for name in listing.shown] for row in rows], right=listing.right)
    if listing.more:
        print(f"\n{listing.more}")


def methods_rows() -> list[Row]:
    """One row per method."""
    from spurless.methods import METHODS

    return [
        {
            "method": name,
            "paper": method.info.paper,
            "what it does": method.info.summary,
            "uses": label_words(*_declared(method.info)) or "labels only",
            "starts from": {"scratch": "scratch", "trained": "a trained model"}[method.info.start],
            "presets": ", ".join(method.presets),
            "options": options_of(next(iter(method.presets.values()))),
        }
        for name, method in METHODS.items()
    ]


def datasets_rows() -> list[Row]:
    """One row per dataset."""
    from spurless.data import DATASETS

    return [
        {
            "dataset": name,
            "what it is": dataset.card.summary,
            "shortcut": dataset.card.attribute,
            "needs": "files" if dataset.layout else "nothing",
            **_layout(dataset.layout),
            **{field: getattr(dataset.card, field) for field in CARD_FIELDS if field not in ("summary", "attribute")},
            "options": options_of(dataset.config()),
        }
        for name, dataset in DATASETS.items()
    ]


def models_rows() -> list[Row]:
    """One row per model."""
    from spurless.models import MODELS

    return [
        {"model": name, "what it is": row.description, "options": options_of(row.config())}
        for name, row in MODELS.items()
    ]


def metrics_rows() -> list[Row]:
    """One row per metric."""
    from spurless.metrics import METRICS

    return [{"metric": name, "what it is": row.what, "needs": row.needs} for name, row in METRICS.items()]


def criteria_rows() -> list[Row]:
    """One row per selection criterion."""
    from spurless.train.select import CRITERIA

    return [
        {
            "criterion": name,
            "keeps the epoch with the best": row.what,
            "looks at": label_words(False, row.labels, row.attributes) or "nothing",
        }
        for name, row in CRITERIA.items()
    ]


def audits_rows() -> list[Row]:
    """One row per question that an audit asks."""
    from spurless.auditing import AUDITS, swapped_backgrounds

    rows = [{"audit": row.name, "asks": row.question, "needs": row.needs} for row in AUDITS.values()]
    # it is in no table: it is asked where masks are given
    asked = {"audit": swapped_backgrounds.NAME, "asks": swapped_backgrounds.QUESTION, "needs": "images, --masks"}
    return [*rows, asked]


def claims_rows() -> list[Row]:
    """One row per claim."""
    from spurless.bench.claims import CLAIMS

    return [
        {
            "claim": claim.id,
            "quantity": claim.quantity,
            "paper": "none" if claim.paper is None else f"{claim.paper:g}",
            "bar": str(claim.bar),
            "seeds": str(claim.seeds),
            "minutes": f"{claim.minutes:g} {claim.cost}",
            "place": claim.place,
        }
        for claim in CLAIMS.values()
    ]


TABLES: dict[str, Listing] = {
    "methods": Listing(
        methods_rows,
        ("method", "what it does", "uses", "paper"),
        more="Options and presets: spurless ls methods --json\nYour own code: FILE.py:METHOD or package.module:METHOD",
    ),
    "datasets": Listing(
        datasets_rows,
        ("dataset", "needs", "what it is"),
        more="Options, card and counts: spurless data describe NAME\nFiles: spurless data prepare NAME",
    ),
    "models": Listing(
        models_rows,
        ("model", "what it is"),
        more="Options: spurless ls models --json\nYour own code: FILE.py:FACTORY or package.module:FACTORY",
    ),
    "audits": Listing(audits_rows, ("audit", "asks", "needs"), more="Ask them: spurless audit WEIGHTS"),
    "metrics": Listing(metrics_rows, ("metric", "what it is", "needs")),
    "criteria": Listing(criteria_rows, ("criterion", "keeps the epoch with the best", "looks at")),
    "claims": Listing(
        claims_rows,
        ("claim", "quantity", "paper", "bar", "minutes"),
        right=(2, 3, 4),
        more="Rerun one: spurless reproduce CLAIM",
    ),
}


def _layout(layout: Any) -> Row:
    """Return which files a dataset needs, where they are looked for, and where to get them."""
    if layout is None:
        return {"files": [], "folders": [], "archives": [], "obtain": "", "download": False}
    lists = {field: list(getattr(layout, field)) for field in ("files", "folders", "archives")}
    return {**lists, "obtain": layout.obtain, "download": layout.download is not None}


def _declared(info: Any) -> tuple[bool, bool, bool]:
    return info.train_attributes, info.val_labels, info.val_attributes


def label_words(train_attributes: bool, val_labels: bool, val_attributes: bool) -> str:
    """Say which labels are used beyond the training labels."""
    words = []
    if train_attributes:
        words.append("train attributes")
    if val_attributes:
        words.append("val attributes")
    elif val_labels:
        words.append("val labels")
    return ", ".join(words)


def options_of(config: Any) -> str:
    """Return what may be set, with the values it has unless it is."""
    return ", ".join(f"{name}={value}" for name, value in vars(config).items())
