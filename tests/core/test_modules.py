"""Modules: eval mode is restored part by part."""

import pytest
from torch import nn

from spurless.core.modules import eval_mode


def test_eval_mode_restores_the_mode_of_every_part() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    model[0].eval()
    with eval_mode(model):
        assert not any(part.training for part in model.modules())
    assert [model.training, model[0].training, model[1].training] == [True, False, True]


def test_eval_mode_restores_the_mode_after_an_error() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ZeroDivisionError), eval_mode(model):
        raise ZeroDivisionError
    assert model.training
