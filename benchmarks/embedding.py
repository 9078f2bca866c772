"""Time and memory of cached features: first pass, reading the cache, and random batches from the file.

The backbone is one linear layer from 64 inputs to 2,048 features, and the data have as many rows as the training split
of CelebA, so that storing is measured, not computing. A pass without a cache is the baseline.

Each variant runs in a separate process, to measure its peak memory: the first pass, then another process that reads the
cache. Memory includes pages of the memory-mapped file that were read, which the system can reclaim at any time.

Run: python benchmarks/embedding.py [--rows 162770] [--width 2048] [--folder DIR] [--out RECORD.json]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from spurless.core.groups import Groups
from spurless.core.modules import eval_mode
from spurless.core.seeds import Seeds
from spurless.data.loader import Loader, sequential_order
from spurless.data.split import Split
from spurless.fitting.assess import describe_environment
from spurless.models.classifier import Classifier
from spurless.models.features import DTYPES, iterate_features
from spurless.train.config import TrainConfig
from spurless.train.embed import backbone_hash, embed_split, inputs_hash
from spurless.train.evaluate import EVALUATION_BATCH
from spurless.train.run import Compute, make_run

INPUTS, BATCH, BATCHES = 64, 128, 8000
CPU = torch.device("cpu")
T = TypeVar("T")


def time_call(work: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    result = work()
    return round(time.perf_counter() - start, 3), result


def peak_megabytes() -> int:
    """Return the peak memory of this process in megabytes."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6)


def pass_without_cache(model: Classifier, split: Split) -> int:
    with eval_mode(model):
        batches = Loader(split, sequential_order(len(split)), EVALUATION_BATCH).batches()
        return sum(len(part) for part in iterate_features(model, batches, CPU))


def load_random_batches(split: Split) -> float:
    """Load random batches as for training a head; the sum makes sure that they are read."""
    generator = Seeds(0).generator("order")
    loader, total = Loader(split, sequential_order(len(split)), BATCH), 0.0
    for _ in range(BATCHES):
        x = loader.gather(torch.randint(len(split), (BATCH,), generator=generator)).x
        assert isinstance(x, torch.Tensor)
        total += float(x[0, 0])
    return total


def measure(n: int, width: int, dtype: str, task: str) -> dict[str, float]:
    """Measure one variant in this process."""
    generator = Seeds(0).generator("rows")
    x = torch.randn(n, INPUTS, generator=generator)
    split = Split(x, torch.arange(n) % 2, torch.full((n,), -1), Groups(("a", "b")))
    with Seeds(0).seed_global_rng("init"):
        model = Classifier(nn.Linear(INPUTS, width), nn.Linear(width, 2))
    run = make_run(Compute(device="cpu"), 0, TrainConfig())
    facts: dict[str, float] = {"megabytes_before": peak_megabytes()}
    if task == "bare":
        facts["seconds"], count = time_call(lambda: pass_without_cache(model, split))
        assert count == n
        return facts | {"peak_megabytes": peak_megabytes()}
    hashing, _ = time_call(lambda: (backbone_hash(model), inputs_hash(split)))
    facts["seconds"], features = time_call(lambda: embed_split(model, split, run, dtype=DTYPES[dtype]))
    facts |= {"seconds_of_hashing": hashing, "peak_megabytes": peak_megabytes()}
    if task == "find":
        facts[f"seconds_of_{BATCHES}_random_batches"], _ = time_call(lambda: load_random_batches(features))
        facts["peak_megabytes_after_batches"] = peak_megabytes()
    return facts


def run_in_process(arguments: list[str], cache: Path) -> dict[str, float]:
    environment = {**os.environ, "SPURLESS_CACHE": str(cache)}
    command = [sys.executable, __file__, *arguments]
    process = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    facts: dict[str, float] = json.loads(process.stdout)
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=162770)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--folder", type=Path, help="folder for the temporary cache")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--task", choices=["bare", "first", "find"], help=argparse.SUPPRESS)
    parser.add_argument("--dtype", choices=list(DTYPES), default="float32", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.task is not None:
        print(json.dumps(measure(args.rows, args.width, args.dtype, args.task)))
        return
    size = ["--rows", str(args.rows), "--width", str(args.width)]
    results = {}
    with tempfile.TemporaryDirectory(dir=args.folder) as cache:
        results["bare pass, nothing kept"] = run_in_process([*size, "--task", "bare"], Path(cache))
        for dtype in DTYPES:
            for task, name in (("first", "first pass"), ("find", "found again")):
                arguments = [*size, "--task", task, "--dtype", dtype]
                results[f"{name}, {dtype}"] = run_in_process(arguments, Path(cache))
    settings = {"rows": args.rows, "width": args.width, "batch_size": BATCH, "batches": BATCHES}
    text = json.dumps({"settings": settings, "results": results, **describe_environment(CPU)}, indent=1)
    if args.out is not None:
        args.out.write_text(text + "\n")
    print(text)


main()
