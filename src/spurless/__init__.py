"""Spurless finds the shortcuts a classifier relies on, removes them, and proves it.

The public surface, each name imported when it is first used, so that ``import spurless`` is free.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spurless.auditing import audit
    from spurless.bench.fitting import Fitted, fit
    from spurless.core.errors import SpurlessError, SpurlessWarning
    from spurless.core.groups import Groups
    from spurless.core.records import Record
    from spurless.data import (
        Grouped,
        Splits,
        from_csv,
        from_dataset,
        from_folder,
        from_huggingface,
        from_npz,
        from_pack,
        from_tensors,
        from_texts,
        load,
    )
    from spurless.fixing import Fixed, fix
    from spurless.models import Classifier, build, wrap
    from spurless.models.weights import load_weights, save_weights
    from spurless.reporting import report
    from spurless.train.abstain import Abstainer
    from spurless.train.config import TrainConfig
    from spurless.train.embed import embed
    from spurless.train.evaluate import evaluate
    from spurless.train.run import Engine

__version__ = "0.1.0"

_HOMES = {
    "spurless.auditing": ("audit",),
    "spurless.bench.fitting": ("Fitted", "fit"),
    "spurless.core.errors": ("SpurlessError", "SpurlessWarning"),
    "spurless.core.groups": ("Groups",),
    "spurless.core.records": ("Record",),
    "spurless.data": (
        "Grouped",
        "Splits",
        "from_csv",
        "from_dataset",
        "from_folder",
        "from_huggingface",
        "from_npz",
        "from_pack",
        "from_tensors",
        "from_texts",
        "load",
    ),
    "spurless.fixing": ("Fixed", "fix"),
    "spurless.models": ("Classifier", "build", "wrap"),
    "spurless.models.weights": ("load_weights", "save_weights"),
    "spurless.reporting": ("report",),
    "spurless.train.abstain": ("Abstainer",),
    "spurless.train.config": ("TrainConfig",),
    "spurless.train.embed": ("embed",),
    "spurless.train.evaluate": ("evaluate",),
    "spurless.train.run": ("Engine",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022  in the order in which one meets them
    "load",
    "from_folder",
    "from_csv",
    "from_npz",
    "from_pack",
    "from_texts",
    "from_tensors",
    "from_dataset",
    "from_huggingface",
    "build",
    "wrap",
    "fit",
    "embed",
    "evaluate",
    "audit",
    "fix",
    "report",
    "save_weights",
    "load_weights",
    "Abstainer",
    "Classifier",
    "Engine",
    "Fitted",
    "Fixed",
    "Grouped",
    "Groups",
    "Record",
    "Splits",
    "SpurlessError",
    "SpurlessWarning",
    "TrainConfig",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'spurless' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
