"""Variability: the closed form against every contribution of every example, for linear layers and convolutions."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.metrics.variability import EPS, Moments, Reading, variability

READINGS: tuple[Reading, ...] = ("paper", "minmax")
every_reading = pytest.mark.parametrize("reading", READINGS)


def parts(x: Tensor, n: int) -> list[Tensor]:
    return [x[i : i + n] for i in range(0, len(x), n)]


def by_brute_force(contributions: Tensor, reading: Reading) -> Tensor:
    """Score contributions ``(n, *weight.shape)`` as the definitions are written."""
    c = contributions.double()
    if reading == "paper":
        return c.var(dim=0, unbiased=False) / c.mean(dim=0).abs()
    low, high = c.amin(dim=0), c.amax(dim=0)
    return ((c - low) / (high - low + EPS)).std(dim=0, unbiased=False)


@every_reading
@pytest.mark.parametrize("batch", [1, 7, 23])
def test_linear_layers_agree_with_brute_force(reading: Reading, batch: int) -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3, bias=False))
    x = torch.randn(23, 4) + 0.5
    found = variability(net, parts(x, batch), reading)
    inside = torch.tanh(net[0](x))
    for name, given in (("0.weight", x), ("2.weight", inside)):
        weight = net.get_parameter(name)
        expected = by_brute_force(given.detach().double()[:, None, :] * weight.detach().double(), reading)
        assert torch.allclose(found[name], expected, rtol=1e-6, atol=1e-9)


def contributions_of(layer: Any, x: Tensor) -> Tensor:
    """Every product that a convolution adds up: ``(examples * places, *weight.shape)``, one basis kernel at a time."""
    found = []
    for index in torch.cartesian_prod(*map(torch.arange, layer.weight.shape)).tolist():
        alone = torch.zeros_like(layer.weight)
        alone[tuple(index)] = layer.weight[tuple(index)]
        found.append(layer._conv_forward(x, alone, None)[:, index[0]].flatten())
    return torch.stack(found, dim=1).view(-1, *layer.weight.shape)


@every_reading
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(2, 3, 3), (2, 6, 5)),
        (nn.Conv2d(2, 3, (3, 2), stride=2, padding=(1, 0)), (2, 7, 6)),
        (nn.Conv2d(4, 6, 3, padding=1, groups=2), (4, 5, 5)),
        (nn.Conv2d(3, 3, 3, padding="same", groups=3, dilation=2), (3, 6, 6)),
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect", stride=3), (2, 7, 8)),
        (nn.Conv1d(2, 3, 4, stride=3, padding=2), (2, 11)),
        (nn.Conv3d(1, 2, 2), (1, 3, 4, 3)),
    ],
    ids=["plain", "stride", "groups", "depthwise", "reflect", "1d", "3d"],
)
def test_convolutions_agree_with_brute_force(reading: Reading, layer: Any, shape: tuple[int, ...]) -> None:
    layer = layer.double()
    x = torch.randn(5, *shape, dtype=torch.double) + 0.3
    found = variability(nn.Sequential(layer), parts(x, 2), reading)["0.weight"]
    expected = by_brute_force(contributions_of(layer, x).detach(), reading)
    assert found.shape == layer.weight.shape
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_one_weight_by_pencil() -> None:
    layer = nn.Linear(1, 2, bias=False)
    layer.weight.data = torch.tensor([[2.0], [-4.0]])
    x = torch.tensor([[1.0], [2.0], [6.0]])  # mean 3, variance 14 / 3, spread 5
    paper = variability(layer, [x])["weight"].flatten().tolist()
    assert paper == pytest.approx([2 * 14 / 9, 4 * 14 / 9])
    minmax = variability(layer, [x], "minmax")["weight"].flatten().tolist()
    assert minmax == pytest.approx([(14 / 3) ** 0.5 / 5] * 2)  # whatever the weight


def test_zero_weights_and_constant_inputs_have_the_score_zero() -> None:
    layer = nn.Linear(2, 1)
    layer.weight.data = torch.tensor([[0.0, 3.0]])
    x = torch.tensor([[1.0, 5.0], [2.0, 5.0]])
    for reading in READINGS:
        assert variability(layer, [x], reading)["weight"].tolist() == [[0.0, 0.0]]


def test_a_large_mean_does_not_drown_a_small_variance() -> None:
    layer = nn.Linear(1, 1, bias=False).double()
    layer.weight.data = torch.ones(1, 1, dtype=torch.double)
    x = 1e8 + torch.tensor([[0.0], [1.0], [2.0], [3.0]], dtype=torch.double)
    found = float(variability(layer, parts(x, 3))["weight"])
    assert found == pytest.approx(1.25 / (1e8 + 1.5), rel=1e-9)  # E[x^2] - E[x]^2 has no digit left here


def test_moments_do_not_depend_on_the_cut() -> None:
    x = torch.randn(50, 3)
    whole, cut = Moments(), Moments()
    whole.add(x)
    for part in (x[:1], x[:0], x[1:20], x[20:]):
        cut.add(part)
    for what in ("mean", "variance", "spread"):
        assert torch.allclose(getattr(whole, what), getattr(cut, what), rtol=1e-12)


def test_eval_mode_for_the_scores_and_every_part_left_as_it_was() -> None:
    norm = nn.BatchNorm1d(2)
    net = nn.Sequential(nn.Dropout(0.9), nn.Linear(3, 2), norm, nn.Linear(2, 2))
    net.train()
    norm.eval()  # frozen statistics, inside a net that trains
    mean = norm.get_buffer("running_mean").clone()
    x = torch.randn(20, 3)
    first, again = (variability(net, parts(x, 6))["1.weight"] for _ in range(2))
    assert torch.equal(first, again)
    assert [part.training for part in net] == [True, True, False, True]
    assert torch.equal(norm.get_buffer("running_mean"), mean)
    assert not any(part._forward_pre_hooks for part in net.modules())


def test_hooks_are_gone_after_an_error() -> None:
    net = nn.Sequential(nn.Linear(3, 2))
    with pytest.raises(RuntimeError):
        variability(net, [torch.zeros(2, 5)])
    assert not net[0]._forward_pre_hooks
    assert net.training


def test_a_transformer_encoder_has_scores_for_the_layers_that_it_calls() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=12, batch_first=True)
    x = torch.randn(4, 5, 8)
    found = variability(layer, [x[:3], x[3:]])
    assert set(found) == {"linear1.weight", "linear2.weight"}  # attention reads out_proj and never calls it
    assert found["linear1.weight"].shape == (12, 8)
    assert bool((found["linear2.weight"] >= 0).all())


def test_every_token_is_an_observation() -> None:
    layer = nn.Linear(3, 2)
    x = torch.randn(4, 5, 3)
    assert torch.allclose(variability(layer, [x])["weight"], variability(layer, [x.reshape(20, 3)])["weight"])


def test_transposed_convolutions_have_no_score() -> None:
    net = nn.Sequential(nn.ConvTranspose2d(1, 1, 2), nn.Conv2d(1, 1, 2))
    assert set(variability(net, [torch.randn(2, 1, 3, 3)])) == {"1.weight"}


def test_nothing_to_score_and_no_such_reading_are_refused() -> None:
    with pytest.raises(InputError, match=r"needs at least one batch"):
        variability(nn.Linear(2, 2), [])
    with pytest.raises(InputError, match=r"unknown reading of activation variability \(expected paper or minmax"):
        variability(nn.Linear(2, 2), [torch.zeros(1, 2)], "mean")  # type: ignore[arg-type]


class Encoder(nn.Module):
    """Torch's own encoder, which in eval mode packs padded tokens into nested tensors."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.encoder(x, src_key_padding_mask=x.abs().sum(dim=2) == 0)
        return out


def test_an_encoder_that_skips_padding_is_measured_as_every_other() -> None:
    x = torch.randn(6, 5, 8)
    x[::2, 3:] = 0
    model = Encoder()
    found = variability(model, [x])
    assert {"encoder.layers.0.linear1.weight", "encoder.layers.1.linear2.weight"} <= found.keys()
    assert all(scores.isfinite().all() for scores in found.values())
    assert torch.backends.mha.get_fastpath_enabled()  # as before
    seen: list[Tensor] = []
    model.encoder.layers[0].linear1.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    model.requires_grad_().eval()(x)  # with gradients torch takes no short cut
    inputs = seen[0].reshape(-1, 8).double()
    weight = model.encoder.layers[0].linear1.weight.detach().double().abs()
    by_hand = weight * inputs.var(dim=0, correction=0) / (inputs.mean(dim=0).abs() + 1e-8)
    torch.testing.assert_close(found["encoder.layers.0.linear1.weight"], by_hand, rtol=1e-4, atol=1e-6)
