"""Masks: zero weights that stay zero, and neurons that fall silent. Which ones is the caller's business."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spurless.core.errors import BadInput, did_you_mean
from spurless.models.classifier import Classifier, evaluating


class WeightMask(nn.Module):
    """A fixed multiplicative mask: a pruned weight acts as zero and has no gradient, whatever lies beneath."""

    keep: Tensor
    entrywise: ClassVar[bool] = True  # a zero beneath is a zero above, and moves nothing else

    def __init__(self, keep: Tensor) -> None:
        super().__init__()
        self.register_buffer("keep", keep)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight that acts."""
        return torch.where(self.keep, weight, 0)  # not a product: a pruned NaN is gone, too

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Let ``layer.weight = value`` set what lies beneath."""
        return weight


def prune(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Mask convolution and linear weights in place: True keeps, False prunes.

    A second mask narrows the first: what is pruned stays pruned.

    Args:
        model: any module.
        masks: by the name of the weight, as :func:`weight_masks` returns them; not all weights need one.

    Example:
        >>> layer = nn.Sequential(nn.Linear(2, 1, bias=False))
        >>> prune(layer, {"0.weight": torch.tensor([[True, False]])})
        >>> sparsity(layer)
        0.5

    Raises:
        BadInput: a name is unknown, a shape does not fit, or the weight is already parametrized or shared.
    """
    layers = dict(weight_layers(model))
    for name, mask in masks.items():  # all checks before the first change
        _check(model, layers, name, mask)
    for name, mask in masks.items():
        layer = layers[name]
        keep = mask.detach().bool().to(layer.weight.device)
        present = mask_of(layer)
        if present is not None:
            present.keep &= keep
        else:
            parametrize.register_parametrization(layer, "weight", WeightMask(keep.clone()))


def is_pruned(model: nn.Module) -> bool:
    """Return whether any weight is under a mask."""
    return any(mask_of(layer) is not None for _, layer in weight_layers(model))


def make_permanent(model: nn.Module) -> None:
    """Write the zeros into the weights and take the masks off, in place; the logits stay the same.

    From here on training moves the zeros again.

    Raises:
        BadInput: a mask that is still being learned lies on top of one.
    """
    masked = [(name, layer) for name, layer in weight_layers(model) if mask_of(layer) is not None]
    for name, layer in masked:  # all checks before the first change
        if len(layer.parametrizations.weight) > 1:
            raise BadInput(
                f"the weight {name!r} has another parametrization on top of its mask",
                do="Settle learned masks first, with spurless.models.learned_masks.settle.",
            )
    for _, layer in masked:
        own_class(layer)
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


def weight_masks(model: nn.Module, fill: bool = True) -> dict[str, Tensor]:
    """Return a copy of the mask of every convolution and linear weight; ``fill`` everywhere where there is none."""
    masks = {}
    for name, layer in weight_layers(model):
        present = mask_of(layer)
        if present is not None:
            masks[name] = present.keep.clone()
        else:
            masks[name] = torch.full_like(layer.weight, fill, dtype=torch.bool)
    return masks


def sparsity(model: nn.Module) -> float:
    """Return the share of zeros among convolution and linear weights; biases and norms do not count.

    Weights that only ever meet padding count like all others, and one that several layers share counts once.
    """
    weights = [layer.weight for _, layer in weight_layers(model)]
    own = {id(weight): weight for weight in weights}.values()
    total = sum(weight.numel() for weight in own)
    return sum(int((weight == 0).sum()) for weight in own) / total if total else 0.0


