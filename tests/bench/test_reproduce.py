"""Reproduction: the cheap claims are rerun here, and every record is kept."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spurless.bench.claims import CLAIMS, Bar, Claim, check_claim
from spurless.bench.experiment import Experiment
from spurless.bench.reproduce import reproduce
from spurless.core.errors import DivergedError, InputError, SpurlessWarning
from spurless.core.records import Record, read_records
from spurless.data.split import Splits
from spurless.fitting.concurrent import fit_concurrently
from spurless.fitting.protocol import FitRequest, Fitted, PreparedRun, prepare
from spurless.train.run import Compute

CHEAP = [claim for claim in CLAIMS.values() if claim.cost == "cpu" and claim.minutes <= 1]


@pytest.mark.parametrize("claim", CHEAP, ids=lambda claim: claim.id)
def test_a_cheap_claim_holds(claim: object, tmp_path: Path) -> None:
    from spurless.bench.claims import Claim

    assert isinstance(claim, Claim)
    verdict = reproduce(claim, compute=Compute("cpu"), out=tmp_path / "records.jsonl")
    assert verdict.holds, verdict.line()
    records = read_records(tmp_path / "records.jsonl")
    assert len(records) == claim.seeds * len(claim.experiments)
    assert check_claim(claim, records).ours == verdict.ours  # the records alone say the same


def test_a_claim_can_be_shared_out_by_seeds(tmp_path: Path) -> None:
    claim = CLAIMS["theory/planted-erm"]
    for seed in range(2):
        reproduce(claim, seeds=1, first=seed, compute=Compute("cpu"), out=tmp_path / "parts.jsonl")
    whole = reproduce(claim, seeds=2, compute=Compute("cpu"))
    assert check_claim(claim, read_records(tmp_path / "parts.jsonl")).values == whole.values


def test_what_the_file_holds_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, out = CLAIMS["theory/planted-erm"], tmp_path / "records.jsonl"
    first = reproduce(claim, seeds=2, compute=Compute("cpu"), out=out)
    whole = out.read_text()
    out.write_text("".join(whole.splitlines(keepends=True)[:-1]))  # killed before its last record
    runs: list[int] = []

    def counted(*request: Any) -> PreparedRun:
        runs.append(request[4])
        return prepare(*request)

    monkeypatch.setattr("spurless.bench.executors.task.prepare", counted)
    assert reproduce(claim, seeds=2, compute=Compute("cpu"), out=out).values == first.values
    assert runs == [1]
    assert len(read_records(out)) == len(whole.splitlines())
    other = replace(
        claim, experiments={name: replace(cell, train={"epochs": 1}) for name, cell in claim.experiments.items()}
    )
    reproduce(other, seeds=1, compute=Compute("cpu"), out=out)
    assert runs == [1, *[0] * len(claim.experiments)]  # other settings are other runs


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, out = CLAIMS["theory/planted-erm"], tmp_path / "records.jsonl"
    whole = reproduce(claim, seeds=1, compute=Compute("cpu"))
    monkeypatch.setattr("spurless.train.checkpoint.Checkpoints.is_due", lambda *_: True)
    steps: list[int] = []

    def kill(_stage: str, step: int, _total: int, _word: str) -> None:
        steps.append(step)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(claim, seeds=1, compute=Compute("cpu"), out=out, progress=kill)
    again: list[int] = []
    verdict = reproduce(
        claim, seeds=1, compute=Compute("cpu"), out=out, progress=lambda _s, step, *_: again.append(step)
    )
    assert again[0] > steps[0] > 0
    assert verdict.values == whole.values
    assert list(tmp_path.iterdir()) == [out]  # what is recorded needs no checkpoints


def small(**cells: Mapping[str, Any]) -> Claim:
    """A claim of cheap cells that differ in their training; its number is the highest weight of any."""
    options = {"n_train": 200, "n_val": 60, "n_test": 60}

    def heaviest(fitted: Fitted, _data: Splits) -> dict[str, float]:
        return {"weight": max(float(weight.detach().abs().max()) for weight in fitted.model.parameters())}

    return replace(
        CLAIMS["theory/planted-erm"],
        id="small",
        experiments={
            name: Experiment("planted", "linear", "erm", options, train=train) for name, train in cells.items()
        },
        measure=lambda row: sum(record.metrics["weight"] or 0.0 for record in row.values()),
        bar=Bar(0.0),
        extra=heaviest,
    )


THREE = small(slow={"steps": 30, "lr": 0.1}, fast={"steps": 30, "lr": 0.5}, long={"steps": 40, "lr": 0.5})


@pytest.fixture
def fleets(monkeypatch: pytest.MonkeyPatch) -> list[list[FitRequest]]:
    """The runs of every fleet that sails."""
    sent: list[list[FitRequest]] = []

    def sail(requests: Sequence[FitRequest], at_once: int) -> Iterator[tuple[int, Fitted | Exception]]:
        sent.append(list(requests))
        return fit_concurrently(requests, at_once)

    monkeypatch.setattr("spurless.fitting.concurrent.fit_concurrently", sail)
    return sent


def lasting(path: Path) -> list[dict[str, Any]]:
    """The records of a file without what differs between two equal runs."""
    return [{k: v for k, v in asdict(r).items() if k not in ("seconds", "time")} for r in read_records(path)]


def test_runs_that_go_together_leave_the_records_of_runs_alone(tmp_path: Path, fleets: list[list[FitRequest]]) -> None:
    alone, together = tmp_path / "alone.jsonl", tmp_path / "together.jsonl"
    one = reproduce(THREE, seeds=2, compute=Compute("cpu"), out=alone)
    assert not fleets
    many = reproduce(THREE, seeds=2, compute=Compute("cpu"), out=together, together=4)
    assert many.values == one.values
    assert lasting(together) == lasting(alone)
    assert all(isinstance(record.metrics["weight"], float) for record in read_records(together))
    assert [[request.seed for request in fleet] for fleet in fleets] == [[0, 0, 0, 1], [1, 1]]
    first, second = fleets
    assert len({id(request[3]) for request in first[:3]}) == 1  # one copy of the data of a seed
    assert first[3][3] is second[0][3] is not first[0][3]


def test_a_fleet_does_what_the_file_does_not_hold(tmp_path: Path, fleets: list[list[FitRequest]]) -> None:
    out = tmp_path / "records.jsonl"
    whole = reproduce(THREE, seeds=2, compute=Compute("cpu"), out=out, together=2)
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join([*lines[1:3], *lines[4:]]))
    fleets.clear()
    assert reproduce(THREE, seeds=2, compute=Compute("cpu"), out=out, together=6).values == whole.values
    assert [[(request[0].train.lr, request.seed) for request in fleet] for fleet in fleets] == [[(0.1, 0), (0.1, 1)]]
    assert len(read_records(out)) == 6


def test_one_that_sinks_is_told_once_the_others_are_recorded(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    wild = small(wild={"steps": 60, "lr": 1e30}, tame={"steps": 30, "lr": 0.5})
    with pytest.raises(DivergedError):
        reproduce(wild, seeds=1, compute=Compute("cpu"), out=out, together=2)
    assert [record.cell for record in read_records(out)] == ["small tame"]


def test_a_fleet_that_is_cut_off_has_recorded_what_had_ended(tmp_path: Path) -> None:
    out, ended = tmp_path / "records.jsonl", list[Fitted]()

    def cut_off(fitted: Fitted, _data: Splits) -> dict[str, float]:
        ended.append(fitted)
        if len(ended) == 3:
            raise KeyboardInterrupt
        return {"weight": 0.0}

    with pytest.raises(KeyboardInterrupt):
        reproduce(replace(THREE, extra=cut_off), seeds=1, compute=Compute("cpu"), out=out, together=3)
    assert [record.cell for record in read_records(out)] == ["small slow", "small fast"]


def test_a_fleet_tells_how_far_all_of_it_is() -> None:
    told: list[tuple[Any, ...]] = []
    reproduce(THREE, seeds=1, compute=Compute("cpu"), progress=lambda *words: told.append(words), together=3)
    assert told[-1] == ("together", 100, 100, "3 runs")


def test_no_run_at_once_is_refused() -> None:
    with pytest.raises(InputError, match=r"together must be at least 1"):
        reproduce(THREE, together=0)


def test_a_verdict_does_not_hang_on_which_records_were_there(tmp_path: Path) -> None:
    out, seen = tmp_path / "records.jsonl", list[list[str]]()

    def first(row: Mapping[str, Record]) -> float:
        seen.append(list(row))
        return 0.0

    claim = replace(THREE, measure=first)
    reproduce(claim, seeds=1, compute=Compute("cpu"), out=out)
    out.write_text(out.read_text().splitlines(keepends=True)[1])
    reproduce(claim, seeds=1, compute=Compute("cpu"), out=out, together=2)
    assert seen == [["slow", "fast", "long"]] * 2


def test_equal_runs_of_two_claims_have_separate_records(tmp_path: Path) -> None:
    out, other = tmp_path / "records.jsonl", replace(THREE, id="other", extra=lambda _fitted, _data: {"weight": 1.0})
    reproduce(THREE, seeds=1, compute=Compute("cpu"), out=out)
    assert reproduce(other, seeds=1, compute=Compute("cpu"), out=out).values == (3.0,)
    assert [record.cell.split()[0] for record in read_records(out)] == ["small"] * 3 + ["other"] * 3


def test_the_default_number_of_threads_is_used_and_warnings_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []

    def counted(*request: Any) -> PreparedRun:
        used.append(torch.get_num_threads())
        warnings.warn("visible", SpurlessWarning, stacklevel=1)
        return prepare(*request)

    monkeypatch.setattr("spurless.bench.executors.task.prepare", counted)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.warns(SpurlessWarning, match="visible"):
            reproduce(small(only={"steps": 2}), seeds=1, compute=Compute("cpu"))
    finally:
        torch.set_num_threads(before)
    assert used == [1]
