"""``spurless fix``: weights, a page and its twin for machines where it pays; the old weights and a reason elsewhere."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import spurless as sp
from spurless.cli.fix import _list_test_metrics
from spurless.models.weights import save_weights
from spurless.train.run import Compute

Cli = Callable[..., Any]
Refused = Callable[..., None]
SHORT = ("--device", "cpu", "--quiet")
QUICK = ("-M", "epochs=4", "-M", "batches=50")


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


@pytest.mark.slow
def test_a_repair_leaves_weights_a_page_its_twin_and_records(cli: Cli, here: Path, weights: Path) -> None:
    result = cli("fix", weights, *SHORT, "--budget", "0", "--records", "both.jsonl", "--track", "csv")
    assert result.status == 0, result.err
    assert result.out.startswith("Repaired by ")
    assert "on the test split, the worst group rises from" in result.out.splitlines()[0]
    assert "uses a shortcut" in result.out
    assert "which decided" in result.out
    assert "worst inferred group" in result.out
    assert "change (95 % interval)" in result.out
    found = json.loads((here / "fixed.json").read_text())
    assert found["fixed"] is True
    assert result.out.splitlines()[0] in (here / "fixed.html").read_text().replace("\u00a0", " ")
    records = result.records(here / "both.jsonl")
    assert [record["method"] for record in records] == ["before", found["choice"]["method"]]
    assert records[1]["metrics"]["worst_group"] > records[0]["metrics"]["worst_group"] + 0.3
    (folder,) = (here / "track").iterdir()
    assert {path.name for path in folder.iterdir()} == {"metrics.csv", "hparams.yaml", "fixed.html", "fixed.json"}
    compared = json.loads(cli("compare", "fixed.json", "--json").out)
    assert compared["verdicts"][0] == "shortcut"
    before = {row["name"]: row["before"]["accuracy"] for row in compared["groups"]}
    assert before == {row["name"]: row["accuracy"] for row in records[0]["groups"] if row["count"]}
    assert "## Repair" in Path(cli("card", "fixed.json").out.strip()).read_text()
    again = cli("eval", "fixed.safetensors", "--device", "cpu", "--json")
    assert json.loads(again.out)["metrics"]["worst_group"] == records[1]["metrics"]["worst_group"]


def test_where_the_old_model_is_kept_no_weights_are_written_and_the_status_is_0(
    cli: Cli, here: Path, weights: Path
) -> None:
    old = load_file(weights)
    ruin = [word for option in ("gamma=200", "lr=50", "steps=100", "clip=1e9") for word in ("-M", option)]
    result = cli("fix", weights, *SHORT, "--method", "afr", *ruin, "--records", "r.jsonl")
    assert result.status == 0, result.err
    assert result.out.startswith("The old model is kept: AFR")
    assert "no weights were written" in result.out
    assert not (here / "fixed.safetensors").exists()
    assert json.loads((here / "fixed.json").read_text())["fixed"] is False
    assert len(result.records(here / "r.jsonl")) == 1
    for name, value in load_file(weights).items():
        assert torch.equal(value, old[name])


def test_json_is_all_there_is_on_the_terminal_and_names_are_tried_and_ranked(cli: Cli, weights: Path) -> None:
    result = cli("fix", weights, *SHORT, "--try", "self,dfr,self", "--json")
    found = json.loads(result.out)
    assert len(found["tried"]) == 2  # each once
    values = [row["criterion"] for row in found["tried"]]
    assert values == sorted(values, reverse=True)
    assert all(row["oracle"] is not None for row in found["tried"])
    assert found["evidence"] == "groups"
    assert all(row["change"]["low"] <= row["change"]["change"] for row in found["tried"])


def test_what_was_tried_is_a_table(cli: Cli, weights: Path) -> None:
    result = cli("fix", weights, *SHORT, "--try", "self, dfr")
    assert result.status == 0, result.err
    table = result.out[result.out.index("methods tried") :]
    assert "oracle" in table
    assert table.index("DFR") > 0
    assert "change (95 % interval)" in table
    assert "kept" in table


@pytest.mark.parametrize(
    ("n_groups", "names"), [(4, ["average", "worst_group", "worst_class"]), (2, ["average", "worst_class"])]
)
def test_without_attributes_no_class_is_printed_as_a_group(n_groups: int, names: list[str]) -> None:
    record: Any = SimpleNamespace(groups=("",) * n_groups, data={"labels": ["0-4", "5-9"]})
    assert list(_list_test_metrics(record)) == names


@pytest.mark.slow
def test_the_loop_of_a_method_that_trains_the_network_can_be_set(cli: Cli, here: Path, weights: Path) -> None:
    result = cli("fix", weights, *SHORT, "--method", "masktune", "--train", "batch_size=64", "--records", "r.jsonl")
    assert result.status == 0, result.err
    assert result.records(here / "r.jsonl")[-1]["train"]["batch_size"] == 64


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nothing.safetensors",), "no such file"),
        (("erm.safetensors", "--method", "dfrr"), "Did you mean 'dfr'"),
        (("erm.safetensors", "--try", "some"), "No method is called 'some'"),
        (("erm.safetensors", "--try", ","), "--try .* is not valid"),
        (("erm.safetensors", "--try", "repairs,afr"), "--try .* is not valid"),
        (("erm.safetensors", "--try", "all", "--method", "afr"), "method and tries cannot be combined"),
        (("erm.safetensors", "--tolerance", "5"), "tolerance must be a fraction"),
        (("erm.safetensors", "--budget", "-1"), "budget must be a number of minutes"),
        (("erm.safetensors", "--train", "lrr=1"), "training loop has no option 'lrr'"),
        (("erm.safetensors", "--save", "erm.safetensors"), "would be overwritten"),
        (("erm.safetensors", "--out", "same", "--save", "same"), "two outputs have the same path"),
        (("erm.safetensors", "--out", "."), "cannot write"),
        (("erm.safetensors", "--out", "page.json"), "two outputs have the same path"),
    ],
)
@pytest.mark.usefixtures("weights")
def test_bad_words_are_one_line_and_nothing_is_written(
    refused: Refused, here: Path, words: tuple[str, ...], sentence: str
) -> None:
    refused(sentence, "fix", *words, *SHORT)
    assert {path.name for path in here.iterdir()} <= {"erm.safetensors", "cache"}


def test_onnx_without_its_packages_is_refused_before_anything_is_run(
    monkeypatch: pytest.MonkeyPatch, refused: Refused, weights: Path
) -> None:
    from spurless.models import export

    monkeypatch.setattr(export, "find_spec", lambda _: None)
    refused(r"needs the package 'onnx'", "fix", weights, *SHORT, "--onnx", "m.onnx")


def test_onnx_goes_where_it_was_asked(monkeypatch: pytest.MonkeyPatch, cli: Cli, here: Path, weights: Path) -> None:
    from spurless.models import export

    def write(path: Path, model: sp.Classifier, example: torch.Tensor, *, compact: bool) -> Path:
        assert compact
        model(example)
        path.write_bytes(b"onnx")
        return path

    monkeypatch.setattr(export, "find_spec", lambda _: object())
    monkeypatch.setattr(export, "write_onnx", write)
    result = cli("fix", weights, *SHORT, "--method", "class-balanced-head", *QUICK, "--onnx", "m.onnx", "--compact")
    assert "ONNX in m.onnx" in result.out
    assert (here / "m.onnx").read_bytes() == b"onnx"
