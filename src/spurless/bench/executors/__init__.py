"""Executors: where the tasks of a sweep or plan run. A task has the same record on each of them."""

from __future__ import annotations

import torch

from spurless.bench.executors.in_process import open_concurrent, open_local
from spurless.bench.executors.processes import open_processes
from spurless.bench.executors.ray_cluster import open_ray
from spurless.bench.executors.task import Executor, Resources, Task, WorkerDiedError
from spurless.core.errors import InputError, UnknownNameError

EXECUTORS: dict[str, Executor] = {
    "local": open_local,
    "processes": open_processes,
    "ray": open_ray,
    "concurrent": open_concurrent,
}


def choose_executor(name: str, resources: Resources) -> Executor:
    """Return the executor of that name.

    ``auto`` is ``processes`` if a number of jobs is given, else ``concurrent`` on a CUDA device and ``local`` on a CPU.

    Raises:
        UnknownNameError: no executor has that name.
        InputError: a setting is for another executor.
    """
    if name not in ("auto", *EXECUTORS):
        raise UnknownNameError("executor", name, ("auto", *EXECUTORS))
    if resources.address is not None and name != "ray":
        raise InputError("--address needs the executor ray", got=f"--executor {name}", hint="Add --executor ray.")
    if resources.jobs is not None and name in ("local", "concurrent"):
        raise InputError(
            f"the executor {name} uses one process", got=f"--jobs {resources.jobs}", hint="Use --executor processes."
        )
    if name != "auto":
        return EXECUTORS[name]
    if resources.jobs is not None:
        return EXECUTORS["processes"]
    has_cuda = torch.cuda.is_available() and resources.compute.device.startswith(("auto", "cuda"))
    return EXECUTORS["concurrent" if has_cuda else "local"]


__all__ = ["EXECUTORS", "Executor", "Resources", "Task", "WorkerDiedError", "choose_executor"]
