"""Every file that a command writes has the mode that the user's umask gives to new files."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from spurless.cli import main
from spurless.core.cache import RowStore, cached_tensors
from spurless.data import from_folder
from spurless.data.mined import MinedExamples
from spurless.train.checkpoint import Checkpoints

DATA = ("--data", "planted", "-D", "n_train=120", "-D", "n_val=60", "-D", "n_test=60")


@pytest.fixture(params=[0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def folder(tmp_path: Path, umask: int) -> Path:
    """A folder that is made under the umask."""
    (tmp_path / "own").mkdir()
    assert umask in (0o022, 0o077)
    return tmp_path / "own"


@pytest.fixture
def call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Call ``spurless`` in the folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SPURLESS_CACHE", str(folder / "cache"))

    def run(*words: object) -> None:
        monkeypatch.setattr(sys, "argv", ["spurless", *map(str, words)])
        with pytest.raises(SystemExit) as leaving:
            main()
        assert leaving.value.code == 0, words

    return run


def zeros(start: int) -> Generator[Tensor]:
    yield torch.zeros(4 - start, 2)


def check_modes(folder: Path, umask: int, suffixes: set[str]) -> None:
    """Check all files and folders, and that files with these suffixes are among them."""
    paths = list(folder.rglob("*"))
    assert suffixes <= {path.suffix for path in paths}
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == (0o777 if path.is_dir() else 0o666) & ~umask, path


@pytest.mark.slow
def test_files_of_commands(
    call: Callable[..., None], folder: Path, umask: int, capfd: pytest.CaptureFixture[str]
) -> None:
    call("fit", "dfr", *DATA, "--model", "linear", "--steps", 5, "--device", "cpu", "--track", "csv")
    (weights,) = (path for path in (folder / "runs").glob("*.safetensors") if "start" not in path.name)
    call("eval", weights, *DATA, "--predictions", "p.csv", "--out", "new.jsonl")
    call("audit", weights, *DATA, "--permutations", 9, "--only", "group-gap", "--export", "suspects.csv")
    call("fix", weights, *DATA, "--method", "dfr", "--records", "fixed.jsonl")
    call("report", "runs", "--out", "report.html")
    call("data", "show", "patched-digits", "--out", "sheet.html")
    call("sweep", *DATA, "--model", "linear", "--over", "lr=0.1", "--seeds", 1, "--steps", 2, "--keep", "kept")
    capfd.readouterr()
    check_modes(folder, umask, {".safetensors", ".jsonl", ".csv", ".html", ".json"})


def test_files_of_caches_and_the_library(folder: Path, umask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPURLESS_CACHE", str(folder / "cache"))
    cached_tensors("0" * 24, lambda: {"x": torch.zeros(2)})
    RowStore(folder / "rows", "1" * 24, 4).compute(zeros, always_write=True)
    for i in range(12):
        path = folder / "pictures" / ("cat", "dog")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)
    from_folder(folder / "pictures", cache=True, seed=0)
    Checkpoints(folder / "points", "key").save("train", {"x": torch.zeros(1)})
    MinedExamples(torch.rand(2), torch.tensor([True, False]), "gce", "").save(folder / "mined.npz")
    check_modes(folder, umask, {".safetensors", ".rows", ".key", ".pt", ".npz"})
