"""Spurless finds the shortcuts that a classifier relies on, removes them, and verifies the result.

This module contains the public names. Each is imported when it is first used, so that ``import spurless`` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spurless.auditing import audit
    from spurless.core.errors import SpurlessError, SpurlessWarning
    from spurless.core.groups import Groups
    from spurless.core.records import Record
    from spurless.data import (
        Split,
        Splits,
        from_csv,
        from_dataset,
        from_folder,
        from_huggingface,
        from_npz,
        from_tensors,
        from_texts,
        load,
    )
    from spurless.fitting import Fitted, fit
    from spurless.fixing import Fixed, fix
    from spurless.models import Classifier, build, wrap
    from spurless.models.weights import load_weights, save_weights
    from spurless.reporting import report
    from spurless.train.config import TrainConfig
    from spurless.train.embed import embed
    from spurless.train.evaluate import evaluate
    from spurless.train.run import Compute
    from spurless.train.selective import Abstainer

__version__ = "0.1.0"

_PUBLIC_NAMES = {
    "spurless.auditing": ("audit",),
    "spurless.fitting": ("Fitted", "fit"),
    "spurless.core.errors": ("SpurlessError", "SpurlessWarning"),
    "spurless.core.groups": ("Groups",),
    "spurless.core.records": ("Record",),
    "spurless.data": (
        "Split",
        "Splits",
        "from_csv",
        "from_dataset",
        "from_folder",
        "from_huggingface",
        "from_npz",
        "from_tensors",
        "from_texts",
        "load",
    ),
    "spurless.fixing": ("Fixed", "fix"),
    "spurless.models": ("Classifier", "build", "wrap"),
    "spurless.models.weights": ("load_weights", "save_weights"),
    "spurless.reporting": ("report",),
    "spurless.train.selective": ("Abstainer",),
    "spurless.train.config": ("TrainConfig",),
    "spurless.train.embed": ("embed",),
    "spurless.train.evaluate": ("evaluate",),
    "spurless.train.run": ("Compute",),
}
_MODULE_OF = {name: module for module, names in _PUBLIC_NAMES.items() for name in names}

__all__ = [
    "Abstainer",
    "Classifier",
    "Compute",
    "Fitted",
    "Fixed",
    "Groups",
    "Record",
    "Split",
    "Splits",
    "SpurlessError",
    "SpurlessWarning",
    "TrainConfig",
    "audit",
    "build",
    "embed",
    "evaluate",
    "fit",
    "fix",
    "from_csv",
    "from_dataset",
    "from_folder",
    "from_huggingface",
    "from_npz",
    "from_tensors",
    "from_texts",
    "load",
    "load_weights",
    "report",
    "save_weights",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'spurless' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
