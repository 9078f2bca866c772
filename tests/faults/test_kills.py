"""Kills: whatever command is killed, and whenever, nothing is lost or torn, and the resumed result is the same.

``SPURLESS_KILLS=500 pytest tests/faults/test_kills.py`` sends 500 signals; without it, there are 15.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "kills.py"
KILLS = int(os.environ.get("SPURLESS_KILLS", "15"))
SECONDS_PER_KILL = 20

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]


@pytest.mark.timeout(600 + SECONDS_PER_KILL * KILLS)
def test_killed_commands_lose_nothing_and_end_with_the_same_result(tmp_path: Path) -> None:
    out = tmp_path / "kills.json"
    command = [sys.executable, str(FILE), "--kills", str(KILLS), "--seed", "1", "--out", str(out)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    counts = json.loads(out.read_text())
    assert sum(counts["sent"].values()) == KILLS
    assert counts["problems"] == {}


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_saves_the_run_and_sets_the_exit_status(number: int, status: int, tmp_path: Path) -> None:
    words = ["fit", "erm", "--data", "patched-digits", "--model", "mlp", "--steps", "200000", "--device", "cpu"]
    program = "import sys; from spurless.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", program, *words, "--out", str(tmp_path / "runs"), "--track", "csv"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as process:
        track = tmp_path / "runs" / "track"
        while process.poll() is None and not any(track.rglob("*.csv")):
            pass  # an epoch has ended, so that the loop runs
        process.send_signal(number)
        _, error = process.communicate(timeout=300)
    assert process.returncode == status
    assert error == "spurless: stopped; run the same command to resume.\n"
    assert len(list((tmp_path / "runs" / "checkpoints").rglob("stage-*.pt"))) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("n_records", [0, 1])
def test_a_sweep_of_processes_ends_without_a_traceback(number: int, n_records: int, tmp_path: Path) -> None:
    words = [
        "sweep",
        "--over",
        "lr=0.01,0.02,0.03",
        "--seeds",
        "3",
        "--model",
        "mlp",
        "--steps",
        "100",
        "--drop",
        "none",
    ]
    program = "import sys; from spurless.cli import main; print('ready', flush=True); main()"
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            program,
            *words,
            "--drop",
            "none",
            "--jobs",
            "2",
            "--device",
            "cpu",
            "--out",
            str(tmp_path),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        records = tmp_path / "records.jsonl"
        while process.poll() is None and n_records and not records.exists():
            pass
        if not n_records:  # the processes are being started
            while process.poll() is None and not list(Path(f"/proc/{process.pid}/task").glob("*/children")):
                pass
            while process.poll() is None and not Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text():
                pass
        os.killpg(process.pid, number)
        _, error = process.communicate(timeout=300)
    assert process.returncode == 128 + number
    assert error == "spurless: stopped; run the same command to resume after the recorded runs.\n"
