"""The context of one run (device, seeds, settings, progress, checkpoints, selection), and how to create it."""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError
from spurless.core.progress import Progress
from spurless.core.seeds import Seeds
from spurless.data.loader import Loader, Order
from spurless.data.split import Split
from spurless.train.checkpoint import Checkpoints
from spurless.train.config import TrainConfig
from spurless.train.tracking import Log

PRECISIONS = ("auto", "32-true", "bf16-mixed", "16-mixed")
MAX_THREADS = 1024


@dataclass(frozen=True)
class Run:
    """The context of one method on one dataset with one seed.

    Its fields are fixed: use :func:`dataclasses.replace` for a run with other settings, and :meth:`sub_run` for a
    training inside this one. A method may add history rows (:meth:`add_history`), seconds (:meth:`timed`) and its
    explanation (:meth:`explain`); runs made by ``replace`` share them.
    """

    train: TrainConfig = field(default_factory=TrainConfig)
    seeds: Seeds = field(default_factory=Seeds)
    fabric: Any = None
    """Lightning Fabric: device, precision and communication between processes; created by :func:`make_run`."""
    score: Callable[[nn.Module], float] | None = None
    """The selection criterion on the validation split; None selects the last epoch."""
    score_predictions: Callable[[Tensor], float] | None = None
    """The same criterion for predicted labels of the validation split, for methods that have the features already."""
    make_untrained: Callable[[], nn.Module] | None = None
    """Creates the untrained model again; None if the starting point was not trained in this run."""
    checkpoints: Checkpoints | None = None
    progress: Progress | None = None
    log: Log | None = None
    """Receives every history row at the end of its epoch if the run is tracked; see ``train.tracking``."""
    on_epoch_end: Callable[[nn.Module, int], object] | None = None
    """Called with the model and the number of steps after every epoch of every stage; it must change nothing."""
    workers: int = 0
    precision: str = "32-true"
    threads: int = 1
    graph: bool = True
    """Whether steps may be captured as a CUDA graph."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds per stage."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One row per epoch; add to it with :meth:`add_history`."""
    stages: set[str] = field(default_factory=set)
    """Names of the stages so far; checkpoints are named after them, so each name is unique."""
    embeddings: dict[str, Tensor] = field(default_factory=dict)
    """Cached features, by the content of weights and inputs."""
    _explanations: list[object] = field(default_factory=list)
    _last_report: dict[str, float] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """The device of the model and the batches."""
        return torch.device(self.fabric.device)

    @property
    def world(self) -> int:
        """The number of processes that train together."""
        return int(self.fabric.world_size)

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints (rank 0)."""
        return bool(self.fabric.is_global_zero)

    @property
    def explanation(self) -> object | None:
        """The method's explanation of its result, or None."""
        return self._explanations[-1] if self._explanations else None

    def explain(self, value: object) -> None:
        """Set the method's explanation of its result, which ``fit`` returns as ``Fitted.explanation``."""
        self._explanations[:] = [value]

    def loader(self, split: Split, order: Order, batch_size: int | None = None) -> Loader:
        """Return training batches of a split on the run's device; with several processes, this process's part."""
        return Loader(
            split,
            order,
            batch_size or self.train.batch_size,
            self.device,
            training=True,
            workers=self.workers,
            rank=int(self.fabric.global_rank),
            world=self.world,
        )

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes."""
        if self.world == 1:
            return values
        return cast(Tensor, self.fabric.all_reduce(values.clone(), reduce_op="sum"))  # all_reduce works in place

    def report_progress(self, stage: str, step: int, total: int, message: str = "") -> None:
        """Call ``progress`` at most ten times per second, and at the last step."""
        now = time.monotonic()
        due = now - self._last_report.get("time", 0.0) > 0.1 or step == total
        if self.progress is not None and self.is_main and due:
            self._last_report["time"] = now
            self.progress(stage, step, total, message)

    def add_history(self, row: dict[str, Any], *, track: bool = True) -> None:
        """Append a row to the history, and log it to the tracker unless ``track`` is False."""
        self.history.append(row)
        if track:
            self.track(row)

    def track(self, row: Mapping[str, Any]) -> None:
        """Log a row to the tracker, if there is one; only the main process does."""
        if self.log is not None and self.is_main:
            self.log(row)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the seconds of the block to a stage."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - begin

    @contextmanager
    def sub_run(self, stage: str, **changes: Any) -> Iterator[Run]:
        """Yield a run for a whole training inside this one, which records it as the single stage ``stage``.

        The sub-run has its own checkpoints, history, seconds and stage names. ``changes`` are other fields, such as
        ``train``.
        """
        points, log = self.checkpoints, self.log
        separate: dict[str, Any] = {
            "checkpoints": points and Checkpoints(points.folder / stage.replace(" ", "-"), points.key, points.seconds),
            "log": log and (lambda row: log({**row, "stage": stage})),
            **{"seconds": {}, "_last_report": {}, "history": [], "_explanations": [], "stages": set()},
        }
        run = replace(self, **{**separate, **changes})
        yield run
        self.seconds[stage] = sum(run.seconds.values())
        self.history.extend({**row, "stage": stage} for row in run.history)


@dataclass(frozen=True)
class Compute:
    """Device, precision and parallelism of a run; they change results by rounding only, which training amplifies."""

    device: str = "auto"
    """auto (CUDA if available), cpu, cuda or cuda:NUMBER."""
    devices: int = 1
    strategy: str = "auto"
    """Strategy of Lightning Fabric for several devices; it must keep the model whole, as ddp does."""
    precision: str = "auto"
    """auto is float32; bf16-mixed and 16-mixed are faster on large networks."""
    workers: int = 0
    """Processes that load streamed data."""
    threads: int = 1
    """CPU threads of a run. Another number rounds differently, so it is part of the run's key."""
    graph: bool = True
    """Capture the training step as a CUDA graph if possible."""
    track: str | None = None
    """Log runs to csv, tensorboard, mlflow or wandb, as ``csv:FOLDER``; see ``train.tracking``."""

    def __post_init__(self) -> None:
        check_arguments(Compute, vars(self))
        if not 1 <= self.threads <= MAX_THREADS:
            raise InputError(
                "threads must be a number of CPU threads", expected=f"1 to {MAX_THREADS}", got=self.threads
            )


