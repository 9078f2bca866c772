"""What a method declares: a configuration may say that it uses less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest

from spurless.data.grouped import Splits
from spurless.methods.base import Info, declared
from spurless.methods.erm import ERM
from spurless.models import Classifier
from spurless.train.run import Run


@dataclass(frozen=True)
class FrugalConfig:
    """Looks at validation, unless told not to."""

    look: bool = True
    wrong: bool = False

    @property
    def uses(self) -> Mapping[str, bool]:
        return {"labels": True} if self.wrong else {"val_labels": self.look}


class Frugal:
    info: ClassVar[Info] = Info("frugal", "nobody", "x", val_labels=True, start="trained", score="product")
    presets: ClassVar[Mapping[str, FrugalConfig]] = {"plain": FrugalConfig()}

    def __init__(self, config: FrugalConfig) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        raise NotImplementedError


def test_a_configuration_that_uses_less_says_so_and_the_rest_stays() -> None:
    less = declared(Frugal(FrugalConfig(look=False)))
    assert not less.val_labels
    assert (less.name, less.start, less.score) == ("frugal", "trained", "product")
    assert declared(Frugal(FrugalConfig())) == Frugal.info
    assert Frugal.info.val_labels  # the class itself is not changed


def test_a_configuration_without_a_word_uses_what_the_method_declares() -> None:
    assert declared(ERM()) == ERM.info


def test_a_use_that_there_is_not_is_an_error_of_the_author() -> None:
    with pytest.raises(TypeError, match="labels"):
        declared(Frugal(FrugalConfig(wrong=True)))
