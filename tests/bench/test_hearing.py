"""Hearing: warnings of ours are collected, and everybody's are passed on."""

import warnings

import pytest

from spurless.bench.hearing import heard
from spurless.core.errors import SpurlessWarning


def test_ours_are_collected_and_all_are_passed_on() -> None:
    with pytest.warns(UserWarning) as passed, heard() as said:
        warnings.warn("ours", SpurlessWarning, stacklevel=1)
        warnings.warn("theirs", UserWarning, stacklevel=1)
    assert said == ["ours"]
    assert [str(w.message) for w in passed] == ["ours", "theirs"]


def test_an_error_is_raised_and_what_was_said_before_is_said() -> None:
    with pytest.warns(SpurlessWarning, match="before"), pytest.raises(KeyError), heard():
        warnings.warn("before", SpurlessWarning, stacklevel=1)
        raise KeyError
