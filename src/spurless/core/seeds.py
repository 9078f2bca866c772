"""Random generators per purpose from one seed, without effect on the global generators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from operator import index

import torch

from spurless.core.errors import InputError


@dataclass(frozen=True)
class Seeds:
    """The source of all randomness of a run.

    Every purpose has its own stream, so that a new step in a method does not change the random numbers of the others.

    Example:
        >>> seeds = Seeds(0)
        >>> a, b = seeds.generator("order", 3), seeds.generator("order", 3)
        >>> bool(torch.equal(torch.rand(2, generator=a), torch.rand(2, generator=b)))
        True
    """

    seed: int = 0

    def __post_init__(self) -> None:
        try:
            plain = index(self.seed)  # the repr of a NumPy integer differs, which would give other streams
        except TypeError:
            raise InputError("the seed must be an integer", got=repr(self.seed)) from None
        object.__setattr__(self, "seed", plain)

    def number(self, *purpose: object) -> int:
        """Return the 63-bit seed of a purpose."""
        text = repr((self.seed, *map(str, purpose))).encode()
        return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 1

    def child(self, *purpose: object) -> Seeds:
        """Return independent seeds for a part of the run."""
        return Seeds(self.number(*purpose))

    def generator(self, *purpose: object) -> torch.Generator:
        """Return a new CPU generator for a purpose."""
        return torch.Generator().manual_seed(self.number(*purpose))

    @contextmanager
    def seed_global_rng(self, *purpose: object, device: torch.device | None = None) -> Iterator[None]:
        """Seed the global generators for code that takes no generator (initialization, dropout), then restore them."""
        cuda = [device] if device is not None and device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):
            number = self.number(*purpose)
            torch.default_generator.manual_seed(number)
            for cuda_device in cuda:
                index = cuda_device.index  # None is the current device, which may not be 0
                index = torch.cuda.current_device() if index is None else index
                torch.cuda.default_generators[index].manual_seed(number)
            yield
