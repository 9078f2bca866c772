"""ERM on the real datasets, three seeds each: the "before" of everything that follows.

Run: python benchmarks/baselines.py --root DATA --out benchmarks/records/erm_baselines.jsonl [--only NAME ...]

Every run leaves a record; the table that is printed last is made of them. The settings are those of the paper named
beside each, or were chosen on validation accuracy (finetuning.py), after a first choice, SGD at 0.01, had left 4.7 % in
the worst test group of Waterbirds; the last epoch is kept.
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

from spurless.bench.fitting import fit
from spurless.core.records import Record, append
from spurless.data import Splits, load
from spurless.models import build
from spurless.train.embed import embed
from spurless.train.run import Engine

LITE0 = {"pretrained": True}
# fine-tuning of the pretrained net: the best of twelve on validation accuracy, on each of the three sets; finetuning.py
TUNE = {"epochs": 20, "batch_size": 64, "optimiser": "adam", "lr": 0.001, "weight_decay": 1e-4, "schedule": "cosine"}
FLIP = {"augment": "flip"}
# a linear probe is convex: long enough to arrive
PROBE = {"epochs": 100, "batch_size": 256, "optimiser": "adam", "lr": 1e-3, "weight_decay": 0.0}
# fine-tuning of an encoder of text: within the ranges of Devlin et al. 2019
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
    """Embed with the model once, and train a linear model on the features."""

    @property
    def name(self) -> str:
        """Dataset, share of conflicting examples, and model."""
        share = self.data_options.get("conflicting")
        return (
            f"{self.dataset}{'' if share is None else f' {share:.1%}'}, {'probe on ' if self.probe else ''}{self.model}"
        )


BASELINES = (
    *(
        Baseline("colored-mnist", "pooled-cnn", {**DCWP, "weight_decay": 0.0}, {"conflicting": share})
        for share in (0.005, 0.01, 0.02, 0.05)
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


def run(baseline: Baseline, root: str, seeds: int, engine: Engine) -> Iterator[Record]:
    for seed in range(seeds):
        data = load(baseline.dataset, seed=seed, root=root, **baseline.data_options)
        model = build(baseline.model, data, seed=seed, **baseline.model_options)
        began = time.perf_counter()
        if baseline.probe:
            data = standardised(embed(model, data, engine=engine))
            model = build("linear", data, seed=seed)
        embedded = time.perf_counter() - began
        record = fit("erm", model, data, seed=seed, train=baseline.train, engine=engine).record
        yield replace(record, cell=f"baseline {baseline.name}", seconds={**record.seconds, "embed": embedded})


def standardised(data: Splits) -> Splits:
    """Scale every feature to mean 0 and deviation 1 over train, so that one learning rate serves all backbones."""
    x = data.train.x
    if not isinstance(x, torch.Tensor):
        raise TypeError("features are a tensor")
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
    parser.add_argument("--root", default=None, help="the data folder")
    parser.add_argument("--out", type=Path, required=True, help="records are appended here")
    parser.add_argument("--only", nargs="*", default=None, help="names of datasets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=None, help="stop each training early, to try things out")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    if given.root is not None:
        os.environ["SPURLESS_DATA"] = given.root  # pretrained weights are looked for there
    found: dict[str, list[Record]] = {}
    for baseline in BASELINES:
        if given.only is not None and baseline.dataset not in given.only:
            continue
        short = baseline if given.steps is None else replace(baseline, train={**baseline.train, "steps": given.steps})
        for record in run(short, given.root, given.seeds, Engine(given.device)):
            append(given.out, record)
            found.setdefault(baseline.name, []).append(record)
            worst = 100 * (record.metrics["worst_group"] or 0.0)
            print(f"{baseline.name}, seed {record.seed}: {worst:.1f}, {record.seconds['total']:.0f} s", flush=True)
    print(table(found))


if __name__ == "__main__":
    main()
