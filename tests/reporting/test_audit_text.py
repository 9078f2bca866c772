"""Tests of the words of an audit: each verdict in plain words, JSON without holes, a list that no spreadsheet runs."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spurless.core.errors import InputError
from spurless.core.figures import Picture
from spurless.core.findings import Audit, Finding, Suspect
from spurless.reporting.audit_text import (
    COLUMNS,
    SCHEMA,
    STATE_MEANINGS,
    STATES,
    audit_json,
    describe_p,
    finding_state,
    summarize_audit,
    suspects_csv,
    write_json,
    write_suspects,
)

USE = Finding("slices", "Mistakes share something", 0.4, True, 0.002, "40 %", "Repair the head.", shortcut="grass")
QUIET = replace(USE, audit="quiet", title="Nothing here", flagged=False, p=0.4, severity=0.1, shortcut=None)
SUSPECT = Suspect(7, "cow", "camel", 0.9, True, "sand", "images/7.jpg")


def test_use_that_is_shown_is_said_with_its_name_its_chance_and_its_remedy() -> None:
    said = summarize_audit(Audit((USE, QUIET)))
    assert said.kind == "shortcut"
    assert said.headline == "This model uses a shortcut: “grass”."
    assert said.what == "Mistakes share something."
    assert said.certainty == (
        "1 of 2 tests of use is significant, after correction for their number. "
        "Chance alone gives this result in fewer than 1 of 100 cases (p = 0.002)."
    )
    assert said.next_step == "Repair the head."


def test_a_shortcut_without_a_name_and_others_beside_it() -> None:
    said = summarize_audit(Audit((replace(USE, shortcut=None), replace(USE, audit="b", severity=0.1))))
    assert said.headline == "This model uses a shortcut."
    assert said.what == "Mistakes share something. 1 other test also confirmed use."
    assert said.certainty.startswith("2 of 2 tests of use are significant")
    assert "correction" not in summarize_audit(Audit((USE,))).certainty


def test_what_is_only_present_is_worth_a_look_and_no_more() -> None:
    said = summarize_audit(Audit((replace(USE, shows_use=False), QUIET)))
    assert said.kind == "suspicious"
    assert said.headline == "Suspicious, but use of a shortcut is not confirmed."
    assert "does not show that the model uses it" in said.certainty


def test_luck_among_many_questions_is_said_to_be_that() -> None:
    lucky = replace(USE, p=0.03)
    louder = replace(USE, audit="present", title="Something is present", shows_use=False, severity=0.9)
    said = summarize_audit(Audit((louder, lucky, QUIET)))
    assert said.kind == "suspicious"
    assert said.what == "Mistakes share something."  # use comes before what is louder and only present
    assert said.certainty.startswith("By itself it is significant, but not after correction for 2 tests.")
    assert "about 3 of 100" in said.certainty


def test_no_sign_is_no_proof() -> None:
    said = summarize_audit(Audit((QUIET,)))
    assert (said.kind, said.headline) == ("none-found", "No sign of a shortcut.")
    assert said.what.startswith("1 test of use was run")
    assert "does not prove" in said.certainty
    assert summarize_audit(Audit((QUIET, QUIET))).what.startswith("2 tests of use were run")


def test_of_a_model_that_guesses_that_is_the_headline_and_whatever_is_flagged_is_no_use() -> None:
    flagged = replace(QUIET, flagged=True, p=0.002, shows_use=False)
    found = Audit((QUIET, flagged), chance_level_reason="The model says 'a' of every example.")
    said = summarize_audit(found)
    assert (said.kind, said.headline) == (
        "inconclusive",
        "This audit is inconclusive: the model is not better than guessing.",
    )
    assert said.what == "The model says 'a' of every example."
    assert said.next_step.startswith("Train it first")
    shown = replace(found, findings=(replace(flagged, shows_use=True),))
    assert summarize_audit(shown).kind == "shortcut"  # what it says follows something, whatever it has learnt


def test_where_nothing_could_be_asked_there_is_no_good_news() -> None:
    said = summarize_audit(Audit((replace(QUIET, p=None),)))
    assert (said.kind, said.headline) == ("inconclusive", "This audit is inconclusive.")
    assert said.what == "No test of use was possible with these examples."
    assert summarize_audit(Audit(())).what == "No test was run."
    assert (
        summarize_audit(Audit((replace(QUIET, shows_use=False),))).kind == "inconclusive"
    )  # that a class is no worse clears nobody


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "confirmed"),
        ({"p": 0.04}, "unsure"),  # two questions: 0.04 is not below 0.05 / 2
        ({"shows_use": False}, "present"),
        ({"flagged": False}, "small"),
        ({"flagged": False, "p": 0.05}, "small"),
        ({"flagged": False, "p": 0.06}, "chance"),
        ({"flagged": False, "p": None}, "inconclusive"),
    ],
)
def test_what_may_be_said_of_a_finding(changes: dict[str, Any], expected: str) -> None:
    finding = replace(USE, **changes)
    assert finding_state(finding, Audit((finding, QUIET))) == expected


def test_every_state_has_words() -> None:
    assert list(STATES) == list(STATE_MEANINGS)
    assert len(set(STATES.values())) == len(STATES) == 6


@pytest.mark.parametrize(
    ("p", "words"),
    [
        (0.0004, "in fewer than 1 of 1,000 cases (p = 0.0004)"),
        (0.001, "in fewer than 1 of 100 cases (p = 0.001)"),
        (0.0099, "in fewer than 1 of 100"),
        (0.01, "in about 1 of 100 cases (p = 0.01)"),
        (0.406, "in about 41 of 100 cases (p = 0.406)"),
        (1.0, "nearly always (p = 1)"),
    ],
)
def test_a_p_in_words(p: float, words: str) -> None:
    assert words in describe_p(p)


def test_where_there_is_no_p_it_is_said() -> None:
    assert describe_p(None) == describe_p(float("nan")) == "There is no p-value."


def test_json_holds_everything_but_the_pictures(pixel: bytes) -> None:
    picture = Picture("t", "c", pixel, "a")
    finding = replace(USE, numbers={"gap": 0.4, "odd": float("nan")}, rows=(3, 1), items=(picture,))
    facts = {"seed": np.int64(3), "size": np.float32(0.5), "labels": ("a", "b"), "path": Path("x"), "on": True}
    audit = Audit((finding, QUIET), (replace(SUSPECT, picture=picture, heat=picture),), facts, ("a limit",), 0.1)
    text = audit_json(audit)
    found = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert list(found) == [
        "schema",
        "verdict",
        "headline",
        "level",
        "guesses",
        "gaps",
        "groups",
        "findings",
        "suspects",
        "facts",
        "limits",
        "health",
    ]
    assert (found["schema"], found["verdict"], found["level"]) == (SCHEMA, "shortcut", 0.1)
    first, second = found["findings"]
    assert (first["confirmed"], second["confirmed"]) == (True, False)
    assert first["numbers"] == {"gap": 0.4, "odd": None}
    assert first["rows"] == [3, 1]
    assert {k: first[k] for k in ("audit", "title", "severity", "flagged", "p", "because", "remedy")} == {
        "audit": "slices",
        "title": "Mistakes share something",
        "severity": 0.4,
        "flagged": True,
        "p": 0.002,
        "because": "40 %",
        "remedy": "Repair the head.",
    }
    assert found["suspects"] == [
        {
            "row": 7,
            "file": "images/7.jpg",
            "label": "cow",
            "predicted": "camel",
            "attribute": "sand",
            "score": 0.9,
            "suspected": True,
            "text": None,
        }
    ]
    assert found["facts"] == {"seed": 3, "size": 0.5, "labels": ["a", "b"], "path": "x", "on": True}
    assert found["limits"] == ["a limit"]
    assert "png" not in text
    assert text == audit_json(audit)


def test_json_has_the_same_keys_however_little_there_is() -> None:
    full, empty = json.loads(audit_json(Audit((USE,), (SUSPECT,)))), json.loads(audit_json(Audit(())))
    assert list(full) == list(empty)
    assert list(full["findings"][0]) == list(json.loads(audit_json(Audit((QUIET,))))["findings"][0])


def test_json_keeps_hostile_strings_as_they_are(tmp_path: Path) -> None:
    odd = 'a"\\</script>\n\u2028\ud800🐄'
    path = write_json(tmp_path / "deep" / "a.json", Audit((replace(USE, title=odd),)))
    assert json.loads(path.read_text(encoding="utf-8"))["findings"][0]["title"] == odd
    assert list(path.parent.iterdir()) == [path]


def rows(audit: Audit) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(suspects_csv(audit), newline="")))


def test_the_list_has_a_row_for_each_suspect() -> None:
    plain = replace(SUSPECT, row=1, attribute=None, file=None, suspected=False, score=0.25)
    assert rows(Audit((), (SUSPECT, plain))) == [
        dict(zip(COLUMNS, ("7", "images/7.jpg", "cow", "camel", "sand", "0.9", "true"), strict=True)),
        dict(zip(COLUMNS, ("1", "", "cow", "camel", "", "0.25", "false"), strict=True)),
    ]
    assert suspects_csv(Audit(())) == "row,file,label,predicted,attribute,score,suspected\r\n"


@pytest.mark.parametrize(
    "risky", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "  =1", "\uff1d1", '=HYPERLINK("x")']
)
def test_no_cell_begins_a_formula(risky: str) -> None:
    (row,) = rows(Audit((), (Suspect(0, risky, risky, 0.5, True, risky, risky),)))
    assert [row[key] for key in ("file", "label", "predicted", "attribute")] == [f"'{risky}"] * 4


@pytest.mark.parametrize(
    "harmless", ["a=b", "a,b", 'say "cow"', "two\nlines", "a\rb", "'quoted'", "", "🐄", "x" * 10_000]
)
def test_other_names_stay_as_they_are(harmless: str) -> None:
    (row,) = rows(Audit((), (replace(SUSPECT, label=harmless, file=harmless),)))
    assert (row["label"], row["file"]) == (harmless, harmless)


def test_names_that_are_no_unicode_do_not_stop_the_writing(tmp_path: Path) -> None:
    path = write_suspects(tmp_path / "s.csv", Audit((), (replace(SUSPECT, file="\udce9.jpg"),)))
    assert "\\udce9.jpg" in path.read_text(encoding="utf-8")


def test_a_score_that_is_no_number_is_null() -> None:
    (row,) = rows(Audit((), (replace(SUSPECT, score=float("nan")),)))
    assert row["score"] == "null"


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    for write in (write_json, write_suspects):
        with pytest.raises(InputError, match="cannot write"):
            write(tmp_path, Audit(()))
