"""Open the data and the model that the options of a command name."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spurless.cli.console import progress_bar
from spurless.cli.params import Columns, DataParams
from spurless.cli.weights import check_encoder_on_disk, check_option_names, find_encoder
from spurless.core.config import read_toml
from spurless.core.errors import InputError, SpurlessWarning, did_you_mean
from spurless.core.progress import progress_to

if TYPE_CHECKING:
    from spurless.data.split import Splits

HUGGING_FACE_FILES = ("dataset_dict.json", "dataset_info.json")  # which save_to_disk writes
DIFFERENT_SIZES = "the images differ in size"  # error of the loaders


def read_config(path: Path | None, *more: str) -> dict[str, dict[str, Any]]:
    """Read the sections [data], [model], [method], [train] and ``more`` of a TOML file."""
    known = ("data", "model", "method", "train", *more)
    content = read_toml(path) if path is not None else {}
    for name, section in content.items():
        if name not in known or not isinstance(section, dict):
            raise InputError(
                f"[{name}] is not a known section", where=path, expected=", ".join(f"[{word}]" for word in known)
            )
    return {name: content.get(name, {}) for name in known}


def open_dataset(
    data: DataParams,
    seed: int,
    model: str | None = None,
    weights: Path | None = None,
    quiet: bool = False,
    defaults: Mapping[str, Any] | None = None,
    held_out: bool = False,
) -> Splits:
    """Open the dataset of a command.

    ``model`` or ``weights`` choose the tokenizer of texts; the weights also the channels and size of images, and the
    order of the classes. If ``held_out``, data without splits stay whole, unless the weights were trained on them.
    """
    from spurless.data import DATASETS

    options = add_tokenizer({**(defaults or {}), **data.options}, data.columns, model, weights)
    if data.data in DATASETS or weights is None or not weights.is_file():
        held_out = held_out and data.data not in DATASETS
        return open_data(data.data, options, data.columns, seed, quiet, held_out=held_out)
    from spurless.models.weights import find_image_format, read_weights_info
    from spurless.models.zoo.normalize import find_preprocessing

    info, columns = read_weights_info(weights), data.columns
    channels, size = find_image_format(weights)
    columns = replace(columns, channels=columns.channels or channels)
    held_out = held_out and not _is_trained_on(info, Path(data.data))
    try:
        splits = open_data(data.data, options, columns, seed, quiet, held_out=held_out)
    except InputError as error:
        known = find_preprocessing(model or "", weights)
        size = size or (None if known is None else known.size)
        if error.what != DIFFERENT_SIZES or size is None:
            raise
        warnings.warn(f"The images differ in size. They are resized to {size}, as for the model.", SpurlessWarning, 2)
        splits = open_data(data.data, options, replace(columns, size=size), seed, quiet, held_out=held_out)
    return _order_as_trained(info, splits, columns)


def _is_trained_on(info: Mapping[str, Any], source: Path) -> bool:
    """Return whether weights were trained on data of this name, of which a part would not be held out."""
    if isinstance(info.get("data"), str):
        return Path(info["data"].partition(" ")[2]).name == source.resolve().name
    return isinstance(info.get("seed"), int)  # older files do not name their data


def _order_as_trained(info: Mapping[str, Any], splits: Splits, columns: Columns) -> Splits:
    """Number the classes as in training, if the names of training contain those of the data."""
    from spurless.data.splitting import order_classes

    trained = info.get("labels")
    if columns.classes is not None or not isinstance(trained, list) or not {*splits.groups.labels} <= {*trained}:
        return splits
    return splits if [*splits.groups.labels] == trained else order_classes(splits, trained)


def open_data(
    source: str,
    options: Mapping[str, Any],
    columns: Columns,
    seed: int,
    quiet: bool = False,
    lazy: bool = False,
    held_out: bool = False,
) -> Splits:
    """Open a dataset by name, or the user's folder, CSV or npz file by path.

    If ``lazy``, many images are read only when they are used. If ``held_out``, data without splits are not split.
    """
    from spurless.data import DATASETS, load

    is_first_rank = os.environ.get("LOCAL_RANK", "0") == "0"  # only one of several processes shows progress
    with progress_bar(quiet or not is_first_rank) as bar, progress_to(bar):
        if source not in DATASETS:
            reading = {"stream": True, "cache": False} if lazy else {}
            return _open_path(source, options, columns, seed, {**reading, "held_out": held_out})
        cache = {"cache": False} if lazy and "cache" in vars(DATASETS[source].config()) else {}
        return load(source, **{"seed": seed, **cache, **resolve_named_options(source, options, columns)})


def open_quietly(columns: Columns, model: str | None, source: str, options: Mapping[str, Any], seed: int) -> Splits:
    """Open data without a progress bar; a module-level function, so that other processes can import it."""
    return open_data(source, add_tokenizer(dict(options), columns, model), columns, seed, quiet=True)


def resolve_named_options(source: str, options: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """Return the options of a named dataset, with ``--root`` among them; raise if a flag does not apply to it."""
    from spurless.data import DATASETS

    _check_no_columns(replace(columns, root=None), source)
    check_option_names("dataset", source, options, "Choose the dataset with --data NAME.")
    if columns.root is None:
        return dict(options)
    if DATASETS[source].layout is None:
        raise InputError(f"dataset {source!r} needs no files", got=f"--root {columns.root}", hint="Leave --root out.")
    return {**options, "root": str(columns.root)}


def describe_files(source: str, splits: Splits) -> dict[str, Any]:
    """Return the files that data were read from: ``found`` their names, ``place`` their folder or file."""
    from spurless.core.files import data_folder, resolve_path
    from spurless.data import DATASETS
    from spurless.data.prepare import find_files

    if source not in DATASETS:
        return {"found": [], "place": str(Path(source).resolve())}
    layout, root = DATASETS[source].layout, splits.options.get("root")
    if layout is None:
        return {"found": [], "place": None}
    try:
        files = find_files(source, layout, root)
    except InputError:  # the dataset has its own rules for finding files
        return {"found": [], "place": str(resolve_path(data_folder(root)))}
    return {"found": list(files.present), "place": str(files.folder.resolve())}


def _open_path(source: str, options: Mapping[str, Any], columns: Columns, seed: int, reading: dict[str, Any]) -> Splits:
    from spurless.data import DATASETS, from_folder, from_npz

    path = Path(source)
    kind = "folder" if path.is_dir() else path.suffix.lower() if path.is_file() else ""
    if kind not in ("folder", ".npz", ".csv", ".tsv"):
        hint = f"{did_you_mean(source, DATASETS)} See the names: spurless ls datasets".strip()
        raise InputError(f"{source!r} is neither the name of a dataset nor a folder, CSV or npz file", hint=hint)
    is_hugging_face = kind == "folder" and any((path / name).is_file() for name in HUGGING_FACE_FILES)
    if columns.text is not None and is_hugging_face:
        return _open_huggingface(path, columns, seed, {**_text_options(options), "held_out": reading["held_out"]})
    if kind in (".csv", ".tsv"):
        return _open_csv(path, columns, seed, options, reading)
    sized = _size_options(options, columns, "size (of the images, in pixels)")
    columns = replace(columns, size=None)
    if kind == "folder":
        if is_hugging_face:
            reading.pop("cache", None)
            return _open_huggingface(path, columns, seed, {**sized, **reading})
        others = replace(columns, skip_bad=False, channels=None, classes=None)
        _check_no_columns(others, source)
        return from_folder(path, seed=seed, skip_bad=columns.skip_bad, **sized, **_read_as(columns), **reading)
    if sized:
        raise InputError("an npz archive has no option 'size'", where=path, hint="Resize the images in the archive.")
    _check_no_columns(replace(columns, channels=None), source)
    return from_npz(path, seed=seed, held_out=reading["held_out"])


def _read_as(columns: Columns) -> dict[str, Any]:
    """Return the channels and the order of the classes, if they are given."""
    options = {"channels": columns.channels, "classes": split_columns(columns.classes)}
    return {key: value for key, value in options.items() if value is not None}


def _open_huggingface(path: Path, columns: Columns, seed: int, reading: dict[str, Any]) -> Splits:
    """Open a folder that ``save_to_disk`` of Hugging Face's datasets wrote, with its splits."""
    from spurless.data import from_huggingface

    columns = replace(columns, channels=None)  # those of the images
    if columns != Columns(columns.label, columns.attribute, file=columns.file, text=columns.text):
        text = "a Hugging Face dataset takes only --label, --attribute, and --file or --text for images or texts"
        raise InputError(text, where=path, hint="Leave the other columns out; the dataset has its own splits.")
    return from_huggingface(
        path,
        image=columns.file,
        text=split_columns(columns.text),
        label=columns.label or "label",
        attribute=split_columns(columns.attribute),
        seed=seed,
        **reading,
    )


