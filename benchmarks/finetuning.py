"""Choose how the pretrained net of the ERM baselines is fine-tuned, on validation accuracy; no test split is looked at.

Run: python benchmarks/finetuning.py --root DATA --out benchmarks/records/finetuning.json [--only NAME ...]
"""

from __future__ import annotations

import argparse
import json
import os
from itertools import product
from pathlib import Path
from typing import Any

from spurless.bench.assess import circumstances
from spurless.data import load
from spurless.methods.erm import ERM
from spurless.models import build
from spurless.train.config import TrainConfig
from spurless.train.evaluate import evaluate
from spurless.train.run import Engine, start

SETS = ("waterbirds-rebuilt", "celeba10k", "utkface-age-gender")
RATES = {"sgd": (0.001, 0.01, 0.1), "adam": (0.0001, 0.0003, 0.001)}
MODEL = "timm:tf_efficientnet_lite0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=SETS)
    parser.add_argument("--steps", type=int, default=None)
    given = parser.parse_args()
    os.environ["SPURLESS_DATA"] = given.root
    rows: list[dict[str, Any]] = []
    for name, augment in product(given.only, ("none", "flip")):
        data = load(name, root=given.root, augment=augment)
        shown = data.shown(train_attributes=False, val_labels=False, val_attributes=False)
        for optimiser, lr in ((key, value) for key, values in RATES.items() for value in values):
            config = TrainConfig(20, given.steps, 64, optimiser, lr, schedule="cosine")  # type: ignore[arg-type]
            run = start(Engine(), 0, config)
            model = ERM().fit(build(MODEL, data, pretrained=True).to(run.device), shown, run)
            table = evaluate(model, data.val, run.device)
            row = {"data": name, "augment": augment, "optimiser": optimiser, "lr": lr}
            rows.append({**row, "val average": round(100 * table.average, 2)})
            print(*rows[-1].values(), flush=True)
    record = {
        "what": "validation accuracy, %",
        "model": MODEL,
        "rows": rows,
        **circumstances(start(Engine(), 0, TrainConfig()).device),
    }
    given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
