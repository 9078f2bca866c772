"""``spurless sweep``: run a method over values of hyper-parameters and seeds, and compare them in a table."""

from __future__ import annotations

import json as json_module
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from spurless.cli import params as cli
from spurless.cli.console import print_json, print_paragraph, print_table, print_text, progress_bar
from spurless.cli.inputs import add_tokenizer, open_quietly, read_config
from spurless.cli.outputs import check_outputs, tracking_folder
from spurless.cli.weights import check_option_names
from spurless.core.config import parse_pairs
from spurless.core.errors import InputError
from spurless.core.files import check_writable, resolve_path

if TYPE_CHECKING:
    from spurless.bench.experiment import Experiment
    from spurless.bench.runner import Row
    from spurless.bench.sweep import SweepResult
    from spurless.core.records import Record
    from spurless.metrics.intervals import PairedDifference, Spread

METRIC_COLUMNS = {
    "unbiased": "unbiased",
    "worst_group": "worst group",
    "average": "average",
    "val_average": "validation",
}
WIDE_INTERVAL = " ± >100"  # half of an interval that is wider than all possible accuracies


@cli.expand_params
def sweep(
    *,
    over: list[str] = cli.param(
        list,
        None,
        "Hyper-parameter and its values: of training or the method as lr=0.01,0.1, of data or model as "
        "data.conflicting=0.01,0.05 or model.width=64,128; repeat to run every combination.",
        metavar="NAME=VALUES",
    ),
    data: cli.DataParams,
    model: cli.ModelParams,
    method: str = cli.param("erm", cli.METHOD, f"Method to fit {cli.CUSTOM_METHOD}."),
    settings: cli.MethodParams,
    train: cli.TrainParams,
    train_option: Annotated[
        list[str], cli.pairs(cli.TRAINING, "Training setting, such as schedule=cosine", "--train-option", "-T")
    ] = [],
    seed: cli.Seed = 0,
    seeds: int = cli.param(3, None, "Number of seeds per value, starting at --seed.", min=1),
    drop: str = cli.param(
        "0.25",
        None,
        "Run no higher value once a seed diverges or loses more than this fraction of the best validation "
        "accuracy; none runs every value.",
        metavar="FRACTION|none",
    ),
    study: bool = cli.flag(
        None, "Also measure compressibility, separation, selectivity and prunability of every run.", "--study"
    ),
    config: Path | None = cli.param(
        None,
        None,
        "TOML file with \\[over], \\[data], \\[model], \\[method], \\[train]; flags override.",
        metavar="FILE",
    ),
    executor: cli.ExecutorParams,
    device: cli.ComputeParams,
    out: Path = cli.param(Path("runs/sweep"), cli.OUTPUT, "Folder for records.jsonl."),
    keep: Path | None = cli.param(None, cli.OUTPUT, "Save the weights of every run in this folder.", metavar="FOLDER"),
    track: cli.Track = None,
    json: cli.Json = False,
    quiet: cli.Quiet = False,
) -> None:
    """Fit --method with every value of a hyper-parameter and every seed, and compare.

    Values are run in increasing order, all seeds of a value at once. If a seed
    diverges or loses a quarter of its best validation accuracy (see --drop), no
    higher values are run. With --stop-accuracy, runs that do not reach it are
    recorded but not in the table. Each run is a record in OUT/records.jsonl. A
    killed sweep resumes when the same command is started again; if values or seeds
    are added, only the new runs are executed. All executors give the same records,
    concurrent up to rounding.

    Examples:
      spurless sweep --over lr=0.001,0.01,0.1,1 --data colored-digits --model mlp
      spurless sweep --over lr=0.01,0.1 --over momentum=0,0.9 --jobs 4 --steps 200
      spurless sweep --over step_size=0.01,0.1 --method group-dro --seeds 5
      spurless sweep --over l2=0,0.001,0.01 --drop none --lr 0.1 --stop-accuracy 1
      spurless sweep --over lr=0.01,0.1 --executor ray --address auto
      spurless sweep --over lr=0.01,0.1 --study --stop-accuracy 1 --momentum 0
      spurless sweep --over lr=0.01,0.1 --data double-digits --model mlp --keep w
      spurless sweep --over lr=0.01,0.1 --track mlflow
    """
    from spurless.bench.experiment import Experiment
    from spurless.bench.sweep import Sweep, run_sweep
    from spurless.core.user_code import resolve_user_code_name

    sections = read_config(config, "over")
    experiment = Experiment(
        dataset=data.data,
        model=resolve_user_code_name(model.model),  # processes may run in other folders
        method=resolve_user_code_name(method),
        data_options=add_tokenizer({**sections["data"], **data.options}, data.columns, model.model),
        model_options={**sections["model"], **model.options},
        preset=settings.preset,
        method_options={**sections["method"], **settings.options},
        train={**sections["train"], **parse_pairs(train_option, "--train-option", "schedule=cosine"), **train.options},
        select=settings.select,
    )
    hint = "See the flags of: spurless sweep --help"
    check_option_names("model", model.model, experiment.model_options, hint)
    check_option_names("method", method, experiment.method_options, hint)
    values = {name: value if isinstance(value, list) else [value] for name, value in sections["over"].items()}
    values, weights = {**values, **_parse_values(over)}, None if keep is None else resolve_path(keep)
    _check_not_fixed(values, experiment, train.options)
    loader = partial(open_quietly, data.columns, None)
    spec = Sweep(experiment, values, seeds, seed, _parse_drop(drop), loader, study, weights)
    resources = executor.resources(device.compute(cli.resolve_track(track, out)))
    records = out / "records.jsonl"
    folders, inputs = [weights, tracking_folder(track)], [config, *data.inputs]
    check_outputs([], "--out, --keep and --track", records=records, folders=folders, inputs=inputs)
    if weights is not None:
        check_writable(weights)
    with progress_bar(quiet or json) as progress:
        result = run_sweep(spec, out=records, executor=executor.executor, resources=resources, progress=progress)
    if json:
        print_json(json_module.dumps(to_json(result, records)))
        return
    show(result, f"{method} on {data.data}: accuracy in %, mean and 95 % interval over seeds", records)


