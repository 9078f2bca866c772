"""Overhead of the training loop: iterations per second, compared with hand-written loops in the same process.

On a CPU: small-cnn at 28x28, batch 64, and an MLP on 2 features, batch 100, whose time is almost only overhead.
On CUDA: torchvision's ResNet-18 at 28x28, batch 100, SGD with momentum.

Each variant is timed as a slope (time of many steps minus time of few, divided by the difference in steps), so that
imports, allocation, warm-up and capture cancel out. The variants alternate, and the median is reported.

Run: python benchmarks/loop_overhead.py [--out benchmarks/records/loop_overhead_cpu.json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.loader import shuffled_order
from spurless.data.split import Split
from spurless.fitting.assess import describe_environment
from spurless.methods.erm import mean_loss
from spurless.models import build
from spurless.train.config import TrainConfig
from spurless.train.loop import minimise
from spurless.train.run import Compute, make_run
from spurless.train.step import Stage

Variant = Callable[[int], None]
"""Runs the given number of training steps, and waits until they are done."""


def make_examples(shape: tuple[int, ...], n: int) -> Split:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, *shape), generator=generator, dtype=torch.uint8)
    y = torch.randint(10, (n,), generator=generator)
    return Split(x, y, torch.full((n,), -1), Groups(tuple(map(str, range(10)))))


def with_spurless(name: str, split: Split, batch: int, device: torch.device, graph: bool) -> Variant:
    def run_steps(steps: int) -> None:
        model = build(name, input_shape=split.x.shape[1:], n_classes=10)  # type: ignore[union-attr]  # a tensor
        run = make_run(Compute(device=device.type, graph=graph), 0, TrainConfig(steps=steps, batch_size=batch))
        loader = run.loader(split, shuffled_order(len(split), Seeds(0)))
        minimise(model, loader, mean_loss, run, Stage("train", static=True))
        synchronize(device)

    return run_steps


def by_hand(name: str, split: Split, batch: int, device: torch.device, channels_last: bool = False) -> Variant:
    """Return a careful hand-written loop: data on the device, batches by index, eager steps."""
    assert isinstance(split.x, Tensor)
    x, y = split.x.to(device), split.y.to(device)

    def run_steps(steps: int) -> None:
        model = build(name, input_shape=tuple(x.shape[1:]), n_classes=10).to(device).train()
        if channels_last:
            model = model.to(memory_format=torch.channels_last)
        optimiser = torch.optim.SGD(model.parameters(), 0.01, 0.9, weight_decay=1e-4)
        done = 0
        while done < steps:
            order = torch.randperm(len(x), device=device)
            for k in range(len(x) // batch):
                index = order[k * batch : (k + 1) * batch]
                loss = cross_entropy(model(x[index].float() / 255), y[index])
                optimiser.zero_grad()
                torch.autograd.backward(loss)
                optimiser.step()
                done += 1
                if done == steps:
                    break
        synchronize(device)

    return run_steps


def with_dataloader(name: str, split: Split, batch: int, device: torch.device) -> Variant:
    """Return the loop of most tutorials: a TensorDataset, a DataLoader with workers, a copy per batch."""
    assert isinstance(split.x, Tensor)
    dataset = torch.utils.data.TensorDataset(split.x, split.y)
    loader = torch.utils.data.DataLoader(
        dataset, batch, shuffle=True, num_workers=4, pin_memory=True, persistent_workers=True
    )

    def run_steps(steps: int) -> None:
        model = build(name, input_shape=split.x.shape[1:], n_classes=10).to(device).train()  # type: ignore[union-attr]
        optimiser = torch.optim.SGD(model.parameters(), 0.01, 0.9, weight_decay=1e-4)
        done = 0
        while done < steps:
            for raw, target in loader:
                images = raw.to(device, non_blocking=True).float() / 255
                loss = cross_entropy(model(images), target.to(device, non_blocking=True))
                optimiser.zero_grad()
                torch.autograd.backward(loss)
                optimiser.step()
                done += 1
                if done == steps:
                    break
        synchronize(device)

    return run_steps


def by_hand_graph(name: str, split: Split, batch: int, device: torch.device, channels_last: bool) -> Variant:
    """Return a hand-written CUDA graph: static buffers for one batch, filled by index before each replay."""
    assert isinstance(split.x, Tensor)
    x, y = split.x.to(device), split.y.to(device)

    def run_steps(steps: int) -> None:
        model = build(name, input_shape=tuple(x.shape[1:]), n_classes=10).to(device).train()
        if channels_last:
            model = model.to(memory_format=torch.channels_last)
        optimiser = torch.optim.SGD(model.parameters(), 0.01, 0.9, weight_decay=1e-4)
        index = torch.zeros(batch, dtype=torch.long, device=device)

        def step() -> None:
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(cross_entropy(model(x[index].float() / 255), y[index]))
            optimiser.step()

        side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        optimiser.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            step()
        order = torch.randperm(len(x), device=device)
        for k in range(steps):
            batch_number = k % (len(x) // batch)
            index.copy_(order[batch_number * batch : (batch_number + 1) * batch])
            graph.replay()
        synchronize(device)

    return run_steps


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def steps_per_second(variant: Variant, few: int, many: int) -> float:
    """Return the iterations per second, without setup; single values are noisy, so use the median."""
    start = time.perf_counter()
    variant(few)
    middle = time.perf_counter()
    variant(many)
    return (many - few) / ((time.perf_counter() - middle) - (middle - start))


def compare(variants: dict[str, Variant], few: int, many: int, turns: int) -> dict[str, dict[str, object]]:
    for variant in variants.values():
        variant(few)  # warm up
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(turns):
        for name, variant in variants.items():
            rates[name].append(steps_per_second(variant, few, many))
    return {
        name: {"iterations_per_second": round(median(values), 1), "turns": [round(value, 1) for value in values]}
        for name, values in rates.items()
    }


def measure_cpu() -> dict[str, object]:
    device = torch.device("cpu")
    images, points = make_examples((3, 28, 28), 2000), make_examples((2,), 2000)
    return {
        "small-cnn 28x28, batch 64": compare(
            {
                "by hand": by_hand("small-cnn", images, 64, device),
                "spurless": with_spurless("small-cnn", images, 64, device, graph=False),
            },
            10,
            60,
            7,
        ),
        "mlp on 2 features, batch 100": compare(
            {
                "by hand": by_hand("mlp", points, 100, device),
                "spurless": with_spurless("mlp", points, 100, device, graph=False),
            },
            100,
            1100,
            7,
        ),
    }


def measure_cuda() -> dict[str, object]:
    device, name = torch.device("cuda"), "torchvision:resnet18"
    split = make_examples((3, 28, 28), 60000)
    variants = {
        "DataLoader, 4 workers": with_dataloader(name, split, 100, device),
        "by hand, eager": by_hand(name, split, 100, device),
        "by hand, eager, channels last": by_hand(name, split, 100, device, channels_last=True),
        "spurless, eager": with_spurless(name, split, 100, device, graph=False),
        "by hand, graph": by_hand_graph(name, split, 100, device, channels_last=False),
        "by hand, graph, channels last": by_hand_graph(name, split, 100, device, channels_last=True),
        "spurless, graph": with_spurless(name, split, 100, device, graph=True),
    }
    return {"torchvision:resnet18 28x28, batch 100": compare(variants, 100, 600, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    result = {"results": measure_cuda() if device.type == "cuda" else measure_cpu(), **describe_environment(device)}
    text = json.dumps(result, indent=1)
    if out is not None:
        out.write_text(text + "\n")
    print(text)


main()
