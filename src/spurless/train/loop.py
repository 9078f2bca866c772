"""The training loop: minimises an objective over batches, with selection, checkpoints and progress."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.errors import DivergedError, InputError
from spurless.core.interrupts import InterruptedAfterSave, defer_interrupt, stop_requested
from spurless.core.modules import eval_mode
from spurless.data.loader import Loader
from spurless.models.weights import load_tensors
from spurless.train.evaluate import predict
from spurless.train.run import Run
from spurless.train.step import Objective, Stage, Steps, make_steps

CHECK_EVERY = 50  # steps between two checks of the loss; each check makes the host wait for the accelerator


@dataclass
class LoopState:
    """Position and best weights of the loop; with model, optimiser and generators, all that a resumed run needs."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    done: bool = False
    best_score: float = -math.inf
    best_weights: dict[str, Tensor] | None = None
    history: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """The arguments of one call of :func:`minimise`."""

    model: nn.Module
    loader: Loader
    objective: Objective
    run: Run
    stage: Stage

    def seeded(self) -> AbstractContextManager[None]:
        """Seed the global generators for this job, and restore them afterwards."""
        return self.run.seeds.seed_global_rng("loop", self.stage.name, device=self.run.device)


def minimise(model: nn.Module, loader: Loader, objective: Objective, run: Run, stage: Stage) -> None:
    """Minimise ``objective`` over the batches of ``loader``, in place.

    A stage that an earlier, killed run completed is loaded; one that it had started is continued, to the same weights.
    Ctrl-C finishes the current step and saves a checkpoint; a second Ctrl-C stops at once.

    Args:
        model: the model; parameters that require no gradient are not changed.
        loader: training batches, from :meth:`Run.loader`.
        objective: computes the loss from model and batch.
        run: the run.
        stage: the unique name of this call within the run, and settings that differ from the run's.

    Raises:
        DivergedError: the loss is not finite.
        InputError: an earlier stage of this run has the same name.
    """
    minimise_job(Job(model, loader, objective, run, stage))


def minimise_job(job: Job) -> None:
    """Run one job; see :func:`minimise`."""
    # with several processes, one that stopped would leave the others waiting
    with job.seeded(), defer_interrupt(job.run.world == 1):
        for _ in run_steps(job):
            pass  # the steps of make_steps run by themselves


def run_steps(
    job: Job, make: Callable[[nn.Module, Loader, Objective, Run, Stage], Steps] = make_steps
) -> Iterator[Steps]:
    """Run a job; yield its steps each time the caller, who runs several jobs at once, has to execute the next step.

    Everything between two steps happens here, so that a job gives the same result alone and among others.
    """
    run, stage = job.run, job.stage
    if stage.name in run.stages:
        raise InputError(f"this run has two stages named {stage.name!r}", hint="Give every stage its own name.")
    run.stages.add(stage.name)
    state = LoopState()
    with run.timed(stage.name):
        steps = make(job.model, job.loader, job.objective, run, stage)
        _restore(state, steps, run)
        for row in state.history:  # the tracker of the killed run may have missed some of these rows
            run.track({"stage": stage.name, **row})
        if not state.done:
            yield from _run_epochs(state, steps, run)
        if state.best_weights is not None:
            load_tensors(job.model, state.best_weights)
    run.history.extend({"stage": stage.name, **row} for row in state.history)
    if stage.after is not None:
        stage.after()


def _run_epochs(state: LoopState, steps: Steps, run: Run) -> Iterator[Steps]:
    name, total, message = steps.stage.name, steps.total, ""
    while not state.done:
        for is_executed in steps.epoch(state.epoch, state.batch, state.step):
            if not is_executed:
                yield steps
            state.step += 1
            state.batch += 1
            if state.step % CHECK_EVERY == 0:
                message = f"loss {_mean_loss(state, steps, run):.3f}"
            if state.step < total:
                _save_if_due(state, steps, run)
            run.report_progress(name, state.step, total, message)
            if state.step >= total:
                break
        _end_epoch(state, steps, run)
    run.report_progress(name, total, total, message)
    _save(state, steps, run)


