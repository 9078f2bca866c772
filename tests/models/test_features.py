"""Collecting features."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from spurless.core.errors import BadInput
from spurless.models.classifier import Classifier, Input
from spurless.models.features import collect, logits_of_features


@dataclass(frozen=True)
class Some:
    x: Input


def net() -> Classifier:
    return Classifier(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)), nn.Linear(4, 2))


def test_every_example_in_order_without_batch_norm_or_dropout() -> None:
    model, x = net(), torch.randn(7, 3)
    statistics = model.backbone.get_submodule("1").get_buffer("running_mean").clone()
    found = collect(model, [Some(x[:3]), Some(x[3:6]), Some(x[6:])])
    assert torch.equal(model.backbone.get_submodule("1").get_buffer("running_mean"), statistics)
    assert model.training
    assert not found.requires_grad
    torch.testing.assert_close(found, model.eval().features(x).detach())


def test_the_modes_of_all_parts_are_given_back() -> None:
    model = net()
    model.backbone.eval()
    collect(model, [Some(torch.randn(2, 3))])
    assert (model.training, model.backbone.training) == (True, False)


def test_features_are_float32() -> None:
    model = net().to(torch.bfloat16)
    assert collect(model, [Some(torch.randn(2, 3).bfloat16())]).dtype == torch.float32


def test_dicts_are_moved_and_passed_by_name() -> None:
    class Pick(nn.Module):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return ids * mask

    x = {"ids": torch.tensor([[2.0, 3.0]]), "mask": torch.tensor([[1.0, 0.0]])}
    assert collect(Classifier(Pick(), nn.Linear(2, 2)), [Some(x)], device="cpu").tolist() == [[2.0, 0.0]]


def test_logits_of_features_are_the_models_logits() -> None:
    model, x = net(), torch.randn(5, 3)
    logits = logits_of_features(model, collect(model, [Some(x)]))
    assert model.training
    torch.testing.assert_close(logits, model.eval()(x).detach())
    assert logits_of_features(model.double(), torch.randn(2, 4)).dtype == torch.float32


def test_no_batches_is_a_sentence() -> None:
    with pytest.raises(BadInput, match="there are no batches"):
        collect(net(), [])


def test_maps_are_not_features() -> None:
    with pytest.raises(BadInput, match=r"expected \(N, d\), got \(2, 3, 4\)"):
        collect(Classifier(nn.Identity(), nn.Linear(4, 2)), [Some(torch.randn(2, 3, 4))])
