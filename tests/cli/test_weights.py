"""Weights at the door: a file is opened as the model that it says, and with what that model learnt beside it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import spurless as sp
from spurless.cli.sources import Columns, open_data
from spurless.cli.weights import (
    check_onnx_place,
    check_weights,
    export_saved,
    open_model,
    refuse_selector,
    seed_of,
    with_tokenizer,
)
from spurless.core.errors import BadInput, SpurlessError, SpurlessWarning
from spurless.data.planted import PlantedConfig, planted
from spurless.methods.deep_gamblers import attach_reservation
from spurless.methods.disent import disentangled
from spurless.methods.selectivenet import attach_gate
from spurless.models.classifier import Classifier

DATA = planted(PlantedConfig(n_train=40, n_val=20, n_test=20))


def saved(path: Path, model: Classifier) -> Path:
    sp.save_weights(path, model)
    return path


def test_the_file_says_which_model_it_belongs_to(tmp_path: Path) -> None:
    model = sp.build("mlp", DATA, width=5, seed=3)
    opened = open_model(saved(tmp_path / "mine.safetensors", model), None, {}, DATA, seed=0)
    x = torch.randn(4, 2)
    assert opened.name == "mlp"
    assert torch.equal(opened.eval()(x), model.eval()(x))


def test_the_seed_of_the_data_is_that_of_the_weights_unless_the_user_says_another(tmp_path: Path) -> None:
    path, model = tmp_path / "mine.safetensors", sp.build("mlp", DATA, width=5)
    sp.save_weights(path, model, seed=3)
    assert seed_of(path, None) == 3
    assert seed_of(path, 3) == 3
    with pytest.warns(SpurlessWarning, match=r"was trained with --seed 3: .* examples that it was trained on"):
        assert seed_of(path, 1) == 1
    assert seed_of(saved(path, model), None) == 0
    assert seed_of(tmp_path, 2) == 2  # a folder says nothing


def test_data_are_cut_as_they_were_for_training(here: Path, cli: Callable[..., Any]) -> None:
    x = torch.randn(90, generator=torch.Generator().manual_seed(0)).tolist()
    table = here / "noise.csv"
    table.write_text("a,b,y\n" + "".join(f"{v:.6f},{v * v:.6f},{n % 2}\n" for n, v in enumerate(x)))
    said = ["--data", str(table), "--label", "y", "--json"]
    run = ["fit", "erm", *said, "--model", "mlp", "--seed", "1", "--epochs", "3", "--out", str(here / "runs")]
    fitted = json.loads(cli(*run).out)
    weights = next(str(path) for path in (here / "runs").glob("erm*.safetensors"))
    again = json.loads(cli("eval", weights, *said).out)
    assert again["data"]["fingerprint"] == fitted["data"]["fingerprint"]
    assert again["metrics"]["average"] == fitted["metrics"]["average"]


def test_columns_and_classes_in_another_order_are_not_taken_for_each_other(here: Path, cli: Callable[..., Any]) -> None:
    x = torch.randn(90, 2, generator=torch.Generator().manual_seed(0)).tolist()
    rows = [f"{a:.6f},{b:.6f},{'yes' if a > 0 else 'no'}\n" for a, b in x]
    table, other, renamed = (here / f"{name}.csv" for name in ("one", "two", "three"))
    table.write_text("a,b,y\n" + "".join(rows))
    other.write_text(
        "b,a,y\n" + "".join(f"{row.split(',')[1]},{row.split(',')[0]},{row.split(',')[2]}" for row in rows)
    )
    renamed.write_text(table.read_text().replace("yes", "positive").replace("no", "negative"))
    said = ["--label", "y", "--json"]
    run = ["fit", "erm", "--data", str(table), *said, "--model", "mlp", "--epochs", "3", "--out", str(here / "runs")]
    fitted = json.loads(cli(*run).out)
    weights = next(str(path) for path in (here / "runs").glob("erm*.safetensors"))
    swapped = cli("eval", weights, "--data", str(other), *said)
    assert swapped.status != 0
    assert "the model learned columns in another order" in swapped.err
    mended = json.loads(cli("eval", weights, "--data", str(other), "--features", "a,b", *said).out)
    assert mended["metrics"]["average"] == fitted["metrics"]["average"]
    called = cli("eval", weights, "--data", str(renamed), *said)
    assert "trained on the classes no, yes; the data have negative, positive" in " ".join(called.err.split())
    assert json.loads(called.out)["metrics"]["average"] == fitted["metrics"]["average"]
    splits = open_data(str(table), {}, Columns(label="y"), 0, quiet=True)
    sp.save_weights("own.safetensors", sp.build("mlp", splits), data={"labels": ["yes", "no"], "options": {}})
    with pytest.raises(BadInput, match=r"learned classes in another order.*expected yes, no, got no, yes"):
        open_model(Path("own.safetensors"), None, {}, splits, seed=0)


def test_a_model_that_was_said_wins_over_the_one_in_the_file(tmp_path: Path) -> None:
    path = saved(tmp_path / "mine.safetensors", sp.build("mlp", DATA, width=5))
    with pytest.raises(BadInput, match=r"do not fit"):
        open_model(path, "linear", {}, DATA, seed=0)


@pytest.mark.parametrize("kind", ["gate", "reservation"])
def test_a_selector_comes_with_its_weights_and_is_not_trained_on(tmp_path: Path, kind: str) -> None:
    model = sp.build("linear", DATA, seed=1)
    if kind == "gate":
        attach_gate(model, 7)
    else:
        attach_reservation(model)
    path = saved(tmp_path / "shy.safetensors", model)
    opened = open_model(path, None, {}, DATA, seed=0)
    x = torch.randn(6, 2)
    features = model.features(x)
    both = [m.eval().get_submodule("selector")(features, m.head(features)) for m in (model, opened)]
    assert torch.equal(*both)
    with pytest.raises(BadInput, match=r"have a selector, which would no longer fit"):
        refuse_selector(path)


def test_a_model_with_two_encoders_is_built_with_both(tmp_path: Path) -> None:
    twins = disentangled(sp.build("mlp", DATA, width=5, seed=3))
    opened = open_model(saved(tmp_path / "twins.safetensors", twins), None, {}, DATA, seed=0)
    x = torch.randn(4, 2)
    assert opened.name == "mlp, two encoders"
    assert torch.equal(opened.eval()(x), twins.eval()(x))


def test_a_folder_is_a_text_classifier_with_its_head_and_its_tokenizer(here: Path, cli: Callable[..., Any]) -> None:
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "food", "place", "never"]
    vocabulary = here / "vocab.txt"
    vocabulary.write_text("\n".join(words))
    transformers.BertTokenizerFast(str(vocabulary)).save_pretrained("mine")
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    torch.manual_seed(0)
    net = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=len(words), **small)).eval()
    net.save_pretrained("mine")
    texts = [f"{first} {second}" for first in words[5:] for second in words[5:] for _ in range(4)]
    rows = [f"{text},{'yes' if i % 2 else 'no'},{('train', 'val', 'test')[i % 3]}" for i, text in enumerate(texts)]
    Path("texts.csv").write_text("\n".join(["text,label,split", *rows]))

    columns = Columns(label="label", split="split", text="text")
    options = with_tokenizer({}, columns, None, Path("mine"))
    assert options == {"tokenizer": "mine"}
    assert with_tokenizer({"tokenizer": "words"}, columns, None, Path("mine")) == {"tokenizer": "words"}
    assert with_tokenizer({}, columns, "hf:mine") == {"tokenizer": "mine"}
    assert with_tokenizer({}, columns, "token-mean") == with_tokenizer({}, Columns(), "hf:mine") == {}
    splits = open_data("texts.csv", options, columns, 0, quiet=True)
    model = open_model(Path("mine"), None, {}, splits, seed=0)
    x = splits.test.example(5)
    assert isinstance(x, dict)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), net(**x).logits)
    path = saved(here / "ours.safetensors", model)
    assert with_tokenizer({}, columns, None, path) == {"tokenizer": "mine"}
    said = cli("eval", "mine", "--data", "texts.csv", "--text", "text", "--label", "label", "--split", "split")
    assert said.status == 0, said.err
    with pytest.raises(BadInput, match="a folder says which model it holds"):
        open_model(Path("mine"), "token-mean", {}, splits, seed=0)
    (here / "empty").mkdir()
    with pytest.raises(BadInput, match="the folder holds no model"):
        check_weights(here / "empty")


def test_onnx_that_cannot_be_written_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spurless.fixing import export

    monkeypatch.setattr(export, "find_spec", lambda _: object())
    check_onnx_place(None, None, seeds=3)
    check_onnx_place(tmp_path / "deep" / "m.onnx", tmp_path / "m.safetensors")
    with pytest.raises(BadInput, match="one file, and --seeds makes several models"):
        check_onnx_place(tmp_path / "m.onnx", None, seeds=2)
    with pytest.raises(BadInput, match="the weights would be overwritten"):
        check_onnx_place(tmp_path / "m", tmp_path / "m")
    with pytest.raises(BadInput, match="no ordinary file"):
        check_onnx_place(tmp_path, None)
    monkeypatch.setattr(export, "find_spec", lambda _: None)
    with pytest.raises(SpurlessError, match="Writing ONNX needs the package 'onnx'"):
        check_onnx_place(tmp_path / "m.onnx", None)


def test_what_a_run_saved_is_written_whatever_model_the_user_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spurless.fixing import export

    seen: list[Classifier] = []

    def write(path: Path, model: Classifier, example: torch.Tensor) -> Path:
        assert example.shape == (2, 2)
        seen.append(model)
        return path

    monkeypatch.setattr(export, "write_onnx", write)
    own = tmp_path / "net.py"
    own.write_text("from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(2, 2))\n")
    for name, model in (("mlp", sp.build("mlp", DATA, width=5)), (f"{own}:net", sp.build(f"{own}:net", DATA))):
        weights = saved(tmp_path / "mine.safetensors", model)
        assert export_saved(tmp_path / "m.onnx", weights, name, {}, DATA, 0) == tmp_path / "m.onnx"
        assert torch.equal(seen[-1](DATA.test.example()), model.eval()(DATA.test.example()))
