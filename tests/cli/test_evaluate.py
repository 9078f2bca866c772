"""``spurless eval``: the saved weights give the numbers of the run that saved them."""

from __future__ import annotations

import csv as csv_module
import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from spurless.core.groups import Groups
from spurless.data.split import Split, Splits
from spurless.models import Classifier
from spurless.models.weights import read_weights_info
from spurless.train.selective import Abstainer

Cli = Callable[..., Any]
EVAL = import_module("spurless.cli.evaluate")  # the room has a function of that name
DATA = ("--data", "planted", "-D", "n_train=200", "-D", "n_val=60", "-D", "n_test=60")


@pytest.fixture
def fitted(tiny_fit: Cli, here: Path) -> tuple[Path, dict[str, Any]]:
    """Weights, and the record of the run that saved them."""
    result = tiny_fit("erm", "-O", "width=12", "--steps", 40, "--seed", 2)
    (record,) = result.records(here / "runs" / "records.jsonl")
    (weights,) = (here / "runs").glob("*.safetensors")
    return weights, record


def test_weights_give_the_metrics_of_their_record(cli: Cli, fitted: tuple[Path, dict[str, Any]]) -> None:
    weights, record = fitted
    result = cli("eval", weights, *DATA, "--seed", 2, "--json")
    facts = json.loads(result.out)
    assert (result.status, result.err, result.out.count("\n")) == (0, "", 1)
    assert facts["metrics"] == record["metrics"]
    assert facts["groups"] == record["groups"]
    assert facts["model"] == record["model"]
    assert (facts["method"], facts["selection"]) == ("given", "given")


def test_model_and_its_options_may_be_said(cli: Cli, fitted: tuple[Path, dict[str, Any]]) -> None:
    weights, record = fitted
    result = cli("eval", weights, *DATA, "--seed", 2, "--model", "mlp", "-O", "width=12", "--json")
    assert json.loads(result.out)["metrics"] == record["metrics"]


def test_record_is_appended_under_the_name_given(cli: Cli, fitted: tuple[Path, dict[str, Any]], here: Path) -> None:
    weights, _ = fitted
    for name in ("mine", "yours"):
        result = cli("eval", weights, *DATA, "--name", name, "--out", "all/records.jsonl")
    assert [row["method"] for row in result.records(here / "all" / "records.jsonl")] == ["mine", "yours"]
    assert "yours on planted, seed 2" in result.out  # that of the weights


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv_module.DictReader(file))


def begun(weights: Path) -> Path:
    return weights.with_name(f"{weights.stem}-start.safetensors")


@pytest.fixture
def repaired(tiny_fit: Cli, here: Path) -> tuple[Path, dict[str, Any]]:
    """Weights that MaskTune repaired, and the record of that run."""
    result = tiny_fit("masktune", "--steps", 60, "--coverage", "1,0.5")
    (record,) = result.records(here / "runs" / "records.jsonl")
    return here / "runs" / f"masktune-planted-seed0-{record['key'][:8]}.safetensors", record


def test_both_weights_give_the_selective_numbers_of_their_record(
    cli: Cli, repaired: tuple[Path, dict[str, Any]]
) -> None:
    weights, record = repaired
    result = cli("eval", weights, "--start", begun(weights), "--coverage", "1,0.5", *DATA, "--json")
    facts = json.loads(result.out)
    assert facts["selective"] == record["selective"]
    assert facts["selective"]["score"] == "product"
    assert facts["metrics"] == record["metrics"]
    assert facts["warnings"] == record["warnings"]
    shown = cli("eval", weights, "--start", begun(weights), "--coverage", "1,0.5", *DATA)
    assert "selective prediction by the score 'product'" in shown.out
    alone = json.loads(cli("eval", weights, "--coverage", "0.5", *DATA, "--json").out)
    assert alone["selective"]["score"] == "softmax"


