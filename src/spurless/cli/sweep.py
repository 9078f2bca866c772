"""``spurless sweep``: one hyper-parameter over values and seeds, many runs at once, and a table of what it does."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from spurless.cli.console import check_appendable, progress_bar
from spurless.cli.flags import (
    METHOD,
    OUTPUT,
    OWN_METHOD,
    TRAINING,
    Address,
    CpusPerRun,
    CsvAttribute,
    CsvFeatures,
    CsvFile,
    CsvLabel,
    CsvRoot,
    CsvSplit,
    CsvText,
    Data,
    DataOption,
    Device,
    EngineName,
    GpusPerRun,
    Jobs,
    Json,
    MethodOption,
    Model,
    ModelOption,
    Precision,
    Quiet,
    Seed,
    Select,
    SkipBad,
    Threads,
    Together,
    Track,
    Workers,
    tracker,
)
from spurless.cli.sources import Columns, open_quietly
from spurless.cli.sweep_maps import Backgrounds, Maps, check_maps, place_of, write_maps
from spurless.cli.sweep_table import in_json, show
from spurless.cli.weights import with_tokenizer
from spurless.core.errors import BadInput
from spurless.core.files import check_writable
from spurless.core.options import pairs, read_toml


def _train(help: str, default: str | bool = False) -> Any:
    """Declare a setting of the loop; its default is the loop's own, and only shown here."""
    return typer.Option(help=help, show_default=default, rich_help_panel=TRAINING)


