"""Steps: one batch forward, one gradient back, one update; eager, or captured once and replayed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.data.grouped import Batch
from spurless.data.loader import Loader
from spurless.train.config import TrainConfig, learning_rate
from spurless.train.refusing import check_reached, check_trainable, why_not
from spurless.train.run import Run
from spurless.train.sharpness import look_uphill

Objective: TypeAlias = Callable[[nn.Module, Batch], Tensor]
"""A method's idea of what to minimise on one batch. It never steps; what it remembers lives in ``Stage.memory``."""

Watch: TypeAlias = Callable[[nn.Module, int], Mapping[str, Any]]
"""A look at the model after an epoch: from it and the number of steps so far to what the epoch's row is to say too."""

WARM_UP = 3
"""Eager steps before a capture; they count as training."""
WORTH_CAPTURING = 30
"""Fewer steps than this are over before a capture pays."""


@dataclass(frozen=True)
class Stage:
    """One call of the loop: its name, unique within the run, and what is particular to it."""

    name: str = "train"
    config: TrainConfig | None = None
    """Settings, if other than the run's."""
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors that the objective changes in place; saved and restored with the weights."""
    static: bool = False
    """A promise that the objective is the same tensor program on every batch (no Python state, no look at a
    value), so that on CUDA the whole step may be captured as a graph."""
    select: bool = True
    """Keep the epoch that the run's criterion likes best; False for a stage that must not look."""
    watch: Watch | None = None
    """Looks at the model at the end of every epoch. It finds it in eval mode and without gradients, draws from
    generators of its own, and must change nothing: the weights are then the same as without it, to the bit."""
    after: Callable[[], None] | None = None
    """Called when the stage is over, or was found finished by an earlier run: its history and memory are complete."""


class Steps:
    """The steps of one stage, each launched by the host. ``loss`` adds the losses of the epoch up, on the device."""

    def __init__(self, model: nn.Module, loader: Loader, objective: Objective, run: Run, stage: Stage) -> None:
        self.model, self.loader, self.objective, self.run, self.stage = model, loader, objective, run, stage
        self.config = stage.config or run.train
        self.per_epoch = loader.steps()
        self.total = self.config.steps or self.config.epochs * self.per_epoch
        self.loss = torch.zeros((), device=run.device)
        self.begun = False
        in_training(model)
        model.to(run.device)
        if run.device.type == "cuda" and any(p.dim() == 4 for p in model.parameters()):
            model.to(memory_format=torch.channels_last)  # what tensor cores want
        self.module: Any = model
        self.optimiser: Any = make_optimiser(model, self.config, run.device)
        if run.world > 1 or run.precision != "32-true":  # else there is nothing to wrap, and wrapping takes time
            self.module, self.optimiser = run.fabric.setup(model, self.optimiser)
            if hasattr(model, "features"):
                self.module.mark_forward_method("features")

    def epoch(self, epoch: int, start: int, step: int) -> Iterator[bool]:
        """Make the steps of an epoch from batch ``start`` on, the first of which is step number ``step``.

        Each is told by True, or by False where it must yet be made, before the next is asked for.
        """
        for batch in self.loader.batches(epoch, start):
            self.set_rate(step)
            self.make(batch)
            step += 1
            yield True

    def make(self, batch: Batch) -> None:
        """Make one step."""
        if self.config.asam > 0:
            memory = self.stage.memory.values()
            loss = look_uphill(lambda: self._gradient(batch), self.model, self.config.asam, memory)
        else:
            loss = self._gradient(batch)
        self.update()
        self.loss += loss.detach()

    def update(self) -> None:
        """Move the weights by the gradients that they have."""
        if self.config.l1 > 0:
            self._shrink()
        if self.config.clip is not None:
            self.run.fabric.clip_gradients(
                self.module, self.optimiser, max_norm=self.config.clip, error_if_nonfinite=False
            )
        self.optimiser.step()

    def _gradient(self, batch: Batch) -> Tensor:
        """Put the gradient of the objective into the parameters, and return its value."""
        try:
            loss = self.objective(self.module, batch)
        except (ValueError, RuntimeError) as error:
            refusal = why_not(error, self.model, batch.x, first=not self.begun)
            if refusal is None:
                raise
            raise refusal from error
        check_reached(loss)
        self.begun = True
        self.optimiser.zero_grad()
        self.run.fabric.backward(loss)
        return loss

    def _shrink(self) -> None:
        """Add the gradient of the L1 penalty, scaled where the loss was; what the loss does not reach stays."""
        weights = [p.detach() for p in self.model.parameters() if p.grad is not None]
        slopes = [p.grad for p in self.model.parameters() if p.grad is not None]
        scaler, l1 = getattr(self.run.fabric.strategy.precision, "scaler", None), self.config.l1
        pulls = torch._foreach_sign(weights)
        torch._foreach_mul_(pulls, l1 if scaler is None else scaler.scale(torch.full((), l1, device=self.run.device)))
        torch._foreach_add_(slopes, pulls)

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
        """Return the state of the generators that this stage draws from."""
        cuda = self.run.device.type == "cuda"
        beside = {"cuda_generator": torch.cuda.get_rng_state(self.run.device)} if cuda else {}
        return {"generator": torch.get_rng_state(), **beside}


