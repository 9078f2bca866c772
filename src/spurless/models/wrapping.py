"""Turn a module with a linear head into a Classifier; the module is copied, not changed."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError, did_you_mean, first_line
from spurless.core.modules import Input, eval_mode
from spurless.models.classifier import (
    Classifier,
    WholeNetwork,
    copy_module,
    extract_tensor,
    find_linear_layers,
    move_to_device_of,
    remove_head,
)
from spurless.models.input_errors import readable_forward_errors


def wrap(
    module: nn.Module, head: str | None = None, *, example: Input | None = None, trained: bool = True
) -> Classifier:
    """Split a copy of a module at its head, the linear layer that computes the logits.

    A module with one logit (of label 1) gets two, of which the first is 0. If the module has no linear layer, as
    SqueezeNet whose head is a convolution, its logits are the features, and the head is an identity matrix.

    Args:
        module: a network of torchvision, timm or transformers, or any other that ends with a linear layer.
        head: name of that layer. By default timm's classifier; else the linear layer that runs last on ``example``;
            else the last linear layer of the module.
        example: a few inputs. With them the split is checked now, else at the first :meth:`Classifier.verify`.
        trained: whether the weights are trained, so that they can be audited.

    Example:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> model = wrap(net)
        >>> model.head_path, model.features(torch.zeros(5, 4)).shape
        ('3', torch.Size([5, 8]))

    Raises:
        InputError: the layer does not exist or is not linear, a layer has no weights yet, the module computes something
            after its head, or it cannot be copied.
    """
    check_arguments(wrap, locals())
    check_has_weights(module, ran=example is not None)
    _check_kinds(module)
    if isinstance(module, Classifier):
        if example is not None:
            module.verify(example)
        return module
    module = getattr(module, "_orig_mod", module)  # of torch.compile; hooks do not run in a compiled module
    try:
        copy = copy_module(module)
    except Exception as error:
        check_has_weights(module)  # some lazy layers cannot be copied
        raise InputError(f"{type(module).__name__} cannot be copied: {first_line(error)}") from error
    name = type(module).__name__
    if head is None and not find_linear_layers(copy) and (n := _count_logits(copy)):
        model = _wrap_whole(copy, n, name, trained)
    else:
        path = _find_head(copy, example) if head is None else head
        layer = _get_linear_layer(copy, path)
        if example is not None and layer.out_features == 1 and _flattens_logits(copy, layer, example):
            whole = _wrap_whole(copy_module(copy), 1, name, trained)
            model = _split(copy, path, layer, name, trained)
            return model if _is_verified(model, example) else whole
        model = _split(copy, path, layer, name, trained)
    if example is not None:
        model.verify(example)
    return model


def _split(module: nn.Module, path: str, layer: nn.Linear, name: str, trained: bool) -> Classifier:
    """Split a module at ``layer``, which is called ``path``; a layer with one logit gets two."""
    head = _with_two_logits(layer) if layer.out_features == 1 else layer
    if path:
        remove_head(module, layer, head.out_features)
    backbone = module if path else nn.Flatten()
    return Classifier(backbone, head, name=name, options={"head": path}, trained=trained, head_path=path)


def _is_verified(model: Classifier, example: Input) -> bool:
    try:
        model.verify(example)
    except InputError:
        return False
    return True


def _count_logits(module: nn.Module) -> int | None:
    """Return the number of logits of a module without linear layers; None if it does not end with a convolution."""
    convolutions = [part for part in module.modules() if isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    if not convolutions or max(convolutions[-1].kernel_size) > 1:
        return None
    return convolutions[-1].out_channels


def _wrap_whole(module: nn.Module, n_logits: int, name: str, trained: bool) -> Classifier:
    """Return a classifier whose features are the logits of a module; its head adds the first of two logits to one."""
    head = nn.Linear(n_logits, max(n_logits, 2), bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.eye(n_logits) if n_logits > 1 else torch.tensor([[0.0], [1.0]]))
    like = next(module.parameters(), torch.empty(0))
    return Classifier(WholeNetwork(module), head.to(like.device, like.dtype), name=name, trained=trained)


def _with_two_logits(layer: nn.Linear) -> nn.Linear:
    """Return a layer with the logit 0 for label 0 and that of ``layer`` for label 1: a softmax is then its sigmoid."""
    weight = layer.weight.detach()
    head = nn.Linear(layer.in_features, 2, bias=layer.bias is not None, device=weight.device, dtype=weight.dtype)
    with torch.no_grad():
        for new, old in zip(head.parameters(), (weight, layer.bias), strict=False):
            new.copy_(torch.cat([torch.zeros_like(old), old]))
    return head


def _flattens_logits(module: nn.Module, layer: nn.Linear, example: Input) -> bool:
    """Return whether a module returns the outputs of ``layer``, its only logit, as ``(N,)`` instead of ``(N, 1)``."""
    outputs: list[torch.Tensor] = []
    hook = layer.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    x = move_to_device_of(example, next(module.parameters(), None))
    try:
        with readable_forward_errors(module, x), eval_mode(module), torch.no_grad():
            logits = extract_tensor(module(**x) if isinstance(x, dict) else module(x))
    finally:
        hook.remove()
    return logits.dim() == 1 and len(outputs) == 1 and torch.equal(logits, outputs[0].flatten())


def _check_kinds(module: nn.Module) -> None:
    """Raise for parts whose copies cannot be trained: scripted modules, torch pruning, and the old weight norms."""
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise InputError(
            f"{getattr(module, 'name', type(module).__name__)} is scripted or traced, so a copy cannot be trained",
            hint="Wrap the original module.",
        )
    hooks = [hook for part in module.modules() for hook in part._forward_pre_hooks.values()]
    if any(isinstance(hook, BasePruningMethod) for hook in hooks):
        raise InputError(
            f"{getattr(module, 'name', type(module).__name__)} is pruned by torch.nn.utils.prune, which computes the "
            "weights again in every forward pass, so they cannot be changed",
            hint="Make the zeros permanent first: torch.nn.utils.prune.remove(layer, 'weight').",
        )
    old = next((hook for hook in hooks if isinstance(hook, SpectralNorm | WeightNorm)), None)
    if old is not None:
        name = "spectral_norm" if isinstance(old, SpectralNorm) else "weight_norm"
        raise InputError(
            f"{getattr(module, 'name', type(module).__name__)} cannot be copied after a forward pass: the old "
            f"torch.nn.utils.{name} stores the computed weight",
            hint=f"Use torch.nn.utils.parametrizations.{name}.",
        )


def check_has_weights(module: nn.Module, *, ran: bool = False) -> None:
    """Raise if weights are on the meta device or lazy layers are not initialized; ``ran``: an example will be run."""
    parts = (part for part in module.modules() if isinstance(part, LazyModuleMixin))
    lazy = next((part for part in parts if part.has_uninitialized_params()), None)
    shapes_only = torch.get_default_device().type == "meta"  # the user wants shapes only
    if not shapes_only and any(part.is_meta for part in module.parameters()):
        raise InputError(
            f"{getattr(module, 'name', type(module).__name__)} is on the device 'meta', which stores no weights",
            hint="Call module.to_empty(device='cpu') and load the weights first.",
        )
    if lazy is not None and not ran:
        what = f"a layer of {getattr(module, 'name', type(module).__name__)} has no weights yet"
        hint = "Run the module once before wrapping it, or pass an example."
        raise InputError(what, got=type(lazy).__name__, hint=hint)


def _find_head(module: nn.Module, example: Input | None) -> str:
    layers = find_linear_layers(module)
    get_classifier = getattr(module, "get_classifier", None)
    timm_head = get_classifier() if callable(get_classifier) else None
    for name, layer in layers.items():
        if layer is timm_head:
            return name
    if example is not None:
        layers = _sort_by_first_use(module, layers, example)
    if not layers:
        raise InputError(
            f"{type(module).__name__} has no linear layer, so it has no head",
            hint="End the network with an nn.Linear or a 1x1 convolution, or use Classifier(backbone, head).",
        )
    return list(layers)[-1]


def _sort_by_first_use(module: nn.Module, layers: dict[str, nn.Linear], example: Input) -> dict[str, nn.Linear]:
    """Return the layers that run, in the order of their first use."""
    used: dict[str, nn.Linear] = {}
    hooks = [
        layer.register_forward_hook(lambda m, _inputs, _output, name=name: used.update({name: m}))
        for name, layer in layers.items()
    ]
    x = move_to_device_of(example, next(module.parameters(), None))
    try:
        with readable_forward_errors(module, x), eval_mode(module), torch.no_grad():
            module(**x) if isinstance(x, dict) else module(x)
    finally:
        for hook in hooks:
            hook.remove()
    return used


def _get_linear_layer(module: nn.Module, path: str) -> nn.Linear:
    """Return the linear layer of that name, or raise with the names of all."""
    names = list(find_linear_layers(module))
    candidates = f"Linear layers: {', '.join(names[-8:]) or 'none'}."
    kind = type(module).__name__
    try:
        layer = module.get_submodule(path)
    except AttributeError:
        hint = f"{did_you_mean(path, names)} {candidates}".strip()
        raise InputError(f"{kind} has no layer {path!r}", hint=hint) from None
    if not isinstance(layer, nn.Linear):
        what, got = f"the layer {path!r} of {kind} cannot be a head", type(layer).__name__
        raise InputError(what, expected="nn.Linear", got=got, hint=candidates)
    if isinstance(layer, nn.LazyLinear):
        what = f"the layer {path!r} of {kind} has no weights yet"
        raise InputError(what, hint="Run the module once before wrapping it.")
    return layer
