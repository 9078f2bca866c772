"""Dominoes of digits: what is on top, what is below, and that nothing leaks."""

import pytest
import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.seeds import Seeds
from spurless.data.digits import raw_digits
from spurless.data.dominoes_digits import DominoesDigitsConfig, domino, dominoes_digits, raw_textures
from spurless.data.grouped import Grouped


def halves(split: Grouped) -> tuple[Tensor, Tensor]:
    assert isinstance(split.x, Tensor)
    assert split.x.shape[1:] == (3, 64, 32)
    return split.x[:, :, :32], split.x[:, :, 32:]


def test_a_domino_by_hand() -> None:
    x = domino(torch.full((1, 28, 28), 9, dtype=torch.uint8), torch.full((1, 3, 32, 32), 5, dtype=torch.uint8))
    assert x.shape == (1, 3, 64, 32)
    assert int(x[:, :, :32].sum()) == 3 * 28 * 28 * 9
    assert (x[:, :, 2:30, 2:30] == 9).all()
    assert (x[:, :, 32:] == 5).all()


def test_the_digit_on_top_is_the_attribute_from_the_same_split() -> None:
    data, raw = dominoes_digits(DominoesDigitsConfig(conflicting=0.5)), raw_digits(28, Seeds(0))
    for split, index in zip((data.train, data.val, data.test), raw.parts.values(), strict=True):
        own = {bytes(raw.x[i].numpy()): int(raw.y[i]) for i in index.tolist()}
        top, _ = halves(split)
        assert torch.equal(top[:, 0], top[:, 2])
        found = [own[image.contiguous().numpy().tobytes()] for image in top[:, 0, 2:30, 2:30]]
        assert found == split.a.tolist()


def test_the_pattern_below_is_the_label() -> None:
    data = dominoes_digits()
    raw = raw_textures({"train": 1000, "val": 297, "test": 500}, Seeds(0))
    for split, index in zip((data.train, data.val, data.test), raw.parts.values(), strict=True):
        assert torch.equal(halves(split)[1], raw.x[index])
        assert torch.equal(split.y, raw.y[index])
        assert split.class_counts.max() - split.class_counts.min() <= 1


def test_conflicting_counts_are_exact_and_the_rest_is_unbiased() -> None:
    data = dominoes_digits()
    assert [int((data.train.a[data.train.y == k] != k).sum()) for k in range(10)] == [10] * 10
    for split in (data.val, data.test):
        cells = split.counts.view(10, 10)
        assert (cells.max(dim=1).values - cells.min(dim=1).values <= 1).all()


def test_a_bad_share_is_refused() -> None:
    with pytest.raises(BadInput, match="dominoes-digits: option 'conflicting' must be a share"):
        dominoes_digits(DominoesDigitsConfig(conflicting=-0.1))
