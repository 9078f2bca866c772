"""Starting points: cached by content, and the cache is never in the way."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from spurless.core.errors import DivergedError, SpurlessWarning
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.split import Splits
from spurless.fitting import fit
from spurless.fitting.protocol import train_by_erm, warn_if_untrained
from spurless.methods.base import Info
from spurless.methods.erm import ERM, ERMConfig
from spurless.models import Classifier, build
from spurless.train.checkpoint import Checkpoints
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, Run, make_run

DATA = planted(PlantedConfig(n_train=200, n_val=50, n_test=50))


def run(lr: float = 0.1) -> Run:
    return make_run(Compute("cpu"), 0, TrainConfig(epochs=1, lr=lr))


def test_the_cached_start_is_the_trained_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path))
    first = train_by_erm(build("linear", DATA), DATA, run(), "content")
    second = train_by_erm(build("linear", DATA), DATA, run(), "content")
    assert first.trained
    assert second.trained
    assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))
    train_by_erm(build("linear", DATA), DATA, run(), "other content")
    train_by_erm(build("linear", DATA), DATA, run(lr=0.2), "content")
    assert len(list((tmp_path / "tensors").iterdir())) == 3


@pytest.mark.parametrize("damage", ["cut", "flip", "swap", "text"])
def test_a_damaged_start_is_trained_again(damage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path))
    first = train_by_erm(build("linear", DATA), DATA, run(), "content")
    (path,) = (tmp_path / "tensors").iterdir()
    content = path.read_bytes()
    if damage == "swap":  # for an intact file of another start
        train_by_erm(build("linear", DATA), DATA, run(lr=0.2), "content")
        (other,) = {*(tmp_path / "tensors").iterdir()} - {path}
        path.write_bytes(other.read_bytes())
    else:
        weight = first.state_dict()["head.weight"].numpy().tobytes()
        flipped = content.replace(weight, bytes(255 - byte for byte in weight))
        path.write_bytes({"cut": content[:-1], "flip": flipped, "text": b"not weights"}[damage])
    again = train_by_erm(build("linear", DATA), DATA, run(), "content")
    assert all(map(torch.equal, first.state_dict().values(), again.state_dict().values()))


def test_the_record_of_a_cached_start_has_its_history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path))
    train = {"epochs": 3, "lr": 0.1}
    trained, cached = (fit("afr", build("linear", DATA), DATA, train=train, steps=5).record for _ in range(2))
    assert [row["stage"] for row in cached.history].count("erm") == 3
    assert cached.history == trained.history


def test_a_start_that_its_last_step_breaks_has_diverged_and_is_not_cached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path))
    wild = make_run(Compute("cpu"), 0, TrainConfig(steps=1, lr=1e38))
    with pytest.raises(DivergedError, match="Training 'erm' diverged: the model's output was not finite by step 1"):
        train_by_erm(build("mlp", DATA), DATA, wild, "content")
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(SpurlessWarning, match="Could not write to the cache"):
        assert train_by_erm(build("linear", DATA), DATA, run(), "content").trained


def test_a_good_model_is_not_warned_of(
    recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path))
    model = train_by_erm(build("linear", DATA), DATA, run(), "content")
    warn_if_untrained(model, DATA.train, run())
    assert len(recwarn) == 0


class Twice:
    """Repairs a model by training it once more, in a stage that has the name of ERM's."""

    info: ClassVar[Info] = Info("twice", "nobody", "trains once more", start="trained")
    presets: ClassVar[Mapping[str, ERMConfig]] = {"plain": ERMConfig()}

    def __init__(self) -> None:
        self.config = ERMConfig()

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        return ERM().fit(model, data, run)


def test_a_stage_of_the_same_name_is_trained_and_not_taken_for_erm_s(tmp_path: Path) -> None:
    model = build("linear", DATA)
    train = {"epochs": 2, "lr": 0.1}
    fitted = fit(Twice(), model, DATA, train=train, compute=Compute("cpu"), folder=tmp_path)
    assert [row["stage"] for row in fitted.record.history] == ["erm", "erm", "train", "train"]
    once = fit("erm", model, DATA, train=train, compute=Compute("cpu"))
    again = fit("erm", once.model, DATA, train=train, compute=Compute("cpu"))
    assert all(map(torch.equal, fitted.model.state_dict().values(), again.model.state_dict().values()))
    Checkpoints(tmp_path / fitted.record.key, fitted.record.key).clear()
    assert list(tmp_path.iterdir()) == []
