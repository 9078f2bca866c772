"""Reproduce a claim: run its experiments with every seed, record the runs and check the claim."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from spurless.bench.claims.base import Claim, ClaimResult, check_claim
from spurless.bench.executors import EXECUTORS, Resources
from spurless.bench.executors.task import Task
from spurless.bench.runner import assign_keys, run_tasks
from spurless.core.progress import Progress
from spurless.train.concurrent import allow_concurrent_streams
from spurless.train.run import Compute


def reproduce(  # noqa: PLR0913  # each is an option of the command
    claim: Claim,
    *,
    seeds: int | None = None,
    first: int = 0,
    compute: Compute | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
    together: int = 1,
) -> ClaimResult:
    """Run every experiment of a claim with every seed, and check the claim.

    A run that ``out`` contains is not repeated. An interrupted run continues from its checkpoints, which are stored in
    a folder next to ``out`` until the run is recorded.

    Args:
        claim: the claim.
        seeds: number of seeds; the claim's number by default.
        first: the first seed, to split a claim over machines.
        compute: device and precision.
        out: the file to which records are appended.
        progress: called with stage, step, number of steps and a message.
        together: number of runs that share a device, if they can; see :mod:`spurless.fitting.concurrent`.

    Raises:
        InputError: another process does one of these runs for the same file.
        DivergedError: a run diverged; with ``together``, after the others are recorded.
    """
    allow_concurrent_streams(together)
    resources = Resources(compute or Compute(), together=together, quiet=False)
    checkpoints = None if out is None else out.with_name(f"{out.stem}-checkpoints")
    task = partial(Task, required_metrics=(), extra=claim.extra, checkpoints=checkpoints, record_divergence=False)
    tasks = [
        task(name, experiment, seed, progress=progress)
        for seed in range(first, first + (seeds or claim.seeds))
        for name, experiment in claim.experiments.items()
    ]
    tasks = assign_keys(tasks, resources)
    executor = EXECUTORS["local" if together == 1 else "concurrent"]
    records = run_tasks(tasks, claim.id, executor=executor, resources=resources, out=out, reuse=False)
    return check_claim(claim, (records[task.key] for task in tasks))
