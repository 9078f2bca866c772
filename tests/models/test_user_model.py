"""Own models: a user's factory is found, called and taken at its word; every way to fail is one sentence."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from spurless.core.errors import InputError, UnknownNameError
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.loaders.text import from_texts
from spurless.models import build, get_architecture

DATA = planted(PlantedConfig(n_train=40, n_val=20, n_test=20))

NETS = """
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from spurless import Classifier

seen = []


@dataclass
class Shape:  # finds itself by the name of its module
    width: int = 5


def plain():
    return nn.Sequential(nn.Linear(2, Shape().width), nn.ReLU(), nn.Linear(5, 2))


def told(n_classes, input_shape, width=4):
    return nn.Sequential(nn.Linear(input_shape[0], width), nn.ReLU(), nn.Linear(width, n_classes))


class Net(nn.Module):
    def __init__(self, n_classes=7):
        super().__init__()
        self.answer = nn.Linear(2, n_classes)
        self.unused = nn.Linear(2, 9)

    def forward(self, x):
        return self.answer(x)


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        extra = self.second(x)
        return self.first(x) if extra is not None else x


def parts():
    return Classifier(nn.Flatten(), nn.Linear(2, 2))


def wordy():
    return Words()


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(40000, 6), nn.Linear(6, 2)

    def forward(self, input_ids, attention_mask, token_type_ids=None):
        return self.head((self.words(input_ids) * attention_mask[..., None]).mean(dim=1))


def softened():
    return nn.Sequential(nn.Linear(2, 2), nn.Softmax(dim=1))


def headless():
    return nn.Sequential(nn.Flatten(), nn.ReLU())


def wide():
    return nn.Linear(2, 12)


def broken():
    raise KeyError("no such layer")


def leaving():
    raise SystemExit(3)


def greedy(width):
    return nn.Linear(width, 2)


def number():
    return 7


