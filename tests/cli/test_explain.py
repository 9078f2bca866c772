"""``spurless explain``: one page with the maps of the weights that were given, and one line where there can be none."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable
from html import unescape
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spurless.cli.weights import open_model
from spurless.data import from_npz, load
from spurless.explain import all_maps
from spurless.explain.pictures import chosen
from spurless.explain.tiles import GAP, HEADING
from spurless.methods.masktune import MaskTuneConfig, hot
from spurless.metrics.spuriousness import spuriousness
from spurless.models import build
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
    said = cli("explain", weights[1], *DIGITS, "--count", 4)
    assert (said.status, said.err) == (0, "")
    assert said.out.strip() == str((here / "maps.html").resolve())
    page = (here / "maps.html").read_text()
    (picture,) = pictures(page)
    assert picture.shape[0] == HEADING + 4 * STEP
    assert picture.shape[1] < 3 * 112
    assert len(numbers(page)) == 4
    assert "http://" not in page.partition("<script")[0]
    assert "4 of the 500 test examples of patched-digits" in page


def test_before_and_after_show_what_changed_first(cli: Cli, here: Path, weights: tuple[Path, Path]) -> None:
    early, late = weights
    said = cli("explain", early, "--before", late, *DIGITS, "--count", 8, "--out", "deep/m.html", "--part", "train")
    assert (said.status, said.err) == (0, "")
    page = (here / "deep" / "m.html").read_text()
    sheets = pictures(page)
    assert [len(sheet) for sheet in sheets] == [HEADING + n * STEP for n in (6, 2)]
    splits = load("patched-digits", seed=0)
    before, after = (open_model(path, None, {}, splits, 0) for path in (late, early))
    index = chosen(before, after, splits.train, 8)
    assert numbers(page) == index.tolist()


@pytest.mark.parametrize("count", [3, 50])
def test_what_masktune_would_hide_is_dark_and_nothing_else(
    cli: Cli, here: Path, weights: tuple[Path, Path], count: int
) -> None:
    images = np.random.default_rng(0).integers(1, 256, (20, 3, 28, 28)).astype("uint8")  # no pixel is black
    split = np.array(["train"] * 10 + ["val"] * 5 + ["test"] * 5)
    np.savez(here / "own.npz", x=images, y=np.arange(20) % 2, split=split)
    own = ("--data", "own.npz", "--device", "cpu", "--count", count)
    said = cli("explain", weights[1], "--before", weights[0], *own)
    assert said.status == 0, said.err
    page = (here / "maps.html").read_text()
    index = numbers(page)
    assert len(index) == min(5, count)
    splits = from_npz(here / "own.npz")
    before = open_model(weights[0], None, {}, splits, 0)
    masks = hot(all_maps(before, splits.test.select(torch.tensor(index)), how="auto"), MaskTuneConfig()).numpy()
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
    refused(r"no images, so there is no picture to draw \(.*got rows of", "explain", late, "--data", "planted")
    refused(r"small-cnn has no layer 'layre'", "explain", late, *DIGITS, "--layer", "layre")
    refused(r"none\.safetensors: no such file", "explain", "none.safetensors", *DIGITS)
    refused(r"no such file", "explain", late, "--before", "none.safetensors", *DIGITS)
    refused(r"do not fit|has no option|wrong shape", "explain", late, *DIGITS, "--model", "resnet20")
    assert not (here / "maps.html").exists()


def test_help_teaches(cli: Cli) -> None:
    said = cli("explain", "--help")
    assert said.status == 0
    for words in ("--before", "--layer", "spurless explain tuned.safetensors --before erm.safetensors", "maps.html"):
        assert words in " ".join(said.out.split())


def test_neurons_are_shown_label_by_label(cli: Cli, here: Path, weights: tuple[Path, Path]) -> None:
    said = cli("explain", weights[0], *DIGITS, "--neurons", "--part", "val", "--count", 2)
    assert (said.status, said.err) == (0, "")
    page = unescape((here / "maps.html").read_text())
    data = load("patched-digits", seed=0)
    model = open_model(weights[0], None, {}, data, 0)
    assert isinstance(data.val.x, torch.Tensor)
    with torch.no_grad():
        features = torch.cat([model.eval().features(data.val.prepare(x)) for x in torch.split(data.val.x, 100)])
    scores = spuriousness(features, data.val.y, model.head(features).argmax(dim=1), 2)
    for label, name in enumerate(data.groups.labels):
        if label in scores.skipped:
            assert f"nothing but mistakes, with the label {name}" in page
        else:
            top = int(scores.delta[label].argmax())
            assert f"Neurons and the label {name}" in page
            assert re.search(rf"Feature {top}, suppressed: score", page)


def test_rows_of_features_have_neurons_and_no_maps(cli: Cli, here: Path) -> None:
    data = load("planted", n_train=200, n_val=200, n_test=200, seed=0)
    save_weights(here / "rows.safetensors", build("linear", data, seed=1))
    sizes = ("-D", "n_train=200", "-D", "n_val=200", "-D", "n_test=200")
    said = cli("explain", "rows.safetensors", "--data", "planted", *sizes, "--neurons", "--device", "cpu")
    assert said.status == 0
    page = (here / "maps.html").read_text()
    assert "Neurons and the label" in page
    assert "<img" not in page.partition("<script")[0]
