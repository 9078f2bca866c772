"""Provenance: versions, commit and hardware."""

import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
import torch

import spurless
from spurless.core import provenance
from spurless.core.provenance import git_commit, hardware, versions


def test_the_commit_is_a_short_hash_with_a_mark_if_changed() -> None:
    found = git_commit()
    if (Path(provenance.__file__).parents[3] / ".git").exists():
        assert found is not None
        assert re.fullmatch(r"[0-9a-f]{12,40}\+?", found)
    else:
        assert found is None


def test_the_mark_follows_the_tracked_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "src" / "spurless" / "core" / "provenance.py"
    module.parent.mkdir(parents=True)
    module.write_text("one\n")
    readme = tmp_path / "README.md"
    readme.write_text("one\n")
    monkeypatch.setattr(provenance, "__file__", str(module))
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    fresh = git_commit.__wrapped__  # past the cache

    assert fresh() is None  # no repository
    git(tmp_path, "init", "--quiet")
    assert fresh() is None  # no commit
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=n", "-c", "user.email=e@e", "commit", "--quiet", "-m", "m")
    clean = fresh()
    assert re.fullmatch("[0-9a-f]{12}", str(clean))
    readme.write_text("two\n")
    (module.parent / "notes.txt").write_text("untracked")
    assert fresh() == clean  # neither decides a number
    module.write_text("two\n")
    assert fresh() == f"{clean}+"


def test_no_git_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "src" / "spurless" / "core" / "provenance.py"))
    monkeypatch.setenv("PATH", "")
    assert git_commit.__wrapped__() is None


def test_versions_name_what_decides_a_number() -> None:
    found = versions()
    assert found["spurless"] == spurless.__version__
    assert found["python"] == platform.python_version()
    assert {"torch", "torchvision", "lightning", "numpy", "scikit-learn"} <= set(found)


def test_a_package_that_is_missing_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", missing)
    assert set(versions.__wrapped__()) == {"spurless", "python"}


def test_hardware_says_device_and_machine() -> None:
    found = hardware(torch.device("cpu"))
    assert (found["device"], found["machine"]) == ("cpu", platform.machine())
    assert found["cores"] >= 1
    assert "gpu" not in found


def git(folder: Path, *command: str) -> None:
    subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)
