"""Table 2 of DCWP at several rates of SGD: the paper does not say which it took, and mining hangs on it.

Run: SPURLESS_DATA=DATA python benchmarks/dcwp_rates.py --out benchmarks/records/dcwp_rates.jsonl

The rows are those of the claim dcwp/ablation, whose rate is 0.01; with 0.1, the rate of the authors' mining script, its
decay is kept too. Records tell the rate under ``train``.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from spurless.bench.cell import Cell, run_cell
from spurless.bench.claims.dcwp import ABLATION
from spurless.core.records import append
from spurless.train.run import Engine

DECAY = {"schedule": "step", "decay_epochs": 3, "decay_factor": 0.1}


def at(cell: Cell, rate: float) -> Cell:
    """Return a row of the table, mined and trained at another rate."""
    options: dict[str, Any] = {**cell.method_options}
    options["mining"] = replace(options["mining"], lr=rate, decay_steps=600 if rate == 0.1 else None)
    train = {**cell.train, "lr": rate, **(DECAY if rate == 0.1 else {})}
    return replace(cell, train=train, method_options=options)


def main() -> None:
    """Run every row at every rate with every seed; print what comes out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="records are appended here")
    parser.add_argument("--rates", nargs="*", type=float, default=(0.1, 0.03))
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--device", default="auto")
    words = parser.parse_args()
    for seed in range(words.seed, words.seed + words.seeds):
        for rate in words.rates:
            for name, cell in ABLATION.cells.items():
                record = run_cell(at(cell, rate), seed, Engine(words.device)).record
                append(words.out, replace(record, cell=f"dcwp/ablation {name}"))
                print(
                    f"seed {seed}, rate {rate:g}, {name}: {100 * (record.metrics['unbiased'] or 0.0):.2f}", flush=True
                )


if __name__ == "__main__":
    main()
