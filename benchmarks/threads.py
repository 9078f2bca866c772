"""Measure how long a training step takes with several numbers of CPU threads, of which a run uses one by default.

python benchmarks/threads.py --threads 1 2 4 --out benchmarks/records/threads_cpu.json
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

import spurless as sp
from spurless.fitting.assess import describe_environment

MODELS = {"small-cnn": (28, 64, 40), "torchvision:resnet18": (64, 16, 4)}
"""Size of the images, examples per batch and number of steps."""
REPETITIONS = 2


def resized(data: sp.Splits, side: int) -> sp.Splits:
    """Return the splits with images of another size, and short validation and test splits."""

    def resize(split: Any, n: int) -> Any:
        part = split.select(torch.arange(min(n, len(split))))
        return replace(part, x=torch.nn.functional.interpolate(part.x, (side, side)))

    return replace(data, train=resize(data.train, 256), val=resize(data.val, 16), test=resize(data.test, 16))


def seconds_per_step(name: str, threads: int) -> float:
    """Return the median over repetitions of the seconds of a step."""
    side, batch, steps = MODELS[name]
    data = resized(sp.load("patched-digits", seed=0), side)
    model = sp.build(name, data, seed=0)
    seconds = []
    for _ in range(1 + REPETITIONS):
        compute = sp.Compute("cpu", threads=threads)
        fitted = sp.fit("erm", model, data, train={"steps": steps, "batch_size": batch}, compute=compute)
        seconds.append(fitted.record.seconds["train"] / steps)
    return median(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    results = {name: {n: round(seconds_per_step(name, n), 5) for n in args.threads} for name in MODELS}
    for name, seconds in results.items():
        print(name, ", ".join(f"{n} threads: {1000 * value:.1f} ms" for n, value in seconds.items()))
    if args.out:
        settings = {name: dict(zip(("side", "batch_size", "steps"), MODELS[name], strict=True)) for name in MODELS}
        content = {"settings": settings, "seconds_per_step": results, "load": os.getloadavg()[0]}
        args.out.write_text(json.dumps(content | describe_environment(torch.device("cpu")), indent=1) + "\n")


if __name__ == "__main__":
    main()
