"""Compare definitions of prunability with the published values: filters, kernels or weights, and test or train.

A ResNet-18 on Colored MNIST (2.5 % conflicting) is trained by SGD without momentum to 100 % on train, at a small and at
a large learning rate. Prunability is the fraction of the accuracy that remains, averaged over the pruned fractions 0,
0.1, ..., 0.9. Barsbey et al. 2025 (arXiv:2507.17748), Table 1, report from 0.252 to 0.771 over rates from 0.001 to
0.25. The two rates take about 20 and 45 minutes on one CPU core.

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

from spurless.bench.large_lr_metrics import sample_for_metrics
from spurless.data import load
from spurless.data.split import Split, Splits
from spurless.fitting import fit
from spurless.fitting.assess import describe_environment
from spurless.models import Classifier, build
from spurless.models.pruning.prunability import Prunability, Unit, measure_prunability
from spurless.models.weights import load_weights, save_weights
from spurless.train.evaluate import evaluate, predict
from spurless.train.run import Compute

RATES = (0.005, 0.25)
UNITS: tuple[Unit, ...] = ("filters", "kernels", "weights")
TRAIN = {"momentum": 0.0, "weight_decay": 0.0, "batch_size": 100, "stop_accuracy": 1.0, "epochs": 60}


def load_or_train(data: Splits, lr: float, seed: int, folder: Path, device: str) -> Classifier:
    """Load the network of a learning rate from the folder, or train and save it."""
    model, path = build("torchvision:resnet18", data, seed=seed), folder / f"lr={lr:g}-seed{seed}.safetensors"
    if path.exists():
        load_weights(path, model)
        return model
    fitted = fit("erm", model, data, train={**TRAIN, "lr": lr}, seed=seed, compute=Compute(device)).model
    save_weights(path, fitted)
    return fitted


def measure(model: nn.Module, split: Split, unit: Unit, device: torch.device) -> Prunability:
    """Return the prunability on a split."""
    y = split.y.cpu()
    return measure_prunability(
        model, lambda pruned: float((predict(pruned, split, device) == y).double().mean()), unit=unit
    )


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=os.environ.get("SPURLESS_DATA"), help="data folder")
    parser.add_argument(
        "--models", type=Path, required=True, help="folder to save trained models in and load them from"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    args.models.mkdir(parents=True, exist_ok=True)
    data, device = load("colored-mnist", root=args.root, conflicting=0.025, severity=4), torch.device(args.device)
    rows: list[dict[str, Any]] = []
    for lr in RATES:
        model = load_or_train(data, lr, args.seed, args.models, args.device).to(device).eval()
        unbiased = float(evaluate(model, data.test, device).accuracy.nanmean())
        for unit in UNITS:
            for name, split in (("test", data.test), ("train", data.train)):
                result = measure(model, sample_for_metrics(split, args.seed), unit, device)
                rows.append(
                    {
                        "lr": lr,
                        "unbiased": unbiased,
                        "unit": unit,
                        "split": name,
                        "prunability": result.mean,
                        "retained": list(result.retained),
                    }
                )
                print(f"lr={lr:g} {unit} {name}: {result.mean:.3f} of {result.whole:.3f}", flush=True)
    if args.out is not None:
        settings = {**TRAIN, "seed": args.seed}
        text = json.dumps({"results": rows, "settings": settings, **describe_environment(device)}, indent=1)
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
