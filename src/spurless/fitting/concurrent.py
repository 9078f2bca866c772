"""Fit many runs at once on one device, each with the same model and record as alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from spurless.core.errors import DataChangedError
from spurless.data.checks import Snapshot
from spurless.data.split import Split
from spurless.fitting.checks import with_criterion
from spurless.fitting.protocol import (
    FitRequest,
    Fitted,
    PreparedRun,
    capture_warnings,
    execute,
    finish,
    hash_run,
    prepare,
)
from spurless.methods.base import is_one_stage
from spurless.train.concurrent import MAX_CONCURRENT, JobOutcome, can_run_concurrently, completed
from spurless.train.loop import Job


def fit_concurrently(
    requests: Sequence[FitRequest], at_once: int = MAX_CONCURRENT
) -> Iterator[tuple[int, Fitted | Exception]]:
    """Fit many runs; yield the number of each when it ends, with its result or error.

    Runs of methods with one stage that train from scratch advance together if their steps can be captured as a CUDA
    graph; all others run one after another. The record of a run that shared its device contains the number of runs
    under ``hardware``; its seconds are wall-clock time, and its peak memory is that of all runs. The caller logs the
    results of tracked runs with :meth:`Fitted.log_result`.

    Args:
        requests: the runs; an input tensor that several runs use is copied to the device once.
        at_once: number of runs that advance together.
    """
    shared, concurrent = _SharedData(), list[tuple[int, PreparedRun, Job]]()
    for number, request in enumerate(requests):
        try:
            prepared = shared.prepare(request)
            job = shared.make_job(prepared)
            if job is not None:
                concurrent.append((number, *job))
                continue
            result: Fitted | Exception = execute(prepared)
        except DataChangedError:  # the others would use the changed data
            raise
        except Exception as error:  # a failed run does not stop the others
            result = error
        yield number, result
    outcomes, messages = completed([job for _, _, job in concurrent], at_once), list[str]()
    while True:
        with capture_warnings() as more:
            item = next(outcomes, None)
        messages += more
        if item is None:
            return
        index, outcome = item
        number, prepared, _ = concurrent[index]
        yield number, _finish_job(prepared, outcome, messages)


@dataclass
class _SharedData:
    """Prepares runs, and hashes and copies the data that they share only once."""

    fingerprints: dict[int, str] = field(default_factory=dict)  # the fingerprint of every dataset, by its ``id``
    on_device: dict[tuple[int, torch.device], Tensor] = field(default_factory=dict)  # every input tensor on its device

    def prepare(self, request: FitRequest) -> PreparedRun:
        """Check and prepare a run."""
        data = request.data
        if request.hashes is None:
            hashes = hash_run(*request[:5], fingerprint=self.fingerprints.get(id(data)))
            request = request._replace(hashes=hashes)
        prepared = prepare(*request)
        self.fingerprints[id(data)] = prepared.hashes.fingerprint
        return prepared

    def make_job(self, prepared: PreparedRun) -> tuple[PreparedRun, Job] | None:
        """Return the run with its data on the device, and its job; None if it cannot share the device."""
        if not is_one_stage(prepared.method) or prepared.info.start != "scratch":
            return None
        data, device = prepared.data, prepared.run.device
        train, val, test = (self.move(split, device) for split in (data.train, data.val, data.test))
        run = with_criterion(prepared.run, prepared.criterion, val, data=data)
        data = replace(data, train=train, val=val, test=test)
        moved = replace(prepared, data=data, run=run, snapshot=Snapshot(data))
        job = prepared.method.job(moved.model, moved.visible, moved.run)
        return (moved, job) if can_run_concurrently(job) else None

    def move(self, split: Split, device: torch.device) -> Split:
        """Return the split with its inputs on a device; runs with the same tensor share the copy."""

        def copy(x: Tensor) -> Tensor:
            if (id(x), device) not in self.on_device:
                self.on_device[id(x), device] = x.to(device)
            return self.on_device[id(x), device]

        if isinstance(split.x, Tensor):
            return replace(split, x=copy(split.x))
        if isinstance(split.x, dict):
            return replace(split, x={key: copy(x) for key, x in split.x.items()})
        return split


def _finish_job(prepared: PreparedRun, outcome: JobOutcome, messages: Sequence[str]) -> Fitted | Exception:
    if outcome.error is not None:
        if prepared.tracker is not None:
            prepared.tracker.fail()
        return outcome.error
    try:
        seconds = sum(prepared.run.seconds.values())
        return finish(prepared, prepared.model, None, messages, seconds, outcome.together)
    except Exception as error:
        return error
