"""CPU threads: the numbers of a run depend on those of the run, not on those of the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import spurless as sp
from spurless.core.errors import InputError
from spurless.core.hashing import content_hash
from spurless.methods import METHODS
from spurless.train.run import Compute, inference_threads, limit_threads

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "same_weights.py"
AUDITS = ("worst-class", "error-slices", "biased-neurons")
TRAIN = {"steps": 12, "batch_size": 64}


@contextmanager
def machine_with(threads: int) -> Iterator[None]:
    """Stand for a machine on which torch computes with this number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
        assert torch.get_num_threads() == threads  # whatever ran left it as it was
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data() -> sp.Splits:
    return sp.load("patched-digits", seed=0)


def fit(data: sp.Splits, method: str = "erm", **options: Any) -> sp.Fitted:
    return sp.fit(method, sp.build("small-cnn", data, seed=0), data, train=TRAIN, **options)


def hash_of(fitted: sp.Fitted) -> str:
    return content_hash(*fitted.model.state_dict().values())


@pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")
def test_a_run_has_the_same_weights_and_key_on_every_machine(data: sp.Splits) -> None:
    runs = []
    for threads in (1, 2, 4):
        with machine_with(threads):
            runs.append(fit(data))
    assert len({hash_of(run) for run in runs}) == 1
    assert len({run.record.key for run in runs}) == 1
    assert {run.record.hardware["threads"] for run in runs} == {1}


@pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")
def test_more_threads_are_in_the_key_and_in_the_record(data: sp.Splits) -> None:
    one, two = (fit(data, compute=Compute("cpu", threads=threads)) for threads in (1, 2))
    assert one.record.key == fit(data).record.key != two.record.key
    assert (one.record.hardware["threads"], two.record.hardware["threads"]) == (1, 2)


def test_the_threads_of_the_run_are_those_of_the_method(data: sp.Splits) -> None:
    seen = []

    def transform(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return x.float() / 255

    transformed = replace(
        data, **{name: replace(getattr(data, name), transform=transform) for name in ("train", "val")}
    )
    model = sp.build("small-cnn", transformed, seed=0)
    seen.clear()
    with machine_with(2), pytest.warns(sp.SpurlessWarning):
        sp.fit("erm", model, transformed, train=TRAIN, compute=Compute("cpu", threads=3))
    assert set(seen) == {3}


@pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")
def test_an_audit_uses_all_threads_for_forward_passes_and_one_for_statistics(data: sp.Splits) -> None:
    seen: set[int] = set()

    def transform(x: torch.Tensor) -> torch.Tensor:
        seen.add(torch.get_num_threads())
        return x.float() / 255

    val = replace(data.val, transform=transform)
    model = sp.wrap(sp.build("small-cnn", data, seed=0), trained=True)
    with machine_with(3):
        sp.audit(model, val, permutations=19, only=["worst-class", "hidden-regions"])
        assert 3 in seen
        with limit_threads(2, all_for_inference=True):
            assert torch.get_num_threads() == 2
            with inference_threads():
                assert torch.get_num_threads() == 3
            assert torch.get_num_threads() == 2
        with limit_threads(2), inference_threads():  # a run, not an audit
            assert torch.get_num_threads() == 2


def test_threads_are_restored_after_an_error() -> None:
    with machine_with(2), pytest.raises(ValueError, match="mine"), limit_threads(1):
        raise ValueError("mine")


@pytest.mark.parametrize(
    ("threads", "expected"), [(0, "1 to 1024"), (-1, "1 to 1024"), (10**9, "1 to 1024"), (1.5, "int"), ("2", "int")]
)
def test_a_number_of_threads_that_cannot_be_is_refused(threads: Any, expected: str) -> None:
    with pytest.raises(InputError, match="threads") as refused:
        Compute(threads=threads)
    assert refused.value.expected == expected


@pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")
def test_an_audit_finds_the_same_on_every_machine(data: sp.Splits) -> None:
    from spurless.reporting import audit_json

    model = fit(data).model
    audits = []
    for threads in (1, 2):
        with machine_with(threads):
            audits.append(json.loads(audit_json(sp.audit(model, data, permutations=19, only=AUDITS))))
    for found in audits:
        assert found["facts"].pop("threads") == 1
        del found["facts"]["seconds"]
    assert audits[0] == audits[1]


@pytest.mark.slow
def test_every_method_has_the_same_weights_on_every_machine(tmp_path: Path) -> None:
    for threads in ("1", "2", "4"):
        command = [sys.executable, str(SCRIPT), "--threads", threads, "--out", str(tmp_path / f"{threads}.json")]
        subprocess.run(command, check=True, timeout=500, env={**os.environ, "OMP_NUM_THREADS": threads})
    one, two, four = (json.loads((tmp_path / f"{threads}.json").read_text()) for threads in (1, 2, 4))
    assert list(one) == list(METHODS)
    assert one == two == four
