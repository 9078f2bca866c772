"""MNIST-CIFAR: digits of one folder on photographs of the other, by the twin's code."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from spurless.core.errors import BadInput, Incomplete
from spurless.data.mnist_cifar import LAYOUT, MnistCifarConfig, mnist_cifar


def test_the_digit_is_on_top_and_the_photograph_is_the_label(small_mnist: str, small_cifar: str) -> None:
    assert small_mnist == small_cifar  # one data folder for both
    with pytest.warns(Incomplete, match=r"not the whole mnist-cifar.*train has 180 and not 45,000; val has 20"):
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
    with pytest.raises(BadInput, match=r"the files of mnist-cifar are not there .*mnist.npz"):
        mnist_cifar(MnistCifarConfig(root=small_cifar))


def test_the_other_one_is_not_enough_either(small_mnist: str) -> None:
    with pytest.raises(BadInput, match=r"the files of mnist-cifar are not there .*cifar-10-batches-py"):
        mnist_cifar(MnistCifarConfig(root=small_mnist))


def test_bad_options_are_refused() -> None:
    with pytest.raises(BadInput, match="mnist-cifar: option 'conflicting' must be a share"):
        mnist_cifar(MnistCifarConfig(conflicting=1.1))
    with pytest.raises(BadInput, match="mnist-cifar: option 'form' is unknown"):
        mnist_cifar(MnistCifarConfig(form="gif"))


def test_both_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    for name in ("MNIST", "CIFAR10"):
        monkeypatch.setattr(f"torchvision.datasets.{name}", lambda _, download, n=name: asked.append((n, download)))
    assert LAYOUT.download is not None
    LAYOUT.download(tmp_path)
    assert asked == [("MNIST", True), ("CIFAR10", True)]


@pytest.mark.data
@pytest.mark.skipif("SPURLESS_DATA" not in os.environ, reason="SPURLESS_DATA is not set")
def test_the_real_halves_are_whole() -> None:
    data = mnist_cifar(MnistCifarConfig(root=os.environ["SPURLESS_DATA"]))
    assert (len(data.train), len(data.val), len(data.test)) == (45_000, 5_000, 10_000)
    assert int((data.train.a != data.train.y).sum()) == 4_500
