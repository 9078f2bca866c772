"""Fixed masks of convolution and linear weights, and suppression of features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spurless.core.errors import InputError, did_you_mean
from spurless.core.modules import eval_mode
from spurless.models.classifier import Classifier


class WeightMask(nn.Module):
    """A fixed mask: a pruned weight is zero and has no gradient, whatever the stored value."""

    keep: Tensor
    entrywise: ClassVar[bool] = True  # a stored zero stays zero and changes no other weight

    def __init__(self, keep: Tensor) -> None:
        super().__init__()
        self.register_buffer("keep", keep)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the masked weight."""
        return torch.where(self.keep, weight, 0)  # not a product, so that a pruned NaN becomes zero

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Let ``layer.weight = value`` set the stored weight."""
        return weight


def prune(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Mask convolution and linear weights in place: True keeps a weight, False prunes it.

    A second mask is combined with the first: pruned weights stay pruned.
    Masks have the names of :func:`get_weight_masks`; not all weights need one.

    Example:
        >>> layer = nn.Sequential(nn.Linear(2, 1, bias=False))
        >>> prune(layer, {"0.weight": torch.tensor([[True, False]])})
        >>> sparsity(layer)
        0.5
    """
    layers = dict(named_weight_layers(model))
    for name, mask in masks.items():  # all checks before the first change
        _check(model, layers, name, mask)
    for name, mask in masks.items():
        layer = layers[name]
        keep = mask.detach().bool().to(layer.weight.device)
        current = get_mask(layer)
        if current is not None:
            current.keep &= keep
        else:
            parametrize.register_parametrization(layer, "weight", WeightMask(keep.clone()))


def is_pruned(model: nn.Module) -> bool:
    """Return whether any weight has a mask."""
    return any(get_mask(layer) is not None for _, layer in named_weight_layers(model))


def make_permanent(model: nn.Module) -> None:
    """Write the zeros into the weights and remove the masks, in place; the logits stay the same.

    Training can then change the zeros again.
    """
    masked = [(name, layer) for name, layer in named_weight_layers(model) if get_mask(layer) is not None]
    for name, layer in masked:  # all checks before the first change
        if len(layer.parametrizations.weight) > 1:
            raise InputError(
                f"the weight {name!r} has another parametrization besides its mask",
                hint="Call spurless.models.pruning.learned_masks.finalize_masks first.",
            )
    for _, layer in masked:
        make_class_unique(layer)
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


def get_weight_masks(model: nn.Module, fill: bool = True) -> dict[str, Tensor]:
    """Return a copy of the mask of every convolution and linear weight; without a mask, filled with ``fill``."""
    masks = {}
    for name, layer in named_weight_layers(model):
        mask = get_mask(layer)
        masks[name] = torch.full_like(layer.weight, fill, dtype=torch.bool) if mask is None else mask.keep.clone()
    return masks


def sparsity(model: nn.Module) -> float:
    """Return the fraction of zeros among convolution and linear weights; a shared weight counts once."""
    weights = [layer.weight for _, layer in named_weight_layers(model)]
    unique = {id(weight): weight for weight in weights}.values()
    total = sum(weight.numel() for weight in unique)
    return sum(int((weight == 0).sum()) for weight in unique) / total if total else 0.0


def suppress_features(model: Classifier, dims: Tensor | Sequence[int]) -> None:
    """Set the head's weights of some features to zero, in place: the model ignores these features.

    A parametrization of the weight, such as a weight norm, is removed.
    ``dims`` are indices of the features, or a mask of shape ``(n_features,)`` that is True for suppressed features.
    """
    d = model.n_features
    index = torch.as_tensor(dims)
    if index.dtype == torch.bool:
        if index.shape != (d,):
            raise InputError("the feature mask has the wrong shape", expected=f"({d},)", got=tuple(index.shape))
        index = index.nonzero()
    index = index.long().flatten()
    wrong = index[(index < 0) | (index >= d)]
    if len(wrong):
        raise InputError(f"{model.name} has no feature {int(wrong[0])}", expected=f"0 to {d - 1}")
    head: Any = model.head
    remove_parametrization(head)
    has_mask = parametrize.is_parametrized(head, "weight")
    weight: Tensor = head.parametrizations.weight.original if has_mask else head.weight
    with torch.no_grad():
        weight[:, index.to(weight.device)] = 0


def named_weight_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the convolution and linear layers, each with the name of its weight."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
            yield (f"{name}.weight" if name else "weight"), module


def get_mask(layer: nn.Module) -> WeightMask | None:
    """Return the fixed mask of a layer's weight, if it has one."""
    if not parametrize.is_parametrized(layer, "weight"):
        return None
    first = layer.parametrizations["weight"][0]  # type: ignore[index]  # a ModuleDict, once parametrized
    return first if isinstance(first, WeightMask) else None


def remove_parametrization(layer: nn.Module) -> None:
    """Remove a parametrization other than a mask from a layer, in place; the computed weight is kept.

    Under a weight norm or a spectral norm, setting a weight to zero would change others.
    """
    if not parametrize.is_parametrized(layer, "weight"):
        return
    steps: Any = layer.parametrizations["weight"]  # type: ignore[index]  # a ModuleDict, once parametrized
    if all(getattr(step, "entrywise", False) for step in steps):
        return
    make_class_unique(layer)
    with eval_mode(layer):  # in train mode, reading a spectral norm updates it
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


def make_class_unique(layer: nn.Module) -> None:
    """Give a masked layer a separate class.

    torch stores the masked weight as a property of a class that copies of the layer share, and removes it from there:
    without this, making a copy permanent would break the original.
    """
    shared = type(layer)
    layer.__class__ = type(shared.__name__, shared.__bases__, dict(shared.__dict__))


def _check(model: nn.Module, layers: Mapping[str, Any], name: str, mask: Tensor) -> None:
    if name not in layers:
        raise InputError(
            f"no convolution or linear weight is called {name!r}",
            hint=f"{did_you_mean(name, layers)} Take the names from get_weight_masks(model).".strip(),
        )
    layer = layers[name]
    if mask.shape != layer.weight.shape:
        raise InputError(
            f"the mask of {name!r} has the wrong shape", expected=tuple(layer.weight.shape), got=tuple(mask.shape)
        )
    if get_mask(layer) is None:
        check_weight_is_plain(model, name, layer)


def check_prunable(model: nn.Module) -> None:
    """Raise if a weight of the model cannot have a mask."""
    for name, layer in named_weight_layers(model):
        if get_mask(layer) is None:
            check_weight_is_plain(model, name, layer)


def check_weight_is_plain(model: nn.Module, name: str, layer: Any) -> None:
    """Raise if a weight is parametrized already, or shared by several layers."""
    if parametrize.is_parametrized(layer, "weight"):
        raise InputError(
            f"the weight {name!r} is already parametrized",
            hint="Call finalize_masks, or torch.nn.utils.parametrize.remove_parametrizations.",
        )
    names = [other for other, p in model.named_parameters(remove_duplicate=False) if p is layer.weight]
    owners = {id(model.get_submodule(other.rpartition(".")[0])) for other in names}
    if len(owners) > 1:
        raise InputError(
            f"the weight {name!r} is shared by several layers ({', '.join(names)})",
            hint="Untie them first: a mask on one layer would separate its weight from the others.",
        )