instance = nn.Linear(2, 2)
answer = 42
"""


@pytest.fixture
def nets(tmp_path: Path) -> Path:
    (tmp_path / "nets.py").write_text(NETS)
    return tmp_path / "nets.py"


def test_a_factory_is_called_with_what_it_asks_for(nets: Path) -> None:
    model = build(f"{nets}:told", DATA)
    assert (model.n_features, model.n_classes, model.trained) == (4, 2, False)
    assert build(f"{nets}:plain", DATA).n_features == 5
    assert build(f"{nets}:Net", DATA).head_path == "answer"  # it runs; the layer that was added last does not


def test_records_tell_file_factory_head_and_content(nets: Path) -> None:
    model = build(f"{nets}:plain", DATA)
    assert model.name == f"{nets.resolve()}:plain"
    assert {key: model.options[key] for key in ("n_classes", "input_shape", "head")} == {
        "n_classes": 2,
        "input_shape": (2,),
        "head": "2",
    }
    again = build(model.name, **model.options)
    assert again.options == model.options
    nets.write_text(NETS.replace("nn.ReLU(), nn.Linear(5", "nn.Tanh(), nn.Linear(5"))
    assert build(f"{nets}:plain", DATA).options["code"] != model.options["code"]  # read anew
    with pytest.raises(InputError, match=r"nets\.py:plain: the file has changed since"):
        build(model.name, **model.options)


def test_the_weights_come_from_the_seed(nets: Path) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    weights = [build(f"{nets}:plain", DATA, seed=seed).head.weight for seed in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])  # type: ignore[arg-type]  # of a linear layer
    assert not torch.equal(weights[0], weights[2])  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), state)


def test_the_head_may_be_named_and_trained_be_said(nets: Path) -> None:
    with pytest.raises(InputError, match=r"Branch does not end with its layer 'first'|'second'.*-O head=NAME.*: first"):
        build(f"{nets}:Branch", DATA, head="second")
    model = build(f"{nets}:Branch", DATA, head="first", trained="true")
    assert (model.head_path, model.trained) == ("first", True)


def test_a_classifier_is_taken_as_it_is(nets: Path) -> None:
    model = build(f"{nets}:parts", DATA)
    assert isinstance(model.backbone, nn.Flatten)
    texts = from_texts(["good film", "bad film"] * 20, [0, 1] * 20, tokenizer="words")
    with pytest.raises(InputError, match=r"nets\.py:parts: own model does not accept this input: .*input_ids"):
        build(f"{nets}:parts", texts)


def test_texts_come_as_the_words_of_the_call(nets: Path) -> None:
    texts = from_texts(["good film", "bad film"] * 20, [0, 1] * 20, tokenizer="words")
    assert build(f"{nets}:wordy", texts).head_path == "head"
    with pytest.raises(InputError, match=r"nets\.py:wordy: Words does not accept this input"):
        build(f"{nets}:wordy", DATA)
    with pytest.raises(InputError, match=r"nets\.py:plain: Sequential does not accept this input: .*input_ids"):
        build(f"{nets}:plain", texts)


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        ("make", r"nets\.py:make: it does not define 'make' .expected a function that makes a module.\. It has: "),
        ("plian", r"it does not define 'plian' .*Did you mean 'plain'\?"),
        ("broken", r"nets\.py:broken: the factory failed: KeyError: 'no such layer'\.$"),
        ("leaving", r"the factory failed: SystemExit: it exits Python"),
        ("greedy", r"the factory failed: TypeError: .*'width'"),
        ("number", r"the factory does not return a module .expected nn.Module, got int"),
        ("instance", r"'instance' is not a factory .expected a function or a class .*, got a module"),
        ("answer", r"'answer' is not a factory .*got int"),
        ("headless", r"nets\.py:headless: Sequential has no linear layer, so it has no head. End the network with"),
        ("softened", r"does not end with its layer '0'.*a softmax after it.*-O head=NAME"),
        ("wide", r"the module has 12 outputs but the data have 2 classes. Add a parameter n_classes"),
    ],
)
def test_what_can_go_wrong_is_one_sentence(nets: Path, factory: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as raised:
        build(f"{nets}:{factory}", DATA)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def make(:\n", r"bad\.py: cannot be run: SyntaxError: .*, line 1"),
        ("import no_such_package_at_all\n", r"bad\.py: cannot be run: ModuleNotFoundError: .*no_such_package_at_all"),
        ("raise ValueError('not today')\n", r"bad\.py: cannot be run: ValueError: not today"),
        ("import sys\nsys.exit(1)\n", r"bad\.py: cannot be run: SystemExit: it exits Python"),
    ],
)
def test_a_file_that_does_not_run_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(InputError, match=sentence):
        build(f"{tmp_path / 'bad.py'}:make", DATA)


def test_what_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.py: no such file"):
        build(f"{tmp_path / 'gone.py'}:make", DATA)
    with pytest.raises(InputError, match=r"unknown module 'no_such.nets'. Install it, set PYTHONPATH, or pass its"):
        build("no_such.nets:make", DATA)
    with pytest.raises(
        UnknownNameError, match=r"No model is called 'tochvision:resnet18'. Did you mean 'torchvision:NAME'"
    ):
        build("tochvision:resnet18", DATA)


def test_code_is_never_fetched() -> None:
    with pytest.raises(InputError, match=r"code is not downloaded"):
        build("https://example.org/nets.py:make", DATA)


def test_the_form_alone_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("raise SystemExit('I ran')\n")
    row = get_architecture(f"{tmp_path / 'loud.py'}:make")
    assert row.runs_user_code
    assert not get_architecture("timm:resnet18").runs_user_code
    assert not replace(row, runs_user_code=False).runs_user_code


def test_a_file_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "layers_of_mine.py").write_text("WIDTH = 6\n")
    text = "def make():\n    from torch import nn\n    from layers_of_mine import WIDTH\n"
    (tmp_path / "nets.py").write_text(text + "    return nn.Sequential(nn.Linear(2, WIDTH), nn.Linear(WIDTH, 2))\n")
    before = list(sys.path)
    assert build(f"{tmp_path / 'nets.py'}:make", DATA).n_features == 6
    assert sys.path == before
    del sys.modules["layers_of_mine"]


def test_a_module_of_an_installed_package(tmp_path: Path) -> None:
    package = tmp_path / "mine_of_all"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "nets.py").write_text(NETS)
    code = (
        "from spurless.data.datasets.synthetic import planted; from spurless.models import build; "
        "model = build('mine_of_all.nets:told', planted()); print(model.name, model.options['code'])"
    )
    paths = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=paths, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    name, mark = done.stdout.split()
    assert name == "mine_of_all.nets:told"
    assert len(mark) > 8
