"""``spurless fix``: repair a trained model that leans on a shortcut, or keep it and say why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spurless.cli.console import check_places, progress_bar, share, table
from spurless.cli.flags import (
    METHOD,
    OUTPUT,
    OWN_METHOD,
    TRAINING,
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
    MethodOption,
    ModelOfWeights,
    ModelOption,
    Precision,
    Quiet,
    SeedOfWeights,
    SkipBad,
    Workers,
)
from spurless.cli.sources import Columns, open_data
from spurless.cli.weights import check_weights, open_model, refuse_selector, seed_of, with_tokenizer
from spurless.core.errors import BadInput
from spurless.core.options import pairs
from spurless.core.records import append
from spurless.core.repairs import FATES, Measure

if TYPE_CHECKING:
    from spurless.core.repairs import Repair
    from spurless.fixing import Fixed

REPAIR = "Repair"


def fix(
    weights: Annotated[
        Path,
        typer.Argument(
            help="Weights of a trained model as safetensors; or the folder of a Hugging Face text classifier.",
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
    method: Annotated[
        str | None,
        typer.Option(
            help=f"Method to repair with {OWN_METHOD}.",
            metavar="NAME",
            show_default="chosen by what is found",
            rich_help_panel=METHOD,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Named configuration of the method.", show_default="for any trained model", rich_help_panel=METHOD
        ),
    ] = None,
    method_option: MethodOption = [],
    try_: Annotated[
        str | None,
        typer.Option(
            "--try",
            help="Run several and keep the best: repairs, all (those that train the whole network too), or names.",
            metavar="WHICH",
            rich_help_panel=METHOD,
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            help="Average accuracy that a repair may cost, as a share: 0.01 is one point.", rich_help_panel=REPAIR
        ),
    ] = 0.01,
    train: Annotated[
        list[str],
        typer.Option(
            help="Setting of the loop, such as lr=0.001, for methods that train the whole network; repeat for more.",
            metavar="KEY=VALUE",
            rich_help_panel=TRAINING,
        ),
    ] = [],
    seed: SeedOfWeights = None,
    device: Device = "auto",
    precision: Precision = "auto",
    workers: Workers = 0,
    out: Annotated[Path, typer.Option(help="Page to write.", metavar="HTML", rich_help_panel=OUTPUT)] = Path(
        "fixed.html"
    ),
    save: Annotated[
        Path, typer.Option(help="Where the repaired weights go.", metavar="SAFETENSORS", rich_help_panel=OUTPUT)
    ] = Path("fixed.safetensors"),
    onnx: Annotated[
        Path | None,
        typer.Option(help="Write the repaired model as ONNX too.", metavar="ONNX", rich_help_panel=OUTPUT),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(help="Append the records before and after to this file.", metavar="FILE", rich_help_panel=OUTPUT),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Repair the model in WEIGHTS where it leans on a shortcut, and prove it on held-out data.

    The model is audited on validation, and a method is chosen by what is found and by
    which labels there are; no attributes are needed. It may learn from one half of
    validation. The other half judges: the new model is kept where its worst group is
    better and its average no worse than --tolerance allows. Else the old one is kept,
    nothing is saved, and the page says why; the exit status is 0 either way ("fixed"
    in the JSON tells). The test split is only reported.

    Examples:
      spurless fix runs/erm-patched-digits-seed0-1a2b3c4d.safetensors
      spurless fix mine.safetensors --data birds/ --model torchvision:resnet18 --try repairs
      spurless fix mine.safetensors --data meta.csv --label y --attribute place --tolerance 0.02
      spurless fix mine.safetensors --method masktune --train lr=0.001 --onnx fixed.onnx
    """
    from spurless.fixing import fix as repair
    from spurless.fixing.export import check_onnx, write_onnx
    from spurless.models.weights import save_weights
    from spurless.reporting import fix_json, write_fix, write_fix_json
    from spurless.train.run import Engine

    check_weights(weights)
    seed = seed_of(weights, seed)
    refuse_selector(weights)
    if onnx is not None:
        check_onnx()
    places = [place for place in (out, save, onnx) if place is not None]
    check_places(weights, places, "--out, --save, --onnx, --records", records, [data])
    columns = Columns(label, attribute, split, features, file, root, text, skip_bad)
    splits = open_data(
        data, with_tokenizer(pairs(data_option, "--data-option"), columns, model, weights), columns, seed, quiet or json
    )
    old = open_model(weights, model, pairs(model_option, "--model-option"), splits, seed)
    with progress_bar(quiet or json) as progress:
        done = repair(
            old,
            splits,
            method=method,
            preset=preset,
            options=pairs(method_option, "--method-option"),
            tries=_tries(try_),
            tolerance=tolerance,
            train=pairs(train, "--train"),
            seed=seed,
            engine=Engine(device, precision=precision, workers=workers),
            progress=progress,
        )
    written = [f"page in {write_fix(out, done).resolve()}"]
    written.append(f"the same for machines in {write_fix_json(out.with_suffix('.json'), done)}")
    if done.fixed:
        save_weights(save, done.model, seed=seed, data=done.after.data)
        written.append(f"weights in {save}")
        if onnx is not None:
            written.append(f"ONNX in {write_onnx(onnx, done.model, splits.train.example())}")
    if records is not None:
        for record in (done.before, done.after)[: 2 if done.fixed else 1]:
            append(records, record)
        written.append(f"records in {records}")
    if json:
        print(fix_json(done), end="")
        return
    _show(done)
    print(", ".join(written) + ("" if done.fixed else "; no weights were written"))


