"""Places: where data lie and where what was computed once is kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return where decoded images, tokenised text, features and trained starting points are kept.

    ``$SPURLESS_CACHE``, or the user's cache folder. All of it can be deleted: it is made again when it is needed.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SPURLESS_CACHE") or Path(home) / "spurless")


def data_folder(root: str | Path | None = None) -> Path:
    """Return the folder in which datasets are looked for: ``root``, else ``$SPURLESS_DATA``, else ``data``."""
    return Path(root or os.environ.get("SPURLESS_DATA") or "data").expanduser()
