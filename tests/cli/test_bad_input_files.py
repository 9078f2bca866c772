"""Bad files and places: weights that are no weights, records that are none, a disk that is full or closed."""

from __future__ import annotations

import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Refused = Callable[..., None]
Cli = Callable[..., Any]
TINY = (
    "--data",
    "planted",
    "-D",
    "n_train=200",
    "-D",
    "n_val=60",
    "-D",
    "n_test=60",
    "--model",
    "mlp",
    "--device",
    "cpu",
)


class Trap:
    """Unpickled, it would leave a file behind."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("sprung"),)


@pytest.mark.parametrize("command", ["fit", "eval"])
@pytest.mark.parametrize("kind", ["missing", "folder", "text", "zip", "legacy", "pickle", "cut"])
def test_weights_that_are_no_safetensors_are_refused_unopened(
    refused: Refused, tiny_fit: Cli, here: Path, command: str, kind: str
) -> None:
    path = here / "w.safetensors"
    if kind == "folder":
        path.mkdir()
    elif kind == "text":
        path.write_text("weights")
    elif kind == "zip":
        torch.save({"trap": Trap()}, path)
    elif kind == "legacy":
        torch.save({"trap": Trap()}, path, _use_new_zipfile_serialization=False)
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(Trap()))
    elif kind == "cut":
        assert tiny_fit("erm", "--out", here / "whole").status == 0
        (whole,) = (here / "whole").glob("*.safetensors")
        path.write_bytes(whole.read_bytes()[:-20])
    match = {
        "missing": r"no such file \(expected a \.safetensors file\)",
        "folder": r"no such file" if command == "fit" else r"the folder contains no model",
        "text": r"the file is not a complete safetensors file",
        "cut": r"the file is not a complete safetensors file",
    }.get(kind, r"the file is a pickle, which can run any code.*Convert it once")
    words = ("fit", "dfr", *TINY, "--weights", path) if command == "fit" else ("eval", path, *TINY)
    refused(rf"w\.safetensors: {match}", *words)
    assert not (here / "sprung").exists()


def test_weights_that_do_not_fit_are_refused(refused: Refused, tiny_fit: Cli, here: Path) -> None:
    assert tiny_fit("erm", "-O", "width=7", "--out", here / "seven").status == 0
    (seven,) = (here / "seven").glob("*.safetensors")
    for words in (("fit", "dfr", *TINY, "--weights", seven), ("eval", seven, *TINY)):
        refused(r"\.safetensors: .* not fit mlp: .*7", *words)
    refused(r"\.safetensors: the weights do not fit mlp", "eval", seven, "--data", "parity", "-D", "n_train=50")


def test_weights_that_name_no_model_ask_for_one(refused: Refused, here: Path) -> None:
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(2)}, here / "w.safetensors")
    refused(r"w\.safetensors: the file does not name its model.*Pass --model NAME", "eval", "w.safetensors")


def test_weights_that_lie_about_their_model_are_refused(refused: Refused, here: Path) -> None:
    import json

    from safetensors.torch import save_file

    for info, match in (
        ({"name": 5}, r"w\.safetensors: the file does not name its model"),
        ({"name": "mlp", "options": 5}, r"w\.safetensors: the file does not name its model"),
        ({"name": "mlp", "options": {"seed": 1}}, r"mlp has no option 'seed'"),
    ):
        save_file({"x": torch.zeros(2)}, here / "w.safetensors", metadata={"spurless": json.dumps(info)})
        refused(match, "eval", "w.safetensors", "--data", "planted")


def test_full_disk_loses_no_record_and_replaces_no_device(refused: Refused, tiny_fit: Cli, here: Path) -> None:
    assert tiny_fit("erm", "--out", here / "out").status == 0
    (weights,) = (here / "out").glob("*.safetensors")
    data = TINY[:8]
    refused(r"/dev/full: cannot write.*: No space left on device.*--out", "eval", weights, *data, "--out", "/dev/full")
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize("command", ["fit", "eval", "demo", "report", "reproduce"])
def test_place_under_a_file_is_refused_before_any_work(
    refused: Refused, tiny_fit: Cli, here: Path, command: str
) -> None:
    (here / "file").write_text("")
    assert command in ("demo", "reproduce", "fit") or tiny_fit("erm", "--out", here / "out").status == 0
    weights = next(here.glob("out/*.safetensors"), None)
    words: dict[str, tuple[object, ...]] = {
        "fit": ("fit", "erm", *TINY, "--out", "file/runs"),
        "eval": ("eval", weights, *TINY[:8], "--out", "file/records.jsonl"),
        "demo": ("demo", "--out", "file/demo"),
        "report": ("report", here / "out" / "records.jsonl", "--out", "file/page.html"),
        "reproduce": ("reproduce", "theory/planted-erm", "--out", "file/records.jsonl"),
    }
    refused(r"file.*: cannot write.*: (Not a directory|File exists)", *words[command])


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (None, r"r\.jsonl: no such file"),
        (b"not json\n", r"r\.jsonl, line 1: the line is not JSON"),
        (
            b'{"schema": 99}\n',
            r"r\.jsonl, line 1: the line is not a record of this version \(expected schema 1, got 99\)",
        ),
        (b"[]\n", r"r\.jsonl, line 1: the line is not a record"),
        (b'{"schema": 1}\n', r"r\.jsonl, line 1: the record is incomplete"),
        (b"\xff\xfe\n", r"r\.jsonl, line 1: the line is not JSON"),
        (b"", r"there is nothing to report \(expected at least one record\)"),
    ],
    ids=["missing", "text", "schema", "list", "incomplete", "binary", "empty"],
)
def test_report_of_bad_records_is_refused(refused: Refused, here: Path, content: bytes | None, match: str) -> None:
    if content is not None:
        (here / "r.jsonl").write_bytes(content)
    refused(match, "report", "r.jsonl", "--out", "page.html")
    assert not (here / "page.html").exists()


def test_report_of_an_empty_folder_is_refused(refused: Refused, here: Path) -> None:
    (here / "none").mkdir()
    refused(r"there is nothing to report \(expected at least one record\)", "report", "none", "--out", "page.html")


@pytest.mark.slow
def test_disk_that_fills_up_is_one_line_and_leaves_nothing_half_written(here: Path) -> None:
    words = ("fit", "erm", *TINY, "--steps", "5", "--out", "runs")
    result = _spurless(here, *words, limit=4096)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("spurless: runs/")
    assert "cannot write" in line
    assert [path for path in (here / "runs").rglob("*") if not path.is_dir()] == []


def test_output_that_cannot_be_written_is_one_line(here: Path) -> None:
    with (here / "result").open("w") as out:
        result = _spurless(here, "ls", "metrics", limit=16, out=out)
    assert (result.returncode, result.stderr) == (2, "spurless: standard output: File too large.\n")


def test_unknown_method_in_a_process_of_its_own_leaves_status_two_and_one_line(here: Path) -> None:
    result = _spurless(here, "fit", "ermm")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("spurless: No method is called 'ermm'. Did you mean 'erm'? Known: ")
    assert result.stderr.count("\n") == 1


def _spurless(here: Path, *words: str, limit: int | None = None, out: Any = subprocess.PIPE) -> Any:
    def lower() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTHONUNBUFFERED", None)  # without a buffer, Python itself loses a write that is cut short
    command = [sys.executable, "-m", "spurless", *words]
    return subprocess.run(
        command, cwd=here, env=environment, stdout=out, stderr=subprocess.PIPE, text=True, preexec_fn=lower, timeout=120
    )


@pytest.mark.parametrize(
    "words",
    [
        ("fit", "erm", "--config", "pipe"),
        ("report", "pipe"),
        ("report", "r.jsonl", "--audit", "pipe"),
        ("bench", "pipe"),
        ("eval", "pipe"),
    ],
)
@pytest.mark.timeout(30)
def test_a_pipe_that_nothing_writes_to_is_not_waited_for(refused: Refused, here: Path, words: tuple[str, ...]) -> None:
    os.mkfifo(here / "pipe")
    (here / "r.jsonl").touch()
    refused(r"pipe: (this is a pipe|no such file)|nothing to report", *words)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_exhausted_memory_is_one_line(refused: Refused, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("spurless.data.load", fail)
    refused(r"there is not enough memory\. Use smaller batches", "fit", "erm", *TINY)
