r"""Attribution share: the fraction of a model's attributions inside a region, such as the shortcut's pixels.

Barsbey et al. 2025, sections 5 and E. Attributions of any kind are normalised to a map from 0 to 1 per example; the
share of a region is its sum divided by that of the whole map. With masks of core, spurious and noise pixels it measures
which of them the model uses; with a mask of the background, how much it uses the background. Without a mask, the
entropy of the map measures how dispersed it is.

The normalisation is captum's for images: divide by the value at which the sorted values below it sum to 98 % of the
total, and clip at 1. "2 % outliers" are thus a fraction of the attribution, not of the pixels: nothing is clipped if
one pixel alone has more than 2 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from spurless.core.errors import InputError

OUTLIERS = 0.02


def normalise(attributions: Tensor, *, cancel_channels: bool = False, outliers: float = OUTLIERS) -> Tensor:
    """Return one map of absolute attributions per example, from 0 to 1.

    Args:
        attributions: ``(N, channels, height, width)``, whose channels are summed; or maps or rows without channels.
        cancel_channels: whether channels of opposite sign cancel, as in captum's function for a colour image; by
            default their absolute values are summed.
        outliers: the fraction of the total at or above the value that becomes 1.

    Example:
        >>> rows = torch.ones(1, 100)
        >>> rows[0, -1] = 50.0  # a third of the total: not an outlier
        >>> normalise(rows)[0, -2:].tolist()
        [0.019999999552965164, 1.0]
        >>> rows[0, -1] = 2.0  # the last 2 %
        >>> normalise(rows)[0, -2:].tolist()
        [1.0, 1.0]
    """
    if not 0 <= outliers < 1:
        raise InputError("outliers must be a fraction", expected="from 0, below 1", got=outliers)
    if attributions.dim() < 2 or not attributions.numel() or not attributions.is_floating_point():
        expected, got = (
            "float, (N, channels, height, width) or (N, d)",
            f"{attributions.dtype} {tuple(attributions.shape)}",
        )
        raise InputError("attributions must be floats, one map per example", expected=expected, got=got)
    if not bool(attributions.isfinite().all()):
        raise InputError("an attribution is not finite", hint="Check whether the weights have diverged.")
    values = attributions.float() if attributions.itemsize < 4 else attributions  # sums would overflow half precision
    size = values if cancel_channels else values.abs()
    size = (size.sum(dim=1) if size.dim() == 4 else size).abs()
    scale = _threshold(size.flatten(1), 1 - outliers).view(-1, *[1] * (size.dim() - 1))
    return torch.where(scale > 0, size / scale, 0).clamp(max=1)


def region_share(maps: Tensor, mask: Tensor) -> Tensor:
    """Return the fraction of each map inside a region, ``(N,)``; NaN for a map of zeros.

    The mask is True in the region, and has the shape of one map of :func:`normalise`, or of all maps.

    Example:
        >>> region_share(torch.tensor([[1.0, 1.0, 2.0], [0.0, 3.0, 1.0]]), torch.tensor([False, False, True]))
        tensor([0.5000, 0.2500])
    """
    if mask.dtype != torch.bool or mask.shape not in (maps.shape, maps.shape[1:]):
        expected = f"bool, {tuple(maps.shape[1:])} or {tuple(maps.shape)}"
        raise InputError("the mask does not fit the maps", expected=expected, got=f"{mask.dtype} {tuple(mask.shape)}")
    inside = torch.where(mask.to(maps.device), maps, 0).flatten(1).double().sum(dim=1)
    return (inside / maps.flatten(1).double().sum(dim=1)).float()


def attribution_share(attributions: Tensor, regions: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the share of each region by name, averaged over the examples.

    Regions are masks as for :func:`region_share`, which may overlap and need not cover the whole map; "core",
    "spurious" and "noise" in the study.

    Example:
        >>> left = torch.tensor([[True, False]])
        >>> attribution_share(torch.tensor([[[[3.0, 0.0]], [[0.0, -1.0]]]]), {"core": left, "spurious": ~left})
        {'core': 0.75, 'spurious': 0.25}
    """
    maps = normalise(attributions)
    return {name: float(region_share(maps, mask).nanmean()) for name, mask in regions.items()}


def background_share(attributions: Tensor, background: Tensor) -> float:
    """Return the share of the background, averaged over the examples.

    The mask is True outside the object, ``(N, height, width)`` if every image has its own. The study segments images
    with DeepLabV3.

    Example:
        >>> images = torch.tensor([[[[1.0, 1.0]]], [[[1.0, 3.0]]]])  # two images of one channel and two pixels
        >>> background_share(images, torch.tensor([[[True, False]], [[False, True]]]))  # 1 / 2 and 3 / 4
        0.625
    """
    return attribution_share(attributions, {"background": background})["background"]


def attribution_entropy(attributions: Tensor) -> float:
    """Return the entropy of the maps in nats, averaged over the examples; higher is more dispersed.

    From 0, if one pixel has all attribution, to the logarithm of the number of pixels. Maps of zeros are skipped.

    Example:
        >>> attribution_entropy(torch.tensor([[0.0, 5.0, 0.0, 0.0]]))
        0.0
        >>> import math
        >>> round(math.exp(attribution_entropy(torch.tensor([[1.0, -1.0, 0.0, 1.0]]))), 6)  # as if three pixels
        3.0
    """
    return map_entropy(normalise(attributions))


def map_entropy(maps: Tensor) -> float:
    """Return the entropy of maps that are already normalised; normalising again would clip another 2 %.

    Example:
        >>> round(map_entropy(torch.tensor([[0.5, 0.5, 1.0], [0.0, 0.0, 0.0]])), 4)  # 1/4, 1/4, 1/2; zeros are skipped
        1.0397
    """
    fractions = maps.flatten(1).double()
    fractions = fractions / fractions.sum(dim=1, keepdim=True)
    return float(torch.special.entr(fractions).sum(dim=1).nanmean())


def spurious_utilisation(over_training: Iterable[Tensor], spurious: Tensor) -> Tensor:
    """Return how much a neuron uses the shortcut at each checkpoint of a training run, ``(checkpoints,)``.

    The study's figure 28 plots it for one neuron, "computed via attribution methods", to show that large steps reset it
    whenever it rises. We read it as the share of the spurious pixels in the neuron's attribution.

    Args:
        over_training: for each checkpoint the attributions of that neuron's activation, as for :func:`normalise`.
        spurious: True at the pixels of the shortcut.

    Example:
        >>> early, late = torch.tensor([[1.0, 3.0]]), torch.tensor([[3.0, -1.0]])
        >>> spurious_utilisation([early, late], torch.tensor([False, True]))
        tensor([0.7500, 0.2500])
    """
    return torch.tensor([attribution_share(maps, {"spurious": spurious})["spurious"] for maps in over_training])


def _threshold(rows: Tensor, fraction: float) -> Tensor:
    """Return for each row the value, in ascending order, at which the running sum reaches a fraction of the total."""
    ordered = rows.double().sort(dim=1).values
    sums = ordered.cumsum(dim=1)
    at = (sums < fraction * sums[:, -1:]).sum(dim=1, keepdim=True)
    return ordered.gather(1, at)[:, 0].to(rows.dtype)
