"""Masks of pixels or tokens that are hidden from the model: applied to a batch, on its device, before augmentation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.core.hashing import content_hash

BITS = 8


@dataclass(frozen=True, eq=False)
class InputMask:
    """Hidden parts of examples: pixels ``(H, W)`` of images, tokens ``(L,)`` of texts, or features of rows.

    A hidden pixel is replaced by ``value``, in the raw scale of the images; a hidden token is removed from the
    attention mask.

    Example:
        >>> hidden = InputMask.of(torch.tensor([[[True, False], [False, False]]]))
        >>> hidden.apply(torch.full((1, 1, 2, 2), 7, dtype=torch.uint8), torch.tensor([0])).flatten()
        tensor([0, 7, 7, 7], dtype=torch.uint8)
        >>> hidden.fraction
        0.25
    """

    bits: Tensor  # ``(N, bytes)``, uint8; bit k of an example is part k, from the low end of its first byte
    shape: tuple[int, ...]  # shape of the mask of one example
    value: tuple[float, ...] = (0.0,)  # value of hidden pixels: one number, or one per channel

    @classmethod
    def of(cls, masks: Tensor, value: tuple[float, ...] = (0.0,)) -> InputMask:
        """Pack masks of shape ``(N, H, W)`` or ``(N, L)``; True is hidden."""
        flat = masks.flatten(1).to(torch.uint8)
        padded = torch.nn.functional.pad(flat, (0, -flat.shape[1] % BITS)).view(len(flat), -1, BITS)
        bits = (padded * 2 ** torch.arange(BITS, device=masks.device)).sum(dim=2).to(torch.uint8)
        return cls(bits, tuple(masks.shape[1:]), value)

    def __len__(self) -> int:
        return len(self.bits)

    def __or__(self, other: InputMask) -> InputMask:
        if self.shape != other.shape or len(self) != len(other):
            raise InputError("masks of different shapes cannot be combined", expected=self.shape, got=other.shape)
        return replace(self, bits=self.bits | other.bits.to(self.bits.device))

    @property
    def fraction(self) -> float:
        """The fraction of all pixels or tokens that is hidden."""
        n_bits = torch.tensor([bin(i).count("1") for i in range(256)])
        histogram = torch.bincount(self.bits.flatten().long().cpu(), minlength=256)
        return float((histogram * n_bits).sum()) / max(1, len(self) * prod(self.shape))

    def masks(self, index: Tensor) -> Tensor:
        """Return the masks of the examples at ``index``, ``(n, *shape)``; True is hidden."""
        selected = self.bits.index_select(0, index)
        single = (selected[:, :, None] >> torch.arange(BITS, device=selected.device, dtype=torch.uint8)) & 1
        return single.flatten(1)[:, : prod(self.shape)].view(-1, *self.shape).bool()

    def apply(self, x: Tensor | dict[str, Tensor], index: Tensor) -> Tensor | dict[str, Tensor]:
        """Hide parts of a raw batch; ``index`` contains the positions of its examples."""
        masks = self.masks(index)
        if isinstance(x, dict):
            return {**x, "attention_mask": x["attention_mask"].masked_fill(masks, 0)}
        values = [round(v) for v in self.value] if x.dtype == torch.uint8 else list(self.value)
        if masks.shape == x.shape:
            return torch.where(masks, values[0], x)
        if len(values) == 1:
            return torch.where(masks[:, None], values[0], x)
        # one channel at a time, with Python numbers: a captured CUDA graph cannot copy a tensor from the host
        return torch.stack([torch.where(masks, v, x[:, c]) for c, v in enumerate(values)], dim=1)

    def select(self, index: Tensor) -> InputMask:
        """Return the masks of the examples at ``index``, in that order."""
        return replace(self, bits=self.bits.index_select(0, index.to(self.bits.device)))

    def to(self, device: torch.device | str) -> InputMask:
        """Return the masks on a device."""
        return replace(self, bits=self.bits.to(device))

    def fingerprint(self) -> str:
        """Return a content hash."""
        return content_hash("hidden", self.bits, list(self.shape), list(self.value))


@dataclass(frozen=True, eq=False)
class SoftInputMask:
    """Partly hidden pixels: each becomes ``(1 - heat)`` times itself plus ``heat`` times ``value``."""

    heat: Tensor  # ``(N, H, W)``, uint8; 255 hides a pixel completely
    value: tuple[float, ...] = (0.0,)

    def __len__(self) -> int:
        return len(self.heat)

    def __or__(self, other: SoftInputMask) -> SoftInputMask:
        """Apply both masks."""
        if self.heat.shape != other.heat.shape:
            what = "masks of different shapes cannot be combined"
            raise InputError(what, expected=self.heat.shape, got=other.heat.shape)
        left = (255 - self.heat.int()) * (255 - other.heat.to(self.heat.device).int())
        return replace(self, heat=(255 - (left / 255).round()).to(torch.uint8))

    @property
    def fraction(self) -> float:
        """The mean fraction of the pixels that is hidden."""
        return float(self.heat.float().mean()) / 255

    def apply(self, x: Tensor | dict[str, Tensor], index: Tensor) -> Tensor | dict[str, Tensor]:
        """Fade a raw batch; ``index`` contains the positions of its examples."""
        if isinstance(x, dict):
            raise InputError("tokens cannot be partly hidden", hint="Hide them completely: choose another threshold.")
        heat = self.heat.index_select(0, index)[:, None].float() / 255
        values = self.value if len(self.value) > 1 else self.value * x.shape[1]
        faded = torch.stack([x[:, c] * (1 - heat[:, 0]) + v * heat[:, 0] for c, v in enumerate(values)], dim=1)
        return faded.round().to(x.dtype) if x.dtype == torch.uint8 else faded.to(x.dtype)

    def select(self, index: Tensor) -> SoftInputMask:
        """Return the masks of the examples at ``index``, in that order."""
        return replace(self, heat=self.heat.index_select(0, index.to(self.heat.device)))

    def to(self, device: torch.device | str) -> SoftInputMask:
        """Return the masks on a device."""
        return replace(self, heat=self.heat.to(device))

    def fingerprint(self) -> str:
        """Return a content hash."""
        return content_hash("faded", self.heat, list(self.value))


def join_masks(old: InputMask | SoftInputMask | None, new: InputMask | SoftInputMask) -> InputMask | SoftInputMask:
    """Return both masks combined; if they are of different kinds, only the new one."""
    if isinstance(old, InputMask) and isinstance(new, InputMask):
        return old | new
    return old | new if isinstance(old, SoftInputMask) and isinstance(new, SoftInputMask) else new
