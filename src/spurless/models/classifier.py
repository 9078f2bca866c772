"""The classifier that every method takes and returns: a backbone that computes features, and a head."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError, first_line
from spurless.core.modules import Input, eval_mode
from spurless.models.input_errors import clone_input, inputs_equal, readable_forward_errors, takes_single_input


class Classifier(nn.Module):
    """A backbone and a head: ``forward(x) = head(features(x))``, with features of shape ``(N, d)``.

    Example:
        >>> model = Classifier(nn.Flatten(), nn.Linear(4, 3), name="tiny")
        >>> model(torch.zeros(2, 1, 2, 2)).shape, model.n_features, model.n_classes
        (torch.Size([2, 3]), 4, 3)
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        *,
        name: str = "own model",
        options: Mapping[str, Any] | None = None,
        trained: bool = False,
        head_path: str | None = None,
    ) -> None:
        check_arguments(Classifier.__init__, locals())
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.name = name
        self.options = dict(options or {})
        """Options of ``build(name, **options)``, if the name is in the table of models."""
        self.trained = trained
        self.head_path = head_path
        """Name of the head in the wrapped module; None if the model was not wrapped."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Classifier:
        memo.update(build_deepcopy_memo(self))  # a user's module may store computed tensors, which torch cannot copy
        copy = memo[id(self)] = type(self).__new__(type(self))
        copy.__dict__.update(deepcopy(self.__dict__, memo))
        return copy

    def features(self, x: Input) -> Tensor:
        """Return the features, shape ``(N, d)``; a dict is passed to the backbone as keyword arguments."""
        return extract_tensor(self.backbone(**x) if isinstance(x, dict) else self.backbone(x))

    def forward(self, x: Input) -> Tensor:
        """Return the logits, shape ``(N, n_classes)``."""
        logits: Tensor = self.head(self.features(x))
        return logits

    @property
    def n_classes(self) -> int:
        """The number of logits."""
        return self._linear_head().out_features

    @property
    def n_features(self) -> int:
        """The number of features."""
        return self._linear_head().in_features

    @property
    def parameters_count(self) -> int:
        """The number of parameters; a shared one counts once, masks do not count."""
        return sum(p.numel() for p in self.parameters())

    def unwrap(self) -> nn.Module:
        """Return a copy as a plain module: the wrapped module with the current head, or a Sequential.

        The Sequential is called as the backbone is: with keywords if the inputs are texts.
        """
        copy = deepcopy(self)  # backbone and head together, so that tied weights stay tied
        if self.head_path is None:
            kind = nn.Sequential if takes_single_input(copy.backbone) else KeywordSequential
            return kind(copy.backbone, copy.head)
        if self.head_path == "":
            return copy.head
        insert_head(copy.backbone, copy.head)
        return copy.backbone

    def verify(self, x: Input) -> None:
        """Run a few examples, and check the shapes of features and logits and the position of the head."""
        n = len(next(iter(x.values()))) if isinstance(x, dict) else len(x)
        x = move_to_device_of(x, next(self.parameters(), None))
        with eval_mode(self), torch.no_grad():
            if find_head_slots(self.backbone):
                self._verify_head_position(x)
            clone = clone_input(x)
            features = self._compute_features(clone)
            if not inputs_equal(clone, x):
                hint = "Write x = x - mean instead of x -= mean."
                raise InputError(f"{self.name} changes its input in place", hint=hint)
            if features.dim() != 2 or len(features) != n:
                raise InputError(
                    f"the features of {self.name} have the wrong shape",
                    expected=f"({n}, d)",
                    got=tuple(features.shape),
                    hint="Flatten or pool them in the backbone." if self.head_path is None else self._other_heads(),
                )
            logits = self.head(features)
            self._verify_linear(features, logits)
        expected = (n, self.n_classes) if isinstance(self.head, nn.Linear) else (n, "classes")
        if logits.dim() != 2 or len(logits) != n or expected[1] not in ("classes", logits.shape[1]):
            what = f"the logits of {self.name} have the wrong shape"
            raise InputError(what, expected=expected, got=tuple(logits.shape))

    def _linear_head(self) -> nn.Linear:
        if not isinstance(self.head, nn.Linear):
            got = type(self.head).__name__
            raise InputError(f"the head of {self.name} is not linear", expected="nn.Linear", got=got)
        return self.head

    def _verify_linear(self, features: Tensor, logits: Tensor) -> None:
        """Raise if the head is a Linear subclass that computes more than a product, which methods rely on."""
        head = self.head
        if not isinstance(head, nn.Linear) or features.shape[1] != head.in_features:
            return
        if not _close(logits, nn.functional.linear(features, head.weight, head.bias), _tolerance(features)):
            raise InputError(
                f"the head of {self.name} does not compute a plain linear layer",
                got=type(head).__name__,
                hint="Move everything before the product into the backbone, and use nn.Linear.",
            )

    def _verify_head_position(self, x: Input) -> None:
        """Replace the head by a random linear layer and by its negative: the module must return their outputs.

        A trained head could hide what follows it, such as a ReLU after positive logits.
        """
        slot = next(m for m in self.backbone.modules() if isinstance(m, HeadSlot))
        anchor = next(self.head.parameters(), torch.empty(0))
        probe = _random_linear(slot.in_features, slot.out_features, anchor)
        insert_head(self.backbone, probe)
        try:
            whole = self._compute_features(clone_input(x))
            for parameter in probe.parameters():
                parameter.neg_()
            opposite = self._compute_features(clone_input(x))
        finally:
            _replace_module(self.backbone, probe, slot)
        try:
            parts = probe(self.features(clone_input(x)))
        except Exception as error:
            raise InputError(
                f"{self.name} cannot run without its layer {self.head_path!r}: {first_line(error)}",
                hint=self._other_heads(),
            ) from error
        tolerance = _tolerance(anchor)
        if whole.shape != parts.shape or not _close(opposite, parts, tolerance) or not _close(whole, -parts, tolerance):
            raise InputError(
                f"{self.name} does not end with its layer {self.head_path!r}: it returns something "
                "other than the output of that layer (a softmax after it, or another branch)",
                hint=self._other_heads(),
            )

    def _compute_features(self, x: Input) -> Tensor:
        """Return the features, with readable errors."""
        with readable_forward_errors(self, x):
            return self.features(x)

    def _other_heads(self) -> str:
        names = [name for name in find_linear_layers(self.backbone) if name != self.head_path]
        return (
            "Return plain logits from the module, or name the layer that computes them: "
            f'wrap(module, head="name"), or -O head=NAME; other linear layers: {", ".join(names[-8:]) or "none"}.'
        )


class KeywordSequential(nn.Sequential):
    """A backbone with several inputs, and a head."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the logits."""
        backbone, head = self
        logits: Tensor = head(extract_tensor(backbone(*args, **kwargs)))
        return logits


