"""Features of every example, in order."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.core.modules import Input
from spurless.models.classifier import Classifier
from spurless.models.features import collect_features, compute_logits, iterate_features


@dataclass(frozen=True)
class Some:
    x: Input


def net() -> Classifier:
    return Classifier(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)), nn.Linear(4, 2))


def test_every_example_in_order_without_batch_norm_or_dropout() -> None:
    model, x = net(), torch.randn(7, 3)
    statistics = model.backbone.get_submodule("1").get_buffer("running_mean").clone()
    found = collect_features(model, [Some(x[:3]), Some(x[3:6]), Some(x[6:])])
    assert torch.equal(model.backbone.get_submodule("1").get_buffer("running_mean"), statistics)
    assert model.training
    assert not found.requires_grad
    torch.testing.assert_close(found, model.eval().features(x).detach())


def test_the_modes_of_all_parts_are_given_back() -> None:
    model = net()
    model.backbone.eval()
    collect_features(model, [Some(torch.randn(2, 3))])
    assert (model.training, model.backbone.training) == (True, False)


def test_features_are_float32() -> None:
    model = net().to(torch.bfloat16)
    assert collect_features(model, [Some(torch.randn(2, 3).bfloat16())]).dtype == torch.float32


def test_dicts_are_moved_and_passed_by_name() -> None:
    class Pick(nn.Module):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return ids * mask

    x = {"ids": torch.tensor([[2.0, 3.0]]), "mask": torch.tensor([[1.0, 0.0]])}
    assert collect_features(Classifier(Pick(), nn.Linear(2, 2)), [Some(x)], device="cpu").tolist() == [[2.0, 0.0]]


def test_logits_of_features_are_the_models_logits() -> None:
    model, x = net(), torch.randn(5, 3)
    logits = compute_logits(model, collect_features(model, [Some(x)]))
    assert model.training
    torch.testing.assert_close(logits, model.eval()(x).detach())
    assert compute_logits(model.double(), torch.randn(2, 4)).dtype == torch.float32


def test_no_batches_is_a_sentence() -> None:
    with pytest.raises(InputError, match="there are no batches"):
        collect_features(net(), [])


def test_maps_are_not_features() -> None:
    with pytest.raises(InputError, match=r"expected \(N, d\), got \(2, 3, 4\)"):
        collect_features(Classifier(nn.Identity(), nn.Linear(4, 2)), [Some(torch.randn(2, 3, 4))])


def test_a_row_for_every_example_or_none() -> None:
    with pytest.raises(InputError, match=r"expected \(N, d\), got \(1, 4\)"):
        collect_features(Classifier(Total(), nn.Linear(4, 2)), [Some(torch.randn(2, 4))])


class Total(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(dim=0, keepdim=True)


@pytest.mark.parametrize(("value", "said"), [(torch.nan, "nan"), (torch.inf, "inf"), (-torch.inf, "-inf")])
def test_the_first_example_that_is_not_finite_is_named(value: float, said: str) -> None:
    x = torch.zeros(9, 3)
    x[7, 1] = x[8, 2] = value
    with pytest.raises(
        InputError, match=rf"features of example 7 are not finite \(got {said}\). Check the input of example 7"
    ):
        collect_features(Classifier(nn.Identity(), nn.Linear(3, 2)), [Some(x[:5]), Some(x[5:])])


def test_what_is_too_large_for_half_a_float_is_said_so() -> None:
    model, x = Classifier(nn.Identity(), nn.Linear(1, 2)), torch.tensor([[6e4], [7e4]])
    assert [part.dtype for part in iterate_features(model, [Some(x[:1])], dtype=torch.float16)] == [torch.float16]
    with pytest.raises(InputError, match=r"example 11 .* float16 overflows at 65,504"):
        list(iterate_features(model, [Some(x)], dtype=torch.float16, start=10))
    assert [float(part.max()) for part in iterate_features(model, [Some(x)])] == [7e4]


def test_whoever_reads_the_rows_may_take_gradients() -> None:
    for part in iterate_features(net(), [Some(torch.randn(2, 3))]):
        assert torch.is_grad_enabled()
        assert not part.requires_grad


def test_batches_without_inputs_and_features_of_another_width_are_refused() -> None:
    model = Classifier(nn.Identity(), nn.Linear(3, 2))
    with pytest.raises(InputError, match="the batches must have inputs x"):
        collect_features(model, torch.zeros(2, 3))
    with pytest.raises(InputError, match="does not accept this input"):
        compute_logits(model, torch.zeros(2, 4))
