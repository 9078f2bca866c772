"""``spurless audit``: a page, the same for machines and as a table, and one line where something is wrong."""

import csv
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import spurless as sp
from spurless.cli.audit import _show
from spurless.core.findings import Audit, Finding
from spurless.models.weights import save_weights
from spurless.reporting import read_audit
from spurless.train.run import Compute

Cli = Callable[..., Any]
Refused = Callable[..., None]
SHORT = ("--device", "cpu", "--permutations", "199", "--quiet")


@cache
def trained() -> sp.Classifier:
    """A net that leans on the square."""
    data = sp.load("patched-digits")
    model = sp.build("small-cnn", data)
    return sp.fit("erm", model, data, train={"steps": 120, "batch_size": 64, "lr": 0.01}, compute=Compute("cpu")).model


@pytest.fixture
def weights(here: Path) -> Path:
    save_weights(here / "erm.safetensors", trained())
    return here / "erm.safetensors"


def test_a_page_its_twin_for_machines_and_a_table(cli: Cli, here: Path, weights: Path) -> None:
    result = cli("audit", weights, *SHORT, "--export", "suspects.csv")
    assert result.status == 0
    assert "uses a shortcut" in result.out
    assert "attribute-use" in result.out
    page, facts = (here / "audit.html").read_text(), json.loads((here / "audit.json").read_text())
    assert "uses a shortcut" in page
    assert facts["verdict"] == "shortcut"
    with (here / "suspects.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["row"]) for row in rows] == [suspect["row"] for suspect in facts["suspects"]]


def test_json_is_all_there_is_on_the_terminal(cli: Cli, weights: Path) -> None:
    result = cli("audit", weights, *SHORT, "--only", "error-slices", "--json")
    found = json.loads(result.out)
    assert [finding["audit"] for finding in found["findings"]] == ["error-slices"]


def test_a_gate_decides_the_status_after_everything_is_written(cli: Cli, here: Path, weights: Path) -> None:
    gate = ("--fail-on", "shortcut", "--min-worst-group", "0.99", "--junit", "audit.xml")
    result = cli("audit", weights, *SHORT, "--only", "attribute-use", "--json", *gate)
    assert result.status == 1
    content = json.loads(result.out)
    assert content["verdict"] == "shortcut"
    lines = result.err.splitlines()
    assert [line.split(": ")[:3] for line in lines] == [
        ["spurless", "gate", name] for name in ("verdict", "attribute-use", "worst-group")
    ]
    root = ElementTree.parse(here / "audit.xml").getroot()
    assert root.get("failures") == "3"
    assert (here / "audit.html").exists()
    groups = read_audit(here / "audit.json").groups
    data = sp.load("patched-digits").val
    assert {row.name: row.count for row in groups} == {
        name: n for name, n in zip(data.groups.names, data.counts.tolist(), strict=True) if n
    }
    accuracy = sum(row.count * (row.accuracy or 0) for row in groups) / len(data)
    assert accuracy == pytest.approx(content["facts"]["accuracy"])


def test_a_gate_that_passes_is_status_0_and_is_tracked(
    cli: Cli, here: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("audit", weights, *SHORT, "--only", "attribute-use", "--fail-on", "shortcut", "--track", "csv", "--open")
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    result = cli(*words, "--allow", "attribute-use", "--min-worst-group", "0")
    assert (result.status, result.err) == (0, "")
    assert opened == [(here / "audit.html").resolve().as_uri()]
    (folder,) = (here / "track").iterdir()
    assert {path.name for path in folder.iterdir()} == {"metrics.csv", "hparams.yaml", "audit.html", "audit.json"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--fail-on", "leaky"), "No verdict to fail on is called 'leaky'"),
        (("--min-worst-group", "80"), "out of range .expected a fraction"),
        (("--junit", "a.xml"), "--junit needs a gate"),
        (("--allow", "tokens", "--min-worst-group", "0.5"), "--allow needs a gate"),
        (("--fail-on", "shortcut", "--junit", "audit.json"), "two outputs have the same path"),
    ],
)
def test_an_invalid_gate_is_refused_before_the_audit(
    refused: Refused, weights: Path, words: tuple[str, ...], sentence: str
) -> None:
    refused(sentence, "audit", weights, *SHORT, *words)


def test_masks_are_read_from_a_file(cli: Cli, here: Path, weights: Path) -> None:
    data = sp.load("patched-digits")
    shape = data.val.x[0].shape  # type: ignore[index]  # images
    masks = np.zeros((len(data.val), *shape[1:]), dtype=bool)
    masks[:, 4:, 4:] = True
    np.save(here / "masks.npy", masks)
    result = cli("audit", weights, *SHORT, "--masks", "masks.npy", "--only", "swapped-backgrounds")
    assert result.status == 0
    assert "swapped-backgrounds" in result.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nothing.safetensors",), "no such file"),
        (("erm.safetensors", "--part", "validation"), "No split is called 'validation'"),
        (("erm.safetensors", "--only", "slices"), "No audit is called 'slices'"),
        (("erm.safetensors", "--level", "5"), "level is out of range"),
        (("erm.safetensors", "--masks", "gone.npy"), "no such file of masks"),
        (("erm.safetensors", "--masks", "none.npy"), r"none\.npy: the masks cannot be read \(expected one array of"),
        (("erm.safetensors", "--only", "swapped-backgrounds"), "needs masks"),
        (("nothing.safetensors", "--data", "gone/"), r"nothing\.safetensors: no such file"),
        (("erm.safetensors", "--out", "page.json"), "two outputs have the same path"),
        (("erm.safetensors", "--export", "audit.html"), "two outputs have the same path"),
        (("erm.safetensors", "--export", "audit.json"), "two outputs have the same path"),
        (("erm.safetensors", "--export", "erm.safetensors"), "would be overwritten"),
        (("erm.safetensors", "--data", "negated-claims"), "small-cnn takes tensors, .*text"),
    ],
)
@pytest.mark.usefixtures("weights")
def test_bad_words_are_one_line(refused: Refused, here: Path, words: tuple[str, ...], sentence: str) -> None:
    (here / "none.npy").touch()
    refused(sentence, "audit", *words, "--quiet", "--device", "cpu")


