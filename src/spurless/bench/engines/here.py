"""Here: one run after another, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from spurless.bench.engines.base import Machines, Outcome, Runner, Task, attempt


@contextmanager
def open_here(machines: Machines) -> Iterator[Runner]:
    """Do tasks in their order, in this process."""

    def run(tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        for task in tasks:
            yield task, attempt(task, machines)

    yield run
