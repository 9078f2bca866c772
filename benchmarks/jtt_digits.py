"""Choose JTT's preset for the embedded digit sets on their validation splits; the test splits are not looked at.

Run: python benchmarks/jtt_digits.py > benchmarks/records/jtt_digits.json
"""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import torch

from spurless.bench.assess import circumstances
from spurless.bench.fitting import fit
from spurless.data import load
from spurless.models import build
from spurless.train.evaluate import evaluate

SETS = {"patched-digits": 0.01, "colored-digits": 0.1}
TRAIN = {"steps": 170, "batch_size": 64, "lr": 0.01}


def main() -> None:
    rows = []
    for first, upweight in product((1, 2, 4, 6), (5.0, 20.0, 50.0)):
        row: dict[str, Any] = {"first_epochs": first, "upweight": upweight}
        for name, conflicting in SETS.items():
            values = []
            for seed in range(3):
                data = load(name, conflicting=conflicting, seed=seed)
                model = build("small-cnn", data, seed=seed)
                fitted = fit("jtt", model, data, seed=seed, train=TRAIN, first_epochs=first, upweight=upweight)
                values.append(100 * evaluate(fitted.model, data.val).unbiased)
            row[name] = [round(value, 2) for value in values]
        row["mean"] = round(sum(sum(row[name]) / 3 for name in SETS) / len(SETS), 2)
        rows.append(row)
    best = max(rows, key=lambda row: row["mean"])

    print(
        json.dumps(
            {
                "what": "unbiased validation accuracy, %",
                "chosen": best,
                "rows": rows,
                **circumstances(torch.device("cpu")),
            },
            indent=1,
        )
    )


main()
