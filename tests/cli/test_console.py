"""The console: tables whole at 80 columns, shares as percentages, no bars in a log."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from spurless.cli import console
from spurless.cli.outputs import check_appendable, check_outputs
from spurless.core.errors import InputError
from spurless.core.records import GroupRow, Record


def record(groups: int) -> Record:
    rows = tuple(GroupRow(f"group {i}", 10, i / 100, 0.0, 1.0, 5) for i in range(groups))
    empty = GroupRow("nobody", 0, None, None, None)
    metrics: dict[str, float | None] = {"average": 0.9, "balanced_average": 0.5, "worst_group": 0.0, "gap": 0.9}
    facts: dict[str, Any] = {"model": {}, "config": {}, "train": {}, "supervision": {}, "seconds": {}}
    return Record("erm", 1, {"name": "[b]own[/b]"}, selection="last", groups=(*rows, empty), metrics=metrics, **facts)


def test_record_shows_every_group_that_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    console.show_record(record(3))
    out = capsys.readouterr().out
    assert out.splitlines()[0].strip() == "erm on [b]own[/b], seed 1"
    assert "group 2" in out
    assert "nobody" not in out
    assert out.splitlines()[-2:] == ["average 90.0 %  balanced over groups 50.0 %", "worst group 0.0 %  gap 90.0 %"]


def test_record_shows_the_three_averages_and_what_an_example_of_the_worst_group_is_worth(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = record(3)
    console.show_record(replace(given, metrics=given.metrics | {"adjusted_average": 0.95, "resolution": 0.1}))
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "average 90.0 %  adjusted average 95.0 %  balanced over groups 50.0 %",
        "worst group 0.0 % (one example: 10.0 points)  gap 90.0 %",
    ]


def test_record_shows_what_is_left_of_a_network_only_where_something_is_zero(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    counted = {"parameters": 2000, "kept_parameters": 500, "sparsity": 0.8, "flops": 9000, "kept_flops": 3000}
    console.show_record(replace(record(3), model=counted))
    *_, first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("size       80.0 % of weights are zero")
    assert second.startswith(" " * 11)
    assert re.findall(r"[\d,]+ of [\d,]+", f"{first} {second.strip()}") == ["500 of 2,000", "3,000 of 9,000"]
    console.show_record(replace(record(3), model=counted | {"sparsity": 0.0, "kept_parameters": 2000}))
    assert "size" not in capsys.readouterr().out


def test_record_of_many_groups_shows_the_worst(capsys: pytest.CaptureFixture[str]) -> None:
    console.show_record(record(30))
    out = capsys.readouterr().out
    assert "(the worst 20 of 30 groups)" in " ".join(out.split())
    assert "group 19 " in out
    assert "group 20 " not in out


def test_table_never_breaks_a_name_or_a_number(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    console.print_table(
        "t", ("name", "text", "n"), [["a-name-of-twenty-odd-letters", "word " * 20, "123456"]], right=(2,)
    )
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert "a-name-of-twenty-odd-letters" in lines[2]
    assert lines[2].endswith("123456")


def test_numbers_of_a_table_that_does_not_fit_stay_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = ["44.6 ± 68.5", "2.9 ± 37.4", "38.3 ± 21.2", "46.7 ± 127.1"]
    for columns in ("80", "30"):
        monkeypatch.setenv("COLUMNS", columns)
        headings = ("value", "unbiased", "worst group", "average", "validation", "")
        row = ["schedule=warmup-stable-decay, momentum=0.9", *numbers, "2 diverged, stopped"]
        console.print_table("t", headings, [row], right=(1, 2, 3, 4))
        lines = capsys.readouterr().out.splitlines()
        assert all(heading in lines[1] for heading in headings)
        assert all(number in lines[2] for number in numbers)
        assert "".join(line.split("  ")[0].strip() for line in lines[2:]).replace(" ", "") == row[0].replace(" ", "")


def test_fact_is_no_wider_than_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    console.print_fact("word", "text " * 30)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 50
    assert all(line.startswith(" " * 11 + "text") for line in lines[1:])


def test_bar_is_drawn_for_a_person_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress_bar() as progress:
        assert progress is None  # a log
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with console.progress_bar(quiet=True) as progress:
        assert progress is None
    with console.progress_bar() as progress:
        progress("train", 1, 10, "loss 1")
        progress("train", 2, 10, "loss 0.5")
        progress("again", 1, 5, "")
    assert capsys.readouterr().out == ""


def test_file_that_cannot_be_appended_to_is_refused_and_others_are_not_changed(tmp_path: Path) -> None:
    (tmp_path / "there").write_text(record(2).to_json())
    check_appendable(tmp_path / "there")
    check_appendable(tmp_path / "new" / "file")
    assert (tmp_path / "there").read_text() == record(2).to_json()
    assert not (tmp_path / "new" / "file").exists()
    for place in (tmp_path / "there" / "under", tmp_path):
        with pytest.raises(InputError, match="cannot write"):
            check_appendable(place)


def test_records_are_not_appended_to_something_else(tmp_path: Path) -> None:
    for text in ("y,x\n1,2\n", "one line", '{"a": 1}\n'):
        (tmp_path / "other").write_text(text)
        with pytest.raises(InputError, match=r"cannot append records to this file: .*other, line 1"):
            check_appendable(tmp_path / "other")
    (tmp_path / "torn").write_text(record(2).to_json()[:40])  # the next record mends it
    check_appendable(tmp_path / "torn")


def test_a_record_that_abstains_shows_what_is_kept_below_its_groups(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"target": 1.0, "coverage": 0.992, "error": 0.1, "worst_group_error": 0.3, "worst_group": "[b]dog[/b], in"},
        {"target": 0.8, "coverage": 0.0, "error": None, "worst_group_error": None, "worst_group": ""},
    ]
    console.show_record(replace(record(2), selective={"score": "product", "rows": rows, "curve": []}))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines.index("selective prediction by the score 'product'") > lines.index(
        "group 1 1.0 % 0.0 % to 100.0 % 10 5"
    )
    assert lines[-3:] == [
        "target coverage coverage error worst-group error worst group",
        "100.0 % 99.2 % 10.0 % 30.0 % [b]dog[/b], in",
        "80.0 % 0.0 % n/a n/a n/a",
    ]


def test_outputs_must_differ_and_not_overwrite_an_input(tmp_path: Path) -> None:
    weights, page = tmp_path / "w.safetensors", tmp_path / "a.html"
    weights.touch()
    check_outputs([tmp_path / "s.csv"], "--out, --export", page=page, records=tmp_path / "r.jsonl", inputs=[weights])
    for outputs in ([page], [tmp_path / "a.json"]):
        with pytest.raises(InputError, match=r"two outputs have the same path.*--out, --export"):
            check_outputs(outputs, "--out, --export", page=page)
    for records in (page, tmp_path / "a.json"):
        with pytest.raises(InputError, match="two outputs have the same path"):
            check_outputs([], "--out", page=page, records=records)
    with pytest.raises(InputError, match="two outputs have the same path"):
        check_outputs([], "--out", page=tmp_path / "a.json")
    with pytest.raises(InputError, match="would be overwritten") as error:
        check_outputs([weights], "--out, --export", page=page, inputs=[weights])
    assert error.value.where == weights
    (tmp_path / "b.json").mkdir()
    with pytest.raises(InputError, match=r"b\.json: cannot write"):
        check_outputs([], "--out", page=tmp_path / "b.html")


HOSTILE = "\x1b[2J\x1b]0;title\x07\r[red]x[/foo]\x9b31m\u202ecba\u2028\udc80\n"
ESCAPED = r"\x1b[2J\x1b]0;title\x07\r[red]x[/foo]\x9b31m\u202ecba\u2028\udc80\n"


def test_control_characters_are_shown_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    console.print_text(HOSTILE)
    console.print_table(HOSTILE, (HOSTILE,), [(HOSTILE,)])
    console.print_paragraph(HOSTILE.strip())
    lines = [line.strip() for line in capsys.readouterr().out.split("\n")]
    assert lines == [*[ESCAPED] * 4, ESCAPED.removesuffix(r"\n"), ""]


def test_json_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    names = {"name": HOSTILE, "umlaut": "ä"}
    console.print_json(json.dumps(names, ensure_ascii=False, indent=1) + "\n")
    out = capsys.readouterr().out
    assert json.loads(out) == names
    assert "ä" in out
    assert not set(out) & set("\x1b\x9b\u202e\u2028\udc80")


def test_progress_shows_markup_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with console.progress_bar() as progress:
        progress("[/foo]\x1b[2J", 1, 2, "[/bar]\n")
    assert r"[/foo]\x1b[2J" in terminal.getvalue()
    assert r"[/bar]\n" in terminal.getvalue()


def test_names_of_classes_and_errors_are_escaped(cli: Callable[..., Any], csv: Callable[..., Path]) -> None:
    table = csv(y=["\x1b[2Jcat" if i % 2 else "[/dog]" for i in range(60)])
    columns = ("--label", "y", "--attribute", "place", "--split", "split", "--features", "x1,x2")
    result = cli("fit", "erm", "--data", table, *columns, "--steps", 3, "--model", "mlp")
    assert result.status == 0, result
    assert r"\x1b[2Jcat, in" in result.out
    assert "[/dog], in" in result.out
    refused = cli("fit", "erm", "--data", "no\x1b[2Jsuch")
    assert refused.status == 2
    assert "\x1b" not in result.out + result.err + refused.out + refused.err


def test_a_file_name_that_is_not_text_is_printed_escaped(cli: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = TextIOWrapper(BytesIO(), "utf-8")
    monkeypatch.setattr(sys, "stdout", out)
    data = ("--data", "planted", "-D", "n_train=40", "-D", "n_val=20", "-D", "n_test=20")
    result = cli(
        "fit", "erm", *data, "--model", "mlp", "--steps", 2, "--device", "cpu", "--quiet", "--out", here / "\udcff"
    )
    assert result.status == 0
    out.seek(0)
    assert "\\udcff" in out.read()