class GraphedSteps(Steps):
    """The whole step, from indices to updated weights, captured once as a CUDA graph and replayed.

    The indices and learning rates of an epoch lie in tables on the device, and a counter there walks
    through them, so that the host does nothing per step but replay.
    """

    def __init__(self, model: nn.Module, loader: Loader, objective: Objective, run: Run, stage: Stage) -> None:
        super().__init__(model, loader, objective, run, stage)
        rows, _ = loader.table(0)
        self.rows = torch.zeros(rows.shape, dtype=torch.long, device=run.device)
        self.rates = torch.zeros(len(rows), dtype=torch.double, device=run.device)
        self.counter = torch.zeros(1, dtype=torch.long, device=run.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warm = 0

    def epoch(self, epoch: int, start: int, step: int) -> Iterator[bool]:
        """Make the steps of an epoch; the last, shorter batch is made eagerly."""
        rows, rest = self.loader.table(epoch)
        self._check(rows, rest)
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
        """Replay; before that, warm up and capture. Return whether the step is made."""
        if self.graph is None and self.warm == WARM_UP:
            self._capture()
        if self.graph is not None:
            self.graph.replay()
        else:
            self.warm += 1
            self._aside()
        return True

    def body(self) -> None:
        """The step as a static program: everything it needs to know is on the device."""
        self.make(self.loader.gather(self.turn()))

    def turn(self) -> Tensor:
        """Set the learning rate of the step at the counter, move the counter on, and return the step's examples."""
        rate, index = self.rates[self.counter].squeeze(0), self.rows[self.counter].squeeze(0)
        for group in self.optimiser.param_groups:
            group["lr"].copy_(rate)
        self.counter += 1
        return index

    def _check(self, rows: Tensor, rest: Tensor) -> None:
        """Refuse an order that does not fit: inside a graph nothing is checked, and an overrun ends the device."""
        n = len(self.loader.split)
        inside = all(int(part.min()) >= 0 and int(part.max()) < n for part in (rows, rest) if part.numel())
        if rows.shape != self.rows.shape or not inside:
            raise BadInput(
                "the order of an epoch does not fit",
                expected=f"{len(self.rows)} full batches, as in the first epoch, of examples from 0 to {n - 1}",
                got=f"{len(rows)} full batches",
            )

    def _aside(self) -> None:
        """Make one step eagerly, on a stream of its own, as a capture wants it before."""
        aside = torch.cuda.Stream(self.run.device)  # type: ignore[no-untyped-call]  # torch does not annotate it
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self.body()
        torch.cuda.current_stream().wait_stream(aside)

    def _capture(self) -> None:
        self.optimiser.zero_grad()
        try:
            self.graph = captured(self.body, self.run.device)
        except RuntimeError as error:
            warnings.warn(
                f"The step could not be captured as a CUDA graph and runs eagerly ({str(error).splitlines()[0]}). "
                "A stage whose objective looks at values must not be static.",
                SpurlessWarning,
                stacklevel=2,
            )


def captured(body: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    """Return what ``body`` does as a graph.

    Raises:
        RuntimeError: it cannot be captured; nothing has been done, and the generators are as good as before.
    """
    graph, generator = torch.cuda.CUDAGraph(), torch.cuda.default_generators[device.index or 0]
    spare = generator.clone_state()
    try:
        with torch.cuda.graph(graph):
            body()
    except Exception:
        generator.graphsafe_set_state(spare)  # a capture cut short leaves the old state unusable
        raise
    return graph


def in_training(model: nn.Module) -> None:
    """Put a model into training mode, but for the norms that were frozen: their statistics are part of the weights.

    Frozen is a norm without gradients that is in eval mode within a model that is not.
    """
    norms = (part for part in model.modules() if isinstance(part, _BatchNorm) and not part.training)
    frozen = [norm for norm in norms if not any(weight.requires_grad for weight in norm.parameters())]
    kept = frozen if model.training else []
    model.train()
    for norm in kept:
        norm.eval()


def steps_of(model: nn.Module, loader: Loader, objective: Objective, run: Run, stage: Stage) -> Steps:
    """Return captured steps where that is possible and pays, else eager ones."""
    kind = GraphedSteps if stage.static and can_capture(loader, run, stage.config or run.train) else Steps
    return kind(model, loader, objective, run, stage)


def can_capture(loader: Loader, run: Run, config: TrainConfig) -> bool:
    """Return whether a step over this loader can be captured, and whether it pays."""
    split = loader.split
    still = all(part is None or getattr(part, "static", False) for part in (split.augment, split.transform))
    possible = run.device.type == "cuda" and run.world == 1 and run.precision in ("32-true", "bf16-mixed")
    full = len(loader.table(0)[0])
    pays = full > 0 and (config.steps or config.epochs * full) > WORTH_CAPTURING
    return run.graph and possible and pays and still and not split.streamed


def make_optimiser(model: nn.Module, config: TrainConfig, device: torch.device) -> torch.optim.Optimizer:
    """Return the optimiser of the parameters that are trained.

    On CUDA the update is fused and the learning rate is a tensor, so that a captured graph can follow a schedule.

    Raises:
        BadInput: there is none.
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
