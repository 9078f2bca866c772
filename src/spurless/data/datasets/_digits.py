"""The 1,797 digits of scikit-learn, and functions that add a shortcut to grey digits.

The functions take uint8 images ``(N, H, W)`` and labels ``(N,)``, so that they work for MNIST too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.core.seeds import Seeds
from spurless.data.datasets._base_images import BaseImages, stratified_split

Corner: TypeAlias = Literal["top-left", "top-right", "bottom-left", "bottom-right"]

DIGITS = tuple("0123456789")
UNBIASED_CONFLICTING = 0.9  # fraction of conflicting examples at which ten attributes are equally frequent

COLOURS = ("vermilion", "yellow", "mauve", "sage", "sky blue", "light green", "blue", "purple", "dark green", "crimson")
PALETTE = torch.tensor(
    [
        [0.9837, 0.3125, 0.1686],
        [0.9905, 0.9156, 0.3515],
        [0.6730, 0.4611, 0.5798],
        [0.7833, 0.8316, 0.6013],
        [0.0880, 0.7780, 0.9818],
        [0.3214, 0.9611, 0.4464],
        [0.0246, 0.2357, 0.7587],
        [0.5552, 0.1016, 0.7618],
        [0.2077, 0.3929, 0.0187],
        [0.8337, 0.2024, 0.2669],
    ]
)
"""Mean colour of each attribute (LfF, authors' code)."""

PURE_COLOURS = {
    "red": (255, 0, 0),
    "orange": (255, 128, 0),
    "yellow": (255, 255, 0),
    "lime": (128, 255, 0),
    "green": (0, 255, 0),
    "cyan": (0, 255, 255),
    "blue": (0, 0, 255),
    "violet": (128, 0, 255),
    "rose": (255, 0, 128),
    "magenta": (255, 0, 255),
}
"""Colour of each attribute in the images of DisEnt, which DCWP uses (the sample images in both repositories)."""

INK = 128
"""Grey level from which a pixel has the pure colour. In a sample image of DCWP's repository 128, 191 and 255 have it,
0 and 64 are grey."""

SEVERITY_STD = (0.05, 0.02, 0.01, 0.005, 0.002)
"""Standard deviation of a colour around its mean at severities 1 to 5 (LfF, authors' code): 5 is the easiest cue."""

COLOUR_BATCH = 4096  # number of images coloured together; all of MNIST at once would need a gigabyte of floats

SOURCE = "scikit-learn's load_digits: the test part of UCI Optical Recognition of Handwritten Digits, 8x8"
LICENCE = "CC BY 4.0 (UCI)"
CITATION = "Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI 1998"
BARSBEY = (
    "Barsbey, Prieto, Zafeiriou and Birdal, Large Learning Rates Simultaneously Achieve Robustness to Spurious "
    "Correlations and Compressibility"
)


def load_digit_images(size: int = 28) -> tuple[Tensor, Tensor]:
    """Return the 1,797 digits as uint8 images ``(N, size, size)`` and their labels.

    They are resized bilinearly in integer arithmetic, so the bytes are the same on every machine.
    """
    from sklearn.datasets import load_digits

    if size < 8:
        raise InputError("option 'size' must be at least 8, the size of the original images", got=size)
    pixels, y = load_digits(return_X_y=True)
    grey = torch.from_numpy(pixels).long().view(-1, 8, 8)  # 0 to 16
    weights = _bilinear(8, size)
    total = 16 * (2 * size) ** 2  # full ink times the sum of the weights
    images = (weights @ grey @ weights.T * 255 + total // 2) // total
    return images.to(torch.uint8), torch.from_numpy(y).long()


def split_digits(
    y: Tensor, seeds: Seeds, sizes: tuple[int, int, int] = (1000, 297, 500)
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the indices of the train, val and test split, stratified by class.

    The data do not identify the writers, so one may occur in two splits.
    """
    train, val, test = stratified_split(y, sizes, seeds.generator("split"))
    return train, val, test


def load_base_digits(size: int, seeds: Seeds) -> BaseImages:
    """Return the 1,797 digits, split into train, val and test."""
    images, y = load_digit_images(size)
    return BaseImages(images, y, *split_digits(y, seeds))


def assign_attributes(y: Tensor, n_attributes: int, conflicting: float, generator: torch.Generator) -> Tensor:
    """Return an attribute per example: its label, or another one for a fraction ``conflicting`` of every class.

    Exactly ``round(conflicting * n)`` of the ``n`` examples of a class conflict. They are sampled at random, and the
    counts of the other attributes among them differ by at most one.

    Example:
        >>> y = torch.tensor([0] * 4 + [1] * 4)
        >>> a = assign_attributes(y, 2, 0.25, torch.Generator().manual_seed(0))
        >>> [(a[y == label] != label).sum().item() for label in (0, 1)]
        [1, 1]
    """
    counts = [round(conflicting * int((y == label).sum())) for label in torch.unique(y)]
    return _assign_counts(y, n_attributes, counts, generator)


def assign_by_split(base: BaseImages, config: Any, n_conflicting: int | None = None) -> dict[str, Tensor]:
    """Return one of ten attributes per example of every split; val and test are unbiased by default.

    Args:
        base: images before the shortcut is added.
        config: options ``conflicting``, ``seed`` and, if it has one, ``val_conflicting``.
        n_conflicting: the exact number in train; by default, a fraction ``conflicting`` of each class.
    """
    val = getattr(config, "val_conflicting", None)
    fractions = (config.conflicting, UNBIASED_CONFLICTING if val is None else val, UNBIASED_CONFLICTING)
    attributes = {}
    for (name, index), fraction in zip(base.indices.items(), fractions, strict=True):
        y, generator = base.y[index], Seeds(config.seed).generator("attribute", name)
        if name == "train" and n_conflicting is not None:
            attributes[name] = assign_n_conflicting(y, len(DIGITS), n_conflicting, generator)
        else:
            attributes[name] = assign_attributes(y, len(DIGITS), fraction, generator)
    return attributes


def assign_n_conflicting(y: Tensor, n_attributes: int, total: int, generator: torch.Generator) -> Tensor:
    """Return an attribute per example such that exactly ``total`` conflict, in proportion to the class sizes.

    Example:
        >>> y = torch.tensor([0] * 60 + [1] * 40)
        >>> a = assign_n_conflicting(y, 2, 5, torch.Generator().manual_seed(0))
        >>> [(a[y == label] != label).sum().item() for label in (0, 1)]
        [3, 2]
    """
    sizes = torch.unique(y, return_counts=True)[1]
    if not 0 <= total <= len(y):
        raise InputError("the number of conflicting examples is out of range", expected=f"0 to {len(y)}", got=total)
    counts = torch.div(sizes * total, len(y), rounding_mode="floor")
    missing = total - int(counts.sum())
    largest_remainder = torch.argsort(counts * len(y) - sizes * total, stable=True)
    counts[largest_remainder[:missing]] += 1
    return _assign_counts(y, n_attributes, counts.tolist(), generator)


def draw_partners(y: Tensor, a: Tensor, generator: torch.Generator) -> Tensor:
    """Return, for each attribute in ``a``, the index of a random example with that label in ``y``.

    The members of a class are used equally often, to within one.
    """
    partner = torch.empty_like(a)
    for label in torch.unique(a):
        positions = (a == label).nonzero().flatten()
        members = (y == label).nonzero().flatten()
        if len(members) == 0:
            raise InputError(f"no example has the label {int(label)}, which is needed as a partner")
        rounds = -(-len(positions) // len(members))
        sample = torch.cat([members[torch.randperm(len(members), generator=generator)] for _ in range(rounds)])
        partner[positions] = sample[: len(positions)]
    return partner


def colourize(images: Tensor, a: Tensor, palette: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Return the digits in colour on black, ``(N, 3, H, W)``.

    Each image has one shade: the palette's mean of its attribute plus ``N(0, std)`` per channel, clamped
    to [0, 1] and multiplied with the grey digit.
    """
    shade = (palette[a] + std * torch.randn(len(a), 3, generator=generator)).clamp(0, 1)
    batches = zip(torch.split(images, COLOUR_BATCH), torch.split(shade[:, :, None, None], COLOUR_BATCH), strict=True)
    return torch.cat([(grey[:, None] * tint).round().to(torch.uint8) for grey, tint in batches])


def paint(images: Tensor, a: Tensor, colours: Tensor, threshold: int) -> Tensor:
    """Return the digits ``(N, 3, H, W)`` with one constant colour where the ink is at least ``threshold``, else grey.

    Example:
        >>> grey, colours = torch.tensor([[[0, 64, 128, 255]]], dtype=torch.uint8), torch.tensor([[9, 0, 5]])
        >>> paint(grey, torch.tensor([0]), colours, 128)
        tensor([[[[ 0, 64,  9,  9]],
        <BLANKLINE>
                 [[ 0, 64,  0,  0]],
        <BLANKLINE>
                 [[ 0, 64,  5,  5]]]], dtype=torch.uint8)
    """
    colour = colours[a].to(torch.uint8)[:, :, None, None]
    return torch.where(images[:, None] >= threshold, colour, images[:, None])


def add_square(images: Tensor, has_square: Tensor, size: int, corner: Corner, colour: tuple[int, int, int]) -> Tensor:
    """Return RGB images ``(N, 3, H, W)`` with a square in one corner of those with ``has_square``.

    Takes grey images, or RGB ones that already have a square.
    """
    rgb = images[:, None].repeat(1, 3, 1, 1) if images.dim() == 3 else images.clone()
    vertical, horizontal = corner.split("-")
    rows = slice(size) if vertical == "top" else slice(-size, None)
    columns = slice(size) if horizontal == "left" else slice(-size, None)
    square = rgb[:, :, rows, columns]  # a view: filling it fills the image
    square[has_square.bool()] = torch.tensor(colour, dtype=torch.uint8).view(3, 1, 1)
    return rgb


def place_side_by_side(core: Tensor, spurious: Tensor, dim: float) -> Tensor:
    """Return ``(N, 1, H, 2W)``: on the left the core image, ``dim`` times as bright; on the right the spurious one."""
    left = (core * dim).round().to(torch.uint8)
    return torch.cat([left, spurious], dim=2)[:, None]


def _bilinear(n: int, size: int) -> Tensor:
    """Return a ``(size, n)`` matrix that resizes ``n`` pixels to ``size``; each row of integers sums to 2 size."""
    # the centre of new pixel i is at ((2i + 1) n - size) / (2 size) old pixels; the edge pixel is repeated
    position = ((2 * torch.arange(size) + 1) * n - size).clamp(0, 2 * size * (n - 1))
    below = torch.div(position, 2 * size, rounding_mode="floor")
    part = position - below * 2 * size
    weights = torch.zeros(size, n + 1, dtype=torch.long)  # the extra column is the last pixel's neighbour
    row = torch.arange(size)
    weights[row, below] = 2 * size - part
    weights[row, below + 1] += part
    return weights[:, :n]


def _assign_counts(y: Tensor, n_attributes: int, counts: Sequence[int], generator: torch.Generator) -> Tensor:
    """Let ``counts[i]`` examples of the i-th label in ``y`` conflict."""
    if n_attributes < 2 or int(y.max()) >= n_attributes:
        expected, got = f"at least {max(2, int(y.max()) + 1)}", n_attributes
        raise InputError("there must be an attribute for every label, and at least two", expected=expected, got=got)
    a = y.clone()
    for label, n in zip(torch.unique(y).tolist(), counts, strict=True):
        members = (y == label).nonzero().flatten()
        chosen = members[torch.randperm(len(members), generator=generator)[:n]]
        others = torch.tensor([i for i in range(n_attributes) if i != label])
        # shuffled, so that the remainder does not always go to the lowest numbers
        others = others[torch.randperm(len(others), generator=generator)]
        a[chosen] = others[torch.arange(n) % len(others)]
    return a
