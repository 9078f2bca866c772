"""MaskTune on patched digits by the fraction of conflicting examples, compared with ERM with as many steps.

Run: python benchmarks/masktune_when.py --out benchmarks/records/masktune_when.jsonl

The runs are those of the claim masktune/patched-digits, at other fractions of conflicting examples and on small-cnn,
whose head uses the flattened feature map, and pooled-cnn, whose head uses its average. Each run is appended as a
record, and a table of the new records is printed.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import mean

from spurless.bench.claims.masktune import DIGITS
from spurless.bench.experiment import Experiment, run_experiment
from spurless.core.records import Record, append_record
from spurless.train.run import Compute

FRACTIONS = (0.01, 0.02, 0.05, 0.1)
MODELS = ("small-cnn", "pooled-cnn")
METHODS = {
    "erm": Experiment("patched-digits", "", "erm", train={**DIGITS, "steps": 250}),
    "masktune": Experiment("patched-digits", "", "masktune", preset="digits", train=DIGITS),
}


def table(records: list[Record]) -> str:
    rows: dict[str, list[float]] = {}
    for record in records:
        rows.setdefault(record.cell, []).append(100 * (record.metrics["unbiased"] or 0.0))
    return "\n".join(
        f"{name:<40}{mean(values):6.1f}   {' '.join(f'{value:5.1f}' for value in values)}"
        for name, values in rows.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file to append records to")
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    records = []
    for model in MODELS:
        for fraction in FRACTIONS:
            for name, cell in METHODS.items():
                for seed in range(args.seeds):
                    experiment = replace(cell, model=model, data_options={"conflicting": fraction})
                    fitted = run_experiment(experiment, seed, Compute("cpu"))
                    records.append(replace(fitted.record, cell=f"{name}, {fraction:.0%} conflicting, {model}"))
                    append_record(args.out, records[-1])
    print(table(records))


if __name__ == "__main__":
    main()
