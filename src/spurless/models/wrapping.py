"""Wrapping: from any module with a linear head to a Classifier; the module itself is never changed."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from spurless.core.errors import BadInput, did_you_mean, first_line
from spurless.models.asking import asking
from spurless.models.classifier import (
    Classifier,
    Input,
    beside,
    evaluating,
    linear_layers,
    take_head,
)
from spurless.models.copying import copied


def wrap(
    module: nn.Module, head: str | None = None, *, example: Input | None = None, trained: bool = True
) -> Classifier:
    """Split a copy of a module at its head, the linear layer that computes the logits.

    Args:
        module: a network of torchvision, timm or transformers, or any other that ends with a linear layer.
        head: the name of that layer. By default what timm calls the classifier; else the linear
            layer that runs last on ``example``; else the one that was added last.
        example: a few inputs. With them the split is checked at once; without them, at the first
            :meth:`Classifier.verify`.
        trained: whether the weights are worth auditing.

    Example:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> model = wrap(net)
        >>> model.head_path, model.features(torch.zeros(5, 4)).shape
        ('3', torch.Size([5, 8]))

    Raises:
        BadInput: there is no such layer, it is not linear, a layer has no weights yet, the module computes something
            after its head, or cannot be copied.
    """
    _check_kinds(module)
    _check_made(module, ran=example is not None)
    if isinstance(module, Classifier):
        if example is not None:
            module.verify(example)
        return module
    module = getattr(module, "_orig_mod", module)  # torch.compile keeps the module there; a compiled one has no hooks
    try:
        copy = copied(module)
    except Exception as error:
        _check_made(module)  # some lazy layers cannot be copied
        raise BadInput(f"{type(module).__name__} cannot be copied: {first_line(error)}") from error
    path = _find_head(copy, example) if head is None else head
    layer = _layer(copy, path)
    if path == "":
        backbone: nn.Module = nn.Flatten()
    else:
        backbone = copy
        take_head(copy, layer)
    model = Classifier(
        backbone, layer, name=type(module).__name__, options={"head": path}, trained=trained, head_path=path
    )
    if example is not None:
        model.verify(example)
    return model


def _check_kinds(module: nn.Module) -> None:
    """Refuse parts whose copies do not learn: scripted ones, and the old norms, which keep what they compute."""
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise BadInput(
            f"{getattr(module, 'name', type(module).__name__)} is scripted or traced, and a copy of it cannot learn",
            do="Wrap the module that it was made from.",
        )
    hooks = [hook for part in module.modules() for hook in part._forward_pre_hooks.values()]
    if any(isinstance(hook, BasePruningMethod) for hook in hooks):
        raise BadInput(
            f"{getattr(module, 'name', type(module).__name__)} is pruned by torch.nn.utils.prune, which computes its "
            "weights anew in every run, so that nothing can be written into them",
            do="Make the zeros plain first: torch.nn.utils.prune.remove(layer, 'weight').",
        )
    old = next((hook for hook in hooks if isinstance(hook, SpectralNorm | WeightNorm)), None)
    if old is not None:
        name = "spectral_norm" if isinstance(old, SpectralNorm) else "weight_norm"
        raise BadInput(
            f"{getattr(module, 'name', type(module).__name__)} cannot be copied once it was run: the old "
            f"torch.nn.utils.{name} keeps the weight that it computed",
            do=f"Use torch.nn.utils.parametrizations.{name}.",
        )


def _check_made(module: nn.Module, *, ran: bool = False) -> None:
    """Refuse weights that are not there, and lazy layers that nobody runs: no seed of ours would draw theirs later."""
    parts = (part for part in module.modules() if isinstance(part, LazyModuleMixin))
    lazy = next((part for part in parts if part.has_uninitialized_params()), None)
    shapes_only = torch.get_default_device().type == "meta"  # the user's own wish
    if not shapes_only and any(part.is_meta for part in module.parameters()):
        raise BadInput(
            f"{getattr(module, 'name', type(module).__name__)} is on the device 'meta', which keeps no weights",
            do="Call module.to_empty(device='cpu') and load its weights first.",
        )
    if lazy is not None and not ran:
        raise BadInput(
            f"a layer of {getattr(module, 'name', type(module).__name__)} has no weights yet",
            got=type(lazy).__name__,
            do="Run the module once before wrapping it, or pass an example.",
        )


def _find_head(module: nn.Module, example: Input | None) -> str:
    layers = linear_layers(module)
    ask = getattr(module, "get_classifier", None)
    claimed = ask() if callable(ask) else None
    for name, layer in layers.items():
        if layer is claimed:  # timm knows its own
            return name
    if example is not None:
        layers = _in_order_of_use(module, layers, example)
    if not layers:
        raise BadInput(
            f"{type(module).__name__} has no linear layer, so no head was found",
            do="End the network with pooled features and an nn.Linear, or build Classifier(backbone, head) yourself.",
        )
    return list(layers)[-1]


def _in_order_of_use(module: nn.Module, layers: dict[str, nn.Linear], example: Input) -> dict[str, nn.Linear]:
    """Return the layers that run, by their first use: a head runs once, at the end."""
    used: dict[str, nn.Linear] = {}
    hooks = [
        layer.register_forward_hook(lambda m, _inputs, _output, name=name: used.update({name: m}))
        for name, layer in layers.items()
    ]
    x = beside(example, next(module.parameters(), None))
    try:
        with asking(module, x), evaluating(module), torch.no_grad():
            module(**x) if isinstance(x, dict) else module(x)
    finally:
        for hook in hooks:
            hook.remove()
    return used


def _layer(module: nn.Module, path: str) -> nn.Linear:
    """Return the linear layer of that name, or say which there are."""
    names = list(linear_layers(module))
    candidates = f"Linear layers: {', '.join(names[-8:]) or 'none'}."
    owner = type(module).__name__
    try:
        layer = module.get_submodule(path)
    except AttributeError:
        raise BadInput(
            f"{owner} has no layer {path!r}", do=f"{did_you_mean(path, names)} {candidates}".strip()
        ) from None
    if not isinstance(layer, nn.Linear):
        raise BadInput(
            f"the layer {path!r} of {owner} cannot be a head",
            expected="nn.Linear",
            got=type(layer).__name__,
            do=candidates,
        )
    if isinstance(layer, nn.LazyLinear):
        raise BadInput(
            f"the layer {path!r} of {owner} has no weights yet", do="Run the module once before wrapping it."
        )
    return layer
