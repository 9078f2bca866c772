"""Colored MNIST: the published counts on files of full size, and the same code as its twin."""

import os

import pytest
import torch

from spurless.core.errors import BadInput, Incomplete
from spurless.data.colored_mnist import CARD, CONFLICTING, ColoredMnistConfig, colored_mnist
from spurless.data.digits import PALETTE
from spurless.data.grouped import Splits

PAPER = {0.005: (54_751, 249), 0.01: (54_509, 491), 0.02: (54_014, 986), 0.05: (52_551, 2_449)}


def aligned_and_conflicting(data: Splits) -> tuple[int, int]:
    wrong = int((data.train.a != data.train.y).sum())
    return len(data.train) - wrong, wrong


@pytest.mark.parametrize("share", PAPER)
def test_the_counts_are_those_of_the_paper(full_mnist: str, share: float) -> None:
    data = colored_mnist(ColoredMnistConfig(root=full_mnist, conflicting=share))
    assert aligned_and_conflicting(data) == PAPER[share]
    assert (len(data.train), len(data.val), len(data.test)) == (55_000, 5_000, 10_000)
    # in proportion to the classes, by largest remainder: never a whole one off
    classes = data.train.class_counts
    wrong = torch.bincount(data.train.y[data.train.a != data.train.y], minlength=10)
    assert ((wrong - classes * PAPER[share][1] / 55_000).abs() < 1).all()
    # the nine others as evenly as possible
    others = data.train.counts.view(10, 10)[~torch.eye(10, dtype=torch.bool)].view(10, 9)
    assert (others.max(dim=1).values - others.min(dim=1).values <= 1).all()
    for split in (data.val, data.test):
        cells = split.counts.view(10, 10)
        assert (cells.max(dim=1).values - cells.min(dim=1).values <= 1).all()


def test_at_another_share_the_count_is_rounded(full_mnist: str) -> None:
    data = colored_mnist(ColoredMnistConfig(root=full_mnist, conflicting=0.025, val_conflicting=0.0))
    assert aligned_and_conflicting(data) == (53_625, 1_375)
    assert torch.equal(data.val.a, data.val.y)


def test_a_part_of_mnist_can_be_used_and_is_told(small_mnist: str) -> None:
    with pytest.warns(Incomplete, match=r"not the whole colored-mnist.*train has 550 and not 55,000"):
        data = colored_mnist(ColoredMnistConfig(root=small_mnist, conflicting=0.02, severity=5))
    assert aligned_and_conflicting(data) == (539, 11)  # round(0.02 * 550): no published count here
    assert len(data.notes) == 1
    x = data.train.x
    assert isinstance(x, torch.Tensor)
    shade = x[:, :, 14, 15] / 255  # full ink
    assert torch.equal(torch.cdist(shade, PALETTE).argmin(dim=1), data.train.a)
    assert not x[:, :, :14].any()
    assert data.options["root"] == small_mnist


def test_the_seed_decides_split_and_colours(small_mnist: str) -> None:
    with pytest.warns(Incomplete):
        first, again, other = (colored_mnist(ColoredMnistConfig(small_mnist, seed=seed)) for seed in (0, 0, 1))
    assert first.fingerprint() == again.fingerprint()
    for split in ("train", "val", "test"):
        assert getattr(first, split).fingerprint() != getattr(other, split).fingerprint()


def test_the_counts_of_the_card_are_those_of_the_table() -> None:
    assert all(f"{wrong:,}" in CARD.splits for wrong in CONFLICTING.values())
    assert {share: (55_000 - wrong, wrong) for share, wrong in CONFLICTING.items()} == PAPER


def test_options_are_refused_before_a_file_is_looked_for() -> None:
    with pytest.raises(BadInput, match=r"colored-mnist: option 'severity' is out of range \(expected 1 to 5, got 6\)"):
        colored_mnist(ColoredMnistConfig(root="nowhere", severity=6))
    with pytest.raises(BadInput, match=r"nowhere: the data folder of colored-mnist is not there"):
        colored_mnist(ColoredMnistConfig(root="nowhere"))


@pytest.mark.data
@pytest.mark.skipif("SPURLESS_DATA" not in os.environ, reason="SPURLESS_DATA is not set")
def test_the_real_mnist_gives_the_published_counts() -> None:
    data = colored_mnist(ColoredMnistConfig(root=os.environ["SPURLESS_DATA"]))
    assert aligned_and_conflicting(data) == (54_509, 491)
    assert data.test.class_counts.tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
