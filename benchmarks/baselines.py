"""ERM on the real datasets, with three seeds each.

Run: python benchmarks/baselines.py --root DATA --out benchmarks/records/erm_baselines.jsonl [--only NAME ...]

Each run is appended as a record, and a table of the new records is printed. The settings are those of the paper named
in the comment, or were selected by validation accuracy (finetuning.py), after a first choice, SGD at 0.01, had reached
4.7 % in the worst test group of Waterbirds. The last epoch is used.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from spurless.core.records import Record, append_record
from spurless.data import Splits, load
from spurless.fitting import fit
from spurless.models import build
from spurless.train.embed import embed
from spurless.train.run import Compute

LITE0 = {"pretrained": True}
# fine-tuning of the pretrained network: best validation accuracy of twelve settings on three datasets; finetuning.py
TUNE = {"epochs": 20, "batch_size": 64, "optimiser": "adam", "lr": 0.001, "weight_decay": 1e-4, "schedule": "cosine"}
FLIP = {"augment": "flip"}
# a linear probe is convex: enough epochs to converge
PROBE = {"epochs": 100, "batch_size": 256, "optimiser": "adam", "lr": 1e-3, "weight_decay": 0.0}
# fine-tuning of a text encoder: within the ranges of Devlin et al. 2019
BERT = {"epochs": 4, "batch_size": 32, "optimiser": "adamw", "lr": 5e-5, "weight_decay": 0.01, "schedule": "linear"}
# DCWP's pretraining of Colored MNIST (authors' code): Adam 0.01, betas .9 and .99, 10,000 steps of 256
DCWP = {"steps": 10_000, "epochs": 1000, "batch_size": 256, "optimiser": "adam", "lr": 0.01, "beta2": 0.99}
# MaskTune's biased MNIST: SGD .01, momentum .9, batch 128; 30 of its 100 epochs
MASKTUNE = {"epochs": 30, "batch_size": 128, "lr": 0.01, "weight_decay": 1e-4}


@dataclass(frozen=True)
class Baseline:
    """One row of the table."""

    dataset: str
    model: str
    train: Mapping[str, Any]
    data_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    probe: bool = False
    """Whether a linear model is trained on the features of the pretrained model."""

    @property
    def name(self) -> str:
        """Dataset, fraction of conflicting examples, and model."""
        fraction = self.data_options.get("conflicting")
        conflicting = "" if fraction is None else f" {fraction:.1%}"
        return f"{self.dataset}{conflicting}, {'probe on ' if self.probe else ''}{self.model}"


BASELINES = (
    *(
        Baseline("colored-mnist", "pooled-cnn", {**DCWP, "weight_decay": 0.0}, {"conflicting": fraction})
        for fraction in (0.005, 0.01, 0.02, 0.05)
    ),
    Baseline("biased-mnist", "small-cnn", MASKTUNE),
    *(
        baseline
        for name in ("waterbirds-rebuilt", "celeba10k", "utkface-age-gender")
        for baseline in (
            Baseline(name, "timm:tf_efficientnet_lite0", TUNE, FLIP, LITE0),
            Baseline(name, "timm:tf_efficientnet_lite0", PROBE, {}, LITE0, probe=True),
        )
    ),
    *(
        Baseline(name, "transformers:minilm", PROBE if probe else BERT, probe=probe)
        for name in ("mnli20k", "reviews-source")
        for probe in (False, True)
    ),
)


def run(baseline: Baseline, root: str, seeds: int, compute: Compute) -> Iterator[Record]:
    for seed in range(seeds):
        data = load(baseline.dataset, seed=seed, root=root, **baseline.data_options)
        model = build(baseline.model, data, seed=seed, **baseline.model_options)
        start = time.perf_counter()
        if baseline.probe:
            data = standardise(embed(model, data, compute=compute))
            model = build("linear", data, seed=seed)
        seconds_embed = time.perf_counter() - start
        record = fit("erm", model, data, seed=seed, train=baseline.train, compute=compute).record
        yield replace(record, cell=f"baseline {baseline.name}", seconds={**record.seconds, "embed": seconds_embed})


def standardise(data: Splits) -> Splits:
    """Standardise the features by train, so that one learning rate works for all backbones."""
    x = data.train.x
    if not isinstance(x, torch.Tensor):
        raise TypeError("the features are not a tensor")
    shift, scale = x.mean(dim=0), x.std(dim=0).clamp(min=1e-6)
    parts = {
        name: replace(getattr(data, name), x=(getattr(data, name).x - shift) / scale)
        for name in ("train", "val", "test")
    }
    return replace(data, **parts)


def table(records: Mapping[str, list[Record]]) -> str:
    columns = ("average", "adjusted_average", "balanced_average", "worst_group")
    lines = [f"{'baseline':<58}" + "".join(f"{name.split('_')[0]:>11}" for name in columns) + f"{'seconds':>9}"]
    for name, runs in records.items():
        cells = "".join(f"{100 * mean(run.metrics[key] or 0.0 for run in runs):>11.1f}" for key in columns)
        lines.append(f"{name:<58}{cells}{mean(run.seconds['total'] for run in runs):>9.1f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=None, help="data folder")
    parser.add_argument("--out", type=Path, required=True, help="file to append records to")
    parser.add_argument("--only", nargs="*", default=None, help="names of datasets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=None, help="stop each run after this number of steps, for a test run"
    )
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    if args.root is not None:
        os.environ["SPURLESS_DATA"] = args.root  # pretrained weights are searched for there
    records: dict[str, list[Record]] = {}
    for baseline in BASELINES:
        if args.only is not None and baseline.dataset not in args.only:
            continue
        shortened = baseline if args.steps is None else replace(baseline, train={**baseline.train, "steps": args.steps})
        for record in run(shortened, args.root, args.seeds, Compute(args.device)):
            append_record(args.out, record)
            records.setdefault(baseline.name, []).append(record)
            worst = 100 * (record.metrics["worst_group"] or 0.0)
            print(f"{baseline.name}, seed {record.seed}: {worst:.1f}, {record.seconds['total']:.0f} s", flush=True)
    print(table(records))


if __name__ == "__main__":
    main()
