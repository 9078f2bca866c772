"""``spurless fix``: repair a trained model that relies on a shortcut, or keep it and explain why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from spurless.cli import params as cli
from spurless.cli.console import open_page, print_json, print_table, print_text, progress_bar
from spurless.cli.inputs import open_dataset
from spurless.cli.outputs import check_onnx_path, check_outputs
from spurless.cli.weights import check_no_selector, open_model, resolve_seed
from spurless.core.config import parse_pairs
from spurless.core.errors import InputError
from spurless.core.records import append_record
from spurless.core.repairs import OUTCOMES, Accuracy
from spurless.reporting.format import format_percent

if TYPE_CHECKING:
    from spurless.core.records import Record
    from spurless.core.repairs import Repair
    from spurless.fixing import Fixed

REPAIR = "Repair"


@cli.expand_params
def fix(
    *,
    data: cli.DataParams,
    given: cli.WeightsParams,
    method: str | None = cli.param(
        None, cli.METHOD, f"Repair method {cli.CUSTOM_METHOD}.", metavar="NAME", show_default="chosen by the audit"
    ),
    preset: str | None = cli.param(
        None, cli.METHOD, "Named configuration of the method.", show_default="one that suits any trained model"
    ),
    method_option: cli.MethodOption = [],
    try_: str | None = cli.param(
        None,
        cli.METHOD,
        "Try several methods and keep the best: repairs, all (also those that train the whole network), or names "
        "such as afr,dfr.",
        "--try",
        metavar="WHICH",
    ),
    properties: list[str] = cli.param(
        list,
        REPAIR,
        "A property that the label must not depend on, such as 'the frame'; give the option again for more.",
        "--property",
        metavar="NAME",
        show_default="those that the audit flags without a doubt",
    ),
    tolerance: float = cli.param(
        0.01,
        REPAIR,
        "Accuracy that a repair may cost, with groups or their substitutes weighted alike, as a fraction: 0.01 is one "
        "point.",
    ),
    budget: float | None = cli.param(
        None,
        REPAIR,
        "Minutes after which no method that trains the whole network is started.",
        metavar="MINUTES",
        show_default="5; no limit with --method or --try",
    ),
    train: Annotated[
        list[str],
        cli.pairs(
            cli.TRAINING, "Training setting, such as lr=0.001, for methods that train the whole network", "--train"
        ),
    ] = [],
    device: cli.ComputeParams,
    out: Path = cli.param(Path("fixed.html"), cli.OUTPUT, "Page to write.", metavar="HTML"),
    save: Path = cli.param(
        Path("fixed.safetensors"), cli.OUTPUT, "File for the repaired weights.", metavar="SAFETENSORS"
    ),
    onnx: Path | None = cli.param(None, cli.OUTPUT, "Also export the repaired model as ONNX.", metavar="ONNX"),
    compact: cli.Compact = False,
    records: Path | None = cli.param(
        None, cli.OUTPUT, "Append the records before and after the repair to this file.", metavar="FILE"
    ),
    track: cli.TrackResult = None,
    open_: cli.OpenPage = False,
    json: cli.Json = False,
    quiet: cli.Quiet = False,
) -> None:
    """Repair the model in WEIGHTS if it relies on a shortcut, and check the repair on held-out data.

    The model is audited on the validation split; the methods are chosen by the
    findings and by the labels that are available. Attributes are not needed.
    Methods may train on one half of the validation split; the other half decides:
    the best new model is kept if it improves the worst group by more than chance
    explains. Without attributes, it must improve the accuracy under transplants of
    the properties that the audit flags, such as a color or a corner. Otherwise the
    old model is kept, no weights are saved, and the page explains why; the exit
    status is 0 in both cases ("fixed" in the JSON is true or false). The test
    split is only reported.

    Examples:
      spurless fix runs/erm-patched-digits-seed0-1a2b3c4d.safetensors
      spurless fix mine.safetensors --data birds/ --model torchvision:resnet18 --budget 30
      spurless fix mine.safetensors --data meta.csv --label y --attribute place --tolerance 0.02
      spurless fix mine.safetensors --method masktune --train lr=0.001 --onnx fixed.onnx
    """
    from spurless.fixing import fix as repair
    from spurless.models.export import write_onnx
    from spurless.models.weights import save_weights
    from spurless.reporting import fix_json, write_fix, write_fix_json
    from spurless.train.tracking import track_repair

    seed = resolve_seed(given.weights, given.seed)
    track = cli.resolve_track(track, Path())
    check_no_selector(given.weights)
    check_onnx_path(onnx, given.weights, compact=compact)
    flags = "--out, --save, --onnx, --records"
    check_outputs([save, onnx], flags, page=out, records=records, inputs=[given.weights, *data.inputs])
    splits = open_dataset(data, seed, given.model, given.weights, quiet or json)
    model = open_model(given.weights, given.model, given.options, splits, seed)
    with progress_bar(quiet or json) as progress:
        result = repair(
            model,
            splits,
            method=method,
            preset=preset,
            options=parse_pairs(method_option, "--method-option"),
            tries=_parse_tries(try_),
            properties=properties or None,
            tolerance=tolerance,
            budget=budget,
            train=parse_pairs(train, "--train"),
            seed=seed,
            compute=device.compute(),
            progress=progress,
        )
    written = [f"page in {write_fix(out, result).resolve()}"]
    written.append(f"JSON in {write_fix_json(out.with_suffix('.json'), result)}")
    if result.fixed:
        save_weights(save, result.model, seed=seed, data=result.after.data)
        written.append(f"weights in {save}")
        if onnx is not None:
            written.append(f"ONNX in {write_onnx(onnx, result.model, splits.train.example(), compact=compact)}")
    if records is not None:
        for record in (result.before, result.after)[: 2 if result.fixed else 1]:
            append_record(records, record)
        written.append(f"records in {records}")
    if track is not None:
        track_repair(track, result, [out, out.with_suffix(".json")])
    if open_:
        open_page(out)
    if json:
        print_json(fix_json(result))
        return
    _show(result)
    print_text(", ".join(written) + ("" if result.fixed else "; no weights were written"))


def _parse_tries(text: str | None) -> str | Sequence[str]:
    """Return the name of a set of methods, or the comma-separated names."""
    if text is None:
        return ()
    names = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not names or (len(names) > 1 and {*names} & {"repairs", "all"}):
        raise InputError(f"--try {text!r} is not valid", expected="repairs, all, or names such as afr,dfr")
    return names[0] if names in (["repairs"], ["all"]) else names


def _show(result: Fixed) -> None:
    """Print the summary, the accuracies that decided, the methods tried, and the test accuracies."""
    for number, line in enumerate(result.summary):
        print_text(line if number == 0 else f"  {line}")
    print_text()
    _show_accuracies(result)
    if len(result.attempts) > 1:
        print_text()
        _show_attempts(result)
    print_text()
    for key in _list_test_metrics(result.before):
        after = f" -> {format_percent(result.after.metrics.get(key))}" if result.fixed else ""
        print_text(f"test {key.replace('_', ' ')} {format_percent(result.before.metrics.get(key))}{after}")


def _list_test_metrics(record: Record) -> tuple[str, ...]:
    """Return the metrics to print; without attributes, the worst class is not called a group."""
    has_groups = len(record.groups) > len(record.data.get("labels", ()))
    return ("average", "worst_group", "worst_class") if has_groups else ("average", "worst_class")


def _show_accuracies(result: Repair) -> None:
    from spurless.reporting.fix_page import known_accuracies

    before, after = (known_accuracies(score) for score in result.holdout_scores)
    names, parts = (("before", "after"), (before, after)) if result.fixed else (("old model",), (before,))
    rows = [(word.lower(), *(_format_accuracy(part[word]) for part in parts)) for word in before]
    print_table("accuracy on held-out validation examples, which decided", ("", *names), rows, right=(1, 2))


def _show_attempts(result: Repair) -> None:
    """Print the attempts; columns that no attempt has are left out."""
    from spurless.reporting.fix_page import format_paired_change

    first = result.holdout_scores[0]
    fields = {
        "under transplants": "transplants",
        "worst class": "worst_class",
        "average": "average",
        "oracle" if result.word is None else "worst group": "worst_group",
    }
    fields = {name: field for name, field in fields.items() if getattr(first, field) is not None}
    rows = []
    for attempt in result.attempts:
        accuracies = [None if attempt.score is None else getattr(attempt.score, field) for field in fields.values()]
        cells = [format_percent(None if accuracy is None else accuracy.value) for accuracy in accuracies]
        outcome = attempt.error or OUTCOMES[attempt.outcome]
        change = format_paired_change(attempt.change)
        rows.append((attempt.choice.display_name, *cells, change, f"{attempt.seconds:.1f} s", outcome))
    columns = ("method", *fields, "change (95 % interval)", "time", "outcome")
    print_table("methods tried", columns, rows, right=range(1, len(columns) - 1))


def _format_accuracy(accuracy: Accuracy) -> str:
    if accuracy.is_small:
        return f"{round(accuracy.value * accuracy.count)} of {accuracy.count}"
    value, low, high = map(format_percent, (accuracy.value, accuracy.low, accuracy.high))
    return f"{value} ({low.removesuffix(' %')} to {high})"
