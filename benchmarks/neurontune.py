"""Time and memory of NeuronTune on embeddings as large as CelebA's, and the gain from computing them once.

Run: python benchmarks/neurontune.py --out benchmarks/records/neurontune_cpu.json

Large: 162,770 x 2,048 random embeddings to tune on and 19,867 to identify on, 40 epochs of 200 batches of 128, in a
separate process, to measure its peak memory. Small: a ResNet-18 on images, with embeddings computed once, compared with
embeddings computed again for each batch; the two alternate in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.errors import SpurlessWarning
from spurless.core.groups import Groups
from spurless.data.split import Split, Splits
from spurless.fitting import fit
from spurless.fitting.assess import describe_environment
from spurless.metrics.spuriousness import biased_features, spuriousness
from spurless.models import Classifier, build
from spurless.train.run import Compute

GROUPS = Groups(("no", "yes"), ("left", "right"))
LARGE = (162_770, 19_867, 2_048)
SMALL = (1_000, 250)
SHORT: dict[str, Any] = {"epochs": 12, "batches": 4, "batch_size": 128}


def make_split(x: Tensor, generator: torch.Generator) -> Split:
    y, a = torch.randint(2, (2, len(x)), generator=generator)
    return Split(x, y, a, GROUPS)


def measure_large(epochs: int) -> dict[str, float]:
    """Tune a head on random embeddings, and return seconds and peak memory."""
    generator = torch.Generator().manual_seed(0)
    n, m, d = LARGE
    train, val = (make_split(torch.randn(rows, d, generator=generator).relu_(), generator) for rows in (n, m))
    data = Splits(train, val, val.select(torch.arange(1000)), name="random embeddings")
    model = Classifier(nn.Identity(), nn.Linear(d, 2), trained=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpurlessWarning)  # random labels: the model is at chance
        record = fit("neurontune", model, data, threshold=0.01, epochs=epochs, compute=Compute("cpu")).record
    total = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "epochs": epochs,
        "whole_seconds": total,
        "identify_seconds": record.seconds["identify"],
        "tune_seconds": record.seconds["tune"],
        "peak_mb": peak / 1024,
        "peak_before_mb": before / 1024,
    }


def make_small_data() -> tuple[Classifier, Splits]:
    generator = torch.Generator().manual_seed(0)
    parts = [
        make_split(torch.randint(256, (n, 3, 64, 64), dtype=torch.uint8, generator=generator), generator) for n in SMALL
    ]
    data = Splits(parts[0], parts[1], parts[1].select(torch.arange(64)), name="random images")
    model = build("torchvision:resnet18", data)
    model.trained = True
    return model, data


def embed_once(model: Classifier, data: Splits) -> None:
    with warnings.catch_warnings(), TemporaryDirectory() as empty:
        warnings.simplefilter("ignore", SpurlessWarning)
        os.environ["SPURLESS_CACHE"] = empty  # an empty cache for each repetition
        fit("neurontune", model, data, threshold=0.01, compute=Compute("cpu"), **SHORT)


def embed_each_batch(model: Classifier, data: Splits) -> None:
    """Embed each batch when it is needed, as a plain loop over images does."""
    model.eval()
    head = nn.Linear(model.n_features, 2)
    optimiser = torch.optim.SGD(head.parameters(), 1e-3, 0.9, weight_decay=1e-4)
    generator = torch.Generator().manual_seed(0)

    def embed(part: Split, index: Tensor) -> Tensor:
        batch = part.select(index)
        with torch.no_grad():
            return model.features(part.prepare(batch.x))  # type: ignore[arg-type]  # images in memory

    for _ in range(SHORT["epochs"]):
        rows = torch.cat([embed(data.val, index) for index in torch.split(torch.arange(len(data.val)), 256)])
        pred = head(rows).argmax(dim=1)
        keep = ~biased_features(spuriousness(rows, data.val.y, pred, 2), 0.01)
        for _ in range(SHORT["batches"]):
            index = torch.randint(len(data.train), (SHORT["batch_size"],), generator=generator)
            logits = head(embed(data.train, index) * keep)
            optimiser.zero_grad()
            nn.functional.cross_entropy(logits, data.train.y[index]).backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
            optimiser.step()


def measure_small(turns: int) -> dict[str, Any]:
    model, data = make_small_data()
    seconds: dict[str, list[float]] = {"once": [], "again": []}
    for _ in range(turns):
        for name, variant in (("once", embed_once), ("again", embed_each_batch)):
            start = time.perf_counter()
            variant(model, data)
            seconds[name].append(round(time.perf_counter() - start, 2))
    ratio = min(seconds["again"]) / min(seconds["once"])
    return {**SHORT, "images": list(SMALL), "seconds": seconds, "ratio": round(ratio, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--epochs", type=int, default=40, help="epochs of the large measurement")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--large", action="store_true", help="only run the large measurement, in this process, and print JSON"
    )
    args = parser.parse_args()
    if args.large:
        print(json.dumps(measure_large(args.epochs)))
        return
    command = [sys.executable, __file__, "--large", "--epochs", str(args.epochs)]
    numbers = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    record = {
        "results": {
            "large": {name: round(value, 2) for name, value in numbers.items()},
            "small": measure_small(args.turns),
        },
        **describe_environment(torch.device("cpu")),
    }
    text = json.dumps(record, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
