"""What a fleet gains: training steps per second of all its jobs, beside single trainings, in the same process.

For each network: the loop of most tutorials (a DataLoader, a copy per batch, eager steps), one training by a captured
graph, and K trainings that advance together, in TF32 and in bfloat16. Learning rates differ within a fleet. The
largest fleet of MLPs is also run without folding (in bfloat16 nothing is folded).

Every variant is timed as a slope (time of many steps minus time of few, over the difference), so that imports,
allocation, warm-up and capture cancel; the variants take turns, and the median over the turns is reported.

Run: python benchmarks/fleet.py [--models mlp-200 small-cnn] [--together 1 4 16] [--out benchmarks/records/fleet.json]
On a CPU, to see that it works: python benchmarks/fleet.py --device cpu --steps 20 --models mlp-200 --together 2
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

from spurless.bench.assess import circumstances
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.grouped import Grouped
from spurless.data.loader import shuffled
from spurless.methods.erm import mean_loss
from spurless.models import Classifier, build
from spurless.train.config import TrainConfig
from spurless.train.fleet import AT_ONCE, Outcome, minimise_all, open_queues
from spurless.train.loop import Job, minimise_job
from spurless.train.run import Engine, start
from spurless.train.step import WORTH_CAPTURING, Stage

Variant = Callable[[int], None]
"""Makes so many training steps of every job, and waits until they are done."""


@dataclass(frozen=True)
class Net:
    """A network, what it is given, and how many steps are timed."""

    name: str
    shape: tuple[int, ...]
    steps: int
    options: tuple[tuple[str, Any], ...] = ()

    def build(self, seed: int) -> Classifier:
        """Return it untrained; drawing the weights takes longer than a copy, and is not what is measured."""
        return deepcopy(drawn(self, seed))


NETS = {
    "resnet18": Net("torchvision:resnet18", (3, 28, 28), 300),
    "small-cnn": Net("small-cnn", (3, 28, 28), 1000),
    "mlp-200": Net("mlp", (20,), 3000, (("width", 200),)),
    "mlp-1024": Net("mlp", (3, 28, 28), 2000, (("width", 1024),)),
}


@cache
def drawn(net: Net, seed: int) -> Classifier:
    """Draw the weights of a network, once."""
    return build(net.name, input_shape=net.shape, n_classes=10, seed=seed, **dict(net.options))


PRECISIONS = {"tf32": "32-true", "bf16": "bf16-mixed"}
FEW = 2 * WORTH_CAPTURING
"""Enough to be captured."""


def examples(shape: tuple[int, ...], n: int) -> Grouped:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, *shape), generator=generator, dtype=torch.uint8)
    y = torch.randint(10, (n,), generator=generator)
    return Grouped(x, y, torch.full((n,), -1), Groups(tuple(map(str, range(10)))))


@dataclass(frozen=True)
class Place:
    """Where and how it is measured."""

    device: torch.device
    precision: str
    batch: int
    workers: int
    momentum: float = 0.9
    decay: float = 1e-4

    def autocast(self) -> AbstractContextManager[Any]:
        """Compute in this precision."""
        half = self.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16) if half else nullcontext()

    def wait(self) -> None:
        """Wait until all that was launched is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def with_dataloader(net: Net, split: Grouped, place: Place) -> Variant:
    """The loop of most tutorials: a Dataset of tensors, a DataLoader with workers, a copy per batch."""
    assert isinstance(split.x, Tensor)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(split.x, split.y),
        place.batch,
        shuffle=True,
        num_workers=place.workers,
        pin_memory=place.device.type == "cuda",
        persistent_workers=place.workers > 0,
    )

    def run_steps(steps: int) -> None:
        model = net.build(0).to(place.device).train()
        optimiser = torch.optim.SGD(model.parameters(), 0.01, place.momentum, weight_decay=place.decay)
        done = 0
        while done < steps:
            for raw, target in loader:
                images = raw.to(place.device, non_blocking=True).float() / 255
                with place.autocast():
                    loss = cross_entropy(model(images), target.to(place.device, non_blocking=True))
                optimiser.zero_grad()
                torch.autograd.backward(loss)
                optimiser.step()
                done += 1
                if done == steps:
                    break
        place.wait()

    return run_steps


def job(net: Net, split: Grouped, place: Place, number: int, steps: int) -> Job:
    rate = 0.01 * 2 ** -(number % 8)
    config = TrainConfig(
        steps=steps, batch_size=place.batch, lr=rate, momentum=place.momentum, weight_decay=place.decay
    )
    run = start(Engine(device=place.device.type, precision=PRECISIONS[place.precision]), number, config)
    loader = run.loader(split, shuffled(len(split), Seeds(number)))
    return Job(net.build(number), loader, mean_loss, run, Stage("train", static=True))


