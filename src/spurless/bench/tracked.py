"""Tracked: a run that the user wants to follow is given its tracker, which is told first what it is a run of."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from spurless.data.grouped import Splits
from spurless.methods import Method
from spurless.methods.own import settings_of
from spurless.models.classifier import Classifier
from spurless.train.run import Run
from spurless.train.tracking import Tracker

if TYPE_CHECKING:
    from spurless.bench.fitting import Protocol


def tracked(protocol: Protocol, method: Method, model: Classifier, data: Splits, run: Run, key: str) -> Tracker | None:
    """Let a run tell its epochs to the tracker that its engine names, and return that; None where it names none."""
    if protocol.engine.track is None or not run.is_main:
        return None
    seed = run.seeds.seed
    facts = {"method": method.info.name, "data": data.name, "model": model.name, "seed": seed, "key": key}
    settings = {"select": protocol.select, "config": settings_of(method), "train": asdict(protocol.train)}
    name = f"{method.info.name}-{data.name}-seed{seed}-{key[:8]}"
    tracker = Tracker(protocol.engine.track, name, {**facts, **settings})
    run.log = tracker.row
    return tracker
