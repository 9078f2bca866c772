"""``spurless explain``: pages of heat maps, features and subnetworks."""

from __future__ import annotations

import json
import re
import shutil
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spurless.cli.explain import find_weights_record
from spurless.cli.weights import open_model
from spurless.core.records import Record, append_record, read_records
from spurless.data import from_npz, load
from spurless.explain import compute_heat_maps
from spurless.explain.overlays import GAP, HEADING, choose_examples
from spurless.methods.masktune import MaskTuneConfig, above_threshold
from spurless.metrics.spuriousness import spuriousness
from spurless.models import build
from spurless.models.pruning.size import layer_sparsity
from spurless.models.weights import save_weights

Cli = Callable[..., Any]
Refused = Callable[..., None]
STEP = 112 + GAP
DIGITS = ("--data", "patched-digits", "--device", "cpu")


@pytest.fixture
def weights(here: Path) -> tuple[Path, Path]:
    """Two nets for patched digits, which differ."""
    data = load("patched-digits", seed=0)
    early, late = here / "early.safetensors", here / "late.safetensors"
    for seed, path in enumerate((early, late)):
        save_weights(path, build("small-cnn", data, seed=seed))
    return early, late


def pictures(page: str) -> list[np.ndarray]:
    return [
        np.asarray(Image.open(BytesIO(b64decode(found)))) for found in re.findall(r"image/png;base64,([^\"]+)", page)
    ]


def numbers(page: str) -> list[int]:
    return [int(found) for found in re.findall(r"^(?:.*</strong>)?(\d+): label", unescape(page), re.MULTILINE)]


def test_one_file_of_weights_gives_images_and_maps(cli: Cli, here: Path, weights: tuple[Path, Path]) -> None:
    result = cli("explain", weights[1], *DIGITS, "--count", 4)
    assert (result.status, result.err) == (0, "")
    assert result.out.strip() == str((here / "maps.html").resolve())
    page = (here / "maps.html").read_text()
    (picture,) = pictures(page)
    assert picture.shape[0] == HEADING + 4 * STEP
    assert picture.shape[1] < 3 * 112
    assert len(numbers(page)) == 4
    assert "http://" not in page.partition("<script")[0]
    assert "4 of the 500 test examples of patched-digits" in page


def test_before_and_after_show_what_changed_first(cli: Cli, here: Path, weights: tuple[Path, Path]) -> None:
    early, late = weights
    result = cli("explain", early, "--before", late, *DIGITS, "--count", 8, "--out", "deep/m.html", "--part", "train")
    assert (result.status, result.err) == (0, "")
    page = (here / "deep" / "m.html").read_text()
    sheets = pictures(page)
    assert [len(sheet) for sheet in sheets] == [HEADING + n * STEP for n in (6, 2)]
    splits = load("patched-digits", seed=0)
    before, after = (open_model(path, None, {}, splits, 0) for path in (late, early))
    index = choose_examples(before, after, splits.train, 8)
    assert numbers(page) == index.tolist()


@pytest.mark.parametrize("count", [3, 50])
def test_what_masktune_would_hide_is_dark_and_nothing_else(
    cli: Cli, here: Path, weights: tuple[Path, Path], count: int
) -> None:
    images = np.random.default_rng(0).integers(1, 256, (20, 3, 28, 28)).astype("uint8")  # no pixel is black
    split = np.array(["train"] * 10 + ["val"] * 5 + ["test"] * 5)
    np.savez(here / "own.npz", x=images, y=np.arange(20) % 2, split=split)
    own = ("--data", "own.npz", "--device", "cpu", "--count", count)
    result = cli("explain", weights[1], "--before", weights[0], *own)
    assert result.status == 0, result.err
    page = (here / "maps.html").read_text()
    index = numbers(page)
    assert len(index) == min(5, count)
    splits = from_npz(here / "own.npz")
    before = open_model(weights[0], None, {}, splits, 0)
    masks = above_threshold(
        compute_heat_maps(before, splits.test.select(torch.tensor(index)), how="auto"), MaskTuneConfig()
    ).numpy()
    assert masks.any(axis=(1, 2)).sum() > 1
    (sheet,) = pictures(page)
    left = sheet.shape[1] - 4 * STEP
    for row, mask in enumerate(masks):
        image, hidden = (sheet[HEADING + row * STEP :, left + c * STEP :][:112:4, :112:4] for c in (0, 2))
        assert ((hidden == 0).all(axis=2) == mask).all()
        assert (hidden[~mask] == image[~mask]).all()
        assert (image == images[15 + index[row]].transpose(1, 2, 0)).all()


