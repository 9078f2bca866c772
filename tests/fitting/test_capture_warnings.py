"""Hearing: warnings of ours are collected, and everybody's are passed on."""

import warnings

import pytest

from spurless.core.errors import SpurlessWarning
from spurless.fitting.protocol import capture_warnings


def warn(words: str, kind: type[Warning]) -> None:
    warnings.warn(words, kind, stacklevel=1)


def test_ours_are_collected_and_all_are_passed_on() -> None:
    with warnings.catch_warnings(record=True) as passed:
        warnings.simplefilter("always")
        with capture_warnings() as said:
            warn("ours", SpurlessWarning)
            warn("theirs", UserWarning)
    assert said == ["ours"]
    assert [str(w.message) for w in passed] == ["ours", "theirs"]


def test_an_error_is_raised_and_what_was_said_before_is_said() -> None:
    def failing() -> None:
        with capture_warnings():
            warn("before", SpurlessWarning)
            raise KeyError("gone")

    with warnings.catch_warnings(record=True) as passed:
        warnings.simplefilter("always")
        with pytest.raises(KeyError, match="gone"):
            failing()
    assert [str(w.message) for w in passed] == ["before"]
