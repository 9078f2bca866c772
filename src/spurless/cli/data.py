"""``spurless data``: get datasets ready, see whether they are whole, look at them, and pack own ones."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spurless.cli.console import fact, progress_bar, table
from spurless.cli.data_describe import describe
from spurless.cli.data_facts import PARTS, short, tell_files, tell_place, unknown_in
from spurless.cli.data_pack import pack
from spurless.cli.data_show import show
from spurless.cli.flags import (
    CsvAttribute,
    CsvFeatures,
    CsvFile,
    CsvLabel,
    CsvRoot,
    CsvSplit,
    CsvText,
    DataArgument,
    DataOption,
    Json,
    Quiet,
    Seed,
    SkipBad,
)
from spurless.cli.ls import CARD_FIELDS, options_of
from spurless.cli.sources import Columns, files_read, named_options, noting_what_is_missing, open_data
from spurless.core.errors import BadInput, SpurlessError
from spurless.core.options import configure, pairs
from spurless.core.progress import listening, teller

if TYPE_CHECKING:
    from spurless.data.grouped import Splits
    from spurless.data.preparing import Prepared

data = typer.Typer(help="Prepare, check, describe, show and pack datasets.", rich_markup_mode="rich")


@data.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    """Prepare, check, describe, show and pack datasets."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@data.command("prepare")
def prepare(
    name: Annotated[str, typer.Argument(help="Dataset (see: spurless ls datasets).", metavar="NAME")],
    root: Annotated[
        Path | None,
        typer.Option(
            help="Data folder: where the files lie, or shall lie.",
            metavar="FOLDER",
            show_default="$SPURLESS_DATA, else data",
        ),
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch the files where a program may, checksums checked.", metavar="")
    ] = False,
    data_option: DataOption = [],
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Make a named dataset ready: find its files, unpack or download them, load it once.

    A published archive that lies in the data folder is unpacked there. Files
    that a SHA256SUMS beside them lists are compared with it. Large sets of
    images are decoded once and kept in the cache, so that the first run starts
    at once. Where nobody may fetch the files for you, it says where to get
    them, and the exit status is 2.

    Examples:
      spurless data prepare waterbirds --root ~/data
      spurless data prepare cifar10 --root ~/data --download
    """
    from spurless.data import DATASETS, dataset_named
    from spurless.data.preparing import prepare as make_ready

    if name not in DATASETS and Path(name).exists():
        raise BadInput(
            "own data need no preparing", got=name, do=f"See whether they are whole: spurless data check {name}"
        )
    dataset = dataset_named(name)
    options = named_options(name, pairs(data_option, "--data-option"), Columns(root=root))
    config = configure(dataset.config, {"seed": seed, **options}, owner=f"dataset {name!r}")
    with noting_what_is_missing() as missing, progress_bar(quiet) as bar, listening(bar):
        ready = make_ready(dataset, config, download)
    if dataset.layout is None:
        fact("prepared", f"{name} needs no files, so nothing needs preparing")
    _tell_what_was_done(ready)
    _tell(name, ready.splits, missing, json=False)


@data.command("check")
def check(
    source: DataArgument,
    data_option: DataOption = [],
    label: CsvLabel = None,
    attribute: CsvAttribute = None,
    split: CsvSplit = None,
    features: CsvFeatures = None,
    file: CsvFile = None,
    text: CsvText = None,
    root: CsvRoot = None,
    skip_bad: SkipBad = False,
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Open DATA, read every example once, and print how many each group has in each split.

    The verdict is whole, or not whole where a published dataset has other
    counts than those published. Then, and where a file or a row cannot be read,
    the exit status is 2, and the sentence says which. Examples whose attribute
    is unknown are in no group; they have a row of their own.

    Examples:
      spurless data check colored-digits -D conflicting=0.1
      spurless data check waterbirds --root ~/data
      spurless data check meta.csv --label y --attribute place --root images
    """
    from spurless.data import DATASETS

    columns = Columns(label, attribute, split, features, file, root, text, skip_bad)
    with noting_what_is_missing() as missing:
        splits = open_data(source, pairs(data_option, "--data-option"), columns, seed, quiet)
    with progress_bar(quiet) as bar, listening(bar):
        _read_every_example(splits)
    if not json and source in DATASETS:
        card = DATASETS[source].card
        for field in CARD_FIELDS:
            fact(field, getattr(card, field))
        fact("options", options_of(DATASETS[source].config()))
    _tell(source, splits, missing, json)


data.command("describe")(describe)
data.command("show")(show)
data.command("pack")(pack)


def _read_every_example(splits: Splits) -> None:
    """Go through all splits: a file that cannot be read says so here."""
    from spurless.data.loader import Loader, in_order

    parts = [getattr(splits, name) for name in PARTS]
    told, done = teller("read", sum(map(len, parts))), 0
    for part in parts:
        for batch in Loader(part, in_order(len(part)), 256).batches():
            done += len(batch)
            told(done)


def _tell_what_was_done(ready: Prepared) -> None:
    for archive in ready.unpacked:
        tell_place("unpacked", archive)
    if ready.downloaded and ready.files is not None:
        tell_place("downloaded", ready.files.folder)
    if ready.sums is not None:
        absent = f"; {ready.sums.absent} of the list are not here" if ready.sums.absent else ""
        fact("checksums", f"{ready.sums.right} files are as SHA256SUMS lists them{absent}")


def _tell(source: str, splits: Splits, missing: list[str], json: bool) -> None:
    """Print the counts of every group and the verdict; data that are not whole are an error."""
    from spurless.metrics.association import associate

    counts = {name: getattr(splits, name).counts.tolist() for name in PARTS}
    unknown = unknown_in(splits)
    train, missing = splits.train, list(dict.fromkeys(missing))
    found = associate(train.y, train.a, train.groups) if train.has_attributes else None
    files, notes = files_read(source, splits), [note for note in splits.notes if note not in missing]
    if json:
        told: dict[str, Any] = {"name": splits.name, "whole": not missing, "missing": missing, "files": files}
        told["notes"] = notes
        told |= {"groups": splits.groups.names, "counts": counts, "unknown": unknown}
        print(json_module.dumps({**told, "goodman_kruskal": None if found is None else found.goodman_kruskal}))
    else:
        tell_files(files)
        for note in notes:
            fact("note", note)
        rows = [[short(name), *(str(counts[part][g]) for part in PARTS)] for g, name in enumerate(splits.groups.names)]
        if any(unknown.values()):
            rows.append(["attribute unknown", *(str(unknown[part]) for part in PARTS)])
        verdict = "not whole" if missing else "whole"
        table(f"{splits.name}: {verdict}", ("group", *PARTS), rows, right=(1, 2, 3))
    if found is not None and not json:
        fact(
            "shortcut",
            f"in train the attribute removes {100 * found.goodman_kruskal:.0f} % of the mistakes of guessing the "
            f"largest class; Cramer's V {found.cramers_v:.2f}",
        )
    if missing:
        raise SpurlessError(" ".join(missing))
