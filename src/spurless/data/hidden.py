"""Hidden: which pixels or tokens of each example a model shall not see, kept beside the data and never in it.

A bit per pixel, so that masks of a million images weigh a twenty-fourth of the images, and the images stay as they
were. Hiding happens when a batch is made, on its device, before it is augmented.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.provenance import digest

BITS = 8


@dataclass(frozen=True, eq=False)
class Hidden:
    """Parts of examples that are hidden: pixels ``(H, W)`` of images, tokens ``(L,)`` of texts, features of rows.

    A hidden pixel has ``value`` in the place of its own, in the raw scale of the images; a hidden token is taken
    out of the attention mask.

    Example:
        >>> hidden = Hidden.of(torch.tensor([[[True, False], [False, False]]]))
        >>> hidden.apply(torch.full((1, 1, 2, 2), 7, dtype=torch.uint8), torch.tensor([0])).flatten()
        tensor([0, 7, 7, 7], dtype=torch.uint8)
        >>> hidden.share
        0.25
    """

    bits: Tensor
    """``(N, bytes)``, uint8; bit k of an example is part k, from the low end of its first byte."""
    shape: tuple[int, ...]
    """Of the parts of one example."""
    value: tuple[float, ...] = (0.0,)
    """What stands in the place of a pixel: one number, or one per channel."""

    @classmethod
    def of(cls, masks: Tensor, value: tuple[float, ...] = (0.0,)) -> Hidden:
        """Pack masks of shape ``(N, H, W)`` or ``(N, L)``; True is hidden."""
        flat = masks.flatten(1).to(torch.uint8)
        padded = torch.nn.functional.pad(flat, (0, -flat.shape[1] % BITS)).view(len(flat), -1, BITS)
        weights = 2 ** torch.arange(BITS, device=masks.device)
        bits = (padded * weights).sum(dim=2).to(torch.uint8)
        return cls(bits, tuple(masks.shape[1:]), value)

    def __len__(self) -> int:
        return len(self.bits)

    def __or__(self, other: Hidden) -> Hidden:
        if self.shape != other.shape or len(self) != len(other):
            raise BadInput("masks of other examples cannot be joined", expected=self.shape, got=other.shape)
        return replace(self, bits=self.bits | other.bits.to(self.bits.device))

    @property
    def share(self) -> float:
        """The share of all pixels or tokens that is hidden."""
        counts = torch.tensor([bin(i).count("1") for i in range(256)])
        found = torch.bincount(self.bits.flatten().long().cpu(), minlength=256)
        return float((found * counts).sum()) / max(1, len(self) * prod(self.shape))

    def masks(self, index: Tensor) -> Tensor:
        """Return the masks of some examples, ``(n, *shape)``; True is hidden."""
        some = self.bits.index_select(0, index)
        single = (some[:, :, None] >> torch.arange(BITS, device=some.device, dtype=torch.uint8)) & 1
        return single.flatten(1)[:, : prod(self.shape)].view(-1, *self.shape).bool()

    def apply(self, x: Tensor | dict[str, Tensor], index: Tensor) -> Tensor | dict[str, Tensor]:
        """Hide the parts of a raw batch, whose examples have these numbers."""
        masks = self.masks(index)
        if isinstance(x, dict):
            return {**x, "attention_mask": x["attention_mask"].masked_fill(masks, 0)}
        stand_in = [round(v) for v in self.value] if x.dtype == torch.uint8 else list(self.value)
        if masks.shape == x.shape:
            return torch.where(masks, stand_in[0], x)
        if len(stand_in) == 1:
            return torch.where(masks[:, None], stand_in[0], x)
        # numbers of the host, one by one: a captured graph cannot fetch a tensor from there
        return torch.stack([torch.where(masks, v, x[:, c]) for c, v in enumerate(stand_in)], dim=1)

    def select(self, index: Tensor) -> Hidden:
        """Return the masks of the examples at ``index``, in that order."""
        return replace(self, bits=self.bits.index_select(0, index.to(self.bits.device)))

    def to(self, device: torch.device | str) -> Hidden:
        """Return the masks on a device."""
        return replace(self, bits=self.bits.to(device))

    def fingerprint(self) -> str:
        """Return a content hash."""
        return digest("hidden", self.bits, list(self.shape), list(self.value))


@dataclass(frozen=True, eq=False)
class Faded:
    """Pixels that are faded rather than hidden: each is ``1 - heat`` of itself, and the rest is ``value``."""

    heat: Tensor
    """``(N, H, W)``, uint8: 255 hides all of a pixel."""
    value: tuple[float, ...] = (0.0,)

    def __len__(self) -> int:
        return len(self.heat)

    def __or__(self, other: Faded) -> Faded:
        """Fade what is faded once more."""
        if self.heat.shape != other.heat.shape:
            raise BadInput("maps of other examples cannot be joined", expected=self.heat.shape, got=other.heat.shape)
        left = (255 - self.heat.int()) * (255 - other.heat.to(self.heat.device).int())
        return replace(self, heat=(255 - (left / 255).round()).to(torch.uint8))

    @property
    def share(self) -> float:
        """The share of the images that is taken away."""
        return float(self.heat.float().mean()) / 255

    def apply(self, x: Tensor | dict[str, Tensor], index: Tensor) -> Tensor | dict[str, Tensor]:
        """Fade a raw batch, whose examples have these numbers."""
        if isinstance(x, dict):
            raise BadInput("tokens cannot be faded", do="Hide them: choose another threshold.")
        heat = self.heat.index_select(0, index)[:, None].float() / 255
        values = self.value if len(self.value) > 1 else self.value * x.shape[1]
        faded = torch.stack([x[:, c] * (1 - heat[:, 0]) + v * heat[:, 0] for c, v in enumerate(values)], dim=1)
        return faded.round().to(x.dtype) if x.dtype == torch.uint8 else faded.to(x.dtype)

    def select(self, index: Tensor) -> Faded:
        """Return what fades the examples at ``index``, in that order."""
        return replace(self, heat=self.heat.index_select(0, index.to(self.heat.device)))

    def to(self, device: torch.device | str) -> Faded:
        """Return it on a device."""
        return replace(self, heat=self.heat.to(device))

    def fingerprint(self) -> str:
        """Return a content hash."""
        return digest("faded", self.heat, list(self.value))


def joined(old: Hidden | Faded | None, new: Hidden | Faded) -> Hidden | Faded:
    """Return what hides all that either hides; what is of another kind than the new is left."""
    if isinstance(old, Hidden) and isinstance(new, Hidden):
        return old | new
    return old | new if isinstance(old, Faded) and isinstance(new, Faded) else new
