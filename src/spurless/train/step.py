"""Training steps (forward, backward, update): eager, or captured once as a CUDA graph and replayed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spurless.core.errors import InputError, SpurlessWarning
from spurless.data.loader import Loader
from spurless.data.split import Batch
from spurless.train.asam import asam_gradient
from spurless.train.checks import check_has_gradient, check_trainable, explain_step_error
from spurless.train.config import TrainConfig, learning_rate
from spurless.train.run import Run

Objective: TypeAlias = Callable[[nn.Module, Batch], Tensor]
"""Computes the loss of a batch. It does not update weights; tensors that it changes are in ``Stage.memory``."""

Watch: TypeAlias = Callable[[nn.Module, int], Mapping[str, Any]]
"""Called after an epoch with the model and the number of steps; returns further fields of the epoch's history row."""

WARMUP_STEPS = 3  # eager steps before a capture; they are part of the training
MIN_STEPS_TO_CAPTURE = 30  # with fewer steps, a capture takes longer than it saves


@dataclass(frozen=True)
class Stage:
    """The name of one call of the loop, unique within the run, and its settings."""

    name: str = "train"
    config: TrainConfig | None = None
    """Settings, if they differ from the run's."""
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors that the objective changes in place; they are saved and restored with the weights."""
    static: bool = False
    """Whether the objective runs the same tensor operations on every batch (no Python state, no value read on the
    host), so that the whole step can be captured as a CUDA graph."""
    select: bool = True
    """Whether to select the epoch with the best score by the run's criterion."""
    watch: Watch | None = None
    """Called at the end of every epoch, in eval mode, without gradients and with its own random generators. It must not
    change the model; the trained weights are then bit-identical to those without it."""
    after: Callable[[], None] | None = None
    """Called when the stage is complete, or was loaded as complete from a checkpoint."""


class Steps:
    """The steps of one stage, each launched by the host; ``loss`` is the sum of the epoch's losses, on the device."""

    def __init__(self, model: nn.Module, loader: Loader, objective: Objective, run: Run, stage: Stage) -> None:
        self.model, self.loader, self.objective, self.run, self.stage = model, loader, objective, run, stage
        self.config = stage.config or run.train
        self.per_epoch = loader.steps()
        self.total = self.config.steps or self.config.epochs * self.per_epoch
        self.loss = torch.zeros((), device=run.device)
        self.is_first = True
        set_train_mode(model)
        model.to(run.device)
        if run.device.type == "cuda" and any(p.dim() == 4 for p in model.parameters()):
            model.to(memory_format=torch.channels_last)  # faster on tensor cores
        self.module: Any = model
        self.optimiser: Any = make_optimiser(model, self.config, run.device)
        if run.world > 1 or run.precision != "32-true":  # otherwise there is nothing to wrap
            self.module, self.optimiser = run.fabric.setup(model, self.optimiser)
            if hasattr(model, "features"):
                self.module.mark_forward_method("features")

    def epoch(self, epoch: int, start: int, step: int) -> Iterator[bool]:
        """Run the steps of an epoch from batch ``start`` on; the first is step number ``step``.

        Yields True for each executed step, or False if the caller must execute it before continuing.
        """
        for batch in self.loader.batches(epoch, start):
            self.set_rate(step)
            self.make(batch)
            step += 1
            yield True

    def make(self, batch: Batch) -> None:
        """Run one step."""
        if self.config.asam > 0:
            memory = self.stage.memory.values()
            config = self.config
            loss = asam_gradient(
                lambda: self._gradient(batch), self.model, config.asam, memory, scale=config.asam_scale
            )
        else:
            loss = self._gradient(batch)
        self.update()
        self.loss += loss.detach()

    def update(self) -> None:
        """Update the weights with their gradients."""
        if self.config.l1 > 0:
            self._add_l1_gradient()
        if self.config.clip is not None:
            clip, limit = self.run.fabric.clip_gradients, self.config.clip
            clip(self.module, self.optimiser, max_norm=limit, error_if_nonfinite=False)
        self.optimiser.step()

    def _gradient(self, batch: Batch) -> Tensor:
        """Compute the gradients of the objective, and return its value."""
        try:
            loss = self.objective(self.module, batch)
        except (ValueError, RuntimeError, IndexError) as error:
            hidden = self.is_first and bool((batch.a < 0).all())
            explained = explain_step_error(error, self.model, batch.x, first=self.is_first, hidden=hidden)
            if explained is None:
                raise
            raise explained from error
        check_has_gradient(loss)
        self.is_first = False
        self.optimiser.zero_grad()
        self.run.fabric.backward(loss)
        return loss

    def _add_l1_gradient(self) -> None:
        """Add the gradient of the L1 penalty, scaled like the loss, to parameters that have a gradient."""
        weights = [p.detach() for p in self.model.parameters() if p.grad is not None]
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        scaler, l1 = getattr(self.run.fabric.strategy.precision, "scaler", None), self.config.l1
        penalties = torch._foreach_sign(weights)
        factor = l1 if scaler is None else scaler.scale(torch.full((), l1, device=self.run.device))
        torch._foreach_mul_(penalties, factor)
        torch._foreach_add_(gradients, penalties)

    def rate(self, step: int) -> float:
        """Return the learning rate of step number ``step``."""
        return learning_rate(self.config, step, self.total, self.per_epoch)

    def set_rate(self, step: int) -> None:
        """Set the learning rate of step number ``step``."""
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(self.rate(step))
            else:
                group["lr"] = self.rate(step)

    def generators(self) -> dict[str, Tensor]:
        """Return the states of the random generators that this stage uses."""
        is_cuda = self.run.device.type == "cuda"
        cuda_state = {"cuda_generator": torch.cuda.get_rng_state(self.run.device)} if is_cuda else {}
        return {"generator": torch.get_rng_state(), **cuda_state}


