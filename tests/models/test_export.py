"""Tests of ONNX: the same logits, any size of batch, and a sentence where a package is missing."""

from pathlib import Path
from typing import Any

import pytest
import torch

import spurless as sp
from spurless.core.errors import InputError, SpurlessError
from spurless.models import export
from spurless.models.export import check_onnx_installed, write_onnx


@pytest.fixture
def data() -> sp.Splits:
    return sp.load("planted", n_train=40, n_val=20, n_test=20)


def pretend(monkeypatch: pytest.MonkeyPatch, *there: str) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: object() if name in there else None)


@pytest.mark.parametrize(("there", "missing"), [((), "onnx"), (("onnx",), "onnxscript")])
def test_a_missing_package_is_a_sentence_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: sp.Splits, there: tuple[str, ...], missing: str
) -> None:
    pretend(monkeypatch, *there)
    with pytest.raises(SpurlessError, match=rf"'{missing}'\. Install it with: pip install 'spurless\[onnx\]'"):
        write_onnx(tmp_path / "m.onnx", sp.build("mlp", data), data.train.example())
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_missing_where_both_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "onnx", "onnxscript")
    check_onnx_installed()


class Exporter:
    """Stands in for torch's: writes a file, and remembers how it was asked."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    def __call__(self, model: Any, args: Any, path: Path, **how: Any) -> None:
        self.asked = {"training": model.training, "args": args, **how}
        path.write_bytes(b"onnx")


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Exporter:
    pretend(monkeypatch, "onnx", "onnxscript")
    stand_in = Exporter()
    monkeypatch.setattr(torch.onnx, "export", stand_in)
    return stand_in


def test_a_file_that_says_the_same_is_kept_and_the_model_stays_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: sp.Splits, exporter: Exporter
) -> None:
    model = sp.build("mlp", data).train()
    example = data.train.example()
    with torch.no_grad():
        truth = model.eval()(example).numpy()
    model.train()
    monkeypatch.setattr(export, "_run", lambda *_: truth)
    assert write_onnx(tmp_path / "m.onnx", model, example).read_bytes() == b"onnx"
    assert model.training
    assert exporter.asked["training"] is False
    assert exporter.asked["input_names"] == ["x"]
    assert exporter.asked["output_names"] == ["logits"]


def test_a_file_that_says_something_else_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: sp.Splits, exporter: Exporter
) -> None:
    assert exporter.asked == {}
    monkeypatch.setattr(export, "_run", lambda *_: torch.full((2, 2), 9.0).numpy())
    with pytest.raises(InputError, match=r"gives other logits than the model"):
        write_onnx(tmp_path / "m.onnx", sp.build("mlp", data), data.train.example())
    assert list(tmp_path.iterdir()) == []


def test_a_compact_model_is_written_and_checked_against_the_whole_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: sp.Splits, exporter: Exporter
) -> None:
    model, example = sp.build("mlp", data, width=8), data.train.example()
    hidden: Any = model.backbone.get_submodule("1")
    hidden.weight.data[2:] = 0  # six of eight nodes do nothing
    written: list[int] = []

    def export_model(model: Any, args: Any, path: Path, **how: Any) -> None:
        exporter(model, args, path, **how)
        written.append(model.backbone.get_submodule("1").out_features)
        monkeypatch.setattr(export, "_run", lambda *_: model(args[0]).detach().numpy())

    monkeypatch.setattr(torch.onnx, "export", export_model)
    write_onnx(tmp_path / "m.onnx", model, example)
    write_onnx(tmp_path / "small.onnx", model, example, compact=True)
    assert written == [8, 2]
    assert hidden.out_features == 8  # the given model is not changed


def test_what_the_exporter_cannot_write_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: sp.Splits, exporter: Exporter
) -> None:
    assert exporter.asked == {}

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such operator\nand a long trace")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    with pytest.raises(InputError, match=r"'mlp' cannot be exported as ONNX: no such operator\."):
        write_onnx(tmp_path / "m.onnx", sp.build("mlp", data), data.train.example())


@pytest.mark.parametrize("name", ["mlp", "token-mean"])
def test_the_real_thing(tmp_path: Path, name: str) -> None:
    onnx = pytest.importorskip("onnx", reason="ONNX needs the extra 'onnx'")
    pytest.importorskip("onnxscript", reason="ONNX needs the extra 'onnx'")
    data = sp.load("negated-claims", n_train=60, n_val=30, n_test=30) if name == "token-mean" else sp.load("planted")
    model = sp.build(name, data)
    path = write_onnx(tmp_path / "m.onnx", model, data.train.example())
    five = data.train.example(5)
    given = five if isinstance(five, dict) else {"x": five}
    said = onnx.reference.ReferenceEvaluator(str(path)).run(None, {k: v.numpy() for k, v in given.items()})[0]
    with torch.no_grad():
        assert torch.allclose(torch.as_tensor(said), model.eval()(five), atol=1e-4)


def test_a_model_that_cannot_take_its_input_is_a_sentence(tmp_path: Path, data: sp.Splits) -> None:
    with pytest.raises(InputError, match=r"mlp does not accept this input.*convert the model with module.float"):
        write_onnx(tmp_path / "m.onnx", sp.build("mlp", data).double(), data.train.example())
