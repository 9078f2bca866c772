"""What every test may rely on: the same random numbers each time, and a cache of its own."""

import signal
from pathlib import Path

import pytest
import torch

# nohup ignores it, and the processes that tests start would inherit that
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _the_same_numbers_each_time() -> None:
    torch.manual_seed(0)  # tests may draw from the global generator; the package does not


@pytest.fixture(autouse=True)
def _private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("SPURLESS_CACHE", str(folder))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "runtime"))  # for locks
    return folder


OWN_METHODS = """
from __future__ import annotations

from dataclasses import dataclass

from torch.nn.functional import cross_entropy

from spurless.data.loader import shuffled_order
from spurless.methods.base import Info
from spurless.train.loop import minimise
from spurless.train.step import Stage


@dataclass(frozen=True)
class Config:
    strength: float = 0.1


class Decoupling:
    info = Info("decoupling", "Pezeshki et al. 2021", "penalise large logits")
    presets = {"plain": Config(), "strong": Config(3.0)}

    def __init__(self, config=Config()):
        self.config = config

    def fit(self, model, data, run):
        def objective(model, batch):
            logits = model(batch.x)
            return cross_entropy(logits, batch.y) + self.config.strength / 2 * logits.square().mean()

        batches = run.loader(data.train, shuffled_order(len(data.train), run.seeds.child("train")))
        minimise(model, batches, objective, run, Stage("train", static=True))
        return model


class Repair(Decoupling):
    info = Info("my-repair", "none", "train a trained model once more", start="trained")


number = 7
class Bare: ...
class NoInfo: info = "mine"
class Taken(Decoupling): info = Info("erm", "none", "has the name of another")
class Spaced(Decoupling): info = Info("my/method", "none", "cannot be a file")
class NoPresets(Decoupling): presets = {}
class Numbers(Decoupling): presets = {"plain": 3}
class NoFit:
    info, presets = Info("no-fit", "none", "does nothing"), {"plain": Config()}
class NoRoom(Decoupling):
    def __init__(self): ...
class Forgets(Decoupling):
    def __init__(self, config): ...
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file with methods of one's own, good ones and bad ones."""
    (tmp_path / "mine.py").write_text(OWN_METHODS)
    return tmp_path / "mine.py"
