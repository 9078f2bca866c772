"""``spurless fit``: train or repair a classifier with one method and record the accuracy of every group."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spurless.cli import params as cli
from spurless.cli.console import print_json, print_text, progress_bar, show_record
from spurless.cli.inputs import open_dataset, read_config
from spurless.cli.outputs import (
    check_onnx_path,
    check_outputs,
    export_saved,
    find_record,
    list_files,
    run_files,
    save_run,
    tracking_folder,
)
from spurless.cli.weights import build_model, check_no_selector, check_option_names
from spurless.core.errors import InputError
from spurless.core.files import check_writable
from spurless.core.locks import lock_runs
from spurless.core.records import append_record

if TYPE_CHECKING:
    from spurless.data.mined import MinedExamples


@cli.expand_params
def fit(
    *,
    method: Annotated[str, typer.Argument(help=f"Method to fit {cli.CUSTOM_METHOD}.", metavar="METHOD")],
    data: cli.DataParams,
    model: cli.ModelParams,
    weights: Path | None = cli.param(
        None, cli.MODEL, "Initial weights, for methods that repair a trained model.", metavar="SAFETENSORS"
    ),
    settings: cli.MethodParams,
    mined: Path | None = cli.param(
        None, cli.METHOD, "List of bias-conflicting examples, to use instead of mining or as groups.", metavar="NPZ"
    ),
    train: cli.TrainParams,
    seed: cli.Seed = 0,
    seeds: int = cli.param(1, None, "Number of seeds to run, starting at --seed.", min=1),
    config: Path | None = cli.param(
        None, None, "TOML file with \\[data], \\[model], \\[method], \\[train]; flags override it.", metavar="FILE"
    ),
    device: cli.MultiDeviceParams,
    selective: cli.SelectiveParams,
    out: Path = cli.param(Path("runs"), cli.OUTPUT, "Folder for records.jsonl, weights and checkpoints."),
    track: cli.Track = None,
    onnx: cli.Onnx = None,
    compact: cli.Compact = False,
    json: cli.Json = False,
    quiet: cli.Quiet = False,
) -> None:
    """Fit METHOD on --data and print the test accuracy of every group.

    The record is appended to OUT/records.jsonl, and the weights are saved next
    to it. A killed run resumes when the same command is started again and ends
    with the same weights; a run that is already in OUT is shown, not repeated.
    --track logs the loss during training and does not change the weights. If a
    method first trains a model and then repairs it, the weights before the repair
    are saved as NAME-start.safetensors, and mined examples as NAME-mined.npz,
    which another run can use with --mined.

    Examples:
      spurless fit erm --data patched-digits --steps 170
      spurless fit group-dro --data meta.csv --label y --attribute place
      spurless fit jtt -D conflicting=0.1 --preset digits -M upweight=5 --seeds 3
      spurless fit masktune --preset digits --steps 200 --coverage 1,0.9,0.8
      spurless fit magnitude-prune -M epochs=20 -M target_sparsity=0.9 -M keep=last --onnx small.onnx --compact
      spurless fit group-dro --data meta.csv --label y --mined runs/dcwp-…-mined.npz
      spurless fit erm --data patched-digits --track tensorboard
      spurless fit erm --data waterbirds --recipe waterbirds-izmailov --batch-size 64
    """
    from spurless.fitting.checks import resolve_score
    from spurless.fitting.protocol import Protocol, fit_with_protocol, hash_run
    from spurless.methods import make_method
    from spurless.methods.base import method_info
    from spurless.models.weights import load_weights
    from spurless.train.checkpoint import delete_checkpoints
    from spurless.train.recipes import make_train_config
    from spurless.train.run import is_main_process

    sections = read_config(config)
    model_options = {**sections["model"], **model.options}
    method_options = {**sections["method"], **settings.options}
    groups = _mined_groups(method, mined, method_options)
    check_option_names("method", method, method_options, "See the flags of: spurless fit --help")
    chosen = make_method(method, settings.preset, **method_options)
    selective.check_score()
    protocol = Protocol(
        make_train_config({**sections["train"], **train.options}),
        settings.select,
        device.compute(cli.resolve_track(track, out)),
        out / "checkpoints",
        selective.coverages,
        selective.score,
    )
    resolve_score(selective.score, method_info(chosen), protocol.coverages)
    records = out / "records.jsonl"
    check_writable(out)
    check_onnx_path(onnx, weights, seeds, compact=compact)
    inputs, flags, folder = [weights, mined, config, *data.inputs], "--out, --onnx and --track", tracking_folder(track)
    check_outputs([onnx], flags, records=records, folders=[folder], inputs=inputs)
    is_first_rank = os.environ.get("LOCAL_RANK", "0") == "0"  # only one of several processes locks the run
    for number in range(seed, seed + seeds):
        splits = open_dataset(data, number, model.model, quiet=quiet or json, defaults=sections["data"])
        splits = splits if groups is None else groups.as_groups(splits)
        built = build_model(model.model, splits, number, model_options, load_pretrained=weights is None)
        if weights is not None:
            check_no_selector(weights)
            load_weights(weights, built)
            built.trained = True
        hashes = hash_run(protocol, chosen, built, splits, number)
        key = hashes.key
        name = re.sub(r"[^\w.+-]+", "-", splits.name)
        path = out / f"{chosen.info.name}-{name}-seed{number}-{key[:8]}.safetensors"
        check_outputs([onnx, *run_files(path)], flags, inputs=inputs)
        with lock_runs(records if is_first_rank else None, [key]):
            record = find_record(records, key) if path.exists() else None
            if record is None:
                with progress_bar(quiet or json) as progress:
                    reporting = replace(protocol, progress=progress)
                    fitted = fit_with_protocol(reporting, chosen, built, splits, number, hashes)
                if not is_main_process():
                    continue
                record = fitted.record
                save_run(path, fitted, has_initial_weights=built.trained)
                append_record(records, record)
                delete_checkpoints(out / "checkpoints", key)
        if onnx is not None and is_main_process():
            export_saved(onnx, path, model.model, model_options, splits, number, compact=compact)
        if json:
            print_json(record.to_json())
        elif is_main_process():
            show_record(record)
            print_text(f"record in {records}, weights in {path}{list_files(path, onnx)}")
            print_text()


def _mined_groups(method: str, path: Path | None, options: dict[str, Any]) -> MinedExamples | None:
    """Add a mined list to the options of a method that accepts one; return it if it defines groups instead."""
    from spurless.data.mined import MinedExamples
    from spurless.methods import method_named

    if path is None:
        return None
    kind = method_named(method)
    mined = MinedExamples.load(path)
    if "mined" in vars(next(iter(kind.presets.values()))):
        options["mined"] = str(path)
        return None
    if not kind.info.train_attributes:
        hint = "Use it with dcwp, or with a method that needs groups, such as group-dro or group-resample."
        raise InputError(f"--mined: {method} neither mines examples nor needs groups of train", hint=hint)
    return mined
