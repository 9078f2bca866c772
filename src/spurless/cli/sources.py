"""Sources: from what a user types after ``--data`` and ``--model`` to splits and a model."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spurless.cli.console import progress_bar
from spurless.core.errors import BadInput, Incomplete, did_you_mean
from spurless.core.progress import listening

if TYPE_CHECKING:
    from spurless.data.grouped import Splits
    from spurless.models.classifier import Classifier


HUGGING_FACE = ("dataset_dict.json", "dataset_info.json")
"""What lies in a folder that ``save_to_disk`` wrote."""


SIZES = ("width", "hidden", "depth", "channels", "vocabulary")
"""Options of models that count something."""


@dataclass(frozen=True)
class Columns:
    """Which columns of a CSV hold what, where the files of it or of a named dataset lie, and which are left out."""

    label: str | None = None
    attribute: str | None = None
    split: str | None = None
    features: str | None = None
    file: str | None = None
    root: Path | None = None
    text: str | None = None
    skip_bad: bool = False


def open_data(
    source: str, options: Mapping[str, Any], columns: Columns, seed: int, quiet: bool = False, lazy: bool = False
) -> Splits:
    """Open a dataset by name, or a user's own folder, CSV or npz file by path.

    Args:
        source: the name or the path.
        options: of the dataset, as a user types them.
        columns: of a CSV.
        seed: of a dataset that is drawn, and of splits that are cut.
        quiet: draw no progress bar.
        lazy: leave images where they are until they are looked at, if they are many: whoever counts labels
            needs none.
    """
    from spurless.data import DATASETS, load

    alone = os.environ.get("LOCAL_RANK", "0") == "0"  # of several processes that train together one draws
    with progress_bar(quiet or not alone) as bar, listening(bar):
        if source not in DATASETS:
            return _open_own(source, options, columns, seed, {"stream": True, "cache": False} if lazy else {})
        kept = {"cache": False} if lazy and "cache" in vars(DATASETS[source].config()) else {}
        return load(source, **{"seed": seed, **kept, **named_options(source, options, columns)})


def open_quietly(columns: Columns, source: str, options: Mapping[str, Any], seed: int) -> Splits:
    """Open data without a progress bar: for runs of which many are made, by other processes too, which find it here."""
    return open_data(source, options, columns, seed, quiet=True)


def named_options(source: str, options: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """Return the options of a named dataset, with ``--root`` among them; flags that it has not are refused."""
    from spurless.data import DATASETS

    _refuse_columns(replace(columns, root=None), source)
    if "name" in options:
        raise BadInput(f"dataset {source!r} has no option 'name'", do="Say which dataset with --data NAME.")
    if columns.root is None:
        return dict(options)
    if DATASETS[source].layout is None:
        raise BadInput(f"dataset {source!r} needs no files", got=f"--root {columns.root}", do="Leave --root out.")
    return {**options, "root": str(columns.root)}


@contextmanager
def noting_what_is_missing() -> Iterator[list[str]]:
    """Collect what loaders say of data that are not whole, in place of a warning; other warnings go on."""
    found: list[str] = []
    usual = warnings.showwarning

    def show(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, Incomplete):
            found.append(str(message))
        else:
            usual(message, category, *place, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("always", Incomplete)
        warnings.showwarning = show
        yield found


def files_read(source: str, splits: Splits) -> dict[str, Any]:
    """Say which files data were read from: what the layout calls them, and the folder or file where they lie."""
    from spurless.core.places import data_folder
    from spurless.data import DATASETS
    from spurless.data.preparing import files_of

    if source not in DATASETS:
        return {"found": [], "place": str(Path(source).resolve())}
    layout, root = DATASETS[source].layout, splits.options.get("root")
    if layout is None:
        return {"found": [], "place": None}
    try:
        files = files_of(source, layout, root)
    except BadInput:  # found by rules of its own
        return {"found": [], "place": str(data_folder(root).resolve())}
    return {"found": list(files.found), "place": str(files.folder.resolve())}


def _open_own(source: str, options: Mapping[str, Any], columns: Columns, seed: int, reading: dict[str, Any]) -> Splits:
    from spurless.data import DATASETS, from_folder

    path = Path(source)
    kind = "folder" if path.is_dir() else path.suffix.lower() if path.is_file() else ""
    if kind not in ("folder", ".npz", ".csv", ".tsv"):
        raise BadInput(
            f"{source!r} is no dataset's name, and no folder, CSV or npz file",
            do=f"{did_you_mean(source, DATASETS)} See the names: spurless ls datasets".strip(),
        )
    hub = kind == "folder" and any((path / name).is_file() for name in HUGGING_FACE)
    if columns.text is not None and hub:
        return _open_huggingface(path, columns, seed, _text_options(options))
    if kind in (".csv", ".tsv"):
        return _open_csv(path, columns, seed, options, reading)
    sized = _size_options(options, "size (of the images, in pixels)")
    if kind == "folder":
        if hub:
            return _open_huggingface(path, columns, seed, {**sized, "stream": reading.get("stream")})
        _refuse_columns(replace(columns, skip_bad=False), source)
        return from_folder(path, seed=seed, skip_bad=columns.skip_bad, **sized, **reading)
    return _open_npz(path, columns, seed, sized, reading)


def _open_huggingface(path: Path, columns: Columns, seed: int, reading: dict[str, Any]) -> Splits:
    """Open a folder that ``save_to_disk`` of Hugging Face's datasets wrote; it knows its own splits."""
    from spurless.data import from_huggingface

    if columns != Columns(columns.label, columns.attribute, file=columns.file, text=columns.text):
        raise BadInput(
            "a dataset of Hugging Face is read by --label, --attribute, and --file or --text, its images or texts",
            where=path,
            do="Leave other columns out: it knows its own splits.",
        )
    return from_huggingface(
        path,
        image=columns.file,
        text=columns_named(columns.text),
        label=columns.label or "label",
        attribute=columns_named(columns.attribute),
        seed=seed,
        **reading,
    )


