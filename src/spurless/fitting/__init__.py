"""Fit one method on one dataset under the protocol; returns the model and its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError
from spurless.core.progress import Progress
from spurless.core.records import Record
from spurless.data.checks import check_splits
from spurless.data.split import Splits
from spurless.fitting.assess import assess, make_record
from spurless.fitting.checks import check_argument_types, check_model_fits_data
from spurless.fitting.protocol import Fitted, Protocol, capture_warnings, fit_with_protocol
from spurless.methods import Method, make_method
from spurless.models.wrapping import wrap
from spurless.train.config import TrainConfig
from spurless.train.recipes import make_train_config
from spurless.train.run import Compute, limit_threads, make_run

__all__ = ["Fitted", "evaluate_given", "fit"]


def fit(  # noqa: PLR0913  # the public entry point: one parameter per documented option
    method: str | Method,
    model: nn.Module,
    data: Splits,
    *,
    seed: int = 0,
    preset: str | None = None,
    train: TrainConfig | Mapping[str, Any] | str | None = None,
    select: str = "last",
    compute: Compute | None = None,
    folder: Path | str | None = None,
    coverages: Sequence[float] = (),
    score: str = "auto",
    progress: Progress | None = None,
    **options: Any,
) -> Fitted:
    """Fit a method and evaluate the result on the test split, which the method never sees.

    Args:
        method: a name in ``METHODS``, such as ``"erm"``; a custom method as ``FILE.py:METHOD``; or a method object.
        model: a :class:`Classifier`, or a module with a head that can be detected; it is copied, not changed.
        data: the three splits; attributes that the method does not declare are hidden from it.
        seed: the seed of all randomness in the run.
        preset: a named configuration of the method; the first preset by default.
        train: settings of the training loop, as a :class:`TrainConfig`, a dict of its fields or the name of a recipe;
            a dict may have the name of a recipe as ``recipe``, whose settings its other fields override.
        select: which epoch to select, such as ``"val-average"``; the record states which labels the criterion uses.
        compute: device, precision, number of devices and CPU threads.
        folder: folder for checkpoints; an interrupted run continues from there, to the same weights.
        coverages: also evaluate a model that abstains, at these fractions of predicted examples; thresholds are
            chosen on validation scores.
        score: the confidence score; ``"auto"`` is the method's own, see ``spurless.train.selective``.
        progress: called with stage, step, number of steps and a message.
        options: fields of the method's configuration, which override the preset.

    Raises:
        MissingAttributesError: the method or the criterion needs attributes that the data do not have.
    """
    check_argument_types(model=model, data=data, train=train, compute=compute)
    check_arguments(fit, locals())
    settings = make_train_config(train)
    path = Path(folder) if folder is not None else None
    protocol = Protocol(settings, select, compute or Compute(), path, tuple(coverages), score, progress)
    if isinstance(method, str):
        return fit_with_protocol(protocol, make_method(method, preset, **options), model, data, seed)
    if preset is not None or options:
        raise InputError("a method object is already configured", got=preset or ", ".join(options))
    return fit_with_protocol(protocol, method, model, data, seed)


def evaluate_given(
    name: str, model: nn.Module, data: Splits, *, seed: int = 0, compute: Compute | None = None
) -> Record:
    """Evaluate a model that was trained elsewhere; return a record with ``name`` as its method."""
    classifier = wrap(model)
    check_model_fits_data(classifier, check_splits(data, held_out=True))
    run = make_run(compute or Compute(), seed, TrainConfig())
    with limit_threads(run.threads), capture_warnings() as messages, run.timed("evaluate"):
        metrics, table = assess(classifier, data, run)
    return make_record(name, classifier, data, run, table=table, metrics=metrics, warnings=messages)
