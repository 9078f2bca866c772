"""Own methods: found by name, keyed by their code, and refused in one sentence where they are none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import spurless
import spurless as sp
from spurless.core.errors import InputError, UnknownNameError
from spurless.fitting.protocol import Protocol, hash_run
from spurless.methods import make_method, method_named
from spurless.methods._user_method import config_dict
from spurless.train.config import TrainConfig

TRAIN = {"steps": 20, "lr": 0.1}


def test_a_name_does_what_the_object_does(mine: Path) -> None:
    data = sp.load("planted", n_train=200, seed=0)
    model = sp.build("linear", data, seed=0)
    named = sp.fit(f"{mine}:Decoupling", model, data, seed=0, train=TRAIN, strength="0.5")
    kind = method_named(f"{mine}:Decoupling")
    given = sp.fit(make_method(f"{mine}:Decoupling", strength=0.5), model, data, seed=0, train=TRAIN)
    assert isinstance(make_method(f"{mine}:Decoupling"), kind)  # a file that has not changed is run once
    assert torch.equal(named.model.head.weight, given.model.head.weight)  # type: ignore[arg-type]  # of a linear layer
    assert named.record.method == "decoupling"
    assert named.record.config["strength"] == 0.5
    erm = sp.fit("erm", model, data, seed=0, train=TRAIN)
    none = sp.fit(f"{mine}:Decoupling", model, data, seed=0, train=TRAIN, strength=0)
    assert torch.equal(none.model.head.weight, erm.model.head.weight)  # type: ignore[arg-type]
    assert not torch.equal(named.model.head.weight, erm.model.head.weight)  # type: ignore[arg-type]


def test_presets_options_and_typos_are_those_of_any_method(mine: Path) -> None:
    assert make_method(f"{mine}:Decoupling", "strong").config.strength == 3.0
    with pytest.raises(UnknownNameError, match=r"mine\.py:Decoupling is called 'strnog'. Did you mean 'strong'"):
        make_method(f"{mine}:Decoupling", "strnog")
    with pytest.raises(InputError, match=r"has no option 'strenght'. Did you mean 'strength'"):
        make_method(f"{mine}:Decoupling", strenght=1)


def test_other_code_is_another_run(mine: Path) -> None:
    data = sp.load("planted", n_train=50, seed=0)
    model, protocol = sp.build("linear", data, seed=0), Protocol(TrainConfig())
    old = make_method(f"{mine}:Decoupling")
    before = hash_run(protocol, old, model, data, 0).key
    assert hash_run(protocol, make_method(f"{mine}:Decoupling"), model, data, 0).key == before
    mine.write_text(mine.read_text().replace("square().mean()", "abs().mean()"))
    new = make_method(f"{mine}:Decoupling")
    assert hash_run(protocol, new, model, data, 0).key != before
    assert hash_run(protocol, old, model, data, 0).key == before  # it is what it was when it was made
    assert config_dict(new)["code"] != config_dict(old)["code"]
    assert "code" not in config_dict(make_method("erm"))


@pytest.mark.parametrize(
    ("called", "sentence"),
    [
        ("Decuopling", r"it does not define 'Decuopling' .expected a class with info.*Did you mean 'Decoupling'"),
        ("number", r"mine\.py:number: 'number' is not a method .expected a class, got int"),
        ("Bare", r"'Bare' has no info .expected info = Info"),
        ("NoInfo", r"'NoInfo' has no info"),
        ("Taken", r"the name 'erm' is taken by a method of the library. Change the name in info"),
        ("Spaced", r"the name of a method must be usable in file names .*got my/method"),
        ("NoPresets", r"'NoPresets' has no presets"),
        ("Numbers", r"the presets of 'Numbers' are not dataclass instances .expected instances of a dataclass"),
        ("NoFit", r"'NoFit' has no fit .expected fit.self, model, data, run"),
        ("NoRoom", r"cannot be created with its first preset: TypeError: .*positional argument"),
        ("Forgets", r"'Forgets' does not store its settings .expected self.config = config"),
    ],
)
def test_what_is_no_method_is_refused_in_one_sentence(mine: Path, called: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as raised:
        method_named(f"{mine}:{called}")
    assert "\n" not in str(raised.value)


def test_what_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.py: no such file"):
        method_named(f"{tmp_path / 'gone.py'}:Mine")
    with pytest.raises(UnknownNameError, match=r"No method is called 'grup-dro'. Did you mean 'group-dro'"):
        method_named("grup-dro")
    with pytest.raises(UnknownNameError, match=r"No method is called 'no_such_module_at_all:Mine'"):
        method_named("no_such_module_at_all:Mine")


def test_a_method_of_an_installed_package(mine: Path, tmp_path: Path) -> None:
    package = tmp_path / "methods_of_mine"
    package.mkdir()
    (package / "__init__.py").touch()
    mine.rename(package / "all.py")
    code = (
        "from spurless.methods import make_method; from spurless.methods._user_method import config_dict; "
        "print(len(config_dict(make_method('methods_of_mine.all:Decoupling'))['code']) > 8)"
    )
    source = Path(spurless.__path__[0]).parent
    paths = {"PYTHONPATH": f"{tmp_path}:{source}", "PATH": "/usr/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=paths, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr
