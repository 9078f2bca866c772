"""What the first draws of a learned mask leave of a trained network, by how likely a weight is kept.

DCWP learns a mask by what randomly thinned networks get right. Where these get nothing right, there is nothing to learn
from. Each net is trained by ERM on corrupted digits (32 pixels), every convolution and linear weight is then kept with
some probability, and the accuracy on validation is taken over several draws, batch normalisation by the statistics of
the batch, as while a mask is learned. At the start DCWP's authors keep a weight with probability 0.694, the paper as it
is written with 0.818.

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

from spurless.bench.assess import circumstances
from spurless.bench.fitting import fit
from spurless.data import load
from spurless.data.grouped import Grouped
from spurless.data.loader import Loader
from spurless.models import build
from spurless.models.learned_masks import learn_masks
from spurless.train.run import Engine

KEPT = (1.0, 0.99, 0.95, 0.9, 0.818, 0.694)
BATCH = 128


@dataclass(frozen=True)
class Net:
    """A network and how it is trained until it knows the digits."""

    epochs: int
    lr: float
    options: dict[str, Any] = field(default_factory=dict)


NETS = {
    "pooled-cnn": Net(30, 1e-2, {"channels": (16, 32, 64)}),
    "torchvision:resnet18": Net(6, 1e-3),
    "timm:tf_efficientnet_lite0": Net(6, 1e-3, {"pretrained": True}),
}


def under_draws(model: nn.Module, split: Grouped, kept: float, draws: int) -> float:
    """Return the accuracy of a network that is thinned anew for every batch."""
    if kept < 1:
        learn_masks(model, math.log(kept / (1 - kept)), squashed=False)
    model.train()
    loader = Loader(split, lambda _: torch.arange(len(split)), BATCH)
    with torch.no_grad():
        right = [
            (model(batch.x).argmax(1) == batch.y).double().mean() for _ in range(draws) for batch in loader.batches()
        ]
    return fmean(map(float, right))


def measure(name: str, seed: int, draws: int) -> dict[str, Any]:
    """Train a network and thin it."""
    net = NETS[name]
    data = load("corrupted-digits", seed=seed, conflicting=0.5)
    model = build(name, data, seed=seed, **net.options)
    train = {"epochs": net.epochs, "batch_size": 64, "optimiser": "adam", "lr": net.lr, "weight_decay": 0.0}
    fitted = fit("erm", model, data, train=train, seed=seed, engine=Engine("cpu")).model
    state = {key: value.clone() for key, value in fitted.state_dict().items()}
    found = {}
    for kept in KEPT:
        again = build(name, data, seed=seed, **net.options)
        again.load_state_dict(state)
        torch.manual_seed(seed)
        found[str(kept)] = round(under_draws(again, data.val, kept, draws), 4)
    layers = sum(isinstance(part, nn.Conv2d | nn.Linear) for part in fitted.modules())
    print(f"{name}, {layers} layers: {found}", flush=True)
    return {"layers": layers, "accuracy": found}


def main() -> None:
    """Measure every net and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="the data folder, for pretrained weights")
    parser.add_argument("--models", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.root:
        os.environ["SPURLESS_DATA"] = args.root
    results = {name: measure(name, args.seed, args.draws) for name in args.models}
    settings = {key: value for key, value in vars(args).items() if key not in ("out", "root")}
    text = json.dumps({"results": results, "settings": settings, **circumstances(torch.device("cpu"))}, indent=1)
    if args.out is not None:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
