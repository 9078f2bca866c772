"""Ray: runs on the machines of a cluster, or of one that is started here for the length of a sweep."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from spurless.bench.engines.base import Lost, Machines, Outcome, Runner, Task, attempt
from spurless.core.errors import BadInput, MissingExtra, SpurlessWarning

RETRIES = 3
"""How often a run is begun again whose worker or machine was lost: those of a cluster come and go."""
LOOPBACK = "127.0.0.1"
ALONE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""0 keeps a cluster to its machine, on any system: Ray takes the address of the loopback for one of the network, and
would listen there."""
STORE = 100 * 2**20
"""Bytes of a local cluster's object store; tasks and records are small."""


@contextmanager
def open_ray(machines: Machines) -> Iterator[Runner]:
    """Do tasks on a Ray cluster, as many at once as it has room for.

    Raises:
        MissingExtra: Ray is not installed.
        BadInput: the cluster is not there, or has no room for even one run.
    """
    if ":" in machines.engine.device:
        raise BadInput(
            "which GPU a run gets is for Ray to say", got=f"--device {machines.engine.device}", do="Use --device cuda."
        )
    with _private(local=machines.address is None):
        try:
            ray: Any = import_module("ray")
        except ImportError:
            raise MissingExtra("ray", "ray", "The engine ray") from None
        joined = ray.is_initialized()
        if not joined:
            _start(ray, machines)
        try:
            yield partial(_run, ray, machines)
        finally:
            if not joined:
                ray.shutdown()


def _start(ray: Any, machines: Machines) -> None:
    """Join the cluster at the address, or start one that this machine alone can reach."""
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if machines.address is None:
        ray.init(
            "local",
            num_cpus=machines.jobs,
            include_dashboard=False,
            object_store_memory=STORE,
            _node_ip_address=LOOPBACK,
            **quiet,
        )
        _check_loopback([node["NodeManagerAddress"] for node in ray.nodes()])
        return
    try:
        ray.init(machines.address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise BadInput(
            f"no Ray cluster answers: {str(error).splitlines()[0]}",
            where=f"--address {machines.address}",
            do="Start one with ray start --head, or leave --address out.",
        ) from None


def _run(ray: Any, machines: Machines, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
    needs = {"num_cpus": machines.cpus_per_run, "num_gpus": _gpus(ray, machines)}
    _check_room(ray, needs)
    remote = ray.remote(attempt).options(max_retries=RETRIES, **needs)
    waiting = {remote.remote(task, machines): task for task in tasks}
    while waiting:
        (ready, *_), _ = ray.wait(list(waiting))
        task = waiting.pop(ready)
        try:
            outcome: Outcome = ray.get(ready)
        except ray.exceptions.RayTaskError as error:  # errors of a run come back as its outcome: it never began
            outcome = BadInput(
                f"the run {task} cannot begin on the cluster: {str(error).splitlines()[-1]}",
                do="Install the same spurless on all its machines.",
            )
        except ray.exceptions.RayError as error:
            outcome = Lost([task], f"Ray says {type(error).__name__} after {1 + RETRIES} tries")
        yield task, outcome


def _gpus(ray: Any, machines: Machines) -> float:
    """Return the share of a GPU that a run takes."""
    if machines.gpus_per_run is not None:
        return machines.gpus_per_run
    return 0.25 if machines.engine.device != "cpu" and ray.cluster_resources().get("GPU", 0) else 0.0


def _check_room(ray: Any, needs: dict[str, float]) -> None:
    """Refuse what would wait for ever."""
    for name, asked in (("CPU", needs["num_cpus"]), ("GPU", needs["num_gpus"])):
        there = ray.cluster_resources().get(name, 0)
        if asked > there:
            flag = f"--{name.lower()}s-per-run"
            raise BadInput(f"a run asks for {asked:g} {name}s and the cluster has {there:g}", do=f"Lower {flag}.")


def _check_loopback(addresses: Sequence[str]) -> None:
    if set(addresses) != {LOOPBACK}:
        warnings.warn(
            "Ray was imported before this sweep, and so its cluster here listens to the network. "
            f"Start with {ALONE}=0 in the environment, or import Ray later.",
            SpurlessWarning,
            stacklevel=2,
        )


@contextmanager
def _private(local: bool) -> Iterator[None]:
    """Keep Ray from telling anybody that it is used, from the network, and from warning of its next version.

    The switch for the second is read when Ray is imported, and by every process of the cluster.
    """
    switches = {"RAY_USAGE_STATS_ENABLED": "0", **({ALONE: "0"} if local else {})}
    before = {name: os.environ.get(name) for name in switches}
    os.environ.update(switches)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
