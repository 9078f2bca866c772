"""Copying: what a module computed last is no reason not to copy it."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from spurless.models.classifier import Classifier, copy_module
from spurless.models.wrapping import wrap


class Keeping(nn.Module):
    """Keeps what it computed last, as nets do whose attention is to be drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.answer = nn.Linear(4, 3), nn.Linear(3, 2)
        self.last: Tensor | None = None
        self.all: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.body(x)
        self.all["body"] = self.last
        return self.answer(self.last)  # type: ignore[no-any-return]  # a module returns Any


def test_a_module_that_keeps_what_it_computed_is_copied() -> None:
    net, x = Keeping(), torch.randn(5, 4)
    net(x)
    assert net.last is not None
    copy = copy_module(net)
    assert copy.last is not None
    assert copy.last is copy.all["body"]  # one tensor, as before
    assert torch.equal(copy.last, net.last)
    assert (copy.last.requires_grad, net.last.requires_grad) == (False, True)
    assert torch.equal(wrap(net)(x), net(x))


def test_so_is_a_classifier_between_two_steps() -> None:
    model, x = wrap(Keeping()), torch.randn(5, 4)
    model.features(x)
    copy = deepcopy(model)
    assert isinstance(copy, Classifier)
    assert torch.equal(copy(x), model(x))
    with torch.no_grad():
        copy.get_parameter("head.weight").zero_()
    assert bool(model.get_parameter("head.weight").any())  # a copy indeed
    assert model.unwrap()(x).shape == (5, 2)
