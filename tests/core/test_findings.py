"""Findings: a verdict needs use, shown beyond the chance that many questions have."""

from dataclasses import replace

import pytest

from spurless.core.findings import Audit, Finding

USE = Finding("slices", "mistakes share something", 0.4, True, 0.002, "because", "do this")


def test_a_severity_is_a_share() -> None:
    with pytest.raises(ValueError, match="severity"):
        replace(USE, severity=1.2)


def test_use_that_is_shown_is_the_verdict() -> None:
    assert Audit((USE,)).verdict == "shortcut"
    assert Audit((USE,)).confirmed == (USE,)


def test_presence_alone_is_only_worth_a_look() -> None:
    present = replace(USE, shows_use=False)
    assert Audit((present,)).verdict == "suspicious"
    assert Audit((present,)).confirmed == ()


def test_nothing_flagged_is_no_sign() -> None:
    assert Audit((replace(USE, flagged=False, p=0.3),)).verdict == "none-found"
    seen = replace(USE, flagged=False, p=0.3, shows_use=False)
    for nothing_asked in ((), (replace(USE, flagged=False, p=None),), (seen,)):
        assert Audit(nothing_asked).verdict == "inconclusive"


def test_one_of_many_must_be_rarer_than_one_alone() -> None:
    lucky = replace(USE, p=0.02)
    others = [replace(USE, audit=f"other {i}", flagged=False, p=0.5) for i in range(3)]
    assert Audit((lucky,)).verdict == "shortcut"
    assert Audit((lucky, *others)).verdict == "suspicious"  # 4 * 0.02 is above 0.05
    assert Audit((USE, *others)).confirmed == (USE,)


def test_holm_goes_on_from_the_rarest() -> None:
    second = replace(USE, audit="second", p=0.02, severity=0.9)
    third = replace(USE, audit="third", p=0.04)
    assert [f.audit for f in Audit((USE, second, third)).confirmed] == ["second", "slices", "third"]
    worse = replace(third, p=0.06, flagged=False)
    assert [f.audit for f in Audit((USE, second, worse)).confirmed] == ["second", "slices"]


def test_a_small_effect_is_not_proven_however_rare() -> None:
    assert Audit((replace(USE, flagged=False),)).confirmed == ()


def test_what_was_not_asked_counts_for_nothing() -> None:
    unasked = replace(USE, audit="none", p=None, flagged=False)
    lucky = replace(USE, p=0.04)
    assert Audit((lucky, unasked)).confirmed == (lucky,)
