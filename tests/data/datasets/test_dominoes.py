"""MNIST-CIFAR and dominoes of digits: the upper and the lower half, and how often they differ."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.core.seeds import Seeds
from spurless.data.datasets._digits import load_base_digits
from spurless.data.datasets.dominoes import (
    MNIST_CIFAR_LAYOUT,
    DominoesDigitsConfig,
    MnistCifarConfig,
    dominoes_digits,
    make_base_textures,
    mnist_cifar,
    stack,
)
from spurless.data.split import Split


def test_the_digit_is_on_top_and_the_photograph_is_the_label(small_mnist: str, small_cifar: str) -> None:
    assert small_mnist == small_cifar  # one data folder for both
    with pytest.warns(
        IncompleteDataWarning, match=r"mnist-cifar is not complete.*train has 180 instead of 45,000; val has 20"
    ):
        data = mnist_cifar(MnistCifarConfig(root=small_mnist, conflicting=0.5))
    for split in (data.train, data.val, data.test):
        assert isinstance(split.x, Tensor)
        assert split.x.shape[1:] == (3, 64, 32)
        # the fixtures write the digit at (14, 14), which the padding moves by 2, and the class into green
        assert torch.equal(split.x[:, 0, 16, 16].long(), split.a)
        assert torch.equal(split.x[:, 1, 32, 0].long(), split.y)
    assert [int((data.train.a[data.train.y == k] != k).sum()) for k in range(10)] == [9] * 10
    assert data.options["form"] == "official"
    assert data.groups.name(3) == "airplane, 3 on top"


def test_one_of_the_two_is_not_enough(small_cifar: str) -> None:
    with pytest.raises(InputError, match=r"the files of mnist-cifar are missing .*mnist.npz"):
        mnist_cifar(MnistCifarConfig(root=small_cifar))


def test_the_other_one_is_not_enough_either(small_mnist: str) -> None:
    with pytest.raises(InputError, match=r"the files of mnist-cifar are missing .*cifar-10-batches-py"):
        mnist_cifar(MnistCifarConfig(root=small_mnist))


def test_bad_options_are_refused() -> None:
    with pytest.raises(InputError, match="conflicting must be a fraction"):
        mnist_cifar(MnistCifarConfig(conflicting=1.1))
    with pytest.raises(InputError, match="mnist-cifar: option 'form' is unknown"):
        mnist_cifar(MnistCifarConfig(form="gif"))


def test_both_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    for name in ("MNIST", "CIFAR10"):
        monkeypatch.setattr(f"torchvision.datasets.{name}", lambda _, download, n=name: asked.append((n, download)))
    assert MNIST_CIFAR_LAYOUT.download is not None
    MNIST_CIFAR_LAYOUT.download(tmp_path)
    assert asked == [("MNIST", True), ("CIFAR10", True)]


@pytest.mark.data
@pytest.mark.skipif("SPURLESS_DATA" not in os.environ, reason="SPURLESS_DATA is not set")
def test_the_real_halves_are_whole() -> None:
    data = mnist_cifar(MnistCifarConfig(root=os.environ["SPURLESS_DATA"]))
    assert (len(data.train), len(data.val), len(data.test)) == (45_000, 5_000, 10_000)
    assert int((data.train.a != data.train.y).sum()) == 4_500


def halves(split: Split) -> tuple[Tensor, Tensor]:
    assert isinstance(split.x, Tensor)
    assert split.x.shape[1:] == (3, 64, 32)
    return split.x[:, :, :32], split.x[:, :, 32:]


def test_a_domino_by_hand() -> None:
    x = stack(torch.full((1, 28, 28), 9, dtype=torch.uint8), torch.full((1, 3, 32, 32), 5, dtype=torch.uint8))
    assert x.shape == (1, 3, 64, 32)
    assert int(x[:, :, :32].sum()) == 3 * 28 * 28 * 9
    assert (x[:, :, 2:30, 2:30] == 9).all()
    assert (x[:, :, 32:] == 5).all()


def test_the_digit_on_top_is_the_attribute_from_the_same_split() -> None:
    data, raw = dominoes_digits(DominoesDigitsConfig(conflicting=0.5)), load_base_digits(28, Seeds(0))
    for split, index in zip((data.train, data.val, data.test), raw.indices.values(), strict=True):
        own = {bytes(raw.x[i].numpy()): int(raw.y[i]) for i in index.tolist()}
        top, _ = halves(split)
        assert torch.equal(top[:, 0], top[:, 2])
        found = [own[image.contiguous().numpy().tobytes()] for image in top[:, 0, 2:30, 2:30]]
        assert found == split.a.tolist()


def test_the_pattern_below_is_the_label() -> None:
    data = dominoes_digits(DominoesDigitsConfig())
    raw = make_base_textures({"train": 1000, "val": 297, "test": 500}, Seeds(0))
    for split, index in zip((data.train, data.val, data.test), raw.indices.values(), strict=True):
        assert torch.equal(halves(split)[1], raw.x[index])
        assert torch.equal(split.y, raw.y[index])
        assert split.class_counts.max() - split.class_counts.min() <= 1


def test_conflicting_counts_are_exact_and_the_rest_is_unbiased() -> None:
    data = dominoes_digits(DominoesDigitsConfig())
    assert [int((data.train.a[data.train.y == k] != k).sum()) for k in range(10)] == [10] * 10
    for split in (data.val, data.test):
        cells = split.counts.view(10, 10)
        assert (cells.max(dim=1).values - cells.min(dim=1).values <= 1).all()


def test_a_bad_share_is_refused() -> None:
    with pytest.raises(InputError, match="conflicting must be a fraction"):
        dominoes_digits(DominoesDigitsConfig(conflicting=-0.1))
