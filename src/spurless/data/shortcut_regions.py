"""Pixels or columns of the label and of the shortcut, for datasets in which they are known and disjoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from spurless.data.split import Splits

Regions: TypeAlias = dict[str, Tensor]
"""Disjoint masks named ``core``, ``spurious`` and ``noise``, each of the shape of one map."""


def shortcut_regions(data: Splits) -> Regions:
    """Return the regions of the core feature, the shortcut and noise; empty if they are not known.

    The data are recognized by name and options; a transform that resizes images is not taken into account.

    Example:
        >>> from spurless.data import load
        >>> regions = shortcut_regions(load("parity", core=2, spurious=1, noise=3, n_train=10, n_val=10, n_test=10))
        >>> regions["core"].tolist()
        [True, True, False, False, False, False]
    """
    locate, x = LOCATORS.get(data.name), data.train.x
    if locate is None or not isinstance(x, Tensor):
        return {}
    shape = tuple(x.shape[2:]) if x.dim() == 4 else tuple(x.shape[1:])
    return locate(shape, data.options)


def _left_half(shape: tuple[int, ...], _: Any) -> Regions:
    core = torch.zeros(shape, dtype=torch.bool)
    core[:, : shape[1] // 2] = True
    return {"core": core, "spurious": ~core}


def _lower_half(shape: tuple[int, ...], _: Any) -> Regions:
    core = torch.zeros(shape, dtype=torch.bool)
    core[shape[0] // 2 :] = True
    return {"core": core, "spurious": ~core}


def _outside_squares(shape: tuple[int, ...], options: Any) -> Regions:
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


LOCATORS: dict[str, Callable[[tuple[int, ...], Any], Regions]] = {
    "double-digits": _left_half,
    "double-mnist": _left_half,
    "dominoes-digits": _lower_half,
    "mnist-cifar": _lower_half,
    "patched-digits": _outside_squares,
    "biased-mnist": _outside_squares,
    "parity": _columns,
}
