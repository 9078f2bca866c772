"""MaskTune on Waterbirds: whether its masks hide the bird or the background, and the effect on the worst group.

Run: python benchmarks/masktune_waterbirds.py --root DATA --out benchmarks/records/masktune_waterbirds.jsonl

One ERM model per seed (the settings of baselines.py); all variants start from it. Three controls use masks that
are not available to the method: none (one more epoch, nothing hidden), the true background and the true bird. Each run
is appended as a record; its ``cell`` contains the variant, the fraction of pixels that is hidden, and the fraction of
these that is bird. A table of the new records is printed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

import torch
from torch import Tensor

from spurless.core.records import Record, append_record
from spurless.data import Splits, load
from spurless.data.datasets.waterbirds import bird_masks
from spurless.data.input_masks import InputMask
from spurless.data.loader import shuffled_order
from spurless.fitting import fit
from spurless.methods.base import Info
from spurless.methods.erm import mean_loss
from spurless.methods.masktune import MaskTune, MaskTuneConfig, compute_masks
from spurless.models import Classifier, build
from spurless.train.config import TrainConfig
from spurless.train.loop import minimise
from spurless.train.run import Compute, Run, make_run
from spurless.train.step import Stage

MODEL = "timm:tf_efficientnet_lite0"
TRAIN = {"epochs": 20, "batch_size": 64, "optimiser": "adam", "lr": 0.001, "weight_decay": 1e-4, "schedule": "cosine"}
RATES = (1e-3, 1e-4)
"""learning rates of tuning: the initial rate of ERM, and a tenth of it, with which all thresholds are tried"""
PAPER = "mean + 2 deviations"
CONFIGS: dict[str, MaskTuneConfig] = {
    **{f"mean + {k} deviations": MaskTuneConfig(k=float(k)) for k in (0, 1, 2, 3)},
    "mean of all maps": MaskTuneConfig(threshold="mean"),
    "hottest 20 %": MaskTuneConfig(threshold="top", top=0.2),
    "soft": MaskTuneConfig(threshold="soft"),
    "mean + 2 deviations, 3 times": MaskTuneConfig(iterations=3),
    "mean + 2 deviations, mean pixel": MaskTuneConfig(value="mean"),
}


@dataclass(frozen=True)
class TuneWithMasksConfig:
    """Name of what is hidden."""

    hide: str = "nothing"


class TuneWithMasks:
    """Tune for one epoch with given masks, as a control."""

    info: ClassVar[Info] = Info("given-masks", "none", "one epoch with masks from outside", start="trained")
    presets: ClassVar[Mapping[str, TuneWithMasksConfig]] = {"nothing": TuneWithMasksConfig()}

    def __init__(self, config: TuneWithMasksConfig, hidden: InputMask | None) -> None:
        self.config, self.hidden = config, hidden

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Tune on the training images with the masks applied."""
        train = replace(data.train, hidden=self.hidden)
        settings = replace(run.train, epochs=1, schedule="constant")
        loader = run.loader(train, shuffled_order(len(train), run.seeds.child("tune", 1)))
        minimise(model, loader, mean_loss, run, Stage("tune 1", settings, static=True, select=False))
        return model


def measure_overlap(hidden: InputMask, bird: Tensor) -> tuple[float, float]:
    """Return the fraction of pixels that is hidden, and the fraction of these that is bird."""
    total, on_bird, pixels = 0, 0, 0
    for part in torch.split(torch.arange(len(hidden)), 500):
        mask = hidden.masks(part)
        total, on_bird = total + int(mask.sum()), on_bird + int((mask & bird[part]).sum())
        pixels += mask.numel()
    return total / pixels, on_bird / max(1, total)


def run_seed(seed: int, root: str, compute: Compute) -> Iterator[Record]:
    data = load("waterbirds-rebuilt", root=root, augment="flip")
    bird = bird_masks(root)["train"]
    trained = fit("erm", build(MODEL, data, seed=seed, pretrained=True), data, seed=seed, train=TRAIN, compute=compute)
    bird_fraction = float(bird.double().mean())
    yield replace(trained.record, cell=f"ERM; the bird covers {bird_fraction:.3f} of the pixels")
    masks = {"nothing": None, "the true background": InputMask.of(~bird), "the true bird": InputMask.of(bird)}
    for rate in RATES:
        settings = {**TRAIN, "lr": rate, "schedule": "constant"}
        for name, hidden in masks.items():
            method = TuneWithMasks(TuneWithMasksConfig(name), hidden)
            record = fit(method, trained.model, data, seed=seed, train=settings, compute=compute).record
            yield replace(record, cell=f"{name}, rate {rate:g}")
        for name, config in CONFIGS.items() if rate == RATES[-1] else {PAPER: CONFIGS[PAPER]}.items():
            record = fit(MaskTune(config), trained.model, data, seed=seed, train=settings, compute=compute).record
            yield replace(
                record, cell=f"{name}, rate {rate:g}{_describe_masks(trained.model, data, config, bird, compute)}"
            )


def _describe_masks(model: Classifier, data: Splits, config: MaskTuneConfig, bird: Tensor, compute: Compute) -> str:
    run = make_run(compute, 0, TrainConfig())
    hidden = compute_masks(model.to(run.device), data.train, config, run)
    if not isinstance(hidden, InputMask):
        return ""
    hidden_fraction, on_bird = measure_overlap(hidden, bird)
    return f"; hidden {hidden_fraction:.3f} of the pixels, {on_bird:.3f} of it bird"


def table(records: list[Record]) -> str:
    rows: dict[str, list[Record]] = {}
    for record in records:
        rows.setdefault(record.cell.split(";")[0], []).append(record)
    lines = [f"{'variant':<44}{'average':>9}{'worst':>8}   (by seed)            hidden, of it bird"]
    for name, runs in rows.items():
        worst = [100 * (r.metrics["worst_group"] or 0.0) for r in runs]
        average = mean(100 * (r.metrics["average"] or 0.0) for r in runs)
        overlap = runs[0].cell.partition(";")[2]
        lines.append(
            f"{name:<44}{average:>9.1f}{mean(worst):>8.1f}   {' '.join(f'{value:5.1f}' for value in worst)}  {overlap}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="data folder")
    parser.add_argument("--out", type=Path, required=True, help="file to append records to")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    args: Any = parser.parse_args()
    os.environ["SPURLESS_DATA"] = args.root  # pretrained weights are searched for there
    records = []
    for seed in range(args.seeds):
        for record in run_seed(seed, args.root, Compute(args.device)):
            append_record(args.out, record)
            records.append(record)
            print(record.cell, seed, f"{100 * (record.metrics['worst_group'] or 0.0):.1f}", flush=True)
    print(table(records))


if __name__ == "__main__":
    main()
