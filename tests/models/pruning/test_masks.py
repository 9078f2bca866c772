"""Masks: pruned weights stay zero, silent neurons stay silent, and making it permanent changes no logit."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from spurless.core.errors import InputError
from spurless.models import build
from spurless.models.classifier import Classifier
from spurless.models.pruning.learned_masks import add_learned_masks
from spurless.models.pruning.masks import (
    get_weight_masks,
    is_pruned,
    make_permanent,
    prune,
    sparsity,
    suppress_features,
)

KEEP = torch.tensor([[True, False], [False, True]])


def pair() -> nn.Sequential:
    layer = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    return nn.Sequential(layer)


def effective(model: nn.Module, name: str = "0") -> Tensor:
    weight: Tensor = getattr(model.get_submodule(name), "weight")  # noqa: B009 (a property, once parametrized)
    return weight


def test_a_masked_layer_by_hand() -> None:
    model = pair()
    prune(model, {"0.weight": KEEP})
    assert model(torch.ones(1, 2)).tolist() == [[1.0, 4.0]]  # 1 + 0, 0 + 4
    assert sparsity(model) == 0.5


def test_a_pruned_weight_has_no_gradient() -> None:
    model = pair()
    prune(model, {"0.weight": KEEP})
    model(torch.tensor([[5.0, 7.0]])).sum().backward()
    (beneath,) = model.parameters()
    assert beneath.grad is not None
    assert beneath.grad.tolist() == [[5.0, 0.0], [0.0, 7.0]]


def test_momentum_and_weight_decay_do_not_bring_it_back() -> None:
    model = pair()
    prune(model, {"0.weight": KEEP})
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5)
    for _ in range(5):
        optimiser.zero_grad()
        model(torch.ones(3, 2)).square().sum().backward()
        optimiser.step()
    weight = effective(model)
    assert weight[~KEEP].tolist() == [0.0, 0.0]
    assert not torch.equal(weight[KEEP], torch.tensor([1.0, 4.0]))  # the others moved


def test_permanent_zeros_give_the_same_logits() -> None:
    model = build("pooled-cnn", input_shape=(3, 8, 8), n_classes=3, channels=(4, 4)).eval()
    generator, x = torch.Generator().manual_seed(0), torch.randn(5, 3, 8, 8)
    names = list(model.state_dict())
    masks = {name: torch.rand(m.shape, generator=generator) < 0.5 for name, m in get_weight_masks(model).items()}
    prune(model, masks)
    before, share = model(x), sparsity(model)
    assert share == sum(int((~m).sum()) for m in masks.values()) / sum(m.numel() for m in masks.values())
    make_permanent(model)
    assert torch.equal(model(x), before)
    assert not is_pruned(model)
    assert sorted(model.state_dict()) == sorted(names)
    assert (effective(model, "head")[~masks["head.weight"]] == 0).all()
    assert sparsity(model) == share
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in model.parameters())


def test_a_pruned_model_can_be_copied() -> None:
    model = pair()
    prune(model, {"0.weight": KEEP})
    twin = copy.deepcopy(model)
    make_permanent(twin)
    assert (is_pruned(model), is_pruned(twin)) == (True, False)
    assert torch.equal(twin(torch.ones(1, 2)), model(torch.ones(1, 2)))


def test_a_second_mask_narrows_the_first() -> None:
    model = pair()
    prune(model, {"0.weight": KEEP})
    prune(model, {"0.weight": torch.tensor([[True, True], [True, False]])})
    assert effective(model).tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert get_weight_masks(model)["0.weight"].tolist() == [[True, False], [False, False]]


def test_the_callers_mask_is_not_ours() -> None:
    model, mask = pair(), KEEP.clone()
    prune(model, {"0.weight": mask})
    mask[:] = True
    get_weight_masks(model)["0.weight"][:] = True
    assert sparsity(model) == 0.5


def test_weight_masks_cover_convolutions_and_linear_layers_only() -> None:
    model = build("small-cnn", input_shape=(3, 16, 16), n_classes=2)
    masks = get_weight_masks(model)
    convolutions = [f"backbone.conv{i}.weight" for i in (1, 2, 3, 4)]
    assert list(masks) == [*convolutions, "backbone.hidden.weight", "head.weight"]
    assert all(bool(mask.all()) for mask in masks.values())
    assert not any(bool(mask.any()) for mask in get_weight_masks(model, fill=False).values())


def test_a_weight_can_be_reset_beneath_its_mask() -> None:
    model = pair()
    prune(model, {"0.weight": KEEP})
    model.get_submodule("0").weight = torch.full((2, 2), 9.0)  # through the parametrization
    assert effective(model).tolist() == [[9.0, 0.0], [0.0, 9.0]]


def test_a_pruned_nan_is_gone() -> None:
    model = pair()
    with torch.no_grad():
        effective(model)[0, 1] = torch.nan
    prune(model, {"0.weight": KEEP})
    assert model(torch.ones(1, 2)).tolist() == [[1.0, 4.0]]


def test_mistakes_are_named_before_anything_changes() -> None:
    model = pair()
    with pytest.raises(
        InputError, match=r"no convolution or linear weight is called '0.wait'. Did you mean '0.weight'"
    ):
        prune(model, {"0.weight": KEEP, "0.wait": KEEP})
    with pytest.raises(InputError, match=r"the mask of '0.weight' has the wrong shape .expected \(2, 2\), got \(2,\)"):
        prune(model, {"0.weight": torch.ones(2, dtype=torch.bool)})
    assert not is_pruned(model)


def test_another_parametrization_is_refused() -> None:
    model = pair()
    parametrizations.weight_norm(model.get_submodule("0"))
    with pytest.raises(InputError, match="already parametrized"):
        prune(model, {"0.weight": KEEP})


def test_a_shared_weight_is_refused_and_a_shared_layer_is_not() -> None:
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied.get_submodule("1").weight = tied.get_parameter("0.weight")
    with pytest.raises(InputError, match=r"shared by several layers \(0.weight, 1.weight\)"):
        prune(tied, {"0.weight": KEEP})
    layer = nn.Linear(2, 2)
    prune(nn.Sequential(layer, nn.ReLU(), layer), {"0.weight": KEEP})


@pytest.mark.parametrize("dims", [[0, 2], torch.tensor([2, 0, 2]), torch.tensor([True, False, True])])
def test_a_silent_neuron_by_hand(dims: list[int] | Tensor) -> None:
    model = Classifier(nn.Identity(), nn.Linear(3, 2))
    x = torch.randn(4, 3)
    expected = model.head(x * torch.tensor([0.0, 1.0, 0.0]))
    suppress_features(model, dims)
    torch.testing.assert_close(model(x), expected)


def test_silence_goes_beneath_a_mask() -> None:
    model = Classifier(nn.Identity(), nn.Linear(2, 2))
    prune(model, {"head.weight": KEEP})
    suppress_features(model, [0])
    assert is_pruned(model)  # the mask is still there
    make_permanent(model)
    assert (effective(model, "head") != 0).tolist() == [[False, False], [False, True]]


def test_silencing_nothing_changes_nothing() -> None:
    model, x = Classifier(nn.Identity(), nn.Linear(3, 2)), torch.randn(4, 3)
    before = model(x)
    suppress_features(model, [])
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("dims", [[3], [-1]])
def test_a_feature_that_is_not_there(dims: list[int]) -> None:
    with pytest.raises(InputError, match=r"has no feature -?\d .expected 0 to 2."):
        suppress_features(Classifier(nn.Identity(), nn.Linear(3, 2)), dims)


def test_a_neuron_mask_of_another_length() -> None:
    with pytest.raises(InputError, match=r"the feature mask has the wrong shape .expected \(3,\), got \(2,\)"):
        suppress_features(Classifier(nn.Identity(), nn.Linear(3, 2)), torch.tensor([True, False]))


def test_a_model_without_weights_has_no_zeros() -> None:
    assert sparsity(nn.ReLU()) == 0.0


def test_silence_reaches_beneath_a_learned_mask() -> None:
    model = Classifier(nn.Identity(), nn.Linear(2, 2)).eval()
    add_learned_masks(model, squashed=False)
    suppress_features(model, [0])
    assert (effective(model, "head") != 0).tolist() == [[False, True], [False, True]]


@pytest.mark.parametrize(
    "rule", [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal]
)
def test_silence_reaches_a_weight_that_is_computed_from_others(rule: Any) -> None:
    model = Classifier(nn.Identity(), rule(nn.Linear(4, 2)))
    x = torch.randn(6, 4)
    with torch.no_grad():
        for parameter in model.parameters():  # a spectral norm has yet to follow, in train mode
            parameter.copy_(torch.randn(parameter.shape))
    without = x * torch.tensor([1.0, 0.0, 1.0, 1.0])
    twin = copy.deepcopy(model)
    expected = twin.eval()(without)
    suppress_features(model, [1])
    assert model.head.training
    torch.testing.assert_close(model(x), expected)
    twin(x)  # a copy does not lose its own


def test_a_weight_that_two_layers_share_counts_once() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    with torch.no_grad():
        model[0].weight[:2] = 0
    assert sparsity(model) == 8 / 32
