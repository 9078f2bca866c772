"""Sources: from what a user types after ``--data`` and ``--model`` to splits and a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spurless.core.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    from spurless.data.grouped import Splits
    from spurless.models.classifier import Classifier


@dataclass(frozen=True)
class Columns:
    """Which columns of a CSV hold what."""

    label: str | None = None
    attribute: str | None = None
    split: str | None = None
    features: str | None = None
    file: str | None = None
    root: Path | None = None


def open_data(source: str, options: Mapping[str, Any], columns: Columns, seed: int) -> Splits:
    """Open a dataset by name, or a user's own folder, CSV or npz file by path."""
    from spurless.data import DATASETS, load

    if source not in DATASETS:
        return _open_own(source, options, columns, seed)
    _refuse_columns(columns, source)
    if "name" in options:
        raise BadInput(f"dataset {source!r} has no option 'name'", do="Say which dataset with --data NAME.")
    return load(source, **{"seed": seed, **options})


def _open_own(source: str, options: Mapping[str, Any], columns: Columns, seed: int) -> Splits:
    from spurless.data import DATASETS, from_folder, from_npz

    path = Path(source)
    kind = "folder" if path.is_dir() else path.suffix.lower() if path.is_file() else ""
    if kind not in ("folder", ".npz", ".csv", ".tsv"):
        hint = did_you_mean(source, DATASETS)
        raise BadInput(
            f"{source!r} is no dataset's name, and no folder, CSV or npz file",
            do=f"{hint.strip()} Names: {', '.join(DATASETS)}.".strip(),
        )
    if unknown := sorted(set(options) - {"size"}):
        raise BadInput(f"own data have no option {unknown[0]!r}", expected="size (of the images, in pixels)")
    sized: dict[str, Any] = {"size": _whole(options, "size")} if "size" in options else {}
    if kind in (".csv", ".tsv"):
        return _open_csv(path, columns, seed, sized)
    _refuse_columns(columns, source)
    if kind == "folder":
        return from_folder(path, seed=seed, **sized)
    if sized:
        raise BadInput("an archive has no option 'size'", where=path, do="Its images have the size they have.")
    return from_npz(path, seed=seed)


def _refuse_columns(columns: Columns, source: str) -> None:
    if columns != Columns():
        raise BadInput(
            "--label, --attribute, --split, --features, --file and --root are for CSV files",
            got=f"--data {source}",
            do="Leave them out.",
        )


def _open_csv(path: Path, columns: Columns, seed: int, sized: dict[str, Any]) -> Splits:
    from spurless.data import from_csv

    if columns.label is None:
        raise BadInput("a CSV needs --label, the column that holds the class", where=path)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    return from_csv(
        path,
        label=columns.label,
        attribute=_names(columns.attribute),
        split=columns.split,
        features=_names(columns.features),
        file=columns.file,
        root=columns.root,
        seed=seed,
        delimiter=delimiter,
        **sized,
    )


def _names(text: str | None) -> tuple[str, ...] | None:
    """Split a list of columns at its commas."""
    return None if text is None else tuple(part.strip() for part in text.split(","))


def build_model(name: str, splits: Splits, seed: int, options: Mapping[str, Any]) -> Classifier:
    """Build a model for these data, with the options that a user gave."""
    from spurless.models import build

    for key in ("name", "data", "seed", "input_shape", "n_classes"):
        if key in options:
            raise BadInput(f"{name} has no option {key!r}", do="It follows from --model, --data and --seed.")
    return build(name, splits, seed=seed, **options)


def _whole(options: Mapping[str, Any], key: str) -> int:
    try:
        return int(options[key])
    except (TypeError, ValueError):
        raise BadInput(f"option {key!r} must be a whole number", got=options[key]) from None
