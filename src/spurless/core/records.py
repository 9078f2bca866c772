"""Records: one JSON line per run, appended whole or not at all; nothing else is memory."""

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

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.core.files import unwritable

SCHEMA = 1
START = b'{"'
"""How every line begins."""


@dataclass(frozen=True)
class GroupRow:
    """How one group fared on the test split; an empty group has no accuracy."""

    name: str
    count: int
    accuracy: float | None
    low: float | None
    high: float | None
    train_count: int = 0


@dataclass(frozen=True)
class Record:
    """Everything one run used and found."""

    method: str
    seed: int
    data: dict[str, Any]
    """name, options, fingerprint, labels, attributes, counts per split"""
    model: dict[str, Any]
    """name, options, parameters, flops; what is left where zeros cost nothing: kept_parameters, kept_flops, sparsity"""
    config: dict[str, Any]
    """the method's own configuration"""
    train: dict[str, Any]
    """how the loop walked"""
    supervision: dict[str, bool]
    """which labels were used beyond the training labels: train_attributes, val_labels, val_attributes"""
    selection: str
    groups: tuple[GroupRow, ...]
    metrics: dict[str, float | None]
    """numbers on the test split; a number that does not exist is None"""
    seconds: dict[str, float]
    peak_memory: int | None = None
    """bytes on the accelerator, where there is one"""
    warnings: tuple[str, ...] = ()
    history: tuple[dict[str, Any], ...] = ()
    selective: dict[str, Any] = field(default_factory=dict)
    """where the model may abstain: its score, what was kept and what of it was wrong at each coverage, and a curve"""
    cell: str = ""
    """which cell of which claim or plan this run belongs to"""
    key: str = ""
    """content hash of everything that decides the outcome; equal keys are the same run"""
    command: str = ""
    time: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    commit: str | None = None
    hardware: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    def to_json(self) -> str:
        """Return the record as one line; NaN becomes null, since JSON has none."""
        return json.dumps(_plain(asdict(self)), ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str | bytes, where: str = "record") -> Record:
        """Read one line.

        Raises:
            BadInput: the line is no record of this schema.
        """
        try:
            row = json.loads(line)
        except ValueError:
            raise BadInput("the line is not JSON", where=where, do="Delete the line, or restore the file.") from None
        if not isinstance(row, dict) or row.get("schema") != SCHEMA:
            raise BadInput(
                "the line is not a record of this version",
                where=where,
                expected=f"schema {SCHEMA}",
                got=row.get("schema", "none") if isinstance(row, dict) else type(row).__name__,
            )
        known = {f.name for f in fields(cls)}
        _check_kinds(row, where)
        try:
            row["groups"] = tuple(GroupRow(**group) for group in row["groups"])
            row["warnings"], row["history"] = tuple(row["warnings"]), tuple(row["history"])
            return cls(**{name: value for name, value in row.items() if name in known})
        except (KeyError, TypeError) as error:
            raise BadInput(f"the record is incomplete: {error}", where=where) from None


_KINDS: dict[tuple[type, str], tuple[str, ...]] = {
    (dict, "an object"): (
        "data",
        "model",
        "config",
        "train",
        "supervision",
        "metrics",
        "seconds",
        "versions",
        "hardware",
    ),
    (list, "a list"): ("groups", "warnings", "history"),
    (str, "a text"): ("method", "selection", "cell", "key", "command", "time"),
    (int, "a whole number"): ("seed",),
}
"""What the fields of a line must be, so that whoever reads it need not ask; pages do without an odd ``selective``."""


def _check_kinds(row: dict[str, Any], where: str) -> None:
    for (kind, word), names in _KINDS.items():
        for name in names:
            if name in row and not isinstance(row[name], kind):
                raise BadInput(
                    f"{name!r} of the record is of the wrong kind",
                    where=where,
                    expected=word,
                    got=json.dumps(row[name])[:40],
                    do="Delete the line, or restore the file.",
                )


def append(path: Path | str, record: Record) -> None:
    """Add one record under a lock, whole or not at all; a torn last line is repaired first."""
    path = Path(path)
    # an undecodable byte of a file name is a lone surrogate here; its backslash form is the JSON escape for it
    line = (record.to_json() + "\n").encode(errors="backslashreplace")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _repair(descriptor)
        size = os.fstat(descriptor).st_size
        try:
            _write_all(descriptor, line)
            _sync(descriptor)
        except OSError:
            _truncate(descriptor, size)
            raise
    except OSError as error:
        raise unwritable(path, error) from None
    finally:
        os.close(descriptor)


def read(path: Path | str, *, to_continue: bool = False) -> list[Record]:
    """Return every whole record of a file; a torn last line was never acknowledged and is left out, with a warning.

    Args:
        path: the file.
        to_continue: more is appended to it, which mends that line, and its run is made again: no word is needed.

    Raises:
        BadInput: a line is no record.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise BadInput("no such file", where=path, expected="a records.jsonl written by spurless") from None
    except OSError as error:
        raise BadInput(f"the file cannot be read: {error.strerror or error}", where=path) from None
    *lines, torn = content.split(b"\n")  # bytes: a tear may lie within a character
    if _is_json(torn) or not _is_torn(torn):
        lines.append(torn)
    elif torn and not to_continue:
        warnings.warn(f"{path}, line {len(lines) + 1} is cut short and was left out.", SpurlessWarning, stacklevel=2)
    return [Record.from_json(line, f"{path}, line {n}") for n, line in enumerate(lines, 1) if line.strip()]


def read_all(paths: Iterable[Path | str]) -> list[Record]:
    """Return the records of several files, in order; a folder stands for every ``*.jsonl`` in it."""
    return [record for path in paths for file in files_in(Path(path)) for record in read(file)]


def files_in(path: Path) -> Iterator[Path]:
    """Yield the files of records that a path stands for."""
    yield from sorted(path.glob("*.jsonl")) if path.is_dir() else [path]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Integral):  # NumPy's whole numbers are no int, and its single precision no float
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value)


def _repair(descriptor: int) -> None:
    """Finish a last line that lost only its newline; cut one that is torn, since it was never acknowledged."""
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
    except ValueError:
        return False


def _is_torn(text: bytes) -> bool:
    """Return whether text may be the beginning of a record, or zeros that a power cut left; other text is not ours."""
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


def _truncate(descriptor: int, size: int) -> None:
    with suppress(OSError):  # a device has no length; the write itself failed, so nothing was kept
        os.ftruncate(descriptor, size)


def cut_off(record: Record) -> bool:
    """Return whether training ended by its epochs or steps before the end it was given, where one was.

    That end is ``stop_accuracy`` or ``stop_loss``. The last stage counts that was under the rule: the loop tells the
    accuracy on train only where it stops by it, so that a head that is tuned afterwards says nothing of it; a loop that
    prunes tells it too, and has an end of its own.
    """
    least, most = _number(record.train.get("stop_accuracy")), _number(record.train.get("stop_loss"))
    rows = [row for row in record.history if _number(row.get("loss")) is not None]
    if least is not None:
        rows = [row for row in rows if "train_accuracy" in row and "sparsity" not in row]
    if not rows or (least is None and most is None):
        return False
    right, lost = _number(rows[-1].get("train_accuracy")), _number(rows[-1]["loss"])
    by_accuracy = least is not None and right is not None and right >= least
    by_loss = most is not None and lost is not None and lost < most
    return not (by_accuracy or by_loss)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
