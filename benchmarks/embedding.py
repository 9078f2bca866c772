"""What keeping features costs: seconds and memory of a first pass, of finding it again, and of batches from the file.

The backbone is one linear layer from 64 numbers to 2,048 features, and the data are as many rows as CelebA has in
training, so that storing is measured and not embedding. The bare pass, which keeps nothing, is there to compare with.

Every variant runs in a process of its own, so that its peak of memory is its own: the first pass, then another process
that finds it. Memory counts pages of the mapped file that were read: the system may take these back at any time.

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

from spurless.bench.assess import circumstances
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.grouped import Grouped
from spurless.data.loader import Loader, in_order
from spurless.models.classifier import Classifier, evaluating
from spurless.models.features import DTYPES, rows
from spurless.train.config import TrainConfig
from spurless.train.embed import embedded, inputs_key, weights_key
from spurless.train.evaluate import EVALUATION_BATCH
from spurless.train.run import Engine, start

INPUTS, BATCH, BATCHES = 64, 128, 8000
CPU = torch.device("cpu")
T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[float, T]:
    begin = time.perf_counter()
    result = work()
    return round(time.perf_counter() - begin, 3), result


def peak() -> int:
    """Return the most memory this process ever had, in megabytes."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6)


def bare(model: Classifier, split: Grouped) -> int:
    with evaluating(model):
        batches = Loader(split, in_order(len(split)), EVALUATION_BATCH).batches()
        return sum(len(part) for part in rows(model, batches, CPU))


def gather(split: Grouped) -> float:
    """Draw random batches as a head is trained on them; the sum keeps them from being skipped."""
    generator = Seeds(0).generator("order")
    loader, total = Loader(split, in_order(len(split)), BATCH), 0.0
    for _ in range(BATCHES):
        x = loader.gather(torch.randint(len(split), (BATCH,), generator=generator)).x
        assert isinstance(x, torch.Tensor)
        total += float(x[0, 0])
    return total


def measure(n: int, width: int, dtype: str, task: str) -> dict[str, float]:
    """Do one task in this process."""
    generator = Seeds(0).generator("rows")
    x = torch.randn(n, INPUTS, generator=generator)
    split = Grouped(x, torch.arange(n) % 2, torch.full((n,), -1), Groups(("a", "b")))
    with Seeds(0).borrowed("init"):
        model = Classifier(nn.Linear(INPUTS, width), nn.Linear(width, 2))
    run = start(Engine(device="cpu"), 0, TrainConfig())
    facts: dict[str, float] = {"megabytes_before": peak()}
    if task == "bare":
        facts["seconds"], count = timed(lambda: bare(model, split))
        assert count == n
        return facts | {"peak_megabytes": peak()}
    hashing, _ = timed(lambda: (weights_key(model), inputs_key(split)))
    facts["seconds"], found = timed(lambda: embedded(model, split, run, dtype=DTYPES[dtype]))
    facts |= {"seconds_of_hashing": hashing, "peak_megabytes": peak()}
    if task == "find":
        facts[f"seconds_of_{BATCHES}_random_batches"], _ = timed(lambda: gather(found))
        facts["peak_megabytes_after_batches"] = peak()
    return facts


def in_another_process(arguments: list[str], cache: Path) -> dict[str, float]:
    environment = {**os.environ, "SPURLESS_CACHE": str(cache)}
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    facts: dict[str, float] = json.loads(done.stdout)
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=162770)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--folder", type=Path, help="where the features are kept while this runs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--task", choices=["bare", "first", "find"], help=argparse.SUPPRESS)
    parser.add_argument("--dtype", choices=list(DTYPES), default="float32", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.task is not None:
        print(json.dumps(measure(given.rows, given.width, given.dtype, given.task)))
        return
    size = ["--rows", str(given.rows), "--width", str(given.width)]
    results = {}
    with tempfile.TemporaryDirectory(dir=given.folder) as cache:
        results["bare pass, nothing kept"] = in_another_process([*size, "--task", "bare"], Path(cache))
        for dtype in DTYPES:
            for task, name in (("first", "first pass"), ("find", "found again")):
                asked = [*size, "--task", task, "--dtype", dtype]
                results[f"{name}, {dtype}"] = in_another_process(asked, Path(cache))
    settings = {"rows": given.rows, "width": given.width, "batch_size": BATCH, "batches": BATCHES}
    text = json.dumps({"settings": settings, "results": results, **circumstances(CPU)}, indent=1)
    if given.out is not None:
        given.out.write_text(text + "\n")
    print(text)


main()
