"""Experiments: a dataset, a model and a method with their settings, by name, to be run with any seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from spurless.core.progress import Progress
from spurless.data import load
from spurless.data.split import Splits
from spurless.fitting.protocol import FitRequest, Fitted, Protocol, fit_with_protocol
from spurless.methods import Method, make_method
from spurless.models import build
from spurless.train.recipes import make_train_config
from spurless.train.run import Compute
from spurless.train.selection import get_criterion

DatasetLoader: TypeAlias = Callable[[str, Mapping[str, Any], int], Splits]
"""Loads data by name, options and seed. It is sent to other processes, so it must be importable there."""


@dataclass(frozen=True)
class Experiment:
    """Settings of a run, apart from its seed. The seed of a run is used for its dataset, model and training."""

    dataset: str
    model: str
    method: str
    data_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    method_options: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)  # settings; ``recipe`` is the name of a recipe to start from
    select: str = "last"
    coverages: tuple[float, ...] = ()
    score: str = "auto"


def load_dataset(dataset: str, options: Mapping[str, Any], seed: int) -> Splits:
    """Load a dataset of the table of datasets."""
    return load(dataset, **{"seed": seed, **options})


def make_protocol_and_method(experiment: Experiment, compute: Compute) -> tuple[Protocol, Method]:
    """Return the protocol and the configured method of an experiment.

    Raises:
        UnknownNameError, InputError: a name or a setting does not exist.
    """
    train = make_train_config(experiment.train)
    get_criterion(experiment.select)
    protocol = Protocol(train, experiment.select, compute, None, experiment.coverages, experiment.score)
    return protocol, make_method(experiment.method, experiment.preset, **experiment.method_options)


def build_run(
    experiment: Experiment,
    seed: int,
    compute: Compute | None = None,
    *,
    data: Splits | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> FitRequest:
    """Load the data, build the model and configure the method and the protocol; nothing is trained.

    ``data`` are not loaded again; an interrupted run continues from the checkpoints in ``folder``.
    """
    if data is None:
        data = load_dataset(experiment.dataset, experiment.data_options, seed)
    model = build(experiment.model, data, seed=seed, **experiment.model_options)
    protocol, method = make_protocol_and_method(experiment, compute or Compute())
    return FitRequest(replace(protocol, folder=folder, progress=progress), method, model, data, seed)


def run_experiment(
    experiment: Experiment,
    seed: int,
    compute: Compute | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Fitted:
    """Run an experiment with one seed."""
    return fit_with_protocol(*build_run(experiment, seed, compute, folder=folder, progress=progress))
