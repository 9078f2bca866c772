"""Draws: random numbers that depend on the image's number alone, not on its batch, its chunk or its device.

The generator is a counter that is hashed: 64-bit whole numbers, multiplied and shifted, which every device does
alike. There is no state, so that image 7 has the same draws alone as among 50,000.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.core.seeds import Seeds

_STRIDE = 0x9E3779B97F4A7C15 - 2**64  # the golden ratio of 2**64, as a signed number
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
_HALF = 2**31


@dataclass(frozen=True)
class Draws:
    """The random numbers of a batch of images.

    Each purpose has a stream of its own per image. Every number has 32 random bits.

    Example:
        >>> both = draws_of(torch.tensor([3, 7]), 0, "example").uniform("angle", 2)
        >>> alone = draws_of(torch.tensor([7]), 0, "example").uniform("angle", 2)
        >>> bool(torch.equal(both[1], alone[0]))
        True
    """

    keys: Tensor
    """One 64-bit number per image, ``(N,)``."""

    def uniform(self, purpose: str, *shape: int) -> Tensor:
        """Return numbers of the open interval from 0 to 1, ``(N, *shape)``, as doubles."""
        return self._open(purpose, math.prod(shape)).view(len(self.keys), *shape)

    def normal(self, purpose: str, *shape: int) -> Tensor:
        """Return standard normal numbers, ``(N, *shape)``, as doubles (Box and Muller, both halves used)."""
        n = math.prod(shape)
        pair = self._open(purpose, n + n % 2).view(len(self.keys), -1, 2)
        radius = pair[..., 0].log().mul_(-2).sqrt_()
        angle = pair[..., 1].mul(2 * math.pi)
        both = torch.cat([radius * angle.cos(), radius.mul_(angle.sin_())], dim=1)
        return both[:, :n].reshape(len(self.keys), *shape)

    def whole(self, purpose: str, below: int, *shape: int) -> Tensor:
        """Return whole numbers from 0 to ``below`` - 1, ``(N, *shape)``; ``below`` is at most 2**31."""
        return ((self.bits(purpose, math.prod(shape)) * below) >> 32).view(len(self.keys), *shape)

    def bits(self, purpose: str, n: int) -> Tensor:
        """Return ``(N, n)`` whole numbers from 0 to 2**32 - 1."""
        return self._halves(purpose, n).to(torch.int64).add_(_HALF)

    def _open(self, purpose: str, n: int) -> Tensor:
        # the middle of each of 2**32 equal cells: never 0, whose logarithm is infinite, and never 1
        return self._halves(purpose, n).to(torch.float64).add_(_HALF + 0.5).mul_(2.0**-32)

    def _halves(self, purpose: str, n: int) -> Tensor:
        """Return ``(N, n)`` signed 32-bit numbers: each hash is cut in two."""
        start = _mix(self.keys ^ Seeds(0).number(purpose))
        counter = torch.arange(1, (n + 1) // 2 + 1, device=start.device).mul_(_STRIDE)
        return _mix(start[:, None] + counter).view(torch.int32)[:, :n]


def draws_of(index: Tensor, seed: int, *purpose: object) -> Draws:
    """Return the draws of the images with these numbers, for a seed and a purpose."""
    base = _mix(index.to(torch.int64) * _STRIDE)  # neighbours first, or the seed's bits would line up with the number's
    return Draws(_mix(base ^ Seeds(seed).number(*purpose)))


def poisson_table(rates: Tensor, longest: int) -> Tensor:
    """Return where the 2**32 cells of a draw are cut, ``(rates, longest)``: cut k is P(X <= k).

    A draw below exactly the cuts from k on is the count k; all counts of at least ``longest`` are one.
    """
    k = torch.arange(longest, dtype=torch.float64)
    log_p: Tensor = torch.special.xlogy(k, rates[:, None]) - rates[:, None] - torch.lgamma(k + 1)
    return log_p.exp().cumsum(dim=1).clamp(max=1).mul(2.0**32).floor().to(torch.int64)


def poisson(bits: Tensor, row: Tensor, table: Tensor) -> Tensor:
    """Return counts with the rates of the named rows of the table, by inversion: one search for the whole batch."""
    longest = table.shape[1]
    # the rows laid end to end are sorted, as each lies in a stretch of 2**32 of its own
    cuts = (table + (torch.arange(len(table), device=table.device) << 32)[:, None]).flatten()
    return torch.searchsorted(cuts, bits + (row << 32), right=True) - row * longest


def _mix(z: Tensor) -> Tensor:
    """Return a hash of every 64-bit number (the finaliser of splitmix64); one to one."""
    z = (z ^ _shifted(z, 30)).mul_(_FIRST)
    z = z.bitwise_xor_(_shifted(z, 27)).mul_(_SECOND)
    return z.bitwise_xor_(_shifted(z, 31))


def _shifted(z: Tensor, by: int) -> Tensor:
    # torch shifts the sign in from the left; the mask takes it out again
    return (z >> by).bitwise_and_((1 << (64 - by)) - 1)
