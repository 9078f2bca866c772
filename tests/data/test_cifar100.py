"""CIFAR-100: a hundred fine labels in the published order."""

from collections.abc import Callable
from dataclasses import asdict

import pytest

from spurless.core.errors import BadInput, Incomplete
from spurless.data.checks import check_splits
from spurless.data.cifar100 import CLASSES, Cifar100Config, cifar100


def test_there_are_a_hundred_names_in_the_order_of_the_alphabet() -> None:
    assert len(set(CLASSES)) == 100
    assert list(CLASSES) == sorted(CLASSES)  # as the file of names has them
    assert (CLASSES[0], CLASSES[1], CLASSES[99]) == ("apple", "aquarium fish", "worm")


def test_val_is_cut_from_train_class_by_class(write_binary: Callable[..., str]) -> None:
    root = write_binary("cifar-100-binary", ("train.bin", "test.bin"), 400, 100, True)
    config = Cifar100Config(root=root, val=100)
    with pytest.warns(Incomplete, match=r"not the whole cifar100.*train has 300 and not 49,900"):
        data = check_splits(cifar100(config))
    assert [split.counts.tolist() for split in (data.train, data.val, data.test)] == [[3] * 100, [1] * 100, [4] * 100]
    assert data.options == asdict(config)


def test_a_folder_without_it_says_where_to_get_it(small_cifar: str) -> None:
    with pytest.raises(BadInput, match=r"the files of cifar100 are not there.*cifar-100-python or cifar-100-binary"):
        cifar100(Cifar100Config(root=small_cifar))
