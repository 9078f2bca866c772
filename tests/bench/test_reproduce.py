"""Reproduction: the cheap claims are rerun here, and every record is kept."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spurless.bench.claims import CLAIMS, judge
from spurless.bench.fitting import Fitted, fit_under
from spurless.bench.reproduce import reproduce
from spurless.core.records import read
from spurless.train.run import Engine

CHEAP = [claim for claim in CLAIMS.values() if claim.cost == "cpu" and claim.minutes <= 1]


@pytest.mark.parametrize("claim", CHEAP, ids=lambda claim: claim.id)
def test_a_cheap_claim_holds(claim: object, tmp_path: Path) -> None:
    from spurless.bench.claims import Claim

    assert isinstance(claim, Claim)
    verdict = reproduce(claim, engine=Engine("cpu"), out=tmp_path / "records.jsonl")
    assert verdict.holds, verdict.line()
    records = read(tmp_path / "records.jsonl")
    assert len(records) == claim.seeds * len(claim.cells)
    assert judge(claim, records).ours == verdict.ours  # the records alone say the same


def test_a_claim_can_be_shared_out_by_seeds(tmp_path: Path) -> None:
    claim = CLAIMS["theory/planted-erm"]
    for seed in range(2):
        reproduce(claim, seeds=1, first=seed, engine=Engine("cpu"), out=tmp_path / "parts.jsonl")
    whole = reproduce(claim, seeds=2, engine=Engine("cpu"))
    assert judge(claim, read(tmp_path / "parts.jsonl")).values == whole.values


def test_what_the_file_holds_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, out = CLAIMS["theory/planted-erm"], tmp_path / "records.jsonl"
    first = reproduce(claim, seeds=2, engine=Engine("cpu"), out=out)
    whole = out.read_text()
    out.write_text("".join(whole.splitlines(keepends=True)[:-1]))  # killed before its last record
    runs: list[int] = []

    def counted(*plan: Any) -> Fitted:
        runs.append(plan[-1])
        return fit_under(*plan)

    monkeypatch.setattr("spurless.bench.reproduce.fit_under", counted)
    assert reproduce(claim, seeds=2, engine=Engine("cpu"), out=out).values == first.values
    assert runs == [1]
    assert len(read(out)) == len(whole.splitlines())
    other = replace(claim, cells={name: replace(cell, train={"epochs": 1}) for name, cell in claim.cells.items()})
    reproduce(other, seeds=1, engine=Engine("cpu"), out=out)
    assert runs == [1, *[0] * len(claim.cells)]  # other settings are other runs
