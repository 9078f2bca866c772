"""Records: appended whole or not at all, whatever happens to the writer."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spurless.core import records
from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.records import GroupRow, Record, append_record, read_record_files, read_records
from spurless.methods import METHODS

ROWS = (GroupRow("land, sea", 4, 0.25, 0.05, 0.7, 9), GroupRow("water, sea", 0, None, None, None))


def record(seed: int = 0, **changes: Any) -> Record:
    plain = Record(
        method="erm",
        seed=seed,
        data={"name": "ωβ-birds"},  # two bytes a letter, so that a tear can split one
        model={},
        config={"lr": 0.1},
        train={},
        supervision={"val_labels": True},
        selection="last",
        groups=ROWS,
        metrics={"worst_group": 0.25},
        seconds={"fit": 1.5},
    )
    return replace(plain, **changes)


def lines(*seeds: int) -> bytes:
    return b"".join(record(seed).to_json().encode() + b"\n" for seed in seeds)


def seeds_in(path: Path) -> list[int]:
    return [found.seed for found in read_records(path, to_continue=True)]


# what a record is


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    first = record(3, warnings=("small group",), history=({"epoch": 0, "loss": 0.5},), commit="abc+", peak_memory=7)
    append_record(tmp_path / "r.jsonl", first)
    append_record(tmp_path / "r.jsonl", record(4))
    assert read_records(tmp_path / "r.jsonl") == [first, record(4)]


def test_old_names_of_methods_are_read_as_the_new_ones() -> None:
    assert Record.from_json(record(method="watched-erm").to_json()).method == "erm-loss-ratio"
    assert Record.from_json(record(train={"decay_share": 0.1}).to_json()).train == {"decay_fraction": 0.1}
    assert set(records.RENAMED.values()) <= set(METHODS)
    assert not set(records.RENAMED) & set(METHODS)


def test_a_record_has_a_display_name() -> None:
    assert (record().display_name, record(title="ERM").display_name) == ("erm", "ERM")
    assert Record.from_json(record(title="ERM").to_json()).title == "ERM"


def test_a_number_that_json_lacks_becomes_null() -> None:
    made = record(metrics={"gap": math.nan, "high": math.inf, "low": -math.inf}, history=({"loss": [math.nan, 1.0]},))
    again = Record.from_json(made.to_json())
    assert again.metrics == {"gap": None, "high": None, "low": None}
    assert again.history == ({"loss": [None, 1.0]},)


def test_a_record_is_one_line_whatever_it_holds() -> None:
    awkward = record(command="a\nb\r\u2028c", config={"path": Path("x"), "sizes": (1, 2), 3: "three"})
    assert len(awkward.to_json().split("\n")) == 1
    again = Record.from_json(awkward.to_json())
    assert again.command == "a\nb\r\u2028c"
    assert again.config == {"path": "x", "sizes": [1, 2], "3": "three"}


def test_numbers_of_numpy_stay_numbers() -> None:
    made = record(
        metrics={"a": np.float32(0.5), "b": np.float64(0.25), "c": np.float32("nan")}, config={"n": np.int64(3)}
    )
    again = Record.from_json(made.to_json())
    assert (again.metrics, again.config) == ({"a": 0.5, "b": 0.25, "c": None}, {"n": 3})


def test_a_file_name_that_is_no_text_can_be_recorded(tmp_path: Path) -> None:
    command = os.fsdecode(b"spurless fit caf\xe9.csv")  # Latin-1: a lone surrogate in Python
    append_record(tmp_path / "r.jsonl", record(command=command))
    assert read_records(tmp_path / "r.jsonl")[0].command == command


# what a file may hold


def test_blank_lines_are_passed_over_and_an_empty_file_has_no_records(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"")
    assert read_records(path) == []
    path.write_bytes(b"\n" + lines(1) + b"\n\n" + lines(2))
    assert seeds_in(path) == [1, 2]


def test_fields_of_a_later_version_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(lines(1).replace(b'{"method"', b'{"planet":"earth","method"', 1))
    assert read_records(path) == [record(1)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"method": "er', "line 2: the line is not JSON. Delete the line, or restore the file."),
        (b"\xff\xfe\xff", "line 2: the line is not JSON"),
        (b"[1]", "line 2: the line is not a record of this version (expected schema 1, got list)"),
        (b'{"schema": 2}', "line 2: the line is not a record of this version (expected schema 1, got 2)"),
        (b"{}", "line 2: the line is not a record of this version (expected schema 1, got none)"),
        (b'{"schema": 1}', "line 2: the record is incomplete: 'groups'"),
        (b'{"schema": 1, "groups": [{"name": "x"}]}', "line 2: the record is incomplete: "),
        (b'{"schema": 1, "groups": [], "warnings": [], "history": []}', "line 2: the record is incomplete: "),
        (b'{"schema": 1, "groups": null}', "line 2: 'groups' of the record has the wrong type (expected a list, got"),
    ],
)
def test_a_corrupt_line_in_the_middle_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(lines(1) + line + b"\n" + lines(3))
    with pytest.raises(InputError) as caught:
        read_records(path)
    assert str(caught.value).startswith(f"{path}, {message}")


def test_a_field_of_the_wrong_kind_is_named_whichever_it_is() -> None:
    whole = json.loads(record(1).to_json())
    for name in whole:
        if name not in ("schema", "commit", "peak_memory", "selective"):
            with pytest.raises(
                InputError, match=rf"x: '{name}' of the record has the wrong type \(expected .*, got null"
            ):
                Record.from_json(json.dumps({**whole, name: None}), "x")


def test_says_which_file_is_missing_or_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"r.jsonl: no such file \(expected a records.jsonl written by spurless\)"):
        read_records(tmp_path / "r.jsonl")
    with pytest.raises(InputError, match="the file cannot be read: Is a directory"):
        read_records(tmp_path)


def test_a_folder_stands_for_its_files_in_order(tmp_path: Path) -> None:
    for name, seed in (("b.jsonl", 2), ("a.jsonl", 1), ("c.txt", 9)):
        append_record(tmp_path / name, record(seed))
    assert [found.seed for found in read_record_files([tmp_path, str(tmp_path / "b.jsonl")])] == [1, 2, 2]


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    append_record(str(tmp_path / "runs" / "today" / "r.jsonl"), record(1))
    assert seeds_in(tmp_path / "runs" / "today" / "r.jsonl") == [1]


# (a) many writers

# up to 100 kB a line, so that no write is a single page
FIFTY = """
import sys
from spurless.core.records import Record, append_record
for i in range(50):
    record = Record("erm", int(sys.argv[2]) + i, {}, {}, {}, {}, {}, "last", (), {}, {}, command="x" * (2000 * i))
    append_record(sys.argv[1], record)
