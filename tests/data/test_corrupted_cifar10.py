"""Corrupted CIFAR-10: the published counts on 50,000 labels, and the corruption each image should have."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from spurless.core.errors import BadInput, Incomplete
from spurless.core.seeds import Seeds
from spurless.data import corrupted_cifar10 as module
from spurless.data.cifar import read_cifar10
from spurless.data.corrupted_cifar10 import (
    CARD,
    GROUPS,
    CorruptedCifar10Config,
    assigned,
    corrupted_cifar10,
    counts,
)
from spurless.data.corruptions import corrupt
from spurless.data.raw import hold_out

PAPER = {0.005: (44_832, 228), 0.01: (44_527, 442), 0.02: (44_145, 887), 0.05: (42_820, 2_242)}


@pytest.mark.parametrize("share", PAPER)
def test_the_counts_are_those_of_the_paper(share: float) -> None:
    y, blank = torch.arange(50_000) % 10, torch.zeros(50_000, 1)
    n_train, n_conflicting = counts(share, 50_000)
    raw = hold_out("x", (blank, y), (blank[:10_000], y[:10_000]), 50_000 - n_train, Seeds(0))
    a = assigned(raw, CorruptedCifar10Config(conflicting=share), n_conflicting)
    wrong = a["train"] != raw.y[raw.train]
    assert (int((~wrong).sum()), int(wrong.sum())) == PAPER[share]
    assert len(raw.train) + len(raw.val) == 50_000
    per_class = torch.bincount(raw.y[raw.train][wrong], minlength=10)
    assert per_class.max() - per_class.min() <= 1  # ten classes of one size, to within one
    for name, index in (("val", raw.val), ("test", raw.test)):
        cells = torch.bincount(10 * raw.y[index] + a[name], minlength=100).view(10, 10)
        assert (cells.max(dim=1).values - cells.min(dim=1).values <= 1).all()


def test_at_another_share_or_of_a_part_the_counts_are_rounded() -> None:
    assert counts(0.1, 50_000) == (45_000, 4_500)
    assert counts(0.01, 200) == (180, 2)


def test_the_corruptions_go_with_the_classes_in_the_order_of_the_paper() -> None:
    pairs = dict(zip(GROUPS.labels, GROUPS.attributes, strict=True))
    words = (
        "brightness contrast gaussian-noise frost elastic gaussian-blur defocus-blur impulse-noise saturate pixelate"
    )
    assert all(name.startswith(word) for name, word in zip(pairs.values(), words.split(), strict=True))
    assert (pairs["airplane"][:10], pairs["truck"]) == ("brightness", "pixelate")
    totals = [sum(pair) for pair in PAPER.values()]
    assert all(f"{total:,}" in CARD.splits for total in totals)


def test_every_image_has_the_corruption_of_its_attribute(small_cifar: str) -> None:
    config = CorruptedCifar10Config(root=small_cifar, conflicting=0.2, severity=3, seed=4)
    with pytest.warns(Incomplete, match=r"not the whole corrupted-cifar10.*train has 180 and not 45,000"):
        data = corrupted_cifar10(config)
    assert int((data.train.a != data.train.y).sum()) == 36
    found = read_cifar10(small_cifar)
    raw = found.cut("x", 20, Seeds(4))
    for split, index in zip((data.train, data.val, data.test), raw.parts.values(), strict=True):
        assert isinstance(split.x, Tensor)
        assert torch.equal(split.y, raw.y[index])
        for a, name in enumerate(GROUPS.attributes):
            own = index[split.a == a]
            assert torch.equal(split.x[split.a == a], corrupt(raw.x[own], name, 3, seed=4, index=own))


def test_the_second_time_nothing_is_made(small_cifar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(Incomplete):
        first = corrupted_cifar10(CorruptedCifar10Config(root=small_cifar))
    monkeypatch.setattr(module, "corrupt", lambda *_, **__: pytest.fail("made again"))
    with pytest.warns(Incomplete):
        again = corrupted_cifar10(CorruptedCifar10Config(root=small_cifar, device="cpu"))  # changes no pixel
    assert first.fingerprint() == again.fingerprint()


def test_other_options_and_other_images_are_made_on_their_own(small_cifar: str) -> None:
    base = {"root": small_cifar, "conflicting": 0.1}
    with pytest.warns(Incomplete):
        prints = {
            corrupted_cifar10(CorruptedCifar10Config(**{**base, **change})).test.fingerprint()  # type: ignore[arg-type]
            for change in ({}, {"severity": 2}, {"seed": 1})
        }
    path = Path(small_cifar) / "cifar-10-batches-bin" / "test_batch.bin"
    content = bytearray(path.read_bytes())
    content[100:200] = bytes(100)
    path.write_bytes(content)
    with pytest.warns(Incomplete):
        prints.add(corrupted_cifar10(CorruptedCifar10Config(root=small_cifar, conflicting=0.1)).test.fingerprint())
    assert len(prints) == 4


def test_bad_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"corrupted-cifar10: option 'severity' is out of range .*got 0"):
        corrupted_cifar10(CorruptedCifar10Config(severity=0))
    with pytest.raises(BadInput, match=r"option 'device' is unknown \(expected auto, cpu, cuda, got tpu\)"):
        corrupted_cifar10(CorruptedCifar10Config(device="tpu"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(BadInput, match=r"option 'device' is cuda, and there is none"):
        corrupted_cifar10(CorruptedCifar10Config(device="cuda"))


@pytest.mark.data
@pytest.mark.skipif("SPURLESS_DATA" not in os.environ, reason="SPURLESS_DATA is not set")
def test_the_real_cifar10_gives_the_published_counts() -> None:
    data = corrupted_cifar10(CorruptedCifar10Config(root=os.environ["SPURLESS_DATA"]))
    assert int((data.train.a == data.train.y).sum()) == 44_527
    assert int((data.train.a != data.train.y).sum()) == 442


def test_augmentation_is_for_training_alone_and_makes_no_other_images(small_cifar: str) -> None:
    with pytest.warns(Incomplete):
        plain, turned = (
            corrupted_cifar10(CorruptedCifar10Config(small_cifar, conflicting=0.1, augment=name))
            for name in ("none", "crop-flip")
        )
    assert torch.equal(torch.as_tensor(plain.train.x), torch.as_tensor(turned.train.x))
    assert plain.train.augment is None
    assert turned.train.augment is not None
    assert turned.test.augment is None
