"""Starting points: cached by content, and the cache is never in the way."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from spurless.bench.fitting import fit
from spurless.bench.starting import trained_by_erm, warn_if_untrained
from spurless.core.errors import Diverged, SpurlessWarning
from spurless.data.grouped import Splits
from spurless.data.planted import PlantedConfig, planted
from spurless.methods.base import Info
from spurless.methods.erm import ERM, ERMConfig
from spurless.models import Classifier, build
from spurless.train.checkpoint import Checkpoints
from spurless.train.config import TrainConfig
from spurless.train.run import Engine, Run, start

DATA = planted(PlantedConfig(n_train=200, n_val=50, n_test=50))


def run(lr: float = 0.1) -> Run:
    return start(Engine("cpu"), 0, TrainConfig(epochs=1, lr=lr))


def test_the_cached_start_is_the_trained_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path))
    first = trained_by_erm(build("linear", DATA), DATA, run(), "content")
    second = trained_by_erm(build("linear", DATA), DATA, run(), "content")
    assert first.trained
    assert second.trained
    assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))
    trained_by_erm(build("linear", DATA), DATA, run(), "other content")
    trained_by_erm(build("linear", DATA), DATA, run(lr=0.2), "content")
    assert len(list(tmp_path.iterdir())) == 3


def test_a_start_that_its_last_step_breaks_has_diverged_and_is_not_cached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path))
    wild = start(Engine("cpu"), 0, TrainConfig(steps=1, lr=1e38))
    with pytest.raises(Diverged, match="Training 'erm' diverged: what the model says was not finite by step 1"):
        trained_by_erm(build("mlp", DATA), DATA, wild, "content")
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(SpurlessWarning, match="The trained starting point was not cached"):
        assert trained_by_erm(build("linear", DATA), DATA, run(), "content").trained


def test_a_good_model_is_not_warned_of(
    recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path))
    model = trained_by_erm(build("linear", DATA), DATA, run(), "content")
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
    fitted = fit(Twice(), model, DATA, train=train, engine=Engine("cpu"), folder=tmp_path)
    assert [row["stage"] for row in fitted.record.history] == ["erm", "erm", "train", "train"]
    once = fit("erm", model, DATA, train=train, engine=Engine("cpu"))
    again = fit("erm", once.model, DATA, train=train, engine=Engine("cpu"))
    assert all(map(torch.equal, fitted.model.state_dict().values(), again.model.state_dict().values()))
    Checkpoints(tmp_path / fitted.record.key, fitted.record.key).clear()
    assert list(tmp_path.iterdir()) == []
