"""Accuracy of a trained network under random weight masks, by the probability that a weight is kept.

DCWP learns a mask from the loss of randomly masked networks, and cannot learn if these are at chance. Each network is
trained by ERM on corrupted digits (32 pixels). Then each convolution and linear weight is kept with a given
probability, and the validation accuracy is averaged over several masks, with batch normalisation by batch statistics,
as when a mask is learned. The initial probability is 0.694 in the code of DCWP's authors, and 0.818 in the text of the
paper.

Run: python benchmarks/first_draws.py --root DATA --out benchmarks/records/first_draws.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from spurless.data import load
from spurless.data.loader import Loader
from spurless.data.split import Split
from spurless.fitting import fit
from spurless.fitting.assess import describe_environment
from spurless.models import build
from spurless.models.pruning.learned_masks import add_learned_masks
from spurless.train.run import Compute

PROBABILITIES = (1.0, 0.99, 0.95, 0.9, 0.818, 0.694)
BATCH = 128


@dataclass(frozen=True)
class Net:
    """Training settings and options of a network."""

    epochs: int
    lr: float
    options: dict[str, Any] = field(default_factory=dict)


NETS = {
    "pooled-cnn": Net(30, 1e-2, {"channels": (16, 32, 64)}),
    "torchvision:resnet18": Net(6, 1e-3),
    "timm:tf_efficientnet_lite0": Net(6, 1e-3, {"pretrained": True}),
}


def masked_accuracy(model: nn.Module, split: Split, probability: float, draws: int) -> float:
    """Return the accuracy of a network with a new random mask for each batch."""
    if probability < 1:
        add_learned_masks(model, math.log(probability / (1 - probability)), squashed=False)
    model.train()
    loader = Loader(split, lambda _: torch.arange(len(split)), BATCH)
    with torch.no_grad():
        correct = [
            (model(batch.x).argmax(1) == batch.y).double().mean() for _ in range(draws) for batch in loader.batches()
        ]
    return fmean(map(float, correct))


def measure(name: str, seed: int, draws: int) -> dict[str, Any]:
    """Train a network, and return its accuracy for each probability."""
    net = NETS[name]
    data = load("corrupted-digits", seed=seed, conflicting=0.5)
    model = build(name, data, seed=seed, **net.options)
    train = {"epochs": net.epochs, "batch_size": 64, "optimiser": "adam", "lr": net.lr, "weight_decay": 0.0}
    fitted = fit("erm", model, data, train=train, seed=seed, compute=Compute("cpu")).model
    state = {key: value.clone() for key, value in fitted.state_dict().items()}
    accuracies = {}
    for probability in PROBABILITIES:
        masked = build(name, data, seed=seed, **net.options)
        masked.load_state_dict(state)
        torch.manual_seed(seed)
        accuracies[str(probability)] = round(masked_accuracy(masked, data.val, probability, draws), 4)
    layers = sum(isinstance(part, nn.Conv2d | nn.Linear) for part in fitted.modules())
    print(f"{name}, {layers} layers: {accuracies}", flush=True)
    return {"layers": layers, "accuracy": accuracies}


def main() -> None:
    """Measure all networks and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="data folder with pretrained weights")
    parser.add_argument("--models", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.root:
        os.environ["SPURLESS_DATA"] = args.root
    results = {name: measure(name, args.seed, args.draws) for name in args.models}
    settings = {key: value for key, value in vars(args).items() if key not in ("out", "root")}
    text = json.dumps({"results": results, "settings": settings, **describe_environment(torch.device("cpu"))}, indent=1)
    if args.out is not None:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
