"""The last-layer family on real pictures: NeuronTune, its twins and its rivals, on the features of one ERM model each.

Run: python benchmarks/last_layer.py --root DATA --out benchmarks/records/last_layer.jsonl [--only NAME] [--seed N]

For every dataset, backbone (EfficientNet-Lite0, fine-tuned as in baselines.py, or frozen under a linear probe; for the
digit sets a small CNN from scratch) and seed one model is trained; its features are computed once, and every method
starts from it. What a method needs beyond
training labels is in its record. SELF's early-stopped form is left out: it needs the untrained model, and is compared
by mistakes and by dropout. Every run leaves a record; the table that is printed last is made of them.
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

from spurless.bench.fitting import evaluate_given, fit
from spurless.core.errors import SpurlessError
from spurless.core.records import Record, append, read
from spurless.data import Splits, load
from spurless.models import Classifier, build
from spurless.train.embed import embed
from spurless.train.run import Engine

MODEL = "timm:tf_efficientnet_lite0"
DATASETS = ("waterbirds-rebuilt", "celeba10k", "patched-digits", "colored-digits")
DIGITS = {"steps": 250, "batch_size": 64, "lr": 0.01}  # of the claim neurontune/patched-digits
# fine-tuning and probe of baselines.py
TUNE = {"epochs": 20, "batch_size": 64, "optimiser": "adam", "lr": 0.001, "weight_decay": 1e-4, "schedule": "cosine"}
PROBE = {"epochs": 100, "batch_size": 256, "optimiser": "adam", "lr": 1e-3, "weight_decay": 0.0}


@dataclass(frozen=True)
class Arm:
    """A method, its options, and by what an epoch is chosen."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    select: str = "last"
    preset: str | None = None


WAYS: dict[str, dict[str, Any]] = {
    "by SFit": {"keep": "sfit"},
    "last epoch": {"keep": "last"},
    "identified once": {"keep": "last", "reidentify": False},
}
NEURONS = {
    f"NeuronTune {splits}, {way}": Arm("neurontune", {"splits": splits, **options})
    for splits in ("val/train", "half/half", "train/train")
    for way, options in WAYS.items()
    if splits != "train/train" or way == "last epoch"
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


def features(name: str, frozen: bool, seed: int, root: str, engine: Engine) -> tuple[Classifier, Splits]:
    """Return a trained linear model on features, and the features."""
    if name.endswith("digits"):
        data = load(name, seed=seed)
        model = fit("erm", build("small-cnn", data, seed=seed), data, seed=seed, train=DIGITS, engine=engine).model
        return _on(model, embed(model, data, engine=engine))
    data = load(name, seed=seed, root=root, augment="none" if frozen else "flip")
    model = build(MODEL, data, seed=seed, pretrained=True)
    if not frozen:
        model = fit("erm", model, data, seed=seed, train=TUNE, engine=engine).model
        return _on(model, embed(model, data, engine=engine))
    rows = embed(model, data, engine=engine)
    return fit("erm", build("linear", rows, seed=seed), rows, seed=seed, train=PROBE, engine=engine).model, rows


def _on(model: Classifier, rows: Splits) -> tuple[Classifier, Splits]:
    return Classifier(nn.Identity(), model.head, name=f"{model.name}, last layer", trained=True), rows


def study(name: str, kind: str, seed: int, given: Any) -> Iterator[Record]:
    """Train one model, and repair it in every way."""
    model, rows = features(name, kind == "frozen", seed, given.root, Engine(given.device))
    model, here = model.cpu(), Engine("cpu")  # heads are tuned on the CPU, where users have them
    kind = f"{name}, {kind}"
    if given.arms is None:
        yield replace(evaluate_given("erm", model, rows, seed=seed, engine=here), cell=f"{kind}: ERM")
    for title, arm in ARMS.items():
        if given.arms is not None and title not in given.arms:
            continue
        settings: dict[str, Any] = {"preset": arm.preset, "select": arm.select, "engine": here, **arm.options}
        try:
            yield replace(fit(arm.method, model, rows, seed=seed, **settings).record, cell=f"{kind}: {title}")
        except SpurlessError as error:  # a method that refuses leaves a hole in the table, and the others go on
            print(f"{kind}, seed {seed}: {title}: {error}", flush=True)


def table(records: list[Record]) -> str:
    rows: dict[str, list[Record]] = {}
    for record in records:
        rows.setdefault(record.cell, []).append(record)
    lines = [f"{'':<76}{'worst group':>14}{'average':>9}{'seconds':>9}   by seed"]
    for name, found in rows.items():
        worst = [100 * (r.metrics["worst_group"] or 0.0) for r in sorted(found, key=lambda r: r.seed)]
        spread = stdev(worst) if len(worst) > 1 else 0.0
        average = mean(100 * (r.metrics["average"] or 0.0) for r in found)
        seconds = mean(sum(r.seconds.values()) for r in found)
        single = " ".join(f"{value:5.1f}" for value in worst)
        lines.append(f"{name:<76}{mean(worst):>8.1f} +-{spread:4.1f}{average:>9.1f}{seconds:>9.1f}   {single}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="the data folder")
    parser.add_argument("--out", type=Path, required=True, help="records are appended here")
    parser.add_argument("--only", nargs="*", default=DATASETS, help="names of datasets")
    parser.add_argument("--kind", nargs="*", default=("fine-tuned", "frozen"), help="of backbone, for photographs")
    parser.add_argument("--arms", nargs="*", default=None, help="titles of methods; all by default")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="auto", help="where backbones run")
    parser.add_argument("--table", action="store_true", help="only print the table of the records in --out")
    given = parser.parse_args()
    os.environ["SPURLESS_DATA"] = given.root  # pretrained weights are looked for there
    for seed in range(given.seed, given.seed + given.seeds) if not given.table else ():
        for name in given.only:
            for kind in ("from scratch",) if name.endswith("digits") else given.kind:
                for record in study(name, kind, seed, given):
                    append(given.out, record)
    print(table(read(given.out)))


if __name__ == "__main__":
    main()