def _check_no_columns(columns: Columns, source: str) -> None:
    """Raise if column options are given for data that have no columns."""
    if columns.skip_bad:
        raise InputError("--skip-bad is for class folders and CSV files of images", got=f"--data {source}")
    if columns != Columns():
        text = "--label, --attribute, --split, --features, --file, --text and --root are for CSV files"
        if columns == Columns(classes=columns.classes, channels=columns.channels, size=columns.size):
            text = "--classes, --channels and --size are for folders and CSV files"
        raise InputError(text, got=f"--data {source}", hint="Leave them out.")


def _open_csv(path: Path, columns: Columns, seed: int, options: Mapping[str, Any], reading: dict[str, Any]) -> Splits:
    from spurless.data import from_csv

    others = {key: value for key, value in options.items() if key != "delimiter"}
    if columns.text is not None:
        reading = {**_text_options(others), "held_out": reading["held_out"]}
    else:
        reading = {**_size_options(others, columns, "size (of the images, in pixels) or delimiter"), **reading}
    if columns.label is None:
        raise InputError("a CSV needs --label, the column of the class", where=path)
    return from_csv(
        path,
        label=columns.label,
        attribute=split_columns(columns.attribute),
        split=columns.split,
        features=split_columns(columns.features),
        file=columns.file,
        text=split_columns(columns.text),
        root=columns.root,
        seed=seed,
        delimiter=_delimiter(path, options),
        skip_bad=columns.skip_bad,
        **_read_as(columns),
        **reading,
    )


