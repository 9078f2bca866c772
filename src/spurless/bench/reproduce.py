"""Reproduction: run a claim's cells over seeds, keep the records, judge."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spurless.bench.cell import planned
from spurless.bench.claims.base import Claim, Verdict, judge
from spurless.bench.fitting import Fitted, Protocol, fit_under
from spurless.bench.keys import key_of
from spurless.bench.signing import marked
from spurless.bench.together import Request, fit_together
from spurless.core.errors import BadInput
from spurless.core.progress import Progress
from spurless.core.records import Record, append, read
from spurless.core.reserve import reserved
from spurless.data.grouped import Splits
from spurless.train.checkpoint import forget
from spurless.train.fleet import open_queues
from spurless.train.run import Engine


def reproduce(  # noqa: PLR0913  a door: each is a word that a user says
    claim: Claim,
    *,
    seeds: int | None = None,
    first: int = 0,
    engine: Engine | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
    together: int = 1,
) -> Verdict:
    """Run every cell of a claim with every seed and judge the result; records are appended to ``out`` as they come.

    A run that ``out`` holds already is taken from there, and one that was killed goes on from its checkpoints, which
    lie beside ``out`` until it is recorded.

    Args:
        claim: what is rerun.
        seeds: how many; the claim's own number by default.
        first: the first of them, to share a claim out over machines.
        engine: where the arithmetic is done.
        out: where records go.
        progress: called with stage, step, total and a word.
        together: how many runs share a device, where they can; see :mod:`spurless.bench.together`. Where one of them
            fails the others are still recorded, and then its error is raised.

    Raises:
        BadInput: another process is at one of these runs, and records it in the same file.
    """
    if together < 1:
        raise BadInput("at least one run must be done at once", got=together)
    open_queues(together)
    numbers = range(first, first + (seeds or claim.seeds))
    with reserved(out, [f"{claim.id} {name} {seed}" for seed in numbers for name in claim.cells]):
        known = (
            {(record.cell, record.key): record for record in read(out, to_continue=True)}
            if out is not None and out.exists()
            else {}
        )
        records: list[Record | None] = []  # in the order of the claim, whatever came from the file
        missing: list[_Missing] = []
        folder = _checkpoints_of(out) if out is not None else None

        def catch_up() -> None:
            for place, record in _done(claim, missing, out, together):
                records[place] = record
            missing.clear()

        for seed in numbers:
            opened: dict[str, Splits] = {}
            for name, cell in claim.cells.items():
                content = json.dumps([cell.dataset, dict(cell.data_options)], default=str)
                plan = planned(cell, seed, engine, folder, progress, opened.get(content))
                opened[content] = plan[-1]
                called = f"{claim.id} {name}"
                records.append(known.get((called, key_of(*plan, seed))))
                if records[-1] is None:
                    missing.append(_Missing(len(records) - 1, called, (*plan, seed)))
                if len(missing) == together:
                    catch_up()
        catch_up()
        return judge(claim, (record for record in records if record is not None))


@dataclass(frozen=True)
class _Missing:
    """A run that is yet to be done."""

    place: int
    called: str
    request: Request


def _done(claim: Claim, missing: Sequence[_Missing], out: Path | None, together: int) -> Iterator[tuple[int, Record]]:
    """Do runs, record each when it has ended, and yield its place; an error is raised once all others are recorded."""
    errors = list[Exception]()
    for number, fitted in _fitted([part.request for part in missing], together):
        if isinstance(fitted, Exception):
            errors.append(fitted)
            continue
        part, more = missing[number], claim.extra(fitted) if claim.extra is not None else {}
        record = marked(replace(fitted.record, cell=part.called, metrics={**fitted.record.metrics, **more}))
        fitted.told(record)
        if out is not None:
            append(out, record)
            forget(_checkpoints_of(out), record.key)
        yield part.place, record
    if errors:
        raise errors[0]


def _checkpoints_of(out: Path) -> Path:
    return out.with_name(f"{out.stem}-checkpoints")


def _fitted(requests: Sequence[Request], together: int) -> Iterable[tuple[int, Fitted | Exception]]:
    if together == 1:
        return enumerate(fit_under(*request) for request in requests)
    return fit_together(_in_chorus(requests), together)


def _in_chorus(requests: Sequence[Request]) -> list[Request]:
    """Let runs that advance together tell how far all of them are, not each by turns."""
    told: dict[int, tuple[int, int]] = {}

    def voice(number: int, progress: Progress) -> Progress:
        def tell(_stage: str, step: int, total: int, _word: str) -> None:
            told[number] = step, total
            done, whole = (sum(part) for part in zip(*told.values(), strict=True))
            progress("together", done, whole, f"{len(requests)} runs")

        return tell

    def joined(number: int, protocol: Protocol) -> Protocol:
        return replace(protocol, progress=protocol.progress and voice(number, protocol.progress))

    return [(joined(number, request[0]), *request[1:]) for number, request in enumerate(requests)]
