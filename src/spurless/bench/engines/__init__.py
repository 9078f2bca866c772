"""The table of engines: where the runs of a sweep are done. The same run gives the same record on each."""

from __future__ import annotations

import torch

from spurless.bench.engines.base import Lost, Machines, Opener, Task
from spurless.bench.engines.fleet import open_fleet
from spurless.bench.engines.here import open_here
from spurless.bench.engines.processes import open_processes
from spurless.bench.engines.ray_cluster import open_ray
from spurless.core.errors import BadInput, UnknownName

ENGINES: dict[str, Opener] = {"here": open_here, "processes": open_processes, "ray": open_ray, "fleet": open_fleet}


def choose(name: str, machines: Machines) -> str:
    """Return the name of the engine to use.

    ``auto`` is ``processes`` where a number of jobs is given, else ``fleet`` on a CUDA device and ``here`` on a CPU.

    Raises:
        UnknownName: no engine has that name.
        BadInput: a setting is for another engine.
    """
    if name == "local":  # what other tools call it
        raise BadInput(
            "no engine is called 'local'", do="Use here, one run after another, or processes, several at once."
        )
    if name not in ("auto", *ENGINES):
        raise UnknownName("engine", name, ("auto", *ENGINES))
    if machines.address is not None and name != "ray":
        raise BadInput("--address names a Ray cluster", got=f"--engine {name}", do="Add --engine ray.")
    if machines.jobs is not None and name in ("here", "fleet"):
        raise BadInput(f"the engine {name} is one process", got=f"--jobs {machines.jobs}", do="Use --engine processes.")
    if name != "auto":
        return name
    if machines.jobs is not None:
        return "processes"
    cuda = torch.cuda.is_available() and machines.engine.device.startswith(("auto", "cuda"))
    return "fleet" if cuda else "here"


__all__ = ["ENGINES", "Lost", "Machines", "Task", "choose"]
