"""Embedding: the features of a model in the place of the inputs, so that what follows takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from spurless.core.progress import teller
from spurless.data.grouped import Batch, Grouped, Splits
from spurless.data.loader import Loader, in_order
from spurless.models.classifier import Classifier
from spurless.models.features import collect
from spurless.models.wrapping import wrap
from spurless.train.config import TrainConfig
from spurless.train.evaluate import EVALUATION_BATCH
from spurless.train.run import Engine, Run, start

DEFAULT = Engine()


def embed(model: nn.Module, data: Splits, *, engine: Engine = DEFAULT) -> Splits:
    """Return the same splits with the features of ``model`` as inputs: eval mode, no augmentation, float32.

    A linear model on them is a linear probe: ``sp.fit("erm", sp.build("linear", features), features)``.

    Args:
        model: where the features come from: what its head would read.
        data: the splits.
        engine: where the arithmetic is done.
    """
    classifier = wrap(model)
    home = next((parameter.device for parameter in classifier.parameters()), torch.device("cpu"))
    run = start(engine, 0, TrainConfig())
    classifier.to(run.device)
    try:
        splits = {"train": data.train, "val": data.val, "test": data.test}
        train, val, test = (_features(classifier, split, run.device, name) for name, split in splits.items())
    finally:
        classifier.to(home)
    return replace(data, name=f"{data.name} through {classifier.name}", train=train, val=val, test=test)


def _features(model: Classifier, split: Grouped, device: torch.device, name: str) -> Grouped:
    loader = Loader(split, in_order(len(split)), EVALUATION_BATCH, device)
    done = teller(f"embed {name}", len(split))

    def batches() -> Iterator[Batch]:
        for batch in loader.batches():
            yield batch
            done(int(batch.index[-1]) + 1)

    return replace(split, x=collect(model, batches(), device), transform=None, augment=None)


def embedded(model: Classifier, split: Grouped, run: Run) -> Grouped:
    """Return a split with features in the place of the inputs, for a method that works on the last layer alone."""
    return replace(split, x=features_of(model, split, run), transform=None, augment=None, hidden=None)


def features_of(model: Classifier, split: Grouped, run: Run) -> Tensor:
    """Return the features of every example of a split, ``(N, d)`` on the CPU."""
    with run.timed("embed"):
        model.to(run.device)
        loader = Loader(split, in_order(len(split)), EVALUATION_BATCH, run.device, workers=run.workers)
        return collect(model, loader.batches(), run.device)
