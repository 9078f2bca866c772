"""Limits: the sentence names dataset and option."""

from dataclasses import dataclass

import pytest

from spurless.core.errors import InputError
from spurless.data import DATASETS
from spurless.data.checks import check_choice

CARD = DATASETS["planted"].card


@dataclass(frozen=True)
class Config:
    form: str = "round"


def test_what_is_in_range_passes() -> None:
    check_choice(CARD, Config(), "form", ("flat", "round"))


def test_what_is_no_choice_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"planted: option 'form' is unknown \(expected flat, long, got round\)"):
        check_choice(CARD, Config(), "form", ("flat", "long"))
