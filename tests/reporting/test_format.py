"""Tests of numbers and names as they are written."""

from __future__ import annotations

import pytest

from spurless.reporting.aggregate import Estimate
from spurless.reporting.format import (
    MINUS,
    clean_name,
    format_change,
    format_count,
    format_duration,
    format_interval,
    format_number,
    format_percent,
    format_points,
    join_words,
)


@pytest.mark.parametrize(("share", "text"), [(0.0, "0.0 %"), (1.0, "100.0 %"), (-1e-9, "0.0 %"), (float("nan"), "n/a")])
def test_percent(share: float, text: str) -> None:
    assert format_percent(share) == text


def test_missing_is_one_word_everywhere() -> None:
    assert (
        format_percent(None)
        == format_points(None)
        == format_change(None)
        == format_number(None)
        == format_duration(None)
        == format_interval(Estimate(0.5))
        == "n/a"
    )


def test_only_one_point_is_singular() -> None:
    assert [format_points(v) for v in (0.0, 0.96, 1.0, 1.04, 1.1)] == [
        "0.0 points",
        "1.0 point",
        "1.0 point",
        "1.0 point",
        "1.1 points",
    ]


def test_negative_numbers_have_a_minus() -> None:
    assert format_change(-2.0) == f"{MINUS}2.0 points"
    assert format_number(-0.5) == f"{MINUS}0.5"


def test_a_name_is_one_short_line_that_keeps_to_itself() -> None:
    assert clean_name("a\n\n b\x00") == "a b"
    assert len(clean_name("x" * 10_000)) == 60
    assert clean_name("\u202eabc\u2066") == "abc"
    assert clean_name("אב") == "\u2068אב\u2069"
    assert clean_name("🐄 <b>") == "🐄 <b>"
    assert clean_name("\ud800") == ""


def test_lists_and_counts() -> None:
    assert [join_words(x) for x in ([], ["a"], ["a", "b"])] == ["", "a", "a and b"]
    assert format_count(0, "seed") == "0 seeds"


def test_examples() -> None:
    assert (format_percent(0.0714), format_interval(Estimate(0.07, 0.037, 0.1322))) == ("7.1 %", "3.7 to 13.2 %")
    assert (format_points(-1.0), format_points(41.2)) == ("1.0 point", "41.2 points")
    assert [format_change(v) for v in (41.2, -1.0, 0.0)] == ["+41.2 points", f"{MINUS}1.0 point", "0.0 points"]
    assert [format_number(v) for v in (0.01234, 51234.0, 3.0)] == ["0.0123", "51,234", "3"]
    assert [format_duration(v) for v in (0.25, 75.4, 7260)] == ["0.2 s", "1 min 15 s", "2 h 1 min"]
    assert join_words(["a", "b", "c"]) == "a, b and c"
    assert (format_count(1, "seed"), format_count(1200, "test example")) == ("1 seed", "1,200 test examples")
