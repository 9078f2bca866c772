"""The command line called in-process, in a private folder, and small files of own data to give it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from spurless.cli import main

TINY = (
    "--data",
    "planted",
    "-D",
    "n_train=200",
    "-D",
    "n_val=60",
    "-D",
    "n_test=60",
    "--model",
    "mlp",
    "--device",
    "cpu",
)


@dataclass(frozen=True)
class Result:
    """What a command result, and how it left."""

    status: int
    out: str
    err: str

    def records(self, path: Path) -> list[dict[str, Any]]:
        """Return the records of a file, as plain rows."""
        assert self.status == 0, self.err
        return [json.loads(line) for line in path.read_text().splitlines()]


Cli = Callable[..., Result]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private working folder, cache and terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return tmp_path


@pytest.fixture
def cli(here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Call ``spurless`` with these arguments."""
    assert here.is_dir()

    def call(*words: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["spurless", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as leaving:
            main()
        out, err = capfd.readouterr()
        status = leaving.value.code
        return Result(status if isinstance(status, int) else -1, out, err)

    return call


@pytest.fixture
def tiny_fit(cli: Cli) -> Cli:
    """Call ``spurless fit`` on a small planted dataset."""
    return lambda method, *words: cli("fit", method, *TINY, "--steps", 5, *words)


@pytest.fixture
def refused(cli: Cli, here: Path) -> Callable[..., None]:
    """Call ``spurless`` and check that it fails: status 2, one line that matches, no files written."""
    import re

    def call(match: str, *words: object) -> None:
        result = cli(*words)
        assert result.status == 2, result
        assert result.out == ""
        assert "Traceback" not in result.err
        (line,) = result.err.splitlines()
        assert line.startswith("spurless: ")
        assert re.search(match, line), line
        assert not left_over(here / "runs")

    return call


def left_over(folder: Path) -> list[Path]:
    """Return every file under a folder: records, weights, checkpoints, scratch files."""
    return [path for path in folder.rglob("*") if not path.is_dir()]


@pytest.fixture
def csv(here: Path) -> Callable[..., Path]:
    """Write a table of 60 rows and two features, of which some cells may be changed as ``{(row, column): text}``."""

    def write(changes: dict[tuple[int, str], str] | None = None, name: str = "own.csv", **columns: list[str]) -> Path:
        rows = 60
        table: dict[str, list[str]] = {
            "x1": [f"{i % 7 - 3}" for i in range(rows)],
            "x2": [f"{(i % 2) * 2 - 1 + i / 100:.2f}" for i in range(rows)],
            "y": ["cat" if i % 2 else "dog" for i in range(rows)],
            "place": ["in" if i % 3 else "out" for i in range(rows)],
            "split": [("train", "train", "train", "val", "test")[i % 5] for i in range(rows)],
            **columns,
        }
        for (row, column), text in (changes or {}).items():
            table[column][row - 2] = text  # as a spreadsheet counts
        lines = [",".join(table), *(",".join(cells) for cells in zip(*table.values(), strict=True))]
        path = here / name
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


@pytest.fixture
def npz(here: Path) -> Callable[..., Path]:
    """Write an archive of 60 examples; any array may be replaced, or left out by None."""

    def write(name: str = "own.npz", **arrays: Any) -> Path:
        generator = np.random.default_rng(0)
        usual = {"x": generator.normal(size=(60, 4)).astype("float32"), "y": np.arange(60) % 2, "a": np.arange(60) % 3}
        found = {key: value for key, value in {**usual, **arrays}.items() if value is not None}
        np.savez(here / name, **found)
        return here / name

    return write


@pytest.fixture
def folder(here: Path) -> Path:
    """Images of two classes, light and dark, 15 of each."""
    for shade, label in ((40, "dark"), (200, "light")):
        for i in range(15):
            place = here / "pictures" / label / f"{i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (shade + i, shade, i)).save(place)
    return here / "pictures"
