"""CIFAR-10 and CIFAR-100: the readers of their files, and the datasets."""

import os
import pickle
from collections.abc import Callable
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from spurless.core.errors import IncompleteDataWarning, InputError, UnknownNameError
from spurless.data.checks import check_splits
from spurless.data.datasets.cifar import (
    CIFAR10_FILES,
    CIFAR10_LAYOUT,
    CIFAR100_CLASSES,
    CIFAR100_FILES,
    CIFAR100_LAYOUT,
    LOSSY_NOTE,
    Cifar10Config,
    Cifar100Config,
    cifar10,
    cifar100,
    read_cifar10,
    read_cifar100,
)


def write_jpegs(root: Path, n: int = 10, size: int = 32) -> Path:
    """Images of one colour each: red is 20 times the number, green the split."""
    arrays: dict[str, Any] = {}
    for split, green in (("train", 40), ("test", 200)):
        files = []
        for i in range(n):
            buffer = BytesIO()
            Image.new("RGB", (size, size), (20 * i, green, 0)).save(buffer, "JPEG", quality=95)
            files.append(buffer.getvalue())
        arrays[f"jpg_{split}"] = np.frombuffer(b"".join(files), np.uint8)
        arrays[f"off_{split}"] = np.cumsum([0, *map(len, files)])
        arrays[f"y_{split}"] = (np.arange(n) % 10).astype(np.uint8)
    np.savez(root / "cifar10_jpeg.npz", **arrays)
    return root / "cifar10_jpeg.npz"


def change(path: Path, **arrays: Any) -> None:
    with np.load(path) as found:
        content = {**{key: found[key] for key in found.files}, **arrays}
    np.savez(path, **content)


