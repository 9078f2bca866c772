"""Select the fine-tuning settings of the ERM baselines by validation accuracy, without the test splits.

Run: python benchmarks/finetuning.py --root DATA --out benchmarks/records/finetuning.json [--only NAME ...]
"""

from __future__ import annotations

import argparse
import json
import os
from itertools import product
from pathlib import Path
from typing import Any

from spurless.data import load
from spurless.fitting.assess import describe_environment
from spurless.methods.erm import ERM
from spurless.models import build
from spurless.train.config import TrainConfig
from spurless.train.evaluate import evaluate
from spurless.train.run import Compute, make_run

DATASETS = ("waterbirds-rebuilt", "celeba10k", "utkface-age-gender")
RATES = {"sgd": (0.001, 0.01, 0.1), "adam": (0.0001, 0.0003, 0.001)}
MODEL = "timm:tf_efficientnet_lite0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=DATASETS)
    parser.add_argument("--steps", type=int, default=None)
    args = parser.parse_args()
    os.environ["SPURLESS_DATA"] = args.root
    rows: list[dict[str, Any]] = []
    for name, augment in product(args.only, ("none", "flip")):
        data = load(name, root=args.root, augment=augment)
        visible = data.visible(train_attributes=False, val_labels=False, val_attributes=False)
        for optimiser, lr in ((key, value) for key, values in RATES.items() for value in values):
            config = TrainConfig(20, args.steps, 64, optimiser, lr, schedule="cosine")  # type: ignore[arg-type]
            run = make_run(Compute(), 0, config)
            model = ERM().fit(build(MODEL, data, pretrained=True).to(run.device), visible, run)
            table = evaluate(model, data.val, run.device)
            row = {"data": name, "augment": augment, "optimiser": optimiser, "lr": lr}
            rows.append({**row, "val average": round(100 * table.average, 2)})
            print(*rows[-1].values(), flush=True)
    record = {
        "what": "validation accuracy, %",
        "model": MODEL,
        "rows": rows,
        **describe_environment(make_run(Compute(), 0, TrainConfig()).device),
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
