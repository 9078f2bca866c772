"""Last-layer methods on images: variants of NeuronTune and its baselines, on the features of the same ERM model.

Run: python benchmarks/last_layer.py --root DATA --out benchmarks/records/last_layer.jsonl [--only NAME] [--seed N]

One model is trained for each dataset, backbone and seed. The backbone is EfficientNet-Lite0, fine-tuned as in
baselines.py, or frozen with a linear probe; for the digit datasets it is a small CNN from scratch. The features are
computed once, and all methods start from the same model. The supervision of a method is in its record. SELF with early
stopping is left out, because it needs the untrained model; its forms by errors and by dropout are included. Each run is
appended as a record, and a table of all records is printed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from torch import nn

from spurless.core.errors import SpurlessError
from spurless.core.records import Record, append_record, read_records
from spurless.data import Splits, load
from spurless.fitting import evaluate_given, fit
from spurless.models import Classifier, build
from spurless.train.embed import embed
from spurless.train.run import Compute

MODEL = "timm:tf_efficientnet_lite0"
DATASETS = ("waterbirds-rebuilt", "celeba10k", "patched-digits", "colored-digits")
DIGITS = {"steps": 250, "batch_size": 64, "lr": 0.01}  # of the claim neurontune/patched-digits
# fine-tuning and probe of baselines.py
TUNE = {"epochs": 20, "batch_size": 64, "optimiser": "adam", "lr": 0.001, "weight_decay": 1e-4, "schedule": "cosine"}
PROBE = {"epochs": 100, "batch_size": 256, "optimiser": "adam", "lr": 1e-3, "weight_decay": 0.0}


@dataclass(frozen=True)
class Arm:
    """A method, its options, and the criterion for selecting the epoch."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    select: str = "last"
    preset: str | None = None


VARIANTS: dict[str, dict[str, Any]] = {
    "by SFit": {"keep": "sfit"},
    "last epoch": {"keep": "last"},
    "identified once": {"keep": "last", "reidentify": False},
}
NEURONS = {
    f"NeuronTune {splits}, {variant}": Arm("neurontune", {"splits": splits, **options})
    for splits in ("val/train", "half/half", "train/train")
    for variant, options in VARIANTS.items()
    if splits != "train/train" or variant == "last epoch"
}
ARMS: dict[str, Arm] = {
    "class-balanced head, train": Arm("class-balanced-head", {"on": "train"}),
    "class-balanced head, half of val": Arm("class-balanced-head", {"on": "half"}),
    **NEURONS,
    "NeuronTune val/train, worst class": Arm("neurontune", {"splits": "val/train"}, "val-worst-class"),
    "NeuronTune val/train, worst inferred group": Arm("neurontune", {"splits": "val/train"}, "val-worst-inferred"),
    "NeuronTune val/train, worst group (oracle)": Arm("neurontune", {"splits": "val/train"}, "val-worst-group"),
    "AFR, gamma 10 (its Waterbirds)": Arm("afr", preset="waterbirds"),
    "AFR, gamma 1.44 (its CelebA)": Arm("afr", preset="celeba"),
    "SELF, mistakes": Arm("self", {"disagreement": "mistakes", "n": 100}),
    "SELF, dropout": Arm("self", {"disagreement": "dropout", "n": 100}),
    "JTT on the head": Arm("jtt-head"),
    "DFR (groups of val)": Arm("dfr"),
}


def train_features(name: str, frozen: bool, seed: int, root: str, compute: Compute) -> tuple[Classifier, Splits]:
    """Train a model, and return its head as a linear model together with the features."""
    if name.endswith("digits"):
        data = load(name, seed=seed)
        model = fit("erm", build("small-cnn", data, seed=seed), data, seed=seed, train=DIGITS, compute=compute).model
        return _as_linear_model(model, embed(model, data, compute=compute))
    data = load(name, seed=seed, root=root, augment="none" if frozen else "flip")
    model = build(MODEL, data, seed=seed, pretrained=True)
    if not frozen:
        model = fit("erm", model, data, seed=seed, train=TUNE, compute=compute).model
        return _as_linear_model(model, embed(model, data, compute=compute))
    rows = embed(model, data, compute=compute)
    return fit("erm", build("linear", rows, seed=seed), rows, seed=seed, train=PROBE, compute=compute).model, rows


def _as_linear_model(model: Classifier, rows: Splits) -> tuple[Classifier, Splits]:
    return Classifier(nn.Identity(), model.head, name=f"{model.name}, last layer", trained=True), rows


def run_all(name: str, kind: str, seed: int, args: Any) -> Iterator[Record]:
    """Train one model, and run all methods on its features."""
    model, rows = train_features(name, kind == "frozen", seed, args.root, Compute(args.device))
    model, cpu = model.cpu(), Compute("cpu")  # heads are small: the CPU is fast enough
    kind = f"{name}, {kind}"
    if args.arms is None:
        yield replace(evaluate_given("erm", model, rows, seed=seed, compute=cpu), cell=f"{kind}: ERM")
    for title, arm in ARMS.items():
        if args.arms is not None and title not in args.arms:
            continue
        settings: dict[str, Any] = {"preset": arm.preset, "select": arm.select, "compute": cpu, **arm.options}
        try:
            yield replace(fit(arm.method, model, rows, seed=seed, **settings).record, cell=f"{kind}: {title}")
        except SpurlessError as error:  # skip a method that cannot be applied
            print(f"{kind}, seed {seed}: {title}: {error}", flush=True)


def table(records: list[Record]) -> str:
    rows: dict[str, list[Record]] = {}
    for record in records:
        rows.setdefault(record.cell, []).append(record)
    lines = [f"{'':<76}{'worst group':>14}{'average':>9}{'seconds':>9}   by seed"]
    for name, runs in rows.items():
        worst = [100 * (r.metrics["worst_group"] or 0.0) for r in sorted(runs, key=lambda r: r.seed)]
        deviation = stdev(worst) if len(worst) > 1 else 0.0
        average = mean(100 * (r.metrics["average"] or 0.0) for r in runs)
        seconds = mean(sum(r.seconds.values()) for r in runs)
        by_seed = " ".join(f"{value:5.1f}" for value in worst)
        lines.append(f"{name:<76}{mean(worst):>8.1f} +-{deviation:4.1f}{average:>9.1f}{seconds:>9.1f}   {by_seed}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="data folder")
    parser.add_argument("--out", type=Path, required=True, help="file to append records to")
    parser.add_argument("--only", nargs="*", default=DATASETS, help="names of datasets")
    parser.add_argument(
        "--kind", nargs="*", default=("fine-tuned", "frozen"), help="kinds of backbone, for photographs"
    )
    parser.add_argument("--arms", nargs="*", default=None, help="methods, by title; all by default")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="auto", help="device of the backbones")
    parser.add_argument("--table", action="store_true", help="only print the table of the records in --out")
    args = parser.parse_args()
    os.environ["SPURLESS_DATA"] = args.root  # pretrained weights are searched for there
    for seed in range(args.seed, args.seed + args.seeds) if not args.table else ():
        for name in args.only:
            for kind in ("from scratch",) if name.endswith("digits") else args.kind:
                for record in run_all(name, kind, seed, args):
                    append_record(args.out, record)
    print(table(read_records(args.out)))


if __name__ == "__main__":
    main()