class GraphedSteps(Steps):
    """Steps captured once as a CUDA graph, from batch indices to updated weights, and replayed.

    Tables of the epoch's batch indices and learning rates, and a counter of the current row, are on the device, so
    that the host only has to replay the graph.
    """

    def __init__(self, model: nn.Module, loader: Loader, objective: Objective, run: Run, stage: Stage) -> None:
        super().__init__(model, loader, objective, run, stage)
        rows, _ = loader.table(0)
        self.rows = torch.zeros(rows.shape, dtype=torch.long, device=run.device)
        self.rates = torch.zeros(len(rows), dtype=torch.double, device=run.device)
        self.counter = torch.zeros(1, dtype=torch.long, device=run.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.n_warmup = 0

    def epoch(self, epoch: int, start: int, step: int) -> Iterator[bool]:
        """Run the steps of an epoch; the last, shorter batch runs eagerly."""
        rows, rest = self.loader.table(epoch)
        self._check_order(rows, rest)
        self.rows.copy_(rows)
        rates = [self.rate(step - start + row) for row in range(len(rows))]
        self.rates.copy_(torch.tensor(rates, dtype=torch.double))
        self.counter.fill_(start)
        for _ in range(start, len(rows)):
            yield self.advance()
        if len(rest) and start <= len(rows):
            self.set_rate(step - start + len(rows))
            self.make(self.loader.gather(rest.to(self.run.device)))
            yield True

    def advance(self) -> bool:
        """Replay the graph, after warm-up and capture; return whether the step was executed."""
        if self.graph is None and self.n_warmup == WARMUP_STEPS:
            self._capture()
        if self.graph is not None:
            self.graph.replay()
        else:
            self.n_warmup += 1
            self._run_on_side_stream()
        return True

    def body(self) -> None:
        """Run the step with inputs that are all on the device."""
        self.make(self.loader.gather(self.next_indices()))

    def next_indices(self) -> Tensor:
        """Set the learning rate of the next step, advance the counter, and return the indices of the batch."""
        rate, index = self.rates[self.counter].squeeze(0), self.rows[self.counter].squeeze(0)
        for group in self.optimiser.param_groups:
            group["lr"].copy_(rate)
        self.counter += 1
        return index

    def _check_order(self, rows: Tensor, rest: Tensor) -> None:
        """Raise if the order has other shapes or bad indices: a graph checks nothing, and a bad index ends CUDA."""
        n = len(self.loader.split)
        is_in_range = all(int(part.min()) >= 0 and int(part.max()) < n for part in (rows, rest) if part.numel())
        if rows.shape != self.rows.shape or not is_in_range:
            raise InputError(
                "the order of an epoch is not valid",
                expected=f"{len(self.rows)} full batches, as in the first epoch, of examples from 0 to {n - 1}",
                got=f"{len(rows)} full batches",
            )

    def _run_on_side_stream(self) -> None:
        """Run one step eagerly on a side stream, as torch requires before a capture."""
        stream = torch.cuda.Stream(self.run.device)  # type: ignore[no-untyped-call]  # torch does not annotate it
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.body()
        torch.cuda.current_stream().wait_stream(stream)

    def _capture(self) -> None:
        self.optimiser.zero_grad()
        try:
            self.graph = capture_graph(self.body, self.run.device)
        except RuntimeError as error:
            warnings.warn(
                f"The step could not be captured as a CUDA graph and runs eagerly ({str(error).splitlines()[0]}). "
                "A stage whose objective reads values on the host must not be static.",
                SpurlessWarning,
                stacklevel=2,
            )


def capture_graph(body: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    """Capture ``body`` as a CUDA graph.

    Raises:
        RuntimeError: it cannot be captured; nothing was executed, and the generators are restored.
    """
    graph, generator = torch.cuda.CUDAGraph(), torch.cuda.default_generators[device.index or 0]
    saved = generator.clone_state()
    try:
        with torch.cuda.graph(graph):
            body()
    except Exception:
        generator.graphsafe_set_state(saved)  # a failed capture leaves the state unusable
        raise
    return graph


def set_train_mode(model: nn.Module) -> None:
    """Put a model in training mode, except batch norms that are frozen, whose statistics must not change.

    A norm is frozen if it has no gradients and is in eval mode while the model is in training mode.
    """
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm) and not part.training and model.training]
    model.train()
    for norm in norms:
        norm.train(any(weight.requires_grad for weight in norm.parameters()))


