"""``spurless bench``: run every method of a plan on every dataset and seed, and compare them in tables."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spurless.cli import params as cli
from spurless.cli.console import print_json, print_paragraph, print_table, print_text, progress_bar
from spurless.cli.inputs import open_quietly
from spurless.cli.ls import describe_labels
from spurless.cli.outputs import check_outputs, tracking_folder
from spurless.cli.sweep import (
    explain_wide_intervals,
    format_half_interval,
    format_spread,
    list_excluded,
    nan_to_none,
    row_to_json,
    show_warnings,
)
from spurless.core.config import configure

if TYPE_CHECKING:
    from spurless.bench.experiment import DatasetLoader
    from spurless.bench.plan import PlanResult
    from spurless.bench.runner import Row

METRIC_COLUMNS = {"worst_group": "worst group", "unbiased": "unbiased", "average": "average"}


@cli.expand_params
def bench(
    *,
    plan: Annotated[Path, typer.Argument(help="TOML file: methods, datasets, model, seeds, training.", metavar="PLAN")],
    seeds: int | None = cli.param(None, None, "Number of seeds.", min=1, show_default="from the plan, else 3"),
    seed: int | None = cli.param(None, None, "First seed.", min=0, show_default="from the plan, else 0"),
    executor: cli.ExecutorParams,
    device: cli.ComputeParams,
    out: Path = cli.param(Path("runs/bench"), cli.OUTPUT, "Folder for records.jsonl."),
    track: cli.Track = None,
    json: cli.Json = False,
    quiet: cli.Quiet = False,
) -> None:
    """Run every method of a plan on every dataset with every seed, and compare.

    Every method is compared with the first one, seed by seed. All use the same
    data, initial weights and evaluation; the table lists the labels that each
    method used. Each run is a record in OUT/records.jsonl, which spurless report
    turns into a page. A killed benchmark resumes when it is started again; if methods,
    datasets or seeds are added, only the new runs are executed. If a run fails,
    the others continue; failures are listed at the end, and the exit status is 1.

    A plan:
      methods = ["erm", "group-dro", "dfr"]
      datasets = ["patched-digits", "colored-digits"]
      train = { steps = 300 }

    Examples:
      spurless bench plan.toml
      spurless bench plan.toml --seeds 5 --jobs 4
      spurless bench plan.toml --executor ray --address auto --out runs/table
      spurless bench plan.toml --track tensorboard:logs
      spurless report runs/bench --out bench.html
    """
    from spurless.bench.plan import read_plan, run_plan

    parsed = read_plan(plan, _make_loader)
    parsed = replace(parsed, seeds=seeds or parsed.seeds, first=parsed.first if seed is None else seed)
    resources = executor.resources(device.compute(cli.resolve_track(track, out)))
    records = out / "records.jsonl"
    check_outputs([], "--out and --track", records=records, folders=[tracking_folder(track)], inputs=[plan])
    with progress_bar(quiet or json) as progress:
        result = run_plan(parsed, out=records, executor=executor.executor, resources=resources, progress=progress)
    if json:
        print_json(json_module.dumps({**to_json(result), "records": str(records)}))
    else:
        show(result, records)
    if result.failures:
        raise typer.Exit(1)


def show(result: PlanResult, records: Path) -> None:
    """Print a table per dataset, the failures, and the path of the records."""
    for dataset, rows in result.rows().items():
        title = f"{dataset}: accuracy in %, mean and 95 % interval over seeds"
        columns = ("method", "runs", *METRIC_COLUMNS.values(), f"against {rows[0].name}", "labels used", "")
        cells = [_cells(result, dataset, row) for row in rows]
        print_table(title, columns, cells, right=(1, 2, 3, 4, 5))
        explain_wide_intervals(cells)
    print_paragraph(
        "Against the first method: difference in worst-group accuracy, in points, paired by seed. "
        "Labels used: in addition to the training labels."
    )
    show_warnings([row for rows in result.rows().values() for row in rows], result.records.values())
    for message in _failures(result).values():
        print_paragraph(message)
    print_text(f"records in {records}")


def to_json(result: PlanResult) -> dict[str, Any]:
    """Return the tables and failures as plain values."""
    datasets = {
        dataset: [
            {
                "method": row.name,
                **row_to_json(row),
                "gain": None if (gain := result.gain(dataset, row.name)) is None else nan_to_none(asdict(gain)),
                "labels": _labels_used(result, dataset, row),
            }
            for row in rows
        ]
        for dataset, rows in result.rows().items()
    }
    return {"datasets": datasets, "failures": _failures(result)}


def _cells(result: PlanResult, dataset: str, row: Row) -> tuple[str, ...]:
    numbers = [format_spread(row, name) for name in METRIC_COLUMNS]
    gain, labels = _format_gain(result.gain(dataset, row.name)), _labels_used(result, dataset, row)
    return (row.name, str(row.runs), *numbers, gain, labels, list_excluded(row))


def _format_gain(gain: Any) -> str:
    """Write a difference in points, with half of its interval if there are several seeds."""
    if gain is None:
        return ""
    return f"{100 * gain.difference:+.1f}{format_half_interval(gain)}"


def _labels_used(result: PlanResult, dataset: str, row: Row) -> str:
    """Return the labels that the runs of a row used in addition to the training labels."""
    records = (result.records.get(task.key) for task in result.tasks[dataset, row.name])
    used = next((record.supervision for record in records if record is not None), None)
    if used is None:
        return ""
    text = describe_labels(*(bool(used.get(name)) for name in ("train_attributes", "val_labels", "val_attributes")))
    return text.replace("attributes", "groups") or "none"


def _failures(result: PlanResult) -> dict[str, str]:
    """Return a sentence per failed method and dataset, with the first error."""
    errors: dict[str, list[str]] = {}
    for task, error in result.failures:
        errors.setdefault(task.name, []).append(str(error) or type(error).__name__)
    runs = {name: "1 run" if len(messages) == 1 else f"{len(messages)} runs" for name, messages in errors.items()}
    return {name: f"Failed: {name}, {runs[name]}: {messages[0]}" for name, messages in errors.items()}


def _make_loader(name: str, options: Mapping[str, Any], model: str) -> DatasetLoader:
    """Return a function that opens a dataset of a plan, by name or by path."""
    return partial(open_quietly, configure(cli.Columns, options, f"[dataset.{name}]"), model)