@pytest.mark.parametrize("method", ["selectivenet", "deep-gamblers"])
def test_weights_with_a_selector_are_opened_with_it(cli: Cli, tiny_fit: Cli, here: Path, method: str) -> None:
    width = ("-M", "width=7") if method == "selectivenet" else ("-M", "payoff=1.5")
    result = tiny_fit(method, *width, "--steps", 40, "--coverage", "1,0.5")
    (record,) = result.records(here / "runs" / "records.jsonl")
    (weights,) = (here / "runs").glob("*.safetensors")
    facts = json.loads(cli("eval", weights, "--coverage", "1,0.5", *DATA, "--json").out)
    assert facts["selective"] == record["selective"]
    assert facts["selective"]["score"] == "selector"
    plain = cli("eval", weights, *DATA, "--json")
    assert json.loads(plain.out)["groups"] == record["groups"]


def test_a_selector_of_an_unknown_kind_is_refused(cli: Cli, fitted: tuple[Path, dict[str, Any]], here: Path) -> None:
    weights, _ = fitted
    header = {"spurless": json.dumps(read_weights_info(weights))}
    save_file({**load_file(weights), "selector.own": torch.zeros(2)}, here / "w.safetensors", metadata=header)
    result = cli("eval", "w.safetensors", *DATA)
    assert result.status == 2
    assert "w.safetensors: the weights have an unknown kind of selector" in result.err


def test_predictions_are_a_row_per_test_example(cli: Cli, repaired: tuple[Path, dict[str, Any]], here: Path) -> None:
    weights, record = repaired
    words = ("eval", weights, "--start", begun(weights), *DATA, "--predictions", "new/result.csv")
    assert cli(*words).status == 0
    plain = rows_of(here / "new" / "result.csv")
    assert [row["number"] for row in plain] == [str(i) for i in range(60)]
    assert {row["label"] for row in plain} == {"minus", "plus"} >= {row["prediction"] for row in plain}
    assert cli(*words, "--coverage", "0.5").status == 0
    shy = rows_of(here / "new" / "result.csv")
    threshold = record["selective"]["rows"][1]["threshold"]
    for before, after in zip(plain, shy, strict=True):
        kept = float(after["score"]) >= threshold
        assert after == {**before, "prediction": before["prediction"] if kept else "abstain"}
    kept_share = sum(row["prediction"] != "abstain" for row in shy) / 60
    assert kept_share == pytest.approx(record["selective"]["rows"][1]["coverage"])
    wrong = [row["prediction"] != row["label"] for row in shy if row["prediction"] != "abstain"]
    assert sum(wrong) / len(wrong) == pytest.approx(record["selective"]["rows"][1]["error"])
    assert cli(*words, "--coverage", "0.5,1").status == 0  # two thresholds are none to abstain by
    assert rows_of(here / "new" / "result.csv") == plain
    assert [path.name for path in (here / "new").iterdir()] == ["result.csv"]  # no scratch is left


def test_a_hostile_class_name_stays_one_cell(here: Path) -> None:
    names = ('a,"b"\r\nc', "=1+1\rd")
    groups = Groups(names)
    split = Split(torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1]), torch.zeros(2, dtype=torch.long), groups)
    model = Classifier(nn.Identity(), nn.Linear(1, 2))
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[-1.0], [1.0]]))  # type: ignore[operator]  # a parameter
        model.head.bias.zero_()  # type: ignore[operator]  # a parameter
    splits = Splits(split, split, split)
    EVAL._write_predictions(here / "result.csv", Abstainer((model,)), splits, None, 0)
    assert [(row["label"], row["prediction"]) for row in rows_of(here / "result.csv")] == [
        (names[0], names[0]),
        (f"'{names[1]}", f"'{names[1]}"),  # else a spreadsheet would evaluate it
    ]
    undecodable = Splits(*(replace(split, groups=Groups(("x\udcff", "y"))),) * 3)
    EVAL._write_predictions(here / "result.csv", Abstainer((model,)), undecodable, None, 0)
    assert rows_of(here / "result.csv")[0]["label"] == "x\\udcff"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", "\r=", "\n", "  =", "\uff1d"])
