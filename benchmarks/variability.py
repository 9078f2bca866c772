"""Time and memory of the activation variability of all weights, compared with a naive implementation.

Run: python benchmarks/variability.py --device cpu --out benchmarks/records/variability_cpu.json

Streamed: the scores of all weights of torchvision's ResNet-18 over 10,000 random images, from the moments of the layer
inputs; the same forward passes without scores; half of the images; and ResNet-34, which has 1.9 times the weights. Each
runs in a separate process, to measure its peak memory. Naive: for one layer, the moments of a tensor of observations by
weights; it alternates with the closed form for the same layer. The time of the naive form for the whole network is
extrapolated: its seconds per product of weight and observation, times the number of products.
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

from spurless.core.seeds import Seeds
from spurless.fitting.assess import describe_environment
from spurless.metrics.variability import EPS, Moments, variability
from spurless.models import Classifier, build

LAYER = "layer4.0.downsample.0"
"""Layer of the comparison with the naive form: 256 to 512 channels, kernel 1."""
MAX_PRODUCTS = 2**24
"""Number of products that the naive form computes at a time."""


def build_network(variant: str, size: int, device: torch.device) -> Classifier:
    return build(f"torchvision:{variant}", input_shape=(3, size, size), n_classes=2).to(device).eval()


def random_images(n: int, size: int) -> Tensor:
    generator = Seeds(0).generator("images")
    return torch.randint(256, (n, 3, size, size), dtype=torch.uint8, generator=generator)


def iterate_batches(x: Tensor, batch_size: int, device: torch.device) -> Iterator[Tensor]:
    return (part.to(device).float() / 255 for part in torch.split(x, batch_size))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], Any], device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - start


def measure(part: str, args: Any) -> dict[str, float]:
    """Measure one pass over the images in this process, with or without scores."""
    device, variant, n = torch.device(args.device), args.network, args.images
    model, x = build_network(variant, args.size, device), random_images(n, args.size)

    @torch.no_grad()
    def forward(subset: Tensor) -> None:
        for batch in iterate_batches(subset, args.batch_size, device):
            model(batch)

    def scores(subset: Tensor) -> None:
        variability(model, iterate_batches(subset, args.batch_size, device))

    work = scores if part == "scores" else forward
    forward(x[: args.batch_size])  # warm up
    before = _peak_bytes(device, reset=True)
    seconds = seconds_of(lambda: work(x), device)
    return {
        "images": n,
        "weights": sum(p.numel() for p in model.parameters() if p.dim() > 1),
        "seconds": seconds,
        "peak_mb": _peak_bytes(device) / 2**20,
        "peak_before_mb": before / 2**20,
    }


def _peak_bytes(device: torch.device, reset: bool = False) -> float:
    """Return the peak memory in bytes: of tensors on the GPU, or of the process."""
    if device.type == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if reset:
        torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.max_memory_allocated(device)


@torch.no_grad()
def inputs_of(model: nn.Module, name: str, x: Iterator[Tensor]) -> tuple[nn.Conv2d, list[Tensor]]:
    """Return a layer by its name, and its inputs for the images."""
    layer = next(module for path, module in model.named_modules() if path.endswith(name))
    if not isinstance(layer, nn.Conv2d):
        raise TypeError("the layer is not a convolution")
    inputs: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, layer_inputs: inputs.append(layer_inputs[0].clone()))
    for batch in x:
        model(batch)
    handle.remove()
    return layer, inputs


@torch.no_grad()
def naive_variability(layer: nn.Conv2d, inputs: list[Tensor]) -> Tensor:
    """Compute all products of weights and observations in chunks, and return the variability from their moments."""
    weight, moments = layer.weight.flatten(1), Moments()
    for x in inputs:
        patches = unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]  # pairs
        rows = patches.movedim(1, -1).flatten(0, 1)  # observations by inputs of a unit
        for part in torch.split(rows, max(1, MAX_PRODUCTS // weight.numel())):
            moments.add(part[:, None, :] * weight)
    return (moments.variance / (moments.mean.abs() + EPS)).view_as(layer.weight)


@torch.no_grad()
def count_products(model: nn.Module, x: Tensor) -> int:
    """Return the number of products of weight and observation for one image."""
    total = 0

    def count(layer: Any, _: Any, out: Tensor) -> None:
        nonlocal total
        total += layer.weight.numel() * out[0].numel() // layer.weight.shape[0]

    handles = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    model(x)
    for handle in handles:
        handle.remove()
    return total


def compare_naive(args: Any) -> dict[str, Any]:
    """Time both forms on one layer, and extrapolate the naive one to the whole network."""
    device = torch.device(args.device)
    model = build_network(args.network, args.size, device)
    n = min(args.naive_images, args.images)
    layer, inputs = inputs_of(model, LAYER, iterate_batches(random_images(n, args.size), args.batch_size, device))
    forms: dict[str, Callable[[], Tensor]] = {
        "closed form": lambda: variability(layer, inputs)["weight"],
        "naive": lambda: naive_variability(layer, inputs),
    }
    closed_scores, naive_scores = (form() for form in forms.values())  # they differ by eps if a weight is very small
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(args.turns):
        for name, form in forms.items():
            seconds[name].append(seconds_of(form, device))
    closed_seconds, naive_seconds = median(seconds["closed form"]), median(seconds["naive"])
    of_layer = count_products(nn.Sequential(layer), inputs[0][:1]) * n
    of_network = count_products(model, torch.zeros(1, 3, args.size, args.size, device=device)) * args.images
    return {
        "layer": LAYER,
        "images": n,
        "weights": layer.weight.numel(),
        "seconds": {name: [round(value, 5) for value in values] for name, values in seconds.items()},
        "ratio": round(naive_seconds / closed_seconds, 1),
        "largest_difference_by_largest_score": float((closed_scores - naive_scores).abs().max() / naive_scores.max()),
        "products": of_layer,
        "products_of_network": of_network,
        "naive_network_hours_extrapolated": round(naive_seconds / of_layer * of_network / 3600, 3),
    }


def run_in_process(part: str, args: Any, **changes: Any) -> dict[str, float]:
    """Measure one pass in a separate process."""
    options = {"network": args.network, "images": args.images, **changes}
    command = [sys.executable, __file__, "--part", part, "--device", args.device]
    command += ["--size", str(args.size), "--batch-size", str(args.batch_size)]
    command += [argument for name, value in options.items() for argument in (f"--{name}", str(value))]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {name: round(value, 3) for name, value in result.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--naive-images", type=int, default=1_000, help="images for the comparison on one layer")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--part", choices=("scores", "forward"), help="only run this part, in this process, and print JSON"
    )
    args = parser.parse_args()
    if args.part is not None:
        print(json.dumps(measure(args.part, args)))
        return
    parts = {
        "forward alone": run_in_process("forward", args),
        "scores": run_in_process("scores", args),
        "scores, half the images": run_in_process("scores", args, images=args.images // 2),
        "scores, resnet34": run_in_process("scores", args, network="resnet34"),
        "forward alone, resnet34": run_in_process("forward", args, network="resnet34"),
    }
    scores_result = parts["scores"]
    results = {
        "streamed": parts,
        "growth": {
            "twice the images": round(scores_result["seconds"] / parts["scores, half the images"]["seconds"], 2),
            "weights of resnet34": round(parts["scores, resnet34"]["weights"] / scores_result["weights"], 2),
            "seconds of resnet34": round(parts["scores, resnet34"]["seconds"] / scores_result["seconds"], 2),
        },
        "naive": compare_naive(args),
    }
    settings = {"network": args.network, "size": args.size, "batch_size": args.batch_size}
    record = {"settings": settings, "results": results, **describe_environment(torch.device(args.device))}
    text = json.dumps(record, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