class WholeNetwork(nn.Module):
    """Returns the logits of a network as features, for a network whose last layer cannot be a linear head."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the logits, ``(N, n)``; those of a convolution may be ``(N, n, 1, 1)``."""
        logits = extract_tensor(self.module(*args, **kwargs))
        if logits.dim() > 2 and logits[0, 0].numel() > 1:
            what = f"{type(self.module).__name__} returns a map of logits"
            raise InputError(what, got=tuple(logits.shape), hint="Average it over the positions.")
        return logits.reshape(len(logits), -1)


class HeadSlot(nn.Identity):
    """Identity at the position of the head in a wrapped module."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the parameters of a model; the CPU if it has none."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


@contextmanager
def on_device(model: nn.Module, device: torch.device | str | None) -> Iterator[torch.device]:
    """Move a model to a device, yield that device, then move the model back; None leaves the model where it is."""
    model_device = device_of(model)
    target = model_device if device is None else torch.device(device)
    try:
        model.to(target)
        yield target
    finally:
        model.to(model_device)


def find_linear_layers(module: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers that could be a head, by name, in the order of the module."""
    inside = {id(part) for m in module.modules() if isinstance(m, nn.MultiheadAttention) for part in m.modules()}
    # attention uses the weights of its projection without calling the layer
    return {name: m for name, m in module.named_modules() if isinstance(m, nn.Linear) and id(m) not in inside}


