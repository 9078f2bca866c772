"""Check output paths before work starts, and save, export and find the files of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spurless.cli.inputs import HUGGING_FACE_FILES
from spurless.cli.weights import open_model
from spurless.core.errors import InputError, first_line
from spurless.core.files import check_file, check_no_overwrite, check_writable, resolve_path, unwritable_error
from spurless.core.records import Record, read_records

if TYPE_CHECKING:
    from spurless.data.split import Splits
    from spurless.fitting.protocol import Fitted
START, MINED = "-start.safetensors", "-mined.npz"


def check_outputs(
    outputs: Iterable[Path | None],
    flags: str,
    *,
    page: Path | None = None,
    records: Path | None = None,
    folders: Iterable[Path | None] = (),
    inputs: Iterable[Path | str | None] = (),
) -> None:
    """Raise if outputs cannot be written, are the same file, or would overwrite an input.

    ``flags`` names the options of the outputs, for the message; a JSON file is written next to ``page``. ``folders``
    are created later.
    """
    inputs = list(inputs)
    files = [path for path in (page, *outputs) if path is not None]
    for path in files:
        check_file(path)
    if page is not None:  # only now: a folder such as "." has no suffix to replace
        files.append(page.with_suffix(".json"))
        check_file(files[-1])
    identities = [_identity(path) for path in (*files, records, *folders) if path is not None]
    if len(set(identities)) < len(identities):
        raise InputError("two outputs have the same path", hint=f"Choose different paths for {flags}.")
    check_no_overwrite([*files, records], inputs)
    for path in files:
        _check_not_in_inputs(path, inputs)
    for path in files:
        check_writable(path.parent)
    if records is not None:
        check_appendable(records)


def _identity(path: Path) -> object:
    """Return what is equal for all names of a file: links, also hard ones."""
    try:
        status = path.stat()
    except OSError:
        return resolve_path(path)
    return (status.st_dev, status.st_ino) if path.is_file() else resolve_path(path)


def _check_not_in_inputs(output: Path, inputs: Iterable[Path | str | None]) -> None:
    """Raise if an output would replace an image, or a part of a dataset or model, in a folder that is read."""
    from spurless.data.loaders.images import EXTENSIONS

    if not output.is_file():
        return
    for folder in (Path(one) for one in inputs if one is not None):
        if not folder.is_dir() or not resolve_path(output).is_relative_to(resolve_path(folder)):
            continue
        is_saved = any((folder / name).is_file() for name in (*HUGGING_FACE_FILES, "config.json"))
        if is_saved or output.suffix.lower() in EXTENSIONS:
            hint = "Choose another output path."
            raise InputError("this file of an input folder would be overwritten", where=output, hint=hint)


def tracking_folder(track: str | None) -> Path | None:
    """Return the folder in KIND:FOLDER."""
    folder = (track or "").partition(":")[2]
    return Path(folder) if folder else None


def check_appendable(path: Path) -> None:
    """Raise if records cannot be appended to a file, or if it contains something else; change nothing."""
    if not path.exists():
        check_writable(path.parent)
        return
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK))  # a pipe without a reader is an error
    except OSError as error:
        raise unwritable_error(path, error) from None
    if path.is_file():
        try:
            read_records(path, to_continue=True)
        except InputError as error:
            raise InputError(
                f"cannot append records to this file: {first_line(error)}", hint="Choose another path with --out."
            ) from None


def check_onnx_path(path: Path | None, weights: Path | None, seeds: int = 1, *, compact: bool = False) -> None:
    """Raise if the ONNX file cannot be written, or would overwrite the weights that are read."""
    if path is None:
        if compact:
            raise InputError("--compact needs --onnx", hint="Pass --onnx FILE too.")
        return
    from spurless.models.export import check_onnx_installed

    if seeds > 1:
        hint = "Leave --onnx out, and export the model of your choice: spurless eval WEIGHTS --onnx FILE."
        raise InputError("--onnx writes one file, but --seeds trains several models", hint=hint)
    check_onnx_installed()
    check_outputs([path], "--onnx", inputs=[weights])


def export_saved(
    path: Path, weights: Path, model: str, options: Mapping[str, Any], splits: Splits, seed: int, *, compact: bool
) -> Path:
    """Export saved weights as ONNX; ``model`` is the user's --model, whose custom code may be run."""
    from spurless.models import get_architecture
    from spurless.models.export import write_onnx

    is_custom = get_architecture(model).runs_user_code
    opened = open_model(weights, model if is_custom else None, options if is_custom else {}, splits, seed)
    return write_onnx(path, opened, splits.train.example(), compact=compact)


def save_run(path: Path, fitted: Fitted, *, has_initial_weights: bool) -> None:
    """Save the weights of a run, those before its repair, and mined examples.

    The weights come last: if they exist, the other files do too.
    """
    from spurless.data.mined import MinedExamples
    from spurless.models.weights import save_weights

    if fitted.start is not None and not has_initial_weights:
        save_weights(_sibling(path, START), fitted.start, seed=fitted.record.seed, data=fitted.record.data)
    if isinstance(mined := getattr(fitted.explanation, "mined", None), MinedExamples):
        mined.save(_sibling(path, MINED))
    save_weights(path, fitted.model, seed=fitted.record.seed, data=fitted.record.data)


def run_files(path: Path) -> tuple[Path, ...]:
    """Return the files that :func:`save_run` may write."""
    return path, _sibling(path, START), _sibling(path, MINED)


def _sibling(path: Path, ending: str) -> Path:
    return path.with_name(path.stem + ending)


def list_files(path: Path, onnx: Path | None) -> str:
    """Return the part of a sentence that lists the files next to the weights of a run."""
    start, mined = _sibling(path, START), _sibling(path, MINED)
    text = f", weights before the repair in {start}" if start.exists() else ""
    text += f", mined examples in {mined}" if mined.exists() else ""
    return text + (f", ONNX in {onnx}" if onnx is not None else "")


def find_record(path: Path, key: str) -> Record | None:
    """Return the record of a finished run, or None."""
    if not path.exists():
        return None
    return next((record for record in read_records(path, to_continue=True) if record.key == key), None)
