"""The loop: the one place where a model is trained; it knows batches and an Objective, not methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput, Diverged
from spurless.core.interrupts import Left, asked_to_stop, held_back
from spurless.data.loader import Loader
from spurless.models.classifier import evaluating
from spurless.models.weights import restore
from spurless.train.evaluate import predict
from spurless.train.run import Run
from spurless.train.step import Objective, Stage, Steps, steps_of

CHECK_EVERY = 50
"""Steps between two looks at the loss: a look makes the host wait for the accelerator."""


@dataclass
class _Place:
    """Where the loop is; together with model, optimiser and generators, all that a resumed run needs."""

    step: int = 0
    epoch: int = 0
    within: int = 0
    done: bool = False
    best: float = -math.inf
    kept: dict[str, Tensor] | None = None
    history: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """One call of the loop, not yet made: what :func:`minimise` takes."""

    model: nn.Module
    loader: Loader
    objective: Objective
    run: Run
    stage: Stage

    def lent(self) -> AbstractContextManager[None]:
        """Lend the global generators to this job: whatever its steps draw comes from its own seeds."""
        return self.run.seeds.borrowed("loop", self.stage.name, device=self.run.device)


def minimise(model: nn.Module, loader: Loader, objective: Objective, run: Run, stage: Stage) -> None:
    """Minimise ``objective`` over the batches of ``loader``, in place.

    A stage that an earlier, killed run finished is loaded; one that it had begun is continued, to the same weights.
    A Ctrl-C lets the step end and saves where the loop is; a second one does not wait.

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
    minimise_job(Job(model, loader, objective, run, stage))


def minimise_job(job: Job) -> None:
    """Do a job alone; see :func:`minimise`."""
    # of several processes one would wait for the other
    with job.lent(), held_back(job.run.world == 1):
        for _ in walk(job):
            pass  # what steps_of returns makes every step itself


def walk(job: Job, make: Callable[[nn.Module, Loader, Objective, Run, Stage], Steps] = steps_of) -> Iterator[Steps]:
    """Walk through a job, and pause with its steps where whoever walks several at once has to make the next one.

    All the loop does between two steps happens here, so that a job among others and a job alone end alike.
    """
    run, stage = job.run, job.stage
    if stage.name in run.stages:
        raise BadInput(
            f"two stages of this run are called {stage.name!r}", do="Give each call of the loop its own name."
        )
    run.stages.add(stage.name)
    place = _Place()
    with run.timed(stage.name):
        steps = make(job.model, job.loader, job.objective, run, stage)
        _restore(place, steps, run)
        for row in place.history:  # of the part that a killed run had made: its log ended anywhere
            run.track({"stage": stage.name, **row})
        if not place.done:
            yield from _epochs(place, steps, run)
        if place.kept is not None:
            restore(job.model, place.kept)
    run.history.extend({"stage": stage.name, **row} for row in place.history)
    if stage.after is not None:
        stage.after()


def _epochs(place: _Place, steps: Steps, run: Run) -> Iterator[Steps]:
    """Walk to the end, one epoch after another."""
    name, total, word = steps.stage.name, steps.total, ""
    while not place.done:
        for made in steps.epoch(place.epoch, place.within, place.step):
            if not made:
                yield steps
            place.step += 1
            place.within += 1
            if place.step % CHECK_EVERY == 0:
                word = f"loss {_look(place, steps, run):.3f}"
            if place.step < total:
                _keep(place, steps, run)
            run.tell(name, place.step, total, word)
            if place.step >= total:
                break
        _end_epoch(place, steps, run)
    run.tell(name, total, total, word)
    _save(place, steps, run)


def _end_epoch(place: _Place, steps: Steps, run: Run) -> None:
    """Look at the loss, score the epoch, and decide whether to go on."""
    config, loss = steps.config, _look(place, steps, run)
    row: dict[str, Any] = {"epoch": place.epoch + 1, "step": place.step, "loss": loss}
    place.done = place.step >= steps.total or (config.stop_loss is not None and loss < config.stop_loss)
    if config.stop_accuracy is not None:
        split = steps.loader.split
        right = predict(steps.model, split, run.device, run.workers) == split.y.cpu()
        row["train_accuracy"] = float(right.double().mean())
        place.done |= row["train_accuracy"] >= config.stop_accuracy
    if steps.stage.select and run.score is not None:
        row["score"] = run.score(steps.model)
        if row["score"] > place.best:
            place.best = row["score"]
            place.kept = {key: value.detach().cpu().clone() for key, value in steps.model.state_dict().items()}
    place.history.append({**row, **_watched(place, steps, run)})
    run.track({"stage": steps.stage.name, **place.history[-1]})
    place.epoch, place.within = place.epoch + 1, 0
    steps.loss.zero_()


def _watched(place: _Place, steps: Steps, run: Run) -> dict[str, Any]:
    """Let the stage look at the model, and see to it that training does not notice."""
    watch, name = steps.stage.watch, steps.stage.name
    if watch is None:
        return {}
    with run.seeds.borrowed("watch", name, device=run.device), evaluating(steps.model), torch.no_grad():
        return dict(watch(steps.model, place.step))


def _look(place: _Place, steps: Steps, run: Run) -> float:
    """Return the mean loss of the epoch so far; the one place that waits for the accelerator."""
    loss = float(run.sum(steps.loss)) / run.world / max(1, place.within)
    if not math.isfinite(loss):
        raise Diverged(steps.stage.name, place.step, steps.config.lr)
    return loss


def _keep(place: _Place, steps: Steps, run: Run) -> None:
    """Save where it is time to; where a Ctrl-C waits for the end of the step, save and leave."""
    if asked_to_stop():
        _save(place, steps, run)
        raise Left
    if run.checkpoints is not None and run.checkpoints.due(steps.stage.name):
        _save(place, steps, run)


def _save(place: _Place, steps: Steps, run: Run) -> None:
    if run.checkpoints is None or not run.is_main:
        return
    state: dict[str, Any] = {
        # copies: a weight may be a view into those of many models, and would bring them all along
        "model": {name: value.clone() for name, value in steps.model.state_dict().items()},
        "optimiser": steps.optimiser.state_dict(),
        "loss": steps.loss,
        "memory": dict(steps.stage.memory),
        "walk": asdict(place),
        **steps.generators(),
    }
    run.checkpoints.save(steps.stage.name, state)


def _restore(place: _Place, steps: Steps, run: Run) -> None:
    state = run.checkpoints.load(steps.stage.name) if run.checkpoints is not None else None
    if state is None:
        return
    restore(steps.model, state["model"])
    steps.optimiser.load_state_dict(state["optimiser"])
    for group in steps.optimiser.param_groups:
        if isinstance(group["lr"], Tensor):  # it comes from the CPU, where a graph cannot read it
            group["lr"] = group["lr"].to(run.device)
    steps.loss.copy_(state["loss"])
    for name, tensor in steps.stage.memory.items():
        tensor.copy_(state["memory"][name])
    torch.set_rng_state(state["generator"])
    if run.device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda_generator"], run.device)
    for name, value in state["walk"].items():
        setattr(place, name, value)
