"""Cells: one dataset, one model, one method and its settings, by name; run with as many seeds as you like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spurless.bench.fitting import Fitted, Protocol, fit_under
from spurless.core.options import configure
from spurless.core.progress import Progress
from spurless.data import load
from spurless.data.grouped import Splits
from spurless.methods import Method, make_method
from spurless.models import build
from spurless.models.classifier import Classifier
from spurless.train.config import TrainConfig
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


def planned(
    cell: Cell,
    seed: int,
    engine: Engine | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
    data: Splits | None = None,
) -> tuple[Protocol, Method, Classifier, Splits]:
    """Make the data, where they are not there yet, build the model, configure the method; nothing is run."""
    data = load(cell.dataset, **{"seed": seed, **cell.data_options}) if data is None else data
    model = build(cell.model, data, seed=seed, **cell.model_options)
    protocol, method = settings(cell, engine or Engine())
    return replace(protocol, folder=folder, progress=progress), method, model, data


def settings(cell: Cell, engine: Engine) -> tuple[Protocol, Method]:
    """Return the protocol and the method of a cell."""
    train = configure(TrainConfig, cell.train, "the training loop")
    protocol = Protocol(train, cell.select, engine, None, cell.coverages, cell.score)
    return protocol, make_method(cell.method, cell.preset, **cell.method_options)


def run_cell(
    cell: Cell, seed: int, engine: Engine | None = None, folder: Path | None = None, progress: Progress | None = None
) -> Fitted:
    """Make the data, build the model, fit the method."""
    return fit_under(*planned(cell, seed, engine, folder, progress), seed)
