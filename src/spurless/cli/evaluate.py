"""``spurless eval``: evaluate given weights on every group of the test split."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spurless.cli import params as cli
from spurless.cli.console import print_json, print_text, show_record
from spurless.cli.inputs import HUGGING_FACE_FILES, open_dataset
from spurless.cli.outputs import check_onnx_path, check_outputs
from spurless.cli.weights import open_model, resolve_seed
from spurless.core.errors import InputError, UnknownNameError
from spurless.core.files import replace_file
from spurless.core.records import Record, append_record
from spurless.reporting.format import escape_formula

if TYPE_CHECKING:
    from spurless.data.split import Splits
    from spurless.models.classifier import Classifier
    from spurless.train.selective import Abstainer

ABSTAIN = "abstain"  # prediction that is written if the model abstains


@cli.expand_params
def evaluate(
    *,
    data: cli.DataParams,
    given: cli.WeightsParams,
    selective: cli.SelectiveParams,
    start: Path | None = cli.param(
        None,
        cli.SELECTIVE,
        "Weights before the repair (NAME-start.safetensors), for scores that compare two models.",
        metavar="SAFETENSORS",
    ),
    device: cli.DeviceParams,
    name: str = cli.param("given", cli.OUTPUT, "Name of this model in the record."),
    out: Path | None = cli.param(
        None, cli.OUTPUT, "Append the record to this file, for spurless report.", metavar="FILE"
    ),
    predictions: Path | None = cli.param(
        None,
        cli.OUTPUT,
        "Write label, prediction and score of every test example to this CSV; with one --coverage, the "
        f"prediction is {ABSTAIN!r} if the score is too low.",
        metavar="FILE",
    ),
    onnx: cli.Onnx = None,
    compact: cli.Compact = False,
    json: cli.Json = False,
) -> None:
    """Evaluate WEIGHTS on the test split of --data and print the accuracy of every group.

    Data with splits need no train split. Weights saved by spurless fit name their
    model; for others, pass --model.

    Examples:
      spurless eval runs/erm-patched-digits-seed0-1a2b3c4d.safetensors
      spurless eval mine.safetensors --model resnet20 --data birds/
      spurless eval mine.safetensors --coverage 0.8 --predictions predictions.csv --onnx mine.onnx
    """
    from spurless.fitting import evaluate_given
    from spurless.models.export import write_onnx
    from spurless.train.run import limit_threads

    seed = resolve_seed(given.weights, given.seed)
    check_onnx_path(onnx, given.weights, compact=compact)
    coverages = selective.coverages
    if (start is not None or selective.score != "auto") and not coverages and predictions is None:
        raise InputError("--score and --start need --coverage", hint="Pass --coverage 1,0.9,0.8 too.")
    inputs = [given.weights, start, *data.inputs]
    check_outputs([predictions, onnx], "--out, --predictions and --onnx", records=out, inputs=inputs)
    splits = open_dataset(data, seed, given.model, given.weights, held_out=_has_splits(data.data, data.columns))
    if not len(splits.test):
        splits = replace(splits, test=splits.val)
    if predictions is not None and len(coverages) == 1 and ABSTAIN in splits.groups.labels:
        text = f"a class is called {ABSTAIN!r}, which --predictions writes for an example without a prediction"
        raise InputError(text, hint="Rename the class, or leave --coverage out.")
    model = open_model(given.weights, given.model, given.options, splits, seed)
    start_model = None if start is None else open_model(start, given.model, given.options, splits, seed)
    abstainer = _make_abstainer(model, start_model, selective.score)
    with limit_threads(device.threads):
        record = evaluate_given(name, model, splits, seed=seed, compute=device.compute())
        record = _evaluate_selective(record, abstainer, splits, coverages, predictions, device.workers)
    if out is not None:
        append_record(out, record)
    if onnx is not None:
        write_onnx(onnx, model, splits.example(), compact=compact)
    if json:
        print_json(record.to_json())
    else:
        show_record(record)
        if onnx is not None:
            print_text(f"ONNX in {onnx}")


def _has_splits(source: str, columns: cli.Columns) -> bool:
    """Return whether folders, a column or a file of a dataset define splits."""
    from spurless.data.loaders.folder import has_split_folders

    path = Path(source)
    return columns.split is not None or (path / HUGGING_FACE_FILES[0]).is_file() or has_split_folders(path)


def _make_abstainer(model: Classifier, start: Classifier | None, score: str) -> Abstainer:
    from spurless.train.selective import JOINT_SCORES, SCORES, Abstainer

    models = (model,) if start is None else (start, model)
    if score == "auto":
        return Abstainer.of(*models)
    if score not in SCORES:
        raise UnknownNameError("score", score, SCORES)
    if score in JOINT_SCORES and start is None:
        raise InputError(f"the score {score!r} needs two models", hint="Pass the weights before the repair as --start.")
    if score not in JOINT_SCORES and start is not None:
        raise InputError(f"the score {score!r} uses one model", hint="Leave --start out.")
    return Abstainer(models, score)


def _evaluate_selective(
    record: Record, abstainer: Abstainer, splits: Splits, coverages: Sequence[float], path: Path | None, workers: int
) -> Record:
    """Add the selective metrics to the record, and write the predictions."""
    from spurless.fitting.selective import add_selective_metrics

    device = next(abstainer.models[-1].parameters()).device  # the one it was evaluated on
    abstainer.models[0].to(device)
    if coverages:
        record = add_selective_metrics(record, abstainer, splits, coverages, workers)
    if path is not None:
        threshold = record.selective["rows"][0]["threshold"] if len(coverages) == 1 else None
        _write_predictions(path, abstainer, splits, threshold, workers)
    return record


def _write_predictions(path: Path, abstainer: Abstainer, splits: Splits, threshold: float | None, workers: int) -> None:
    """Write a row per test example, in their order; names that a spreadsheet would evaluate get an apostrophe."""
    scores, pred = abstainer.respond(splits.test, workers)
    labels = [escape_formula(label) for label in splits.groups.labels]
    accepted = [True] * len(pred) if threshold is None else (scores >= threshold).tolist()
    columns = (splits.test.y.tolist(), pred.tolist(), scores.tolist(), accepted)

    def write(scratch: Path) -> None:
        # the line terminator of CSV: with a lone newline, a carriage return in a name would not be quoted
        with scratch.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("number", "label", "prediction", "score"))
            for number, (y, prediction, score, is_accepted) in enumerate(zip(*columns, strict=True)):
                rows.writerow((number, labels[y], labels[prediction] if is_accepted else ABSTAIN, score))

    replace_file(path, write)
