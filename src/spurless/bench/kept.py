"""Kept: what the weights that a sweep kept can still show, such as what its two ends look at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

from torch import nn

from spurless.bench.engines.base import Machines, Task, ask
from spurless.bench.stopping import reached
from spurless.bench.sweep import Swept
from spurless.core.errors import BadInput
from spurless.core.figures import Section
from spurless.explain.compared import attribution_section
from spurless.models.weights import load_weights
from spurless.train.run import start

DEFAULT = Machines()


def ends_section(
    swept: Swept, machines: Machines = DEFAULT, count: int = 6, segmenter: nn.Module | None = None
) -> Section:
    """Show what the runs of the lowest and of the highest value look at in the same test examples.

    Both are of the first seed; see :func:`~spurless.explain.attribution_section`.

    Args:
        swept: what a sweep came to that kept its weights.
        machines: where the arithmetic is done.
        count: how many examples are drawn, at most.
        segmenter: what finds the background of photographs; see there.

    Raises:
        BadInput: no weights were kept, fewer than two values count, or the data themselves were swept.
    """
    low, high = ends(swept)
    if (low.cell.dataset, low.cell.data_options) != (high.cell.dataset, high.cell.data_options):
        raise BadInput(
            "the ends of this sweep were trained on other data, so that they cannot be shown the same examples",
            got=f"{low.name} and {high.name}",
        )
    first = ask(low, machines)
    models = {}
    for task, asked in ((low, first), (high, ask(high, machines, first.data))):
        load_weights(cast(Path, task.weights), asked.model)  # ends() chose those that have some
        models[task.name] = asked.model
    run = start(machines.engine, low.seed, first.protocol.train)
    section = attribution_section(
        models,
        first.data,
        count=count,
        seed=low.seed,
        device=run.device,
        workers=run.workers,
        segmenter=segmenter,
    )
    return replace(section, text=f"{low.name} and {high.name}, seed {low.seed}. {section.text}")


def ends(swept: Swept) -> tuple[Task, Task]:
    """Return the runs of the first and the last value, first seed, of those that count and whose weights are there.

    Numbers come from low to high; of several parameters, all are low in the one and high in the other.

    Raises:
        BadInput: there are no two.
    """
    seed = min(task.seed for task in swept.tasks)
    counted = [task for task in swept.tasks if task.seed == seed and _counts(task, swept)]
    there = [task for task in counted if task.weights is not None and task.weights.exists()]
    if len(there) < 2:
        raise BadInput(
            f"there are no two values to compare: of seed {seed}, {len(counted)} runs count and {len(there)} have "
            "weights that were kept",
            do="Let two values or more come to their end, and keep weights: Sweep(..., keep=FOLDER), or --keep FOLDER.",
        )
    return there[0], there[-1]


def _counts(task: Task, swept: Swept) -> bool:
    return task.key in swept.records and reached(swept.records[task.key])
