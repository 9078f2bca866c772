"""Give a copy of a trained model new initial weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from spurless.core.errors import InputError, first_line
from spurless.core.modules import eval_mode
from spurless.models.classifier import Classifier, M, copy_module, device_of
from spurless.models.pruning.masks import make_class_unique

HINT = (
    "Pass the untrained model. If the weights come from other data, as those of a pretrained network do, "
    "wrap(model, trained=False) starts from them."
)


def reset_parameters(model: M, generator: torch.Generator) -> M:
    """Return a copy whose layers are initialised again; the global generators are not changed.

    Every layer with a method ``reset_parameters``, as all layers of PyTorch have, is initialised by it: by its own
    default, whatever initialised it first. This resets running statistics too. Shared weights stay shared, masks of
    pruned weights are kept, and so are frozen parameters, which training did not change. The same seed gives the same
    weights. A ``Classifier`` is returned as untrained.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> first, second = (reset_parameters(layer, torch.Generator().manual_seed(0)) for _ in range(2))
        >>> bool((first.weight == second.weight).all()), bool((first.weight == layer.weight).any())
        (True, False)

    Raises:
        InputError: no layer resets some parameter, such as an ``nn.Parameter`` of a user-defined module.
    """
    copy = copy_module(model).to("cpu")
    frozen = [(tensor, tensor.detach().clone()) for tensor in _frozen_tensors(copy)]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**63 - 1, (), generator=generator)))
        for _, parameter in _resettable_parameters(copy):
            parameter.fill_(torch.nan)  # marks values that no layer replaces
        for name, layer in reversed(list(copy.named_modules())):  # a parent initialises its children last
            _reset_layer(layer, f"the layer {name!r} of {_name_of(model)}" if name else _name_of(model))
        for tensor, values in frozen:
            tensor.copy_(values)
    missed = [name for name, parameter in _resettable_parameters(copy) if bool(parameter.isnan().any())]
    if missed:
        raise InputError(
            f"{_name_of(model)} cannot be initialised again: no layer resets {', '.join(missed[:5])}"
            f"{f' and {len(missed) - 5} more parameters' if len(missed) > 5 else ''}",
            hint=f"{HINT} Or give their module a method reset_parameters().",
        )
    if isinstance(copy, Classifier):
        copy.trained = False
    return copy.to(device_of(model))


def _reset_layer(layer: nn.Module, what: str) -> None:
    """Call the layer's ``reset_parameters``, if it has one."""
    try:
        if parametrize.is_parametrized(layer):
            _reset_parametrized(layer)
        else:
            _get_reset(layer)()
    except Exception as error:
        raise InputError(f"{what} cannot be initialised again: {first_line(error)}", hint=HINT) from error


def _get_reset(layer: nn.Module) -> Callable[[], object]:
    for name in ("reset_parameters", "_reset_parameters"):  # attention and transformers of PyTorch have the second
        reset: Callable[[], object] | None = getattr(layer, name, None)
        if callable(reset):
            return reset
    return lambda: None


def _reset_parametrized(layer: Any) -> None:
    """Reset a layer with computed weights, such as masked ones, by the values of a reset layer with plain weights."""
    plain = copy_module(layer)
    make_class_unique(plain)
    names = list(layer.parametrizations)
    with eval_mode(plain):  # in train mode, reading a spectral norm updates it
        for name in names:
            parametrize.remove_parametrizations(plain, name, leave_parametrized=True)
    _get_reset(plain)()
    for name in names:
        setattr(layer, name, getattr(plain, name).detach())
    values = dict([*plain.named_parameters(recurse=False), *plain.named_buffers(recurse=False)])
    for name, tensor in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]:
        tensor.copy_(values[name])


def _frozen_tensors(module: nn.Module) -> Iterator[Tensor]:
    """Yield frozen parameters, and the running statistics of layers of which all parameters are frozen."""
    for layer in module.modules():
        parameters = list(layer.parameters(recurse=False))
        yield from (parameter for parameter in parameters if not parameter.requires_grad and _has_values(parameter))
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            yield from layer.buffers(recurse=False)


def _resettable_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and _has_values(parameter):
            yield name, parameter


def _has_values(parameter: Tensor) -> bool:
    return not isinstance(parameter, UninitializedParameter)


def _name_of(model: nn.Module) -> str:
    return str(getattr(model, "name", type(model).__name__))
