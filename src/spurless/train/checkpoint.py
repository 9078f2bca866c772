"""Checkpoints: one file per stage of a run, replaced whole, read without pickle."""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from spurless.core.errors import BadInput
from spurless.core.files import replace_file


@dataclass
class Checkpoints:
    """The folder of one run. A stage that is done is loaded, one that was cut short is continued.

    ``key`` names the run by content: a folder that holds another run's stages is refused, never mixed.
    """

    folder: Path
    key: str
    seconds: float = 30.0
    """Least time between two saves; a stage's end is always saved."""
    _last: dict[str, float] = field(default_factory=dict)

    def due(self, stage: str) -> bool:
        """Return whether it is time to save."""
        now = time.monotonic()
        return now - self._last.setdefault(stage, now) >= self.seconds

    def save(self, stage: str, state: dict[str, Any]) -> None:
        """Replace the stage's file; a kill at any moment leaves the old or the new one."""

        def write(scratch: Path) -> None:
            try:
                torch.save({"key": self.key, **state}, scratch)
            except RuntimeError as error:  # what torch raises on a full disk
                raise OSError(errno.ENOSPC, f"the checkpoint was not written whole ({error})") from None

        replace_file(self._path(stage), write)
        self._last[stage] = time.monotonic()

    def load(self, stage: str) -> dict[str, Any] | None:
        """Return what the stage saved last, or nothing."""
        path = self._path(stage)
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise BadInput(
                f"the checkpoint cannot be read: {error}", where=path, do="Delete it to start anew."
            ) from None
        if state.get("key") != self.key:
            raise BadInput(
                "the checkpoint belongs to another run (other data, model, method, settings or seed)",
                where=path,
                do="Choose another --out folder, or delete it.",
            )
        return state

    def clear(self) -> None:
        """Remove every stage, once the run is recorded, and the folders that this leaves empty."""
        for path in [*self.folder.rglob("stage-*.pt"), *self.folder.rglob(".stage-*.tmp")]:
            path.unlink(missing_ok=True)
        for folder in [*self.folder.glob("*/"), self.folder]:
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()

    def _path(self, stage: str) -> Path:
        return self.folder / f"stage-{stage}.pt"


def forget(folder: Path, key: str) -> None:
    """Remove the checkpoints of one run, once it is recorded, and the folder of all runs where it was the last."""
    Checkpoints(folder / key, key).clear()
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()
