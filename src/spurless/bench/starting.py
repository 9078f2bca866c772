"""Starting points: a method that repairs a model is given a trained one, by ERM where the user brought none."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace

import torch

from spurless.core.errors import BadInput, Diverged, SpurlessWarning
from spurless.core.places import cache_folder
from spurless.core.provenance import digest, versions
from spurless.data.grouped import Grouped, Splits
from spurless.methods.erm import ERM
from spurless.models.classifier import Classifier
from spurless.models.weights import load_weights, save_weights
from spurless.train.checkpoint import Checkpoints
from spurless.train.evaluate import EVALUATION_BATCH, NoNumbers, check_numbers, logits, predict
from spurless.train.run import Run
from spurless.train.tracking import apart


def trained_by_erm(model: Classifier, data: Splits, run: Run, content: str) -> Classifier:
    """Train a fresh model by ERM, or take the weights of the same training from the cache.

    ``content`` names data, initial weights and selection; settings, seed and precision are the run's.
    """
    key = digest(content, [asdict(run.train), run.precision, run.seeds.seed, versions()["torch"]])
    path = cache_folder() / f"erm-{key}.safetensors"
    if path.exists():
        load_weights(path, model)
    else:
        model = _by_erm(model, data, run)
        if run.is_main:
            with _tolerated():
                path.parent.mkdir(parents=True, exist_ok=True)
                save_weights(path, model)
    model.trained = True
    return model


def _by_erm(model: Classifier, data: Splits, run: Run) -> Classifier:
    """Train with checkpoints, seconds and history apart: the method that follows may call a stage by the same name."""
    points = run.checkpoints
    kept = points and Checkpoints(points.folder / "erm", points.key, points.seconds)
    first = replace(run, checkpoints=kept, seconds={}, history=[], stages=set(), log=apart(run.log, stage="erm"))
    model = ERM().fit(model, data.shown(train_attributes=False, val_labels=False, val_attributes=False), first)
    run.seconds["erm"] = sum(first.seconds.values())
    run.history.extend({**row, "stage": "erm"} for row in first.history)
    _check_whole(model, data.train, first)
    return model


def _check_whole(model: Classifier, train: Grouped, run: Run) -> None:
    """Refuse a model that its very last step has broken: the loss of a step is that of the weights before it."""
    some = train.select(torch.arange(min(len(train), EVALUATION_BATCH)))
    try:
        check_numbers(logits(model, some, run.device, run.workers))
    except NoNumbers as error:
        raise Diverged("erm", run.history[-1]["step"], run.train.lr, "what the model says") from error


@contextmanager
def _tolerated() -> Iterator[None]:
    """Do without a cache that cannot be written, and say so."""
    try:
        yield
    except (BadInput, OSError) as error:
        warnings.warn(f"The trained starting point was not cached: {error}", SpurlessWarning, stacklevel=3)


def warn_if_untrained(model: Classifier, train: Grouped, run: Run) -> None:
    """Warn where a method that repairs a trained model was given one that is not."""
    some = train.select(torch.arange(0, len(train), max(1, len(train) // 2000)))
    model.to(run.device)
    accuracy = float((predict(model, some, run.device, run.workers) == some.y.cpu()).double().mean())
    majority = float(some.class_counts.max()) / len(some)
    if accuracy <= majority:
        warnings.warn(
            f"The model is right on {accuracy:.0%} of the training examples, no more than always guessing the largest "
            f"class ({majority:.0%}). A method that repairs a model needs a trained one: fit 'erm' first.",
            SpurlessWarning,
            stacklevel=3,
        )
