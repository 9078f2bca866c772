"""Shapes: sentences for inputs that will not do."""

import pytest

from spurless.core.errors import InputError
from spurless.models.zoo.shapes import check_image_shape


def test_an_image_has_three_sides() -> None:
    assert check_image_shape((1, 16, 20), "x", smallest=16) == (1, 16, 20)
    with pytest.raises(InputError, match=r"small-cnn takes images .expected an input of shape .*, got \(7,\)"):
        check_image_shape((7,), "small-cnn")


def test_the_shorter_side_decides() -> None:
    with pytest.raises(InputError, match=r"too small for small-cnn .expected at least 16x16 pixels, got 32x15"):
        check_image_shape((1, 32, 15), "small-cnn", smallest=16)


def test_channels_that_come_last_are_told() -> None:
    with pytest.raises(InputError, match=r"channels first, but here they seem to be last .* got \(32, 32, 3\)"):
        check_image_shape((32, 32, 3), "small-cnn", smallest=16)
    assert check_image_shape((3, 32, 3), "x") == (3, 32, 3)