def _parse_values(words: Sequence[str]) -> dict[str, list[str]]:
    """Parse NAME=VALUE,VALUE words."""
    parsed: dict[str, list[str]] = {}
    for word in words:
        ((name, values),) = parse_pairs([word], "--over", "lr=0.01,0.1").items()
        if name in parsed:
            raise InputError(f"--over {name} is given twice", hint=f"Write all values at once: --over {name}=1,2.")
        parsed[name] = [value.strip() for value in values.split(",")] if values else []
    return parsed


def _check_not_fixed(values: Collection[str], experiment: Experiment, train: Mapping[str, Any]) -> None:
    """Raise if a flag sets a training setting that is swept over."""
    from spurless.bench.sweep import get_parameter

    for name in values:
        parameter = get_parameter(name, experiment)
        if parameter.section == "train" and parameter.field in train:
            raise InputError(f"{name} is swept over and also has a fixed value", hint="Leave one of the two out.")


def _parse_drop(text: str) -> float | None:
    if text.lower() == "none":
        return None
    try:
        return float(text)
    except ValueError:
        expected = "a number between 0 and 1, such as 0.25, or none"
        raise InputError(f"--drop {text!r} is not a number", expected=expected) from None


def show(result: SweepResult, title: str, records: Path) -> None:
    """Print a row per value, the values that were not run, and the path of the records."""
    rows = result.rows()
    cells = [
        (row.name, str(row.runs), *(format_spread(row, name) for name in METRIC_COLUMNS), list_excluded(row))
        for row in rows
    ]
    print_table(title, ("value", "runs", *METRIC_COLUMNS.values(), ""), cells, right=(1, 2, 3, 4, 5))
    explain_wide_intervals(cells)
    for stop in result.stops:
        not_run = f" Not run: {'; '.join(stop.not_run)}; --drop none runs all." if stop.not_run else ""
        print_paragraph(f"Stopped at {stop.at}: {stop.why}.{not_run}")
    show_warnings(rows, result.records.values())
    print_text(f"records in {records}")


def show_warnings(rows: Iterable[Row], records: Collection[Record]) -> None:
    """Print what a table cannot show: runs that were cut off, and the number of runs with warnings."""
    if any(row.cut_off for row in rows):
        print_paragraph("Runs that ended before their stopping rule are cut off and in no mean: allow more epochs.")
    if warned := sum(bool(record.warnings) for record in records):
        print_paragraph(f"{warned} of {len(records)} runs have warnings; see their records.")


def format_spread(row: Row, name: str) -> str:
    """Write a mean in percent, with half of its interval if there are several seeds."""
    spread = row.spreads.get(name)
    if spread is None:
        return "n/a"
    return f"{100 * spread.mean:.1f}{format_half_interval(spread)}"


def format_half_interval(estimate: Spread | PairedDifference) -> str:
    """Write half of an interval in points; a bound if it is wider than all possible values."""
    half = 50 * (estimate.high - estimate.low)
    if estimate.n < 2:
        return ""
    return f" ± {half:.1f}" if half < 100 else WIDE_INTERVAL


def explain_wide_intervals(cells: Sequence[Sequence[str]]) -> None:
    """Print a sentence if an interval of a table is wider than all possible values."""
    if any(cell.endswith(WIDE_INTERVAL) for row in cells for cell in row):
        print_paragraph(f"{WIDE_INTERVAL.strip()}: too few runs for an interval.")


def list_excluded(row: Row) -> str:
    """List the runs of a row that are not in its means."""
    words = [f"{row.diverged} diverged"] if row.diverged else []
    words += [f"{row.cut_off} cut off"] if row.cut_off else []
    words += ["stopped"] if row.stop is not None else []
    return ", ".join(words)


def to_json(result: SweepResult, records: Path) -> dict[str, Any]:
    """Return the table as plain values."""
    rows = [{"value": row.name, **row_to_json(row), "stopped": row.stop is not None} for row in result.rows()]
    stops = [{"at": stop.at, "why": stop.why, "not_run": list(stop.not_run)} for stop in result.stops]
    return {"rows": rows, "stops": stops, "records": str(records)}


def row_to_json(row: Row) -> dict[str, Any]:
    """Return the runs and metrics of a row as plain values."""
    return {
        "seeds": row.seeds,
        "runs": row.runs,
        "diverged": row.diverged,
        "unreached": row.cut_off,
        "metrics": {name: nan_to_none(asdict(spread)) for name, spread in row.spreads.items()},
    }


def nan_to_none(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Replace NaN, which JSON does not have."""
    return {name: value if value == value else None for name, value in numbers.items()}
