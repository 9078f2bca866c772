"""``spurless data``: prepare, check, describe and show datasets."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spurless.cli import params as cli
from spurless.cli.console import (
    MAX_NAME_LENGTH,
    handle_warnings,
    print_fact,
    print_json,
    print_table,
    progress_bar,
)
from spurless.cli.data_describe import associate_known, count_unknown, describe, show_card, show_files, show_path
from spurless.cli.data_show import show
from spurless.cli.inputs import describe_files, open_dataset, resolve_named_options
from spurless.core.config import configure, parse_pairs
from spurless.core.errors import IncompleteDataWarning, InputError, SpurlessError
from spurless.core.progress import progress_reporter, progress_to
from spurless.reporting.format import clean_name

if TYPE_CHECKING:
    from spurless.data.prepare import Prepared
    from spurless.data.split import Splits

data = typer.Typer(help="Prepare, check, describe and show datasets.", rich_markup_mode="rich")


@data.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    """Prepare, check, describe and show datasets."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@data.command("prepare")
@cli.expand_params
def prepare(
    name: Annotated[str, typer.Argument(help="Dataset (see: spurless ls datasets).", metavar="NAME")],
    root: Path | None = cli.param(
        None, None, "Data folder of the files.", metavar="FOLDER", show_default="$SPURLESS_DATA, else data"
    ),
    download: bool = cli.flag(
        None, "Download the files if that is possible, and verify their checksums.", "--download"
    ),
    data_option: cli.DataOption = [],
    seed: cli.DataSeed = 0,
    quiet: cli.Quiet = False,
) -> None:
    """Prepare a named dataset: find its files, unpack or download them, load it once.

    A published archive in the data folder is unpacked there. Files that a
    SHA256SUMS next to them lists are verified. Large image datasets are decoded
    once into the cache, so that the first run starts fast. If the files cannot be
    downloaded automatically, the command prints where to get them, and the exit
    status is 2.

    Examples:
      spurless data prepare waterbirds --root ~/data
      spurless data prepare cifar10 --root ~/data --download
    """
    from spurless.data import DATASETS, get_dataset
    from spurless.data.prepare import prepare_dataset

    if name not in DATASETS and Path(name).exists():
        raise InputError(
            "only named datasets can be prepared",
            got=name,
            hint=f"Check your own data with: spurless data check {name}",
        )
    dataset = get_dataset(name)
    options = resolve_named_options(name, parse_pairs(data_option, "--data-option"), cli.Columns(root=root))
    config = configure(dataset.config, {"seed": seed, **options}, owner=f"dataset {name!r}")
    missing: list[str] = []
    with handle_warnings(IncompleteDataWarning, missing.append), progress_bar(quiet) as bar, progress_to(bar):
        prepared = prepare_dataset(dataset, config, download)
    if dataset.layout is None:
        print_fact("prepared", f"{name} needs no files, so there is nothing to prepare")
    _show_prepared(prepared)
    _show_counts(name, prepared.splits, missing, json=False)


@data.command("check")
@cli.expand_params
def check(*, data: cli.DataArgument, seed: cli.DataSeed = 0, json: cli.Json = False, quiet: cli.Quiet = False) -> None:
    """Open DATA, read every example once, and print the size of each group in each split.

    The result is complete, or incomplete if a published dataset has other counts
    than published. If it is incomplete, or a file or a row cannot be read, the
    exit status is 2 and the message names the file. Examples whose attribute is
    unknown are in no group; they are counted in an extra row.

    Examples:
      spurless data check colored-digits -D conflicting=0.1
      spurless data check waterbirds --root ~/data
      spurless data check meta.csv --label y --attribute place --root images
    """
    from spurless.data import DATASETS

    missing: list[str] = []
    with handle_warnings(IncompleteDataWarning, missing.append):
        splits = open_dataset(data, seed, quiet=quiet)
    with progress_bar(quiet) as bar, progress_to(bar):
        _read_all(splits)
    if not json and data.data in DATASETS:
        show_card(DATASETS[data.data], DATASETS[data.data].config())
    _show_counts(data.data, splits, missing, json)


data.command("describe")(describe)
data.command("show")(show)


def _read_all(splits: Splits) -> None:
    """Read every example, so that files that cannot be read raise."""
    from spurless.data.loader import Loader, sequential_order

    parts = [getattr(splits, name) for name in cli.SPLITS]
    report, done = progress_reporter("read", sum(map(len, parts))), 0
    for part in parts:
        for batch in Loader(part, sequential_order(len(part)), 256).batches():
            done += len(batch)
            report(done)


def _show_prepared(prepared: Prepared) -> None:
    for archive in prepared.unpacked:
        show_path("unpacked", archive)
    if prepared.downloaded and prepared.files is not None:
        show_path("downloaded", prepared.files.folder)
    if prepared.checksums is not None:
        absent = f"; {prepared.checksums.absent} listed files are missing" if prepared.checksums.absent else ""
        print_fact("checksums", f"{prepared.checksums.correct} files match SHA256SUMS{absent}")


def _show_counts(source: str, splits: Splits, missing: list[str], json: bool) -> None:
    """Print the size of every group, and raise if the data are incomplete."""
    counts = {name: getattr(splits, name).counts.tolist() for name in cli.SPLITS}
    unknown, missing = count_unknown(splits), list(dict.fromkeys(missing))
    association = associate_known(splits.train) if splits.train.has_attributes else None
    files, notes = describe_files(source, splits), [note for note in splits.notes if note not in missing]
    if json:
        content = {"name": splits.name, "whole": not missing, "missing": missing, "files": files, "notes": notes}
        content |= {"groups": splits.groups.names, "counts": counts, "unknown": unknown}
        print_json(json_module.dumps({**content, "goodman_kruskal": association and association.goodman_kruskal}))
    else:
        show_files(files)
        for note in notes:
            print_fact("note", note)
        names = (clean_name(name, MAX_NAME_LENGTH) for name in splits.groups.names)
        rows = [[name, *(str(counts[part][g]) for part in cli.SPLITS)] for g, name in enumerate(names)]
        if any(unknown.values()):
            rows.append(["attribute unknown", *map(str, unknown.values())])
        status = "incomplete" if missing else "complete"
        print_table(f"{splits.name}: {status}", ("group", *cli.SPLITS), rows, right=(1, 2, 3))
        if association is not None:
            text = f"in train, predicting the class from the attribute makes {100 * association.goodman_kruskal:.0f} % "
            text += f"fewer errors than always predicting the largest class; Cramer's V {association.cramers_v:.2f}"
            print_fact("shortcut", text)
    if missing:
        raise SpurlessError(" ".join(missing))