def silence(model: Classifier, dims: Tensor | Sequence[int]) -> None:
    """Zero the head's columns of some features, in place: the model then answers as if these were always 0.

    A weight that is computed from others, as by a weight norm, is a plain one afterwards.

    Args:
        model: a classifier with a linear head.
        dims: feature numbers, or a mask of shape ``(n_features,)`` that is True where a neuron falls silent.

    Raises:
        BadInput: there is no such feature, or the head is not linear.
    """
    d = model.n_features
    index = torch.as_tensor(dims)
    if index.dtype == torch.bool:
        if index.shape != (d,):
            raise BadInput("the neuron mask has the wrong shape", expected=f"({d},)", got=tuple(index.shape))
        index = index.nonzero().flatten()
    index = index.long().flatten()
    wrong = index[(index < 0) | (index >= d)]
    if len(wrong):
        raise BadInput(f"{model.name} has no feature {int(wrong[0])}", expected=f"0 to {d - 1}")
    head: Any = model.head
    make_plain(head)
    masked = parametrize.is_parametrized(head, "weight")
    weight: Tensor = head.parametrizations.weight.original if masked else head.weight
    with torch.no_grad():
        weight[:, index.to(weight.device)] = 0


def weight_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Walk over convolution and linear layers, each with the name of its weight."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
            yield (f"{name}.weight" if name else "weight"), module


def mask_of(layer: nn.Module) -> WeightMask | None:
    """Return the fixed mask of a layer's weight, if it has one."""
    if not parametrize.is_parametrized(layer, "weight"):
        return None
    first = layer.parametrizations["weight"][0]  # type: ignore[index]  # a ModuleDict, once parametrized
    return first if isinstance(first, WeightMask) else None


def make_plain(layer: nn.Module) -> None:
    """Take a parametrization other than a mask off a layer's weight, in place; the weight is then what it computed.

    A zero that is written beneath a mask stays one; beneath a weight norm or a spectral norm other weights would move.
    """
    if not parametrize.is_parametrized(layer, "weight"):
        return
    steps: Any = layer.parametrizations["weight"]  # type: ignore[index]  # a ModuleDict, once parametrized
    if all(getattr(step, "entrywise", False) for step in steps):
        return
    own_class(layer)
    with evaluating(layer):  # in train mode a spectral norm moves on whenever it is read
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


def own_class(layer: nn.Module) -> None:
    """Give a masked layer a class of its own.

    torch keeps the masked weight as a property of a class that copies of the layer share, and removes
    it from there: without this, making a copy permanent would break the original.
    """
    shared = type(layer)
    layer.__class__ = type(shared.__name__, shared.__bases__, dict(shared.__dict__))


def _check(model: nn.Module, layers: Mapping[str, Any], name: str, mask: Tensor) -> None:
    if name not in layers:
        raise BadInput(
            f"no convolution or linear weight is called {name!r}",
            do=f"{did_you_mean(name, layers)} Take the names from weight_masks(model).".strip(),
        )
    layer = layers[name]
    if mask.shape != layer.weight.shape:
        raise BadInput(
            f"the mask of {name!r} has the wrong shape", expected=tuple(layer.weight.shape), got=tuple(mask.shape)
        )
    if mask_of(layer) is None:
        check_plain(model, name, layer)


def check_prunable(model: nn.Module) -> None:
    """Refuse a model with a weight that no mask can be put on.

    Raises:
        BadInput: a weight is parametrized by something else, or shared by several layers.
    """
    for name, layer in weight_layers(model):
        if mask_of(layer) is None:
            check_plain(model, name, layer)


def check_plain(model: nn.Module, name: str, layer: Any) -> None:
    """Refuse a weight that is parametrized already, or shared by several layers.

    Raises:
        BadInput: it is.
    """
    if parametrize.is_parametrized(layer, "weight"):
        raise BadInput(
            f"the weight {name!r} is already parametrized",
            do="Settle learned masks; take anything else off with torch.nn.utils.parametrize.remove_parametrizations.",
        )
    names = [other for other, p in model.named_parameters(remove_duplicate=False) if p is layer.weight]
    places = {id(model.get_submodule(other.rpartition(".")[0])) for other in names}
    if len(places) > 1:
        raise BadInput(
            f"the weight {name!r} is shared by several layers ({', '.join(names)})",
            do="Untie them first: a mask on one would give the others a weight of their own.",
        )
