"""What learning DCWP's mask costs: iterations per second beside the same step in the authors' way, in the same process.

Their way makes a sampler and a loader anew for every batch of 256, copies it to the device and steps eagerly. Ours
draws an epoch of indices at once, keeps the images on the device as bytes, and replays a captured step on CUDA. Both
learn the same logits of DCWP's net by the same loss. Times are slopes (many steps less few), medians over turns; theirs
is slow, and is timed over an eighth of the steps.

Then the whole pipeline on Colored MNIST, stage by stage, where its data are found.

Run: python benchmarks/mask_training.py --out benchmarks/records/mask_training_h200.json
     python benchmarks/mask_training.py --device cpu --steps 4 --turns 1 --examples 600
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from spurless.bench.assess import circumstances
from spurless.bench.fitting import fit
from spurless.core.errors import SpurlessError
from spurless.core.groups import Groups
from spurless.data import load
from spurless.data.grouped import Batch, Grouped
from spurless.data.mined import Mined, fingerprint, oversampled
from spurless.methods.dcwp import DCWPConfig, debiased
from spurless.methods.subnetwork import PENALTIES, learn_mask, per_look
from spurless.models import Classifier, build
from spurless.models.learned_masks import learn_masks, mask_logits
from spurless.train.config import TrainConfig
from spurless.train.run import Engine, start

SHAPE, BATCH = (3, 28, 28), 256
THEIRS = "authors' way"
Variant = Callable[[int], None]
"""Learns a mask for so many steps, and waits until they are done."""


@dataclass(frozen=True)
class Task:
    """What is learned from what."""

    split: Grouped
    mined: Mined
    device: torch.device

    def net(self) -> Classifier:
        """Return DCWP's net, as it is before pruning."""
        return build("pooled-cnn", input_shape=SHAPE, n_classes=10).to(self.device)


def examples(n: int, device: torch.device) -> Task:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, *SHAPE), generator=generator, dtype=torch.uint8)
    split = Grouped(
        x, torch.randint(10, (n,), generator=generator), torch.full((n,), -1), Groups(tuple(map(str, range(10))))
    )
    chosen = torch.rand(n, generator=generator) < 0.01
    return Task(split, Mined(chosen.float(), chosen, "gce", fingerprint(split)), device)


def ours(task: Task, graph: bool) -> Variant:
    def run_steps(steps: int) -> None:
        config = DCWPConfig(prune_steps=steps, batch_size=BATCH)
        run = start(Engine(task.device.type, graph=graph), 0, TrainConfig())
        order = oversampled(task.mined, config.prune_upweight, run.seeds, per_look(steps, BATCH))
        loss = debiased(task.mined, config, config.prune_upweight, config.prune_align, run)
        learn_mask(task.net(), task.split, order, loss, config, run, task.mined.chosen)
        wait(task.device)

    return run_steps


def authors_way(task: Task) -> Variant:
    """A sampler and a loader for every batch; the step is that of ours, launched by the host."""
    assert isinstance(task.split.x, Tensor)
    n = len(task.split)
    dataset = TensorDataset(task.split.x, task.split.y, torch.arange(n))
    config = DCWPConfig()
    weights = torch.where(task.mined.chosen, config.prune_upweight, 1.0)

    def run_steps(steps: int) -> None:
        run = start(Engine(task.device.type, graph=False), 0, TrainConfig())
        loss = debiased(task.mined, config, config.prune_upweight, config.prune_align, run)
        model = task.net().train()
        learn_masks(model, config.init, config.tau, squashed=config.squashed)
        optimiser = torch.optim.Adam(mask_logits(model).values(), config.prune_lr)
        penalty = PENALTIES[config.penalty]
        for _ in range(steps):
            sampler = WeightedRandomSampler(weights.double().tolist(), BATCH)
            x, y, index = next(iter(DataLoader(dataset, BATCH, sampler=sampler)))
            batch = Batch(x.to(task.device).float() / 255, y.to(task.device), y.to(task.device), index.to(task.device))
            value = loss(model, batch) + config.sparsity * penalty(model)
            optimiser.zero_grad()
            torch.autograd.backward(value)
            optimiser.step()
        wait(task.device)

    return run_steps


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rate(variant: Variant, steps: int) -> float:
    """Return steps per second: what many steps take beyond what few take."""
    seconds = []
    few = max(1, steps // 4)
    for count in (few, steps):
        begin = time.perf_counter()
        variant(count)
        seconds.append(time.perf_counter() - begin)
    return (steps - few) / max(1e-9, seconds[1] - seconds[0])


def pipeline(engine: Engine) -> dict[str, Any] | None:
    """Return the seconds of every stage of DCWP on Colored MNIST at 1 %; None where MNIST is not there."""
    try:
        data = load("colored-mnist", conflicting=0.01, severity=1)
    except SpurlessError:
        return None
    train = {"optimiser": "adam", "beta2": 0.99, "weight_decay": 0.0, "batch_size": BATCH, "lr": 0.01}
    model = build("pooled-cnn", data)
    fitted = fit(
        "dcwp", model, data, preset="colored-mnist-1", train={**train, "steps": 10_000, "epochs": 100}, engine=engine
    )
    return {name: round(value, 2) for name, value in fitted.record.seconds.items()}


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--examples", type=int, default=55_000)
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    device = torch.device(words.device)
    task = examples(words.examples, device)
    variants: dict[str, Variant] = {THEIRS: authors_way(task), "ours, eager": ours(task, graph=False)}
    if device.type == "cuda":
        variants["ours, captured"] = ours(task, graph=True)
    for variant in variants.values():
        variant(2)  # imports, allocator, algorithms
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(words.turns):
        for name, variant in variants.items():
            rates[name].append(rate(variant, max(2, words.steps // (8 if name == THEIRS else 1))))
    found = {name: median(values) for name, values in rates.items()}
    slow = found[THEIRS]
    for name, value in found.items():
        print(f"{name:16s} {value:8.1f} it/s  {value / slow:6.1f} x")
    stages = pipeline(Engine(device.type)) if device.type == "cuda" else None
    print(f"pipeline, seconds: {stages}")
    if words.out is not None:
        record = {"rates": found, "turns": rates, "pipeline": stages, "steps": words.steps, **circumstances(device)}
        words.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
