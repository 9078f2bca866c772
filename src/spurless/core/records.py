"""Records of runs: one JSON line each, appended atomically to a file."""

from __future__ import annotations

import fcntl
import json
import math
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.files import check_not_pipe, unwritable_error

SCHEMA = 1
RENAMED = {"watched-erm": "erm-loss-ratio"}  # old names of methods in records, and the new ones
RENAMED_TRAIN = {"decay_share": "decay_fraction"}  # the same for training settings
RESTORE_HINT = "Delete the line, or restore the file."
START = b'{"'  # first characters of every line


@dataclass(frozen=True)
class GroupRow:
    """Results of one group on the test split; the accuracy of an empty group is None."""

    name: str
    count: int
    accuracy: float | None
    low: float | None
    high: float | None
    train_count: int = 0


@dataclass(frozen=True)
class Record:
    """Settings and results of one run."""

    method: str
    seed: int
    data: dict[str, Any]  # name, options, fingerprint, labels, attributes, counts per split
    model: dict[str, Any]
    """name, options, parameters, flops; without zero weights: kept_parameters, kept_flops, sparsity"""
    config: dict[str, Any]  # configuration of the method
    train: dict[str, Any]  # settings of the training loop
    supervision: dict[str, bool]
    """labels used besides the training labels: train_attributes, val_labels, val_attributes"""
    selection: str
    groups: tuple[GroupRow, ...]
    metrics: dict[str, float | None]  # metrics on the test split; None if undefined
    seconds: dict[str, float]
    peak_memory: int | None = None  # bytes on the accelerator
    warnings: tuple[str, ...] = ()
    history: tuple[dict[str, Any], ...] = ()
    selective: dict[str, Any] = field(default_factory=dict)
    """if the model may abstain: its score, coverage and errors at each target, and the risk-coverage curve"""
    cell: str = ""  # the sweep, plan or claim of the run, and its name there
    key: str = ""  # hash of everything that decides the result; equal keys mean the same run
    command: str = ""
    time: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    commit: str | None = None
    hardware: dict[str, Any] = field(default_factory=dict)
    title: str = ""  # display name of the method; empty in old records
    schema: int = SCHEMA

    @property
    def display_name(self) -> str:
        """Return the title of the method; its name if the record has none."""
        return self.title or self.method

    def to_json(self) -> str:
        """Return the record as one line of JSON; NaN becomes null."""
        return json.dumps(_plain(asdict(self)), ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str | bytes, where: str = "record") -> Record:
        """Parse one line, or raise if it is not a record of this schema."""
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise InputError("the line is not JSON", where=where, hint=RESTORE_HINT) from None
        if not isinstance(row, dict) or row.get("schema") != SCHEMA:
            what, got = "the line is not a record of this version", type(row).__name__
            got = row.get("schema", "none") if isinstance(row, dict) else got
            raise InputError(what, where=where, expected=f"schema {SCHEMA}", got=got)
        known = {f.name for f in fields(cls)}
        _check_kinds(row, where)
        try:
            row["groups"] = tuple(GroupRow(**group) for group in row["groups"])
            row["warnings"], row["history"] = tuple(row["warnings"]), tuple(row["history"])
            row["method"] = RENAMED.get(row["method"], row["method"])
            row["train"] = {RENAMED_TRAIN.get(name, name): value for name, value in row["train"].items()}
            return cls(**{name: value for name, value in row.items() if name in known})
        except (KeyError, TypeError) as error:
            raise InputError(f"the record is incomplete: {error}", where=where) from None


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "object": ((dict,), "an object"),
    "list": ((list,), "a list"),
    "text": ((str,), "text"),
    "flag": ((bool,), "true or false"),
    "integer": ((int,), "an integer"),
    "number": ((int, float), "a finite number"),
}
_FIELD_KINDS: dict[str, tuple[str, ...]] = {
    "text": (
        *("method", "selection", "cell", "key", "command", "time", "title", "groups[].name", "warnings[]"),
        *("data.name", "data.fingerprint", "data.part", "data.labels[]", "data.attributes[]", "model.name"),
    ),
    "text or null": ("commit", "versions.*"),
    "object": (
        *("data", "model", "config", "train", "supervision", "metrics", "seconds", "versions", "hardware"),
        *("data.options", "data.counts", "data.sizes", "model.options", "groups[]", "history[]"),
    ),
    "list": ("groups", "warnings", "history", "data.labels", "data.attributes"),
    "flag": ("supervision.*",),
    "integer": ("seed", "groups[].count", "groups[].train_count", "data.sizes.*"),
    "number": ("seconds.*",),
    "number or null": (
        *("peak_memory", "metrics.*", "groups[].accuracy", "groups[].low", "groups[].high", "model.parameters"),
        *("model.flops", "model.kept_parameters", "model.kept_flops", "model.sparsity"),
    ),
}
"""Kinds of the fields, where present; an invalid ``selective`` is not an error, but left out of pages."""
MAX_INTEGER = 2**63


def _check_kinds(row: dict[str, Any], where: str) -> None:
    """Raise for the first field of another kind; ``a.*`` are the values of an object, ``a[]`` those of a list."""
    for kinds, paths in _FIELD_KINDS.items():
        kind, _, null = kinds.partition(" or ")
        types, expected = _KINDS[kind]
        for path in paths:
            for name, value in _values_at(row, path.replace("[]", ".[]").split(".")):
                if (value is None and null) or (isinstance(value, types) and _is_plain(value, kind)):
                    continue
                what, got = f"{name!r} of the record has the wrong type", json.dumps(value)[:40]
                expected = f"{expected} or null" if null else expected
                raise InputError(what, where=where, expected=expected, got=got, hint=RESTORE_HINT)


