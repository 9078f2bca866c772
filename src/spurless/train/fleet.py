"""The fleet: many jobs advance together on one device, each to the weights it would reach alone.

One small network leaves most of a large device idle. Here every job keeps its own module, optimiser, batches and
checkpoints. Their steps are captured side by side, one CUDA stream each, as one graph, so that a replay makes one step
of every job; small nets of one form share more than that, see :mod:`spurless.train.folded`. What happens between two
steps is the loop's: a job at the end of its epoch makes its short batch, is evaluated and fills its table while the
others wait; one that ends or fails leaves, and the graph is captured again.

A job whose step cannot be captured, or draws (dropout, random augmentation: a graph has one generator for all), is done
alone, with the same result.
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

from spurless.core.errors import BadInput
from spurless.core.interrupts import asked_to_stop, held_back, one_answer
from spurless.data.loader import Loader
from spurless.train.folded import Fold, foldable, unfold
from spurless.train.loop import Job, walk
from spurless.train.run import Run
from spurless.train.step import WARM_UP, GraphedSteps, Objective, Stage, can_capture, captured, steps_of

AT_ONCE = 16
"""Jobs that advance together: more gain nothing with a ResNet-18 at 28x28 on an H200."""
QUEUES = 32
"""Of the device, which streams are spread over; with CUDA's own 8, members wait for each other."""


@dataclass(frozen=True)
class Outcome:
    """How a job ended; what it was for is in its model and its run."""

    error: Exception | None = None
    """What stopped it, such as ``Diverged``; None where it came to its end."""
    together: int = 1
    """How many jobs advanced at once while it was among them, at most; 1 is alone."""


def minimise_all(jobs: Sequence[Job], at_once: int = AT_ONCE) -> list[Outcome]:
    """Do many jobs, as if each had been done alone by :func:`~spurless.train.loop.minimise`.

    A job that fails stops no other: its error is given back. A killed fleet leaves the checkpoints of its jobs, each of
    which goes on from there, alone or among others. Loaders of a split that lies on the device share it.

    Args:
        jobs: what to train; settings, batch sizes and even networks may differ.
        at_once: how many advance together; the next one begins where one has ended.
    """
    ended = dict(arrivals(jobs, at_once))
    return [ended[number] for number in range(len(jobs))]


def arrivals(jobs: Sequence[Job], at_once: int = AT_ONCE) -> Iterator[tuple[int, Outcome]]:
    """Do many jobs, as :func:`minimise_all` does, and tell the number and the outcome of each when it has ended.

    The others wait meanwhile, so that what is made of a job can be kept before they go on.
    """
    if at_once < 1:
        raise BadInput("at least one job must advance at once", got=at_once)
    voyages = [_Voyage(number, job) for number, job in enumerate(jobs)]
    for device in dict.fromkeys(job.run.device for job in jobs):
        ended = _advance([voyage for voyage in voyages if voyage.job.run.device == device], at_once)
        while True:
            # what an evaluation draws moves nobody's
            with jobs[0].run.seeds.borrowed("fleet", device=device), held_back():
                voyage = next(ended, None)
            if voyage is None:
                break
            yield voyage.number, Outcome(voyage.error, voyage.together)


def open_queues(at_once: int) -> None:
    """Ask for all queues of a device if several are to advance at once, unless the user asked for a number.

    It is heard when CUDA starts, so it must be said before anything touches a device.
    """
    if at_once > 1:
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", str(QUEUES))


def can_share(job: Job) -> bool:
    """Return whether a job may advance with others, as far as can be known before its first step."""
    return job.stage.static and can_capture(job.loader, job.run, job.stage.config or job.run.train)


class Member(GraphedSteps):
    """The steps of a job that leaves them to the fleet, once it is warm and has shown that it does not draw."""

    def __init__(self, model: nn.Module, loader: Loader, objective: Objective, run: Run, stage: Stage) -> None:
        super().__init__(model, loader, objective, run, stage)
        self.alone = False
        self.still: dict[str, Tensor] = {}

    def advance(self) -> bool:
        """Make a step of the warm-up and see whether it draws; leave those after it to the fleet."""
        if self.alone:
            return super().advance()
        if self.warm == WARM_UP:
            return False
        before = super().generators()
        super().advance()
        self.still = super().generators()
        self.alone = any(not torch.equal(before[name], state) for name, state in self.still.items())
        return True

    def part(self) -> None:
        """Make the step that was left to the fleet, and from now on every other."""
        self.alone = True
        super().advance()

    def generators(self) -> dict[str, Tensor]:
        """Return the state of this job's generators: among others, as it left them, since it does not draw."""
        return super().generators() if self.alone else self.still or super().generators()


