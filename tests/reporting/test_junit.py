"""Tests of JUnit XML: a case per condition and audit, well-formed whatever the names are."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from spurless.core.findings import Audit, Finding, Gate
from spurless.core.records import GroupRow
from spurless.reporting.junit import junit_xml, write_junit

USE = Finding("transplants", "The corner is followed", 0.4, True, 0.002, "40 %.", "Repair.")
CLEAR = replace(USE, audit="tokens", flagged=False, p=0.4)
SKIPPED = replace(USE, audit="suspects", flagged=False, p=None)
AUDIT = Audit(
    (USE, CLEAR, SKIPPED), facts={"seconds": {"tokens": 1.5}}, groups=(GroupRow("cow", 50, 0.62, 0.48, 0.74),)
)


def test_a_case_per_condition_and_audit(tmp_path: Path) -> None:
    root = ElementTree.parse(write_junit(tmp_path / "a.xml", AUDIT, Gate("shortcut", 0.8))).getroot()
    cases = {case.get("name"): case for case in root.iter("testcase")}
    kinds = {name: [child.tag for child in case] for name, case in cases.items()}
    assert kinds == {
        "verdict": ["failure"],
        "worst-group": ["failure"],
        "transplants": ["failure"],
        "tokens": ["system-out"],
        "suspects": ["skipped"],
    }
    assert {key: root.get(key) for key in ("tests", "failures", "skipped", "errors")} == {
        "tests": "5",
        "failures": "3",
        "skipped": "1",
        "errors": "0",
    }
    assert cases["tokens"].get("time") == "1.5"


def test_only_the_conditions_of_the_gate_are_cases() -> None:
    root = ElementTree.fromstring(junit_xml(AUDIT, Gate(None, 0.5)))
    assert [case.get("name") for case in root.iter("testcase")] == ["worst-group", "transplants", "tokens", "suspects"]
    assert not list(root.iter("failure"))


def test_any_name_is_well_formed() -> None:
    name = "<a>&\"']]>\x00\x1b\ufffe\ud800 \U0001f404"
    hostile = replace(USE, title=name, because=name)
    audit = replace(AUDIT, findings=(hostile,), facts={"model": name, "data": name})
    root = ElementTree.fromstring(junit_xml(audit, Gate()).encode())
    message = next(case[0].get("message") or "" for case in root.iter("testcase") if case.get("name") == "transplants")
    assert message.startswith("<a>&\"']]>\ufffd\ufffd\ufffd\ufffd \U0001f404")
