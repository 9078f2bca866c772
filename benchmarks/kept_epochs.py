"""Which epoch NeuronTune should keep: the one of the highest SFit, as in the paper, or that of the best worst class.

Run: python benchmarks/kept_epochs.py --out benchmarks/records/kept_epochs.json [--seeds 5]

The test split has no part in it. Validation is cut in two: one half is given to the method, which identifies and keeps
by it, and the groups of the other half are told, whose attributes nobody else sees: the worst of two classes' four, and
the mean where ten classes have a hundred of a few examples. Small CNN on the digit sets, preset of Waterbirds, on the
seeds from 300 on; both ways start from the same ERM model.
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import replace
from pathlib import Path
from statistics import mean

import torch

from spurless.bench.assess import circumstances
from spurless.bench.fitting import fit
from spurless.core.errors import SpurlessWarning
from spurless.data import Splits, load
from spurless.data.grouped import Grouped
from spurless.metrics.intervals import paired
from spurless.models import Classifier, build
from spurless.train.evaluate import evaluate
from spurless.train.run import Engine

DATASETS = ("patched-digits", "colored-digits", "double-digits", "corrupted-digits")
TRAIN = {"steps": 250, "batch_size": 64, "lr": 0.01}  # of the claim neurontune/patched-digits
WAYS = ("sfit", "worst-class")
FIRST = 300


def halves(data: Splits, seed: int) -> tuple[Splits, Grouped]:
    order = torch.randperm(len(data.val), generator=torch.Generator().manual_seed(seed))
    mine, judge = (data.val.select(part) for part in order.tensor_split(2))
    return replace(data, val=mine), judge


def judged(name: str, seed: int, threshold: float) -> dict[str, float]:
    data, judge = halves(load(name, seed=seed), seed)
    model, found = build("small-cnn", data, seed=seed), {}
    for keep in WAYS:
        fitted = fit(
            "neurontune", model, data, seed=seed, train=TRAIN, engine=Engine("cpu"), keep=keep, threshold=threshold
        )
        if fitted.start is not None:
            found["erm"] = told(fitted.start, judge)
        found[keep] = told(fitted.model, judge)
    return found


def told(model: Classifier, judge: Grouped) -> float:
    table = evaluate(model, judge)
    return table.worst[0] if len(judge.groups.labels) == 2 else table.balanced


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threshold", type=float, default=0.0, help="above which a neuron is biased")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore", SpurlessWarning)
    rows: dict[str, list[dict[str, float]]] = {}
    for name in args.datasets:
        rows[name] = [judged(name, FIRST + number, args.threshold) for number in range(args.seeds)]
        means = {way: round(100 * mean(row[way] for row in rows[name]), 1) for way in ("erm", *WAYS)}
        gain = paired([row["worst-class"] for row in rows[name]], [row["sfit"] for row in rows[name]])
        print(
            f"{name:18s} {means}  {100 * gain.difference:+.1f} ({100 * gain.low:.1f} to {100 * gain.high:.1f})",
            flush=True,
        )
        record = {"rows": rows, "threshold": args.threshold, **circumstances(torch.device("cpu"))}
        if args.out is not None:
            args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
