"""``spurless bench``: every method of a plan on every dataset with every seed, and a table for each dataset."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spurless.cli.console import check_appendable, progress_bar, table
from spurless.cli.flags import (
    OUTPUT,
    Address,
    CpusPerRun,
    Device,
    EngineName,
    GpusPerRun,
    Jobs,
    Json,
    Precision,
    Quiet,
    Threads,
    Together,
    Track,
    Workers,
    tracker,
)
from spurless.cli.ls import label_words
from spurless.cli.sources import Columns, open_data
from spurless.cli.sweep_table import finite, note, say, spread_words, tell_of_runs
from spurless.cli.weights import with_tokenizer
from spurless.core.options import configure

if TYPE_CHECKING:
    from spurless.bench.engines.base import Loader
    from spurless.bench.plan import Benched
    from spurless.bench.runner import Row
    from spurless.data.grouped import Splits

SHOWN = {"worst_group": "worst group", "unbiased": "unbiased", "average": "average"}


def bench(
    plan: Annotated[Path, typer.Argument(help="TOML file: methods, datasets, model, seeds, training.", metavar="PLAN")],
    seeds: Annotated[
        int | None, typer.Option(help="Run so many seeds.", min=1, show_default="what the plan says, else 3")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="First seed.", min=0, show_default="what the plan says, else 0")
    ] = None,
    engine: EngineName = "auto",
    jobs: Jobs = None,
    together: Together = 16,
    address: Address = None,
    gpus_per_run: GpusPerRun = None,
    cpus_per_run: CpusPerRun = 1.0,
    threads: Threads = 1,
    device: Device = "auto",
    precision: Precision = "auto",
    workers: Workers = 0,
    out: Annotated[Path, typer.Option(help="Folder for records.jsonl.", rich_help_panel=OUTPUT)] = Path("runs/bench"),
    track: Track = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run every method of a plan on every dataset with every seed; compare.

    The first method is the one that the others are compared with, seed by seed.
    All see the same data, start from the same weights, and are evaluated alike;
    the table says which labels each used. Each run is a record in
    OUT/records.jsonl, of which spurless report makes a page. A bench that was
    killed goes on when it is started again; with more methods, datasets or
    seeds only the new runs are made. A run that fails stops no other: it is
    named in the end, and the exit status is 1.

    A plan:
      methods = ["erm", "group-dro", "dfr"]
      datasets = ["patched-digits", "colored-digits"]
      train = { steps = 300 }

    Examples:
      spurless bench plan.toml
      spurless bench plan.toml --seeds 5 --jobs 4
      spurless bench plan.toml --engine ray --address auto --out runs/table
      spurless bench plan.toml --track tensorboard:logs
      spurless report runs/bench --out bench.html
    """
    from spurless.bench.engines import Machines
    from spurless.bench.plan import read_plan, run_plan
    from spurless.train.run import Engine

    asked = read_plan(plan, _door)
    asked = replace(asked, seeds=seeds or asked.seeds, first=asked.first if seed is None else seed)
    place = Engine(device, precision=precision, workers=workers, track=tracker(track, out))
    machines = Machines(place, threads, jobs, together, address, gpus_per_run, cpus_per_run)
    records = out / "records.jsonl"
    check_appendable(records)
    with progress_bar(quiet or json) as progress:
        benched = run_plan(asked, out=records, engine=engine, machines=machines, progress=progress)
    if json:
        print(json_module.dumps({**in_json(benched), "records": str(records)}))
    else:
        show(benched, records)
    if benched.failures:
        raise typer.Exit(1)


def show(benched: Benched, records: Path) -> None:
    """Print a table for every dataset, what failed and why, and where the records are."""
    for dataset, rows in benched.rows().items():
        first = rows[0].name
        table(
            f"{dataset}: accuracy in %, mean and 95 % interval over seeds",
            ("method", "runs", *SHOWN.values(), f"against {first}", "labels used", ""),
            [_line(benched, dataset, row) for row in rows],
            right=(1, 2, 3, 4, 5),
        )
    say("Against the first method: points of worst group, seed by seed. Labels used: beyond those of training.")
    tell_of_runs([row for part in benched.rows().values() for row in part], benched.records.values())
    for words in _failed(benched).values():
        say(words)
    print(f"records in {records}")


def in_json(benched: Benched) -> dict[str, Any]:
    """Return the same for machines."""
    datasets = {
        dataset: [
            {
                "method": row.name,
                "seeds": row.seeds,
                "runs": row.runs,
                "diverged": row.diverged,
                "unreached": row.unreached,
                "metrics": {name: finite(asdict(spread)) for name, spread in row.spreads.items()},
                "gain": None if (gain := benched.gain(dataset, row.name)) is None else finite(asdict(gain)),
                "labels": _labels(benched, dataset, row),
            }
            for row in rows
        ]
        for dataset, rows in benched.rows().items()
    }
    return {"datasets": datasets, "failures": _failed(benched)}


def _line(benched: Benched, dataset: str, row: Row) -> tuple[str, ...]:
    gain = benched.gain(dataset, row.name)
    numbers = (spread_words(row, name) for name in SHOWN)
    return (row.name, str(row.runs), *numbers, _points(gain), _labels(benched, dataset, row), note(row))


def _points(gain: Any) -> str:
    """Say a difference in points, with half of its interval where several seeds give one."""
    if gain is None:
        return ""
    half = "" if gain.n < 2 else f" ± {50 * (gain.high - gain.low):.1f}"
    return f"{100 * gain.difference:+.1f}{half}"


def _labels(benched: Benched, dataset: str, row: Row) -> str:
    """Say which labels the runs of a row used beyond the training labels, as their records do."""
    found = (benched.records.get(task.key) for task in benched.tasks[dataset, row.name])
    used = next((record.supervision for record in found if record is not None), None)
    if used is None:
        return ""
    words = label_words(*(bool(used.get(name)) for name in ("train_attributes", "val_labels", "val_attributes")))
    return words.replace("attributes", "groups") or "none"


def _failed(benched: Benched) -> dict[str, str]:
    """Return a sentence for every method and dataset of which runs failed, with the error of the first."""
    found: dict[str, list[str]] = {}
    for task, error in benched.failures:
        found.setdefault(task.name, []).append(str(error) or type(error).__name__)
    runs = {name: "1 run" if len(words) == 1 else f"{len(words)} runs" for name, words in found.items()}
    return {name: f"Failed: {name}, {runs[name]}: {words[0]}" for name, words in found.items()}


def _door(name: str, said: Mapping[str, Any], model: str) -> Loader:
    """Return what opens a dataset of a plan, by name or by path."""
    return partial(_open, configure(Columns, said, f"[dataset.{name}]"), model)


def _open(columns: Columns, model: str, source: str, options: Mapping[str, Any], seed: int) -> Splits:
    return open_data(source, with_tokenizer(dict(options), columns, model), columns, seed, quiet=True)