"""


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", FIFTY, str(path), str(1000 * i)]) for i in range(4)]
    assert [writer.wait() for writer in writers] == [0, 0, 0, 0]
    found = seeds_in(path)
    assert sorted(found) == [1000 * writer + i for writer in range(4) for i in range(50)]
    for writer in range(4):  # each writer's own records are in its order
        assert [s for s in found if s // 1000 == writer] == [1000 * writer + i for i in range(50)]


# (b) a torn last line


def test_a_last_line_torn_anywhere_is_skipped_by_read_and_repaired_by_append(tmp_path: Path) -> None:
    path, whole, torn = tmp_path / "r.jsonl", lines(1), lines(2)[:-1]
    for cut in range(len(torn)):  # every prefix but the whole line, also within a letter
        path.write_bytes(whole + torn[:cut])
        assert seeds_in(path) == [1], cut
        append_record(path, record(3))
        assert path.read_bytes() == lines(1, 3), cut


def test_a_last_line_that_lost_only_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(lines(1, 2)[:-1])
    assert seeds_in(path) == [1, 2]
    append_record(path, record(3))
    assert path.read_bytes() == lines(1, 2, 3)


def test_a_torn_first_line_leaves_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(lines(1)[:50])
    assert seeds_in(path) == []
    append_record(path, record(2))
    assert seeds_in(path) == [2]


@pytest.mark.parametrize("tail", [lines(7)[:60], b"{", b"\0" * 8])
def test_a_reader_is_told_of_a_last_line_that_is_cut_short_and_who_continues_is_not(
    tmp_path: Path, tail: bytes, recwarn: pytest.WarningsRecorder
) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(lines(1, 2) + tail)
    with pytest.warns(SpurlessWarning, match=r"r\.jsonl, line 3 is incomplete and was left out"):
        assert [found.seed for found in read_records(path)] == [1, 2]
    assert len(read_records(path, to_continue=True)) == 2
    assert not recwarn.list


@pytest.mark.parametrize("text", [b"a,b\n1,2\n", b"a,b", b"<!doctype html>", b'[{"schema": 1}'])
def test_a_file_of_something_else_is_not_taken_for_a_torn_one(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "r.jsonl").write_bytes(text)
    with pytest.raises(InputError, match=r"line 1: the line is not JSON"):
        read_records(tmp_path / "r.jsonl", to_continue=True)


@pytest.mark.parametrize("size", [(1 << 16) - 1, 1 << 16, 200_000])
def test_a_torn_line_longer_than_a_block_is_cut_whole(tmp_path: Path, size: int) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(lines(1) + b'{"' + b"x" * (size - 2))
    append_record(path, record(2))
    assert path.read_bytes() == lines(1, 2)


def test_zeros_left_by_a_power_cut_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(lines(1) + b"\0" * 512)
    assert seeds_in(path) == [1]
    append_record(path, record(2))
    assert path.read_bytes() == lines(1, 2)


# (c) a killed writer

WRITER = """
import sys
from spurless.core.records import Record, append_record
path, seed = sys.argv[1], int(sys.argv[2])
while True:
    append_record(path, Record("erm", seed, {}, {}, {}, {}, {}, "last", (), {}, {}, command="x" * 200_000))
    print(seed, flush=True)  # acknowledged
    seed += 1
