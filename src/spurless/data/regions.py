"""Regions: which pixels or columns are the label's own and which the shortcut's, for data that are made so.

Only where the two never overlap: side by side, one above the other, a square in a corner, columns of bits. A colour, a
texture or a background has no pixels of its own, and such data have no regions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from spurless.data.grouped import Splits

Regions: TypeAlias = dict[str, Tensor]
"""Masks by name, ``core``, ``spurious`` and ``noise``, each of the shape of one map; none overlap."""


def regions(data: Splits) -> Regions:
    """Return where the core feature, the shortcut and noise lie; nothing for data of which that is not known.

    Args:
        data: its name and options decide; images whose size is changed on their way to the model are not meant.

    Example:
        >>> from spurless.data import load
        >>> found = regions(load("parity", core=2, spurious=1, noise=3, n_train=10, n_val=10, n_test=10))
        >>> found["core"].tolist()
        [True, True, False, False, False, False]
    """
    find, x = KNOWN.get(data.name), data.train.x
    if find is None or not isinstance(x, Tensor):
        return {}
    shape = tuple(x.shape[2:]) if x.dim() == 4 else tuple(x.shape[1:])
    return find(shape, data.options)


def _beside(shape: tuple[int, ...], _: Any) -> Regions:
    core = torch.zeros(shape, dtype=torch.bool)
    core[:, : shape[1] // 2] = True
    return {"core": core, "spurious": ~core}


def _below(shape: tuple[int, ...], _: Any) -> Regions:
    core = torch.zeros(shape, dtype=torch.bool)
    core[shape[0] // 2 :] = True
    return {"core": core, "spurious": ~core}


def _but_for_squares(shape: tuple[int, ...], options: Any) -> Regions:
    spurious, side = torch.zeros(shape, dtype=torch.bool), options["square"]
    spurious[:side, :side] = True
    if options["squares"] == 2:
        spurious[:side, -side:] = True
    return {"core": ~spurious, "spurious": spurious}


def _columns(shape: tuple[int, ...], options: Any) -> Regions:
    kind = torch.full(shape, 2)
    kind[: options["core"] + options["spurious"]] = 1
    kind[: options["core"]] = 0
    return {name: kind == k for k, name in enumerate(("core", "spurious", "noise")) if bool((kind == k).any())}


KNOWN: dict[str, Callable[[tuple[int, ...], Any], Regions]] = {
    "double-digits": _beside,
    "double-mnist": _beside,
    "dominoes-digits": _below,
    "mnist-cifar": _below,
    "patched-digits": _but_for_squares,
    "biased-mnist": _but_for_squares,
    "parity": _columns,
}
