"""Digits: small handwritten digits, and the shortcuts that can be drawn onto any grey digits.

Every function takes uint8 images ``(N, H, W)`` and labels ``(N,)``, so that MNIST can take the place of
the 1,797 digits that ship with scikit-learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.seeds import Seeds
from spurless.data.raw import Raw, share_out

Corner: TypeAlias = Literal["top-left", "top-right", "bottom-left", "bottom-right"]

DIGITS = tuple("0123456789")
CONFLICTING_UNBIASED = 0.9
"""The share of conflicting examples at which each of ten attributes is as frequent as any other."""

COLOURS = (
    "vermilion",
    "yellow",
    "mauve",
    "sage",
    "sky blue",
    "light green",
    "blue",
    "purple",
    "dark green",
    "crimson",
)
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

SEVERITY_STD = (0.05, 0.02, 0.01, 0.005, 0.002)
"""Standard deviation of a colour around its mean at severities 1 to 5 (LfF, authors' code): 5 is the easiest cue."""

AT_ONCE = 4096
"""Images that are coloured together: all of MNIST at once would need a gigabyte of floats."""

DIGITS_SOURCE = "scikit-learn's load_digits: the test part of UCI Optical Recognition of Handwritten Digits, 8x8"
DIGITS_LICENCE = "CC BY 4.0 (UCI)"
DIGITS_CITATION = "Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI 1998"


def load_digits_28(size: int = 28) -> tuple[Tensor, Tensor]:
    """Return the 1,797 digits as uint8 images ``(N, size, size)`` and their labels.

    Bilinear in whole numbers: no rounding of floats, so the bytes are the same on every machine.
    """
    from sklearn.datasets import load_digits

    if size < 8:
        raise BadInput("size must be at least the 8 pixels of the originals", got=size)
    raw, y = load_digits(return_X_y=True)
    grey = torch.from_numpy(raw).long().view(-1, 8, 8)  # 0 to 16
    weights = _bilinear(8, size)
    total = 16 * (2 * size) ** 2  # full ink times the sum of the weights
    images = (weights @ grey @ weights.T * 255 + total // 2) // total
    return images.to(torch.uint8), torch.from_numpy(y).long()


def split_digits(
    y: Tensor, seeds: Seeds, sizes: tuple[int, int, int] = (1000, 297, 500)
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the examples of the train, val and test split: exact sizes, every class shared out alike to within one.

    The writers are not named in the data, so that one may be met in two splits.
    """
    train, val, test = share_out(y, sizes, seeds.generator("split"))
    return train, val, test


def raw_digits(size: int, seeds: Seeds) -> Raw:
    """Return the 1,797 digits, cut into train, val and test."""
    images, y = load_digits_28(size)
    return Raw(images, y, *split_digits(y, seeds))


def assign(y: Tensor, n_attributes: int, conflicting: float, generator: torch.Generator) -> Tensor:
    """Return an attribute per example: its label, or another one for a share ``conflicting`` of every class.

    Exactly ``round(conflicting * n)`` of the ``n`` examples of a class conflict. Chance decides which; the
    other attributes come as equally often among them as their number allows.

    Example:
        >>> y = torch.tensor([0] * 4 + [1] * 4)
        >>> a = assign(y, 2, 0.25, torch.Generator().manual_seed(0))
        >>> [(a[y == label] != label).sum().item() for label in (0, 1)]
        [1, 1]
    """
    counts = [round(conflicting * int((y == label).sum())) for label in torch.unique(y)]
    return _assigned(y, n_attributes, counts, generator)


def assign_total(y: Tensor, n_attributes: int, total: int, generator: torch.Generator) -> Tensor:
    """As :func:`assign`, with exactly ``total`` conflicting examples, over the classes in proportion to their size.

    Example:
        >>> y = torch.tensor([0] * 60 + [1] * 40)
        >>> a = assign_total(y, 2, 5, torch.Generator().manual_seed(0))
        >>> [(a[y == label] != label).sum().item() for label in (0, 1)]
        [3, 2]
    """
    sizes = torch.unique(y, return_counts=True)[1]
    if not 0 <= total <= len(y):
        raise BadInput("there are not as many examples to conflict", expected=f"0 to {len(y)}", got=total)
    counts = torch.div(sizes * total, len(y), rounding_mode="floor")
    left = total - int(counts.sum())
    largest = torch.argsort(counts * len(y) - sizes * total, stable=True)  # by what rounding down took away
    counts[largest[:left]] += 1
    return _assigned(y, n_attributes, counts.tolist(), generator)


def partners(y: Tensor, a: Tensor, generator: torch.Generator) -> Tensor:
    """Return, for each attribute in ``a``, an example whose label in ``y`` it is.

    The members of a class are used equally often, to within one.
    """
    partner = torch.empty_like(a)
    for wanted in torch.unique(a):
        places = (a == wanted).nonzero().flatten()
        members = (y == wanted).nonzero().flatten()
        if len(members) == 0:
            raise BadInput(f"no example has the label {int(wanted)}", expected=f"one for each of {len(places)} pairs")
        rounds = -(-len(places) // len(members))
        drawn = torch.cat([members[torch.randperm(len(members), generator=generator)] for _ in range(rounds)])
        partner[places] = drawn[: len(places)]
    return partner


def colour(images: Tensor, a: Tensor, palette: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Return the digits in colour on black, ``(N, 3, H, W)``.

    Each image has one shade: the palette's mean of its attribute plus ``N(0, std)`` per channel, clamped
    to [0, 1] and multiplied into the grey digit.
    """
    shade = (palette[a] + std * torch.randn(len(a), 3, generator=generator)).clamp(0, 1)
    pieces = zip(torch.split(images, AT_ONCE), torch.split(shade[:, :, None, None], AT_ONCE), strict=True)
    return torch.cat([(grey[:, None] * tint).round().to(torch.uint8) for grey, tint in pieces])


def patch(images: Tensor, marked: Tensor, size: int, corner: Corner, colour: tuple[int, int, int]) -> Tensor:
    """Return RGB images ``(N, 3, H, W)`` with a square in one corner of those that are ``marked``.

    Takes grey images, or RGB ones that have a patch already.
    """
    rgb = images[:, None].repeat(1, 3, 1, 1) if images.dim() == 3 else images.clone()
    vertical, horizontal = corner.split("-")
    rows = slice(size) if vertical == "top" else slice(-size, None)
    columns = slice(size) if horizontal == "left" else slice(-size, None)
    square = rgb[:, :, rows, columns]  # a view: filling it fills the image
    square[marked.bool()] = torch.tensor(colour, dtype=torch.uint8).view(3, 1, 1)
    return rgb


def pair(core: Tensor, spurious: Tensor, dim: float) -> Tensor:
    """Return ``(N, 1, H, 2W)``: on the left the core image, ``dim`` times as bright; on the right the spurious one."""
    left = (core * dim).round().to(torch.uint8)
    return torch.cat([left, spurious], dim=2)[:, None]


def _bilinear(n: int, size: int) -> Tensor:
    """Return a ``(size, n)`` matrix that resizes ``n`` pixels to ``size``; each row of whole numbers sums to 2 size."""
    # the centre of new pixel i lies at ((2i + 1) n - size) / (2 size) old pixels; beyond an edge, the edge repeats
    position = ((2 * torch.arange(size) + 1) * n - size).clamp(0, 2 * size * (n - 1))
    below = torch.div(position, 2 * size, rounding_mode="floor")
    part = position - below * 2 * size
    weights = torch.zeros(size, n + 1, dtype=torch.long)  # one column to spare for the last pixel's neighbour
    row = torch.arange(size)
    weights[row, below] = 2 * size - part
    weights[row, below + 1] += part
    return weights[:, :n]


def _assigned(y: Tensor, n_attributes: int, counts: Sequence[int], generator: torch.Generator) -> Tensor:
    """Let so many examples of each class conflict, in the order of the labels that there are."""
    if n_attributes < 2 or int(y.max()) >= n_attributes:
        raise BadInput("every label needs an attribute of its own, and another", got=f"{n_attributes} attributes")
    a = y.clone()
    for label, n in zip(torch.unique(y).tolist(), counts, strict=True):
        members = (y == label).nonzero().flatten()
        chosen = members[torch.randperm(len(members), generator=generator)[:n]]
        others = torch.tensor([i for i in range(n_attributes) if i != label])
        # shuffled, so that what is left over does not always fall to the low numbers
        others = others[torch.randperm(len(others), generator=generator)]
        a[chosen] = others[torch.arange(n) % len(others)]
    return a
