"""Probing leaves no trace: modes, parameters, gradients, hooks and the caller's own grad mode."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.data.split import Split
from spurless.explain.attribution import attribute
from spurless.explain.gradients import (
    NoGradientError,
    forward_hooks,
    gradient_reaches_input,
    input_gradient_mode,
    select_classes,
    sum_explained_logits,
)
from spurless.explain.maps import AUTO, EXPLAINERS, compute_heat_maps
from spurless.models.classifier import Classifier


def net() -> Classifier:
    return Classifier(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)), nn.Linear(4, 3), name="net")


def test_modes_and_what_may_train_are_given_back_as_they_were_even_after_an_error() -> None:
    model = net()
    model.backbone.get_submodule("1").eval()
    model.head.weight.requires_grad_(False)
    modes = [m.training for m in model.modules()]
    wanted = [p.requires_grad for p in model.parameters()]

    def fail() -> None:
        with input_gradient_mode(model):
            assert not any(m.training for m in model.modules())
            assert not any(p.requires_grad for p in model.parameters())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [m.training for m in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == wanted


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_gradients_are_on_inside_and_the_callers_mode_is_back_after(around: type) -> None:
    model = net()
    with around():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        with input_gradient_mode(model):
            x = torch.ones(2, 3, requires_grad=True)
            (gradient,) = torch.autograd.grad(model(x).sum(), x)
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before
    assert gradient.abs().sum() > 0
    assert all(p.grad is None for p in model.parameters())


def test_hooks_are_gone_after_an_error() -> None:
    model, called = net(), []
    with pytest.raises(RuntimeError), forward_hooks(model.modules(), lambda module, *_: called.append(module)):
        model(torch.ones(2, 5))  # 3 were expected
    assert not any(m._forward_hooks for m in model.modules())
    with forward_hooks(model.modules(), lambda module, *_: called.append(module)):
        model(torch.ones(2, 3))
    assert len(called) == 6  # three layers, the sequence, the head, the model
    model(torch.ones(2, 3))
    assert len(called) == 6


def test_the_class_is_the_predicted_one_or_the_given_one() -> None:
    logits = torch.tensor([[0.0, 5.0, 1.0], [2.0, 1.0, 0.0]])
    assert select_classes(net(), logits, None).tolist() == [1, 0]
    assert select_classes(net(), logits, torch.tensor([2, 1], dtype=torch.int32)).tolist() == [2, 1]
    assert sum_explained_logits(net(), logits, None) == 7.0
    assert sum_explained_logits(net(), logits, torch.tensor([2, 1])) == 2.0


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            torch.tensor([0]),
            r"one class per example \(expected integers of shape \(2,\), got int64 of shape \(1,\)",
        ),
        (torch.tensor([0.0, 1.0]), "got float32"),
        (torch.tensor([True, False]), "got bool"),
        (torch.tensor([0, 3]), r"net has no class 3 \(expected 0 to 2\)"),
        (torch.tensor([-1, 0]), "net has no class -1"),
    ],
)
def test_a_target_that_is_none_is_refused(target: Tensor, said: str) -> None:
    with pytest.raises(InputError, match=said):
        select_classes(net(), torch.zeros(2, 3), target)


class Cut(nn.Module):
    """A convolution without gradients, as frozen backbones are often written."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            out: Tensor = self.convolution(x).relu().flatten(1)
        return out


@pytest.mark.parametrize("how", [*EXPLAINERS, AUTO])
def test_a_model_that_lets_no_gradient_through_is_refused_in_a_sentence(how: str) -> None:
    model = Classifier(Cut(), nn.Linear(64, 2), name="cut")
    split = Split(torch.rand(6, 1, 6, 6), torch.arange(6) % 2, torch.full((6,), -1), Groups(("a", "b")))
    with pytest.raises(
        NoGradientError, match=r"cut has no gradient with respect to its input.*Freeze that part with requires_grad_"
    ):
        compute_heat_maps(model, split, how=how)
    assert not gradient_reaches_input(model, torch.rand(2, 1, 6, 6))
    whole = Classifier(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten()), nn.Linear(64, 2)).requires_grad_(False)
    assert gradient_reaches_input(whole, torch.rand(2, 1, 6, 6))  # frozen is another matter
    assert len(compute_heat_maps(whole, split, how=how)) == 6


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # torch's, of the run without gradients
def test_a_checkpoint_that_goes_back_to_parameters_alone_is_said_to_be_one() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.body, x, use_reentrant=True)  # type: ignore[no-any-return]  # as the body does

    model, x = Classifier(Checkpointed(), nn.Linear(4, 2)), torch.randn(2, 3)
    assert not gradient_reaches_input(model, x)
    with pytest.raises(NoGradientError, match="checkpointing needs use_reentrant=False"):
        attribute(model, x, how="input-gradient")


def test_a_model_may_write_into_its_input() -> None:
    class Halving(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mul_(0.5)

    model, x = Classifier(Halving(), nn.Linear(3, 2, bias=False)), torch.ones(1, 3)
    found = attribute(model, x, torch.tensor([1]), how="input-gradient")
    assert torch.equal(found[0], model.get_parameter("head.weight")[1] / 2)
    assert torch.equal(x, torch.ones(1, 3))