def _delimiter(path: Path, options: Mapping[str, Any]) -> str:
    """Return the delimiter of the option, else that of the file's suffix."""
    if "delimiter" not in options:
        return "\t" if path.suffix.lower() == ".tsv" else ","
    text = str(options["delimiter"])
    character = "\t" if text in ("tab", "\\t") else text
    if len(character) != 1 or character in '"\r\n':
        raise InputError("option 'delimiter' must be one character", expected="such as ; or tab", got=repr(text))
    return character


def _size_options(options: Mapping[str, Any], columns: Columns, known: str) -> dict[str, Any]:
    if columns.size is not None:
        options = {"size": columns.size, **options}
    if unknown := sorted(set(options) - {"size"}):
        raise InputError(f"these data have no option {unknown[0]!r}", expected=known)
    return {"size": _to_int(options, "size")} if "size" in options else {}


def _text_options(options: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := sorted(set(options) - {"tokenizer", "max_length"}):
        raise InputError(f"these texts have no option {unknown[0]!r}", expected="tokenizer, max_length or delimiter")
    length = {"max_length": _to_int(options, "max_length")} if "max_length" in options else {}
    return {**({"tokenizer": str(options["tokenizer"])} if "tokenizer" in options else {}), **length}


def _to_int(options: Mapping[str, Any], key: str) -> int:
    try:
        return int(options[key])
    except (TypeError, ValueError):
        raise InputError(f"option {key!r} must be a whole number", got=options[key]) from None


def split_columns(text: str | None) -> tuple[str, ...] | None:
    """Split a list of columns at its commas."""
    return None if text is None else tuple(part.strip() for part in text.split(","))


def add_tokenizer(
    options: dict[str, Any], columns: Columns, model: str | None, weights: Path | None = None
) -> dict[str, Any]:
    """Add the tokenizer of the model to the options of the user's texts, unless they have one."""
    if columns.text is None:
        return options
    from spurless.models.weights import read_weights_info

    is_named_by_file = model is None and weights is not None and not weights.is_dir()
    if model is None and weights is not None:
        model = f"hf:{weights}" if weights.is_dir() else str(read_weights_info(weights).get("name"))
    member = find_encoder(model or "")
    if member is None or "tokenizer" in options:
        return options
    if is_named_by_file:
        check_encoder_on_disk(member, "AutoTokenizer", "tokenizer")
    return {"tokenizer": member, **options}
