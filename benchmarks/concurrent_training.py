"""Throughput of concurrent training: steps per second of all jobs, compared with single runs in the same process.

For each network: the loop of most tutorials (a DataLoader, a copy per batch, eager steps), one run with a CUDA graph,
and K concurrent runs ("fleet of K" in the records) with different learning rates, in TF32 and in bfloat16. The largest
number of MLPs also runs without vmap ("not folded"); in bfloat16 vmap is never used.

Each variant is timed as a slope (time of many steps minus time of few, divided by the difference in steps), so that
imports, allocation, warm-up and capture cancel out. The variants alternate, and the median is reported.

Run: python benchmarks/concurrent_training.py [--models mlp-200 small-cnn] [--together 1 4 16] [--out FILE.json]
Test on a CPU: python benchmarks/concurrent_training.py --device cpu --steps 20 --models mlp-200 --together 2
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.loader import shuffled_order
from spurless.data.split import Split
from spurless.fitting.assess import describe_environment
from spurless.methods.erm import mean_loss
from spurless.models import Classifier, build
from spurless.train.concurrent import MAX_CONCURRENT, JobOutcome, allow_concurrent_streams, minimise_all
from spurless.train.config import TrainConfig
from spurless.train.loop import Job, minimise_job
from spurless.train.run import Compute, make_run
from spurless.train.step import MIN_STEPS_TO_CAPTURE, Stage

Variant = Callable[[int], None]
"""Runs the given number of training steps of every job, and waits until they are done."""


@dataclass(frozen=True)
class Net:
    """A network, its input shape, and the number of steps to time."""

    name: str
    shape: tuple[int, ...]
    steps: int
    options: tuple[tuple[str, Any], ...] = ()

    def build(self, seed: int) -> Classifier:
        """Return a copy of the initialized network; initializing takes longer and is not to be measured."""
        return deepcopy(initialize(self, seed))


NETS = {
    "resnet18": Net("torchvision:resnet18", (3, 28, 28), 300),
    "small-cnn": Net("small-cnn", (3, 28, 28), 1000),
    "mlp-200": Net("mlp", (20,), 3000, (("width", 200),)),
    "mlp-1024": Net("mlp", (3, 28, 28), 2000, (("width", 1024),)),
}


@cache
def initialize(net: Net, seed: int) -> Classifier:
    """Build a network with random weights, once per seed."""
    return build(net.name, input_shape=net.shape, n_classes=10, seed=seed, **dict(net.options))


PRECISIONS = {"tf32": "32-true", "bf16": "bf16-mixed"}
WARMUP_STEPS = 2 * MIN_STEPS_TO_CAPTURE
"""Enough steps for a graph to be captured."""


def make_examples(shape: tuple[int, ...], n: int) -> Split:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, *shape), generator=generator, dtype=torch.uint8)
    y = torch.randint(10, (n,), generator=generator)
    return Split(x, y, torch.full((n,), -1), Groups(tuple(map(str, range(10)))))


@dataclass(frozen=True)
class Settings:
    """Device, precision, batch size and optimiser of all variants."""

    device: torch.device
    precision: str
    batch: int
    workers: int
    momentum: float = 0.9
    decay: float = 1e-4

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the autocast context of the precision."""
        is_half = self.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16) if is_half else nullcontext()

    def wait(self) -> None:
        """Wait until all launched kernels are done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def with_dataloader(net: Net, split: Split, settings: Settings) -> Variant:
    """Return the loop of most tutorials: a TensorDataset, a DataLoader with workers, a copy per batch."""
    assert isinstance(split.x, Tensor)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(split.x, split.y),
        settings.batch,
        shuffle=True,
        num_workers=settings.workers,
        pin_memory=settings.device.type == "cuda",
        persistent_workers=settings.workers > 0,
    )

    def run_steps(steps: int) -> None:
        model = net.build(0).to(settings.device).train()
        optimiser = torch.optim.SGD(model.parameters(), 0.01, settings.momentum, weight_decay=settings.decay)
        done = 0
        while done < steps:
            for raw, target in loader:
                images = raw.to(settings.device, non_blocking=True).float() / 255
                with settings.autocast():
                    loss = cross_entropy(model(images), target.to(settings.device, non_blocking=True))
                optimiser.zero_grad()
                torch.autograd.backward(loss)
                optimiser.step()
                done += 1
                if done == steps:
                    break
        settings.wait()

    return run_steps


def job(net: Net, split: Split, settings: Settings, number: int, steps: int) -> Job:
    rate = 0.01 * 2 ** -(number % 8)
    config = TrainConfig(
        steps=steps, batch_size=settings.batch, lr=rate, momentum=settings.momentum, weight_decay=settings.decay
    )
    run = make_run(Compute(device=settings.device.type, precision=PRECISIONS[settings.precision]), number, config)
    loader = run.loader(split, shuffled_order(len(split), Seeds(number)))
    return Job(net.build(number), loader, mean_loss, run, Stage("train", static=True))


def train_one(net: Net, split: Split, settings: Settings) -> Variant:
    """Return one job that runs alone, with a CUDA graph."""
    resident = split.to(settings.device)

    def run_steps(steps: int) -> None:
        minimise_job(job(net, resident, settings, 0, steps))
        settings.wait()

    return run_steps


def train_concurrently(net: Net, split: Split, settings: Settings, together: int) -> Variant:
    """Return ``together`` concurrent jobs on one copy of the data."""
    resident = split.to(settings.device)
    expected = JobOutcome(None, together if settings.device.type == "cuda" else 1)

    def run_steps(steps: int) -> None:
        jobs = [job(net, resident, settings, number, steps) for number in range(together)]
        outcomes = minimise_all(jobs, at_once=together)
        if any(outcome != expected for outcome in outcomes):
            raise RuntimeError(f"the jobs did not run concurrently: {outcomes}")
        settings.wait()

    return run_steps


def without_grouping(variant: Variant) -> Variant:
    """Return the same jobs without vmap: each job on a separate stream."""

    def run_steps(steps: int) -> None:
        with patch("spurless.train.concurrent.group_for_vmap", lambda members: [[member] for member in members]):
            variant(steps)

    return run_steps


def steps_per_second(variant: Variant, few: int, many: int) -> float:
    """Return the steps per second of one job, without setup."""
    start = time.perf_counter()
    variant(few)
    middle = time.perf_counter()
    variant(many)
    return (many - few) / ((time.perf_counter() - middle) - (middle - start))


def compare(variants: dict[str, tuple[int, Variant]], few: int, many: int, turns: int) -> dict[str, dict[str, Any]]:
    """Return the steps per second of every variant, summed over its jobs."""
    for _, variant in variants.values():
        variant(few)  # warm up
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(turns):
        for name, (jobs, variant) in variants.items():
            rates[name].append(jobs * steps_per_second(variant, few, many))
    return {
        name: {"steps_per_second": round(median(values), 1), "turns": [round(value, 1) for value in values]}
        for name, values in rates.items()
    }


def measure(net: Net, settings: Settings, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    split = make_examples(net.shape, args.examples)
    variants = {
        "DataLoader": (1, with_dataloader(net, split, settings)),
        "one graph": (1, train_one(net, split, settings)),
        **{f"fleet of {k}": (k, train_concurrently(net, split, settings, k)) for k in args.together},
    }
    if net.name == "mlp":
        largest = max(args.together)
        variants[f"fleet of {largest}, not folded"] = (
            largest,
            without_grouping(train_concurrently(net, split, settings, largest)),
        )
    few = WARMUP_STEPS if settings.device.type == "cuda" else 5
    return compare(variants, few, few + (args.steps or net.steps), args.turns)


def print_results(results: dict[str, dict[str, dict[str, Any]]]) -> None:
    for title, rows in results.items():
        base = rows["DataLoader"]["steps_per_second"]
        print(f"\n{title}")
        for name, row in rows.items():
            rate = row["steps_per_second"]
            print(f"  {name:<26}{rate:>12,.0f} steps/s{rate / base:>9.1f} x")


def main() -> None:
    allow_concurrent_streams(MAX_CONCURRENT)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--precisions", nargs="+", choices=list(PRECISIONS), default=list(PRECISIONS))
    parser.add_argument("--together", nargs="+", type=int, default=[1, 4, 8, 16, 24], help="numbers of concurrent jobs")
    parser.add_argument("--steps", type=int, help="number of steps to time (default: depends on the network)")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--examples", type=int, default=60000)
    parser.add_argument("--workers", type=int, default=4, help="workers of the DataLoader")
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum (0 in the study of large learning rates)")
    parser.add_argument(
        "--decay", type=float, default=1e-4, help="weight decay (0 in the study of large learning rates)"
    )
    parser.add_argument("--search", action="store_true", help="set torch.backends.cudnn.benchmark")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")  # TF32, the default of convolutions
    torch.backends.cudnn.benchmark = args.search
    device, results = torch.device(args.device), {}
    options = {key: value for key, value in vars(args).items() if key != "out"}
    options["queues"] = os.environ["CUDA_DEVICE_MAX_CONNECTIONS"]
    for name in args.models:
        for precision in args.precisions:
            settings = Settings(device, precision, args.batch, args.workers, args.momentum, args.decay)
            title = f"{name}, {'x'.join(map(str, NETS[name].shape))}, batch {args.batch}, {precision}"
            results[title] = measure(NETS[name], settings, args)
            print_results({title: results[title]})
            record = {"results": results, "settings": options, **describe_environment(device)}
            if args.out is not None:
                args.out.write_text(
                    json.dumps(record, indent=1) + "\n"
                )  # after each variant, so that partial results are saved


if __name__ == "__main__":
    main()
