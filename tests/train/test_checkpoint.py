"""Checkpoints: whole, private to their run, and free of pickle."""

import pickle
from pathlib import Path

import pytest
import torch

from spurless.core.errors import InputError
from spurless.train.checkpoint import Checkpoints


def test_what_was_saved_last_is_loaded(tmp_path: Path) -> None:
    points = Checkpoints(tmp_path / "new" / "folder", "key")
    assert points.load("train") is None
    for step in (1, 2):
        points.save("train", {"step": step, "weight": torch.tensor([1.5]), "history": [{"loss": 0.25}]})
    state = points.load("train")
    assert state is not None
    assert state["step"] == 2
    assert state["weight"].tolist() == [1.5]
    assert state["history"] == [{"loss": 0.25}]


def test_another_run_s_checkpoint_is_refused(tmp_path: Path) -> None:
    Checkpoints(tmp_path, "one").save("train", {})
    with pytest.raises(InputError, match="belongs to another run"):
        Checkpoints(tmp_path, "two").load("train")


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return print, ("opened",)

    (tmp_path / "stage-train.pt").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(InputError, match="the checkpoint cannot be read"):
        Checkpoints(tmp_path, "key").load("train")


def test_a_torn_file_is_a_sentence(tmp_path: Path) -> None:
    points = Checkpoints(tmp_path, "key")
    points.save("train", {"weight": torch.zeros(1000)})
    path = tmp_path / "stage-train.pt"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InputError, match=r"stage-train.pt: the checkpoint cannot be read.*Delete it to start again"):
        points.load("train")


def test_an_unwritable_folder_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot write here"):
        Checkpoints(tmp_path / "file" / "folder", "key").save("train", {})


def test_it_is_due_after_its_seconds(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path, "key", seconds=0.0).is_due("train")
    patient = Checkpoints(tmp_path, "key", seconds=1e9)
    assert not patient.is_due("train")
    assert not patient.is_due("train")


def test_clearing_removes_the_stages_and_the_empty_folder(tmp_path: Path) -> None:
    points = Checkpoints(tmp_path / "run", "key")
    points.save("scout", {})
    points.save("train", {})
    points.clear()
    assert not (tmp_path / "run").exists()


def test_clearing_removes_what_killed_saves_left(tmp_path: Path) -> None:
    points = Checkpoints(tmp_path / "points", "key")
    left = tmp_path / "points" / "inner" / f".stage-train.pt.{'0' * 32}.tmp"
    left.mkdir(parents=True)
    (left / "stage-train.pt").touch()
    points.clear()
    assert not (tmp_path / "points").exists()
