"""The executor ``ray``: runs on a Ray cluster, or on one that is started on this machine for the sweep."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from spurless.bench.executors.task import Resources, Runner, Task, TaskOutcome, WorkerDiedError, run_task
from spurless.core.errors import InputError, MissingExtraError, SpurlessWarning

MAX_RETRIES = 3  # how often a run is started again if its worker or machine was lost
LOOPBACK = "127.0.0.1"
NETWORK_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Environment variable; 0 keeps a local cluster off the network: otherwise Ray replaces the loopback address by that of
the network and listens there."""
OBJECT_STORE_BYTES = 100 * 2**20  # size of a local cluster's object store; tasks and records are small


@contextmanager
def open_ray(resources: Resources) -> Iterator[Runner]:
    """Run tasks on a Ray cluster, as many at once as it has resources for.

    Raises:
        MissingExtraError: Ray is not installed.
        InputError: there is no cluster at the address, or it has too few resources for one run.
    """
    if ":" in resources.compute.device:
        raise InputError(
            "Ray chooses the GPU of each run", got=f"--device {resources.compute.device}", hint="Use --device cuda."
        )
    with _private(local=resources.address is None):
        try:
            ray: Any = import_module("ray")
        except ImportError:
            raise MissingExtraError("ray", "ray", "The executor ray") from None
        is_running = ray.is_initialized()
        if not is_running:
            _start(ray, resources)
        try:
            yield partial(_run, ray, resources)
        finally:
            if not is_running:
                ray.shutdown()


def _start(ray: Any, resources: Resources) -> None:
    """Connect to the cluster at the address, or start one that only this machine can reach."""
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if resources.address is None:
        private = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES, "_node_ip_address": LOOPBACK}
        ray.init("local", num_cpus=resources.jobs, **private, **quiet)
        _check_loopback([node["NodeManagerAddress"] for node in ray.nodes()])
        return
    try:
        ray.init(resources.address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(
            f"cannot connect to the Ray cluster: {str(error).splitlines()[0]}",
            where=f"--address {resources.address}",
            hint="Start one with ray start --head, or remove --address.",
        ) from None


def _run(ray: Any, resources: Resources, tasks: Sequence[Task]) -> Iterator[tuple[Task, TaskOutcome]]:
    needs = {"num_cpus": resources.cpus_per_run, "num_gpus": _gpus(ray, resources)}
    _check_resources(ray, needs)
    remote = ray.remote(run_task).options(max_retries=MAX_RETRIES, **needs)
    waiting = {remote.remote(task, resources): task for task in tasks}
    while waiting:
        (ready, *_), _ = ray.wait(list(waiting))
        task = waiting.pop(ready)
        try:
            outcome: TaskOutcome = ray.get(ready)
        except ray.exceptions.RayTaskError as error:  # errors of a run are its outcome: this one did not start
            outcome = InputError(
                f"the run {task} cannot start on the cluster: {str(error).splitlines()[-1]}",
                hint="Install the same spurless on all its machines.",
            )
        except ray.exceptions.RayError as error:
            outcome = WorkerDiedError([task], f"Ray raised {type(error).__name__} in {1 + MAX_RETRIES} attempts")
        yield task, outcome


def _gpus(ray: Any, resources: Resources) -> float:
    """Return the fraction of a GPU that a run uses."""
    if resources.gpus_per_run is not None:
        return resources.gpus_per_run
    return 0.25 if resources.compute.device != "cpu" and ray.cluster_resources().get("GPU", 0) else 0.0


def _check_resources(ray: Any, needs: dict[str, float]) -> None:
    """Raise if the cluster is too small for a run, which would wait forever."""
    for name, needed in (("CPU", needs["num_cpus"]), ("GPU", needs["num_gpus"])):
        available = ray.cluster_resources().get(name, 0)
        if needed > available:
            flag = f"--{name.lower()}s-per-run"
            raise InputError(f"a run needs {needed:g} {name}s but the cluster has {available:g}", hint=f"Lower {flag}.")


def _check_loopback(addresses: Sequence[str]) -> None:
    if set(addresses) != {LOOPBACK}:
        warnings.warn(
            "Ray was imported before this sweep, so its local cluster listens on the network. "
            f"Start with {NETWORK_SWITCH}=0 in the environment, or import Ray later.",
            SpurlessWarning,
            stacklevel=2,
        )


@contextmanager
def _private(local: bool) -> Iterator[None]:
    """Turn off Ray's usage statistics and its future warnings, and keep a local cluster off the network.

    Ray and every process of the cluster read the network switch when they start.
    """
    switches = {"RAY_USAGE_STATS_ENABLED": "0", **({NETWORK_SWITCH: "0"} if local else {})}
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
