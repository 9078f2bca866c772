"""Reproduction: the cheap claims are rerun here, and every record is kept."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from spurless.bench.cell import Cell
from spurless.bench.claims import CLAIMS, Bar, Claim, judge
from spurless.bench.fitting import Fitted, fit_under
from spurless.bench.reproduce import reproduce
from spurless.bench.together import Request, fit_together
from spurless.core.errors import BadInput, Diverged
from spurless.core.records import Record, read
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


def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, out = CLAIMS["theory/planted-erm"], tmp_path / "records.jsonl"
    whole = reproduce(claim, seeds=1, engine=Engine("cpu"))
    monkeypatch.setattr("spurless.train.checkpoint.Checkpoints.due", lambda *_: True)
    steps: list[int] = []

    def kill(_stage: str, step: int, _total: int, _word: str) -> None:
        steps.append(step)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(claim, seeds=1, engine=Engine("cpu"), out=out, progress=kill)
    again: list[int] = []
    verdict = reproduce(claim, seeds=1, engine=Engine("cpu"), out=out, progress=lambda _s, step, *_: again.append(step))
    assert again[0] > steps[0] > 0
    assert verdict.values == whole.values
    assert list(tmp_path.iterdir()) == [out]  # what is recorded needs no checkpoints


def small(**cells: Mapping[str, Any]) -> Claim:
    """A claim of cheap cells that differ in their training; its number is the highest weight of any."""
    options = {"n_train": 200, "n_val": 60, "n_test": 60}

    def heaviest(fitted: Fitted) -> dict[str, float]:
        return {"weight": max(float(weight.detach().abs().max()) for weight in fitted.model.parameters())}

    return replace(
        CLAIMS["theory/planted-erm"],
        id="small",
        cells={name: Cell("planted", "linear", "erm", options, train=train) for name, train in cells.items()},
        measure=lambda row: sum(record.metrics["weight"] or 0.0 for record in row.values()),
        bar=Bar(0.0),
        extra=heaviest,
    )


THREE = small(slow={"steps": 30, "lr": 0.1}, fast={"steps": 30, "lr": 0.5}, long={"steps": 40, "lr": 0.5})


@pytest.fixture
def fleets(monkeypatch: pytest.MonkeyPatch) -> list[list[Request]]:
    """The runs of every fleet that sails."""
    sent: list[list[Request]] = []

    def sail(requests: Sequence[Request], at_once: int) -> Iterator[tuple[int, Fitted | Exception]]:
        sent.append(list(requests))
        return fit_together(requests, at_once)

    monkeypatch.setattr("spurless.bench.reproduce.fit_together", sail)
    return sent


def lasting(path: Path) -> list[dict[str, Any]]:
    """The records of a file without what differs between two equal runs."""
    return [{k: v for k, v in asdict(r).items() if k not in ("seconds", "time")} for r in read(path)]


def test_runs_that_go_together_leave_the_records_of_runs_alone(tmp_path: Path, fleets: list[list[Request]]) -> None:
    alone, together = tmp_path / "alone.jsonl", tmp_path / "together.jsonl"
    one = reproduce(THREE, seeds=2, engine=Engine("cpu"), out=alone)
    assert not fleets
    many = reproduce(THREE, seeds=2, engine=Engine("cpu"), out=together, together=4)
    assert many.values == one.values
    assert lasting(together) == lasting(alone)
    assert all(isinstance(record.metrics["weight"], float) for record in read(together))
    assert [[request[-1] for request in fleet] for fleet in fleets] == [[0, 0, 0, 1], [1, 1]]
    first, second = fleets
    assert len({id(request[3]) for request in first[:3]}) == 1  # one copy of the data of a seed
    assert first[3][3] is second[0][3] is not first[0][3]


def test_a_fleet_does_what_the_file_does_not_hold(tmp_path: Path, fleets: list[list[Request]]) -> None:
    out = tmp_path / "records.jsonl"
    whole = reproduce(THREE, seeds=2, engine=Engine("cpu"), out=out, together=2)
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join([*lines[1:3], *lines[4:]]))
    fleets.clear()
    assert reproduce(THREE, seeds=2, engine=Engine("cpu"), out=out, together=6).values == whole.values
    assert [[(request[0].train.lr, request[-1]) for request in fleet] for fleet in fleets] == [[(0.1, 0), (0.1, 1)]]
    assert len(read(out)) == 6


def test_one_that_sinks_is_told_once_the_others_are_recorded(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    wild = small(wild={"steps": 60, "lr": 1e30}, tame={"steps": 30, "lr": 0.5})
    with pytest.raises(Diverged):
        reproduce(wild, seeds=1, engine=Engine("cpu"), out=out, together=2)
    assert [record.cell for record in read(out)] == ["small tame"]


def test_a_fleet_that_is_cut_off_has_recorded_what_had_ended(tmp_path: Path) -> None:
    out, ended = tmp_path / "records.jsonl", list[Fitted]()

    def cut_off(fitted: Fitted) -> dict[str, float]:
        ended.append(fitted)
        if len(ended) == 3:
            raise KeyboardInterrupt
        return {"weight": 0.0}

    with pytest.raises(KeyboardInterrupt):
        reproduce(replace(THREE, extra=cut_off), seeds=1, engine=Engine("cpu"), out=out, together=3)
    assert [record.cell for record in read(out)] == ["small slow", "small fast"]


def test_a_fleet_tells_how_far_all_of_it_is() -> None:
    told: list[tuple[Any, ...]] = []
    reproduce(THREE, seeds=1, engine=Engine("cpu"), progress=lambda *words: told.append(words), together=3)
    assert told[-1] == ("together", 100, 100, "3 runs")


def test_no_run_at_once_is_refused() -> None:
    with pytest.raises(BadInput, match=r"at least one run"):
        reproduce(THREE, together=0)


def test_a_verdict_does_not_hang_on_which_records_were_there(tmp_path: Path) -> None:
    out, seen = tmp_path / "records.jsonl", list[list[str]]()

    def first(row: Mapping[str, Record]) -> float:
        seen.append(list(row))
        return 0.0

    claim = replace(THREE, measure=first)
    reproduce(claim, seeds=1, engine=Engine("cpu"), out=out)
    out.write_text(out.read_text().splitlines(keepends=True)[1])
    reproduce(claim, seeds=1, engine=Engine("cpu"), out=out, together=2)
    assert seen == [["slow", "fast", "long"]] * 2
