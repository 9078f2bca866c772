"""The table of a sweep: how every value fared, and where it stopped; in words that a bench uses too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING, Any

from spurless.cli.console import table

if TYPE_CHECKING:
    from spurless.bench.runner import Row
    from spurless.bench.sweep import Swept
    from spurless.core.records import Record

SHOWN = {"unbiased": "unbiased", "worst_group": "worst group", "average": "average", "val_average": "validation"}


def show(swept: Swept, title: str, records: Path) -> None:
    """Print a row for every value, what was stopped and why, and where the records are."""
    rows = swept.rows()
    table(
        title,
        ("value", "runs", *SHOWN.values(), ""),
        [(row.name, str(row.runs), *(spread_words(row, name) for name in SHOWN), note(row)) for row in rows],
        right=(1, 2, 3, 4, 5),
    )
    for stop in swept.stops:
        left = f" Not run: {'; '.join(stop.left)}; --drop none runs all." if stop.left else ""
        say(f"Stopped at {stop.at}: {stop.why}.{left}")
    tell_of_runs(rows, swept.records.values())
    print(f"records in {records}")


def tell_of_runs(rows: Iterable[Row], records: Collection[Record]) -> None:
    """Say what a table cannot: what is cut off, and how many runs came with a warning."""
    if any(row.unreached for row in rows):
        say("Cut off are runs that ended before their stopping rule, and are in no mean: allow them more epochs.")
    if warned := sum(bool(record.warnings) for record in records):
        say(f"{warned} of {len(records)} runs came with a warning, which their records hold.")


def say(text: str) -> None:
    """Print a sentence no wider than the terminal."""
    print(fill(text, max(40, get_terminal_size().columns), break_on_hyphens=False))


def spread_words(row: Row, name: str) -> str:
    """Say a number in percent, with half of its interval where several seeds give one."""
    spread = row.spreads.get(name)
    if spread is None:
        return "n/a"
    half = "" if spread.n < 2 else f" ± {50 * (spread.high - spread.low):.1f}"
    return f"{100 * spread.mean:.1f}{half}"


def note(row: Row) -> str:
    """Say which runs of a row are not in its numbers."""
    words = [f"{row.diverged} diverged"] if row.diverged else []
    words += [f"{row.unreached} cut off"] if row.unreached else []
    words += ["stopped"] if row.stop is not None else []
    return ", ".join(words)


def in_json(swept: Swept, records: Path) -> dict[str, Any]:
    """Return the same for machines."""
    rows = [
        {
            "value": row.name,
            "seeds": row.seeds,
            "runs": row.runs,
            "diverged": row.diverged,
            "unreached": row.unreached,
            "stopped": row.stop is not None,
            "metrics": {name: finite(asdict(spread)) for name, spread in row.spreads.items()},
        }
        for row in swept.rows()
    ]
    stops = [{"at": stop.at, "why": stop.why, "not_run": list(stop.left)} for stop in swept.stops]
    return {"rows": rows, "stops": stops, "records": str(records)}


def finite(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers for JSON, which knows no NaN."""
    return {name: value if value == value else None for name, value in numbers.items()}
