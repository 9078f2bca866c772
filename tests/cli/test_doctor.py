"""``spurless doctor``: it shows what is installed and where, and deletes only files of the cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

import spurless
from spurless.core.cache import cached_tensors, clear_cache, list_cache_files
from spurless.core.hashing import content_hash

Cli = Callable[..., Any]


def test_the_json_has_what_is_true_here(cli: Cli, here: Path) -> None:
    cached_tensors(content_hash("a"), lambda: {"x": torch.zeros(1000)})
    facts = json.loads(cli("doctor", "--json").out)
    assert facts["versions"]["spurless"] == spurless.__version__
    assert facts["versions"]["torch"] == metadata.version("torch")
    assert facts["devices"][-1] == f"cpu with {os.cpu_count()} cores"
    assert facts["extras"]["timm"] == {"timm": metadata.version("timm")}
    assert set(facts["extras"]["track"]) == {"tensorboard", "mlflow", "wandb"}
    assert "dev" not in facts["extras"]
    assert facts["data"] == {"folder": str(here / "data"), "exists": False}
    cache = facts["cache"]
    assert (cache["folder"], cache["files"], cache["writable"]) == (str(here / "cache"), 1, True)
    assert cache["bytes"] > 4000
    assert "deleted" not in facts


def test_the_text_shows_the_folders_and_creates_none(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPURLESS_CACHE", str(here / "not" / "there"))
    result = cli("doctor")
    assert result.status == 0
    assert "$SPURLESS_DATA" in result.out
    assert "0 files" in result.out
    assert list(here.iterdir()) == []
    (here / "data").mkdir()
    assert "$SPURLESS_DATA" not in cli("doctor").out


def test_clearing_deletes_keyed_files_and_nothing_else(cli: Cli, here: Path) -> None:
    cache, key, used = here / "cache", content_hash("a"), content_hash("used")
    for part, names in {
        "features": (f"{key}.rows", f"{key}.json", f"{key}.lock", "mine.rows", "mine.json", f"{key}.txt"),
        "images": (f"{key}.key", f"{used}.rows", "photo.json"),
        "tensors": (f"{key}.safetensors", "model.safetensors"),
        "elsewhere": (f"{key}.rows",),
    }.items():
        (cache / part).mkdir(parents=True)
        for name in names:
            (cache / part / name).write_text("12345")
    (cache / f"{key}.rows").write_text("12345")
    with FileLock(cache / "images" / f"{used}.lock"):  # which another process is computing
        facts = json.loads(cli("doctor", "--clear-cache", "--json").out)
        left = {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file()}
    assert left - {f"images/{used}.lock"} == {
        f"{key}.rows", f"elsewhere/{key}.rows", f"features/{key}.txt", "features/mine.rows", "features/mine.json",
        f"images/{used}.rows", "images/photo.json", "tensors/model.safetensors",
    }  # fmt: skip
    assert facts["deleted"]["bytes"] >= 20
    assert clear_cache()[0] >= 1  # the lock is gone
    assert list_cache_files() == []


def test_a_linked_folder_is_not_searched_and_a_link_is_deleted_alone(here: Path) -> None:
    cache, name = here / "cache", f"{content_hash('a')}.safetensors"
    (here / "mine").mkdir()
    (here / "mine" / name).write_text("mine")
    cache.mkdir()
    (cache / "features").symlink_to(here / "mine")
    (cache / "tensors").mkdir()
    (cache / "tensors" / name).symlink_to(here / "mine" / name)
    assert clear_cache()[0] == 1
    assert (here / "mine" / name).read_text() == "mine"
    assert (cache / "features").is_symlink()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands_and_options(shell: str) -> None:
    words = {"COMP_WORDS": "spurless doc", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "spurless doc"}
    more = {"_SPURLESS_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args", **words}
    command = [sys.executable, "-m", "spurless"]
    done = subprocess.run(command, env={**os.environ, **more}, capture_output=True, text=True, check=False, timeout=60)
    assert "doctor" in done.stdout, done.stderr
    assert "reproduce" not in done.stdout