class Bomb:
    """Opening its pickle writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.write_text, (self.path, "boom")


def test_binary_batches_are_read_in_order_plane_by_plane(small_cifar: str) -> None:
    found = read_cifar10(small_cifar)
    assert found.form == "official"
    x, y = found.train
    assert x.shape == (200, 3, 32, 32)
    assert x.dtype == torch.uint8
    assert torch.equal(y, torch.arange(40).repeat(5) % 10)
    assert torch.equal(x[:, 0, 0, 0].long(), torch.arange(5).repeat_interleave(40))  # batch after batch
    assert torch.equal(x[:, 1, 31, 31].long(), y)
    assert torch.equal(x[:, 2, 7, 9].long(), torch.arange(40).repeat(5))
    assert len(found.test[1]) == 40


def test_the_fine_label_of_cifar_100_is_the_second_byte(write_binary: Callable[..., str]) -> None:
    root = write_binary("cifar-100-binary", ("train.bin", "test.bin"), 200, 100, True)
    found = read_cifar100(root)
    assert torch.equal(found.train[1], torch.arange(200) % 100)
    assert torch.equal(found.train[0][:, 1, 3, 3].long(), found.train[1])


def test_a_batch_that_was_cut_off_is_refused_by_name(small_cifar: str) -> None:
    path = Path(small_cifar) / CIFAR10_FILES.binary_folder / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        InputError, match=r"data_batch_3.bin: the file is truncated.*a multiple of 3073 bytes, got 122919"
    ):
        read_cifar10(small_cifar)
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"data_batch_3.bin: the file is truncated"):
        read_cifar10(small_cifar)
    path.unlink()
    with pytest.raises(InputError, match=r"data_batch_3.bin: a file of corrupted-cifar10 is missing"):
        read_cifar10(small_cifar, name="corrupted-cifar10")


def test_a_label_that_is_none_is_refused_by_name(small_cifar: str) -> None:
    path = Path(small_cifar) / CIFAR10_FILES.binary_folder / "test_batch.bin"
    content = bytearray(path.read_bytes())
    content[3073 * 5] = 10
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"test_batch.bin: the label of image 5 is out of range"):
        read_cifar10(small_cifar)


@pytest.mark.parametrize(("kind", "read"), [(CIFAR10_FILES, read_cifar10), (CIFAR100_FILES, read_cifar100)])
def test_pickles_that_are_not_the_published_ones_are_never_opened(
    tmp_path: Path, kind: object, read: Callable[[Path], object]
) -> None:
    folder = tmp_path / (CIFAR10_FILES if kind is CIFAR10_FILES else CIFAR100_FILES).pickle_folder
    folder.mkdir()
    files = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch", "batches.meta", "train", "test", "meta"]
    for file in files:
        (folder / file).write_bytes(pickle.dumps(Bomb(tmp_path / "boom")))
    with pytest.raises(
        InputError, match=r"the file '(data_batch_1|train)' is missing or not the published one.*run code"
    ):
        read(tmp_path)
    assert not (tmp_path / "boom").exists()


def test_binary_batches_are_preferred_to_pickles(small_cifar: str) -> None:
    (Path(small_cifar) / CIFAR10_FILES.pickle_folder).mkdir()
    assert read_cifar10(small_cifar).form == "official"


def test_jpegs_are_decoded_and_the_form_is_told(tmp_path: Path) -> None:
    write_jpegs(tmp_path)
    for form in ("auto", "jpeg"):
        found = read_cifar10(tmp_path, form)
        assert found.form == "jpeg"
        for (x, y), green in ((found.train, 40), (found.test, 200)):
            assert x.shape == (10, 3, 32, 32)
            assert (x[:, 0].float().mean(dim=(1, 2)) - 20 * torch.arange(10)).abs().max() < 4  # lossy
            assert (x[:, 1].float() - green).abs().max() < 5
            assert torch.equal(y, torch.arange(10))


def test_the_form_decides_where_both_are_there(small_cifar: str) -> None:
    write_jpegs(Path(small_cifar))
    assert len(read_cifar10(small_cifar).train[1]) == 200
    assert len(read_cifar10(small_cifar, "jpeg").train[1]) == 10
    assert len(read_cifar10(small_cifar, "official").train[1]) == 200


def test_official_files_elsewhere_win_over_jpegs_in_the_data_folder(
    tmp_path: Path, write_binary: Callable[..., str]
) -> None:
    write_jpegs(tmp_path)
    (tmp_path / "cifar10").mkdir()
    write_binary("cifar10/cifar-10-batches-bin", (*CIFAR10_FILES.binary_files[0], *CIFAR10_FILES.binary_files[1]), 10)
    assert read_cifar10(tmp_path).form == "official"


def test_lossy_images_do_not_pass_for_official_ones(tmp_path: Path) -> None:
    write_jpegs(tmp_path)
    with pytest.raises(InputError, match=r"files of cifar10 are missing \(expected cifar-10-batches-py or cifar-10-b"):
        read_cifar10(tmp_path, "official")


def test_the_second_time_nothing_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jpegs(tmp_path)
    first = read_cifar10(tmp_path)
    monkeypatch.setattr("spurless.data.datasets.cifar.decode_all", lambda _: pytest.fail("decoded again"))
    assert torch.equal(read_cifar10(tmp_path).train[0], first.train[0])


def test_other_jpegs_are_decoded_on_their_own(tmp_path: Path) -> None:
    path = write_jpegs(tmp_path)
    first = read_cifar10(tmp_path).train[0]
    with np.load(path) as found:
        change(path, jpg_train=found["jpg_test"], off_train=found["off_test"])
    assert not torch.equal(read_cifar10(tmp_path).train[0], first)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"y_train": np.zeros(9, np.uint8)}, "jpg_train and y_train differ in length .got 10 and 9"),
        ({"off_train": np.arange(11)[::-1].copy()}, "off_train must increase from 0 to the number of bytes"),
        ({"off_train": np.arange(11) * 10**6}, "off_train must increase from 0 to the number of bytes"),
        ({"off_train": np.arange(11.0)}, "jpg_train must be uint8, and off_train integers"),
        ({"off_train": np.arange(11)}, ", train, image 0: the image cannot be read"),
        ({"y_test": np.full(10, 11, np.uint8)}, "the label of image 0 is out of range"),
    ],
)
def test_a_wrong_archive_is_refused_by_name(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    change(write_jpegs(tmp_path), **arrays)
    with pytest.raises(InputError, match=rf"cifar10_jpeg.npz.*{said}"):
        read_cifar10(tmp_path)


def test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    write_jpegs(tmp_path, size=16)
    with pytest.raises(InputError, match=r"not images of CIFAR \(expected \(3, 32, 32\), got \(3, 16, 16\)\)"):
        read_cifar10(tmp_path)


def test_the_downloads_are_torchvisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    for layout, name in ((CIFAR10_LAYOUT, "CIFAR10"), (CIFAR100_LAYOUT, "CIFAR100")):
        monkeypatch.setattr(f"torchvision.datasets.{name}", lambda _, download, n=name: asked.append((n, download)))
        assert layout.download is not None
        layout.download(tmp_path)
    assert asked == [("CIFAR10", True), ("CIFAR100", True)]


def test_val_is_cut_from_train_class_by_class(small_cifar: str) -> None:
    with pytest.warns(
        IncompleteDataWarning, match=r"cifar10 is not complete.*train has 150 instead of 49,950; test has 40 instead of"
    ):
        data = check_splits(cifar10(Cifar10Config(root=small_cifar, val=50)))
    assert [split.counts.tolist() for split in (data.train, data.val, data.test)] == [[15] * 10, [5] * 10, [4] * 10]
    assert data.options["form"] == "official"  # what auto came to
    assert LOSSY_NOTE not in data.notes
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
    with pytest.warns(IncompleteDataWarning):
        data = cifar10(Cifar10Config(root=str(tmp_path), val=10))
    assert data.options["form"] == "jpeg"
    assert LOSSY_NOTE in data.notes


def test_the_seed_decides_who_is_val_and_augmentation_is_for_all(small_cifar: str) -> None:
    with pytest.warns(IncompleteDataWarning):
        first, other = (cifar10(Cifar10Config(small_cifar, val=50, augment="crop-flip", seed=s)) for s in (0, 1))
    assert first.val.fingerprint() != other.val.fingerprint()
    assert first.test.fingerprint() == other.test.fingerprint()
    assert first.train.augment is not None


def test_bad_options_are_refused(small_cifar: str) -> None:
    with pytest.raises(
        InputError, match=r"cifar10: option 'form' is unknown \(expected auto, official, jpeg, got png\)"
    ):
        cifar10(Cifar10Config(form="png"))
    with pytest.raises(InputError, match=r"val must be at least 1"):
        cifar10(Cifar10Config(val=0))
    with pytest.raises(UnknownNameError, match="augmentation"):
        cifar10(Cifar10Config(augment="mirror"))
    with pytest.raises(InputError, match=r"cifar10: the val split must be smaller than the official train split"):
        cifar10(Cifar10Config(root=small_cifar))


@pytest.mark.data
@pytest.mark.skipif("SPURLESS_DATA" not in os.environ, reason="SPURLESS_DATA is not set")
def test_the_real_cifar10_is_whole_and_says_its_form() -> None:
    data = cifar10(Cifar10Config(root=os.environ["SPURLESS_DATA"]))
    assert data.train.counts.tolist() == [4500] * 10
    assert data.test.counts.tolist() == [1000] * 10
    assert (LOSSY_NOTE in data.notes) == (data.options["form"] == "jpeg")


def test_there_are_a_hundred_names_in_the_order_of_the_alphabet() -> None:
    assert len(set(CIFAR100_CLASSES)) == 100
    assert list(CIFAR100_CLASSES) == sorted(CIFAR100_CLASSES)  # as the file of names has them
    assert (CIFAR100_CLASSES[0], CIFAR100_CLASSES[1], CIFAR100_CLASSES[99]) == ("apple", "aquarium fish", "worm")


def test_val_is_cut_from_train_class_by_class_of_cifar100(write_binary: Callable[..., str]) -> None:
    root = write_binary("cifar-100-binary", ("train.bin", "test.bin"), 400, 100, True)
    config = Cifar100Config(root=root, val=100)
    with pytest.warns(IncompleteDataWarning, match=r"cifar100 is not complete.*train has 300 instead of 49,900"):
        data = check_splits(cifar100(config))
    assert [split.counts.tolist() for split in (data.train, data.val, data.test)] == [[3] * 100, [1] * 100, [4] * 100]
    assert data.options == asdict(config)


def test_a_folder_without_it_says_where_to_get_it(small_cifar: str) -> None:
    with pytest.raises(InputError, match=r"the files of cifar100 are missing.*cifar-100-python or cifar-100-binary"):
        cifar100(Cifar100Config(root=small_cifar))