def find_head_slots(backbone: nn.Module) -> list[str]:
    """Return all names of the head slot; several if the module has aliases of its head."""
    return [name for name, m in backbone.named_modules(remove_duplicate=False) if isinstance(m, HeadSlot)]


def insert_head(backbone: nn.Module, head: nn.Module) -> None:
    """Put a head into every head slot."""
    for name in find_head_slots(backbone):
        _set_module(backbone, name, head)


def remove_head(module: nn.Module, head: nn.Linear, out_features: int | None = None) -> None:
    """Replace ``head`` by a :class:`HeadSlot` everywhere in the module; ``out_features`` are those of a new head."""
    _replace_module(module, head, HeadSlot(head.in_features, out_features or head.out_features))


def extract_tensor(output: Any) -> Tensor:
    """Return the tensor in the output of a module: the output, its ``logits``, or the first of a tuple."""
    if not isinstance(output, Tensor):
        if hasattr(output, "logits"):  # transformers, and torchvision's nets with auxiliary heads
            output = output.logits
        elif isinstance(output, dict):
            output = output.get("logits", output)
        elif isinstance(output, tuple | list) and output:
            output = output[0]
    if not isinstance(output, Tensor):
        raise InputError(
            "the module does not return logits",
            expected="a tensor, or an output with .logits",
            got=f"a dict of {', '.join(map(str, output))}" if isinstance(output, dict) else type(output).__name__,
        )
    return output


def _replace_module(module: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for name in [name for name, m in module.named_modules(remove_duplicate=False) if m is old]:
        _set_module(module, name, new)


def _set_module(module: nn.Module, name: str, part: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, part)


def _random_linear(n_in: int, n_out: int, like: Tensor) -> nn.Linear:
    """Return a random linear layer; the global generator is not used."""
    layer = nn.Linear(n_in, n_out, device="meta", dtype=like.dtype).to_empty(device=like.device)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return layer


def move_to_device_of(x: Input, weight: Tensor | None) -> Input:
    """Return inputs on the device of a weight; unchanged without a weight."""
    if weight is None:
        return x
    return {k: v.to(weight.device) for k, v in x.items()} if isinstance(x, dict) else x.to(weight.device)


def _tolerance(numbers: Tensor) -> float:
    """Return the relative rounding tolerance for the precision of a tensor."""
    return 1e-3 if numbers.dtype in (torch.float32, torch.float64) else 5e-2


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    scale = float(a.nan_to_num().abs().max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=0.0, atol=tolerance * (1 + scale), equal_nan=True)


M = TypeVar("M", bound=nn.Module)


def copy_module(module: M) -> M:
    """Return a deep copy; computed tensors that the module stores are detached, because torch cannot copy graphs.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> layer.last = layer.weight.sum()
        >>> copy_module(layer).last.requires_grad
        False
    """
    return deepcopy(module, build_deepcopy_memo(module))


def build_deepcopy_memo(module: nn.Module) -> dict[int, Any]:
    """Return a memo for ``deepcopy`` that replaces computed tensors of a module by detached copies."""
    tensors = (value for part in module.modules() for value in _iterate_tensors(vars(part).values()))
    return {id(value): value.detach().clone() for value in tensors if value.grad_fn is not None}


def _iterate_tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among values, and in lists, tuples and dicts among them."""
    for value in values:
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        yield from (item for item in inside if isinstance(item, Tensor))
