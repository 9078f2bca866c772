"""Chains: a layer, the one layer that reads its channels, and what happens to a channel in between.

The model is traced with ``torch.fx``. In between there may be batch norms, activations, pools, dropout and one
flattening, each used once and by nobody else. Of every other layer it is said why it is in no chain.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from spurless.core.errors import first_line
from spurless.models.classifier import Classifier, Input, evaluating
from spurless.models.masks import weight_layers

Step: TypeAlias = "_BatchNorm | Callable[[Tensor], Tensor]"
"""What happens to channels that are one number each: a batch norm, or a function, which may work in place."""

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
class Chain:
    """A layer, the one that reads it, and what happens in between."""

    layer: Any
    steps: tuple[Step, ...]
    reader: Any


class Measuring(fx.Interpreter):
    """Runs a traced model and notes how many dimensions every result has."""

    def run_node(self, n: fx.Node) -> Any:
        """Run one node."""
        result = super().run_node(n)
        n.meta["dims"] = result.dim() if isinstance(result, Tensor) else 0
        return result


def find_chains(model: nn.Module, x: Input) -> tuple[dict[str, Chain], dict[str, str]]:
    """Return the chains by the name of their layer, and the other layers, each with the reason."""
    names = [name.removesuffix("weight").removesuffix(".") for name, _ in weight_layers(model)]
    try:
        net = _traced(model, x)
    except Exception as error:  # whatever a user's module does when it meets a tracer
        return {}, dict.fromkeys(names, f"the model cannot be traced: {first_line(error)}")
    nodes = {node.target: node for node in net.graph.nodes if node.op == "call_module"}
    parts, usable = dict(model.named_modules()), _usable(model, net)
    chains, reasons = dict[str, Chain](), dict[str, str]()
    for name in names:
        found = _chain(nodes[name], parts, usable) if name in nodes else "the trace does not see it called"
        if isinstance(found, Chain):
            chains[name] = found
        elif found:
            reasons[name] = found
    return chains, reasons


def _traced(model: nn.Module, x: Input) -> fx.GraphModule:
    root = model
    if isinstance(model, Classifier):  # its own forward looks at types, which a tracer cannot pass
        parts: list[tuple[str, nn.Module]] = [("backbone", model.backbone), ("head", model.head)]
        others = len(list(model.children())) - len(parts)  # a selector, say: it reads the features as well
        root = nn.Sequential(OrderedDict(parts[:1] if others else parts))
    with evaluating(model), torch.no_grad():
        net = fx.symbolic_trace(root)
        net.eval()
        Measuring(net).run(x)
    return net


def _usable(model: nn.Module, net: fx.GraphModule) -> set[str]:
    """Return the modules that may be changed: plain ones, called once, with parameters that nothing else reads."""
    calls = Counter(str(node.target) for node in net.graph.nodes if node.op == "call_module")
    read = {str(node.target).rpartition(".")[0] for node in net.graph.nodes if node.op == "get_attr"}
    owners = Counter(id(p) for part in model.modules() for p in part.parameters(recurse=False))
    usable = set()
    for name, part in model.named_modules():
        single = calls[name] == 1 and all(owners[id(p)] == 1 for p in part.parameters(recurse=False))
        watched = name in read or part._forward_hooks or part._forward_pre_hooks or parametrize.is_parametrized(part)
        if single and not watched:
            usable.add(name)
    return usable


def _chain(node: fx.Node, parts: dict[str, Any], usable: set[str]) -> Chain | str:
    """Follow a layer's output to the layer that reads it; return why not, and nothing where it is the model's."""
    layer = parts[str(node.target)]
    if node.target not in usable:
        return "it is used in several places, parametrized, or watched by a hook"
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
        known = (
            node.args[:1] == (before,) and len(node.all_input_nodes) == 1 and (node.target in usable or _shares(part))
        )
        if known and _is_plain(part) and _reads(part, axis, _dims(before)):
            return Chain(layer, tuple(steps), part)
        step = _step(node, part, axis, _dims(before)) if known else None
        if step is None:
            return f"its output meets {node.target if part is not None else node.name}"
        steps.append(step)
    return "its output is used in several places" if node.users else "its output is not used"


def _step(node: fx.Node, part: Any, axis: int, dims: int) -> Step | None:
    """Return what a node does to a channel that is one number; None where it is not known."""
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
    kept = axis == 1 and (_pools(node, part, dims) or _flattens(node, part))
    return (lambda values: values) if kept else None


def _pools(node: fx.Node, part: Any, dims: int) -> bool:
    """Return whether a node makes each channel smaller on its own, such that a constant stays one."""
    if isinstance(part, MAX_POOLS + MEAN_POOLS + WHOLE_POOLS):
        sided = type(part).__name__.endswith(f"{dims - 2}d")  # on any other map it takes channels for a side
        odd = any(getattr(part, name, None) for name in ("return_indices", "divisor_override"))
        mixes = isinstance(part, MEAN_POOLS) and (part.ceil_mode or part.padding not in (0, (0,), (0, 0), (0, 0, 0)))
        return sided and not odd and not mixes
    if part is None and node.target in ("mean", torch.mean):
        over = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else ())
        axes = over if isinstance(over, list | tuple) else (over,)
        return dims > 2 and {each % dims for each in axes if isinstance(each, int)} == set(range(2, dims))
    return False


def _flattens(node: fx.Node, part: Any) -> bool:
    """Return whether a node lays channel after channel, each in one piece."""
    if isinstance(part, nn.Flatten):
        return (part.start_dim, part.end_dim) == (1, -1)
    if part is None and node.target in ("flatten", torch.flatten):
        start = node.kwargs.get("start_dim", node.args[1] if len(node.args) > 1 else 0)
        end = node.kwargs.get("end_dim", node.args[2] if len(node.args) > 2 else -1)
        return (start, end) == (1, -1)
    return False


def _is_plain(part: Any) -> bool:
    return isinstance(part, nn.Linear) or (isinstance(part, PLAIN_CONVS) and part.groups == 1)


def _shares(part: Any) -> bool:
    """Return whether something may be called in several places: it has nothing that would be cut."""
    return part is None or next(part.parameters(), None) is None


def _reads(reader: Any, axis: int, dims: int) -> bool:
    """Return whether a layer takes the channels as its channels."""
    if isinstance(reader, nn.Linear):
        return axis == dims - 1
    return axis == 1 and dims == int(reader.weight.dim())


def _dims(node: fx.Node) -> int:
    return int(node.meta["dims"])
