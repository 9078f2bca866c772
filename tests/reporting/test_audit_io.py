"""Tests of reading an audit back: the same verdict and the same findings, and no audit is a sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spurless.core.errors import InputError
from spurless.core.findings import Audit, Finding, Suspect
from spurless.core.records import GroupRow
from spurless.reporting.audit_text import audit_json, read_audit, write_json

USE = Finding("slices", "Mistakes share grass", 0.4, True, 0.002, "40 %", "Repair.", shortcut="grass", rows=(7, 3))
AUDIT = Audit(
    (USE, replace(USE, audit="table", shows_use=False, p=None, flagged=False, shortcut=None, numbers={"gap": 0.5})),
    (Suspect(7, "cow", "camel", 0.9, True, "sand", "images/7.jpg"),),
    {"model": "resnet18", "labels": ["cow", "camel"]},
    ("Few were seen.",),
    0.1,
    groups=(GroupRow("cow, sand", 5, 0.6, 0.2, 0.9),),
)


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    again = read_audit(write_json(tmp_path / "audit.json", AUDIT))
    assert again == AUDIT
    assert again.verdict == "shortcut"
    assert audit_json(again) == audit_json(AUDIT)


def test_a_model_that_guesses_still_does(tmp_path: Path) -> None:
    present = replace(USE, shows_use=False)
    guessing = replace(AUDIT, findings=(present,), chance_level_reason="The model says 'cow' of every example.")
    again = read_audit(write_json(tmp_path / "audit.json", guessing))
    assert again.verdict == guessing.verdict == "inconclusive"
    assert replace(guessing, chance_level_reason=None).verdict == "suspicious"
    assert audit_json(again) == audit_json(guessing)


def test_numbers_that_were_none_are_left_out(tmp_path: Path) -> None:
    odd = replace(AUDIT, findings=(replace(USE, numbers={"gap": float("nan"), "n": 3.0}),))
    (finding,) = read_audit(write_json(tmp_path / "audit.json", odd)).findings
    assert finding.numbers == {"n": 3.0}


@pytest.mark.parametrize(
    ("old", "changes", "verdict"),
    [
        ("leans", {}, "shortcut"),
        ("look", {"shows_use": False}, "suspicious"),
        ("none", {"flagged": False}, "none-found"),
        ("unasked", {"flagged": False, "p": None}, "inconclusive"),
    ],
)
def test_audits_of_older_versions_can_be_read(tmp_path: Path, old: str, changes: dict[str, Any], verdict: str) -> None:
    finding = replace(USE, **changes)
    content = json.loads(audit_json(replace(AUDIT, findings=(finding,))))
    for row in content["findings"]:
        row["proven"] = row.pop("confirmed")
    (tmp_path / "old.json").write_text(json.dumps(content | {"verdict": old}))
    again = read_audit(tmp_path / "old.json")
    assert again.findings == (finding,)
    assert again.verdict == verdict


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "the audit cannot be read"),
        ("[]", "this is not an audit of this version"),
        ('{"schema": 9, "verdict": "none"}', "this is not an audit of this version"),
        ('{"schema": 1, "fixed": true}', "this is not an audit of this version"),
        ('{"schema": 1, "verdict": "none"}', "the audit is incomplete: 'findings'"),
        (json.dumps(json.loads(audit_json(AUDIT)) | {"findings": [{}]}), "the audit is incomplete"),
        (json.dumps(json.loads(audit_json(AUDIT)) | {"suspects": [{"row": 1}]}), "the audit is incomplete"),
    ],
)
def test_what_is_no_audit_is_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError, match=sentence):
        read_audit(tmp_path / "a.json")
    with pytest.raises(InputError, match="no such file"):
        read_audit(tmp_path / "b.json")
