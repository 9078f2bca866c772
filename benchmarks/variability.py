"""Activation variability of every weight: seconds and memory, beside the form that makes every contribution.

Run: python benchmarks/variability.py --device cpu --out benchmarks/records/variability_cpu.json

Streamed: the scores of all weights of torchvision's ResNet-18 over 10,000 random images, from the moments of the inputs
of its layers; the same forward passes without scores; half the images; and ResNet-34, which has 1.9 times the weights.
Each in a process of its own, so that the peak of its memory is known. Naive: for one layer, a tensor of observations by
weights, whose moments are taken; the closed form of the same layer takes turns with it. What the naive form would take
for the whole network is extrapolated: its seconds per product of weight and observation, times all such products.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from spurless.bench.assess import circumstances
from spurless.core.seeds import Seeds
from spurless.metrics.variability import EPS, Moments, variability
from spurless.models import Classifier, build

LAYER = "layer4.0.downsample.0"
"""The layer that the naive form is tried on: 256 to 512 channels, kernel 1."""
TOGETHER = 2**24
"""Contributions that the naive form makes at a time."""


def network(variant: str, size: int, device: torch.device) -> Classifier:
    return build(f"torchvision:{variant}", input_shape=(3, size, size), n_classes=2).to(device).eval()


def images(n: int, size: int) -> Tensor:
    generator = Seeds(0).generator("images")
    return torch.randint(256, (n, 3, size, size), dtype=torch.uint8, generator=generator)


def batches(x: Tensor, batch_size: int, device: torch.device) -> Iterator[Tensor]:
    return (part.to(device).float() / 255 for part in torch.split(x, batch_size))


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], Any], device: torch.device) -> float:
    wait(device)
    begin = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - begin


def one(what: str, given: Any) -> dict[str, float]:
    """Go through the images once, with scores or without, in this process."""
    device, variant, n = torch.device(given.device), given.network, given.images
    model, x = network(variant, given.size, device), images(n, given.size)

    @torch.no_grad()
    def forward(some: Tensor) -> None:
        for batch in batches(some, given.batch_size, device):
            model(batch)

    def scores(some: Tensor) -> None:
        variability(model, batches(some, given.batch_size, device))

    work = scores if what == "scores" else forward
    forward(x[: given.batch_size])  # the first pass allocates, and chooses its kernels
    before = _peak(device, reset=True)
    taken = seconds_of(lambda: work(x), device)
    return {
        "images": n,
        "weights": sum(p.numel() for p in model.parameters() if p.dim() > 1),
        "seconds": taken,
        "peak_mb": _peak(device) / 2**20,
        "peak_before_mb": before / 2**20,
    }


def _peak(device: torch.device, reset: bool = False) -> float:
    """Return the most bytes held so far: by tensors on the accelerator, or by the process."""
    if device.type == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if reset:
        torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.max_memory_allocated(device)


@torch.no_grad()
def inputs_of(model: nn.Module, name: str, x: Iterator[Tensor]) -> tuple[nn.Conv2d, list[Tensor]]:
    """Return a layer by its name, and what it is given for the images."""
    layer = next(module for place, module in model.named_modules() if place.endswith(name))
    if not isinstance(layer, nn.Conv2d):
        raise TypeError("the layer of this benchmark is a convolution")
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
    for batch in x:
        model(batch)
    handle.remove()
    return layer, seen


@torch.no_grad()
def naive(layer: nn.Conv2d, inputs: list[Tensor]) -> Tensor:
    """Make all contributions of all weights, some observations at a time, and take their moments."""
    weight, moments = layer.weight.flatten(1), Moments()
    for x in inputs:
        places = unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]  # pairs
        rows = places.movedim(1, -1).flatten(0, 1)  # observations by inputs of a unit
        for part in torch.split(rows, max(1, TOGETHER // weight.numel())):
            moments.add(part[:, None, :] * weight)
    return (moments.variance / (moments.mean.abs() + EPS)).view_as(layer.weight)


@torch.no_grad()
def products(model: nn.Module, x: Tensor) -> int:
    """Count the products of weight and observation for one image."""
    total = 0

    def count(layer: Any, _: Any, out: Tensor) -> None:
        nonlocal total
        total += layer.weight.numel() * out[0].numel() // layer.weight.shape[0]

    handles = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    model(x)
    for handle in handles:
        handle.remove()
    return total


def compared(given: Any) -> dict[str, Any]:
    """Take turns of both forms on one layer, and say what the naive one would take for the whole network."""
    device = torch.device(given.device)
    model = network(given.network, given.size, device)
    n = min(given.naive_images, given.images)
    layer, inputs = inputs_of(model, LAYER, batches(images(n, given.size), given.batch_size, device))
    forms: dict[str, Callable[[], Tensor]] = {
        "closed form": lambda: variability(layer, inputs)["weight"],
        "naive": lambda: naive(layer, inputs),
    }
    ours, theirs = (form() for form in forms.values())  # where a weight is tiny, eps weighs more in the naive form
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(given.turns):
        for name, form in forms.items():
            seconds[name].append(seconds_of(form, device))
    closed, slow = median(seconds["closed form"]), median(seconds["naive"])
    of_layer = products(nn.Sequential(layer), inputs[0][:1]) * n
    of_network = products(model, torch.zeros(1, 3, given.size, given.size, device=device)) * given.images
    return {
        "layer": LAYER,
        "images": n,
        "weights": layer.weight.numel(),
        "seconds": {name: [round(value, 5) for value in values] for name, values in seconds.items()},
        "ratio": round(slow / closed, 1),
        "largest_difference_by_largest_score": float((ours - theirs).abs().max() / theirs.max()),
        "products": of_layer,
        "products_of_network": of_network,
        "naive_network_hours_extrapolated": round(slow / of_layer * of_network / 3600, 3),
    }


def apart(what: str, given: Any, **changes: Any) -> dict[str, float]:
    """Do one part in a process of its own."""
    options = {"network": given.network, "images": given.images, **changes}
    command = [sys.executable, __file__, "--part", what, "--device", given.device]
    command += ["--size", str(given.size), "--batch-size", str(given.batch_size)]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {name: round(value, 3) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--naive-images", type=int, default=1_000, help="that the layer is compared on")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--part", choices=("scores", "forward"), help="only this, in this process; prints JSON")
    given = parser.parse_args()
    if given.part is not None:
        print(json.dumps(one(given.part, given)))
        return
    parts = {
        "forward alone": apart("forward", given),
        "scores": apart("scores", given),
        "scores, half the images": apart("scores", given, images=given.images // 2),
        "scores, resnet34": apart("scores", given, network="resnet34"),
        "forward alone, resnet34": apart("forward", given, network="resnet34"),
    }
    whole = parts["scores"]
    results = {
        "streamed": parts,
        "growth": {
            "twice the images": round(whole["seconds"] / parts["scores, half the images"]["seconds"], 2),
            "weights of resnet34": round(parts["scores, resnet34"]["weights"] / whole["weights"], 2),
            "seconds of resnet34": round(parts["scores, resnet34"]["seconds"] / whole["seconds"], 2),
        },
        "naive": compared(given),
    }
    settings = {"network": given.network, "size": given.size, "batch_size": given.batch_size}
    record = {"settings": settings, "results": results, **circumstances(torch.device(given.device))}
    text = json.dumps(record, indent=1)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