def test_a_folder_as_the_page_is_a_sentence_before_anything_is_opened(cli: Cli, here: Path, weights: Path) -> None:
    result = cli("audit", weights, "--out", ".")
    assert result.status == 2
    assert "cannot write" in result.err
    assert not any(path.suffix in (".html", ".json") for path in here.iterdir())


@pytest.mark.parametrize("level", ["3", "0", "nan"])
def test_a_level_that_is_no_share_is_named(refused: Refused, weights: Path, level: str) -> None:
    refused(
        r"--level is out of range \(expected at least 1e-09 and below 1, such as 0\.05, got",
        "audit",
        weights,
        "--level",
        level,
    )


@pytest.mark.parametrize("flag", ["--out", "--export"])
def test_the_data_are_not_written_over(cli: Cli, here: Path, weights: Path, flag: str) -> None:
    (here / "d.csv").write_text("y,a\n0,1\n1,2\n")
    result = cli("audit", weights, "--data", "d.csv", "--label", "y", flag, "d.csv")
    assert result.status == 2
    assert "would be overwritten" in result.err
    assert (here / "d.csv").read_text() == "y,a\n0,1\n1,2\n"


def test_crossed_tests_combinations_instead_of_columns(cli: Cli, here: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    y, camera, hand = (torch.randint(2, (600,), generator=generator) for _ in range(3))
    x = 2.0 * camera - 1 + 0.1 * torch.randn(600, generator=generator)
    rows = (f"{a},{b},{c},{d}" for a, b, c, d in zip(x.tolist(), *(v.tolist() for v in (y, camera, hand)), strict=True))
    (here / "own.csv").write_text("\n".join(["x,digit,camera,hand", *rows]) + "\n")
    model = sp.build("linear", sp.from_csv(here / "own.csv", label="digit", attribute=("camera", "hand")))
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[-1.0], [1.0]]))  # type: ignore[operator]  # a parameter
        model.head.bias.zero_()  # type: ignore[operator]  # a parameter
    save_weights(here / "own.safetensors", model)
    data = ("--data", "own.csv", "--label", "digit", "--attribute", "camera,hand", "--model", "linear")
    shortcuts = []
    for crossed in ((), ("--crossed",)):
        words = (*data, *SHORT, "--only", "attribute-use", "--json", *crossed)
        [finding] = json.loads(cli("audit", "own.safetensors", *words).out)["findings"]
        assert finding["flagged"]
        shortcuts.append(finding["shortcut"])
    assert shortcuts[0] == "camera"
    assert re.fullmatch("camera [01] & hand [01]", shortcuts[1])


def test_the_reason_of_a_question_that_could_not_be_tested_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding("tokens", "Not tested: Do errors share words?", 0.0, False, None, "There are two errors.", "")
    _show(Audit((finding,)))
    assert "There are two errors." in capsys.readouterr().out
