"""Chains: which layer reads which, told from the trace; and a reason for every layer that is in none."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu
from torch.nn.utils import parametrizations

from spurless.models import build
from spurless.models.classifier import Classifier
from spurless.models.pruning.compact import find_layer_chains


def reasons(model: nn.Module, *shape: int) -> dict[str, str]:
    return find_layer_chains(model, torch.zeros(2, *shape))[1]


def pairs(model: nn.Module, *shape: int) -> list[tuple[str, str]]:
    names = {id(part): name for name, part in model.named_modules()}
    return [
        (name, names[id(chain.reader)]) for name, chain in find_layer_chains(model, torch.zeros(2, *shape))[0].items()
    ]


def test_a_plain_net_is_one_chain_after_another() -> None:
    model = build("small-cnn", input_shape=(3, 16, 16), n_classes=2)
    layers = ["backbone.conv1", "backbone.conv2", "backbone.conv3", "backbone.conv4", "backbone.hidden", "head"]
    assert pairs(model, 3, 16, 16) == list(pairwise(layers))
    assert reasons(model, 3, 16, 16) == {}  # the head is the end, which needs no reason


def test_in_a_residual_net_the_first_of_a_block_is_read_by_the_second_alone() -> None:
    model = build("resnet20", input_shape=(3, 8, 8), n_classes=2)
    blocks = [f"backbone.layer{stage}.{block}" for stage in (1, 2, 3) for block in (0, 1, 2)]
    assert pairs(model, 3, 8, 8) == [(f"{block}.conv1", f"{block}.conv2") for block in blocks]
    assert set(reasons(model, 3, 8, 8)) == {"backbone.conv1", *(f"{block}.conv2" for block in blocks)}
    assert reasons(model, 3, 8, 8)["backbone.layer1.0.conv2"] == "its output goes to add"


class Twice(nn.Module):
    """Uses one relu and one layer in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(x))
        x = self.relu(self.shared(x))
        y: Tensor = self.last(self.relu(self.shared(x)))
        return y


def test_a_relu_may_be_used_twice_and_a_layer_may_not() -> None:
    model = Twice()
    assert reasons(model, 3) == {
        "first": "its output goes to shared",
        "shared": "it is used several times, parametrized, or has a hook",
    }
    model.shared = nn.Linear(3, 3)
    small = nn.Sequential(model.first, model.relu, nn.Linear(3, 3), model.relu, model.last)
    assert pairs(small, 3) == [("0", "2"), ("2", "4")]


class Free(nn.Module):
    """A convolution, something, and a linear layer."""

    def __init__(self, between: Callable[["Free", Tensor], Tensor], width: int) -> None:
        super().__init__()
        self.between, self.conv, self.fc = between, nn.Conv2d(1, 4, 1), nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(self.between(self, self.conv(x)))
        return y


@pytest.mark.parametrize(
    ("between", "width", "chained"),
    [
        (lambda _, x: x.mean((2, 3)), 4, True),
        (lambda _, x: torch.flatten(torch.relu(x), 1), 64, True),
        (lambda _, x: x.tanh().flatten(start_dim=1), 64, True),
        (lambda _, x: x.mean((-1, 1)), 4, False),  # over the channels
        (lambda _, x: x.mean().view(1, 1), 1, False),
        (lambda _, x: x.mean(2).flatten(1), 16, False),
        (lambda _, x: x.flatten(2).mean(1), 16, False),
        (lambda _, x: x.flatten(0, 1).flatten(1), 16, False),  # channels become examples
        (lambda _, x: x, 4, False),  # the linear layer takes the columns of the map for features
        (lambda net, x: x.mean((2, 3)) + net.conv.weight.sum(), 4, False),
        (lambda _, x: (x * x).flatten(1), 64, False),
        (lambda _, x: (x + x).flatten(1), 64, False),
        (lambda _, x: leaky_relu(x, 0.2).flatten(1), 64, True),
    ],
)
def test_what_may_lie_between(between: Callable[[Free, Tensor], Tensor], width: int, chained: bool) -> None:
    model = Free(between, width)
    assert bool(pairs(model, 1, 4, 4)) is chained
    assert ("conv" in reasons(model, 1, 4, 4)) is not chained