def _end_epoch(state: LoopState, steps: Steps, run: Run) -> None:
    """Check the loss, score the epoch, and decide whether to stop."""
    config, loss = steps.config, _mean_loss(state, steps, run)
    row: dict[str, Any] = {"epoch": state.epoch + 1, "step": state.step, "loss": loss}
    state.done = state.step >= steps.total or (config.stop_loss is not None and loss < config.stop_loss)
    if config.stop_accuracy is not None:
        split = steps.loader.split
        correct = predict(steps.model, split, run.device, run.workers) == split.y.cpu()
        row["train_accuracy"] = float(correct.double().mean())
        state.done |= row["train_accuracy"] >= config.stop_accuracy
    if steps.stage.select and run.score is not None:
        row["score"] = run.score(steps.model)
        if row["score"] > state.best_score:
            state.best_score = row["score"]
            state.best_weights = {key: value.detach().cpu().clone() for key, value in steps.model.state_dict().items()}
    state.history.append({**row, **_call_watchers(state, steps, run)})
    run.track({"stage": steps.stage.name, **state.history[-1]})
    state.epoch, state.batch = state.epoch + 1, 0
    steps.loss.zero_()


def _call_watchers(state: LoopState, steps: Steps, run: Run) -> dict[str, Any]:
    """Call ``run.on_epoch_end`` and the stage's ``watch`` without effect on training."""
    watch, name = steps.stage.watch, steps.stage.name
    if watch is None and run.on_epoch_end is None:
        return {}
    with run.seeds.seed_global_rng("watch", name, device=run.device), eval_mode(steps.model), torch.no_grad():
        if run.on_epoch_end is not None:
            run.on_epoch_end(steps.model, state.step)
        return {} if watch is None else dict(watch(steps.model, state.step))


def _mean_loss(state: LoopState, steps: Steps, run: Run) -> float:
    """Return the mean loss of the epoch so far; waits for the accelerator."""
    loss = float(run.sum(steps.loss)) / run.world / max(1, state.batch)
    if not math.isfinite(loss):
        raise DivergedError(steps.stage.name, state.step, steps.config.lr)
    return loss


def _save_if_due(state: LoopState, steps: Steps, run: Run) -> None:
    """Save a checkpoint if it is due; after Ctrl-C, save and stop."""
    if stop_requested():
        _save(state, steps, run)
        raise InterruptedAfterSave
    if run.checkpoints is not None and run.checkpoints.is_due(steps.stage.name):
        _save(state, steps, run)


def _save(state: LoopState, steps: Steps, run: Run) -> None:
    if run.checkpoints is None or not run.is_main:
        return
    checkpoint: dict[str, Any] = {
        # copies: a weight may be a view into a tensor of many models, which would be saved as a whole
        "model": {name: value.clone() for name, value in steps.model.state_dict().items()},
        "optimiser": steps.optimiser.state_dict(),
        "loss": steps.loss,
        "memory": dict(steps.stage.memory),
        "loop": asdict(state),
        **steps.generators(),
    }
    run.checkpoints.save(steps.stage.name, checkpoint)


def _restore(state: LoopState, steps: Steps, run: Run) -> None:
    checkpoint = run.checkpoints.load(steps.stage.name) if run.checkpoints is not None else None
    if checkpoint is None:
        return
    load_tensors(steps.model, checkpoint["model"])
    steps.optimiser.load_state_dict(checkpoint["optimiser"])
    for group in steps.optimiser.param_groups:
        if isinstance(group["lr"], Tensor):  # loaded to the CPU, but a graph reads it on the device
            group["lr"] = group["lr"].to(run.device)
    steps.loss.copy_(checkpoint["loss"])
    for name, tensor in steps.stage.memory.items():
        tensor.copy_(checkpoint["memory"][name])
    torch.set_rng_state(checkpoint["generator"])
    if run.device.type == "cuda":
        torch.cuda.set_rng_state(checkpoint["cuda_generator"], run.device)
    for name, value in checkpoint["loop"].items():
        setattr(state, name, value)
