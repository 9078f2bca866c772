"""Versions, git commit and hardware of a run, for its record."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import spurless


@lru_cache
def versions() -> dict[str, str]:
    """Return the versions of the packages that affect results."""
    installed = {"spurless": spurless.__version__, "python": platform.python_version()}
    for package in ("torch", "torchvision", "lightning", "numpy", "scikit-learn"):
        with suppress(metadata.PackageNotFoundError):
            installed[package] = metadata.version(package)
    return installed


@lru_cache
def git_commit() -> str | None:
    """Return the git commit of the source tree, followed by ``+`` if the tree has uncommitted changes.

    ``$SPURLESS_COMMIT`` overrides it, for a copy of the tree without its git history.
    """
    root = Path(__file__).parents[3]
    if "SPURLESS_COMMIT" in os.environ:
        return os.environ["SPURLESS_COMMIT"]
    if not (root / ".git").exists():
        return None
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    return head and head + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no", "--", "src") else "")


def hardware(device: torch.device, threads: int | None = None) -> dict[str, Any]:
    """Return the device, cores and machine type of this process, and the CPU threads of a run."""
    facts: dict[str, Any] = {"device": device.type, "cores": os.cpu_count(), "machine": platform.machine()}
    if threads is not None:
        facts["threads"] = threads
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def _git(root: Path, *command: str) -> str | None:
    try:
        result = subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
