"""Select JTT's preset for the included digit datasets on their validation splits, without the test splits.

Run: python benchmarks/jtt_digits.py > benchmarks/records/jtt_digits.json
"""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import torch

from spurless.data import load
from spurless.fitting import fit
from spurless.fitting.assess import describe_environment
from spurless.models import build
from spurless.train.evaluate import evaluate

DATASETS = {"patched-digits": 0.01, "colored-digits": 0.1}
TRAIN = {"steps": 170, "batch_size": 64, "lr": 0.01}


def main() -> None:
    rows = []
    for first_epochs, upweight in product((1, 2, 4, 6), (5.0, 20.0, 50.0)):
        row: dict[str, Any] = {"first_epochs": first_epochs, "upweight": upweight}
        for name, conflicting in DATASETS.items():
            values = []
            for seed in range(3):
                data = load(name, conflicting=conflicting, seed=seed)
                model = build("small-cnn", data, seed=seed)
                fitted = fit("jtt", model, data, seed=seed, train=TRAIN, first_epochs=first_epochs, upweight=upweight)
                values.append(100 * evaluate(fitted.model, data.val).unbiased)
            row[name] = [round(value, 2) for value in values]
        row["mean"] = round(sum(sum(row[name]) / 3 for name in DATASETS) / len(DATASETS), 2)
        rows.append(row)
    best = max(rows, key=lambda row: row["mean"])

    print(
        json.dumps(
            {
                "what": "unbiased validation accuracy, %",
                "chosen": best,
                "rows": rows,
                **describe_environment(torch.device("cpu")),
            },
            indent=1,
        )
    )


main()
