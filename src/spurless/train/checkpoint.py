"""Checkpoints: one file per stage of a run, replaced atomically and read without pickle."""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from spurless.core.errors import InputError
from spurless.core.files import delete_abandoned, replace_file


@dataclass
class Checkpoints:
    """The checkpoints of one run: completed stages are loaded, interrupted ones continued.

    ``key`` is the key of the run; checkpoints of other runs in the folder are an error.
    """

    folder: Path
    key: str
    seconds: float = 30.0  # minimum time between two saves; the end of a stage is always saved
    _last_save: dict[str, float] = field(default_factory=dict)

    def is_due(self, stage: str) -> bool:
        """Return whether the last save of a stage is long enough ago."""
        now = time.monotonic()
        return now - self._last_save.setdefault(stage, now) >= self.seconds

    def save(self, stage: str, state: dict[str, Any]) -> None:
        """Replace the file of a stage atomically."""

        def write(scratch: Path) -> None:
            try:
                torch.save({"key": self.key, **state}, scratch)
            except RuntimeError as error:  # torch raises this if the disk is full
                raise OSError(errno.ENOSPC, f"the checkpoint could not be written ({error})") from None

        replace_file(self._path(stage), write)
        self._last_save[stage] = time.monotonic()

    def load(self, stage: str) -> dict[str, Any] | None:
        """Return the last checkpoint of a stage, or None."""
        path = self._path(stage)
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise InputError(
                f"the checkpoint cannot be read: {error}", where=path, hint="Delete it to start again."
            ) from None
        if state.get("key") != self.key:
            raise InputError(
                "the checkpoint belongs to another run (other data, model, method, settings or seed)",
                where=path,
                hint="Choose another --out folder, or delete it.",
            )
        return state

    def clear(self) -> None:
        """Delete the checkpoints of all stages, and folders that are empty then."""
        for path in self.folder.rglob("stage-*.pt"):
            path.unlink(missing_ok=True)
        for folder in [*self.folder.glob("*/"), self.folder]:
            delete_abandoned(folder)
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()

    def _path(self, stage: str) -> Path:
        return self.folder / f"stage-{stage}.pt"


def delete_checkpoints(folder: Path, key: str) -> None:
    """Delete the checkpoints of one run, and the folder of all runs if it is empty then."""
    Checkpoints(folder / key, key).clear()
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()
