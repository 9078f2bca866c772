"""Processes: several runs at once on one machine, each in a process of its own; one that dies takes no other along."""

from __future__ import annotations

import os
import signal
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

import torch

from spurless.bench.engines.base import Lost, Machines, Outcome, Runner, Task, attempt
from spurless.train.run import Engine

TRIES = 2
"""How often a run is begun whose process dies."""


@contextmanager
def open_processes(machines: Machines) -> Iterator[Runner]:
    """Do tasks in ``machines.jobs`` spawned processes; without a number, as many as there are CPU cores."""
    jobs = machines.jobs or max(1, cores() // machines.threads)
    pool = [_Worker(replace(machines, engine=spread(machines.engine, number))) for number in range(jobs)]
    try:
        yield partial(_run, pool)
    finally:
        for worker in pool:
            worker.stop()


def cores() -> int:
    """Return how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(engine: Engine, number: int, devices: int | None = None) -> Engine:
    """Return the engine of process ``number``: where there are several GPUs and none was named, they take turns.

    Example:
        >>> [spread(Engine("cuda"), number, devices=2).device for number in range(3)]
        ['cuda:0', 'cuda:1', 'cuda:0']
    """
    devices = torch.cuda.device_count() if devices is None else devices
    named = engine.device not in ("auto", "cuda")
    return engine if named or devices < 2 else replace(engine, device=f"cuda:{number % devices}")


class _Worker:
    """A process that does one task at a time; it is started with its first, and again with the next if it died."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.task: Task | None = None
        self.process: Any = None
        self.pipe: Any = None

    def give(self, task: Task) -> None:
        """Send a task; a process that died idle is replaced first."""
        if self.process is None or not self.process.is_alive():
            self.stop()
            self._start()
        self.task = task
        with suppress(OSError):  # it died this moment: the pipe is at its end, and that is seen there
            self.pipe.send(task)

    def take(self) -> Outcome | None:
        """Return the outcome of the task; None where the process died over it."""
        self.task = None
        try:
            outcome: Outcome = self.pipe.recv()
        except (EOFError, OSError):
            return None
        return outcome

    def stop(self) -> int | None:
        """End the process, whatever it does; return its exit status."""
        if self.process is None:
            return None
        self.pipe.close()
        self.process.terminate()
        self.process.join()
        status: int | None = self.process.exitcode
        self.process.close()
        self.process, self.task = None, None
        return status

    def _start(self) -> None:
        context = get_context("spawn")  # a fork of threads that compute may hang
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, self.machines))
        self.process.start()
        theirs.close()  # so that its end is seen when the process dies


def _run(pool: Sequence[_Worker], tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
    waiting, tries = deque(tasks), Counter[str]()
    while waiting or any(worker.task for worker in pool):
        for worker in pool:
            if worker.task is None and waiting:
                worker.give(waiting.popleft())
        ready = connection.wait([worker.pipe for worker in pool if worker.task])
        for worker in [worker for worker in pool if worker.task and worker.pipe in ready]:
            task = worker.task
            outcome = worker.take()
            if task is not None and outcome is not None:
                yield task, outcome
            elif task is not None:
                status = worker.stop()
                tries[task.key] += 1
                if tries[task.key] < TRIES:
                    waiting.append(task)
                else:
                    yield task, Lost([task], f"its process died {TRIES} times (exit status {status})")


def _work(pipe: Connection, machines: Machines) -> None:
    """Do what comes through the pipe, until its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    Thread(target=_leave_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            pipe.send(attempt(pipe.recv(), machines))


def _leave_with_parent() -> None:
    """Go when the sweep is gone, however it went: nobody would take the record."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
