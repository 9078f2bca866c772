"""Provenance: which code, which machine, which bytes."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from functools import lru_cache
from hashlib import blake2b
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import spurless


@lru_cache
def versions() -> dict[str, str]:
    """Return the versions that decide a number."""
    found = {"spurless": spurless.__version__, "python": platform.python_version()}
    for package in ("torch", "torchvision", "lightning", "numpy", "scikit-learn"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@lru_cache
def commit() -> str | None:
    """Return the commit of the source tree this package runs from, with ``+`` where it was changed since.

    A tree that travels without its history may say which it is in ``$SPURLESS_COMMIT``.
    """
    root = Path(__file__).parents[3]
    if "SPURLESS_COMMIT" in os.environ:
        return os.environ["SPURLESS_COMMIT"]
    if not (root / ".git").exists():
        return None
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    return head and head + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no", "--", "src") else "")


def hardware(device: torch.device) -> dict[str, Any]:
    """Return what the run ran on."""
    facts: dict[str, Any] = {"device": device.type, "cores": os.cpu_count(), "machine": platform.machine()}
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def digest(
    *parts: Tensor | bytes | str | float | dict[str, Any] | list[Any] | tuple[Any, ...] | None,
) -> str:
    """Return a content hash; tensors count by dtype, shape and bytes, everything else by its JSON.

    Example:
        >>> digest(torch.zeros(2), "a") == digest(torch.zeros(2), "a") != digest(torch.zeros(2, 1), "a")
        True
    """
    state = blake2b(digest_size=12)
    for part in parts:
        if isinstance(part, Tensor):
            state.update(f"tensor {part.dtype} {tuple(part.shape)}".encode())
            flat = part.detach().cpu().contiguous().view(-1)
            state.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
        elif isinstance(part, bytes):
            state.update(f"bytes {len(part)} ".encode() + part)  # the length, or b"a", b"b" would equal b"a\0b"
        else:
            state.update(json.dumps(part, sort_keys=True, default=str).encode())
        state.update(b"\0")
    return state.hexdigest()


def _git(root: Path, *command: str) -> str | None:
    try:
        done = subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
