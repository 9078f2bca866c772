"""Bad data: a file, row, column or key that cannot be used is one sentence that names it, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Refused = Callable[..., None]
Write = Callable[..., Path]


def fit_words(path: Path, model: str = "mlp") -> tuple[object, ...]:
    words = ("fit", "erm", "--data", path, "--model", model, "--steps", 5, "--device", "cpu")
    return (*words, "--label", "y", "--attribute", "place", "--split", "split") if path.suffix == ".csv" else words


@pytest.mark.parametrize("path", ["gone.csv", "gone.npz", "gone/"])
def test_missing_file_is_refused(refused: Refused, path: str) -> None:
    refused(rf"'{path}' is neither the name of a dataset", "fit", "erm", "--data", path)


@pytest.mark.parametrize("flag", ["--label", "--attribute", "--split"])
def test_missing_column_is_refused_with_the_nearest_one(refused: Refused, csv: Write, flag: str) -> None:
    right = {"--label": "y", "--attribute": "place", "--split": "split"}
    wrong = {"--label": "x", "--attribute": "plaice", "--split": "splits"}[flag]
    words = [word for name, column in right.items() for word in (name, wrong if name == flag else column)]
    near = "" if flag == "--label" else rf"Did you mean '{right[flag]}'\? "
    match = rf"own\.csv: no column is called '{wrong}'\. .*{near}Columns: x1, x2, y, place, split"
    refused(match, "fit", "erm", "--data", csv(), "--model", "mlp", *words)


def test_csv_without_a_label_column_is_refused(refused: Refused, csv: Write) -> None:
    refused(r"own\.csv: a CSV needs --label", "fit", "erm", "--data", csv(), "--model", "mlp")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({(4, "split"): "trian"}, r"own\.csv, row 4: .*'trian'"),
        ({(4, "split"): "3"}, r"own\.csv, row 4: .*3"),
        ({(5, "y"): ""}, r"own\.csv, row 5: the label is empty"),
        ({(6, "x2"): "nan"}, r"own\.csv, row 6, column 'x2': 'nan' is not a finite number"),
        ({(6, "x2"): "inf"}, r"own\.csv, row 6, column 'x2': 'inf' is not a finite number"),
        ({(6, "x1"): ""}, r"own\.csv, row 6, column 'x1': the feature is empty"),
        ({(7, "x1"): "1,2"}, r"own\.csv, row 7: .*expected 5, got 6"),
        ({(row, "y"): "cat" for row in range(2, 62)}, r"one class only|at least 2 classes|at least two classes"),
        ({(row, "split"): "test" for row in range(2, 62)}, r"own\.csv.*train"),
    ],
    ids=["split", "split-number", "label", "nan", "inf", "empty", "cells", "one-class", "empty-split"],
)
def test_bad_cell_is_refused(refused: Refused, csv: Write, changes: dict[tuple[int, str], str], match: str) -> None:
    refused(match, *fit_words(csv(changes)))


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"y": np.arange(60) % 2 - 1}, r"own\.npz.*label"),
        ({"y": np.arange(60) % 2 + 0.5}, r"the labels must be integers \(got 0\.5\)"),
        ({"y": np.zeros(60, dtype=int)}, r"own\.npz.*one class only|at least"),
        ({"y": None}, r"own\.npz: the archive has no key 'y'"),
        ({"y": np.arange(59) % 2}, r"own\.npz.*59|60.*59"),
        ({"x": np.full((60, 4), np.nan, dtype="float32")}, r"own\.npz.*60 examples .*NaN .*first is example 0"),
        (
            {"x": np.array([{}] * 60, dtype=object)},
            r"own\.npz: the array 'x' contains Python objects, which are never loaded",
        ),
        ({"split": np.full(60, 7)}, r"split of example 0: the split '7' is unknown"),
        ({"split": np.full(60, 2)}, r"own\.npz.*train"),
        ({"x": np.zeros((0, 4), dtype="float32"), "y": np.zeros(0, dtype=int), "a": None}, r"own\.npz.*no examples"),
    ],
    ids=["negative", "fraction", "one-class", "no-labels", "short", "nan", "pickle", "split", "no-train", "empty"],
)
def test_bad_array_is_refused(refused: Refused, npz: Write, arrays: dict[str, Any], match: str) -> None:
    refused(match, *fit_words(npz(**arrays)))


def test_splits_of_different_shape_are_refused(refused: Refused, npz: Write) -> None:
    arrays = {"x_train": np.zeros((20, 4), dtype="float32"), "y_train": np.arange(20) % 2}
    path = npz(x=None, y=None, a=None, **arrays, x_test=np.zeros((9, 5), dtype="float32"), y_test=np.arange(9) % 2)
    refused(r"own\.npz: the splits differ in the shape.*train.*\(4,\).*test.*\(5,\)", *fit_words(path))


def test_file_that_is_no_archive_is_refused(refused: Refused, here: Path) -> None:
    (here / "own.npz").write_text("x")
    refused(r"own\.npz: the file is not an npz archive", *fit_words(here / "own.npz"))


@pytest.mark.parametrize("model", ["small-cnn", "torchvision:resnet18", "resnet20"])
def test_image_model_on_two_features_is_refused(refused: Refused, csv: Write, model: str) -> None:
    refused(rf"{model}.*\(2,\)", *fit_words(csv(), model))


@pytest.mark.parametrize(("streamed", "workers"), [(False, 0), (True, 0), (True, 2)])
@pytest.mark.parametrize("kind", ["folder", "csv"])
@pytest.mark.parametrize("damage", ["truncated", "text"])
def test_corrupt_image_is_refused(
    refused: Refused,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
    kind: str,
    workers: int,
    streamed: bool,
) -> None:
    from spurless.data.loaders import images

    if streamed:
        monkeypatch.setattr(images, "read_or_stream", lambda source, **_: source)
    bad = folder / "light" / "7.png"
    bad.write_bytes(bad.read_bytes()[:45] if damage == "truncated" else b"no picture")
    words: tuple[object, ...] = (folder,)
    if kind == "csv":
        lines = [f"{path.relative_to(folder)},{path.parent.name}" for path in sorted(folder.rglob("*.png"))]
        (folder.parent / "meta.csv").write_text("\n".join(["file,y", *lines]))
        words = ("meta.csv", "--label", "y", "--root", folder)
    settings = ("--model", "mlp", "--epochs", 1, "--batch-size", 8, "--workers", workers, "--device", "cpu")
    refused(r"light/7\.png: the image cannot be read", "fit", "erm", "--data", *words, *settings)


@pytest.mark.parametrize("kind", ["up", "absolute", "link", "linked folder", "missing"])
def test_path_that_leaves_its_root_is_refused(refused: Refused, folder: Path, kind: str) -> None:
    outside = folder.parent / "secret.png"
    outside.write_bytes((folder / "dark" / "0.png").read_bytes())
    (folder / "link.png").symlink_to(outside)
    (folder / "up").symlink_to(folder.parent)
    name = {
        "up": "dark/../../secret.png",
        "absolute": str(outside),
        "link": "link.png",
        "linked folder": "up/secret.png",
        "missing": "dark/none.png",
    }[kind]
    (folder.parent / "meta.csv").write_text(f"file,y\ndark/0.png,dark\nlight/0.png,light\n{name},dark\n")
    match = (
        r"meta\.csv, row 4: no such image file"
        if kind == "missing"
        else r"meta\.csv, row 4: the path .* leaves the root folder"
    )
    refused(match, "fit", "erm", "--data", "meta.csv", "--label", "y", "--root", folder, "--model", "mlp")


def test_images_of_different_size_are_refused_with_a_remedy(refused: Refused, folder: Path) -> None:
    from PIL import Image

    Image.new("RGB", (9, 8)).save(folder / "light" / "7.png")
    refused(r"light/7\.png: the images differ in size \(expected 8x8 .*got 9x8\)", "fit", "erm", "--data", folder)


def test_columns_of_a_folder_or_an_archive_are_refused(refused: Refused, folder: Path, npz: Write) -> None:
    for path in (folder, npz()):
        refused(rf"are for CSV files \(got --data {path}\)", "fit", "erm", "--data", path, "--label", "y")
    refused(r"own\.npz: an npz archive has no option 'size'", "fit", "erm", "--data", "own.npz", "-D", "size=3")


@pytest.mark.parametrize("option", ["size=big", "size=0", "colour=1"])
def test_bad_option_of_own_data_is_refused(refused: Refused, folder: Path, option: str) -> None:
    match = {
        "size=big": r"option 'size' must be a whole number \(got big\)",
        "size=0": r"the size of an image must be at least 1 \(got 0\)",
        "colour=1": r"data have no option 'colour' \(expected size",
    }[option]
    refused(match, "fit", "erm", "--data", folder, "-D", option)


def test_method_that_needs_attributes_names_others_where_there_are_none(refused: Refused, csv: Write) -> None:
    columns = ("--label", "y", "--split", "split", "--features", "x1,x2")
    words = ("--data", csv(), *columns, "--model", "mlp", "--steps", 5)
    for method in ("group-dro", "dfr"):
        refused(rf"{method} needs the attribute a .*erm.*jtt", "fit", method, *words)
    match = r"val-worst-group needs the attribute a "
    refused(match, "fit", "erm", *words, "--select", "val-worst-group")