@pytest.mark.parametrize(
    ("between", "chained"),
    [
        (nn.MaxPool2d(3, 1, padding=1), True),  # its padding never wins
        (nn.AvgPool2d(3, 1), True),
        (nn.AvgPool2d(3, 1, padding=1), False),  # zeros count
        (nn.AvgPool2d(3, 2, ceil_mode=True), False),
        (nn.AvgPool2d(2, divisor_override=3), False),
        (nn.AdaptiveAvgPool2d(2), True),
        (nn.BatchNorm2d(4, track_running_stats=False), False),  # looks at the batch
        (nn.GroupNorm(2, 4), False),
        (nn.PReLU(4), False),
        (nn.Softmax(1), False),
        (nn.Dropout2d(), True),
    ],
    ids=str,
)
def test_which_parts_may_lie_between(between: nn.Module, chained: bool) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 1), between, nn.Conv2d(4, 2, 1))
    assert bool(pairs(model, 1, 4, 4)) is chained


def test_a_pool_that_would_take_channels_for_a_side_is_no_step() -> None:
    model = nn.Sequential(nn.Conv1d(1, 4, 1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 2))  # (N, C, L) as one image
    assert reasons(model, 1, 4) == {"0": "its output goes to 1"}


def test_examples_and_channels_are_not_mixed_up() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Flatten(0, 1), nn.Flatten(), nn.Linear(16, 2))
    assert reasons(model, 1, 4, 4) == {"0": "its output goes to 1"}
    single = nn.Sequential(nn.Conv2d(2, 4, 1), nn.Flatten(), nn.Linear(16, 2))  # the first dimension is the channels
    assert reasons(single, 4, 4) == {"0": "its input has no batch dimension"}


def test_tokens_have_their_channels_last() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 3))
    assert pairs(model, 7, 3) == [("0", "2")]
    normed = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(7), nn.Linear(5, 3))  # the norm's channels are the places
    assert reasons(normed, 7, 3) == {"0": "its output goes to 1"}
    flat = nn.Sequential(
        nn.Linear(3, 5), nn.Flatten(), nn.Linear(35, 3)
    )  # place after place, not channel after channel
    assert reasons(flat, 7, 3) == {"0": "its output goes to 1"}


def test_a_convolution_over_tokens_reads_across_the_channels() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Conv1d(5, 2, 1))  # its channels are the five places
    assert reasons(model, 5, 3) == {"0": "its output goes to 2"}


class Sloped(nn.Module):
    """Has an activation that depends on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.two(leaky_relu(self.one(x), x.shape[0] / 10))
        return y


def test_an_activation_of_two_things_is_no_step() -> None:
    assert reasons(Sloped(), 2) == {"one": "its output goes to leaky_relu"}


class Reading(nn.Module):
    """Reads a layer's weight besides calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.two(self.one(x)) + self.one.weight.sum()
        return y


def test_a_weight_that_is_read_elsewhere_is_unchanged() -> None:
    assert "one" in reasons(Reading(), 2)


def test_grouped_and_transposed_convolutions_are_in_no_chain() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 1, groups=2), nn.ConvTranspose2d(4, 2, 1))
    assert reasons(model, 2, 3, 3) == {
        "0": "its output goes to 1",
        "1": "its channels are grouped or transposed",
        "2": "its channels are grouped or transposed",
    }


def test_what_others_hold_is_unchanged() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    parametrizations.weight_norm(model[0])
    model[1].register_forward_hook(lambda *_: None)
    model[3].weight = model[2].weight
    assert pairs(model, 2) == []
    assert set(reasons(model, 2)) == {"0", "1", "2", "3"}


def test_the_features_stay_where_a_selector_reads_them() -> None:
    model = Classifier(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 2))
    assert pairs(model, 2) == [("backbone.0", "backbone.2"), ("backbone.2", "head")]
    model.add_module("selector", nn.Linear(3, 1))
    assert pairs(model, 2) == [("backbone.0", "backbone.2")]


class Stubborn(nn.Module):
    """Looks at values."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        return y if y.sum() > 0 else -y


def test_a_model_that_cannot_be_traced_is_unchanged() -> None:
    assert list(reasons(Stubborn(), 2)) == ["fc"]
    assert "cannot be traced" in reasons(Stubborn(), 2)["fc"]


def test_a_model_that_does_not_take_the_input_is_unchanged(capfd: pytest.CaptureFixture[str]) -> None:
    assert "mat1 and mat2 shapes cannot be multiplied" in reasons(nn.Sequential(nn.Linear(2, 2)), 3)["0"]
    assert capfd.readouterr() == ("", "")


def test_attention_is_unchanged() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert set(reasons(layer, 5, 8)) == {"self_attn.out_proj", "linear1", "linear2"}


def test_the_model_is_left_as_it_was() -> None:
    model = build("small-cnn", input_shape=(3, 16, 16), n_classes=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    find_layer_chains(model, torch.ones(2, 3, 16, 16))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
