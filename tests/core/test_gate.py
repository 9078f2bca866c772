"""Tests of gates: which audits fail, for which reasons, and how a test sees them."""

from dataclasses import replace

import pytest

from spurless.core.errors import AuditFailedError, InputError, SpurlessError, UnknownNameError
from spurless.core.findings import Audit, Finding, Gate
from spurless.core.records import GroupRow

USE = Finding("transplants", "The corner is followed", 0.4, True, 0.002, "40 %.", "Repair.")
GROUPS = (GroupRow("cow, sand", 50, 0.62, 0.48, 0.74), GroupRow("cow, grass", 90, 0.9, 0.8, 0.95))
SHORTCUT = Audit((USE,), groups=GROUPS)
SUSPICIOUS = Audit((replace(USE, shows_use=False),), groups=GROUPS)
CLEAN = Audit((replace(USE, flagged=False, p=0.4),), groups=GROUPS)
UNSURE = replace(CLEAN, gaps=("The model makes 2 errors.",))
CHANCE = replace(CLEAN, chance_level_reason="It predicts one class.")


@pytest.mark.parametrize(
    ("fail_on", "failing"),
    [
        (None, ()),
        ("shortcut", (SHORTCUT, CHANCE)),
        ("suspicious", (SHORTCUT, SUSPICIOUS, CHANCE)),
        ("inconclusive", (SHORTCUT, SUSPICIOUS, UNSURE, CHANCE)),
    ],
)
def test_a_gate_fails_for_its_verdict_and_worse_ones(fail_on: str | None, failing: tuple[Audit, ...]) -> None:
    audits = (SHORTCUT, SUSPICIOUS, CLEAN, UNSURE, CHANCE)
    assert tuple(audit for audit in audits if Gate(fail_on).check(audit)) == failing


def test_the_failures_are_the_verdict_and_the_findings_behind_it() -> None:
    other = replace(USE, audit="worst-class", shows_use=False)
    audit = Audit((USE, other))
    assert list(Gate("shortcut").check(audit)) == ["verdict", "transplants"]
    assert list(Gate("suspicious").check(audit)) == ["verdict", "transplants", "worst-class"]
    assert "The model makes 2 errors." in Gate("inconclusive").check(UNSURE)["verdict"]


def test_accepted_findings_do_not_fail() -> None:
    other = replace(USE, audit="worst-class", shows_use=False)
    assert Gate(allow=("transplants",)).check(SHORTCUT) == {}
    assert list(Gate(allow=("transplants",)).check(Audit((USE, other)))) == ["verdict", "worst-class"]


def test_the_measured_accuracy_of_the_worst_group_decides() -> None:
    assert Gate(None, 0.62).check(SHORTCUT) == {}
    failures = Gate(None, 0.63).check(SHORTCUT)
    assert list(failures) == ["worst-group"]
    for part in ("'cow, sand'", "62.0 % of 50", "48.0 to 74.0 %", "63 %"):
        assert part in failures["worst-group"]


def test_without_groups_the_worst_one_cannot_be_checked() -> None:
    with pytest.raises(InputError, match="does not contain"):
        Gate(None, 0.5).check(Audit((USE,)))


def test_invalid_conditions_are_refused() -> None:
    for accuracy in (80, -0.1, float("nan")):
        with pytest.raises(InputError, match="out of range"):
            Gate(None, accuracy)
    with pytest.raises(UnknownNameError):
        Gate("leaky")
    with pytest.raises(InputError, match="'allow' has the wrong type"):
        CLEAN.assert_clean(allow="tokens")
    with pytest.raises(InputError, match="'worst_group' has the wrong type"):
        Gate(worst_group="0.8")  # type: ignore[arg-type]  # what is tested


def test_an_assertion_has_all_reasons_on_lines() -> None:
    CLEAN.assert_clean(worst_group=0.6)
    SHORTCUT.assert_clean(allow=["transplants"])
    with pytest.raises(AssertionError) as caught:
        SHORTCUT.assert_clean(worst_group=0.8)
    assert isinstance(caught.value, AuditFailedError)
    assert isinstance(caught.value, SpurlessError)
    assert len(caught.value.failures) == 3
    assert len(str(caught.value).splitlines()) == 4
