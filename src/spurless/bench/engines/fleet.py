"""The fleet: many small trainings at once on one device."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from spurless.bench.engines.base import Asked, Machines, Outcome, Runner, Task, ask, conclude, limited
from spurless.data.grouped import Splits


@contextmanager
def open_fleet(machines: Machines) -> Iterator[Runner]:
    """Do tasks in fleets of ``machines.together``, which train as one; see :mod:`spurless.bench.together`."""
    from spurless.bench.together import fit_together
    from spurless.train.fleet import open_queues

    open_queues(machines.together)

    def run(tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        for first in range(0, len(tasks), machines.together):
            part = tasks[first : first + machines.together]
            with limited(machines.threads):
                asked = ask_all(part, machines)
            ends = fit_together(asked, machines.together)
            while True:
                with limited(machines.threads):
                    end = next(ends, None)
                    if end is None:
                        break
                    number, fitted = end
                    outcome = conclude(part[number], asked[number], fitted)
                yield part[number], outcome

    yield run


def ask_all(tasks: Sequence[Task], machines: Machines) -> list[Asked]:
    """Make the runs of a fleet; those that differ in training alone share one copy of the data."""
    opened: dict[str, Splits] = {}
    asked = []
    for task in tasks:
        content = json.dumps([task.cell.dataset, dict(task.cell.data_options), task.seed], default=str)
        asked.append(ask(task, machines, opened.get(content)))
        opened[content] = asked[-1].data
    return asked
