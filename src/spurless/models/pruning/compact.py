"""Remove channels without effect from a model, so that smaller layers compute the same logits.

A channel is removed if nothing reads it (all weights that would are zero), or if it is constant (its whole filter is
zero) and the constant can be added to the bias of the next layer. A constant other than 0 cannot be moved if the next
layer pads with zeros: the constant does not extend into the padding, but a bias does.

Layers that are not part of a chain (a layer, pointwise steps and the layer that reads it) are left unchanged and
reported, above all those whose outputs are added in a residual network.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError, first_line
from spurless.core.modules import Input, eval_mode
from spurless.models.classifier import Classifier
from spurless.models.input_errors import readable_forward_errors
from spurless.models.pruning.learned_masks import has_learned_masks
from spurless.models.pruning.masks import make_permanent, named_weight_layers
from spurless.models.pruning.size import count_flops, count_parameters


@dataclass(frozen=True)
class CompactModel:
    """A smaller model with the same logits in eval mode, and what was removed."""

    model: nn.Module
    removed: dict[str, int]  # number of removed channels, by the name of the layer, for layers that lost any
    unchanged: dict[str, str]  # reason, by the name of the layer, for layers that could not be compacted fully
    parameters_before: int
    parameters_after: int
    flops_before: int
    flops_after: int


def compact_model(model: nn.Module, x: Input) -> CompactModel:
    """Remove channels without effect from a copy of a model.

    The logits in eval mode stay the same up to rounding. Zeros of a pruned model are made permanent. A classifier gets
    another name, because ``build`` cannot create its architecture.

    Args:
        model: any module; it is not changed.
        x: a few examples, for the shapes.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> _ = net[0].weight.data[1].zero_()
        >>> small = compact_model(net, torch.zeros(1, 2))
        >>> small.removed, small.model[0].out_features, small.parameters_before, small.parameters_after
        ({'0': 1}, 2, 17, 12)

    Raises:
        InputError: the model has learned masks that are not final.
    """
    check_arguments(compact_model, locals())
    if has_learned_masks(model):
        raise InputError("the model has learned masks that are not final", hint="Call finalize_masks(model) first.")
    small = deepcopy(model)
    make_permanent(small)
    with readable_forward_errors(small, x):
        before = count_parameters(small), count_flops(small, x)
    chains, unchanged = find_layer_chains(small, x)
    removed: Counter[str] = Counter()
    with eval_mode(small):
        while cuts := {name: n for name, chain in chains.items() if (n := _remove_channels(chain))}:
            removed.update(cuts)  # repeat: now another filter may be zero, or another channel unread
        unchanged |= _find_unmovable(chains)
    if isinstance(small, Classifier) and removed:
        small.name = f"compact {small.name}"
    after = count_parameters(small), count_flops(small, x)
    return CompactModel(small, dict(removed), unchanged, before[0], after[0], before[1], after[1])


def _remove_channels(chain: LayerChain) -> int:
    layer, reader = chain.layer, chain.reader
    removable, values = _find_removable(chain)
    n = int(removable.sum())
    if not n:
        return 0
    keep, wide = ~removable, _repeat_to_width(~removable, reader.weight.shape[1])
    with torch.no_grad():
        _add_to_bias(reader, torch.where(wide, 0, values))
        layer.weight = _select(layer.weight, keep)
        layer.bias = None if layer.bias is None else _select(layer.bias, keep)
        reader.weight = _select(reader.weight, wide, dim=1)
        for norm in (step for step in chain.steps if isinstance(step, _BatchNorm)):
            _select_norm_channels(norm, _repeat_to_width(keep, norm.num_features))
    setattr(layer, "out_channels" if isinstance(layer, _ConvNd) else "out_features", len(layer.weight))
    setattr(reader, "in_channels" if isinstance(reader, _ConvNd) else "in_features", reader.weight.shape[1])
    return n


def _find_removable(chain: LayerChain) -> tuple[Tensor, Tensor]:
    """Return a mask of removable channels, and the output of each constant channel (0 for all others)."""
    layer, reader = chain.layer, chain.reader
    dead = (layer.weight == 0).flatten(1).all(dim=1)
    constant = _compute_constants(chain)
    unread = (reader.weight == 0).transpose(0, 1).flatten(1).all(dim=1)
    movable = constant.isfinite() & ((constant == 0) | (not _pads_with_zeros(reader)))
    removable = unread.view(len(dead), -1).all(dim=1) | (dead & movable.view(len(dead), -1).all(dim=1))
    if bool(removable.all()):
        removable[0] = False  # a layer needs at least one channel
    return removable, torch.where(_repeat_to_width(dead, reader.weight.shape[1]), constant, 0)


def _compute_constants(chain: LayerChain) -> Tensor:
    """Return the input of the reader for each channel if the filter of the channel is zero."""
    layer = chain.layer
    with torch.no_grad():
        values = layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias.clone()
        for step in chain.steps:
            values = _apply_norm(step, values) if isinstance(step, _BatchNorm) else step(values)
    return _repeat_to_width(values, chain.reader.weight.shape[1])


def _apply_norm(norm: _BatchNorm, values: Tensor) -> Tensor:
    wide = _repeat_to_width(values, norm.num_features)[None]
    return F.batch_norm(wide, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)[0]


def _find_unmovable(chains: dict[str, LayerChain]) -> dict[str, str]:
    reasons = {}
    for name, chain in chains.items():
        values = _find_removable(chain)[1] * _pads_with_zeros(chain.reader)
        if n := int((values != 0).view(len(chain.layer.weight), -1).any(dim=1).sum()):
            reasons[name] = f"the next layer pads its {n} constant channels with zeros"
    return reasons


def _add_to_bias(reader: Any, constants: Tensor) -> None:
    per_channel = constants.view(-1, *[1] * (reader.weight.dim() - 2))
    extra = (reader.weight * per_channel).flatten(1).sum(dim=1)
    if bool(extra.any()):
        bias = extra.new_zeros(len(extra)) if reader.bias is None else reader.bias
        requires_grad = (reader.weight if reader.bias is None else reader.bias).requires_grad
        reader.bias = nn.Parameter(bias + extra, requires_grad)


def _select_norm_channels(norm: _BatchNorm, keep: Tensor) -> None:
    for name, values in [*norm.named_parameters(recurse=False), *norm.named_buffers(recurse=False)]:
        if values.dim():  # not the counter of batches
            setattr(norm, name, _select(values, keep))
    norm.num_features = int(keep.sum())


def _select(values: Tensor, keep: Tensor, dim: int = 0) -> Any:
    chosen = values.detach().index_select(dim, keep.nonzero().flatten())
    return nn.Parameter(chosen, values.requires_grad) if isinstance(values, nn.Parameter) else chosen


def _repeat_to_width(values: Tensor, width: int) -> Tensor:
    """Repeat the value of each channel for each of its positions in a flattened map."""
    return values.repeat_interleave(width // len(values))


def _pads_with_zeros(reader: Any) -> bool:
    is_padded = isinstance(reader, _ConvNd) and any(reader._reversed_padding_repeated_twice)
    return is_padded and reader.padding_mode == "zeros"


Step: TypeAlias = "_BatchNorm | Callable[[Tensor], Tensor]"
"""A batch norm, or a pointwise function of one number per channel, which may work in place."""

PLAIN_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
POINTWISE = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus,
    nn.Tanh, nn.Sigmoid, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh,
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout,
)  # fmt: skip
POINTWISE_FUNCTIONS = {torch.relu, torch.tanh, torch.sigmoid, F.relu, F.gelu, F.silu, F.leaky_relu, F.elu, F.dropout}
POINTWISE_METHODS = {"relu", "tanh", "sigmoid"}
MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
MEAN_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
WHOLE_POOLS = (
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
)  # fmt: skip


@dataclass(frozen=True)
class LayerChain:
    """A layer, the steps that follow it, and the layer that reads the result."""

    layer: Any
    steps: tuple[Step, ...]
    reader: Any


class DimensionRecorder(fx.Interpreter):
    """Runs a traced model and stores the number of dimensions of every result."""

    def run_node(self, n: fx.Node) -> Any:
        """Run one node."""
        result = super().run_node(n)
        n.meta["dims"] = result.dim() if isinstance(result, Tensor) else 0
        return result


def find_layer_chains(model: nn.Module, x: Input) -> tuple[dict[str, LayerChain], dict[str, str]]:
    """Return the chains by the name of their layer, and the reason for every layer without one."""
    names = [name.removesuffix("weight").removesuffix(".") for name, _ in named_weight_layers(model)]
    try:
        net = _trace(model, x)
    except Exception as error:  # a user's module may raise anything when traced
        return {}, dict.fromkeys(names, f"the model cannot be traced: {first_line(error)}")
    nodes = {node.target: node for node in net.graph.nodes if node.op == "call_module"}
    parts, changeable = dict(model.named_modules()), _find_changeable(model, net)
    chains, reasons = dict[str, LayerChain](), dict[str, str]()
    for name in names:
        chain = _follow(nodes[name], parts, changeable) if name in nodes else "it is not called in the trace"
        if isinstance(chain, LayerChain):
            chains[name] = chain
        elif chain:
            reasons[name] = chain
    return chains, reasons


def _trace(model: nn.Module, x: Input) -> fx.GraphModule:
    root = model
    if isinstance(model, Classifier):  # its forward checks types, which cannot be traced
        parts: list[tuple[str, nn.Module]] = [("backbone", model.backbone), ("head", model.head)]
        others = len(list(model.children())) - len(parts)  # such as a selector, which reads the features too
        root = nn.Sequential(OrderedDict(parts[:1] if others else parts))
    with eval_mode(model), torch.no_grad():
        net = fx.symbolic_trace(root)
        net.eval()
        DimensionRecorder(net).run(x)
    return net


def _find_changeable(model: nn.Module, net: fx.GraphModule) -> set[str]:
    """Return the names of modules that are called once and whose parameters nothing else uses."""
    calls = Counter(str(node.target) for node in net.graph.nodes if node.op == "call_module")
    read = {str(node.target).rpartition(".")[0] for node in net.graph.nodes if node.op == "get_attr"}
    owners = Counter(id(p) for part in model.modules() for p in part.parameters(recurse=False))
    changeable = set()
    for name, part in model.named_modules():
        single = calls[name] == 1 and all(owners[id(p)] == 1 for p in part.parameters(recurse=False))
        has_hooks = name in read or part._forward_hooks or part._forward_pre_hooks or parametrize.is_parametrized(part)
        if single and not has_hooks:
            changeable.add(name)
    return changeable


def _follow(node: fx.Node, parts: dict[str, Any], changeable: set[str]) -> LayerChain | str:
    """Return the chain of a layer, else the reason why there is none; "" for the output of the model."""
    layer = parts[str(node.target)]
    if node.target not in changeable:
        return "it is used several times, parametrized, or has a hook"
    if not _is_plain(layer):
        return "its channels are grouped or transposed"
    axis = 1 if isinstance(layer, _ConvNd) else _dims(node) - 1
    if isinstance(layer, _ConvNd) and _dims(node) != layer.weight.dim():
        return "its input has no batch dimension"
    steps: list[Step] = []
    while len(node.users) == 1:
        before, node = node, next(iter(node.users))
        if node.op == "output":
            return ""
        part = parts[str(node.target)] if node.op == "call_module" else None
        may_change = node.target in changeable or _has_no_parameters(part)
        is_known = node.args[:1] == (before,) and len(node.all_input_nodes) == 1 and may_change
        if is_known and _is_plain(part) and _reads(part, axis, _dims(before)):
            return LayerChain(layer, tuple(steps), part)
        step = _step(node, part, axis, _dims(before)) if is_known else None
        if step is None:
            return f"its output goes to {node.target if part is not None else node.name}"
        steps.append(step)
    return "its output is used several times" if node.users else "its output is not used"


def _step(node: fx.Node, part: Any, axis: int, dims: int) -> Step | None:
    """Return the function of a node on one number per channel; None if it is not known."""
    rest, options = node.args[1:], node.kwargs
    if isinstance(part, _BatchNorm):
        return part if axis == 1 and part.running_mean is not None else None
    if type(part) in POINTWISE:
        return lambda values: part(values)
    if node.op == "call_function" and node.target in POINTWISE_FUNCTIONS:
        function: Any = node.target
        return lambda values: function(values, *rest, **options)
    if node.op == "call_method" and node.target in POINTWISE_METHODS:
        method = str(node.target)
        return lambda values: getattr(values, method)()
    keeps_constants = axis == 1 and (_pools(node, part, dims) or _flattens(node, part))
    return (lambda values: values) if keeps_constants else None


def _pools(node: fx.Node, part: Any, dims: int) -> bool:
    """Return whether a node pools each channel separately and keeps a constant constant."""
    if isinstance(part, MAX_POOLS + MEAN_POOLS + WHOLE_POOLS):
        sided = type(part).__name__.endswith(f"{dims - 2}d")  # else it would pool over channels
        odd = any(getattr(part, name, None) for name in ("return_indices", "divisor_override"))
        mixes = isinstance(part, MEAN_POOLS) and (part.ceil_mode or part.padding not in (0, (0,), (0, 0), (0, 0, 0)))
        return sided and not odd and not mixes
    if part is None and node.target in ("mean", torch.mean):
        over = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else ())
        axes = over if isinstance(over, list | tuple) else (over,)
        return dims > 2 and {dim % dims for dim in axes if isinstance(dim, int)} == set(range(2, dims))
    return False


def _flattens(node: fx.Node, part: Any) -> bool:
    if isinstance(part, nn.Flatten):
        return (part.start_dim, part.end_dim) == (1, -1)
    if part is None and node.target in ("flatten", torch.flatten):
        start = node.kwargs.get("start_dim", node.args[1] if len(node.args) > 1 else 0)
        end = node.kwargs.get("end_dim", node.args[2] if len(node.args) > 2 else -1)
        return (start, end) == (1, -1)
    return False


def _is_plain(part: Any) -> bool:
    return isinstance(part, nn.Linear) or (isinstance(part, PLAIN_CONVS) and part.groups == 1)


def _has_no_parameters(part: Any) -> bool:
    """Return whether a module has no parameters, so that it may be called several times."""
    return part is None or next(part.parameters(), None) is None


def _reads(reader: Any, axis: int, dims: int) -> bool:
    if isinstance(reader, nn.Linear):
        return axis == dims - 1
    return axis == 1 and dims == int(reader.weight.dim())


def _dims(node: fx.Node) -> int:
    return int(node.meta["dims"])
