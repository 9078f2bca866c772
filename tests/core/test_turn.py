"""Turn: one process of several speaks, whichever comes first, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spurless.core.turn import TURN, take_turn

FAMILY = """
import subprocess, sys
from spurless.core.turn import offer_turn, take_turn
offer_turn()
child = [sys.executable, "-c", "from spurless.core.turn import *; offer_turn(); print(take_turn())"]
both = [subprocess.run(child, capture_output=True, text=True).stdout.strip() for _ in range(2)]
print(*both, take_turn())
"""
SILENT = """
from spurless.core.turn import offer_turn
offer_turn()
print("nobody asked")
"""


def test_alone_a_process_always_may_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TURN, raising=False)
    assert [take_turn(), take_turn()] == [True, True]


@pytest.mark.parametrize(("program", "answer"), [(FAMILY, "True False False"), (SILENT, "nobody asked")])
def test_of_a_family_the_first_speaks_and_no_file_is_left(tmp_path: Path, program: str, answer: str) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == answer
    assert not list(tmp_path.iterdir())


def test_without_a_place_for_the_turn_everybody_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    from spurless.core import turn

    monkeypatch.delenv(TURN, raising=False)
    monkeypatch.setattr(turn, "mkstemp", lambda **_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    turn.offer_turn()
    assert TURN not in os.environ
    assert take_turn()
