"""``spurless fit``: train or repair a classifier with one method, and record how every group fared."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spurless.cli.console import check_appendable, progress_bar, show_record
from spurless.cli.flags import (
    METHOD,
    MODEL,
    OUTPUT,
    OWN_METHOD,
    TRAINING,
    ConfigFile,
    Coverage,
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
    Devices,
    Json,
    MethodOption,
    Model,
    ModelOption,
    Onnx,
    Precision,
    Quiet,
    Score,
    Seed,
    Select,
    SkipBad,
    Strategy,
    Track,
    Workers,
    shares,
    tracker,
)
from spurless.cli.left import beside, recorded, save
from spurless.cli.sources import Columns, build_model, open_data
from spurless.cli.weights import check_onnx_place, export_saved, refuse_selector, with_tokenizer
from spurless.core.errors import BadInput
from spurless.core.files import check_writable
from spurless.core.options import configure, pairs, read_toml
from spurless.core.records import append
from spurless.core.reserve import reserved

if TYPE_CHECKING:
    from spurless.data.mined import Mined


def _train(help: str, default: str | bool = False) -> Any:
    """Declare a setting of the loop; its default is the loop's own, and only shown here."""
    return typer.Option(help=help, show_default=default, rich_help_panel=TRAINING)


def fit(
    method: Annotated[str, typer.Argument(help=f"Method to fit {OWN_METHOD}.", metavar="METHOD")],
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
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Start from these weights, for methods that repair a trained model.",
            metavar="SAFETENSORS",
            rich_help_panel=MODEL,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Named configuration of the method.", show_default="the method's first", rich_help_panel=METHOD
        ),
    ] = None,
    method_option: MethodOption = [],
    mined: Annotated[
        Path | None,
        typer.Option(
            help="Take this list of examples that break the shortcut: where a method mines, in the place of its own; "
            "where it asks for attributes of train, as groups: each label, listed or not.",
            metavar="NPZ",
            rich_help_panel=METHOD,
        ),
    ] = None,
    select: Select = "last",
    epochs: Annotated[int | None, _train("Passes over the train split.", "20")] = None,
    steps: Annotated[int | None, _train("Stop after so many steps.")] = None,
    batch_size: Annotated[int | None, _train("Examples per step.", "128")] = None,
    optimiser: Annotated[str | None, _train("sgd, adam or adamw.", "sgd")] = None,
    lr: Annotated[float | None, _train("Learning rate.", "0.01")] = None,
    momentum: Annotated[float | None, _train("Momentum of SGD, first beta of Adam.", "0.9")] = None,
    weight_decay: Annotated[float | None, _train("L2 penalty.", "0.0001")] = None,
    l1: Annotated[float | None, _train("L1 penalty, of all trained parameters.", "0.0")] = None,
    asam: Annotated[float | None, _train("Radius rho of sharpness-aware steps (ASAM); 0 is off.", "0.0")] = None,
    schedule: Annotated[
        str | None, _train("constant, step, cosine, linear, one-cycle or warmup-stable-decay.", "constant")
    ] = None,
    warmup_steps: Annotated[int | None, _train("Raise the rate linearly over so many steps.", "0")] = None,
    decay_share: Annotated[
        float | None, _train("Last share of the steps, in which warmup-stable-decay falls to 0.", "0.2")
    ] = None,
    clip: Annotated[float | None, _train("Largest norm of the gradient.")] = None,
    stop_accuracy: Annotated[float | None, _train("Stop at this train accuracy, of 1.")] = None,
    stop_loss: Annotated[float | None, _train("Stop under this mean loss.")] = None,
    seed: Seed = 0,
    seeds: Annotated[int, typer.Option(help="Run so many seeds, from --seed on.", min=1)] = 1,
    config: ConfigFile = None,
    device: Device = "auto",
    devices: Devices = 1,
    strategy: Strategy = "auto",
    precision: Precision = "auto",
    workers: Workers = 0,
    coverage: Coverage = None,
    score: Score = "auto",
    out: Annotated[
        Path, typer.Option(help="Folder for records.jsonl, weights and checkpoints.", rich_help_panel=OUTPUT)
    ] = Path("runs"),
    track: Track = None,
    onnx: Onnx = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit METHOD on --data and print how every group of the test split fared.

    A record is appended to OUT/records.jsonl, and the weights are saved beside it.
    A killed run, started again with the same words, goes on where it was and ends
    with the same weights; a run that OUT holds already is shown and not repeated.
    To watch the loss while it trains, --track it; that changes no weight.
    Where a method repairs a model that was trained for it, the weights before the
    repair are saved too, as NAME-start.safetensors, and what it mined as NAME-mined.npz,
    which --mined gives to another run.

    Examples:
      spurless fit erm --data patched-digits --steps 170
      spurless fit group-dro --data meta.csv --label y --attribute place
      spurless fit jtt -D conflicting=0.1 --preset digits -M upweight=5 --seeds 3
      spurless fit masktune --preset digits --steps 200 --coverage 1,0.9,0.8
      spurless fit magnitude-prune -M epochs=20 -M target_sparsity=0.9 -M keep=last --onnx small.onnx
      spurless fit group-dro --data meta.csv --label y --mined runs/dcwp-…-mined.npz
      spurless fit erm --data patched-digits --track tensorboard
    """
    from spurless.bench.fitting import Protocol, fit_under
    from spurless.bench.keys import key_of
    from spurless.bench.rules import score_of
    from spurless.methods import make_method
    from spurless.methods.base import declared
    from spurless.models.weights import load_weights
    from spurless.train.checkpoint import forget
    from spurless.train.config import TrainConfig
    from spurless.train.run import Engine, is_main_process

    said = {
        "epochs": epochs, "steps": steps, "batch_size": batch_size, "optimiser": optimiser, "lr": lr,
        "momentum": momentum, "weight_decay": weight_decay, "l1": l1, "asam": asam, "schedule": schedule,
        "warmup_steps": warmup_steps, "decay_share": decay_share, "clip": clip, "stop_accuracy": stop_accuracy,
        "stop_loss": stop_loss,
    }  # fmt: skip
    written = _sections(config)
    train = {**written["train"], **{key: value for key, value in said.items() if value is not None}}
    columns = Columns(label, attribute, split, features, file, root, text, skip_bad)
    data_options = {**written["data"], **pairs(data_option, "--data-option")}
    model_options = {**written["model"], **pairs(model_option, "--model-option")}
    method_options = {**written["method"], **pairs(method_option, "--method-option")}
    listed = _listed(method, mined, method_options)
    _check_method_options(method, method_options, signature(make_method).parameters)
    chosen = make_method(method, preset, **method_options)
    settings = configure(TrainConfig, train, "the training loop")
    engine = Engine(device, devices, strategy, precision, workers, track=tracker(track, out))
    protocol = Protocol(settings, select, engine, out / "checkpoints", _coverages(coverage, score), score)
    score_of(score, declared(chosen), protocol.coverages)
    records = out / "records.jsonl"
    check_writable(out)
    check_onnx_place(onnx, weights, seeds)
    check_appendable(records)
    alone = os.environ.get("LOCAL_RANK", "0") == "0"  # of several processes that train together one holds the run
    for number in range(seed, seed + seeds):
        splits = open_data(data, with_tokenizer(data_options, columns, model), columns, number, quiet or json)
        splits = splits if listed is None else listed.as_groups(splits)
        built = build_model(model, splits, number, model_options)
        if weights is not None:
            refuse_selector(weights)
            load_weights(weights, built)
            built.trained = True
        key = key_of(protocol, chosen, built, splits, number)
        name = re.sub(r"[^\w.+-]+", "-", splits.name)
        place = out / f"{chosen.info.name}-{name}-seed{number}-{key[:8]}.safetensors"
        with reserved(records if alone else None, [key]):
            record = recorded(records, key) if place.exists() else None
            if record is None:
                with progress_bar(quiet or json) as progress:
                    fitted = fit_under(replace(protocol, progress=progress), chosen, built, splits, number)
                if not is_main_process():
                    continue
                record = fitted.record
                save(place, fitted, given=built.trained)
                append(records, record)
                forget(out / "checkpoints", key)
        if onnx is not None and is_main_process():
            export_saved(onnx, place, model, model_options, splits, number)
        if json:
            print(record.to_json())
        elif is_main_process():
            show_record(record)
            print(f"record in {records}, weights in {place}{beside(place, onnx)}\n")


def _coverages(coverage: str | None, score: str) -> tuple[float, ...]:
    if score != "auto" and coverage is None:
        raise BadInput("--score says how to abstain, and nothing may abstain", do="Pass --coverage 1,0.9,0.8 too.")
    return shares(coverage)


def _listed(method: str, path: Path | None, options: dict[str, Any]) -> Mined | None:
    """Put a mined list among the options of a method that takes one; return it where groups are to be made of it."""
    from spurless.data.mined import Mined
    from spurless.methods import method_named

    if path is None:
        return None
    kind = method_named(method)
    found = Mined.load(path)
    if "mined" in vars(next(iter(kind.presets.values()))):
        options["mined"] = str(path)
        return None
    if not kind.info.train_attributes:
        raise BadInput(
            f"--mined: {method} neither mines nor asks for groups of train",
            do="Use it with dcwp, or with a method that asks for groups, such as group-dro or group-resample.",
        )
    return found


def _sections(path: Path | None) -> dict[str, Mapping[str, Any]]:
    """Read the sections of a run's TOML file; a section that is not one of them is refused."""
    known = ("data", "model", "method", "train")
    found = read_toml(path) if path is not None else {}
    for name, section in found.items():
        if name not in known or not isinstance(section, dict):
            raise BadInput(f"[{name}] is no section", where=path, expected=", ".join(f"[{word}]" for word in known))
    return {name: found.get(name, {}) for name in known}


def _check_method_options(method: str, options: Mapping[str, Any], taken: Mapping[str, Any]) -> None:
    """Refuse an option that a flag of its own says, or nothing does: it would reach the library as its argument."""
    for key in options:
        if key in taken:
            raise BadInput(f"method {method!r} has no option {key!r}", do="See the flags of: spurless fit --help")
