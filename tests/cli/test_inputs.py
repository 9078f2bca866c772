"""Data and models that the options of a command name."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import save_file

import spurless as sp
from spurless.cli.console import handle_warnings
from spurless.cli.inputs import add_tokenizer, describe_files, open_data, resolve_named_options
from spurless.cli.outputs import check_onnx_path, export_saved
from spurless.cli.params import Columns
from spurless.cli.weights import build_model, check_no_selector, open_model, resolve_seed
from spurless.core.errors import IncompleteDataWarning, InputError, SpurlessError, SpurlessWarning
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.split import Splits
from spurless.methods.deep_gamblers import attach_reservation
from spurless.methods.disent import make_two_encoders
from spurless.methods.selectivenet import attach_gate
from spurless.models.classifier import Classifier

Write = Callable[..., Path]


def shape(splits: Splits) -> tuple[int, ...]:
    example = splits.train.example()
    assert isinstance(example, torch.Tensor)
    return tuple(example.shape[1:])


def test_name_wins_over_a_folder_of_that_name(here: Path) -> None:
    (here / "planted").mkdir()
    assert open_data("planted", {"n_train": "50"}, Columns(), 0).name == "planted"


def test_seed_is_that_of_the_run_unless_the_data_have_their_own(here: Path) -> None:
    assert here.is_dir()
    first, same, other = (
        open_data("planted", {"n_train": 50, **options}, Columns(), seed).train.x
        for options, seed in (({}, 4), ({"seed": "4"}, 0), ({}, 0))
    )
    assert isinstance(first, torch.Tensor)
    assert isinstance(same, torch.Tensor)
    assert isinstance(other, torch.Tensor)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_columns_of_a_csv_are_the_ones_named(csv: Write) -> None:
    splits = open_data(str(csv()), {}, Columns("y", "place, x1", "split", "x2"), 0)
    assert shape(splits) == (1,)
    assert splits.groups.labels == ("cat", "dog")
    assert len(splits.groups.attributes) == 2 * 7


def test_images_take_the_size_said(folder: Path) -> None:
    assert shape(open_data(str(folder), {"size": 5}, Columns(), 0)) == (3, 5, 5)
    with pytest.raises(InputError, match="option 'size' must be a whole number"):
        open_data(str(folder), {"size": [5]}, Columns(), 0)


def test_model_is_built_for_the_data(csv: Write) -> None:
    splits = open_data(str(csv()), {}, Columns("y", "place", "split"), 0)
    model = build_model("mlp", splits, 3, {"width": "4"})
    again = build_model("mlp", splits, 3, {"width": 4})
    assert (model.n_classes, model.n_features) == (2, 4)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    with pytest.raises(InputError, match="mlp has no option 'data'"):
        build_model("mlp", splits, 3, {"data": "x"})


def test_root_of_a_named_set_is_its_option(here: Path) -> None:
    assert resolve_named_options("waterbirds", {"size": "8"}, Columns(root=here)) == {"size": "8", "root": str(here)}
    assert resolve_named_options("waterbirds", {"root": "a"}, Columns(root=here))["root"] == str(here)
    assert resolve_named_options("waterbirds", {"root": "a"}, Columns()) == {"root": "a"}
    with pytest.raises(InputError, match=r"dataset 'planted' needs no files \(got --root sets\)"):
        open_data("planted", {}, Columns(root=Path("sets")), 0)
    with pytest.raises(InputError, match=r"are for CSV files \(got --data waterbirds\)"):
        open_data("waterbirds", {}, Columns(label="y", root=here), 0)


def test_lazy_leaves_own_images_where_they_are(folder: Path) -> None:
    (folder / "light" / "7.png").write_bytes(b"no picture")
    splits = open_data(str(folder), {}, Columns(), 0, lazy=True)
    assert splits.train.streamed
    assert sum(map(len, (splits.train, splits.val, splits.test))) == 30
    with pytest.raises(InputError, match=r"7\.png: the image cannot be read"):
        open_data(str(folder), {}, Columns(), 0)


def test_lazy_keeps_no_decoded_images_of_a_named_set_unless_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    from spurless.data import DATASETS

    @dataclass(frozen=True)
    class Config:
        cache: bool | None = None
        seed: int = 0

    made: list[Config] = []
    row = DATASETS["planted"]

    def make(config: Config) -> Splits:
        made.append(config)
        splits: Splits = row.make(row.config(n_train=20))
        return splits

    monkeypatch.setitem(DATASETS, "planted", replace(row, config=Config, make=make))
    for options, lazy in (({}, False), ({}, True), ({"cache": "yes"}, True)):
        open_data("planted", options, Columns(), 0, lazy=lazy)
    assert [config.cache for config in made] == [None, False, True]


def test_loading_is_told_to_the_bar_unless_it_shall_be_quiet(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import contextmanager

    from spurless.cli import inputs as sources
    from spurless.core.progress import progress_reporter
    from spurless.data import DATASETS

    heard: list[tuple[object, ...]] = []
    asked: list[bool] = []

    @contextmanager
    def bar(quiet: bool) -> Iterator[Any]:
        asked.append(quiet)
        yield None if quiet else lambda *facts: heard.append(facts)

    row = DATASETS["planted"]
    monkeypatch.setattr(sources, "progress_bar", bar)
    monkeypatch.setitem(
        DATASETS,
        "planted",
        replace(row, make=lambda config: progress_reporter("decode", 2, patience=0)(2) or row.make(config)),
    )
    for quiet, rank in ((False, "0"), (True, "0"), (False, "1")):
        monkeypatch.setenv("LOCAL_RANK", rank)
        open_data("planted", {"n_train": 20}, Columns(), 0, quiet)
    assert asked == [False, True, True]
    assert heard == [("decode", 2, 2, "")]
    assert here.is_dir()


def test_what_is_missing_is_noted_and_other_warnings_go_on() -> None:
    passed, missing = list[str](), list[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: passed.append(str(message))
        with handle_warnings(IncompleteDataWarning, missing.append):
            warnings.warn("Half of it.", IncompleteDataWarning, stacklevel=1)
            warnings.warn("A trap.", SpurlessWarning, stacklevel=1)
    assert (missing, passed) == (["Half of it."], ["A trap."])


def test_files_are_said_for_own_named_and_embedded_data(folder: Path) -> None:
    own = open_data(str(folder), {}, Columns(), 0)
    birds = replace(own, options={"root": str(folder)})
    assert describe_files(str(folder), own) == {"found": [], "place": str(folder)}
    assert describe_files("planted", own) == {"found": [], "place": None}
    assert describe_files("waterbirds", birds) == {"found": [], "place": str(folder)}
    (folder / "waterbirds").mkdir()
    (folder / "waterbirds" / "metadata.csv").write_text("")
    assert describe_files("waterbirds", birds) == {"found": ["metadata.csv"], "place": str(folder / "waterbirds")}


@pytest.mark.parametrize(("words", "quiet"), [((), False), (("--quiet",), True), (("--json",), True)])
def test_fit_draws_no_bar_where_none_is_wanted(
    cli: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], quiet: bool
) -> None:
    from importlib import import_module

    asked: list[bool] = []

    def stop(source: str, options: Any, columns: Columns, seed: int, quiet: bool = False, **_: Any) -> Splits:
        asked.append(quiet)
        raise InputError("stop", got=(source, options, columns, seed))

    monkeypatch.setattr(import_module("spurless.cli.inputs"), "open_data", stop)
    assert cli("fit", "erm", *words).status == 2
    assert asked == [quiet]


def test_a_csv_of_texts_is_opened_by_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("review,kind\n" + "".join(f"good {i},{'a' if i % 2 else 'b'}\n" for i in range(20)))
    options = {"tokenizer": "words", "max_length": "8"}
    splits = open_data(str(path), options, Columns(label="kind", text="review"), 0, quiet=True)
    assert splits.options["max_length"] == 8
    assert isinstance(splits.train.x, dict)
    with pytest.raises(
        InputError, match=r"texts have no option 'size' \(expected tokenizer, max_length or delimiter\)"
    ):
        open_data(str(path), {"size": "8"}, Columns(label="kind", text="review"), 0, quiet=True)


def test_a_dataset_of_hugging_face_on_disk_is_opened_by_its_folder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    images = [Image.new("RGB", (8, 8), (i, 0, 0)) for i in range(40)]
    made = {"image": images, "label": [i % 2 for i in range(40)], "place": [i % 3 for i in range(40)]}
    table = datasets.Dataset.from_dict(made).cast_column("image", datasets.Image())
    datasets.DatasetDict({"train": table}).save_to_disk(tmp_path / "set")
    splits = open_data(str(tmp_path / "set"), {}, Columns(attribute="place"), seed=0, quiet=True)
    assert len(splits.train) + len(splits.val) + len(splits.test) == 40
    assert splits.train.has_attributes
    with pytest.raises(InputError, match=r"no column is called 'kind'"):
        open_data(str(tmp_path / "set"), {}, Columns(label="kind"), seed=0, quiet=True)
    with pytest.raises(InputError, match=r"set: a Hugging Face dataset takes only --label, .* own splits"):
        open_data(str(tmp_path / "set"), {}, Columns(split="place"), seed=0, quiet=True)


def test_texts_of_hugging_face_on_disk_are_opened_by_their_column(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    made = {"review": [f"good {i}" for i in range(40)], "kind": ["a" if i % 2 else "b" for i in range(40)]}
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(made)}).save_to_disk(tmp_path / "set")
    columns = Columns(label="kind", text="review")
    splits = open_data(str(tmp_path / "set"), {"tokenizer": "words", "max_length": "8"}, columns, seed=0, quiet=True)
    assert splits.options["max_length"] == 8
    assert isinstance(splits.train.x, dict)
    assert len(splits.train) + len(splits.val) + len(splits.test) == 40
    with pytest.raises(InputError, match=r"texts have no option 'size'"):
        open_data(str(tmp_path / "set"), {"size": "8"}, columns, seed=0, quiet=True)


@pytest.mark.parametrize(("result", "character"), [(";", ";"), ("tab", "\t"), ("\\t", "\t"), ("|", "|")])
def test_cells_are_cut_where_the_user_says(csv: Write, here: Path, result: str, character: str) -> None:
    path = csv()
    other = here / "other.csv"
    other.write_text(path.read_text().replace(",", character))
    columns = Columns("y", "place", "split")
    as_usual, cut = open_data(str(path), {}, columns, 0), open_data(str(other), {"delimiter": result}, columns, 0)
    assert isinstance(as_usual.train.x, torch.Tensor)
    assert isinstance(cut.train.x, torch.Tensor)
    assert torch.equal(as_usual.train.x, cut.train.x)
    assert cut.groups == as_usual.groups
    texts = open_data(str(other), {"delimiter": result, "tokenizer": "words"}, replace(columns, text="place"), 0)
    assert len(texts.train) == len(cut.train)


def test_a_delimiter_is_one_character_and_of_a_table(csv: Write, folder: Path) -> None:
    for result in ("", ";;", '"'):
        with pytest.raises(InputError, match="option 'delimiter' must be one character"):
            open_data(str(csv()), {"delimiter": result}, Columns("y"), 0)
    with pytest.raises(InputError, match="data have no option 'delimiter'"):
        open_data(str(folder), {"delimiter": ";"}, Columns(), 0)


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


@pytest.mark.parametrize("name", ["torchvision:resnet50", "timm:test_resnet"])
def test_trained_weights_need_no_file_of_the_weights_they_started_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    library, _, member = name.partition(":")
    published = torchvision.models.resnet50() if library == "torchvision" else None
    if published is None:
        published = pytest.importorskip("timm").create_model(member)
    folder = tmp_path / "weights"
    folder.mkdir()
    metadata = {"stride": "v1"} if library == "torchvision" else None
    file = folder / f"{member}.safetensors"
    save_file({key: value.contiguous() for key, value in published.state_dict().items()}, file, metadata)
    monkeypatch.setenv("SPURLESS_DATA", str(tmp_path))
    data = sp.load("colored-digits", seed=0, size=32)
    model = sp.build(name, data, pretrained=True).eval()
    path = saved(tmp_path / "mine.safetensors", model)
    file.unlink()
    opened = open_model(path, None, {}, data, seed=0).eval()
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(opened(x), model(x))
    assert opened.options == model.options


def test_the_seed_of_the_data_is_that_of_the_weights_unless_the_user_says_another(tmp_path: Path) -> None:
    path, model = tmp_path / "mine.safetensors", sp.build("mlp", DATA, width=5)
    sp.save_weights(path, model, seed=3)
    assert resolve_seed(path, None) == 3
    assert resolve_seed(path, 3) == 3
    with pytest.warns(SpurlessWarning, match=r"was trained with --seed 3: .* examples"):
        assert resolve_seed(path, 1) == 1
    assert resolve_seed(saved(path, model), None) == 0
    (tmp_path / "config.json").touch()
    assert resolve_seed(tmp_path, 2) == 2  # a folder contains no seed


def test_data_are_cut_as_they_were_for_training(here: Path, cli: Callable[..., Any]) -> None:
    x = torch.randn(90, generator=torch.Generator().manual_seed(0)).tolist()
    table = here / "noise.csv"
    table.write_text("a,b,y\n" + "".join(f"{v:.6f},{v * v:.6f},{n % 2}\n" for n, v in enumerate(x)))
    result = ["--data", str(table), "--label", "y", "--json"]
    run = ["fit", "erm", *result, "--model", "mlp", "--seed", "1", "--epochs", "3", "--out", str(here / "runs")]
    fitted = json.loads(cli(*run).out)
    weights = next(str(path) for path in (here / "runs").glob("erm*.safetensors"))
    again = json.loads(cli("eval", weights, *result).out)
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
    result = ["--label", "y", "--json"]
    run = ["fit", "erm", "--data", str(table), *result, "--model", "mlp", "--epochs", "3", "--out", str(here / "runs")]
    fitted = json.loads(cli(*run).out)
    weights = next(str(path) for path in (here / "runs").glob("erm*.safetensors"))
    swapped = cli("eval", weights, "--data", str(other), *result)
    assert swapped.status != 0
    assert "columns in another order" in swapped.err
    mended = json.loads(cli("eval", weights, "--data", str(other), "--features", "a,b", *result).out)
    assert mended["metrics"]["average"] == fitted["metrics"]["average"]
    called = cli("eval", weights, "--data", str(renamed), *result)
    assert "trained on the classes no, yes; the data have negative, positive" in " ".join(called.err.split())
    assert json.loads(called.out)["metrics"]["average"] == fitted["metrics"]["average"]
    splits = open_data(str(table), {}, Columns(label="y"), 0, quiet=True)
    sp.save_weights("own.safetensors", sp.build("mlp", splits), data={"labels": ["yes", "no"], "options": {}})
    with pytest.raises(InputError, match=r"classes in another order.*expected yes, no, got no, yes"):
        open_model(Path("own.safetensors"), None, {}, splits, seed=0)


def test_a_model_that_was_said_wins_over_the_one_in_the_file(tmp_path: Path) -> None:
    path = saved(tmp_path / "mine.safetensors", sp.build("mlp", DATA, width=5))
    with pytest.raises(InputError, match=r"do not fit"):
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
    with pytest.raises(InputError, match=r"have a selector, which would be stale"):
        check_no_selector(path)


def test_a_model_with_two_encoders_is_built_with_both(tmp_path: Path) -> None:
    twins = make_two_encoders(sp.build("mlp", DATA, width=5, seed=3))
    opened = open_model(saved(tmp_path / "twins.safetensors", twins), None, {}, DATA, seed=0)
    x = torch.randn(4, 2)
    assert opened.name == "mlp, two encoders"
    assert torch.equal(opened.eval()(x), twins.eval()(x))


@pytest.mark.slow
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
    options = add_tokenizer({}, columns, None, Path("mine"))
    assert options == {"tokenizer": "mine"}
    assert add_tokenizer({"tokenizer": "words"}, columns, None, Path("mine")) == {"tokenizer": "words"}
    assert add_tokenizer({}, columns, "hf:mine") == {"tokenizer": "mine"}
    assert add_tokenizer({}, columns, "token-mean") == add_tokenizer({}, Columns(), "hf:mine") == {}
    splits = open_data("texts.csv", options, columns, 0, quiet=True)
    model = open_model(Path("mine"), None, {}, splits, seed=0)
    x = splits.test.example(5)
    assert isinstance(x, dict)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), net(**x).logits)
    path = saved(here / "ours.safetensors", model)
    assert add_tokenizer({}, columns, None, path) == {"tokenizer": "mine"}
    result = cli("eval", "mine", "--data", "texts.csv", "--text", "text", "--label", "label", "--split", "split")
    assert result.status == 0, result.err
    with pytest.raises(InputError, match="a folder needs no --model"):
        open_model(Path("mine"), "token-mean", {}, splits, seed=0)
    (here / "empty").mkdir()
    with pytest.raises(InputError, match="the folder contains no model"):
        resolve_seed(here / "empty", None)


def test_onnx_that_cannot_be_written_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spurless.models import export

    monkeypatch.setattr(export, "find_spec", lambda _: object())
    check_onnx_path(None, None, seeds=3)
    (tmp_path / "m").touch()
    check_onnx_path(tmp_path / "deep" / "m.onnx", tmp_path / "m")
    with pytest.raises(InputError, match="--onnx writes one file, but --seeds trains several models"):
        check_onnx_path(tmp_path / "m.onnx", None, seeds=2)
    with pytest.raises(InputError, match="would be overwritten"):
        check_onnx_path(tmp_path / "m", tmp_path / "m")
    with pytest.raises(InputError, match="cannot write"):
        check_onnx_path(tmp_path, None)
    monkeypatch.setattr(export, "find_spec", lambda _: None)
    with pytest.raises(SpurlessError, match="needs the package 'onnx'"):
        check_onnx_path(tmp_path / "m.onnx", None)


def test_what_a_run_saved_is_written_whatever_model_the_user_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spurless.models import export

    seen: list[Classifier] = []

    def write(path: Path, model: Classifier, example: torch.Tensor, *, compact: bool) -> Path:
        assert not compact
        assert example.shape == (2, 2)
        seen.append(model)
        return path

    monkeypatch.setattr(export, "write_onnx", write)
    own = tmp_path / "net.py"
    own.write_text("from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(2, 2))\n")
    for name, model in (("mlp", sp.build("mlp", DATA, width=5)), (f"{own}:net", sp.build(f"{own}:net", DATA))):
        weights = saved(tmp_path / "mine.safetensors", model)
        assert export_saved(tmp_path / "m.onnx", weights, name, {}, DATA, 0, compact=False) == tmp_path / "m.onnx"
        assert torch.equal(seen[-1](DATA.test.example()), model.eval()(DATA.test.example()))