class _Voyage:
    """A job on its way."""

    def __init__(self, number: int, job: Job) -> None:
        self.number, self.job, self.shares = number, job, can_share(job)
        self.walk = walk(job, Member if self.shares else steps_of)
        self.steps: Member | None = None
        self.error: Exception | None = None
        self.together = 1

    def begin(self) -> bool:
        """Take the first steps; return whether the fleet must make the next. Done alone, the job is now at its end."""
        with self.job.lent():
            return self.go_on()

    def go_on(self, part: bool = False) -> bool:
        """Walk until the fleet must make the next step; return whether it must. Parted, walk to the end."""
        try:
            if part and self.steps is not None:
                self.steps.part()
            steps = next(self.walk, None)
        except Exception as error:  # a failure is the job's own
            self.error, steps = error, None
        if steps is None:
            self._leave()
            return False
        self.steps = cast(Member, steps)  # no other pauses
        return True

    def _leave(self) -> None:
        """Take the weights along, and let go of the gradients: those lie in the memory of the graph."""
        if self.steps is not None:
            self.steps.optimiser.zero_grad()
            unfold(self.steps.model)
        self.steps = None


def _advance(crew: list[_Voyage], at_once: int) -> Iterator[_Voyage]:
    """Bring all to their ends: those that go alone one by one, then the others together; yield each there."""
    waiting = deque(sorted(crew, key=lambda voyage: voyage.shares))
    streams: list[torch.cuda.Stream] = []
    together: list[_Voyage] = []
    replay: Callable[[], None] | None = None
    while waiting or together:
        before = len(together)
        yield from _boarding(waiting, together, at_once)
        replay = replay if len(together) == before else None
        if together and replay is None:
            replay = _captured(together, streams)
        if replay is None:
            yield from _parting(together)
            together = []
            continue
        replay()
        with one_answer():
            ended = [voyage for voyage in together if not voyage.go_on()]
        if ended:
            together = [voyage for voyage in together if voyage not in ended]
            replay = None  # it would train those that ended
        if ended and not _leaving(together):
            yield from ended


def _boarding(waiting: deque[_Voyage], together: list[_Voyage], at_once: int) -> Iterator[_Voyage]:
    """Let those who wait join the others while there is room; yield each that went alone, to its end."""
    while waiting and len(together) < at_once and not _leaving(together):
        voyage = waiting.popleft()
        if voyage.begin():
            together.append(voyage)
        elif not _leaving(together):
            yield voyage


def _parting(together: list[_Voyage]) -> Iterator[_Voyage]:
    """Bring those who cannot advance together to their ends, one after another."""
    for voyage in together:
        with voyage.job.lent():
            voyage.go_on(part=True)
        if voyage is together[-1] or not _leaving(together):
            yield voyage


def _leaving(together: list[_Voyage]) -> bool:
    """Return whether a Ctrl-C waits until all of these are saved: it comes through with the next that is yielded."""
    return bool(together) and asked_to_stop()


def _captured(together: list[_Voyage], streams: list[torch.cuda.Stream]) -> Callable[[], None] | None:
    """Return what makes one step of everybody, or None where it cannot be captured: alone, the culprit will say why."""
    members = [voyage.steps for voyage in together if voyage.steps is not None]
    for member in members:
        member.optimiser.zero_grad()  # gradients belong into the memory of the new graph
    for groups in (foldable(members), [[member] for member in members]):
        try:
            replay = _graph(groups, streams)
        except Exception:
            streams.clear()  # they were left in the middle of a capture
        else:
            for voyage in together:
                voyage.together = max(voyage.together, len(together))
            return replay
    return None


def _graph(groups: Sequence[Sequence[GraphedSteps]], streams: list[torch.cuda.Stream]) -> Callable[[], None]:
    """Capture the steps of all groups side by side; those within a group of several are folded into one."""
    device = groups[0][0].run.device
    while len(streams) < sum(map(len, groups)):
        streams.append(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]  # torch does not annotate it

    def spread(tasks: Sequence[Callable[[], object]]) -> None:
        """Do tasks on a stream each, forked from the current one and joined again."""
        main = torch.cuda.current_stream(device)
        for task, stream in zip(tasks, streams, strict=False):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                task()
        for stream in streams[: len(tasks)]:
            main.wait_stream(stream)

    bodies = [group[0].body if len(group) == 1 else partial(Fold(group).body, spread) for group in groups]
    return captured(partial(spread, bodies), device).replay