def test_an_explainer_that_is_named_draws_other_maps(cli: Cli, here: Path, weights: tuple[Path, Path]) -> None:
    drawn = []
    for how in ("auto", "xgradcam", "input-gradient"):
        assert cli("explain", weights[1], *DIGITS, "--count", 2, "--how", how).status == 0
        drawn.append(pictures((here / "maps.html").read_text())[0])
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[1] != drawn[2]).any()


def test_what_cannot_be_drawn_is_said_in_one_line(refused: Refused, weights: tuple[Path, Path], here: Path) -> None:
    late = weights[1]
    refused(r"No explainer is called 'gradcm'. Did you mean 'gradcam'\?", "explain", late, *DIGITS, "--how", "gradcm")
    refused(r"No split is called 'tset'. Did you mean 'test'\?", "explain", late, *DIGITS, "--part", "tset")
    refused(r"not images, so they cannot be drawn \(.*got rows of", "explain", late, "--data", "planted")
    refused(r"small-cnn has no layer 'layre'", "explain", late, *DIGITS, "--layer", "layre")
    refused(r"none\.safetensors: no such file", "explain", "none.safetensors", *DIGITS)
    refused(r"no such file", "explain", late, "--before", "none.safetensors", *DIGITS)
    refused(r"do not fit|has no option|wrong shape", "explain", late, *DIGITS, "--model", "resnet20")
    assert not (here / "maps.html").exists()


def test_help_teaches(cli: Cli) -> None:
    result = cli("explain", "--help")
    assert result.status == 0
    for words in ("--before", "--layer", "spurless explain tuned.safetensors --before erm.safetensors", "maps.html"):
        assert words in " ".join(result.out.split())


def test_neurons_are_shown_label_by_label(cli: Cli, here: Path, weights: tuple[Path, Path]) -> None:
    result = cli("explain", weights[0], *DIGITS, "--neurons", "--part", "val", "--count", 2)
    assert (result.status, result.err) == (0, "")
    page = unescape((here / "maps.html").read_text())
    data = load("patched-digits", seed=0)
    model = open_model(weights[0], None, {}, data, 0)
    assert isinstance(data.val.x, torch.Tensor)
    with torch.no_grad():
        features = torch.cat([model.eval().features(data.val.prepare(x)) for x in torch.split(data.val.x, 100)])
    scores = spuriousness(features, data.val.y, model.head(features).argmax(dim=1), 2)
    for label, name in enumerate(data.groups.labels):
        if label in scores.skipped:
            assert f"All predictions with the label {name}" in page
        else:
            top = int(scores.delta[label].argmax())
            assert f"Neurons and the label {name}" in page
            assert re.search(rf"Feature {top}, suppressed: score", page)


def test_rows_of_features_have_neurons_and_no_maps(cli: Cli, here: Path) -> None:
    data = load("planted", n_train=200, n_val=200, n_test=200, seed=0)
    save_weights(here / "rows.safetensors", build("linear", data, seed=1))
    sizes = ("-D", "n_train=200", "-D", "n_val=200", "-D", "n_test=200")
    result = cli("explain", "rows.safetensors", "--data", "planted", *sizes, "--neurons", "--device", "cpu")
    assert result.status == 0
    page = (here / "maps.html").read_text()
    assert "Neurons and the label" in page
    assert "<img" not in page.partition("<script")[0]


