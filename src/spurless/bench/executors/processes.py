"""The executor ``processes``: several runs at once on one machine, each in a separate process."""

from __future__ import annotations

import os
import signal
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from multiprocessing import connection, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

import torch

from spurless.bench.executors.task import Resources, Runner, Task, TaskOutcome, WorkerDiedError, run_task
from spurless.train.run import Compute

_GROUP_SIGNALS = (signal.SIGINT, signal.SIGHUP)  # sent to the whole process group; the parent handles them
MAX_ATTEMPTS = 2  # how often a run is started if its process dies


@contextmanager
def open_processes(resources: Resources) -> Iterator[Runner]:
    """Run tasks in ``resources.jobs`` spawned processes, by default one for each CPU core."""
    jobs = resources.jobs or max(1, count_cpu_cores() // resources.compute.threads)
    pool = [
        _Worker(replace(resources, compute=device_for_process(resources.compute, number))) for number in range(jobs)
    ]
    try:
        yield partial(_run, pool)
    finally:
        for worker in pool:
            worker.stop()


def count_cpu_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_for_process(compute: Compute, number: int, devices: int | None = None) -> Compute:
    """Return the device of process ``number``: processes are spread over the GPUs, unless one was chosen.

    Example:
        >>> [device_for_process(Compute("cuda"), number, devices=2).device for number in range(3)]
        ['cuda:0', 'cuda:1', 'cuda:0']
    """
    devices = torch.cuda.device_count() if devices is None else devices
    is_chosen = compute.device not in ("auto", "cuda")
    return compute if is_chosen or devices < 2 else replace(compute, device=f"cuda:{number % devices}")


class _Worker:
    """A process that runs one task at a time; it starts with its first task, and again if it died."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.task: Task | None = None
        self.process: Any = None
        self.pipe: Any = None

    def send(self, task: Task) -> None:
        """Send a task; start the process first if it is not alive."""
        if self.process is None or not self.process.is_alive():
            self.stop()
            self._start()
        self.task = task
        with suppress(OSError):  # the process died just now, which receive() detects
            self.pipe.send(task)

    def receive(self) -> TaskOutcome | None:
        """Return the outcome of the task; None if the process died."""
        self.task = None
        try:
            outcome: TaskOutcome = self.pipe.recv()
        except (EOFError, OSError):
            return None
        return outcome

    def stop(self) -> int | None:
        """Terminate the process and return its exit status."""
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
        context = get_context("spawn")  # a fork of a process with compute threads may hang
        self.pipe, child_end = context.Pipe()
        process = context.Process(target=_work, args=(child_end, self.resources))
        resource_tracker.ensure_running()  # its start would unblock the signals
        with _blocked_signals():  # the process inherits this, and its imports would end with a traceback
            process.start()
            self.process = process
        child_end.close()  # so that receive() fails if the process dies


def _run(pool: Sequence[_Worker], tasks: Sequence[Task]) -> Iterator[tuple[Task, TaskOutcome]]:
    waiting, attempts = deque(tasks), Counter[str]()
    while waiting or any(worker.task for worker in pool):
        for worker in pool:
            if worker.task is None and waiting:
                worker.send(waiting.popleft())
        ready = connection.wait([worker.pipe for worker in pool if worker.task])
        for worker in [worker for worker in pool if worker.task and worker.pipe in ready]:
            task = worker.task
            outcome = worker.receive()
            if task is not None and outcome is not None:
                yield task, outcome
            elif task is not None:
                status = worker.stop()
                attempts[task.key] += 1
                if attempts[task.key] < MAX_ATTEMPTS:
                    waiting.append(task)
                else:
                    yield task, WorkerDiedError([task], f"its process died {MAX_ATTEMPTS} times (exit status {status})")


def _work(pipe: Connection, resources: Resources) -> None:
    """Run the tasks received through the pipe, until it is closed."""
    for number in _GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _GROUP_SIGNALS)
    Thread(target=_exit_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            pipe.send(run_task(pipe.recv(), resources))


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Deliver the signals of the process group after the block, and block them in a process that starts in it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit_with_parent() -> None:
    """Exit when the parent process dies."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