def sweep(
    over: Annotated[
        list[str],
        typer.Option(
            help="Parameter and its values: of training or the method as lr=0.01,0.1, of data or model as "
            "data.conflicting=0.01,0.05 or model.width=64,128; repeat for every combination.",
            metavar="NAME=VALUES",
        ),
    ] = [],
    data: Data = "patched-digits",
    data_option: DataOption = [],
    label: CsvLabel = None,
    attribute: CsvAttribute = None,
    split: CsvSplit = None,
    features: CsvFeatures = None,
    file: CsvFile = None,
    text: CsvText = None,
    root: CsvRoot = None,
    skip_bad: SkipBad = False,
    model: Model = "small-cnn",
    model_option: ModelOption = [],
    method: Annotated[str, typer.Option(help=f"Method to fit {OWN_METHOD}.", rich_help_panel=METHOD)] = "erm",
    preset: Annotated[
        str | None,
        typer.Option(
            help="Named configuration of the method.", show_default="the method's first", rich_help_panel=METHOD
        ),
    ] = None,
    method_option: MethodOption = [],
    select: Select = "last",
    epochs: Annotated[int | None, _train("Passes over the train split.", "20")] = None,
    steps: Annotated[int | None, _train("Stop after so many steps.")] = None,
    batch_size: Annotated[int | None, _train("Examples per step.", "128")] = None,
    optimiser: Annotated[str | None, _train("sgd, adam or adamw.", "sgd")] = None,
    lr: Annotated[float | None, _train("Learning rate.", "0.01")] = None,
    momentum: Annotated[float | None, _train("Momentum of SGD, first beta of Adam.", "0.9")] = None,
    weight_decay: Annotated[float | None, _train("L2 penalty.", "0.0001")] = None,
    stop_accuracy: Annotated[float | None, _train("Stop at this train accuracy, of 1.")] = None,
    stop_loss: Annotated[float | None, _train("Stop under this mean loss.")] = None,
    train_option: Annotated[
        list[str],
        typer.Option(
            "--train-option",
            "-T",
            help="Any other setting of training, as spurless fit has it, such as schedule=cosine; repeat for more.",
            metavar="KEY=VALUE",
            rich_help_panel=TRAINING,
        ),
    ] = [],
    seed: Seed = 0,
    seeds: Annotated[int, typer.Option(help="Run so many seeds of every value, from --seed on.", min=1)] = 3,
    drop: Annotated[
        str,
        typer.Option(
            help="Go no higher once a seed diverges or loses more than this share of its best validation accuracy; "
            "none runs every value.",
            metavar="SHARE|none",
        ),
    ] = "0.25",
    study: Annotated[
        bool,
        typer.Option(
            "--study",
            help="Take compressibility, separation, selectivity and prunability of every run too.",
            metavar="",
        ),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file: values in \\[over], options in \\[data], \\[model], \\[method], \\[train]; flags win.",
            metavar="FILE",
        ),
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
    out: Annotated[Path, typer.Option(help="Folder for records.jsonl.", rich_help_panel=OUTPUT)] = Path("runs/sweep"),
    keep: Annotated[
        Path | None,
        typer.Option(help="Keep the weights of every run here.", metavar="FOLDER", rich_help_panel=OUTPUT),
    ] = None,
    maps: Maps = None,
    backgrounds: Backgrounds = None,
    track: Track = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit --method with every value of a hyper-parameter and every seed; compare.

    Numbers are walked upwards, all seeds of a value at once. Where a seed
    diverges, or loses a quarter of its best validation accuracy, the sweep goes
    no higher. With --stop-accuracy, a run that does not get there is recorded,
    but not in the table. Each run is a record in OUT/records.jsonl. A sweep that
    was killed goes on when it is started again with the same words; with more
    values or more seeds only the new runs are made. The same run gives the same
    record wherever it is done; the fleet agrees with the others up to rounding.

    Examples:
      spurless sweep --over lr=0.001,0.01,0.1,1 --data colored-digits --model mlp
      spurless sweep --over lr=0.01,0.1 --over momentum=0,0.9 --jobs 4 --steps 200
      spurless sweep --over step_size=0.01,0.1 --method group-dro --seeds 5
      spurless sweep --over l2=0,0.001,0.01 --drop none --lr 0.1 --stop-accuracy 1
      spurless sweep --over lr=0.01,0.1 --engine ray --address auto
      spurless sweep --over lr=0.01,0.1 --study --stop-accuracy 1 --momentum 0
      spurless sweep --over lr=0.01,0.1 --data double-digits --model mlp --maps 6
      spurless sweep --over lr=0.01,0.1 --track mlflow
    """
    from spurless.bench.cell import Cell
    from spurless.bench.engines import Machines, choose
    from spurless.bench.parameters import parameter_named
    from spurless.bench.sweep import Sweep, run_sweep
    from spurless.core.own_code import settled
    from spurless.train.run import Engine

    said = {
        "epochs": epochs, "steps": steps, "batch_size": batch_size, "optimiser": optimiser, "lr": lr,
        "momentum": momentum, "weight_decay": weight_decay, "stop_accuracy": stop_accuracy, "stop_loss": stop_loss,
    }  # fmt: skip
    written = _sections(config)
    columns = Columns(label, attribute, split, features, file, root, text, skip_bad)
    data_options = {**written["data"], **pairs(data_option, "--data-option")}
    cell = Cell(
        dataset=data,
        model=settled(model),  # runs may be done by processes in other folders
        method=settled(method),
        data_options=with_tokenizer(data_options, columns, model),
        model_options={**written["model"], **pairs(model_option, "--model-option")},
        preset=preset,
        method_options={**written["method"], **pairs(method_option, "--method-option")},
        train={
            **written["train"],
            **pairs(train_option, "--train-option", "schedule=cosine"),
            **{key: value for key, value in said.items() if value is not None},
        },
        select=select,
    )
    _refuse(model, cell.model_options, ("name", "data", "seed", "input_shape", "n_classes"))
    _refuse(f"method {method!r}", cell.method_options, ("name", "preset", "options"))
    values, weights = {**written["over"], **_values(over)}, place_of(keep, maps, out)
    for name in values:
        swept_over = parameter_named(name, cell)
        if swept_over.room == "train" and said.get(swept_over.field) is not None:
            raise BadInput(f"{name} is swept over, and has a value of its own beside", do="Leave one of the two out.")
    asked = Sweep(cell, values, seeds, seed, _share(drop), partial(open_quietly, columns), study, weights)
    place = Engine(device, precision=precision, workers=workers, track=tracker(track, out))
    machines = Machines(place, threads, jobs, together, address, gpus_per_run, cpus_per_run)
    choose(engine, machines)
    segmenter = check_maps(maps, backgrounds, values)
    records = out / "records.jsonl"
    check_appendable(records)
    if weights is not None:
        check_writable(weights)
    with progress_bar(quiet or json) as progress:
        swept = run_sweep(asked, out=records, engine=engine, machines=machines, progress=progress)
    if json:
        page = {} if maps is None else {"maps": str(write_maps(swept, machines, maps, out, segmenter))}
        print(json_module.dumps({**in_json(swept, records), **page}))
        return
    show(swept, f"{method} on {data}: accuracy in %, mean and 95 % interval over seeds", records)
    if maps is not None:
        print(f"maps in {write_maps(swept, machines, maps, out, segmenter)}")


def _sections(path: Path | None) -> dict[str, Mapping[str, Any]]:
    """Read the sections of a sweep's TOML file: those of a run, and the values in [over]."""
    known = ("data", "model", "method", "train", "over")
    found = read_toml(path) if path is not None else {}
    for name, section in found.items():
        if name not in known or not isinstance(section, dict):
            raise BadInput(f"[{name}] is no section", where=path, expected=", ".join(f"[{word}]" for word in known))
    values = {name: value if isinstance(value, list) else [value] for name, value in found.get("over", {}).items()}
    return {**{name: found.get(name, {}) for name in known}, "over": values}


def _refuse(owner: str, options: Mapping[str, Any], taken: Sequence[str]) -> None:
    """Refuse an option that a flag of its own says: it would reach the library as its argument."""
    for key in options:
        if key in taken:
            raise BadInput(f"{owner} has no option {key!r}", do="See the flags of: spurless sweep --help")


def _values(words: Sequence[str]) -> dict[str, list[str]]:
    """Read NAME=VALUE,VALUE words."""
    found: dict[str, list[str]] = {}
    for word in words:
        ((name, values),) = pairs([word], "--over", "lr=0.01,0.1").items()
        if name in found:
            raise BadInput(f"--over {name} is said twice", do=f"Write all values at once: --over {name}=1,2.")
        found[name] = [value.strip() for value in values.split(",")] if values else []
    return found


def _share(text: str) -> float | None:
    if text.lower() == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise BadInput(
            f"--drop {text!r} is no share", expected="a number between 0 and 1, such as 0.25, or none"
        ) from None