def test_no_class_name_is_a_formula(start: str, here: Path) -> None:
    names = (f"{start}HYPERLINK(1)", "other")
    split = Split(torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1]), torch.zeros(2, dtype=torch.long), Groups(names))
    model = Classifier(nn.Identity(), nn.Linear(1, 2))
    EVAL._write_predictions(here / "result.csv", Abstainer((model,)), Splits(split, split, split), None, 0)
    rows = rows_of(here / "result.csv")
    assert [row["label"] for row in rows] == [f"'{names[0]}", "other"]
    assert {row["prediction"] for row in rows} <= {f"'{names[0]}", "other"}


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("--coverage", "80"), r"80 is a percentage\. Write 0\.8\."),
        (("--coverage", "0.8", "--score", "product"), r"the score 'product' needs two models\. Pass .* as --start"),
        (("--coverage", "0.8", "--score", "sofmax"), r"No score is called 'sofmax'\. Did you mean 'softmax'\?"),
        (("--coverage", "0.8", "--score", "selector"), r"the model has no selector"),
        (("--coverage", "0.8", "--score", "softmax", "--start", "W"), r"uses one model\. Leave --start out"),
        (("--start", "W"), r"--score and --start need --coverage\. Pass --coverage"),
        (("--coverage", "0.8", "--start", "none.safetensors"), r"none\.safetensors: no such file"),
        (("--predictions", "/dev/full"), r"/dev/full: cannot write"),
    ],
)
def test_bad_words_are_refused_in_a_sentence(
    cli: Cli, fitted: tuple[Path, dict[str, Any]], words: tuple[str, ...], match: str
) -> None:
    weights, _ = fitted
    result = cli("eval", weights, *DATA, *(str(weights) if word == "W" else word for word in words))
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert re.search(match, result.err), result.err


def test_a_class_called_abstain_cannot_be_told_from_abstaining(cli: Cli, csv: Cli, here: Path) -> None:
    table = csv()
    table.write_text(table.read_text().replace("cat", "abstain"))
    data = ("--data", table, "--label", "y", "--attribute", "place", "--split", "split")
    assert cli("fit", "erm", *data, "--model", "mlp", "--steps", 5, "--device", "cpu").status == 0
    (weights,) = (here / "runs").glob("*.safetensors")
    result = cli("eval", weights, *data, "--coverage", "0.8", "--predictions", "result.csv")
    assert result.status == 2
    assert "a class is called 'abstain'" in result.err
    assert not (here / "result.csv").exists()
    assert cli("eval", weights, *data, "--predictions", "result.csv").status == 0


def test_onnx_goes_where_it_was_asked(
    cli: Cli, fitted: tuple[Path, dict[str, Any]], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spurless.models import export

    monkeypatch.setattr(export, "find_spec", lambda _: object())
    monkeypatch.setattr(
        export, "write_onnx", lambda path, *_, compact: path.write_bytes(b"compact" if compact else b"onnx")
    )
    result = cli("eval", fitted[0], *DATA, "--seed", 2, "--onnx", "m.onnx")
    assert result.out.endswith("ONNX in m.onnx\n")
    assert (here / "m.onnx").read_bytes() == b"onnx"
    cli("eval", fitted[0], *DATA, "--seed", 2, "--onnx", "m.onnx", "--compact")
    assert (here / "m.onnx").read_bytes() == b"compact"
    assert "--compact needs --onnx" in cli("eval", fitted[0], *DATA, "--compact").err


@pytest.mark.parametrize("flag", ["--out", "--predictions"])
def test_data_and_weights_are_not_written_over(cli: Cli, fitted: tuple[Path, dict[str, Any]], flag: str) -> None:
    weights, data = fitted[0], Path("d.csv")
    data.write_text("y,a,b\n" + "0,1,2\n1,2,1\n" * 20)
    for place in (data, weights):
        before = place.read_bytes()
        result = cli("eval", weights, "--data", data, "--label", "y", flag, place)
        assert result.status == 2
        assert "would be overwritten" in result.err
        assert place.read_bytes() == before


def test_records_go_to_a_file_of_records_alone(cli: Cli, fitted: tuple[Path, dict[str, Any]]) -> None:
    Path("notes.txt").write_text("mine\n")
    result = cli("eval", fitted[0], *DATA, "--out", "notes.txt")
    assert result.status == 2
    assert "cannot append records to this file: notes.txt, line 1" in result.err
    assert Path("notes.txt").read_text() == "mine\n"
    result = cli("eval", fitted[0], *DATA, "--out", "new", "--predictions", "new")
    assert "two outputs have the same path" in result.err
