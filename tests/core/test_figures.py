"""Figures: what is shown is a value, and there is one class of each."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from spurless import reporting
from spurless.core.figures import Figure, Picture, Section


def test_there_is_one_class_of_each() -> None:
    assert (reporting.Picture, reporting.Figure, reporting.Section) == (Picture, Figure, Section)


def test_what_is_shown_cannot_change_afterwards() -> None:
    picture: Any = Picture("t", "c", b"", "a")
    with pytest.raises(FrozenInstanceError):
        picture.title = "other"


def test_a_section_may_be_words_alone_and_a_chart_has_a_height() -> None:
    assert Section("t", "words").items == ()
    assert Figure("t", "c", {"data": []}, "a").height > 0
