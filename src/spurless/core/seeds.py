"""Seeds: a generator per purpose from one seed; the global generator is borrowed, never moved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from operator import index

import torch

from spurless.core.errors import BadInput


@dataclass(frozen=True)
class Seeds:
    """All randomness of a run, from one number.

    Two purposes never share a stream, and asking for one does not move another, so that adding a
    step to a method leaves the draws of all others as they were.

    Example:
        >>> seeds = Seeds(0)
        >>> a, b = seeds.generator("order", 3), seeds.generator("order", 3)
        >>> bool(torch.equal(torch.rand(2, generator=a), torch.rand(2, generator=b)))
        True
    """

    seed: int = 0

    def __post_init__(self) -> None:
        try:
            plain = index(self.seed)  # NumPy's whole numbers are written in other words, which would be other streams
        except TypeError:
            raise BadInput("a seed must be a whole number", got=repr(self.seed)) from None
        object.__setattr__(self, "seed", plain)

    def number(self, *purpose: object) -> int:
        """Return the 63-bit seed of a purpose."""
        text = repr((self.seed, *map(str, purpose))).encode()
        return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 1

    def child(self, *purpose: object) -> Seeds:
        """Return the seeds of a part of the run, apart from those of every other part."""
        return Seeds(self.number(*purpose))

    def generator(self, *purpose: object) -> torch.Generator:
        """Return a fresh CPU generator for a purpose."""
        return torch.Generator().manual_seed(self.number(*purpose))

    @contextmanager
    def borrowed(self, *purpose: object, device: torch.device | None = None) -> Iterator[None]:
        """Lend the global generators to code that takes no generator (weight init, dropout), then put them back."""
        cuda = [device] if device is not None and device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):
            number = self.number(*purpose)
            torch.default_generator.manual_seed(number)
            for each in cuda:  # a device without a number is the current one, which need not be 0
                index = torch.cuda.current_device() if each.index is None else each.index
                torch.cuda.default_generators[index].manual_seed(number)
            yield
