"""Hostile arguments: every command and public function completes, or refuses them in a line, within a time limit."""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

DEFAULT_CASES = 3000
"""Cases of the slow test, two to three minutes; SPURLESS_FUZZ_CASES=20000 runs as many as the record."""


@pytest.fixture(scope="module")
def fuzz() -> Any:
    """The script, by its file."""
    spec = spec_from_file_location("script_faults", Path(__file__).parents[2] / "benchmarks" / "faults.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_hostile_arguments_are_refused_in_a_line(fuzz: Any) -> None:
    assert fuzz.list_failures(seed=0, count=1200) == []


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_hostile_arguments_are_refused_in_a_line(fuzz: Any) -> None:
    assert fuzz.list_failures(seed=1, count=int(os.environ.get("SPURLESS_FUZZ_CASES", DEFAULT_CASES))) == []


def test_every_option_and_every_argument_has_a_case(fuzz: Any) -> None:
    options = {(name, param.name) for name, params in fuzz.commands().items() for param in params}
    arguments = {(path, name) for path, (_, names) in fuzz.functions().items() for name in names}
    assert options | arguments <= {(name, parameter) for _, name, parameter in fuzz.subjects()}
    assert len(fuzz.subjects()) <= 1200
    assert set(fuzz.BASES) == set(fuzz.commands())


def test_the_same_number_is_the_same_case(fuzz: Any) -> None:
    assert fuzz.make_case(7, 3) == fuzz.make_case(7, 3) != fuzz.make_case(7, 4)


@pytest.mark.parametrize(
    ("call", "ending"),
    [
        ("sp.Groups(labels=5)", "refused"),
        ("sp.Groups(labels=('a', 'b'))", "completed"),
        ("1 / 0", "traceback"),
        ("time.sleep(30)", "hang"),
    ],
)
def test_endings_are_told_apart(fuzz: Any, call: str, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "WALL_LIMIT", 0.2)
    fuzz.handle_alarms()
    assert fuzz.run_case(fuzz.Case(0, "function", "x", "y", call)).ending == ending


def test_a_process_that_dies_counts_for_its_case(fuzz: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, sys; print([sys.stdin.read().count(',')], flush=True); os.abort()"
    monkeypatch.setattr(fuzz, "worker_command", lambda _: [sys.executable, "-c", program])
    (outcome,) = fuzz.run_cases(0, [0])
    assert (outcome.number, outcome.ending) == (0, "crash")
