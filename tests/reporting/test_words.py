"""Tests of numbers and names as they are written."""

from __future__ import annotations

import pytest

from spurless.reporting.arms import Estimate
from spurless.reporting.words import MINUS, duration, listed, name, percent, plain, plural, points, signed, span


@pytest.mark.parametrize(("share", "text"), [(0.0, "0.0 %"), (1.0, "100.0 %"), (-1e-9, "0.0 %"), (float("nan"), "n/a")])
def test_percent(share: float, text: str) -> None:
    assert percent(share) == text


def test_missing_is_one_word_everywhere() -> None:
    assert (
        percent(None) == points(None) == signed(None) == plain(None) == duration(None) == span(Estimate(0.5)) == "n/a"
    )


def test_only_one_point_is_singular() -> None:
    assert [points(v) for v in (0.0, 0.96, 1.0, 1.04, 1.1)] == [
        "0.0 points",
        "1.0 point",
        "1.0 point",
        "1.0 point",
        "1.1 points",
    ]


def test_negative_numbers_have_a_minus() -> None:
    assert signed(-2.0) == f"{MINUS}2.0 points"
    assert plain(-0.5) == f"{MINUS}0.5"


def test_a_name_is_one_short_line_that_keeps_to_itself() -> None:
    assert name("a\n\n b\x00") == "a b"
    assert len(name("x" * 10_000)) == 60
    assert name("\u202eabc\u2066") == "abc"
    assert name("אב") == "\u2068אב\u2069"
    assert name("🐄 <b>") == "🐄 <b>"
    assert name("\ud800") == ""


def test_lists_and_counts() -> None:
    assert [listed(x) for x in ([], ["a"], ["a", "b"])] == ["", "a", "a and b"]
    assert plural(0, "seed") == "0 seeds"