SIZES = {"n_train": 200, "n_val": 60, "n_test": 60}
PLANTED = ("--data", "planted", *(word for key, value in SIZES.items() for word in ("-D", f"{key}={value}")))
CPU = ("--device", "cpu", "--quiet")
PRUNED_DIGITS = ("--data", "colored-digits", "-D", "size=16", "--device", "cpu")
OPTIONS = {"prune_steps": 20, "prune_lr": 0.2, "steps": 5, "batch_size": 32}


@pytest.fixture
def saved(cli: Cli, here: Path) -> tuple[Path, Path]:
    """What a short run of DCWP leaves: the weights, and those before."""
    words = [word for key, value in OPTIONS.items() for word in ("-M", f"{key}={value}")]
    result = cli("fit", "dcwp", *PLANTED, "--model", "mlp", "--preset", "digits", "--steps", 20, *words, *CPU)
    assert result.status == 0, result.err
    (start,) = (here / "runs").glob("*-start.safetensors")
    return start.with_name(start.name.replace("-start", "")), start


def charts(page: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)
    assert found
    return list(json.loads(found[1]).values())


@pytest.mark.slow
def test_a_page_is_made_from_what_fit_saved(cli: Cli, here: Path, saved: tuple[Path, Path]) -> None:
    weights, start = saved
    asked = ("explain", weights, "--before", start, *PLANTED, "--subnetwork", *CPU)
    result = cli(*asked)
    assert (result.status, result.err) == (0, "")
    page = (here / "maps.html").read_text()
    titles = re.findall(r"<h2[^>]*><bdi>(.*?)</bdi>", page)
    facts = ["Representations", "Accuracy against sparsity", "Layer-wise sparsity", "Mined examples"]
    assert titles == facts
    assert "of 60 of 60 examples" in page
    assert "The pruned model is rebuilt" in page
    splits = load("planted", **SIZES, seed=0)
    layers = layer_sparsity(open_model(weights, None, {}, splits, 0))
    *_, accuracy, bars = charts(page)
    assert bars["data"][0]["x"][:-1] == pytest.approx([100 * share for share in layers.values()])
    (record,) = read_records(weights.with_name("records.jsonl"))
    looks = [row for row in record.history if row["stage"] == "prune"]
    for line, part in zip(accuracy["data"], ("mined", "others"), strict=True):
        assert line["y"] == pytest.approx([100 * row[part] for row in looks])
        assert line["x"] == pytest.approx([100 * row["sparsity"] for row in looks])
    (mined,) = (row["found"] for row in record.history if row["stage"] == "mined")
    assert f"gce chose {mined.split()[2]} of" in page
    # moved elsewhere, there is no record beside them, but one can be named
    (here / "else").mkdir()
    for path in saved:
        shutil.copy(path, here / "else" / path.name.replace("dcwp", "mine"))
    moved = here / "else" / weights.name.replace("dcwp", "mine")
    before = moved.with_name(f"{moved.stem}-start.safetensors")
    asked = ("explain", moved, "--before", before, *PLANTED, "--subnetwork", *CPU)
    assert cli(*asked).status == 0
    assert "Accuracy against sparsity" not in (here / "maps.html").read_text()
    assert cli(*asked, "--records", here / "runs" / "records.jsonl").status == 0
    assert "Accuracy against sparsity" in (here / "maps.html").read_text()


def test_what_a_record_says_stays_text(cli: Cli, here: Path, saved: tuple[Path, Path]) -> None:
    weights, start = saved
    path = weights.with_name("records.jsonl")
    (record,) = read_records(path)
    mined = {"stage": "mined", "found": "gce <b>chose</b> 3 of 9 examples."}
    history = tuple(mined if row["stage"] == "mined" else row for row in record.history)
    path.write_text(replace(record, history=history).to_json() + "\n")
    result = cli("explain", weights, "--before", start, *PLANTED, "--subnetwork", *CPU)
    assert result.status == 0, result.err
    page = (here / "maps.html").read_text()
    assert "<b>chose" not in page
    assert "gce <b>chose</b> 3 of 9 examples." in unescape(page)


def a_record(key: str, layers: Any, stage: str = "subnetwork") -> Record:
    row = {"stage": stage, "sparsity": 0.5, "layers": layers}
    empty: dict[str, Any] = {}
    return Record("dcwp", 0, empty, empty, empty, empty, {}, "last", (), {}, {}, history=(row,), key=key)


