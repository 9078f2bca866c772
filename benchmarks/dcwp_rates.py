"""Table 2 of DCWP at several learning rates of SGD, which the paper does not report and mining depends on.

Run: SPURLESS_DATA=DATA python benchmarks/dcwp_rates.py --out benchmarks/records/dcwp_rates.jsonl

The rows are those of the claim dcwp/ablation, whose rate is 0.01; with 0.1, the rate of the authors' mining script, its
decay is used too. Records contain the rate under ``train``.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from spurless.bench.claims.dcwp import ABLATION
from spurless.bench.experiment import Experiment, run_experiment
from spurless.core.records import append_record
from spurless.train.run import Compute

DECAY = {"schedule": "step", "decay_epochs": 3, "decay_factor": 0.1}


def with_rate(cell: Experiment, rate: float) -> Experiment:
    """Return an experiment with another learning rate of mining and training."""
    options: dict[str, Any] = {**cell.method_options}
    options["mining"] = replace(options["mining"], lr=rate, decay_steps=600 if rate == 0.1 else None)
    train = {**cell.train, "lr": rate, **(DECAY if rate == 0.1 else {})}
    return replace(cell, train=train, method_options=options)


def main() -> None:
    """Run each row at each rate with each seed, and print the unbiased accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file to append records to")
    parser.add_argument("--rates", nargs="*", type=float, default=(0.1, 0.03))
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    for seed in range(args.seed, args.seed + args.seeds):
        for rate in args.rates:
            for name, cell in ABLATION.experiments.items():
                record = run_experiment(with_rate(cell, rate), seed, Compute(args.device)).record
                append_record(args.out, replace(record, cell=f"dcwp/ablation {name}"))
                print(
                    f"seed {seed}, rate {rate:g}, {name}: {100 * (record.metrics['unbiased'] or 0.0):.2f}", flush=True
                )


if __name__ == "__main__":
    main()
