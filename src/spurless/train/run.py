"""Run: what a method is given besides model and data: device, seeds, settings, progress, checkpoints, selection."""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput
from spurless.core.progress import Progress
from spurless.core.seeds import Seeds
from spurless.core.turn import offer_turn
from spurless.data.grouped import Grouped
from spurless.data.loader import Loader, Order
from spurless.train.checkpoint import Checkpoints
from spurless.train.config import TrainConfig
from spurless.train.tracking import Log

PRECISIONS = ("auto", "32-true", "bf16-mixed", "16-mixed")


@dataclass
class Run:
    """One method on one dataset with one seed."""

    train: TrainConfig = field(default_factory=TrainConfig)
    seeds: Seeds = field(default_factory=Seeds)
    fabric: Any = None
    """Lightning Fabric: where the tensors live and how processes talk; made by :func:`start`."""
    score: Callable[[nn.Module], float] | None = None
    """The selection criterion on the validation split; None keeps the last epoch."""
    judge: Callable[[Tensor], float] | None = None
    """The same criterion, of predicted labels of the validation split: for a head, whose features lie ready."""
    fresh: Callable[[], nn.Module] | None = None
    """Makes the untrained model again, where the starting point was trained in this run."""
    explanation: object | None = None
    """What a method found out on its way; it is passed on to the user."""
    checkpoints: Checkpoints | None = None
    progress: Progress | None = None
    log: Log | None = None
    """Takes every row of the history as its epoch ends, where the run is tracked; see ``train.tracking``."""
    workers: int = 0
    precision: str = "32-true"
    graph: bool = True
    """Capture the step as a CUDA graph where it can be."""
    seconds: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    stages: set[str] = field(default_factory=set)
    """The names of the stages so far: checkpoints are kept by them, so none may come twice."""
    embeddings: dict[str, Tensor] = field(default_factory=dict)
    """The features this run has made or found so far, by the content of weights and inputs."""
    _told: float = 0.0

    @property
    def device(self) -> torch.device:
        """Where the model and the batches live."""
        return torch.device(self.fabric.device)

    @property
    def world(self) -> int:
        """How many processes train together."""
        return int(self.fabric.world_size)

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes and prints."""
        return bool(self.fabric.is_global_zero)

    def loader(self, split: Grouped, order: Order, batch_size: int | None = None) -> Loader:
        """Return training batches of a split on this run's device; with several processes, this one's share."""
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
        """Add a tensor up over the processes that train together."""
        if self.world == 1:
            return values
        return cast(Tensor, self.fabric.all_reduce(values.clone(), reduce_op="sum"))  # which adds in place

    def tell(self, stage: str, step: int, total: int, word: str = "") -> None:
        """Report progress, at most ten times a second and at the end."""
        now = time.monotonic()
        if self.progress is not None and self.is_main and (now - self._told > 0.1 or step == total):
            self._told = now
            self.progress(stage, step, total, word)

    def note(self, row: dict[str, Any]) -> None:
        """Add a row to the history, and tell it to whoever tracks the run."""
        self.history.append(row)
        self.track(row)

    def track(self, row: Mapping[str, Any]) -> None:
        """Tell a row to whoever tracks the run; of several processes one does."""
        if self.log is not None and self.is_main:
            self.log(row)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Count the seconds of a stage."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - begin


@dataclass(frozen=True)
class Engine:
    """Where and how the arithmetic is done; none of it changes what is computed, beyond rounding."""

    device: str = "auto"
    """auto (CUDA where there is one), cpu, cuda or cuda:NUMBER."""
    devices: int = 1
    strategy: str = "auto"
    """How several devices train one model: a strategy of Lightning Fabric that keeps it whole, such as ddp."""
    precision: str = "auto"
    """auto is plain float32; bf16-mixed and 16-mixed are faster on large networks."""
    workers: int = 0
    """Processes that read streamed data."""
    graph: bool = True
    """Capture the training step as a CUDA graph where it can be."""
    track: str | None = None
    """Tell runs, as they go on, to csv, tensorboard, mlflow or wandb, as ``csv:FOLDER``; see ``train.tracking``."""


def start(engine: Engine, seed: int, train: TrainConfig, checkpoints: Checkpoints | None = None) -> Run:
    """Make a run: find the device, set the precision, and start the other processes where several are asked for."""
    return Run(
        train=train,
        seeds=Seeds(seed),
        fabric=_fabric(replace(engine, track=None)),  # one for all, however they are tracked
        checkpoints=checkpoints,
        workers=engine.workers,
        precision="32-true" if engine.precision == "auto" else engine.precision,
        graph=engine.graph,
    )


def is_main_process() -> bool:
    """Return whether this process is the one that writes and prints, where several train together."""
    import torch.distributed as together

    return not (together.is_available() and together.is_initialized()) or together.get_rank() == 0


@lru_cache
def _fabric(engine: Engine) -> Any:
    """Make Fabric once per engine: its other processes are started once, whatever the number of runs."""
    if engine.precision not in PRECISIONS:
        raise BadInput(f"no precision is called {engine.precision!r}", expected=", ".join(PRECISIONS))
    if engine.devices < 1 or engine.workers < 0:
        raise BadInput("devices must be at least 1 and workers not negative", got=f"{engine.devices}, {engine.workers}")
    _check_strategy(engine.strategy)
    accelerator, index = _accelerator(engine.device)
    if accelerator == "cpu" and engine.precision == "16-mixed":
        raise BadInput("16-mixed needs a CUDA device", do="Use --precision bf16-mixed, or auto.")
    from lightning.fabric import Fabric

    for name in ("lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)  # their tips and greetings are not ours to give
    try:
        fabric = Fabric(
            accelerator=accelerator,
            devices=[index] if index is not None else engine.devices,
            strategy=engine.strategy,
            precision="32-true" if engine.precision == "auto" else cast(Any, engine.precision),  # checked above
        )
    except (ValueError, RuntimeError) as error:
        said = f"{engine.devices} x {engine.device}, strategy {engine.strategy}"
        raise BadInput(f"these devices cannot be set up: {error}", got=said) from None
    if engine.devices > 1:
        offer_turn()
        fabric.launch()
        atexit.register(_part)
    return fabric


def _check_strategy(name: str) -> None:
    from lightning.fabric.strategies import STRATEGY_REGISTRY

    if any(word in name for word in ("fsdp", "deepspeed")):
        raise BadInput(
            f"the strategy {name!r} cuts the model into pieces, and it is evaluated and saved whole here",
            do="Use --strategy ddp.",
        )
    if name not in ("auto", *STRATEGY_REGISTRY.available_strategies()):
        raise BadInput(f"no strategy is called {name!r}", expected="auto, or ddp for several devices")


def _part() -> None:
    """Let the processes that trained together go: Gloo's threads, left running, abort the interpreter at its end."""
    import torch.distributed as together

    if together.is_available() and together.is_initialized():
        together.destroy_process_group()


def _accelerator(device: str) -> tuple[str, int | None]:
    """Read ``auto``, ``cpu``, ``cuda`` or ``cuda:1``."""
    name, _, number = device.partition(":")
    if name == "auto":
        return ("cuda" if torch.cuda.is_available() else "cpu"), None
    if name not in ("cpu", "cuda") or (number and (name == "cpu" or not number.isdigit())):
        raise BadInput(f"no device is called {device!r}", expected="auto, cpu, cuda or cuda:NUMBER")
    if name == "cuda" and not torch.cuda.is_available():
        raise BadInput("CUDA was asked for, and there is no CUDA device here", do="Use --device cpu, or auto.")
    if number and int(number) >= torch.cuda.device_count():
        raise BadInput(f"there is no {device!r} here", expected=f"0 to {torch.cuda.device_count() - 1}")
    return name, int(number) if number else None
