"""``spurless ls``: list methods, datasets, models, audits, metrics, criteria, recipes and claims."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from spurless.cli.console import print_json, print_table, print_text
from spurless.cli.params import Json
from spurless.core.errors import UnknownNameError

Row = dict[str, Any]
CARD_FIELDS = ("summary", "input", "label", "attribute", "splits", "source", "licence", "citation")


@dataclass(frozen=True)
class Listing:
    """One table: all fields of its rows, for --json, and the columns that fit on 80 characters."""

    rows: Callable[[], list[Row]]
    columns: tuple[str, ...]
    right: tuple[int, ...] = ()
    more: str = ""  # hint below the table


def ls(
    what: Annotated[
        str,
        typer.Argument(help="methods, datasets, models, audits, metrics, criteria, recipes or claims.", metavar="WHAT"),
    ] = "methods",
    json: Json = False,
) -> None:
    """List the available methods, datasets, models, audits, metrics, criteria, recipes or claims.

    The table shows the main columns; --json prints everything, also options and
    presets.

    Examples:
      spurless ls datasets
      spurless ls methods --json
    """
    if what not in TABLES:
        raise UnknownNameError("list", what, TABLES)
    listing = TABLES[what]
    rows = listing.rows()
    if json:
        print_json(json_module.dumps(rows, indent=2))
        return
    print_table(what, listing.columns, [[row[name] for name in listing.columns] for row in rows], right=listing.right)
    if listing.more:
        print_text()
        for line in listing.more.splitlines():
            print_text(line)


def _list_methods() -> list[Row]:
    from spurless.methods import METHODS

    return [
        {
            "method": name,
            "paper": (info := method.info).paper,
            "what it does": info.summary,
            "uses": describe_labels(info.train_attributes, info.val_labels, info.val_attributes) or "labels only",
            "starts from": {"scratch": "scratch", "trained": "a trained model"}[info.start],
            "presets": ", ".join(method.presets),
            "options": list_options(next(iter(method.presets.values()))),
        }
        for name, method in METHODS.items()
    ]


def _list_datasets() -> list[Row]:
    from spurless.data import DATASETS

    return [
        {
            "dataset": name,
            "what it is": dataset.card.summary,
            "shortcut": dataset.card.attribute,
            "needs": "files" if dataset.layout else "nothing",
            **layout_fields(dataset.layout),
            **{field: getattr(dataset.card, field) for field in CARD_FIELDS if field not in ("summary", "attribute")},
            "options": list_options(dataset.config()),
        }
        for name, dataset in DATASETS.items()
    ]


def _list_models() -> list[Row]:
    from spurless.models import MODELS

    rows = MODELS.items()
    return [{"model": n, "what it is": row.description, "options": list_options(row.config())} for n, row in rows]


def _list_metrics() -> list[Row]:
    from spurless.metrics import METRICS

    return [{"metric": name, "what it is": row.description, "needs": row.needs} for name, row in METRICS.items()]


def _list_criteria() -> list[Row]:
    from spurless.train.selection import CRITERIA

    return [
        {
            "criterion": name,
            "keeps the epoch with the best": row.what,
            "uses": describe_labels(False, row.labels, row.attributes) or "nothing",
        }
        for name, row in CRITERIA.items()
    ]


def _list_audits() -> list[Row]:
    from spurless.auditing import AUDITS
    from spurless.auditing._user_audit import installed_audits

    rows = [{"audit": row.name, "question": row.question, "needs": row.needs} for row in AUDITS.values()]
    return rows + [
        {"audit": name, "question": f"installed: {entry.value}", "needs": "--add or --only"}
        for name, entry in installed_audits().items()
    ]


def _list_recipes() -> list[Row]:
    from spurless.train.recipes import RECIPES

    return [
        {
            "recipe": name,
            "source": recipe.source,
            "network": recipe.network,
            "settings": list_settings(recipe.train),
            "note": recipe.note,
        }
        for name, recipe in RECIPES.items()
    ]


def _list_claims() -> list[Row]:
    from spurless.bench.claims import CLAIMS

    return [
        {
            "claim": claim.id,
            "quantity": claim.quantity,
            "paper": "none" if claim.paper is None else f"{claim.paper:g}",
            "bar": str(claim.bar),
            "seeds": str(claim.seeds),
            "minutes": f"{claim.minutes:g} {claim.cost}",
            "place": claim.source,
        }
        for claim in CLAIMS.values()
    ]


TABLES: dict[str, Listing] = {
    "methods": Listing(
        _list_methods,
        ("method", "what it does", "uses", "paper"),
        more="Options and presets: spurless ls methods --json\nYour own code: FILE.py:METHOD or package.module:METHOD",
    ),
    "datasets": Listing(
        _list_datasets,
        ("dataset", "needs", "what it is"),
        more="Options, card and counts: spurless data describe NAME\nFiles: spurless data prepare NAME",
    ),
    "models": Listing(
        _list_models,
        ("model", "what it is"),
        more="Options: spurless ls models --json\nYour own code: FILE.py:FACTORY or package.module:FACTORY",
    ),
    "audits": Listing(
        _list_audits,
        ("audit", "question", "needs"),
        more="Run them: spurless audit WEIGHTS\nYour own code: --add FILE.py:AUDIT or package.module:AUDIT",
    ),
    "metrics": Listing(_list_metrics, ("metric", "what it is", "needs")),
    "criteria": Listing(_list_criteria, ("criterion", "keeps the epoch with the best", "uses")),
    "recipes": Listing(
        _list_recipes,
        ("recipe", "source", "settings"),
        more="Networks and notes: spurless ls recipes --json\nUse one: spurless fit METHOD --recipe NAME",
    ),
    "claims": Listing(
        _list_claims,
        ("claim", "quantity", "paper", "bar", "minutes"),
        right=(2, 3, 4),
        more="Rerun one: spurless reproduce CLAIM",
    ),
}


def layout_fields(layout: Any) -> Row:
    """Return the files that a dataset needs, where they are searched, and how to obtain them."""
    if layout is None:
        return {"files": [], "folders": [], "archives": [], "obtain": "", "download": False}
    lists = {"files": [*layout.file_names], "folders": [*layout.folders], "archives": [*layout.archives]}
    return {**lists, "obtain": layout.obtain, "download": layout.download is not None}


def describe_labels(train_attributes: bool, val_labels: bool, val_attributes: bool) -> str:
    """List the labels that are used in addition to the training labels."""
    val = "val attributes" if val_attributes else "val labels" if val_labels else ""
    return ", ".join(filter(None, ("train attributes" if train_attributes else "", val)))


def list_settings(train: Any) -> str:
    """List the settings that every training has, and the others if they differ from the defaults."""
    default, length = type(train)(), "epochs" if train.steps is None else "steps"
    always = (length, "batch_size", "optimiser", "lr")
    others = [name for name, value in vars(train).items() if value != getattr(default, name) and name != "epochs"]
    return ", ".join(f"{name}={getattr(train, name)}" for name in dict.fromkeys((*always, *others)))


def list_options(config: Any) -> str:
    """List the options of a configuration with their values."""
    return ", ".join(f"{name}={value}" for name, value in vars(config).items())