_inference: ContextVar[int | None] = ContextVar("inference", default=None)
"""CPU threads of forward passes and heat maps; None: those of everything else."""


@contextmanager
def limit_threads(threads: int, *, all_for_inference: bool = False) -> Iterator[None]:
    """Compute with this number of CPU threads in the block, whatever the machine has and the environment sets.

    Args:
        threads: the number of threads.
        all_for_inference: use the threads of the process, if they are more, inside :func:`inference_threads`.
    """
    before, token = torch.get_num_threads(), None
    if all_for_inference and _inference.get() is None:
        token = _inference.set(max(threads, before))
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if token is not None:
            _inference.reset(token)


@contextmanager
def inference_threads() -> Iterator[None]:
    """Use more threads in the block if the audit around it allows it: passes of a model do not add up over examples."""
    threads = _inference.get()
    with nullcontext() if threads is None else limit_threads(threads):
        yield


def make_run(
    compute: Compute,
    seed: int,
    train: TrainConfig,
    checkpoints: Checkpoints | None = None,
    progress: Progress | None = None,
) -> Run:
    """Create a run: choose the device, set the precision, and start the other processes if there are several."""
    return Run(
        train=train,
        seeds=Seeds(seed),
        fabric=_fabric(replace(compute, threads=1, track=None)),  # neither is a setting of Fabric
        checkpoints=checkpoints,
        progress=progress,
        workers=compute.workers,
        precision="32-true" if compute.precision == "auto" else compute.precision,
        threads=compute.threads,
        graph=compute.graph,
    )


def is_main_process() -> bool:
    """Return whether this process has rank 0, or trains alone."""
    return not _has_process_group() or torch.distributed.get_rank() == 0


def _has_process_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


@lru_cache
def _fabric(compute: Compute) -> Any:
    """Create Fabric once per ``compute``, so that its processes are started once for all runs."""
    if compute.precision not in PRECISIONS:
        raise InputError(f"unknown precision {compute.precision!r}", expected=", ".join(PRECISIONS))
    if compute.devices < 1 or compute.workers < 0:
        raise InputError(
            "devices must be at least 1 and workers not negative", got=f"{compute.devices}, {compute.workers}"
        )
    _check_strategy(compute.strategy)
    accelerator, index = _accelerator(compute.device)
    if accelerator == "cpu" and compute.precision == "16-mixed":
        raise InputError("16-mixed needs a CUDA device", hint="Use --precision bf16-mixed, or auto.")
    from lightning.fabric import Fabric

    for name in ("lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)  # hide their startup messages
    try:
        fabric = Fabric(
            accelerator=accelerator,
            devices=[index] if index is not None else compute.devices,
            strategy=compute.strategy,
            precision="32-true" if compute.precision == "auto" else cast(Any, compute.precision),  # checked above
        )
    except (ValueError, RuntimeError) as error:
        devices = f"{compute.devices} x {compute.device}, strategy {compute.strategy}"
        raise InputError(f"cannot set up these devices: {error}", got=devices) from None
    if compute.devices > 1:
        fabric.launch()
        atexit.register(_destroy_process_group)
    return fabric


def _check_strategy(name: str) -> None:
    from lightning.fabric.strategies import STRATEGY_REGISTRY

    if any(word in name for word in ("fsdp", "deepspeed")):
        raise InputError(
            f"the strategy {name!r} shards the model, but it is evaluated and saved as a whole here",
            hint="Use --strategy ddp.",
        )
    if name not in ("auto", *STRATEGY_REGISTRY.available_strategies()):
        raise InputError(f"unknown strategy {name!r}", expected="auto, or ddp for several devices")


def _destroy_process_group() -> None:
    """End the process group: threads of Gloo that still run would abort the interpreter at its exit."""
    if _has_process_group():
        torch.distributed.destroy_process_group()


def _accelerator(device: str) -> tuple[str, int | None]:
    """Parse ``auto``, ``cpu``, ``cuda`` or ``cuda:1``."""
    name, _, number = device.partition(":")
    if name == "auto":
        return ("cuda" if torch.cuda.is_available() else "cpu"), None
    if name not in ("cpu", "cuda") or (number and (name == "cpu" or not number.isdigit())):
        raise InputError(f"unknown device {device!r}", expected="auto, cpu, cuda or cuda:NUMBER")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("no CUDA device is available", hint="Use --device cpu, or auto.")
    if number and int(number) >= torch.cuda.device_count():
        raise InputError(f"device {device!r} does not exist", expected=f"0 to {torch.cuda.device_count() - 1}")
    return name, int(number) if number else None
