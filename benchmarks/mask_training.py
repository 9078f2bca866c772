"""Speed of learning DCWP's mask: iterations per second, compared with the authors' loop in the same process.

The authors' loop creates a sampler and a loader for each batch of 256, copies it to the device and steps eagerly.
Spurless samples the indices of a whole epoch, keeps the uint8 images on the device, and replays a CUDA graph. Both
learn the same logits of DCWP's network with the same loss. Times are slopes (many steps minus few), and medians are
reported; the authors' loop is slow, and is timed over an eighth of the steps.

On CUDA, the stages of the whole pipeline on Colored MNIST are timed too, if MNIST is available.

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

from spurless.core.errors import SpurlessError
from spurless.core.groups import Groups
from spurless.data import load
from spurless.data.mined import MinedExamples, data_fingerprint, oversampled_order
from spurless.data.split import Batch, Split
from spurless.fitting import fit
from spurless.fitting.assess import describe_environment
from spurless.methods._learn_mask import PENALTIES, examples_per_snapshot, learn_mask
from spurless.methods.dcwp import DCWPConfig, debiased_loss
from spurless.models import Classifier, build
from spurless.models.pruning.learned_masks import add_learned_masks, get_mask_logits
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, make_run

SHAPE, BATCH = (3, 28, 28), 256
AUTHORS = "authors' way"
Variant = Callable[[int], None]
"""Learns a mask for the given number of steps, and waits until they are done."""


@dataclass(frozen=True)
class Task:
    """The data, the mined examples, and the device."""

    split: Split
    mined: MinedExamples
    device: torch.device

    def net(self) -> Classifier:
        """Return DCWP's network before pruning."""
        return build("pooled-cnn", input_shape=SHAPE, n_classes=10).to(self.device)


def make_task(n: int, device: torch.device) -> Task:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, *SHAPE), generator=generator, dtype=torch.uint8)
    split = Split(
        x, torch.randint(10, (n,), generator=generator), torch.full((n,), -1), Groups(tuple(map(str, range(10))))
    )
    chosen = torch.rand(n, generator=generator) < 0.01
    return Task(split, MinedExamples(chosen.float(), chosen, "gce", data_fingerprint(split)), device)


def with_spurless(task: Task, graph: bool) -> Variant:
    def run_steps(steps: int) -> None:
        config = DCWPConfig(prune_steps=steps, batch_size=BATCH)
        run = make_run(Compute(task.device.type, graph=graph), 0, TrainConfig())
        order = oversampled_order(task.mined, config.prune_upweight, run.seeds, examples_per_snapshot(steps, BATCH))
        loss = debiased_loss(task.mined, config, config.prune_upweight, config.prune_align, run)
        learn_mask(task.net(), run.loader(task.split, order, BATCH), loss, config, run, task.mined.chosen)
        synchronize(task.device)

    return run_steps


def with_authors_loop(task: Task) -> Variant:
    """Return the authors' loop: a sampler and a loader for each batch, and eager steps with the same loss."""
    assert isinstance(task.split.x, Tensor)
    n = len(task.split)
    dataset = TensorDataset(task.split.x, task.split.y, torch.arange(n))
    config = DCWPConfig()
    weights = torch.where(task.mined.chosen, config.prune_upweight, 1.0)

    def run_steps(steps: int) -> None:
        run = make_run(Compute(task.device.type, graph=False), 0, TrainConfig())
        loss = debiased_loss(task.mined, config, config.prune_upweight, config.prune_align, run)
        model = task.net().train()
        add_learned_masks(model, config.init, config.tau, squashed=config.squashed)
        optimiser = torch.optim.Adam(get_mask_logits(model).values(), config.prune_lr)
        penalty = PENALTIES[config.penalty]
        for _ in range(steps):
            sampler = WeightedRandomSampler(weights.double().tolist(), BATCH)
            x, y, index = next(iter(DataLoader(dataset, BATCH, sampler=sampler)))
            batch = Batch(x.to(task.device).float() / 255, y.to(task.device), y.to(task.device), index.to(task.device))
            value = loss(model, batch) + config.sparsity * penalty(model)
            optimiser.zero_grad()
            torch.autograd.backward(value)
            optimiser.step()
        synchronize(task.device)

    return run_steps


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def steps_per_second(variant: Variant, steps: int) -> float:
    """Return the steps per second, without setup."""
    seconds = []
    few = max(1, steps // 4)
    for count in (few, steps):
        start = time.perf_counter()
        variant(count)
        seconds.append(time.perf_counter() - start)
    return (steps - few) / max(1e-9, seconds[1] - seconds[0])


def pipeline(compute: Compute) -> dict[str, Any] | None:
    """Return the seconds of each stage of DCWP on Colored MNIST at 1 %, or None if MNIST is not available."""
    try:
        data = load("colored-mnist", conflicting=0.01, severity=1)
    except SpurlessError:
        return None
    train = {"optimiser": "adam", "beta2": 0.99, "weight_decay": 0.0, "batch_size": BATCH, "lr": 0.01}
    model = build("pooled-cnn", data)
    fitted = fit(
        "dcwp", model, data, preset="colored-mnist-1", train={**train, "steps": 10_000, "epochs": 100}, compute=compute
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
    args = parser.parse_args()
    device = torch.device(args.device)
    task = make_task(args.examples, device)
    variants: dict[str, Variant] = {AUTHORS: with_authors_loop(task), "ours, eager": with_spurless(task, graph=False)}
    if device.type == "cuda":
        variants["ours, captured"] = with_spurless(task, graph=True)
    for variant in variants.values():
        variant(2)  # warm up
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(args.turns):
        for name, variant in variants.items():
            rates[name].append(steps_per_second(variant, max(2, args.steps // (8 if name == AUTHORS else 1))))
    medians = {name: median(values) for name, values in rates.items()}
    baseline = medians[AUTHORS]
    for name, value in medians.items():
        print(f"{name:16s} {value:8.1f} it/s  {value / baseline:6.1f} x")
    stages = pipeline(Compute(device.type)) if device.type == "cuda" else None
    print(f"pipeline, seconds: {stages}")
    if args.out is not None:
        record = {
            "rates": medians,
            "turns": rates,
            "pipeline": stages,
            "steps": args.steps,
            **describe_environment(device),
        }
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
