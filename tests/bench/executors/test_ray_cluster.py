"""Ray: a local cluster gives the records of one process, although a worker is killed; and asks nobody's leave."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from spurless.bench.executors import Resources, Task
from spurless.bench.executors.ray_cluster import MAX_RETRIES, NETWORK_SWITCH, _check_loopback, _run, _start, open_ray
from spurless.bench.executors.task import WorkerDiedError
from spurless.core.errors import InputError, MissingExtraError, SpurlessWarning
from spurless.core.records import Record
from spurless.train.run import Compute

pytestmark = pytest.mark.slow

CPU = Resources(Compute("cpu"), jobs=2)
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'spurless[ray]'")


@needs_ray
def test_a_local_cluster_gives_the_records_of_one_process_although_a_worker_dies(
    tasks: list[Task], alone: dict[str, Record], facts: Callable[..., Any], deadly: ModuleType, tmp_path: Path
) -> None:
    unlucky = replace(tasks[2], load=partial(deadly.once, str(tmp_path / "mark")))
    with open_ray(CPU) as run:
        ray = import_module("ray")  # after the executor: it says how
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
        assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]
        assert listening() <= {"0100007F", "0000000000000000FFFF00000100007F"}  # the loopback, in Linux's words
        assert ray.cluster_resources()["CPU"] == 2
        outcomes = {task.key: outcome for task, outcome in run([*tasks[:2], unlucky, *tasks[3:]])}
        with pytest.raises(InputError, match=r"a run needs 3 CPUs but the cluster has 2\. Lower --cpus-per-run\."):
            list(_run(ray, replace(CPU, cpus_per_run=3), tasks))
    assert (tmp_path / "mark").exists()
    assert facts(outcomes) == facts(alone)
    assert not ray.is_initialized()
    assert not [name for name in os.environ if name in ("RAY_USAGE_STATS_ENABLED", NETWORK_SWITCH)]


def listening() -> set[str]:
    """The addresses at which the descendants of this process listen."""
    parents = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[place] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
    mine = {os.getpid()}
    while more := {int(place.name) for place, parent in parents.items() if parent in mine} - mine:
        mine |= more
    sockets = set()
    for handle in (handle for pid in mine - {os.getpid()} for handle in Path(f"/proc/{pid}/fd").glob("*")):
        with suppress(OSError):
            sockets.add(str(handle.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets}


def test_an_open_cluster_is_a_warning() -> None:
    with pytest.warns(SpurlessWarning, match=r"listens on the network\. Start with RAY_ENABLE_\w+=0"):
        _check_loopback(["192.0.2.7"])


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'spurless\[ray\]'"), open_ray(CPU):
        pass


def test_a_gpu_by_number_is_refused() -> None:
    with pytest.raises(InputError, match=r"Ray chooses the GPU of each run \(got --device cuda:1\)"):
        open_ray(Resources(Compute("cuda:1"))).__enter__()


def test_a_cluster_that_is_not_there_is_one_sentence() -> None:
    def init(address: str, **_: Any) -> None:
        raise ConnectionError(f"{address} is silent\nmore words")

    with pytest.raises(InputError) as caught:
        _start(SimpleNamespace(init=init), replace(CPU, address="nowhere:6379"))
    assert str(caught.value) == (
        "--address nowhere:6379: cannot connect to the Ray cluster: nowhere:6379 is silent. "
        "Start one with ray start --head, or remove --address."
    )


class _RayError(Exception):
    """Whatever goes wrong with Ray."""


class _RayTaskError(_RayError):
    """What goes wrong with a task."""


class FakeRay:
    """A cluster where one task is lost and one cannot begin, and which remembers what it was asked for."""

    exceptions = SimpleNamespace(RayError=_RayError, RayTaskError=_RayTaskError)

    def __init__(self, **resources: float) -> None:
        self.resources, self.asked = resources, dict[str, Any]()

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def remote(self, function: Callable[..., Any]) -> Any:
        def options(**asked: Any) -> Any:
            self.asked = {**asked, "function": function}
            return SimpleNamespace(remote=lambda task, resources: (task.key, resources))

        return SimpleNamespace(options=options)

    def wait(self, waiting: Sequence[Any]) -> Any:
        return [waiting[-1]], waiting[:-1]

    def get(self, ready: Any) -> Any:
        if ready[0] == "lost":
            raise _RayError
        if ready[0] == "strange":
            raise _RayTaskError("traceback\nModuleNotFoundError: No module named 'spurless'")
        return ready


@pytest.mark.parametrize(
    ("more", "gpus"),
    [
        ({"compute": Compute("auto")}, 0.25),
        ({"compute": Compute("cpu")}, 0.0),
        ({"compute": Compute("auto"), "gpus_per_run": 0.5}, 0.5),
    ],
)
def test_a_run_takes_a_share_of_a_gpu_and_is_tried_again(more: dict[str, Any], gpus: float, tasks: list[Task]) -> None:
    ray, resources = FakeRay(CPU=2.0, GPU=1.0), Resources(**more)
    lost, strange = replace(tasks[1], key="lost"), replace(tasks[2], key="strange")
    found = {task.key: outcome for task, outcome in _run(ray, resources, [tasks[0], lost, strange])}
    assert ray.asked["max_retries"] == MAX_RETRIES
    assert (ray.asked["num_cpus"], ray.asked["num_gpus"]) == (1.0, gpus)
    assert found[tasks[0].key] == (tasks[0].key, resources)  # type: ignore[comparison-overlap]  # as the fake has it
    assert isinstance(found["lost"], WorkerDiedError)
    assert "lr=0.001, seed 1: Ray raised _RayError in 4 attempts" in str(found["lost"])
    assert str(found["strange"]) == (
        "the run lr=0.01, seed 0 cannot start on the cluster: ModuleNotFoundError: No module named 'spurless'. "
        "Install the same spurless on all its machines."
    )


def test_more_gpu_than_there_is_would_wait_for_ever(tasks: list[Task]) -> None:
    with pytest.raises(InputError, match=r"a run needs 0\.5 GPUs but the cluster has 0\. Lower --gpus-per-run\."):
        list(_run(FakeRay(CPU=2.0), replace(CPU, gpus_per_run=0.5), tasks))
