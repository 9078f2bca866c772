"""The maps of a sweep: weights that are kept, and a page that shows what two of them look at."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision

Cli = Callable[..., Any]
DIGITS = (
    "sweep", "--over", "lr=0.01,0.1", "--data", "double-digits", "-D", "size=14", "--model", "mlp", "-O", "width=16",
    "--device", "cpu", "--steps", "40", "--seeds", "1", "--out", "all", "--quiet",
)  # fmt: skip


def test_a_page_shows_both_ends(cli: Cli, here: Path) -> None:
    said = cli(*DIGITS, "--maps", 3)
    assert (said.status, said.err) == (0, "")
    assert said.out.splitlines()[-1] == "maps in all/maps.html"
    page = (here / "all" / "maps.html").read_text()
    assert "lr=0.01 and lr=0.1, seed 0." in page
    assert "% spurious" in page
    names = sorted(path.name.rpartition("-")[0] for path in (here / "all" / "weights").iterdir())
    assert names == ["lr=0.01-seed0", "lr=0.1-seed0"]
    told = json.loads(cli(*DIGITS, "--maps", 3, "--json").out)
    assert told["maps"] == "all/maps.html"
    assert len((here / "all" / "records.jsonl").read_text().splitlines()) == 2  # nothing was run again


def test_weights_are_kept_where_they_are_wanted(cli: Cli, here: Path) -> None:
    assert cli(*DIGITS, "--keep", "mine").status == 0
    assert len(list((here / "mine").glob("*.safetensors"))) == 2
    assert not (here / "all" / "maps.html").exists()
    low = next((here / "mine").glob("lr=0.01*"))
    high = next((here / "mine").glob("lr=0.1-*"))
    words = ("--data", "double-digits", "-D", "size=14", "--device", "cpu", "--count", "2", "--quiet")
    assert cli("explain", high, "--before", low, *words).status == 0  # they say what they are


def test_maps_that_cannot_be_drawn_are_refused_after_the_table(cli: Cli) -> None:
    said = cli(*DIGITS, "--over", "momentum=0.9", "--maps", 1)
    assert said.status == 0
    one = cli(*(word.replace("0.1", "1e30") for word in DIGITS), "--maps", 1, "--keep", "other")
    assert one.status == 2
    assert "lr=1e+30" in one.out  # it diverged
    assert len(list(Path("other").iterdir())) == 1  # where it was said, though maps are asked for
    assert "there are no two values to compare: of seed 0, 1 runs count and 1 have weights" in " ".join(one.err.split())
    alone = cli(*(word.replace("0.01,", "") for word in DIGITS), "--maps", 1, "--keep", "none")
    assert (alone.status, alone.out, Path("none").exists()) == (2, "", False)
    assert "--maps shows the lowest value beside the highest, and there is one" in alone.err
    lone = cli(*DIGITS, "--backgrounds", "net.pth")
    assert (lone.status, lone.out) == (2, "")
    assert "--backgrounds is told on the page of maps, and there is none" in lone.err
    gone = cli(*DIGITS, "--maps", 1, "--backgrounds", "net.pth")
    assert (gone.status, gone.out) == (2, "")
    assert "net.pth: no such file" in gone.err
    (where := Path("file")).touch()
    refused = cli(*DIGITS, "--keep", where)
    assert refused.status == 2
    assert "cannot write here" in refused.err


def test_of_photographs_the_page_tells_the_background(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spurless.explain.compared.SHARED", 3)
    torch.manual_seed(0)
    make: Any = torchvision.models.get_model
    net = make("deeplabv3_mobilenet_v3_large", weights=None, weights_backbone=None)
    torch.save(net.state_dict(), here / "net.pth")
    words = [word.replace("double-digits", "colored-digits") for word in DIGITS]
    said = cli(*words, "--maps", 2, "--backgrounds", "net.pth")
    assert (said.status, said.err) == (0, "")
    page = (here / "all" / "maps.html").read_text()
    assert re.search("% background|object and background told apart", page)  # it was asked; random, it may see nothing
