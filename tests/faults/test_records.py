"""Hand-edited records: every field with values of every other kind, read and shown on a page."""

import json
import warnings
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import spurless as sp
from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.records import Record, is_cut_off, read_records
from spurless.reporting.page import render

WRONG: tuple[Any, ...] = (
    None, True, -1, 0, 0.5, 10**30, 10**400, float("inf"), float("nan"), "", "x", "\ud800", "<script>", [], [1], ["x"],
    [None], [[]], {}, {"x": 1}, {"x": None}, {"": [{}]},
)  # fmt: skip


@cache
def valid_record() -> dict[str, Any]:
    data = sp.load("planted", n_train=60, n_val=60, n_test=60)
    train = {"epochs": 3, "stop_accuracy": 0.99}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpurlessWarning)
        fitted = sp.fit("erm", sp.build("linear", data), data, train=train, coverages=(0.5, 1.0))
    record: dict[str, Any] = json.loads(fitted.record.to_json())
    return record | {"peak_memory": 1000, "commit": "abc"}


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value; of a list, only the first item."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, part in items:
        yield from paths_of(part, (*path, key))


def with_value(path: tuple[Any, ...], value: Any) -> str:
    row = deepcopy(valid_record())
    target: Any = row
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return json.dumps(row)


def show(record: Record) -> None:
    """Use a record as pages and sweeps do."""
    other = Record.from_json(json.dumps(valid_record() | {"seed": 1}))
    assert "</html>" in render([record, other])
    is_cut_off(record)
    assert Record.from_json(record.to_json()) is not None


TOP_LEVEL = ("data", "model", "config", "train", "supervision", "metrics", "seconds", "history", "selective", "groups")


@pytest.mark.slow
@pytest.mark.parametrize("field", [*TOP_LEVEL, "the rest"])
def test_a_wrong_value_is_refused_with_its_line_or_shown(field: str) -> None:
    for path in paths_of(valid_record()):
        if path[0] != field and (field != "the rest" or path[0] in TOP_LEVEL):
            continue
        for value in WRONG if len(path) < 3 else WRONG[::3]:
            try:
                record = Record.from_json(with_value(path, value), "line 1")
            except InputError as error:
                if error.where != "line 1":
                    raise
            else:
                show(record)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("peak_memory",), "much"), (("history",), {}), (("history",), [1]), (("data", "options"), [1]),
        (("data", "fingerprint"), 3), (("seconds",), []), (("seconds",), {"total": "x"}), (("groups",), {}),
        (("groups",), [3]), (("groups", 0, "count"), "many"), (("groups", 0, "accuracy"), True), (("seed",), 0.5),
        (("metrics", "average"), "good"), (("metrics", "average"), 10**400), (("supervision",), {"val_labels": 1}),
        (("data", "labels"), "ab"), (("model", "parameters"), []), (("warnings",), [3]), (("commit",), 3),
    ],
)  # fmt: skip
def test_the_error_names_file_line_and_field(path: tuple[Any, ...], value: Any, tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text(json.dumps(valid_record()) + "\n" + with_value(path, value) + "\n")
    with pytest.raises(InputError) as caught:
        read_records(file)
    assert caught.value.where == f"{file}, line 2"
    assert str(path[0]) in caught.value.what
    assert caught.value.expected is not None


def test_deeply_nested_json_is_not_a_record(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text("[" * 100_000 + "]" * 100_000 + "\n" + json.dumps(valid_record()) + "\n")
    with pytest.raises(InputError) as caught:
        read_records(file)
    assert caught.value.where == f"{file}, line 1"
    file.write_text('{"data":' * 100_000)
    with pytest.warns(SpurlessWarning, match="line 1 is incomplete"):
        assert read_records(file) == []
