r"""Attribution share: how much of what a model looks at lies in a region, such as the shortcut's.

Barsbey et al. 2025, sections 5 and E. Attributions, of any kind, become a map of sizes from 0 to 1 in each example;
the share of a region is its sum over that of all. Over masks of core, spurious and noise pixels it says what the model
uses; over the background, what lies beside the object; the entropy of the map, where no mask is known, how dispersed
it is.

The normalisation is captum's for pictures: divide by the size at which the sizes below it, in order, make up 98 % of
the sum, and clip at 1. "2 % outliers" are thus a share of the attribution, not of the pixels: nothing is clipped where
one pixel alone has more than 2 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from spurless.core.errors import BadInput

OUTLIERS = 0.02


def normalise(attributions: Tensor, *, signed: bool = False, outliers: float = OUTLIERS) -> Tensor:
    """Return one map of sizes per example, from 0 to 1.

    Args:
        attributions: ``(N, channels, height, width)``, whose channels are summed; or maps or rows without channels.
        signed: whether channels cancel, as where captum's own function is given a colour image; by default their sizes
            are summed.
        outliers: the share of the sum that lies at or above what becomes 1.

    Example:
        >>> rows = torch.ones(1, 100)
        >>> rows[0, -1] = 50.0  # a third of the sum: no outlier
        >>> normalise(rows)[0, -2:].tolist()
        [0.019999999552965164, 1.0]
        >>> rows[0, -1] = 2.0  # the last 2 %
        >>> normalise(rows)[0, -2:].tolist()
        [1.0, 1.0]

    Raises:
        BadInput: the attributions are not finite numbers, one map per example.
    """
    if not 0 <= outliers < 1:
        raise BadInput("outliers must be a share", expected="from 0, below 1", got=outliers)
    if attributions.dim() < 2 or not attributions.numel() or not attributions.is_floating_point():
        raise BadInput(
            "attributions must be numbers, one map per example",
            expected="float, (N, channels, height, width) or (N, d)",
            got=f"{attributions.dtype} of shape {tuple(attributions.shape)}",
        )
    if not bool(attributions.isfinite().all()):
        raise BadInput("an attribution is not finite", do="Look whether the weights have diverged.")
    wide = (
        attributions.float() if attributions.itemsize < 4 else attributions
    )  # channels add up to more than half knows
    size = wide if signed else wide.abs()
    size = (size.sum(dim=1) if size.dim() == 4 else size).abs()
    scale = _threshold(size.flatten(1), 1 - outliers).view(-1, *[1] * (size.dim() - 1))
    return torch.where(scale > 0, size / scale, 0).clamp(max=1)


def region_share(maps: Tensor, mask: Tensor) -> Tensor:
    """Return the share of each map that lies in a region, ``(N,)``; NaN for a map of zeros.

    Args:
        maps: sizes, as :func:`normalise` returns them.
        mask: True in the region; of the shape of one map, or of all of them.

    Example:
        >>> region_share(torch.tensor([[1.0, 1.0, 2.0], [0.0, 3.0, 1.0]]), torch.tensor([False, False, True]))
        tensor([0.5000, 0.2500])

    Raises:
        BadInput: the mask is no mask of these maps.
    """
    if mask.dtype != torch.bool or mask.shape not in (maps.shape, maps.shape[1:]):
        raise BadInput(
            "the region must be a mask of the maps",
            expected=f"bool, {tuple(maps.shape[1:])} or {tuple(maps.shape)}",
            got=f"{mask.dtype} of shape {tuple(mask.shape)}",
        )
    inside = torch.where(mask.to(maps.device), maps, 0).flatten(1).double().sum(dim=1)
    return (inside / maps.flatten(1).double().sum(dim=1)).float()


def attribution_share(attributions: Tensor, regions: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the share of every region, by its name, averaged over the examples.

    Args:
        attributions: as for :func:`normalise`.
        regions: masks, as for :func:`region_share`; "core", "spurious" and "noise" in the study. They may overlap, and
            need not cover everything.

    Example:
        >>> left = torch.tensor([[True, False]])
        >>> attribution_share(torch.tensor([[[[3.0, 0.0]], [[0.0, -1.0]]]]), {"core": left, "spurious": ~left})
        {'core': 0.75, 'spurious': 0.25}
    """
    maps = normalise(attributions)
    return {name: float(region_share(maps, mask).nanmean()) for name, mask in regions.items()}


def background_share(attributions: Tensor, background: Tensor) -> float:
    """Return the share that lies in the background, averaged over the examples.

    Args:
        attributions: as for :func:`normalise`.
        background: True beside the object, ``(N, height, width)`` where every image has its own; the study takes it
            from a segmentation by DeepLabV3.

    Example:
        >>> images = torch.tensor([[[[1.0, 1.0]]], [[[1.0, 3.0]]]])  # two, of one channel and two pixels
        >>> background_share(images, torch.tensor([[[True, False]], [[False, True]]]))  # 1 / 2 and 3 / 4
        0.625
    """
    return attribution_share(attributions, {"background": background})["background"]


def attribution_entropy(attributions: Tensor) -> float:
    """Return the entropy of the maps in nats, averaged over the examples: the higher, the more dispersed.

    Between 0, all on one pixel, and the logarithm of the number of pixels. A map of zeros is left out.

    Example:
        >>> attribution_entropy(torch.tensor([[0.0, 5.0, 0.0, 0.0]]))
        0.0
        >>> import math
        >>> round(math.exp(attribution_entropy(torch.tensor([[1.0, -1.0, 0.0, 1.0]]))), 6)  # as if three pixels
        3.0
    """
    return map_entropy(normalise(attributions))


def map_entropy(maps: Tensor) -> float:
    """Return the same of maps that are normalised already: to do so again would clip the next 2 %.

    Example:
        >>> round(map_entropy(torch.tensor([[0.5, 0.5, 1.0], [0.0, 0.0, 0.0]])), 4)  # 1/4, 1/4, 1/2; zeros are left out
        1.0397
    """
    share = maps.flatten(1).double()
    share = share / share.sum(dim=1, keepdim=True)
    return float(torch.special.entr(share).sum(dim=1).nanmean())


def spurious_utilisation(over_training: Iterable[Tensor], spurious: Tensor) -> Tensor:
    """Return how much a neuron uses the shortcut at each checkpoint of a training, ``(checkpoints,)``.

    The study's figure 28 plots this number of one neuron, "computed via attribution methods", to show that large steps
    reset it whenever it rises. We read it as the share of the neuron's attribution that lies on the spurious pixels.

    Args:
        over_training: for each checkpoint the attributions of that neuron's activation, as for :func:`normalise`; any
            explainer's, of the neuron as the target in place of a logit. One checkpoint is held at a time.
        spurious: True where the shortcut is.

    Example:
        >>> early, late = torch.tensor([[1.0, 3.0]]), torch.tensor([[3.0, -1.0]])
        >>> spurious_utilisation([early, late], torch.tensor([False, True]))
        tensor([0.7500, 0.2500])
    """
    return torch.tensor([attribution_share(found, {"spurious": spurious})["spurious"] for found in over_training])


def _threshold(rows: Tensor, share: float) -> Tensor:
    """Return for each row the first number, in ascending order, at which the sum so far reaches a share of all."""
    ordered = rows.double().sort(dim=1).values
    sums = ordered.cumsum(dim=1)
    at = (sums < share * sums[:, -1:]).sum(dim=1, keepdim=True)
    return ordered.gather(1, at)[:, 0].to(rows.dtype)