def one_graph(net: Net, split: Grouped, place: Place) -> Variant:
    """One job by itself."""
    resident = split.to(place.device)

    def run_steps(steps: int) -> None:
        minimise_job(job(net, resident, place, 0, steps))
        place.wait()

    return run_steps


def fleet(net: Net, split: Grouped, place: Place, together: int) -> Variant:
    """So many jobs, on one copy of the data."""
    resident = split.to(place.device)
    expected = Outcome(None, together if place.device.type == "cuda" else 1)

    def run_steps(steps: int) -> None:
        jobs = [job(net, resident, place, number, steps) for number in range(together)]
        outcomes = minimise_all(jobs, at_once=together)
        if any(outcome != expected for outcome in outcomes):
            raise RuntimeError(f"the jobs did not advance together: {outcomes}")
        place.wait()

    return run_steps


def unfolded(variant: Variant) -> Variant:
    """The same fleet, every job on a stream of its own."""

    def run_steps(steps: int) -> None:
        with patch("spurless.train.fleet.foldable", lambda members: [[member] for member in members]):
            variant(steps)

    return run_steps


def slope(variant: Variant, few: int, many: int) -> float:
    """Return steps per second of one job, set-up not counted."""
    begin = time.perf_counter()
    variant(few)
    middle = time.perf_counter()
    variant(many)
    return (many - few) / ((time.perf_counter() - middle) - (middle - begin))


def compare(variants: dict[str, tuple[int, Variant]], few: int, many: int, turns: int) -> dict[str, dict[str, Any]]:
    """Return the total steps per second of every variant, which makes so many jobs."""
    for _, variant in variants.values():
        variant(few)  # imports, allocator, algorithms
    found: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(turns):
        for name, (jobs, variant) in variants.items():
            found[name].append(jobs * slope(variant, few, many))
    return {
        name: {"steps_per_second": round(median(values), 1), "turns": [round(value, 1) for value in values]}
        for name, values in found.items()
    }


def measure(net: Net, place: Place, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    split = examples(net.shape, args.examples)
    variants = {
        "DataLoader": (1, with_dataloader(net, split, place)),
        "one graph": (1, one_graph(net, split, place)),
        **{f"fleet of {k}": (k, fleet(net, split, place, k)) for k in args.together},
    }
    if net.name == "mlp":
        most = max(args.together)
        variants[f"fleet of {most}, not folded"] = (most, unfolded(fleet(net, split, place, most)))
    few = FEW if place.device.type == "cuda" else 5
    return compare(variants, few, few + (args.steps or net.steps), args.turns)


def show(results: dict[str, dict[str, dict[str, Any]]]) -> None:
    for title, rows in results.items():
        base = rows["DataLoader"]["steps_per_second"]
        print(f"\n{title}")
        for name, row in rows.items():
            rate = row["steps_per_second"]
            print(f"  {name:<26}{rate:>12,.0f} steps/s{rate / base:>9.1f} x")


def main() -> None:
    open_queues(AT_ONCE)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--precisions", nargs="+", choices=list(PRECISIONS), default=list(PRECISIONS))
    parser.add_argument("--together", nargs="+", type=int, default=[1, 4, 8, 16, 24], help="sizes of the fleet")
    parser.add_argument("--steps", type=int, help="steps that are timed (default: by the network)")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--examples", type=int, default=60000)
    parser.add_argument("--workers", type=int, default=4, help="of the DataLoader")
    parser.add_argument("--momentum", type=float, default=0.9, help="the study of large learning rates has 0")
    parser.add_argument("--decay", type=float, default=1e-4, help="weight decay; the study has 0")
    parser.add_argument("--search", action="store_true", help="let cuDNN time its algorithms (torch's cudnn.benchmark)")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")  # TF32; convolutions have it by default
    torch.backends.cudnn.benchmark = args.search
    device, results = torch.device(args.device), {}
    settings = {key: value for key, value in vars(args).items() if key != "out"}
    settings["queues"] = os.environ["CUDA_DEVICE_MAX_CONNECTIONS"]
    for name in args.models:
        for precision in args.precisions:
            place = Place(device, precision, args.batch, args.workers, args.momentum, args.decay)
            title = f"{name}, {'x'.join(map(str, NETS[name].shape))}, batch {args.batch}, {precision}"
            results[title] = measure(NETS[name], place, args)
            show({title: results[title]})
            record = {"results": results, "settings": settings, **circumstances(device)}
            if args.out is not None:
                args.out.write_text(json.dumps(record, indent=1) + "\n")  # what is measured stays, if the rest is not


if __name__ == "__main__":
    main()
