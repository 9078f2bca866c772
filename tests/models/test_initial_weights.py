"""New initial weights: every layer as PyTorch initialises it, the same for the same seed, and nothing left over."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from spurless.core.errors import InputError
from spurless.data import load
from spurless.models import build, wrap
from spurless.models.classifier import M
from spurless.models.initial_weights import reset_parameters
from spurless.models.pruning.masks import WeightMask, get_weight_masks, prune


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def trained(model: M) -> M:
    """Return the model with every number changed to 7, which no initialisation draws."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.fill_(7.0)
    return model


def cnn() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))


def test_weights_are_those_that_pytorch_draws_with_this_seed() -> None:
    copy = reset_parameters(trained(nn.Linear(3, 2)), generator(4))
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(int(torch.randint(2**63 - 1, (), generator=generator(4))))
    fresh = nn.Linear(3, 2)
    torch.set_rng_state(state)
    assert torch.equal(copy.weight, fresh.weight)
    assert torch.equal(copy.bias, fresh.bias)


def test_nothing_of_the_training_is_left_and_the_given_model_is_unchanged() -> None:
    model = trained(cnn())
    copy = reset_parameters(model.eval(), generator())
    assert all(bool((tensor == 7).all()) for tensor in model.state_dict().values() if tensor.is_floating_point())
    assert not any(bool((tensor == 7).any()) for tensor in copy.state_dict().values())
    norm = copy[1]
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.running_mean.tolist() == [0, 0, 0, 0]
    assert norm.running_var.tolist() == [1, 1, 1, 1]
    assert not copy.training


def test_the_seed_decides_and_the_global_generator_does_not_move() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    model = cnn()
    torch.set_rng_state(state)
    source = generator()
    one, two, other = (reset_parameters(model, source) for source in (generator(), generator(), generator(1)))
    first, second = (reset_parameters(model, source) for _ in range(2))  # a generator goes on
    assert torch.equal(torch.get_rng_state(), state)

    def head(module: nn.Sequential) -> Tensor:
        return module.get_parameter("4.weight").detach()

    assert torch.equal(head(one), head(two))
    assert torch.equal(head(one), head(first))
    assert not torch.equal(head(one), head(other))
    assert not torch.equal(head(first), head(second))


class Custom(nn.Module):
    """Parameters that no layer resets."""

    def __init__(self, n: int = 1) -> None:
        super().__init__()
        self.tokens = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(n)])
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.tokens[0])  # type: ignore[no-any-return]