def test_the_record_is_found_by_its_zeros_and_of_twins_by_its_key(here: Path) -> None:
    layers, path = {"a.weight": 0.5, "b.weight": 0.25}, here / "records.jsonl"
    assert find_weights_record(here / "x.safetensors", layers, None) is None  # there is no such file
    for key, each in (("1" * 32, layers), ("2" * 32, {**layers, "b.weight": 0.3}), ("3" * 32, layers), ("", layers)):
        append_record(path, a_record(key, each))
    append_record(path, a_record("4" * 32, layers, stage="prune"))
    append_record(path, a_record("5" * 32, "torn"))
    found = {
        name: find_weights_record(here / f"{name}.safetensors", layers, None) for name in ("mine", "dcwp-33333333")
    }
    assert {name: record.key if record else None for name, record in found.items()} == {
        "mine": "1" * 32,
        "dcwp-33333333": "3" * 32,
    }
    assert find_weights_record(here / "dcwp-22222222.safetensors", {"a.weight": 0.5}, None) is None


def test_what_cannot_be_shown_is_said_in_one_line(refused: Refused, here: Path) -> None:
    data = load("colored-digits", size=16, seed=0)
    for name, model in (("whole", "pooled-cnn"), ("other", "mlp")):
        save_weights(here / f"{name}.safetensors", build(model, data))
    cut = build("pooled-cnn", data)
    with torch.no_grad():
        cut.head.get_parameter("weight")[0] = 0.0
    save_weights(here / "cut.safetensors", cut)
    small = ("--count", 1, "--quiet")
    one = (*PRUNED_DIGITS, "--subnetwork", *small)
    refused(r"--subnetwork needs --before.*Pass --before", "explain", "cut.safetensors", *one)
    words = ("--before", "whole.safetensors")
    refused(r"--records needs --subnetwork", "explain", "cut.safetensors", *PRUNED_DIGITS, *words, "--records", "r")
    refused(r"no weight of pooled-cnn is zero", "explain", "whole.safetensors", *words, *one)
    refused(r"different layers.*got those of mlp", "explain", "cut.safetensors", "--before", "other.safetensors", *one)
    refused(r"none\.jsonl: no such file", "explain", "cut.safetensors", *words, *one, "--records", "none.jsonl")
    append_record(here / "own.jsonl", a_record("1" * 32, {"head.weight": 0.5}))
    refused(
        r"own\.jsonl: no record belongs to cut\.safetensors.*Leave --records out",
        *("explain", "cut.safetensors", *words, *one, "--records", "own.jsonl"),
    )
    assert not (here / "maps.html").exists()


def test_images_have_their_maps_too(cli: Cli, here: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 3, 16, 16)).astype("uint8")
    split = np.array(["train"] * 30 + ["val"] * 10 + ["test"] * 20)
    np.savez(here / "own.npz", x=images, y=np.arange(60) % 10, split=split)
    splits = from_npz(here / "own.npz")
    start, cut = build("pooled-cnn", splits, channels="8,16"), build("pooled-cnn", splits, channels="8,16")
    with torch.no_grad():
        cut.backbone.get_parameter("conv2.weight")[:3] = 0.0
    save_weights(here / "start.safetensors", start)
    save_weights(here / "cut.safetensors", cut)
    asked = ("explain", "cut.safetensors", "--before", "start.safetensors", "--data", "own.npz", "--subnetwork")
    result = cli(*asked, "--count", 2, *CPU)
    assert result.status == 0, result.err
    page = (here / "maps.html").read_text()
    titles = re.findall(r"<h2[^>]*><bdi>(.*?)</bdi>", page)
    assert titles == ["Before and after", "Representations", "Layer-wise sparsity"]
    assert "20 of 20 examples" in page
    by_label, bars = charts(page)  # there are no attributes
    assert len(by_label["data"]) == 3 * 10
    assert bars["data"][0]["x"][1] == pytest.approx(100 * 3 / 16)
    assert "BatchNorm statistics are the pretrained ones" in page
