"""``spurless eval``: how every group of the test split fares with given weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from spurless.cli.console import show_record
from spurless.cli.flags import (
    MODEL,
    OUTPUT,
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
    Json,
    ModelOption,
    Seed,
    Workers,
)
from spurless.cli.sources import Columns, build_model, open_data
from spurless.core.errors import BadInput
from spurless.core.options import pairs
from spurless.core.records import append


def evaluate(
    weights: Annotated[Path, typer.Argument(help="Weights to evaluate, as safetensors.", metavar="WEIGHTS")],
    data: Data = "patched-digits",
    data_option: DataOption = [],
    label: CsvLabel = None,
    attribute: CsvAttribute = None,
    split: CsvSplit = None,
    features: CsvFeatures = None,
    file: CsvFile = None,
    text: CsvText = None,
    root: CsvRoot = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model that the weights belong to.", show_default="the one the file names", rich_help_panel=MODEL
        ),
    ] = None,
    model_option: ModelOption = [],
    seed: Seed = 0,
    device: Device = "auto",
    workers: Workers = 0,
    name: Annotated[str, typer.Option(help="What to call this model in the record.", rich_help_panel=OUTPUT)] = "given",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Append the record to this file, for spurless report.", metavar="FILE", rich_help_panel=OUTPUT
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Evaluate WEIGHTS on the test split of --data and print how every group fared.

    Weights that spurless fit saved say which model they belong to; for others, name it.

    Examples:
      spurless eval runs/erm-patched-digits-seed0-1a2b3c4d.safetensors
      spurless eval mine.safetensors --model resnet20 --data birds/
    """
    from spurless.bench.fitting import evaluate_given
    from spurless.models.weights import load_weights, weights_info
    from spurless.train.run import Engine

    info = weights_info(weights)
    splits = open_data(
        data, pairs(data_option, "--data-option"), Columns(label, attribute, split, features, file, root, text), seed
    )
    chosen = model or info.get("name")
    if not isinstance(chosen, str) or not isinstance(info.get("options", {}), dict):
        raise BadInput("the file does not say which model it belongs to", where=weights, do="Pass --model NAME.")
    said = {} if model else _options_of(info)
    built = build_model(chosen, splits, seed, {**said, **pairs(model_option, "--model-option")})
    load_weights(weights, built)
    record = evaluate_given(name, built, splits, seed=seed, engine=Engine(device, workers=workers))
    if out is not None:
        append(out, record)
    if json:
        print(record.to_json())
    else:
        show_record(record)


def _options_of(info: dict[str, Any]) -> dict[str, Any]:
    """Return the options that a file of weights names, without those that the data decide."""
    return {key: value for key, value in info.get("options", {}).items() if key not in ("input_shape", "n_classes")}
