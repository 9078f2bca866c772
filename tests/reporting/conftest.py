"""Records made by hand, so that every number on the page can be checked with a pencil."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spurless.core.records import GroupRow, Record
from spurless.methods import METHODS

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
HOSTILE = "</script><script>alert(1)</script>"


def record(
    method: str = "erm",
    *,
    worst: float | None = 0.071,
    low: float | None = 0.037,
    high: float | None = 0.132,
    average: float | None = 0.912,
    seed: int = 0,
    n: int = 121,
    **changes: Any,
) -> Record:
    """Return a run with two groups: the worst one as given, and an easy one."""
    rows = (
        GroupRow("digits 0-4, unmarked", n, worst, low, high, 5),
        GroupRow("the rest", 1000, 0.99, 0.98, 0.995, 990),
    )
    facts: dict[str, Any] = {
        "data": {"name": "marked-digits", "fingerprint": "f0", "options": {"size": 28}, "counts": {"test": 1121}},
        "model": {"name": "small-cnn", "parameters": 1234},
        "config": {},
        "train": {"epochs": 2},
        "supervision": {"train_attributes": False, "val_labels": False, "val_attributes": False},
        "selection": "last",
        "groups": rows,
        "metrics": {"average": average, "worst_group": worst},
        "seconds": {"train": 1.5},
        "history": ({"stage": "train", "epoch": 0, "loss": 0.7}, {"stage": "train", "epoch": 1, "loss": 0.3}),
        "command": "spurless fit",
        "time": "2026-01-01T00:00:00Z",
        "title": METHODS[method].info.title if method in METHODS else "",
    }
    return Record(method=method, seed=seed, **(facts | changes))


def png() -> bytes:
    """Return a grey image of one pixel."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = part(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + part(b"IDAT", zlib.compress(b"\0\x80")) + part(b"IEND", b"")


@pytest.fixture
def make() -> Callable[..., Record]:
    return record


@pytest.fixture
def pixel() -> bytes:
    return png()


@pytest.fixture
def grid() -> Callable[..., Record]:
    """Return a maker of runs with 6 labels x 6 attributes; group (0, 1) has no test examples."""

    def many(method: str = "erm", **changes: Any) -> Record:
        names = [str(i) for i in range(6)]
        rows = tuple(
            GroupRow(f"{y} in {a}", 10 * (y + a != 1), None if y + a == 1 else (6 * y + a) / 36, 0.0, 1.0)
            for y in range(6)
            for a in range(6)
        )
        data = {"name": "grid", "fingerprint": "g", "labels": names, "attributes": names}
        return record(method, **({"groups": rows, "data": data} | changes))

    return many


@pytest.fixture
def hostile() -> list[Record]:
    """Return runs whose every string is an attack or an oddity."""
    names = [
        HOSTILE,
        "<img src=x onerror=alert(2)> \"a\" 'b' <b>bold</b>",
        "x" * 10_000,
        "مجموعة \u202e\U0001f404\u2028",
    ]
    groups = tuple(GroupRow(name, 50, 0.1 + 0.2 * i, 0.05, 0.9) for i, name in enumerate(names))
    facts: dict[str, Any] = {
        "groups": groups,
        "selection": HOSTILE,
        "warnings": (HOSTILE,),
        "command": HOSTILE,
        "config": {HOSTILE: HOSTILE},
    }
    facts |= {"data": {"name": HOSTILE, "fingerprint": HOSTILE, "options": {"k": HOSTILE}, "labels": names}}
    facts |= {"metrics": {HOSTILE: 0.5}, "history": ({"stage": HOSTILE, "epoch": 0, "loss": 1.0, HOSTILE: 1.0},)}
    return [record(method, **facts) for method in ("erm", HOSTILE, "y" * 10_000, "שיטה", "@series0 %{x} $x$")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Lend a Chromium that asks nothing of any network; who needs one is skipped where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()