def _open_npz(path: Path, columns: Columns, seed: int, sized: dict[str, Any], reading: dict[str, Any]) -> Splits:
    """Open an archive of arrays, or a pack of images, whose columns have names."""
    from spurless.data import from_npz
    from spurless.data.pack import from_pack, is_pack

    if is_pack(path):
        _refuse_columns(replace(columns, label=None, attribute=None, split=None), str(path))
        attribute = columns_named(columns.attribute)
        return from_pack(
            path, label=columns.label, attribute=attribute, split=columns.split, seed=seed, **sized, **reading
        )
    _refuse_columns(columns, str(path))
    if sized:
        raise BadInput("an archive has no option 'size'", where=path, do="Its images have the size they have.")
    return from_npz(path, seed=seed)


def _refuse_columns(columns: Columns, source: str) -> None:
    if columns.skip_bad:
        raise BadInput("--skip-bad is for own folders and CSV files of images", got=f"--data {source}")
    if columns != Columns():
        raise BadInput(
            "--label, --attribute, --split, --features, --file, --text and --root are for CSV files",
            got=f"--data {source}",
            do="Leave them out.",
        )


def _open_csv(path: Path, columns: Columns, seed: int, options: Mapping[str, Any], reading: dict[str, Any]) -> Splits:
    from spurless.data import from_csv

    others = {key: value for key, value in options.items() if key != "delimiter"}
    if columns.text is not None:
        reading = _text_options(others)
    else:
        reading = {**_size_options(others, "size (of the images, in pixels) or delimiter"), **reading}
    if columns.label is None:
        raise BadInput("a CSV needs --label, the column that holds the class", where=path)
    return from_csv(
        path,
        label=columns.label,
        attribute=columns_named(columns.attribute),
        split=columns.split,
        features=columns_named(columns.features),
        file=columns.file,
        text=columns_named(columns.text),
        root=columns.root,
        seed=seed,
        delimiter=_delimiter(path, options),
        skip_bad=columns.skip_bad,
        **reading,
    )


def _delimiter(path: Path, options: Mapping[str, Any]) -> str:
    """Return what stands between cells: what a user says, else what the name of the file does."""
    if "delimiter" not in options:
        return "\t" if path.suffix.lower() == ".tsv" else ","
    said = str(options["delimiter"])
    character = "\t" if said in ("tab", "\\t") else said
    if len(character) != 1 or character in '"\r\n':
        raise BadInput("option 'delimiter' must be one character", expected="such as ; or tab", got=repr(said))
    return character


def _size_options(options: Mapping[str, Any], known: str) -> dict[str, Any]:
    if unknown := sorted(set(options) - {"size"}):
        raise BadInput(f"own data have no option {unknown[0]!r}", expected=known)
    return {"size": _whole(options, "size")} if "size" in options else {}


def _text_options(options: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := sorted(set(options) - {"tokenizer", "max_length"}):
        raise BadInput(f"own texts have no option {unknown[0]!r}", expected="tokenizer, max_length or delimiter")
    length = {"max_length": _whole(options, "max_length")} if "max_length" in options else {}
    return {**({"tokenizer": str(options["tokenizer"])} if "tokenizer" in options else {}), **length}


def columns_named(text: str | None) -> tuple[str, ...] | None:
    """Split a list of columns at its commas."""
    return None if text is None else tuple(part.strip() for part in text.split(","))


def build_model(name: str, splits: Splits, seed: int, options: Mapping[str, Any]) -> Classifier:
    """Build a model for these data, with the options that a user gave."""
    from spurless.models import build

    for key in ("name", "data", "seed", "input_shape", "n_classes"):
        if key in options:
            raise BadInput(f"{name} has no option {key!r}", do="It follows from --model, --data and --seed.")
    if ":" not in name:  # what others are given is for them to judge
        _check_sizes(name, options)
    return build(name, splits, seed=seed, **options)


def _check_sizes(name: str, options: Mapping[str, Any]) -> None:
    """Refuse a net without width: what it fails with would blame the inputs."""
    for key in SIZES:
        numbers = re.findall(r"-?\d+", str(options.get(key, "")))
        if any(int(number) < 1 for number in numbers):
            raise BadInput(f"option {key!r} of {name} is too small", expected="1 or more", got=options[key])


def _whole(options: Mapping[str, Any], key: str) -> int:
    try:
        return int(options[key])
    except (TypeError, ValueError):
        raise BadInput(f"option {key!r} must be a whole number", got=options[key]) from None