def _tries(words: str | None) -> str | Sequence[str]:
    """Return a set of methods by its name, or the names that stand between commas."""
    if words is None:
        return ()
    names = list(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))
    if not names or (len(names) > 1 and {*names} & {"repairs", "all"}):
        raise BadInput("--try says which methods to run", expected="repairs, all, or names such as afr,dfr")
    return names[0] if names in (["repairs"], ["all"]) else names


def _show(done: Fixed) -> None:
    """Print what came of it, what decided, and what was tried."""
    for number, line in enumerate(done.said):
        print(line if number == 0 else f"  {line}")
    print()
    _show_judged(done)
    if len(done.tried) > 1:
        print()
        _show_tried(done)
    print()
    test = [("average", "average"), ("worst group", "worst_group"), ("worst class", "worst_class")]
    for word, key in test:
        after = f" -> {share(done.after.metrics.get(key))}" if done.fixed else ""
        print(f"test {word} {share(done.before.metrics.get(key))}{after}")


def _show_judged(done: Repair) -> None:
    from spurless.reporting.fix_page import measured

    before, after = (measured(score) for score in done.judged)
    columns = ("judging examples", "before", "after") if done.fixed else ("judging examples", "the old model")
    parts = (before, after) if done.fixed else (before,)
    rows = [(word.lower(), *(_cell(part[word]) for part in parts)) for word in before]
    table("what decided", columns, rows, right=(1, 2))


def _show_tried(done: Repair) -> None:
    oracle = done.judged[0].worst_group is not None
    rows = []
    for attempt in done.tried:
        score = attempt.score
        numbers = [score.criterion, score.average, score.worst_group] if score is not None else [None, None, None]
        cells = [share(None if number is None else number.value) for number in numbers[: 3 if oracle else 2]]
        rows.append((attempt.choice.method, *cells, f"{attempt.seconds:.1f} s", attempt.error or FATES[attempt.fate]))
    beside = ("oracle" if done.named is None else "worst group",) if oracle else ()
    right = tuple(range(1, 4 + oracle))
    table("what was tried", ("method", "criterion", "average", *beside, "time", "outcome"), rows, right=right)


def _cell(measure: Measure) -> str:
    return f"{share(measure.value)} ({share(measure.low).removesuffix(' %')} to {share(measure.high)})"