class Scaled(nn.Linear):
    """A layer that resets a part of its parameters."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.scale = nn.Parameter(torch.ones(2))


class ByRoot(Custom):
    """A module that resets all that its parts have."""

    def reset_parameters(self) -> None:
        for token in self.tokens:
            nn.init.zeros_(token)


class Broken(nn.Linear):
    def reset_parameters(self, gain: float | None = None) -> None:
        if hasattr(self, "bias"):
            raise ValueError(f"no gain, {gain}")


def test_parameters_of_no_layer_are_named_and_the_way_out_too() -> None:
    with pytest.raises(
        InputError, match=r"Sequential cannot be initialised again: no layer resets 0\.tokens\.0\."
    ) as e:
        reset_parameters(nn.Sequential(Custom()), generator())
    assert "Pass the untrained model" in e.value.hint
    assert "wrap(model, trained=False)" in e.value.hint
    with pytest.raises(InputError, match=r"no layer resets scale\."):
        reset_parameters(Scaled(), generator())
    with pytest.raises(InputError, match=r"tokens\.4 and 2 more parameters\."):
        reset_parameters(Custom(7), generator())
    with pytest.raises(InputError, match=r"the layer '0' of Sequential cannot be initialised again: no gain, None\."):
        reset_parameters(nn.Sequential(deepcopy(broken())), generator())


def broken() -> Broken:
    layer = Broken.__new__(Broken)
    nn.Module.__init__(layer)
    layer.weight, layer.bias = nn.Parameter(torch.ones(1, 1)), nn.Parameter(torch.ones(1))
    return layer


def test_a_module_may_reset_what_its_parts_cannot() -> None:
    copy = reset_parameters(trained(ByRoot(2)), generator())
    assert [token.tolist() for token in copy.tokens] == [[0, 0], [0, 0]]
    assert not bool((copy.layer.weight == 7).any())


def test_frozen_parts_keep_their_values_and_statistics() -> None:
    model = trained(cnn())
    for layer in list(model.children())[:2]:
        layer.requires_grad_(False)
    custom = Custom()
    custom.tokens.requires_grad_(False)
    copy = reset_parameters(nn.Sequential(model, custom), generator())
    state = copy.state_dict()
    for name in ("0.weight", "0.bias", "1.weight", "1.running_mean", "1.running_var"):
        assert bool((state[f"0.{name}"] == 7).all()), name
    assert not bool((state["0.4.weight"] == 7).any())
    assert not copy.get_parameter("0.0.weight").requires_grad
    half = trained(nn.Linear(2, 2))
    half.bias.requires_grad_(False)
    again = reset_parameters(half, generator())
    assert again.bias.tolist() == [7, 7]
    assert not (again.weight == 7).any()


def test_shared_weights_stay_shared() -> None:
    words, out = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    out.weight = words.weight
    copy = reset_parameters(trained(nn.Sequential(words, out)), generator())
    first, last = (dict(copy.named_parameters(remove_duplicate=False))[f"{i}.weight"] for i in range(2))
    assert first is last
    assert not (first == 7).any()


def test_masks_stay_and_the_weights_under_them_are_new() -> None:
    model = trained(nn.Sequential(nn.Linear(3, 2)))
    keep = torch.tensor([[True, False, True], [False, False, True]])
    prune(model, {"0.weight": keep})
    copy = reset_parameters(model, generator())
    assert torch.equal(get_weight_masks(copy)["0.weight"], keep)
    stored = copy.get_parameter("0.parametrizations.weight.original")
    plain = reset_parameters(trained(nn.Sequential(nn.Linear(3, 2))), generator())
    assert torch.equal(stored, plain.get_parameter("0.weight"))  # the whole layer, also where it is pruned
    assert torch.equal(copy.get_parameter("0.bias"), plain.get_parameter("0.bias"))
    assert torch.equal(model.get_parameter("0.parametrizations.weight.original"), torch.full((2, 3), 7.0))


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, parametrizations.orthogonal])
def test_computed_weights_are_those_of_a_new_layer(norm: Callable[[nn.Module], nn.Module]) -> None:
    layer = nn.Linear(3, 3)
    norm(layer)
    before = layer.weight.detach().clone()
    copy = reset_parameters(layer, generator())
    assert parametrize.is_parametrized(copy, "weight")
    assert torch.equal(layer.weight, before)
    plain = reset_parameters(nn.Linear(3, 3), generator())
    assert torch.equal(copy.bias, plain.bias)
    if norm is parametrizations.weight_norm:
        torch.testing.assert_close(copy.weight, plain.weight)
    else:
        assert not torch.allclose(copy.weight, before, atol=1e-2)


class Doubled(nn.Module):
    """A computation without an inverse."""

    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def test_computed_weights_that_cannot_be_set_are_refused() -> None:
    layer = nn.Linear(2, 2)
    parametrize.register_parametrization(layer, "weight", Doubled())
    with pytest.raises(InputError, match=r"Linear cannot be initialised again: .*right_inverse"):
        reset_parameters(layer, generator())
    custom = Custom()
    parametrize.register_parametrization(custom.tokens, "0", WeightMask(torch.tensor([True, False])))
    with pytest.raises(InputError, match=r"no layer resets tokens\.parametrizations\.0\.original\."):
        reset_parameters(custom, generator())


def test_attention_is_reset_as_pytorch_does() -> None:
    model = trained(nn.TransformerEncoderLayer(8, 2, 16))
    copy = reset_parameters(model, generator())
    assert not any(bool((parameter == 7).any()) for parameter in copy.parameters())
    attention = copy.self_attn
    assert isinstance(attention, nn.MultiheadAttention)
    assert not attention.out_proj.bias.any()  # the parent sets it to 0 after the child
    assert not attention.in_proj_bias.any()


def test_layers_without_weights_yet_stay_without() -> None:
    copy = reset_parameters(nn.Sequential(nn.LazyLinear(2), nn.Linear(2, 2)), generator())
    assert copy(torch.zeros(1, 3)).shape == (1, 2)


@pytest.mark.parametrize("name", ["linear", "mlp", "small-cnn", "pooled-cnn", "vgg11-small", "resnet20"])
def test_every_network_of_the_table_can_be_initialised_again(name: str) -> None:
    data = load("colored-digits", conflicting=0.1, size=16, seed=0)
    model = build(name, data)
    model.trained = True
    copy = reset_parameters(model, generator())
    assert (copy.trained, model.trained) == (False, True)
    assert copy.name == name
    copy.verify(data.train.example())
    weights = [name for name, parameter in model.named_parameters() if parameter.dim() > 1]
    assert not any(torch.equal(copy.get_parameter(name), model.get_parameter(name)) for name in weights)


def test_a_wrapped_text_network_too() -> None:
    data = load("negated-claims", conflicting=0.1)
    model = build("token-mean", data, vocabulary=64)
    copy = reset_parameters(wrap(model), generator())
    assert not torch.equal(copy.get_parameter("backbone.words.weight"), model.get_parameter("backbone.words.weight"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_weights_are_the_same_on_a_gpu() -> None:
    there = reset_parameters(cnn().cuda(), generator())
    here = reset_parameters(cnn(), generator())
    for name, value in here.state_dict().items():
        assert there.state_dict()[name].device.type == "cuda"
        assert torch.equal(value, there.state_dict()[name].cpu())
