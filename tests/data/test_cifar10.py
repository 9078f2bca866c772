"""CIFAR-10: the classes are the groups, and val is cut from train."""

import os
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from spurless.core.errors import BadInput, Incomplete, UnknownName
from spurless.data.checks import check_splits
from spurless.data.cifar import LOSSY
from spurless.data.cifar10 import Cifar10Config, cifar10


def test_val_is_cut_from_train_class_by_class(small_cifar: str) -> None:
    with pytest.warns(Incomplete, match=r"not the whole cifar10.*train has 150 and not 49,950; test has 40 and not"):
        data = check_splits(cifar10(Cifar10Config(root=small_cifar, val=50)))
    assert [split.counts.tolist() for split in (data.train, data.val, data.test)] == [[15] * 10, [5] * 10, [4] * 10]
    assert data.options["form"] == "official"  # what auto came to
    assert LOSSY not in data.notes
    assert not data.train.has_attributes
    assert data.groups.names[:2] == ("airplane", "automobile")
    train, val = data.train.x, data.val.x
    assert isinstance(train, Tensor)
    assert isinstance(val, Tensor)
    assert torch.equal(train[:, 1, 0, 0].long(), data.train.y)
    keys = [{(int(image[0, 0, 0]), int(image[2, 0, 0])) for image in x} for x in (train, val)]
    assert len(keys[0]) == 150
    assert not keys[0] & keys[1]


def test_lossy_images_are_told_in_options_and_notes(tmp_path: Path) -> None:
    buffer = BytesIO()
    Image.new("RGB", (32, 32), (90, 90, 90)).save(buffer, "JPEG")
    pack = np.frombuffer(buffer.getvalue() * 40, np.uint8)
    offsets, y = np.arange(41) * len(buffer.getvalue()), np.arange(40) % 10
    arrays = {
        f"{key}_{split}": value
        for split in ("train", "test")
        for key, value in (("jpg", pack), ("off", offsets), ("y", y))
    }
    np.savez(tmp_path / "cifar10_jpeg.npz", allow_pickle=False, **arrays)
    with pytest.warns(Incomplete):
        data = cifar10(Cifar10Config(root=str(tmp_path), val=10))
    assert data.options["form"] == "jpeg"
    assert LOSSY in data.notes


def test_the_seed_decides_who_is_val_and_augmentation_is_for_all(small_cifar: str) -> None:
    with pytest.warns(Incomplete):
        first, other = (cifar10(Cifar10Config(small_cifar, val=50, augment="crop-flip", seed=s)) for s in (0, 1))
    assert first.val.fingerprint() != other.val.fingerprint()
    assert first.test.fingerprint() == other.test.fingerprint()
    assert first.train.augment is not None


def test_bad_options_are_refused(small_cifar: str) -> None:
    with pytest.raises(BadInput, match=r"cifar10: option 'form' is unknown \(expected auto, official, jpeg, got png\)"):
        cifar10(Cifar10Config(form="png"))
    with pytest.raises(BadInput, match=r"cifar10: option 'val' must be at least 1"):
        cifar10(Cifar10Config(val=0))
    with pytest.raises(UnknownName, match="augmentation"):
        cifar10(Cifar10Config(augment="mirror"))
    with pytest.raises(BadInput, match=r"cifar10: the val split must leave something of the train split"):
        cifar10(Cifar10Config(root=small_cifar))


@pytest.mark.data
@pytest.mark.skipif("SPURLESS_DATA" not in os.environ, reason="SPURLESS_DATA is not set")
def test_the_real_cifar10_is_whole_and_says_its_form() -> None:
    data = cifar10(Cifar10Config(root=os.environ["SPURLESS_DATA"]))
    assert data.train.counts.tolist() == [4500] * 10
    assert data.test.counts.tolist() == [1000] * 10
    assert (LOSSY in data.notes) == (data.options["form"] == "jpeg")
