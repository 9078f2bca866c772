"""``spurless eval``: how every group of the test split fares with given weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spurless.cli.console import show_record
from spurless.cli.flags import (
    CsvAttribute,
    CsvLabel,
    CsvRoot,
    CsvSplit,
    Data,
    DataOption,
    Device,
    Json,
    ModelOption,
    Seed,
    Workers,
)
from spurless.cli.sources import Columns, open_data
from spurless.core.errors import BadInput
from spurless.core.options import pairs
from spurless.core.records import append


def evaluate(
    weights: Annotated[Path, typer.Argument(help="Weights to evaluate, as safetensors.")],
    data: Data = "patched-digits",
    data_option: DataOption = [],
    label: CsvLabel = None,
    attribute: CsvAttribute = None,
    split: CsvSplit = None,
    root: CsvRoot = None,
    model: Annotated[
        str | None, typer.Option(help="Model that the weights belong to; by default the one named in the file.")
    ] = None,
    model_option: ModelOption = [],
    name: Annotated[str, typer.Option(help="What to call this model in the record.")] = "given",
    seed: Seed = 0,
    device: Device = "auto",
    workers: Workers = 0,
    out: Annotated[Path | None, typer.Option(help="Append the record to this file, for spurless report.")] = None,
    json: Json = False,
) -> None:
    """Evaluate WEIGHTS on the test split of --data and print how every group fared.

    Example:

      spurless eval runs/erm-patched-digits-seed0-1a2b3c4d.safetensors --data patched-digits
    """
    from spurless.bench.fitting import evaluate_given
    from spurless.models import build
    from spurless.models.weights import load_weights, weights_info
    from spurless.train.run import Engine

    splits = open_data(data, pairs(data_option, "--data-option"), Columns(label, attribute, split, root), seed)
    info = weights_info(weights)
    chosen = model or info.get("name")
    if not chosen:
        raise BadInput("the file does not say which model it belongs to", where=weights, do="Pass --model NAME.")
    options = {} if model else dict(info.get("options", {}))
    built = build(chosen, splits, seed=seed, **{**options, **pairs(model_option, "--model-option")})
    load_weights(weights, built)
    record = evaluate_given(name, built, splits, seed=seed, engine=Engine(device, workers=workers))
    if out is not None:
        append(out, record)
    if json:
        print(record.to_json())
    else:
        show_record(record)
