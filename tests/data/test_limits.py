"""Limits: the sentence names dataset and option."""

from dataclasses import dataclass

import pytest

from spurless.core.errors import InputError
from spurless.data import DATASETS
from spurless.data.checks import check_choice, check_fractions, check_minimum

CARD = DATASETS["planted"].card


@dataclass(frozen=True)
class Config:
    share: float | None = 0.5
    n: int = 3
    form: str = "round"


def test_what_is_in_range_passes() -> None:
    check_fractions(CARD, Config(), "share")
    check_fractions(CARD, Config(share=None), "share")
    check_minimum(CARD, Config(), n=3)
    check_choice(CARD, Config(), "form", ("flat", "round"))


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_what_is_no_share_is_refused_by_name(share: float) -> None:
    with pytest.raises(InputError, match=r"planted: option 'share' must be a fraction \(expected 0 to 1, got"):
        check_fractions(CARD, Config(share), "share")


def test_what_is_too_small_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"planted: option 'n' must be at least 4 \(got 3\)"):
        check_minimum(CARD, Config(), n=4)


def test_what_is_no_choice_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"planted: option 'form' is unknown \(expected flat, long, got round\)"):
        check_choice(CARD, Config(), "form", ("flat", "long"))
