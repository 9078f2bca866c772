"""Run many training jobs at once on one device, each with the same weights as if it ran alone.

One small network leaves most of a large device idle. Each job has its own module, optimiser, batches and checkpoints.
Their steps are captured in parallel, on one CUDA stream each, as one graph; a replay runs one step of every job. Small
networks of the same architecture share more than that, see :mod:`spurless.train.concurrent_vmap`. Between two steps the
loop works as usual: a job at the end of its epoch runs its short batch, is evaluated and fills its tables while the
others wait. When a job ends or fails, the graph is captured again without it.

A job runs alone, with the same result, if its step cannot be captured or uses random numbers (dropout, random
augmentation), because a graph has one generator for all jobs.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.core.interrupts import defer_interrupt, freeze_stop_flag, stop_requested
from spurless.data.loader import Loader
from spurless.train.concurrent_vmap import VmapSteps, group_for_vmap, separate_weights
from spurless.train.loop import Job, run_steps
from spurless.train.run import Run
from spurless.train.step import WARMUP_STEPS, GraphedSteps, Objective, Stage, can_capture, capture_graph, make_steps

MAX_CONCURRENT = 16  # default number of concurrent jobs; more are not faster with a ResNet-18 at 28x28 on an H200
MAX_QUEUES = 32  # hardware queues to use for streams; with CUDA's default of 8, concurrent jobs wait for each other


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended; its results are in its model and its run."""

    error: Exception | None = None  # the error that stopped it, such as ``DivergedError``; None if it completed
    together: int = 1  # the largest number of jobs that advanced at once with it; 1 if it ran alone


def minimise_all(jobs: Sequence[Job], at_once: int = MAX_CONCURRENT) -> list[JobOutcome]:
    """Run many jobs, each with the same result as alone by :func:`~spurless.train.loop.minimise`.

    Settings, batch sizes and networks may differ; ``at_once`` jobs advance together. A job that fails does not stop the
    others: its error is returned. If the process is killed, every job can continue from its checkpoints.
    """
    outcomes = dict(completed(jobs, at_once))
    return [outcomes[number] for number in range(len(jobs))]


def completed(jobs: Sequence[Job], at_once: int = MAX_CONCURRENT) -> Iterator[tuple[int, JobOutcome]]:
    """Run many jobs like :func:`minimise_all`, and yield the number and outcome of each when it ends.

    The other jobs are paused meanwhile, so that the caller can save a result before they continue.
    """
    if at_once < 1:
        raise InputError("at_once must be at least 1", got=at_once)
    states = [_JobState(number, job) for number, job in enumerate(jobs)]
    for device in dict.fromkeys(job.run.device for job in jobs):
        ended = _advance([state for state in states if state.job.run.device == device], at_once)
        while True:
            # random numbers that an evaluation uses must not change the caller's generators
            with jobs[0].run.seeds.seed_global_rng("fleet", device=device), defer_interrupt():
                state = next(ended, None)
            if state is None:
                break
            yield state.number, JobOutcome(state.error, state.together)


def allow_concurrent_streams(at_once: int) -> None:
    """Let CUDA use all hardware queues if several jobs advance at once, unless the user has set a number.

    CUDA reads the variable when it starts, so this must be called before anything uses the device.
    """
    if at_once > 1:
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", str(MAX_QUEUES))


def can_run_concurrently(job: Job) -> bool:
    """Return whether a job can advance with others, as far as is known before its first step."""
    return job.stage.static and can_capture(job.loader, job.run, job.stage.config or job.run.train)


class ConcurrentSteps(GraphedSteps):
    """Steps that, after a warm-up without random numbers, are executed by the caller together with those of others."""

    def __init__(self, model: nn.Module, loader: Loader, objective: Objective, run: Run, stage: Stage) -> None:
        super().__init__(model, loader, objective, run, stage)
        self.is_alone = False
        self.unused_generators: dict[str, Tensor] = {}

    def advance(self) -> bool:
        """Run a step of the warm-up and check whether it uses random numbers; leave later steps to the caller."""
        if self.is_alone:
            return super().advance()
        if self.n_warmup == WARMUP_STEPS:
            return False
        before = super().generators()
        super().advance()
        self.unused_generators = super().generators()
        self.is_alone = any(not torch.equal(before[name], state) for name, state in self.unused_generators.items())
        return True

    def continue_alone(self) -> None:
        """Run the step that was left to the caller, and all later ones."""
        self.is_alone = True
        super().advance()

    def generators(self) -> dict[str, Tensor]:
        """Return the states of the job's generators; among others, those after its warm-up, which it does not use."""
        return super().generators() if self.is_alone else self.unused_generators or super().generators()


