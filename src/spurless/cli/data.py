"""``spurless data``: is a dataset here, and is it whole?"""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer

from spurless.cli.console import fact, table
from spurless.cli.flags import CsvAttribute, CsvFeatures, CsvFile, CsvLabel, CsvRoot, CsvSplit, DataOption, Json, Seed
from spurless.cli.ls import options_of
from spurless.cli.sources import Columns, open_data
from spurless.core.options import pairs

data = typer.Typer(help="Check datasets.", rich_markup_mode="rich")


@data.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    """Check datasets."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@data.command("check")
def check(
    source: Annotated[
        str,
        typer.Argument(help="Name (see: spurless ls datasets) or path: class folders, CSV, npz.", metavar="DATA"),
    ],
    data_option: DataOption = [],
    label: CsvLabel = None,
    attribute: CsvAttribute = None,
    split: CsvSplit = None,
    features: CsvFeatures = None,
    file: CsvFile = None,
    root: CsvRoot = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Open DATA, read every example once, and print how many each group has in each split.

    A file or a row that cannot be read is named, and the exit status is 2.

    Examples:
      spurless data check colored-digits -D conflicting=0.1
      spurless data check meta.csv --label y --attribute place --root images
    """
    from spurless.data import DATASETS
    from spurless.data.loader import Loader, in_order
    from spurless.metrics.association import associate

    splits = open_data(
        source, pairs(data_option, "--data-option"), Columns(label, attribute, split, features, file, root), seed
    )
    parts = {"train": splits.train, "val": splits.val, "test": splits.test}
    for part in parts.values():
        for _ in Loader(part, in_order(len(part)), 256).batches():
            pass  # a file that cannot be read says so here
    counts = {name: part.counts.tolist() for name, part in parts.items()}
    train = splits.train
    found = associate(train.y, train.a, train.groups) if train.has_attributes else None
    if json:
        told = {"name": splits.name, "groups": splits.groups.names, "counts": counts}
        print(json_module.dumps({**told, "goodman_kruskal": None if found is None else found.goodman_kruskal}))
        return
    if source in DATASETS:
        card = DATASETS[source].card
        for field in ("summary", "input", "label", "attribute", "splits", "source", "licence", "citation"):
            fact(field, getattr(card, field))
        fact("options", options_of(DATASETS[source].config()))
    rows = [[name, *(str(counts[part][g]) for part in parts)] for g, name in enumerate(splits.groups.names)]
    table(f"{splits.name}: whole", ("group", *parts), rows, right=(1, 2, 3))
    if found is not None:
        fact(
            "shortcut",
            f"in train the attribute removes {100 * found.goodman_kruskal:.0f} % of the mistakes of guessing the "
            f"largest class; Cramer's V {found.cramers_v:.2f}",
        )
