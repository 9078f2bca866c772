"""Cells: one dataset, one model, one method and its settings, by name; run with as many seeds as you like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spurless.bench.fitting import Fitted, fit
from spurless.core.progress import Progress
from spurless.data import load
from spurless.models import build
from spurless.train.run import Engine


@dataclass(frozen=True)
class Cell:
    """What a table's cell is made of. Dataset, model and training are all seeded by the run's seed."""

    dataset: str
    model: str
    method: str
    data_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    method_options: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    select: str = "last"
    coverages: tuple[float, ...] = ()
    score: str = "auto"


def run_cell(
    cell: Cell, seed: int, engine: Engine | None = None, folder: Path | None = None, progress: Progress | None = None
) -> Fitted:
    """Make the data, build the model, fit the method."""
    data = load(cell.dataset, **{"seed": seed, **cell.data_options})
    model = build(cell.model, data, seed=seed, **cell.model_options)
    return fit(
        cell.method,
        model,
        data,
        seed=seed,
        preset=cell.preset,
        train=cell.train,
        select=cell.select,
        engine=engine,
        folder=folder,
        coverages=cell.coverages,
        score=cell.score,
        progress=progress,
        **cell.method_options,
    )
