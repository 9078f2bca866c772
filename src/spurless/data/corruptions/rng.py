"""Random numbers per image that do not depend on the batch or the device.

The generator hashes a counter with 64-bit integer arithmetic, which is the same on every device. It has no state, so
image 7 has the same random numbers alone as among 50,000.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.core.seeds import Seeds

_STRIDE = 0x9E3779B97F4A7C15 - 2**64  # the golden ratio times 2**64, as a signed integer
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
_HALF = 2**31


@dataclass(frozen=True)
class ImageRng:
    """Random numbers for a batch of images.

    Each image has an independent stream per purpose. Every number has 32 random bits.

    Example:
        >>> both = rng_for_images(torch.tensor([3, 7]), 0, "example").uniform("angle", 2)
        >>> alone = rng_for_images(torch.tensor([7]), 0, "example").uniform("angle", 2)
        >>> bool(torch.equal(both[1], alone[0]))
        True
    """

    keys: Tensor  # one 64-bit key per image, ``(N,)``

    def uniform(self, purpose: str, *shape: int) -> Tensor:
        """Return float64 numbers from the open interval (0, 1), ``(N, *shape)``."""
        return self._open_interval(purpose, math.prod(shape)).view(len(self.keys), *shape)

    def normal(self, purpose: str, *shape: int) -> Tensor:
        """Return standard normal float64 numbers, ``(N, *shape)``, by Box and Muller with both values of a pair."""
        n = math.prod(shape)
        pair = self._open_interval(purpose, n + n % 2).view(len(self.keys), -1, 2)
        radius = pair[..., 0].log().mul_(-2).sqrt_()
        angle = pair[..., 1].mul(2 * math.pi)
        both = torch.cat([radius * angle.cos(), radius.mul_(angle.sin_())], dim=1)
        return both[:, :n].reshape(len(self.keys), *shape)

    def integers(self, purpose: str, below: int, *shape: int) -> Tensor:
        """Return integers from 0 to ``below`` - 1, ``(N, *shape)``; ``below`` is at most 2**31."""
        return ((self.bits(purpose, math.prod(shape)) * below) >> 32).view(len(self.keys), *shape)

    def bits(self, purpose: str, n: int) -> Tensor:
        """Return ``(N, n)`` integers from 0 to 2**32 - 1."""
        return self._int32(purpose, n).to(torch.int64).add_(_HALF)

    def _open_interval(self, purpose: str, n: int) -> Tensor:
        # the middle of each of 2**32 equal cells, so never 0 (its logarithm is infinite) and never 1
        return self._int32(purpose, n).to(torch.float64).add_(_HALF + 0.5).mul_(2.0**-32)

    def _int32(self, purpose: str, n: int) -> Tensor:
        """Return ``(N, n)`` signed 32-bit integers, two from each hash."""
        start = _splitmix64(self.keys ^ Seeds(0).number(purpose))
        counter = torch.arange(1, (n + 1) // 2 + 1, device=start.device).mul_(_STRIDE)
        return _splitmix64(start[:, None] + counter).view(torch.int32)[:, :n]


def rng_for_images(index: Tensor, seed: int, *purpose: object) -> ImageRng:
    """Return the random numbers of the images with these indices, for a seed and a purpose."""
    # the index is hashed before it meets the seed, or their bits would overlap
    base = _splitmix64(index.to(torch.int64) * _STRIDE)
    return ImageRng(_splitmix64(base ^ Seeds(seed).number(*purpose)))


def poisson_table(rates: Tensor, longest: int) -> Tensor:
    """Return Poisson distribution functions times 2**32, ``(rates, longest)``: column k is P(X <= k).

    Counts of at least ``longest`` are not distinguished.
    """
    k = torch.arange(longest, dtype=torch.float64)
    log_p: Tensor = torch.special.xlogy(k, rates[:, None]) - rates[:, None] - torch.lgamma(k + 1)
    return log_p.exp().cumsum(dim=1).clamp(max=1).mul(2.0**32).floor().to(torch.int64)


def poisson(bits: Tensor, row: Tensor, table: Tensor) -> Tensor:
    """Return Poisson counts with the rates of the given table rows, by inversion in a single search."""
    longest = table.shape[1]
    # the concatenated rows are sorted, since row i is shifted by i * 2**32
    cuts = (table + (torch.arange(len(table), device=table.device) << 32)[:, None]).flatten()
    return torch.searchsorted(cuts, bits + (row << 32), right=True) - row * longest


def _splitmix64(z: Tensor) -> Tensor:
    """Return a bijective hash of 64-bit integers (the finaliser of splitmix64)."""
    z = (z ^ _shift_right(z, 30)).mul_(_FIRST)
    z = z.bitwise_xor_(_shift_right(z, 27)).mul_(_SECOND)
    return z.bitwise_xor_(_shift_right(z, 31))


def _shift_right(z: Tensor, by: int) -> Tensor:
    # torch's shift repeats the sign bit; the mask removes it
    return (z >> by).bitwise_and_((1 << (64 - by)) - 1)
