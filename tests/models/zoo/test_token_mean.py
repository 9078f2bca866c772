"""Token mean: averages by hand, each part of a pair apart, padding unseen."""

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.models import build
from spurless.models.zoo.token_mean import TokenMean, TokenMeanConfig, masked_mean


def text(*rows: list[int], types: list[list[int]] | None = None) -> dict[str, Tensor]:
    ids = torch.tensor(rows, dtype=torch.int32)
    x = {"input_ids": ids, "attention_mask": (ids > 0).int()}
    return x if types is None else {**x, "token_type_ids": torch.tensor(types, dtype=torch.int32)}


def seen(net: TokenMean, x: dict[str, Tensor]) -> Tensor:
    """What the MLP is given."""
    found: list[Tensor] = []
    hook = net.mlp.register_forward_pre_hook(lambda _, given: found.append(given[0]))
    net(**x)
    hook.remove()
    return found[0]


def test_the_parts_of_a_pair_are_averaged_apart_and_compared() -> None:
    net = TokenMean(TokenMeanConfig(vocabulary=10, width=1, hidden=2))
    with torch.no_grad():
        net.words.weight.copy_(torch.arange(10.0)[:, None])
    x = text([2, 4, 5, 0], [2, 6, 1, 0], types=[[0, 0, 1, 0], [0, 0, 1, 0]])
    # u = mean(2, 4) = 3, v = 5; then u = mean(2, 6) = 4, v = 1
    assert seen(net, x).tolist() == [[3, 5, 2, 15], [4, 1, 3, 4]]
    assert seen(net, text([2, 4, 6])).tolist() == [[4, 0, 4, 0]]  # a text alone has no second part
    assert seen(net, text([0, 0, 0])).tolist() == [[0, 0, 0, 0]]  # nor has no text a mean


def test_padding_and_the_order_of_words_change_nothing_and_the_parts_do() -> None:
    model = build("token-mean", input_shape=(6,), n_classes=3, vocabulary=10).eval()
    pair = text([3, 4, 5, 6], types=[[0, 0, 1, 1]])
    longer = text([3, 4, 5, 6, 0, 0], types=[[0, 0, 1, 1, 0, 0]])
    turned = text([4, 3, 6, 5], types=[[0, 0, 1, 1]])
    crossed = text([3, 5, 4, 6], types=[[0, 0, 1, 1]])
    torch.testing.assert_close(model(pair), model(longer))
    torch.testing.assert_close(model(pair), model(turned))
    assert not torch.allclose(model(pair), model(crossed))


def test_larger_token_ids_share_the_vectors() -> None:
    model = build("token-mean", input_shape=(2,), n_classes=2, vocabulary=7)
    assert torch.equal(model(text([3, 5])), model(text([10, 12])))
    # 7 words of 32, an MLP from 4 * 32 to 64 to 64, and a head
    assert model.parameters_count == 7 * 32 + (128 * 64 + 64) + (64 * 64 + 64) + (64 * 2 + 2)


def test_the_mean_is_taken_over_the_mask() -> None:
    states = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [100.0, 100.0]]])
    assert masked_mean(states, torch.tensor([[1, 1, 0]])).tolist() == [[2, 3]]


@pytest.mark.parametrize("option", ["vocabulary", "width", "hidden"])
def test_sizes_below_one_are_refused(option: str) -> None:
    with pytest.raises(InputError, match=rf"{option} must be at least 1"):
        TokenMeanConfig(**{option: 0})
