"""Tests of logging audits and repairs with spurless.train.tracking: numbers, settings, and the page with the run."""

import csv
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from spurless.core.findings import Audit, Finding
from spurless.core.records import GroupRow
from spurless.train import tracking
from spurless.train.tracking import Tracker, track_audit

USE = Finding("transplants", "The corner is followed", 0.4, True, 0.002, "40 %.", "Repair.")
AUDIT = Audit(
    (USE,), facts={"model": "net/a", "data": "birds", "accuracy": 0.8}, groups=(GroupRow("cow", 9, 0.6, 0.3, 0.8),)
)
NUMBERS = {"audit/accuracy": 0.8, "audit/worst_group": 0.6, "audit/severity/transplants": 0.4, "audit/flagged": 1.0}


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "audit.html").write_text("page")
    return tmp_path / "audit.html"


def test_csv_has_the_numbers_the_verdict_and_the_page(tmp_path: Path, page: Path) -> None:
    for _ in range(2):  # a second audit does not replace the first
        track_audit(f"csv:{tmp_path / 'logs'}", AUDIT, [page])
    folders = sorted((tmp_path / "logs").iterdir())
    assert len(folders) == 2
    for folder in folders:
        (row,) = csv.DictReader((folder / "metrics.csv").read_text().splitlines())
        assert {key: float(row[key]) for key in NUMBERS} == NUMBERS
        assert "verdict: shortcut" in (folder / "hparams.yaml").read_text()
        assert (folder / "audit.html").read_text() == "page"


def test_tensorboard_has_the_page(tmp_path: Path, page: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra 'track' is not installed")
    track_audit(f"tensorboard:{tmp_path / 'logs'}", AUDIT, [page])
    (folder,) = (tmp_path / "logs").iterdir()
    assert (folder / "audit.html").exists()
    assert any(path.name.startswith("events") for path in folder.iterdir())


class Experiment:
    """An experiment that notes its artifacts."""

    def __init__(self) -> None:
        self.artifacts: list[Any] = []

    def log_artifact(self, *artifact: Any) -> None:
        self.artifacts += [artifact]

    def finish(self, exit_code: int) -> None:
        assert exit_code == 0


class Artifact:
    def __init__(self, name: str, type: str) -> None:
        self.name, self.type, self.files = name, type, list[str]()

    def add_file(self, path: str) -> None:
        self.files.append(path)


@pytest.mark.parametrize("kind", ["mlflow", "wandb"])
def test_the_page_is_an_artifact(kind: str, tmp_path: Path, page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = ModuleType("wandb")
    wandb.Artifact = Artifact  # type: ignore[attr-defined]  # a stand-in
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    experiment, numbers = Experiment(), dict[str, float]()
    logger = SimpleNamespace(
        experiment=experiment,
        run_id="r",
        log_hyperparams=dict,
        log_metrics=lambda values, _step: numbers.update(values),
        finalize=str,
    )
    monkeypatch.setitem(tracking._OPENERS, kind, lambda _location, _name: logger)
    monkeypatch.setattr(tracking, "resolve_tracker", lambda track: f"{track}:{tmp_path}")
    Tracker(kind, "audit-net/a b", {}).end({"flagged": 1}, "audit", [page])
    assert numbers == {"audit/flagged": 1.0}
    ((*first, last),) = experiment.artifacts
    if kind == "mlflow":
        assert (first, last) == (["r"], str(page))
    else:
        assert (last.name, last.type, last.files) == ("audit-net-a-b", "report", [str(page)])
