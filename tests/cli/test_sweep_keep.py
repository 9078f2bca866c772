"""``spurless sweep --keep``: weights that ``spurless explain`` reads and compares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Cli = Callable[..., Any]
DIGITS = (
    "sweep", "--over", "lr=0.01,0.1", "--data", "double-digits", "-D", "size=14", "--model", "mlp", "-O", "width=16",
    "--device", "cpu", "--steps", "40", "--seeds", "1", "--out", "all", "--quiet",
)  # fmt: skip


def test_weights_are_kept_where_they_are_wanted(cli: Cli, here: Path) -> None:
    assert cli(*DIGITS, "--keep", "mine").status == 0
    assert len(list((here / "mine").glob("*.safetensors"))) == 2
    low = next((here / "mine").glob("lr=0.01*"))
    high = next((here / "mine").glob("lr=0.1-*"))
    words = ("--data", "double-digits", "-D", "size=14", "--device", "cpu", "--count", "2", "--quiet")
    assert cli("explain", high, "--before", low, "--attributions", *words).status == 0
    page = (here / "maps.html").read_text()
    assert "% spurious" in page
    assert f"{low.stem}: " in page
    names = sorted(path.name.rpartition("-")[0] for path in (here / "mine").iterdir())
    assert names == ["lr=0.01-seed0", "lr=0.1-seed0"]


def test_a_folder_that_cannot_be_written_is_refused(cli: Cli) -> None:
    (where := Path("file")).touch()
    refused = cli(*DIGITS, "--keep", where)
    assert refused.status == 2
    assert "cannot write" in refused.err
