"""Speed of compact models: a channel-pruned CNN with its zeros, and without them, in one process on the CPU.

Of every convolution and hidden layer, the filters of the smallest l2 norm are set to zero, as by structured pruning.
``compact_model`` then removes them. Both models take turns on the same batches, on one thread; the median over the
turns is reported, with the ratio of the two and the ratio of their multiply-adds. The logits are compared.

Run: python benchmarks/compact.py [--out benchmarks/records/compact_cpu.json]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from spurless.fitting.assess import describe_environment
from spurless.models import build, compact_model
from spurless.models.pruning.masks import named_weight_layers

MODELS: dict[str, tuple[int, ...]] = {"small-cnn": (3, 28, 28), "pooled-cnn": (3, 28, 28), "vgg11-small": (3, 32, 32)}
FRACTIONS = (0.5, 0.75)


def prune_filters(model: nn.Module, fraction: float) -> None:
    """Set the filters of the smallest norm to zero in every layer but the head, in place."""
    with torch.no_grad():
        for name, layer in named_weight_layers(model):
            if not name.startswith("head"):
                order = layer.weight.flatten(1).norm(dim=1).argsort()
                layer.weight[order[: int(fraction * len(order))]] = 0


@torch.no_grad()
def seconds(model: nn.Module, batches: list[Tensor]) -> float:
    start = time.perf_counter()
    for x in batches:
        model(x)
    return time.perf_counter() - start


def measure(name: str, fraction: float, batch: int, turns: int) -> dict[str, object]:
    shape = MODELS[name]
    model = build(name, input_shape=shape, n_classes=10).eval()
    prune_filters(model, fraction)
    compact = compact_model(model, torch.zeros(1, *shape))
    small = compact.model.eval()
    generator = torch.Generator().manual_seed(0)
    batches = [torch.rand(batch, *shape, generator=generator) for _ in range(4)]
    with torch.no_grad():
        difference = max(float((model(x) - small(x)).abs().max()) for x in batches)
    times = [(seconds(model, batches), seconds(small, batches)) for _ in range(turns + 1)][1:]  # the first warms up
    n = batch * len(batches)
    return {
        "images_per_second_pruned": round(n / median(pruned for pruned, _ in times), 1),
        "images_per_second_compact": round(n / median(compacted for _, compacted in times), 1),
        "speedup": round(median(pruned / compacted for pruned, compacted in times), 2),
        "flops_ratio": round(compact.flops_before / compact.flops_after, 2),
        "parameters": [compact.parameters_before, compact.parameters_after],
        "max_logit_difference": difference,
        "unchanged": compact.unchanged,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for name in MODELS:
        for fraction in FRACTIONS:
            key = f"{name}, {fraction:.0%} of filters pruned, batch {args.batch}"
            results[key] = measure(name, fraction, args.batch, args.turns)
            print(key, results[key])
    if args.out is not None:
        record = {"results": results, **describe_environment(torch.device("cpu"))}
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
