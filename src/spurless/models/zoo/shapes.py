"""Check the shape of an input."""

from __future__ import annotations

from spurless.core.errors import InputError

Shape = tuple[int, ...]
"""The shape of one example: ``(channels, height, width)`` for an image, ``(features,)`` for a row."""


def check_image_shape(shape: Shape, owner: str, smallest: int = 1) -> tuple[int, int, int]:
    """Return channels, height and width of an image shape, or raise.

    Example:
        >>> check_image_shape((3, 28, 28), "small-cnn", smallest=16)
        (3, 28, 28)
    """
    if len(shape) != 3:
        raise InputError(
            f"{owner} takes images", expected="an input of shape (channels, height, width)", got=shape, hint="Use mlp."
        )
    channels, height, width = shape
    if channels > 4 and width in (1, 3, 4):
        raise InputError(
            f"{owner} takes images with channels first, but here they seem to be last",
            expected="an input of shape (channels, height, width)",
            got=shape,
            hint="Transpose them: x.transpose(0, 3, 1, 2).",
        )
    if min(height, width) < smallest:
        raise InputError(
            f"the input is too small for {owner}",
            expected=f"at least {smallest}x{smallest} pixels",
            got=f"{height}x{width}",
            hint="Use mlp or resnet20, or enlarge the images.",
        )
    return channels, height, width
