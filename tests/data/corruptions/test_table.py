"""The table: nineteen rows in four families, five levels each, found by name."""

from collections import Counter

import numpy as np
import pytest

from spurless.core.errors import UnknownNameError
from spurless.data.corruptions import CORRUPTIONS, ORIGINAL, PAIRED_TEN, get_corruption

FAMILIES = {
    "noise": ["gaussian-noise", "shot-noise", "impulse-noise", "speckle-noise"],
    "blur": ["gaussian-blur", "defocus-blur", "glass-blur", "motion-blur", "zoom-blur"],
    "weather": ["snow", "frost", "fog", "spatter"],
    "digital": ["brightness", "contrast", "saturate", "elastic-transform", "pixelate", "jpeg-compression"],
}


def test_the_nineteen_by_family() -> None:
    found: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for name, corruption in CORRUPTIONS.items():
        assert corruption.name == name
        found[corruption.family].append(name)
    assert found == FAMILIES


def test_a_row_has_five_levels_of_equally_many_numbers_at_both_scales() -> None:
    for name, row in CORRUPTIONS.items():
        assert len(row.cifar) == len(row.imagenet) == 5, name
        assert len(Counter(len(level) for level in (*row.cifar, *row.imagenet))) == 1, name
        assert row.apply.__name__ == name.replace("-", "_")
        assert len(set(row.cifar)) == len(set(row.imagenet)) == 5, name


def test_larger_numbers_are_worse_at_both_scales() -> None:
    for name in ("gaussian-noise", "impulse-noise", "speckle-noise", "gaussian-blur", "brightness"):
        for levels in (CORRUPTIONS[name].cifar, CORRUPTIONS[name].imagenet):
            assert list(levels) == sorted(levels), name


def test_zoom_counts_the_published_ranges_out() -> None:
    ends = {
        "cifar": [(1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)],
        "imagenet": [(1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)],
    }
    for scale, ranges in ends.items():
        counted = tuple((len(np.arange(1, end, step)), step) for end, step in ranges)
        assert getattr(CORRUPTIONS["zoom-blur"], scale) == counted


def test_the_ten_of_dcwp_in_the_order_of_cifars_classes() -> None:
    ten = PAIRED_TEN["dcwp-text"]
    assert len(set(ten)) == 10
    assert set(ten) <= set(CORRUPTIONS)
    classes = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    paired = dict(zip(classes, ten, strict=True))
    assert (paired["airplane"], paired["cat"], paired["horse"]) == ("brightness", "frost", "impulse-noise")
    assert paired["truck"] == "pixelate"


def test_the_two_lists_of_lff() -> None:
    # in the order of the types 0 and 1 of the authors' code
    words = ["snow", "frost", "fog", "brightness", "contrast", "spatter", "elastic", "jpeg", "pixelate", "saturate"]
    assert all(name.startswith(word) for name, word in zip(PAIRED_TEN["lff-0"], words, strict=True))
    families = [CORRUPTIONS[name].family for name in PAIRED_TEN["lff-1"] if name != ORIGINAL]
    assert families == ["noise"] * 4 + ["blur"] * 5
    assert PAIRED_TEN["lff-1"][::3] == ("gaussian-noise", "speckle-noise", "glass-blur", ORIGINAL)
    assert set(PAIRED_TEN["lff-0"]) <= set(CORRUPTIONS)


def test_an_unknown_name_is_refused_with_a_suggestion() -> None:
    with pytest.raises(
        UnknownNameError, match=r"No corruption is called 'gausian-noise'. Did you mean 'gaussian-noise'\?"
    ):
        get_corruption("gausian-noise")
