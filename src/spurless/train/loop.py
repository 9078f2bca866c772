"""The loop: the one place where a model is trained; it knows batches and an Objective, not methods."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput, Diverged
from spurless.data.loader import Loader
from spurless.train.evaluate import predict
from spurless.train.run import Run
from spurless.train.step import Objective, Stage, Steps, steps_of

CHECK_EVERY = 50
"""Steps between two looks at the loss: a look makes the host wait for the accelerator."""


@dataclass
class _Walk:
    """Where the loop is; together with model, optimiser and generators, all that a resumed run needs."""

    step: int = 0
    epoch: int = 0
    within: int = 0
    done: bool = False
    best: float = -math.inf
    kept: dict[str, Tensor] | None = None
    history: list[dict[str, Any]] = field(default_factory=list)


def minimise(model: nn.Module, loader: Loader, objective: Objective, run: Run, stage: Stage) -> None:
    """Minimise ``objective`` over the batches of ``loader``, in place.

    A stage that an earlier, killed run finished is loaded; one that it had begun is continued, to the same weights.

    Args:
        model: what is trained; parameters that need no gradient stay as they are.
        loader: training batches, from :meth:`Run.loader`.
        objective: from model and batch to the loss.
        run: device, seeds, checkpoints, progress and selection.
        stage: the name of this call within the run, and what differs from the run's settings.

    Raises:
        Diverged: the loss is no longer a number.
        BadInput: an earlier stage of this run has the same name.
    """
    if stage.name in run.stages:
        raise BadInput(
            f"two stages of this run are called {stage.name!r}", do="Give each call of the loop its own name."
        )
    run.stages.add(stage.name)
    walk = _Walk()
    with run.timed(stage.name), run.seeds.borrowed("loop", stage.name, device=run.device):
        steps = steps_of(model, loader, objective, run, stage)
        _restore(walk, steps, run)
        if not walk.done:
            _walk(walk, steps, run)
        if walk.kept is not None:
            model.load_state_dict(walk.kept)
    run.history.extend({"stage": stage.name, **row} for row in walk.history)


def _walk(walk: _Walk, steps: Steps, run: Run) -> None:
    """Walk to the end, one epoch after another."""
    name, total, word = steps.stage.name, steps.total, ""
    while not walk.done:
        for _ in steps.epoch(walk.epoch, walk.within, walk.step):
            walk.step += 1
            walk.within += 1
            if walk.step % CHECK_EVERY == 0:
                word = f"loss {_look(walk, steps, run):.3f}"
            if run.checkpoints is not None and walk.step < total and run.checkpoints.due(name):
                _save(walk, steps, run)
            run.tell(name, walk.step, total, word)
            if walk.step >= total:
                break
        _end_epoch(walk, steps, run)
    run.tell(name, total, total, word)
    _save(walk, steps, run)


def _end_epoch(walk: _Walk, steps: Steps, run: Run) -> None:
    """Look at the loss, score the epoch, and decide whether to go on."""
    config, loss = steps.config, _look(walk, steps, run)
    row: dict[str, Any] = {"epoch": walk.epoch + 1, "step": walk.step, "loss": loss}
    walk.done = walk.step >= steps.total or (config.stop_loss is not None and loss < config.stop_loss)
    if config.stop_accuracy is not None:
        split = steps.loader.split
        right = predict(steps.model, split, run.device, run.workers) == split.y.cpu()
        row["train_accuracy"] = float(right.double().mean())
        walk.done |= row["train_accuracy"] >= config.stop_accuracy
    if steps.stage.select and run.score is not None:
        row["score"] = run.score(steps.model)
        if row["score"] > walk.best:
            walk.best = row["score"]
            walk.kept = {key: value.detach().cpu().clone() for key, value in steps.model.state_dict().items()}
    walk.history.append(row)
    walk.epoch, walk.within = walk.epoch + 1, 0
    steps.loss.zero_()


def _look(walk: _Walk, steps: Steps, run: Run) -> float:
    """Return the mean loss of the epoch so far; the one place that waits for the accelerator."""
    loss = float(run.sum(steps.loss.clone()) / run.world) / max(1, walk.within)
    if not math.isfinite(loss):
        raise Diverged(steps.stage.name, walk.step, steps.config.lr)
    return loss


def _save(walk: _Walk, steps: Steps, run: Run) -> None:
    if run.checkpoints is None or not run.is_main:
        return
    state: dict[str, Any] = {
        "model": steps.model.state_dict(),
        "optimiser": steps.optimiser.state_dict(),
        "loss": steps.loss,
        "memory": dict(steps.stage.memory),
        "generator": torch.get_rng_state(),
        "walk": asdict(walk),
    }
    if run.device.type == "cuda":
        state["cuda_generator"] = torch.cuda.get_rng_state(run.device)
    run.checkpoints.save(steps.stage.name, state)


def _restore(walk: _Walk, steps: Steps, run: Run) -> None:
    state = run.checkpoints.load(steps.stage.name) if run.checkpoints is not None else None
    if state is None:
        return
    steps.model.load_state_dict(state["model"])
    steps.optimiser.load_state_dict(state["optimiser"])
    steps.loss.copy_(state["loss"])
    for name, tensor in steps.stage.memory.items():
        tensor.copy_(state["memory"][name])
    torch.set_rng_state(state["generator"])
    if run.device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda_generator"], run.device)
    for name, value in state["walk"].items():
        setattr(walk, name, value)
