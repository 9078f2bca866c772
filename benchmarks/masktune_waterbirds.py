"""MaskTune on Waterbirds: what its maps hide, bird or background, and what that does to the worst group.

Run: python benchmarks/masktune_waterbirds.py --root DATA --out benchmarks/records/masktune_waterbirds.jsonl

One ERM model per seed (the settings of baselines.py); every variant starts from it. Beside the method's own masks stand
three that it cannot have: none (one more epoch, nothing hidden), the true background and the true bird. Every run
leaves a record; its ``cell`` says the variant, the share of the pixels that was hidden, and how much of that is bird.
The table that is printed last is made of the records.
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

from spurless.bench.fitting import fit
from spurless.core.records import Record, append
from spurless.data import Splits, load
from spurless.data.hidden import Hidden
from spurless.data.loader import shuffled
from spurless.data.waterbirds_rebuilt import masks
from spurless.methods.base import Info
from spurless.methods.erm import mean_loss
from spurless.methods.masktune import MaskTune, MaskTuneConfig, masked
from spurless.models import Classifier, build
from spurless.train.config import TrainConfig
from spurless.train.loop import minimise
from spurless.train.run import Engine, Run, start
from spurless.train.step import Stage

MODEL = "timm:tf_efficientnet_lite0"
TRAIN = {"epochs": 20, "batch_size": 64, "optimiser": "adam", "lr": 0.001, "weight_decay": 1e-4, "schedule": "cosine"}
RATES = (1e-3, 1e-4)
"""of tuning: the initial rate of ERM, and a tenth, with which all thresholds are tried; its last rate is 0"""
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
class GivenConfig:
    """Which of the true masks is hidden."""

    hide: str = "nothing"


class Given:
    """Tune for one epoch with masks that no method has: the controls of this study."""

    info: ClassVar[Info] = Info("given-masks", "none", "one epoch with masks from outside", start="trained")
    presets: ClassVar[Mapping[str, GivenConfig]] = {"nothing": GivenConfig()}

    def __init__(self, config: GivenConfig, hidden: Hidden | None) -> None:
        self.config, self.hidden = config, hidden

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Tune on what the masks leave."""
        train = replace(data.train, hidden=self.hidden)
        settings = replace(run.train, epochs=1, schedule="constant")
        loader = run.loader(train, shuffled(len(train), run.seeds.child("tune", 1)))
        minimise(model, loader, mean_loss, run, Stage("tune 1", settings, static=True, select=False))
        return model


def where(hidden: Hidden, bird: Tensor) -> tuple[float, float]:
    """Return the share of pixels that is hidden, and the share of the hidden that is bird."""
    total, on_bird, pixels = 0, 0, 0
    for part in torch.split(torch.arange(len(hidden)), 500):
        mask = hidden.masks(part)
        total, on_bird = total + int(mask.sum()), on_bird + int((mask & bird[part]).sum())
        pixels += mask.numel()
    return total / pixels, on_bird / max(1, total)


def study(seed: int, root: str, engine: Engine) -> Iterator[Record]:
    data = load("waterbirds-rebuilt", root=root, augment="flip")
    bird = masks(root)["train"]
    trained = fit("erm", build(MODEL, data, seed=seed, pretrained=True), data, seed=seed, train=TRAIN, engine=engine)
    covered = float(bird.double().mean())
    yield replace(trained.record, cell=f"ERM; the bird covers {covered:.3f} of the pixels")
    given = {"nothing": None, "the true background": Hidden.of(~bird), "the true bird": Hidden.of(bird)}
    for rate in RATES:
        settings = {**TRAIN, "lr": rate, "schedule": "constant"}
        for name, hidden in given.items():
            method = Given(GivenConfig(name), hidden)
            record = fit(method, trained.model, data, seed=seed, train=settings, engine=engine).record
            yield replace(record, cell=f"{name}, rate {rate:g}")
        for name, config in CONFIGS.items() if rate == RATES[-1] else {PAPER: CONFIGS[PAPER]}.items():
            record = fit(MaskTune(config), trained.model, data, seed=seed, train=settings, engine=engine).record
            yield replace(record, cell=f"{name}, rate {rate:g}{_said(trained.model, data, config, bird, engine)}")


def _said(model: Classifier, data: Splits, config: MaskTuneConfig, bird: Tensor, engine: Engine) -> str:
    run = start(engine, 0, TrainConfig())
    hidden = masked(model.to(run.device), data.train, config, run)
    if not isinstance(hidden, Hidden):
        return ""
    share, on_bird = where(hidden, bird)
    return f"; hidden {share:.3f} of the pixels, {on_bird:.3f} of it bird"


def table(records: list[Record]) -> str:
    rows: dict[str, list[Record]] = {}
    for record in records:
        rows.setdefault(record.cell.split(";")[0], []).append(record)
    lines = [f"{'variant':<44}{'average':>9}{'worst':>8}   (by seed)            hidden, of it bird"]
    for name, found in rows.items():
        worst = [100 * (r.metrics["worst_group"] or 0.0) for r in found]
        average = mean(100 * (r.metrics["average"] or 0.0) for r in found)
        said = found[0].cell.partition(";")[2]
        lines.append(
            f"{name:<44}{average:>9.1f}{mean(worst):>8.1f}   {' '.join(f'{value:5.1f}' for value in worst)}  {said}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="the data folder")
    parser.add_argument("--out", type=Path, required=True, help="records are appended here")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    given: Any = parser.parse_args()
    os.environ["SPURLESS_DATA"] = given.root  # pretrained weights are looked for there
    records = []
    for seed in range(given.seeds):
        for record in study(seed, given.root, Engine(given.device)):
            append(given.out, record)
            records.append(record)
            print(record.cell, seed, f"{100 * (record.metrics['worst_group'] or 0.0):.1f}", flush=True)
    print(table(records))


if __name__ == "__main__":
    main()
