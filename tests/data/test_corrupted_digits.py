"""Corrupted digits: the twin's digits under the same corruptions, by the same code."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.seeds import Seeds
from spurless.data.corrupted_digits import GROUPS, CorruptedDigitsConfig, corrupted_digits
from spurless.data.corruptions import corrupt
from spurless.data.digits import raw_digits


def test_conflicting_counts_are_exact_in_every_class() -> None:
    train = corrupted_digits(CorruptedDigitsConfig(conflicting=0.05)).train
    for label, n in enumerate(train.class_counts.tolist()):
        assert int((train.a[train.y == label] != label).sum()) == round(0.05 * n)


def test_every_digit_has_the_corruption_of_its_attribute() -> None:
    data, raw = corrupted_digits(CorruptedDigitsConfig(seed=2, conflicting=0.5)), raw_digits(32, Seeds(2))
    rgb = raw.x[:, None].repeat(1, 3, 1, 1)
    for split, index in zip((data.train, data.val, data.test), raw.parts.values(), strict=True):
        assert isinstance(split.x, Tensor)
        assert torch.equal(split.y, raw.y[index])
        for a, name in enumerate(GROUPS.attributes):
            own = index[split.a == a]
            assert torch.equal(split.x[split.a == a], corrupt(rgb[own], name, 5, seed=2, index=own))


def test_val_and_test_have_each_corruption_as_often_as_any_other() -> None:
    data = corrupted_digits(CorruptedDigitsConfig(severity=1))
    for split in (data.val, data.test):
        cells = split.counts.view(10, 10)
        assert (cells.max(dim=1).values - cells.min(dim=1).values <= 1).all()
    biased = corrupted_digits(CorruptedDigitsConfig(severity=1, val_conflicting=0)).val
    assert torch.equal(biased.a, biased.y)


def test_bad_options_are_refused() -> None:
    with pytest.raises(BadInput, match="corrupted-digits: option 'conflicting' must be a share"):
        corrupted_digits(CorruptedDigitsConfig(conflicting=1.5))
    with pytest.raises(BadInput, match="corrupted-digits: option 'severity' is out of range"):
        corrupted_digits(CorruptedDigitsConfig(severity=6))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_changes_no_pixel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prints = set()
    for device in ("cpu", "cuda"):
        monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path / device))  # each makes its own
        prints.add(corrupted_digits(CorruptedDigitsConfig(device=device)).fingerprint())
    assert len(prints) == 1
