"""Which reading of the study's prunability gives its numbers: kernels or filters, test or train, at both rates.

A ResNet-18 on Colored MNIST (2.5 % conflicting), SGD without momentum to 100 % on train, at a small and at a large
rate; then the share of accuracy that is left, mean over the pruned shares 0, 0.1, ..., 0.9, by what is pruned as a
whole and by whose accuracy is meant. Barsbey et al. 2025 (arXiv:2507.17748), Table 1: 0.252 the smallest, 0.771 the
largest over rates from 0.001 to 0.25. Some 20 and 45 minutes on a CPU core.

Run: python benchmarks/prunability.py --root DATA --models FOLDER --out benchmarks/records/prunability_cpu.json
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spurless.bench.assess import circumstances
from spurless.bench.fitting import fit
from spurless.bench.study import drawn
from spurless.data import load
from spurless.data.grouped import Grouped, Splits
from spurless.models import Classifier, build
from spurless.models.prunability import Prunability, Unit, prunability
from spurless.models.weights import load_weights, save_weights
from spurless.train.evaluate import evaluate, predict
from spurless.train.run import Engine

RATES = (0.005, 0.25)
UNITS: tuple[Unit, ...] = ("filters", "kernels", "weights")
TRAIN = {"momentum": 0.0, "weight_decay": 0.0, "batch_size": 100, "stop_accuracy": 1.0, "epochs": 60}


def trained(data: Splits, lr: float, seed: int, folder: Path, device: str) -> Classifier:
    """Return the network of a rate: from the folder, or trained and put there."""
    model, path = build("torchvision:resnet18", data, seed=seed), folder / f"lr={lr:g}-seed{seed}.safetensors"
    if path.exists():
        load_weights(path, model)
        return model
    fitted = fit("erm", model, data, train={**TRAIN, "lr": lr}, seed=seed, engine=Engine(device)).model
    save_weights(path, fitted)
    return fitted


def curve(model: nn.Module, split: Grouped, unit: Unit, device: torch.device) -> Prunability:
    """Return what is left of the accuracy on a split."""
    y = split.y.cpu()
    return prunability(model, lambda pruned: float((predict(pruned, split, device) == y).double().mean()), unit=unit)


def main() -> None:
    """Measure, print, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=os.environ.get("SPURLESS_DATA"), help="the data folder")
    parser.add_argument("--models", type=Path, required=True, help="keep trained models here, and take them from there")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    given.models.mkdir(parents=True, exist_ok=True)
    data, device = load("colored-mnist", root=given.root, conflicting=0.025, severity=4), torch.device(given.device)
    rows: list[dict[str, Any]] = []
    for lr in RATES:
        model = trained(data, lr, given.seed, given.models, given.device).to(device).eval()
        unbiased = float(evaluate(model, data.test, device).accuracy.nanmean())
        for unit in UNITS:
            for name, split in (("test", data.test), ("train", data.train)):
                found = curve(model, drawn(split, given.seed), unit, device)
                rows.append(
                    {
                        "lr": lr,
                        "unbiased": unbiased,
                        "unit": unit,
                        "split": name,
                        "prunability": found.mean,
                        "retained": list(found.retained),
                    }
                )
                print(f"lr={lr:g} {unit} {name}: {found.mean:.3f} of {found.whole:.3f}", flush=True)
    if given.out is not None:
        settings = {**TRAIN, "seed": given.seed}
        text = json.dumps({"results": rows, "settings": settings, **circumstances(device)}, indent=1)
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
