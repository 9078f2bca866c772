"""Subnetworks at the door: a page from what ``spurless fit dcwp`` saved, with the right record; else one line."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spurless.cli.subnetworks import record_of
from spurless.cli.weights import open_model
from spurless.core.records import Record, append, read
from spurless.data import from_npz, load
from spurless.models import build
from spurless.models.counting import layer_sparsity
from spurless.models.weights import save_weights

Cli = Callable[..., Any]
Refused = Callable[..., None]
SIZES = {"n_train": 200, "n_val": 60, "n_test": 60}
PLANTED = ("--data", "planted", *(word for key, value in SIZES.items() for word in ("-D", f"{key}={value}")))
CPU = ("--device", "cpu", "--quiet")
DIGITS = ("--data", "colored-digits", "-D", "size=16", "--device", "cpu")
OPTIONS = {"prune_steps": 20, "prune_lr": 0.2, "steps": 5, "batch_size": 32}


@pytest.fixture
def saved(cli: Cli, here: Path) -> tuple[Path, Path]:
    """What a short run of DCWP leaves: the weights, and those before."""
    words = [word for key, value in OPTIONS.items() for word in ("-M", f"{key}={value}")]
    said = cli("fit", "dcwp", *PLANTED, "--model", "mlp", "--preset", "digits", "--steps", 20, *words, *CPU)
    assert said.status == 0, said.err
    (start,) = (here / "runs").glob("*-start.safetensors")
    return start.with_name(start.name.replace("-start", "")), start


def charts(page: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)
    assert found
    return list(json.loads(found[1]).values())


def test_a_page_is_made_from_what_fit_saved(cli: Cli, here: Path, saved: tuple[Path, Path]) -> None:
    weights, start = saved
    asked = ("explain", weights, "--before", start, *PLANTED, "--subnetwork", *CPU)
    said = cli(*asked)
    assert (said.status, said.err) == (0, "")
    page = (here / "maps.html").read_text()
    titles = re.findall(r"<h2[^>]*><bdi>(.*?)</bdi>", page)
    told = ["Representations", "Accuracy against sparsity", "Layer-wise sparsity", "Mined examples"]
    assert titles == told
    assert "of 60 of 60 examples" in page
    assert "The pruned model is rebuilt" in page
    splits = load("planted", **SIZES, seed=0)
    layers = layer_sparsity(open_model(weights, None, {}, splits, 0))
    *_, accuracy, bars = charts(page)
    assert bars["data"][0]["x"][:-1] == pytest.approx([100 * share for share in layers.values()])
    (record,) = read(weights.with_name("records.jsonl"))
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
    (record,) = read(path)
    mined = {"stage": "mined", "found": "gce <b>chose</b> 3 of 9 examples."}
    history = tuple(mined if row["stage"] == "mined" else row for row in record.history)
    path.write_text(replace(record, history=history).to_json() + "\n")
    said = cli("explain", weights, "--before", start, *PLANTED, "--subnetwork", *CPU)
    assert said.status == 0, said.err
    page = (here / "maps.html").read_text()
    assert "<b>chose" not in page
    assert "gce <b>chose</b> 3 of 9 examples." in unescape(page)


def a_record(key: str, layers: Any, stage: str = "subnetwork") -> Record:
    row = {"stage": stage, "sparsity": 0.5, "layers": layers}
    empty: dict[str, Any] = {}
    return Record("dcwp", 0, empty, empty, empty, empty, {}, "last", (), {}, {}, history=(row,), key=key)


def test_the_record_is_found_by_its_zeros_and_of_twins_by_its_key(here: Path) -> None:
    layers, path = {"a.weight": 0.5, "b.weight": 0.25}, here / "records.jsonl"
    assert record_of(here / "x.safetensors", layers, None) is None  # there is no such file
    for key, each in (("1" * 32, layers), ("2" * 32, {**layers, "b.weight": 0.3}), ("3" * 32, layers), ("", layers)):
        append(path, a_record(key, each))
    append(path, a_record("4" * 32, layers, stage="prune"))
    append(path, a_record("5" * 32, "torn"))
    found = {name: record_of(here / f"{name}.safetensors", layers, None) for name in ("mine", "dcwp-33333333")}
    assert {name: record.key if record else None for name, record in found.items()} == {
        "mine": "1" * 32,
        "dcwp-33333333": "3" * 32,
    }
    assert record_of(here / "dcwp-22222222.safetensors", {"a.weight": 0.5}, None) is None


def test_what_cannot_be_shown_is_said_in_one_line(refused: Refused, here: Path) -> None:
    data = load("colored-digits", size=16, seed=0)
    for name, model in (("whole", "pooled-cnn"), ("other", "mlp")):
        save_weights(here / f"{name}.safetensors", build(model, data))
    cut = build("pooled-cnn", data)
    with torch.no_grad():
        cut.head.get_parameter("weight")[0] = 0.0
    save_weights(here / "cut.safetensors", cut)
    small = ("--count", 1, "--quiet")
    one = (*DIGITS, "--subnetwork", *small)
    refused(r"--subnetwork shows what was pruned since.*Pass --before", "explain", "cut.safetensors", *one)
    words = ("--before", "whole.safetensors")
    refused(r"--records says how.*Pass --subnetwork", "explain", "cut.safetensors", *DIGITS, *words, "--records", "r")
    refused(r"no weight of pooled-cnn is zero", "explain", "whole.safetensors", *words, *one)
    refused(r"not of one kind.*got those of mlp", "explain", "cut.safetensors", "--before", "other.safetensors", *one)
    refused(r"none\.jsonl: no such file", "explain", "cut.safetensors", *words, *one, "--records", "none.jsonl")
    append(here / "own.jsonl", a_record("1" * 32, {"head.weight": 0.5}))
    refused(
        r"own\.jsonl: no record is of cut\.safetensors.*Leave --records out",
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
    said = cli(*asked, "--count", 2, *CPU)
    assert said.status == 0, said.err
    page = (here / "maps.html").read_text()
    titles = re.findall(r"<h2[^>]*><bdi>(.*?)</bdi>", page)
    assert titles == ["Before and after", "Representations", "Layer-wise sparsity"]
    assert "20 of 20 examples" in page
    by_label, bars = charts(page)  # there are no attributes
    assert len(by_label["data"]) == 3 * 10
    assert bars["data"][0]["x"][1] == pytest.approx(100 * 3 / 16)
    assert "BatchNorm statistics are the pretrained ones" in page