def make_steps(model: nn.Module, loader: Loader, objective: Objective, run: Run, stage: Stage) -> Steps:
    """Return captured steps if that is possible and faster, otherwise eager steps."""
    kind = GraphedSteps if stage.static and can_capture(loader, run, stage.config or run.train) else Steps
    return kind(model, loader, objective, run, stage)


def can_capture(loader: Loader, run: Run, config: TrainConfig) -> bool:
    """Return whether steps over this loader can be captured, and are enough to make it faster."""
    split = loader.split
    is_static = all(part is None or getattr(part, "static", False) for part in (split.augment, split.transform))
    is_supported = run.device.type == "cuda" and run.world == 1 and run.precision in ("32-true", "bf16-mixed")
    n_full = len(loader.table(0)[0])
    is_worth_it = n_full > 0 and (config.steps or config.epochs * n_full) > MIN_STEPS_TO_CAPTURE
    return run.graph and is_supported and is_worth_it and is_static and not split.streamed


def make_optimiser(model: nn.Module, config: TrainConfig, device: torch.device) -> torch.optim.Optimizer:
    """Return the optimiser of the trainable parameters.

    On CUDA the update is fused and the learning rate is a tensor, so that a captured graph can follow a schedule.
    """
    check_trainable(model)
    weights = [p for p in model.parameters() if p.requires_grad]
    cuda = device.type == "cuda"
    lr: Any = torch.tensor(config.lr, device=device) if cuda else config.lr
    if config.optimiser == "sgd":
        return torch.optim.SGD(weights, lr, config.momentum, weight_decay=config.weight_decay, fused=cuda or None)
    kind = torch.optim.Adam if config.optimiser == "adam" else torch.optim.AdamW
    betas = (config.momentum, config.beta2)
    return kind(weights, lr, betas, weight_decay=config.weight_decay, capturable=cuda, fused=cuda or None)
