"""Reproduction: the cheap claims are rerun here, and every record is kept."""

from pathlib import Path

import pytest

from spurless.bench.claims import CLAIMS, judge
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
