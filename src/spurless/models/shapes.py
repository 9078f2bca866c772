"""Shapes: what a network asks of its input, and the sentence for an input that will not do."""

from __future__ import annotations

from math import prod

from spurless.core.errors import BadInput

Shape = tuple[int, ...]
"""The shape of one example: ``(channels, height, width)`` for an image, ``(features,)`` for a row."""


def image_shape(shape: Shape, owner: str, smallest: int = 1) -> tuple[int, int, int]:
    """Return channels, height and width.

    Example:
        >>> image_shape((3, 28, 28), "small-cnn", smallest=16)
        (3, 28, 28)

    Raises:
        BadInput: the input is no image, or one with a side shorter than ``smallest``.
    """
    if len(shape) != 3:
        raise BadInput(
            f"{owner} takes images", expected="an input of shape (channels, height, width)", got=shape, do="Use mlp."
        )
    channels, height, width = shape
    if channels > 4 and width in (1, 3, 4):
        raise BadInput(
            f"{owner} takes images whose channels come first, and here they seem to come last",
            expected="an input of shape (channels, height, width)",
            got=shape,
            do="Turn them: x.transpose(0, 3, 1, 2).",
        )
    if min(height, width) < smallest:
        raise BadInput(
            f"the input is too small for {owner}",
            expected=f"at least {smallest}x{smallest} pixels",
            got=f"{height}x{width}",
            do="Use mlp or resnet20, or enlarge the images.",
        )
    return channels, height, width


def flat_size(shape: Shape) -> int:
    """Return how many numbers an example holds.

    Example:
        >>> flat_size((3, 2, 2))
        12
    """
    return prod(shape)