"""


def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    path, draw = tmp_path / "r.jsonl", random.Random(0)
    acknowledged: list[int] = []
    # four at a time write to the same file, and die one by one
    for batch in range(5):
        first = [10_000 * (4 * batch + i) for i in range(4)]
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(seed)], stdout=subprocess.PIPE, text=True)
            for seed in first
        ]
        for writer in writers:
            assert writer.stdout is not None
            acknowledged.append(int(writer.stdout.readline()))  # it is under way
        for writer in writers:
            time.sleep(draw.uniform(0, 0.02))
            os.kill(writer.pid, signal.SIGKILL)
        for writer in writers:
            acknowledged += [int(word) for word in writer.communicate()[0].split("\n")[:-1]]
        found = seeds_in(path)
        assert set(acknowledged) <= set(found)
        assert len(found) == len(set(found))
    append_record(path, record(-1))
    assert seeds_in(path)[-1] == -1


# (d), (e) a place that cannot be written


def is_full(path: Path) -> bool:
    return path.is_char_device() and os.major(path.stat().st_rdev) == 1 and os.minor(path.stat().st_rdev) == 7


@pytest.mark.skipif(not is_full(Path("/dev/full")), reason="needs the device /dev/full")
def test_a_full_disk_is_one_sentence() -> None:
    with pytest.raises(InputError) as caught:
        append_record("/dev/full", record())
    assert str(caught.value) == (
        "/dev/full: cannot write here: No space left on device. Choose another path with --out, or free some space."
    )
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__  # no traceback of the OSError behind it


LIMITED = """
import resource, sys
from spurless.core.errors import InputError
from spurless.core.records import Record, append_record
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for seed in range(10):
    record = Record("erm", seed, {}, {}, {}, {}, {}, "last", (), {}, {}, command="x" * 30_000)
    try:
        append_record(sys.argv[1], record)
    except InputError as error:
        print(seed, error)
        break
"""


def test_a_write_that_the_system_cuts_short_leaves_whole_records(tmp_path: Path) -> None:
    # three records of 30 kB fit in 100 kB; the system takes a part of the fourth before it refuses
    path = tmp_path / "r.jsonl"
    done = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"3 {path}: cannot write here: File too large. Choose another path")
    assert path.read_bytes().endswith(b"}\n")
    assert seeds_in(path) == [0, 1, 2]


def test_a_write_that_fails_half_way_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.jsonl"
    append_record(path, record(1))

    def half(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records, "_write_all", half)
    with pytest.raises(InputError, match="No space left on device"):
        append_record(path, record(2))
    assert path.read_bytes() == lines(1)


def test_a_repair_that_fails_is_a_sentence_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(lines(1)[:-1])

    def full(_descriptor: int, _data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records, "_write_all", full)
    with pytest.raises(InputError, match="cannot write here: No space left on device"):
        append_record(path, record(2))
    assert path.read_bytes() == lines(1)[:-1]


def test_a_sync_that_fails_takes_the_record_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(InputError, match="cannot write here: Input/output error"):
        append_record(tmp_path / "r.jsonl", record(1))
    assert (tmp_path / "r.jsonl").read_bytes() == b""


def test_a_device_that_cannot_be_synced_is_written_all_the_same() -> None:
    append_record("/dev/null", record())


@pytest.mark.parametrize("under", ["r.jsonl", "deep/r.jsonl"])
def test_a_path_under_a_file_is_refused(tmp_path: Path, under: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"r.jsonl: cannot write here: (Not a directory|File exists)"):
        append_record(tmp_path / "file" / under, record())


def test_a_folder_is_no_place_for_a_record(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write here: Is a directory"):
        append_record(tmp_path, record())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_no_file_stays_open_whether_an_append_succeeds_or_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    before = len(list(Path("/proc/self/fd").iterdir()))
    append_record(tmp_path / "r.jsonl", record(1))
    monkeypatch.setattr(records, "_sync", broken)
    with pytest.raises(InputError, match="Input/output error"):
        append_record(tmp_path / "r.jsonl", record(2))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_fields_of_a_row_are_stable() -> None:
    # files outlive versions: a change here needs a new SCHEMA
    assert list(asdict(ROWS[0])) == ["name", "count", "accuracy", "low", "high", "train_count"]
