"""Corrupted CIFAR-10 and corrupted digits: the published counts, and the corruption of each image."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.core.seeds import Seeds
from spurless.data.corruptions import ORIGINAL, PAIRED_TEN, corrupt
from spurless.data.datasets import corrupted as module
from spurless.data.datasets._base_images import hold_out_val
from spurless.data.datasets._digits import assign_by_split, load_base_digits
from spurless.data.datasets.cifar import CIFAR10_CLASSES, read_cifar10
from spurless.data.datasets.corrupted import (
    CORRUPTED_CIFAR10_CARD,
    CorruptedCifar10Config,
    CorruptedDigitsConfig,
    corrupted_cifar10,
    corrupted_digits,
    count_train_and_conflicting,
)

PAPER = {0.005: (44_832, 228), 0.01: (44_527, 442), 0.02: (44_145, 887), 0.05: (42_820, 2_242)}


@pytest.mark.parametrize("share", PAPER)
def test_the_counts_are_those_of_the_paper(share: float) -> None:
    y, blank = torch.arange(50_000) % 10, torch.zeros(50_000, 1)
    n_train, n_conflicting = count_train_and_conflicting(share, 50_000)
    raw = hold_out_val("x", (blank, y), (blank[:10_000], y[:10_000]), 50_000 - n_train, Seeds(0))
    a = assign_by_split(raw, CorruptedCifar10Config(conflicting=share), n_conflicting)
    wrong = a["train"] != raw.y[raw.train]
    assert (int((~wrong).sum()), int(wrong.sum())) == PAPER[share]
    assert len(raw.train) + len(raw.val) == 50_000
    per_class = torch.bincount(raw.y[raw.train][wrong], minlength=10)
    assert per_class.max() - per_class.min() <= 1  # ten classes of one size, to within one
    for name, index in (("val", raw.val), ("test", raw.test)):
        cells = torch.bincount(10 * raw.y[index] + a[name], minlength=100).view(10, 10)
        assert (cells.max(dim=1).values - cells.min(dim=1).values <= 1).all()


def test_at_another_share_or_of_a_part_the_counts_are_rounded() -> None:
    assert count_train_and_conflicting(0.1, 50_000) == (45_000, 4_500)
    assert count_train_and_conflicting(0.01, 200) == (180, 2)


def test_the_corruptions_go_with_the_classes_in_the_order_of_the_paper() -> None:
    pairs = dict(zip(CIFAR10_CLASSES, PAIRED_TEN[CorruptedCifar10Config().corruptions], strict=True))
    words = (
        "brightness contrast gaussian-noise frost elastic gaussian-blur defocus-blur impulse-noise saturate pixelate"
    )
    assert all(name.startswith(word) for name, word in zip(pairs.values(), words.split(), strict=True))
    assert (pairs["airplane"][:10], pairs["truck"]) == ("brightness", "pixelate")
    totals = [sum(pair) for pair in PAPER.values()]
    assert all(f"{total:,}" in CORRUPTED_CIFAR10_CARD.splits for total in totals)


def test_every_image_has_the_corruption_of_its_attribute(small_cifar: str) -> None:
    config = CorruptedCifar10Config(root=small_cifar, conflicting=0.2, severity=3, seed=4)
    with pytest.warns(
        IncompleteDataWarning, match=r"corrupted-cifar10 is not complete.*train has 180 instead of 45,000"
    ):
        data = corrupted_cifar10(config)
    assert int((data.train.a != data.train.y).sum()) == 36
    found = read_cifar10(small_cifar)
    raw = found.hold_out_val("x", 20, Seeds(4))
    for split, index in zip((data.train, data.val, data.test), raw.indices.values(), strict=True):
        assert isinstance(split.x, Tensor)
        assert torch.equal(split.y, raw.y[index])
        for a, name in enumerate(data.groups.attributes):
            own = index[split.a == a]
            assert torch.equal(split.x[split.a == a], corrupt(raw.x[own], name, 3, seed=4, index=own))


def test_the_second_time_nothing_is_made(small_cifar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(IncompleteDataWarning):
        first = corrupted_cifar10(CorruptedCifar10Config(root=small_cifar))
    monkeypatch.setattr(module, "corrupt", lambda *_, **__: pytest.fail("made again"))
    with pytest.warns(IncompleteDataWarning):
        again = corrupted_cifar10(CorruptedCifar10Config(root=small_cifar, device="cpu"))  # changes no pixel
    assert first.fingerprint() == again.fingerprint()


def test_other_options_and_other_images_are_made_on_their_own(small_cifar: str) -> None:
    base = {"root": small_cifar, "conflicting": 0.1}
    with pytest.warns(IncompleteDataWarning):
        prints = {
            corrupted_cifar10(CorruptedCifar10Config(**{**base, **change})).test.fingerprint()  # type: ignore[arg-type]
            for change in ({}, {"severity": 2}, {"seed": 1}, {"corruptions": "lff-0"})
        }
    path = Path(small_cifar) / "cifar-10-batches-bin" / "test_batch.bin"
    content = bytearray(path.read_bytes())
    content[100:200] = bytes(100)
    path.write_bytes(content)
    with pytest.warns(IncompleteDataWarning):
        prints.add(corrupted_cifar10(CorruptedCifar10Config(root=small_cifar, conflicting=0.1)).test.fingerprint())
    assert len(prints) == 5


def test_the_last_of_lffs_second_list_is_the_image_itself() -> None:
    data = corrupted_digits(CorruptedDigitsConfig(seed=2, conflicting=0.5, corruptions="lff-1"))
    raw = load_base_digits(32, Seeds(2))
    assert data.groups.attributes == PAIRED_TEN["lff-1"]
    assert isinstance(data.train.x, Tensor)
    changed = (data.train.x != raw.x[raw.train][:, None]).flatten(1).any(dim=1)
    original = data.train.a == data.groups.attributes.index(ORIGINAL)
    assert not changed[original].any()
    assert changed[~original].all()


def test_a_list_of_corruptions_gives_its_own_pixels() -> None:
    data, raw = corrupted_digits(CorruptedDigitsConfig(corruptions="lff-0")), load_base_digits(32, Seeds(0))
    assert isinstance(data.val.x, Tensor)
    for a, name in ((3, "brightness"), (7, "jpeg-compression")):
        own = raw.val[data.val.a == a]
        assert torch.equal(
            data.val.x[data.val.a == a], corrupt(raw.x[own][:, None].repeat(1, 3, 1, 1), name, 5, index=own)
        )


def test_bad_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"severity must be .*got 0"):
        corrupted_cifar10(CorruptedCifar10Config(severity=0))
    with pytest.raises(
        InputError, match=r"option 'corruptions' is unknown \(expected dcwp-text, lff-0, lff-1, got lff"
    ):
        corrupted_cifar10(CorruptedCifar10Config(corruptions="lff"))
    with pytest.raises(InputError, match=r"option 'device' is unknown \(expected auto, cpu, cuda, got tpu\)"):
        corrupted_cifar10(CorruptedCifar10Config(device="tpu"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match=r"option 'device' is cuda, but CUDA is not available"):
        corrupted_cifar10(CorruptedCifar10Config(device="cuda"))


@pytest.mark.data
@pytest.mark.skipif("SPURLESS_DATA" not in os.environ, reason="SPURLESS_DATA is not set")
def test_the_real_cifar10_gives_the_published_counts() -> None:
    data = corrupted_cifar10(CorruptedCifar10Config(root=os.environ["SPURLESS_DATA"]))
    assert int((data.train.a == data.train.y).sum()) == 44_527
    assert int((data.train.a != data.train.y).sum()) == 442


def test_augmentation_is_for_training_alone_and_makes_no_other_images(small_cifar: str) -> None:
    with pytest.warns(IncompleteDataWarning):
        plain, turned = (
            corrupted_cifar10(CorruptedCifar10Config(root=small_cifar, conflicting=0.1, augment=name))
            for name in ("none", "crop-flip")
        )
    assert torch.equal(torch.as_tensor(plain.train.x), torch.as_tensor(turned.train.x))
    assert plain.train.augment is None
    assert turned.train.augment is not None
    assert turned.test.augment is None


def test_conflicting_counts_are_exact_in_every_class() -> None:
    train = corrupted_digits(CorruptedDigitsConfig(conflicting=0.05)).train
    for label, n in enumerate(train.class_counts.tolist()):
        assert int((train.a[train.y == label] != label).sum()) == round(0.05 * n)


def test_every_digit_has_the_corruption_of_its_attribute() -> None:
    data, raw = corrupted_digits(CorruptedDigitsConfig(seed=2, conflicting=0.5)), load_base_digits(32, Seeds(2))
    rgb = raw.x[:, None].repeat(1, 3, 1, 1)
    for split, index in zip((data.train, data.val, data.test), raw.indices.values(), strict=True):
        assert isinstance(split.x, Tensor)
        assert torch.equal(split.y, raw.y[index])
        for a, name in enumerate(data.groups.attributes):
            own = index[split.a == a]
            assert torch.equal(split.x[split.a == a], corrupt(rgb[own], name, 5, seed=2, index=own))


def test_val_and_test_have_each_corruption_as_often_as_any_other() -> None:
    data = corrupted_digits(CorruptedDigitsConfig(severity=1))
    for split in (data.val, data.test):
        cells = split.counts.view(10, 10)
        assert (cells.max(dim=1).values - cells.min(dim=1).values <= 1).all()
    biased = corrupted_digits(CorruptedDigitsConfig(severity=1, val_conflicting=0)).val
    assert torch.equal(biased.a, biased.y)


def test_bad_options_are_refused_of_corrupted_digits() -> None:
    with pytest.raises(InputError, match="conflicting must be a fraction"):
        corrupted_digits(CorruptedDigitsConfig(conflicting=1.5))
    with pytest.raises(InputError, match="severity must be"):
        corrupted_digits(CorruptedDigitsConfig(severity=6))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_changes_no_pixel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prints = set()
    for device in ("cpu", "cuda"):
        monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path / device))  # each makes its own
        prints.add(corrupted_digits(CorruptedDigitsConfig(device=device)).fingerprint())
    assert len(prints) == 1
