"""``spurless fit``: train or repair a classifier with one method, and record how every group fared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from spurless.cli.console import progress_bar, show_record
from spurless.cli.flags import (
    ConfigFile,
    CsvAttribute,
    CsvLabel,
    CsvRoot,
    CsvSplit,
    Data,
    DataOption,
    Device,
    Devices,
    Json,
    MethodOption,
    Model,
    ModelOption,
    Precision,
    Quiet,
    Seed,
    Select,
    Strategy,
    Workers,
)
from spurless.cli.sources import Columns, open_data
from spurless.core.errors import BadInput
from spurless.core.options import pairs, read_toml
from spurless.core.records import append, unwritable


def fit(
    method: Annotated[str, typer.Argument(help="Method to fit; see: spurless ls methods.")],
    data: Data = "patched-digits",
    data_option: DataOption = [],
    label: CsvLabel = None,
    attribute: CsvAttribute = None,
    split: CsvSplit = None,
    root: CsvRoot = None,
    model: Model = "small-cnn",
    model_option: ModelOption = [],
    weights: Annotated[
        Path | None,
        typer.Option(help="Start from these weights (safetensors): for methods that repair a trained model."),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Named configuration of the method.")] = None,
    method_option: MethodOption = [],
    epochs: Annotated[int | None, typer.Option(help="Passes over the train split [20].")] = None,
    steps: Annotated[int | None, typer.Option(help="Stop after so many steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples per step [128].")] = None,
    optimiser: Annotated[str | None, typer.Option(help="sgd, adam or adamw [sgd].")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate [0.01].")] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum of SGD, first beta of Adam [0.9].")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="L2 penalty [0.0001].")] = None,
    schedule: Annotated[str | None, typer.Option(help="constant, step, cosine, linear, one-cycle [constant].")] = None,
    warmup_steps: Annotated[int | None, typer.Option(help="Raise the rate linearly over so many steps [0].")] = None,
    clip: Annotated[float | None, typer.Option(help="Largest norm of the gradient.")] = None,
    stop_accuracy: Annotated[float | None, typer.Option(help="Stop at this train accuracy.")] = None,
    stop_loss: Annotated[float | None, typer.Option(help="Stop under this mean loss.")] = None,
    select: Select = "last",
    seed: Seed = 0,
    seeds: Annotated[int, typer.Option(help="Run so many seeds, from --seed on.", min=1)] = 1,
    device: Device = "auto",
    devices: Devices = 1,
    strategy: Strategy = "auto",
    precision: Precision = "auto",
    workers: Workers = 0,
    config: ConfigFile = None,
    out: Annotated[Path, typer.Option(help="Folder for records.jsonl, weights and checkpoints.")] = Path("runs"),
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit METHOD on --data and print how every group of the test split fared.

    A record is appended to OUT/records.jsonl and the weights are saved beside it. A killed run, started again with
    the same words, goes on where it was and ends with the same weights.

    Examples:

      spurless fit erm --data patched-digits --steps 170

      spurless fit group-dro --data meta.csv --label y --attribute place --split split --model torchvision:resnet18

      spurless fit jtt --data colored-digits -D conflicting=0.1 --preset digits -M upweight=5 --seeds 3
    """
    from spurless.bench.fitting import fit as fit_one
    from spurless.models import build
    from spurless.models.weights import load_weights, save_weights
    from spurless.train.run import Engine, is_main_process

    said = {
        "epochs": epochs, "steps": steps, "batch_size": batch_size, "optimiser": optimiser, "lr": lr,
        "momentum": momentum, "weight_decay": weight_decay, "schedule": schedule, "warmup_steps": warmup_steps,
        "clip": clip, "stop_accuracy": stop_accuracy, "stop_loss": stop_loss,
    }  # fmt: skip
    written = _sections(config)
    train = {**written["train"], **{key: value for key, value in said.items() if value is not None}}
    columns = Columns(label, attribute, split, root)
    check_writable(out)
    for number in range(seed, seed + seeds):
        splits = open_data(data, {**written["data"], **pairs(data_option, "--data-option")}, columns, number)
        built = build(model, splits, seed=number, **written["model"], **pairs(model_option, "--model-option"))
        if weights is not None:
            load_weights(weights, built)
            built.trained = True
        with progress_bar(quiet or json) as progress:
            fitted = fit_one(
                method,
                built,
                splits,
                seed=number,
                preset=preset,
                train=train,
                select=select,
                engine=Engine(device, devices, strategy, precision, workers),
                folder=out / "checkpoints",
                progress=progress,
                **written["method"],
                **pairs(method_option, "--method-option"),
            )
        if not is_main_process():
            continue
        place = out / f"{method}-{splits.name.split('/')[-1]}-seed{number}-{fitted.record.key[:8]}.safetensors"
        save_weights(place, fitted.model)
        append(out / "records.jsonl", fitted.record)
        _forget_checkpoints(out / "checkpoints", fitted.record.key)
        if json:
            print(fitted.record.to_json())
        else:
            show_record(fitted.record)
            print(f"record in {out / 'records.jsonl'}, weights in {place}\n")


def check_writable(folder: Path) -> None:
    """Refuse an output folder that cannot be written before the first hour, not after."""
    probe = folder / ".spurless-probe"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise unwritable(folder, error) from None


def _sections(path: Path | None) -> dict[str, Mapping[str, Any]]:
    """Read the sections of a run's TOML file; a section that is not one of them is refused."""
    known = ("data", "model", "method", "train")
    found = read_toml(path) if path is not None else {}
    for name, section in found.items():
        if name not in known or not isinstance(section, dict):
            raise BadInput(f"[{name}] is no section", where=path, expected=", ".join(f"[{word}]" for word in known))
    return {name: found.get(name, {}) for name in known}


def _forget_checkpoints(folder: Path, key: str) -> None:
    from spurless.train.checkpoint import Checkpoints

    Checkpoints(folder / key, key).clear()
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()
