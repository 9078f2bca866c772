"""What a run leaves is called by its weights, and a run that is recorded is found by its key."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spurless as sp
from spurless.cli.outputs import check_outputs, find_record, list_files, save_run
from spurless.core.errors import InputError
from spurless.core.records import append_record
from spurless.models.weights import read_weights_info

TRAIN = {"epochs": 5, "batch_size": 20, "lr": 0.1}


def test_a_repair_leaves_what_it_began_with_and_says_so(tmp_path: Path) -> None:
    data = sp.load("planted", n_train=200, n_val=100, n_test=100, seed=3)
    fitted = sp.fit("dfr", sp.build("linear", data), data, seed=3, train=TRAIN)
    place, records = tmp_path / "dfr.safetensors", tmp_path / "records.jsonl"
    save_run(place, fitted, has_initial_weights=False)
    assert list_files(place, None) == f", weights before the repair in {tmp_path / 'dfr-start.safetensors'}"
    assert list_files(tmp_path / "other.safetensors", Path("m.onnx")) == ", ONNX in m.onnx"
    assert read_weights_info(place)["seed"] == read_weights_info(tmp_path / "dfr-start.safetensors")["seed"] == 3
    assert find_record(records, fitted.record.key) is None
    append_record(records, fitted.record)
    found = find_record(records, fitted.record.key)
    assert found is not None
    assert found.metrics["average"] == fitted.record.metrics["average"]
    assert find_record(records, "another") is None


@pytest.fixture
def weights(here: Path) -> Path:
    data = sp.load("planted", n_train=60, n_val=20, n_test=20)
    sp.save_weights(here / "w.safetensors", sp.build("linear", data))
    (here / "sub").mkdir()
    (here / "link").symlink_to("sub")
    return here / "w.safetensors"


PLANTED = ("--data", "planted", "-D", "n_train=60", "-D", "n_val=20", "-D", "n_test=20")
SAME = [
    ("sub/x", "sub/x"),
    ("sub/x", "./sub/../sub/x"),
    ("sub/x", "link/x"),
]


@pytest.mark.parametrize(("one", "two"), SAME)
@pytest.mark.parametrize(
    "words",
    [
        ("eval", "w.safetensors", "--onnx", "ONE", "--predictions", "TWO"),
        ("eval", "w.safetensors", "--onnx", "ONE", "--out", "TWO"),
        ("eval", "w.safetensors", "--predictions", "ONE", "--out", "TWO"),
        ("audit", "w.safetensors", "--out", "ONE", "--export", "TWO"),
        ("audit", "w.safetensors", "--out", "ONE.html", "--export", "TWO.json"),
        ("fix", "w.safetensors", "--save", "ONE", "--onnx", "TWO"),
        ("fix", "w.safetensors", "--save", "ONE", "--records", "TWO"),
        ("fit", "erm", "--out", "ONE", "--onnx", "TWO/records.jsonl"),
        ("fit", "erm", "--out", "ONE", "--track", "csv:TWO/records.jsonl"),
        ("sweep", "--over", "lr=0.1", "--out", "ONE", "--keep", "TWO/records.jsonl"),
        ("sweep", "--over", "lr=0.1", "--out", "ONE", "--track", "csv:TWO/records.jsonl"),
    ],
    ids=lambda words: " ".join((words[0], *words[2::2])),
)
def test_two_outputs_of_one_name_are_refused(
    words: tuple[str, ...], one: str, two: str, weights: Path, refused: Callable[..., None], monkeypatch: Any
) -> None:
    monkeypatch.setattr("spurless.models.export.check_onnx_installed", lambda: None)
    named = (word.replace("ONE", one).replace("TWO", two) for word in words)
    model = ("--model", "linear") if words[0] in ("fit", "sweep") else ()
    refused("two outputs have the same path|cannot write here", *named, *PLANTED, *model)
    assert not list((weights.parent / "sub").rglob("*.*"))


def test_two_outputs_of_one_file_with_two_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    with pytest.raises(InputError, match="two outputs have the same path"):
        check_outputs([tmp_path / "a", tmp_path / "b"], "--x")


@pytest.mark.parametrize("flag", ["--onnx", "--predictions", "--out"])
def test_an_output_of_eval_is_not_an_input(
    flag: str, weights: Path, refused: Callable[..., None], monkeypatch: Any
) -> None:
    monkeypatch.setattr("spurless.models.export.check_onnx_installed", lambda: None)
    before = weights.read_bytes()
    refused("would be overwritten", "eval", weights, *PLANTED, flag, "link/../w.safetensors")
    assert weights.read_bytes() == before


def test_onnx_of_fit_is_not_one_of_its_files(
    here: Path, cli: Callable[..., Any], csv: Callable[..., Path], refused: Callable[..., None], monkeypatch: Any
) -> None:
    monkeypatch.setattr("spurless.models.export.check_onnx_installed", lambda: None)
    data = ("--data", csv(), "--label", "y", "--features", "x1,x2")
    fit = ("fit", "erm", *data, "--model", "linear", "--steps", 2, "--device", "cpu")
    assert cli(*fit).status == 0
    (weights,) = (here / "runs").glob("*.safetensors")
    shutil.rmtree(here / "runs")
    for path in (weights, weights.with_name(f"{weights.stem}-start.safetensors"), Path("own.csv")):
        refused("same path|would be overwritten", *fit, "--onnx", path)
    (here / "plan.toml").write_text("")
    refused("would be overwritten", *fit, "--config", "plan.toml", "--onnx", "plan.toml")


def test_images_and_saved_models_in_input_folders_are_not_overwritten(
    weights: Path, folder: Path, refused: Callable[..., None]
) -> None:
    image = next(folder.rglob("*.png"))
    before = image.read_bytes()
    refused("file of an input folder", "eval", weights, "--data", folder, "--predictions", image)
    refused("file of an input folder", "data", "show", folder, "--out", image)
    refused("file of an input folder", "audit", weights, "--data", folder, "--out", image)
    assert image.read_bytes() == before
    model = folder.parent / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    with pytest.raises(InputError, match="file of an input folder"):
        check_outputs([model / "config.json"], "--out", inputs=[model])
    (folder / "audit.html").write_text("of an earlier run")
    check_outputs([folder / "audit.html", model / "new.json"], "--out", inputs=[folder, model])
    assert [path.name for path in model.iterdir()] == ["config.json"]


def test_records_next_to_the_weights_are_not_replaced_by_a_page(weights: Path, refused: Callable[..., None]) -> None:
    (weights.parent / "records.jsonl").touch()
    refused("would be overwritten", "explain", weights, *PLANTED, "--out", "records.jsonl")
    (weights.parent / "plan.toml").write_text('methods = ["erm"]\ndatasets = ["planted"]\n')
    (weights.parent / "runs2").mkdir()
    (weights.parent / "runs2" / "records.jsonl").symlink_to("../plan.toml")
    refused("would be overwritten|cannot append", "bench", "plan.toml", "--out", "runs2")
