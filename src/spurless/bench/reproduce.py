"""Reproduction: run a claim's cells over seeds, keep the records, judge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spurless.bench.cell import planned
from spurless.bench.claims.base import Claim, Verdict, judge
from spurless.bench.fitting import fit_under, key_of
from spurless.core.progress import Progress
from spurless.core.records import Record, append, read
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

    A run that ``out`` holds already is taken from there: what was killed goes on where it was.

    Args:
        claim: what is rerun.
        seeds: how many; the claim's own number by default.
        first: the first of them, to share a claim out over machines.
        engine: where the arithmetic is done.
        out: where records go.
        progress: called with stage, step, total and a word.
    """
    records: list[Record] = []
    known = {(record.cell, record.key): record for record in read(out)} if out is not None and out.exists() else {}
    for seed in range(first, first + (seeds or claim.seeds)):
        for name, cell in claim.cells.items():
            called, plan = f"{claim.id} {name}", planned(cell, seed, engine, progress=progress)
            found = known.get((called, key_of(*plan, seed)))
            if found is None:
                fitted = fit_under(*plan, seed)
                more = claim.extra(fitted) if claim.extra is not None else {}
                found = replace(fitted.record, cell=called, metrics={**fitted.record.metrics, **more})
                if out is not None:
                    append(out, found)
            records.append(found)
    return judge(claim, records)
