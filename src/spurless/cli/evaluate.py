"""``spurless eval``: how every group of the test split fares with given weights."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spurless.cli.console import check_appendable, show_record
from spurless.cli.flags import (
    ABSTAINING,
    OUTPUT,
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
    Json,
    ModelOfWeights,
    ModelOption,
    Onnx,
    Score,
    SeedOfWeights,
    SkipBad,
    Workers,
    shares,
)
from spurless.cli.sources import Columns, open_data
from spurless.cli.weights import check_onnx_place, check_weights, open_model, seed_of, with_tokenizer
from spurless.core.errors import BadInput, UnknownName
from spurless.core.files import check_apart, check_writable, replace_file
from spurless.core.options import pairs
from spurless.core.records import Record, append

if TYPE_CHECKING:
    from spurless.data.grouped import Splits
    from spurless.models.classifier import Classifier
    from spurless.train.abstain import Abstainer

REFUSED = "abstain"
"""What stands in the place of a label that is not given."""


def evaluate(
    weights: Annotated[
        Path,
        typer.Argument(
            help="Weights to evaluate as safetensors; or the folder of a Hugging Face text classifier.",
            metavar="WEIGHTS",
        ),
    ],
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
    model: ModelOfWeights = None,
    model_option: ModelOption = [],
    coverage: Coverage = None,
    score: Score = "auto",
    start: Annotated[
        Path | None,
        typer.Option(
            help="Weights before the repair, for the scores of two models: the NAME-start.safetensors of spurless fit.",
            metavar="SAFETENSORS",
            rich_help_panel=ABSTAINING,
        ),
    ] = None,
    seed: SeedOfWeights = None,
    device: Device = "auto",
    workers: Workers = 0,
    name: Annotated[str, typer.Option(help="What to call this model in the record.", rich_help_panel=OUTPUT)] = "given",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Append the record to this file, for spurless report.", metavar="FILE", rich_help_panel=OUTPUT
        ),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(
            help="Write label, prediction and score of every test example to this CSV; with one --coverage, the "
            f"prediction is {REFUSED!r} where the model is not sure enough.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    onnx: Onnx = None,
    json: Json = False,
) -> None:
    """Evaluate WEIGHTS on the test split of --data and print how every group fared.

    Weights that spurless fit saved say which model they belong to; for others, name it.

    Examples:
      spurless eval runs/erm-patched-digits-seed0-1a2b3c4d.safetensors
      spurless eval mine.safetensors --model resnet20 --data birds/
      spurless eval mine.safetensors --coverage 0.8 --predictions said.csv --onnx mine.onnx
    """
    from spurless.bench.fitting import evaluate_given
    from spurless.fixing.export import write_onnx
    from spurless.train.run import Engine

    check_weights(weights)
    seed = seed_of(weights, seed)
    check_onnx_place(onnx, weights)
    coverages = shares(coverage)
    if (start is not None or score != "auto") and not coverages and predictions is None:
        raise BadInput("--score and --start say how to abstain", do="Pass --coverage 1,0.9,0.8 too.")
    _check_outputs(out, predictions, [weights, start, data])
    columns = Columns(label, attribute, split, features, file, root, text, skip_bad)
    splits = open_data(
        data, with_tokenizer(pairs(data_option, "--data-option"), columns, model, weights), columns, seed
    )
    _check_predictions(predictions, splits, coverages)
    options = pairs(model_option, "--model-option")
    built = open_model(weights, model, options, splits, seed)
    begun = None if start is None else open_model(start, model, options, splits, seed)
    abstainer = _abstainer(built, begun, score)
    record = evaluate_given(name, built, splits, seed=seed, engine=Engine(device, workers=workers))
    record = _abstaining(record, abstainer, splits, coverages, predictions, workers)
    if out is not None:
        append(out, record)
    if onnx is not None:
        write_onnx(onnx, built, splits.train.example())
    if json:
        print(record.to_json())
    else:
        show_record(record)
        if onnx is not None:
            print(f"ONNX in {onnx}")


def _abstainer(model: Classifier, start: Classifier | None, score: str) -> Abstainer:
    from spurless.train.abstain import JOINT, SCORES, Abstainer

    models = (model,) if start is None else (start, model)
    if score == "auto":
        return Abstainer.of(*models)
    if score not in SCORES:
        raise UnknownName("score", score, SCORES)
    if score in JOINT and start is None:
        raise BadInput(f"the score {score!r} is of two models", do="Pass the weights before the repair as --start.")
    if score not in JOINT and start is not None:
        raise BadInput(f"the score {score!r} is of one model", do="Leave --start out.")
    return Abstainer(models, score)


def _abstaining(
    record: Record,
    abstainer: Abstainer,
    splits: Splits,
    coverages: Sequence[float],
    predictions: Path | None,
    workers: int,
) -> Record:
    """Return the record with what the model reaches if it may abstain; write what it says of every example."""
    from spurless.bench.abstaining import add_abstaining

    device = next(abstainer.models[-1].parameters()).device  # where it was evaluated
    abstainer.models[0].to(device)
    if coverages:
        record = add_abstaining(record, abstainer, splits, coverages, workers)
    if predictions is not None:
        threshold = record.selective["rows"][0]["threshold"] if len(coverages) == 1 else None
        _write_predictions(predictions, abstainer, splits, threshold, workers)
    return record


def _check_outputs(out: Path | None, predictions: Path | None, inputs: Sequence[Path | str | None]) -> None:
    """Refuse places that are read, that are one, or that hold something else than records."""
    check_apart([out, predictions], inputs)
    if out is None:
        return
    if predictions is not None and out.resolve() == predictions.resolve():
        raise BadInput("two outputs have the same place", do="Give each of --out, --predictions its own.")
    check_appendable(out)


def _check_predictions(path: Path | None, splits: Splits, coverages: Sequence[float]) -> None:
    if path is None:
        return
    if len(coverages) == 1 and REFUSED in splits.groups.labels:
        raise BadInput(
            f"a class is called {REFUSED!r}, which is what --predictions says of an example without a prediction",
            do="Rename the class, or leave --coverage out.",
        )
    if path.exists() and not path.is_file():
        raise BadInput("cannot write here: this is no ordinary file", where=path, do="Choose another place.")
    check_writable(path.parent)


def _write_predictions(path: Path, abstainer: Abstainer, splits: Splits, threshold: float | None, workers: int) -> None:
    """Write a row per test example, in their order."""
    scores, pred = abstainer.respond(splits.test, workers)
    labels, kept = splits.groups.labels, [True] * len(pred) if threshold is None else (scores >= threshold).tolist()
    columns = (splits.test.y.tolist(), pred.tolist(), scores.tolist(), kept)

    def write(scratch: Path) -> None:
        # the terminator of CSV: with a lone newline, a carriage return in a name would go unquoted
        with scratch.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("number", "label", "prediction", "score"))
            for number, (y, said, score, keep) in enumerate(zip(*columns, strict=True)):
                rows.writerow((number, labels[y], labels[said] if keep else REFUSED, score))

    replace_file(path, write)