def _is_plain(value: Any, kind: str) -> bool:
    """Return whether a number is one: not true or false, nor infinite, nor too large for a page."""
    if kind not in ("integer", "number"):
        return True
    return not isinstance(value, bool) and abs(value) < MAX_INTEGER  # false for NaN


def _values_at(value: Any, parts: list[str], name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield name and value of every field at a path; missing ones, and those in parts of another kind, are left out."""
    if not parts:
        yield name, value
    elif parts[0] == "[]":
        for i, item in enumerate(value if isinstance(value, list) else ()):
            yield from _values_at(item, parts[1:], f"{name}[{i}]")
    elif isinstance(value, dict):
        for key in value if parts[0] == "*" else {parts[0]} & value.keys():
            yield from _values_at(value[key], parts[1:], f"{name}.{key}".removeprefix("."))


def append_record(path: Path | str, record: Record) -> None:
    """Append one record atomically, under a lock; an incomplete last line is repaired first."""
    path = Path(path)
    # an undecodable byte of a file name is a lone surrogate; its backslash form is also its JSON escape
    line = (record.to_json() + "\n").encode(errors="backslashreplace")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError as error:
        raise unwritable_error(path, error) from None
    try:
        # not core.locks: the file itself is locked, so that no lock file appears next to the user's records
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _repair(descriptor)
        size = os.fstat(descriptor).st_size
        try:
            _write_all(descriptor, line)
            _sync(descriptor)
        except OSError:
            with suppress(OSError):  # a device has no length
                os.ftruncate(descriptor, size)
            raise
    except OSError as error:
        raise unwritable_error(path, error) from None
    finally:
        os.close(descriptor)


def read_records(path: Path | str, *, to_continue: bool = False) -> list[Record]:
    """Return the records of a file; raise if a line is not a record.

    An incomplete last line is left out, with a warning unless records will be appended, which repairs that line.
    """
    path = Path(path)
    check_not_pipe(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError("no such file", where=path, expected="a records.jsonl written by spurless") from None
    except OSError as error:
        raise InputError(f"the file cannot be read: {error.strerror or error}", where=path) from None
    *lines, torn = content.split(b"\n")  # bytes, since the line may end within a character
    if _is_json(torn) or not _is_torn(torn):
        lines.append(torn)
    elif torn and not to_continue:
        warnings.warn(f"{path}, line {len(lines) + 1} is incomplete and was left out.", SpurlessWarning, stacklevel=2)
    return [Record.from_json(line, f"{path}, line {n}") for n, line in enumerate(lines, 1) if line.strip()]


def read_record_files(paths: Iterable[Path | str]) -> list[Record]:
    """Return the records of several files, in order; a folder stands for every ``*.jsonl`` in it."""
    return [record for path in paths for file in record_files(Path(path)) for record in read_records(file)]


def record_files(path: Path) -> Iterator[Path]:
    """Yield the records files of a path: every ``*.jsonl`` of a folder, or the file itself."""
    yield from sorted(path.glob("*.jsonl")) if path.is_dir() else [path]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Integral):  # NumPy integers are not int, and its float32 is not float
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value)


def _repair(descriptor: int) -> None:
    """Complete a last line that lacks only its newline; remove one that is incomplete."""
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return
    start, chunk = size, b""
    while start > 0 and b"\n" not in chunk:
        start = max(0, start - (1 << 16))
        chunk = os.pread(descriptor, size - start, start)
    tail = chunk[chunk.rfind(b"\n") + 1 :]
    if _is_json(tail):
        _write_all(descriptor, b"\n")
    else:
        os.ftruncate(descriptor, size - len(tail))


def _is_json(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _is_torn(text: bytes) -> bool:
    """Return whether text may be the start of a record, or zeros after a power failure."""
    return text.startswith(START) or START.startswith(text) or not text.strip(b"\0")


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != 22:  # EINVAL: a pipe or device has nothing to sync
            raise


def is_cut_off(record: Record) -> bool:
    """Return whether training ended by epochs or steps before it reached ``stop_accuracy`` or ``stop_loss``.

    The last stage that follows the rule decides: the loop records the accuracy on train only if it stops by it, so that
    a head that is tuned afterwards does not count; nor does a pruning loop, which records it too.
    """
    accuracy_goal, loss_goal = _number(record.train.get("stop_accuracy")), _number(record.train.get("stop_loss"))
    rows = [row for row in record.history if _number(row.get("loss")) is not None]
    if accuracy_goal is not None:
        rows = [row for row in rows if "train_accuracy" in row and "sparsity" not in row]
    if not rows or (accuracy_goal is None and loss_goal is None):
        return False
    accuracy, loss = _number(rows[-1].get("train_accuracy")), _number(rows[-1]["loss"])
    reached_accuracy = accuracy_goal is not None and accuracy is not None and accuracy >= accuracy_goal
    reached_loss = loss_goal is not None and loss is not None and loss < loss_goal
    return not (reached_accuracy or reached_loss)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < MAX_INTEGER else None
