"""``spurless data``: prepare and check say what was found, whether it is whole, and leave with 2 where it is not."""

from __future__ import annotations

import csv as csv_module
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from spurless.data import DATASETS
from spurless.data.datasets import waterbirds

Cli = Callable[..., Any]
Refused = Callable[..., None]
BIRDS = "waterbird_complete95_forest2water2"


@pytest.fixture
def birds(here: Path) -> Path:
    """A data folder with a tiny Waterbirds in the official layout: two of every group in every split."""
    folder, rows = here / "sets" / BIRDS, []
    for number in range(24):
        name = f"{number:03}.Species/Bird_{number:04}.jpg"
        (folder / name).parent.mkdir(parents=True)
        Image.fromarray(np.full((12, 16, 3), 10 * number, dtype=np.uint8)).save(folder / name)
        rows.append((number, name, number % 2, number // 4 % 3, number // 2 % 2))
    with (folder / "metadata.csv").open("w", newline="") as file:
        csv_module.writer(file).writerows([("img_id", "img_filename", "y", "split", "place"), *rows])
    return here / "sets"


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tiny copy be the published one."""
    monkeypatch.setattr(waterbirds, "PUBLISHED", dict.fromkeys(("train", "val", "test"), (2, 2, 2, 2)))


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("command", ["prepare", "check", "describe", "show"])
def test_help_teaches_with_examples_on_80_columns(cli: Cli, command: str) -> None:
    result = cli("data", command, "--help")
    assert (result.status, result.err) == (0, "")
    assert f"  spurless data {command}" in result.out.split("Examples:", 1)[1]
    assert max(map(len, result.out.splitlines())) <= 80
    paragraphs = result.out.split("Examples:")[0].split("\n")[5:]
    assert not [line for line in paragraphs if 0 < len(line.split()) < 3 and not line.strip().endswith(".")]


def test_data_alone_prints_its_help(cli: Cli) -> None:
    result = cli("data")
    assert result.status == 0
    assert all(f"│ {word} " in result.out for word in ("prepare", "check", "describe", "show"))


def test_check_prints_the_card_and_the_counts(cli: Cli) -> None:
    result = cli("data", "check", "planted", "-D", "n_train=100", "-D", "agreement=1.0")
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("summary    Two Gaussian features")
    assert any(line.startswith("options    core=1.0, spurious=2.0") for line in lines)
    assert "files      none needed" in lines
    assert "planted: complete" in result.out
    right = next(line.split() for line in lines if line.startswith("minus, right"))
    assert right[2] == "0"  # they always agree
    assert "the attribute makes 100 % fewer errors" in flat(result.out)


def test_check_as_json_is_one_line(cli: Cli, csv: Cli) -> None:
    path = csv()
    result = cli("data", "check", path, "--label", "y", "--attribute", "place", "--split", "split", "--json")
    facts = json.loads(result.out)
    assert result.out.count("\n") == 1
    assert facts["groups"] == ["cat, in", "cat, out", "dog, in", "dog, out"]
    assert {name: sum(counts) for name, counts in facts["counts"].items()} == {"train": 36, "val": 12, "test": 12}
    assert facts["goodman_kruskal"] is not None
    assert (facts["whole"], facts["missing"], facts["files"]) == (True, [], {"found": [], "place": str(path)})


def test_check_counts_those_of_unknown_attribute_too(cli: Cli, csv: Cli) -> None:
    path = csv({(2, "place"): "", (3, "place"): "", (5, "place"): ""})
    words = ("data", "check", path, "--label", "y", "--attribute", "place", "--split", "split")
    result = cli(*words)
    lines = result.out.splitlines()
    row = next(line.split() for line in lines if line.startswith("attribute unknown"))
    assert row[2:] == ["2", "1", "0"]
    groups = [list(map(int, line.split()[2:])) for line in lines if line.startswith(("cat, ", "dog, "))]
    assert [sum(column) for column in zip(*groups, [2, 1, 0], strict=True)] == [36, 12, 12]
    assert json.loads(cli(*words, "--json").out)["unknown"] == {"train": 2, "val": 1, "test": 0}
    assert "unknown" not in cli("data", "check", csv(), *words[3:]).out


def test_check_of_data_without_attributes_says_nothing_of_a_shortcut(cli: Cli, folder: Path) -> None:
    result = cli("data", "check", folder)
    assert result.status == 0
    assert "shortcut" not in result.out
    assert json.loads(cli("data", "check", folder, "--json").out)["goodman_kruskal"] is None


def test_check_of_a_part_says_not_whole_and_why(cli: Cli, birds: Path) -> None:
    result = cli("data", "check", "waterbirds", "--root", birds, "-D", "size=8")
    assert result.status == 2
    assert "waterbirds: incomplete" in result.out
    assert result.out.count("landbird, land ") == 1
    assert f"files metadata.csv, */*.jpg in {birds / BIRDS} " in flat(result.out)
    (line,) = result.err.splitlines()
    assert line.startswith("spurless: waterbirds is not complete as published: train has 2/2/2/2 instead of 3,498")
    facts = json.loads(cli("data", "check", "waterbirds", "--root", birds, "-D", "size=8", "--json").out)
    assert not facts["whole"]
    assert facts["missing"] == [line.removeprefix("spurless: ")]


@pytest.mark.usefixtures("whole")
def test_check_of_all_of_it_says_whole(cli: Cli, birds: Path) -> None:
    result = cli("data", "check", "waterbirds", "--root", birds, "-D", "size=8")
    assert (result.status, result.err) == (0, "")
    assert "waterbirds: complete" in result.out


def test_check_passes_other_warnings_on(cli: Cli, birds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import warnings

    from spurless.core.errors import SpurlessWarning

    def make(config: Any) -> Any:
        warnings.warn("A trap.", SpurlessWarning, stacklevel=2)
        return waterbirds.waterbirds(config)

    monkeypatch.setitem(DATASETS, "waterbirds", replace(DATASETS["waterbirds"], make=make))
    result = cli("data", "check", "waterbirds", "--root", birds, "-D", "size=8")
    assert result.err.splitlines()[0] == "spurless: warning: A trap."
    assert len(result.err.splitlines()) == 2


@pytest.mark.usefixtures("whole")
def test_check_says_what_the_data_have_to_be_said_of_them(
    cli: Cli, birds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(config: Any) -> Any:
        return replace(waterbirds.waterbirds(config), notes=("A lossy copy.",))

    monkeypatch.setitem(DATASETS, "waterbirds", replace(DATASETS["waterbirds"], make=make))
    words = ("data", "check", "waterbirds", "--root", birds, "-D", "size=8")
    assert "note       A lossy copy." in cli(*words).out
    assert json.loads(cli(*words, "--json").out)["notes"] == ["A lossy copy."]


def test_check_names_an_image_that_cannot_be_read(refused: Refused, birds: Path) -> None:
    bad = birds / BIRDS / "005.Species" / "Bird_0005.jpg"
    bad.write_bytes(bad.read_bytes()[:-40])
    refused(r"Bird_0005\.jpg: the image cannot be read", "data", "check", "waterbirds", "--root", birds)


def test_check_reads_every_example_of_a_streamed_source(
    refused: Refused, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spurless.data.loaders import images

    monkeypatch.setattr(images, "read_or_stream", lambda source, **_: source)
    for place in ("dark/0.png", "light/14.png", "light/7.png"):
        good = (folder / place).read_bytes()
        (folder / place).write_bytes(b"no picture")
        refused(rf"{place}: the image cannot be read", "data", "check", folder)
        (folder / place).write_bytes(good)


def test_root_of_a_set_without_files_is_refused(refused: Refused) -> None:
    refused(
        r"dataset 'planted' needs no files \(got --root sets\)\. Leave", "data", "check", "planted", "--root", "sets"
    )
    refused(r"dataset 'planted' needs no files", "data", "prepare", "planted", "--root", "sets")


@pytest.mark.usefixtures("whole")
def test_prepare_finds_loads_and_counts(cli: Cli, birds: Path) -> None:
    result = cli("data", "prepare", "waterbirds", "--root", birds, "-D", "size=8")
    assert (result.status, result.err) == (0, "")
    assert "waterbirds: complete" in result.out
    assert "unpacked" not in result.out
    assert f"in {birds / BIRDS}" in flat(result.out)


@pytest.mark.usefixtures("whole")
def test_prepare_unpacks_an_archive_and_compares_checksums(cli: Cli, birds: Path, here: Path) -> None:
    fresh = here / "fresh"
    fresh.mkdir()
    archive = fresh / f"{BIRDS}.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(birds / BIRDS, BIRDS)
    table = f"{BIRDS}/metadata.csv"
    right = sha256((birds / table).read_bytes()).hexdigest()
    (fresh / "SHA256SUMS").write_text(f"{right}  {table}\n{right}  {BIRDS}/extra.npz\n{right}  celeba.npz\n")
    result = cli("data", "prepare", "waterbirds", "--root", fresh, "-D", "size=8")
    assert (result.status, result.err) == (0, "")
    assert f"unpacked {archive}" in flat(result.out)
    assert "checksums 1 files match SHA256SUMS; 1 listed files are missing" in flat(result.out)
    assert "waterbirds: complete" in result.out
    (fresh / table).write_bytes((fresh / table).read_bytes() + b"\n")
    again = cli("data", "prepare", "waterbirds", "--root", fresh, "-D", "size=8")
    assert (again.status, again.out) == (2, "")
    assert "metadata.csv: the file differs from its checksum in SHA256SUMS" in again.err


def test_prepare_says_where_to_get_what_is_missing(refused: Refused, here: Path) -> None:
    (here / "empty").mkdir()
    for words in ((), ("--download",)):
        match = r"empty: .*waterbirds .*metadata\.csv, .*group_DRO on GitHub"
        refused(match, "data", "prepare", "waterbirds", "--root", here / "empty", *words)
    assert list((here / "empty").iterdir()) == []
    refused(r"^spurless: data: the files of waterbirds .*got no such folder", "data", "prepare", "waterbirds")


@pytest.mark.usefixtures("whole")
def test_prepare_downloads_only_when_it_is_told_to(
    cli: Cli, refused: Refused, birds: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = DATASETS["waterbirds"]
    assert row.layout is not None

    def fetch(folder: Path) -> None:
        (birds / BIRDS).rename(folder / BIRDS)

    layout = replace(row.layout, download=fetch)
    monkeypatch.setitem(DATASETS, "waterbirds", replace(row, layout=layout))
    words = ("data", "prepare", "waterbirds", "--root", here / "new", "-D", "size=8")
    refused(r"Download them: spurless data prepare waterbirds --download", *words)
    result = cli(*words, "--download")
    assert (result.status, result.err) == (0, "")
    assert f"downloaded {here / 'new' / BIRDS}" in flat(result.out)
    assert "waterbirds: complete" in result.out


def test_prepare_of_an_embedded_set_says_that_nothing_needs_it(cli: Cli) -> None:
    result = cli("data", "prepare", "planted", "-D", "n_train=100")
    assert (result.status, result.err) == (0, "")
    assert "planted needs no files, so there is nothing to prepare" in result.out
    assert "planted: complete" in result.out


def test_prepare_refuses_what_it_cannot_prepare(refused: Refused, folder: Path) -> None:
    refused(r"No dataset is called 'waterbird'\. Did you mean 'waterbirds'", "data", "prepare", "waterbird")
    refused(r"only named datasets can be prepared .*spurless data check", "data", "prepare", folder)
    refused(
        r"dataset 'waterbirds' has no option 'sise'\. Did you mean", "data", "prepare", "waterbirds", "-D", "sise=8"
    )
