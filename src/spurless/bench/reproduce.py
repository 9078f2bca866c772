"""Reproduction: run a claim's cells over seeds, keep the records, judge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spurless.bench.cell import run_cell
from spurless.bench.claims.base import Claim, Verdict, judge
from spurless.core.progress import Progress
from spurless.core.records import Record, append
from spurless.train.run import Engine


def reproduce(
    claim: Claim,
    *,
    seeds: int | None = None,
    first: int = 0,
    engine: Engine | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Run every cell of a claim with every seed and judge the result; records are appended to ``out`` as they come.

    Args:
        claim: what is rerun.
        seeds: how many; the claim's own number by default.
        first: the first of them, to share a claim out over machines.
        engine: where the arithmetic is done.
        out: where records go.
        progress: called with stage, step, total and a word.
    """
    records: list[Record] = []
    for seed in range(first, first + (seeds or claim.seeds)):
        for name, cell in claim.cells.items():
            fitted = run_cell(cell, seed, engine, progress=progress)
            more = claim.extra(fitted) if claim.extra is not None else {}
            metrics = {**fitted.record.metrics, **more}
            records.append(replace(fitted.record, cell=f"{claim.id} {name}", metrics=metrics))
            if out is not None:
                append(out, records[-1])
    return judge(claim, records)
