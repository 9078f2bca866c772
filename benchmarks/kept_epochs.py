"""Epoch selection of NeuronTune: by the highest SFit, as in the paper, or by the accuracy of the worst class.

Run: python benchmarks/kept_epochs.py --out benchmarks/records/kept_epochs.json [--seeds 5]

The test split is not used. One half of validation is given to the method, for identification and selection. The other
half, with attributes, is for evaluation: the worst of four groups if there are two classes, or the mean over groups if
ten classes have a hundred groups of a few examples. Small CNN on the digit datasets, preset of Waterbirds, seeds from
300 on; both criteria start from the same ERM model.
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import replace
from pathlib import Path
from statistics import mean

import torch

from spurless.core.errors import SpurlessWarning
from spurless.data import Splits, load
from spurless.data.split import Split
from spurless.fitting import fit
from spurless.fitting.assess import describe_environment
from spurless.metrics.intervals import compare_paired
from spurless.models import Classifier, build
from spurless.train.evaluate import evaluate
from spurless.train.run import Compute

DATASETS = ("patched-digits", "colored-digits", "double-digits", "corrupted-digits")
TRAIN = {"steps": 250, "batch_size": 64, "lr": 0.01}  # of the claim neurontune/patched-digits
CRITERIA = ("sfit", "worst-class")
FIRST_SEED = 300


def split_validation(data: Splits, seed: int) -> tuple[Splits, Split]:
    order = torch.randperm(len(data.val), generator=torch.Generator().manual_seed(seed))
    selection, evaluation = (data.val.select(part) for part in order.tensor_split(2))
    return replace(data, val=selection), evaluation


def compare_criteria(name: str, seed: int, threshold: float) -> dict[str, float]:
    data, evaluation = split_validation(load(name, seed=seed), seed)
    model, accuracies = build("small-cnn", data, seed=seed), {}
    for keep in CRITERIA:
        fitted = fit(
            "neurontune", model, data, seed=seed, train=TRAIN, compute=Compute("cpu"), keep=keep, threshold=threshold
        )
        if fitted.start is not None:
            accuracies["erm"] = evaluate_groups(fitted.start, evaluation)
        accuracies[keep] = evaluate_groups(fitted.model, evaluation)
    return accuracies


def evaluate_groups(model: Classifier, evaluation: Split) -> float:
    table = evaluate(model, evaluation)
    return table.worst[0] if len(evaluation.groups.labels) == 2 else table.balanced


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--threshold", type=float, default=0.0, help="spuriousness score above which a neuron is biased"
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore", SpurlessWarning)
    rows: dict[str, list[dict[str, float]]] = {}
    for name in args.datasets:
        rows[name] = [compare_criteria(name, FIRST_SEED + number, args.threshold) for number in range(args.seeds)]
        means = {
            criterion: round(100 * mean(row[criterion] for row in rows[name]), 1) for criterion in ("erm", *CRITERIA)
        }
        gain = compare_paired([row["worst-class"] for row in rows[name]], [row["sfit"] for row in rows[name]])
        print(
            f"{name:18s} {means}  {100 * gain.difference:+.1f} ({100 * gain.low:.1f} to {100 * gain.high:.1f})",
            flush=True,
        )
        record = {"rows": rows, "threshold": args.threshold, **describe_environment(torch.device("cpu"))}
        if args.out is not None:
            args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