class _JobState:
    """A job with its progress."""

    def __init__(self, number: int, job: Job) -> None:
        self.number, self.job, self.is_concurrent = number, job, can_run_concurrently(job)
        self.pauses = run_steps(job, ConcurrentSteps if self.is_concurrent else make_steps)
        self.steps: ConcurrentSteps | None = None
        self.error: Exception | None = None
        self.together = 1

    def start(self) -> bool:
        """Start the job; return whether its next step must run with the others. Otherwise the job has ended."""
        with self.job.seeded():
            return self.resume()

    def resume(self, to_end: bool = False) -> bool:
        """Continue until the next step must run with the others, or to the end; return whether there is such a step."""
        try:
            if to_end and self.steps is not None:
                self.steps.continue_alone()
            steps = next(self.pauses, None)
        except Exception as error:  # a failed job does not stop the others
            self.error, steps = error, None
        if steps is None:
            self._release()
            return False
        self.steps = cast(ConcurrentSteps, steps)  # no other steps pause
        return True

    def _release(self) -> None:
        """Copy the weights out of shared tensors, and drop the gradients, which are in the memory of the graph."""
        if self.steps is not None:
            self.steps.optimiser.zero_grad()
            separate_weights(self.steps.model)
        self.steps = None


def _advance(jobs: list[_JobState], at_once: int) -> Iterator[_JobState]:
    """Run jobs to their ends, first those that run alone, then the others together; yield each when it ends."""
    waiting = deque(sorted(jobs, key=lambda job: job.is_concurrent))
    streams: list[torch.cuda.Stream] = []
    active: list[_JobState] = []
    replay: Callable[[], None] | None = None
    while waiting or active:
        before = len(active)
        yield from _start_waiting(waiting, active, at_once)
        replay = replay if len(active) == before else None
        if active and replay is None:
            replay = _capture(active, streams)
        if replay is None:
            yield from _finish_alone(active)
            active = []
            continue
        replay()
        with freeze_stop_flag():
            ended = [job for job in active if not job.resume()]
        if ended:
            active = [job for job in active if job not in ended]
            replay = None  # it would continue to train the jobs that ended
        if ended and not _is_stopping(active):
            yield from ended


def _start_waiting(waiting: deque[_JobState], active: list[_JobState], at_once: int) -> Iterator[_JobState]:
    """Start waiting jobs while there are fewer than ``at_once``; yield each that ran alone, to its end."""
    while waiting and len(active) < at_once and not _is_stopping(active):
        job = waiting.popleft()
        if job.start():
            active.append(job)
        elif not _is_stopping(active):
            yield job


def _finish_alone(active: list[_JobState]) -> Iterator[_JobState]:
    """Run jobs that cannot advance together to their ends, one after another."""
    for job in active:
        with job.job.seeded():
            job.resume(to_end=True)
        if job is active[-1] or not _is_stopping(active):
            yield job


def _is_stopping(active: list[_JobState]) -> bool:
    """Return whether Ctrl-C waits until all active jobs are saved; it is raised at the next yield."""
    return bool(active) and stop_requested()


def _capture(active: list[_JobState], streams: list[torch.cuda.Stream]) -> Callable[[], None] | None:
    """Return a function that runs one step of every job; None if that cannot be captured."""
    members = [job.steps for job in active if job.steps is not None]
    for member in members:
        member.optimiser.zero_grad()  # gradients must be in the memory of the new graph
    for groups in (group_for_vmap(members), [[member] for member in members]):
        try:
            replay = _capture_groups(groups, streams)
        except Exception:
            streams.clear()  # they are unusable after a failed capture
        else:
            for job in active:
                job.together = max(job.together, len(active))
            return replay
    return None


def _capture_groups(groups: Sequence[Sequence[GraphedSteps]], streams: list[torch.cuda.Stream]) -> Callable[[], None]:
    """Capture the steps of all groups in parallel; the steps of a group of several are computed by one vmap."""
    device = groups[0][0].run.device
    while len(streams) < sum(map(len, groups)):
        streams.append(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]  # torch does not annotate it

    def run_parallel(tasks: Sequence[Callable[[], object]]) -> None:
        """Run each task on its own stream, forked from the current one and joined again."""
        main = torch.cuda.current_stream(device)
        for task, stream in zip(tasks, streams, strict=False):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                task()
        for stream in streams[: len(tasks)]:
            main.wait_stream(stream)

    bodies = [group[0].body if len(group) == 1 else partial(VmapSteps(group).body, run_parallel) for group in groups]
    return capture_graph(partial(run_parallel, bodies), device).replay
