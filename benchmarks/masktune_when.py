"""When MaskTune helps: patched digits with ever more examples that break the shortcut, against ERM with as many steps.

Run: python benchmarks/masktune_when.py --out benchmarks/records/masktune_when.jsonl

The runs are those of the claim masktune/patched-digits, at other shares of conflicting examples and on small-cnn, whose
head reads a flattened map, and pooled-cnn, whose head reads its average. Every run leaves a record; the table that is
printed last is made of them.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import mean

from spurless.bench.cell import Cell, run_cell
from spurless.bench.claims.masktune import DIGITS
from spurless.core.records import Record, append
from spurless.train.run import Engine

SHARES = (0.01, 0.02, 0.05, 0.1)
MODELS = ("small-cnn", "pooled-cnn")
METHODS = {
    "erm": Cell("patched-digits", "", "erm", train={**DIGITS, "steps": 250}),
    "masktune": Cell("patched-digits", "", "masktune", preset="digits", train=DIGITS),
}


def table(records: list[Record]) -> str:
    rows: dict[str, list[float]] = {}
    for record in records:
        rows.setdefault(record.cell, []).append(100 * (record.metrics["unbiased"] or 0.0))
    return "\n".join(
        f"{name:<40}{mean(found):6.1f}   {' '.join(f'{value:5.1f}' for value in found)}" for name, found in rows.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="records are appended here")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    records = []
    for model in MODELS:
        for share in SHARES:
            for name, cell in METHODS.items():
                for seed in range(given.seeds):
                    chosen = replace(cell, model=model, data_options={"conflicting": share})
                    fitted = run_cell(chosen, seed, Engine("cpu"))
                    records.append(replace(fitted.record, cell=f"{name}, {share:.0%} conflicting, {model}"))
                    append(given.out, records[-1])
    print(table(records))


if __name__ == "__main__":
    main()
