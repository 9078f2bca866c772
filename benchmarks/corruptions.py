"""Speed of corruptions: images per second at level 5, for whole batches and for a loop over single images.

Both forms call the same function in the same process and alternate; the median is reported. The loop processes fewer
images, since its speed does not depend on their number.

Run: python benchmarks/corruptions.py [--device cuda] [--n 5000] [--out benchmarks/records/corruptions_cpu.json]
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

from spurless.data.corruptions import CORRUPTIONS, corrupt
from spurless.fitting.assess import describe_environment

SIDE = 32
LEVEL = 5


def batched(images: Tensor, name: str) -> None:
    corrupt(images, name, LEVEL)


def one_by_one(images: Tensor, name: str) -> None:
    for k in range(len(images)):
        corrupt(images[k : k + 1], name, LEVEL, index=torch.tensor([k]))


def images_per_second(form: Callable[[Tensor, str], None], images: Tensor, name: str) -> float:
    """Return images per second."""
    synchronize(images.device)
    start = time.perf_counter()
    form(images, name)
    synchronize(images.device)
    return len(images) / (time.perf_counter() - start)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compare(images: Tensor, name: str, singles: int, turns: int) -> dict[str, float]:
    forms = {"batched": (batched, images), "one by one": (one_by_one, images[:singles])}
    for form, subset in forms.values():
        form(subset, name)  # warm up
    rates = {
        title: median(images_per_second(form, subset, name) for _ in range(turns))
        for title, (form, subset) in forms.items()
    }
    return {title: round(value, 1) for title, value in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--n", type=int, default=5000)
    parser.add_argument("--singles", type=int, default=50)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (args.n, 3, SIDE, SIDE), generator=generator, dtype=torch.uint8).to(device)
    print(f"{'images/s':20}{'batched':>12}{'one by one':>12}{'times':>8}")
    results = {}
    for name in CORRUPTIONS:
        rates = results[name] = compare(images, name, args.singles, args.turns)
        times = rates["batched"] / rates["one by one"]
        print(f"{name:20}{rates['batched']:12,.0f}{rates['one by one']:12,.0f}{times:8.1f}")
    settings = {"n": args.n, "side": SIDE, "level": LEVEL, "threads": torch.get_num_threads()}
    if args.out is not None:
        record = {"settings": settings, "images_per_second": results, **describe_environment(device)}
        args.out.write_text(json.dumps(record, indent=1) + "\n")


main()
