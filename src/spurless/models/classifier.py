"""Classifier: a backbone that makes features and a head that reads them; what every method takes and returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput, first_line
from spurless.models.asking import Input as Input  # for all that have to do with a classifier
from spurless.models.asking import asking, own_copy, same, takes_one
from spurless.models.copying import computed


class Classifier(nn.Module):
    """Two parts: ``forward(x) = head(features(x))``, with features of shape ``(N, d)``.

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
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.name = name
        self.options = dict(options or {})
        """What built it: ``build(name, **options)`` builds another, where the name is in the table."""
        self.trained = trained
        self.head_path = head_path
        """Where the head sat in the user's module; None for a model that was built in two parts."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Classifier:
        memo.update(computed(self))  # a user's module may keep what it computed last, and torch copies no graph
        copy = memo[id(self)] = type(self).__new__(type(self))
        copy.__dict__.update(deepcopy(self.__dict__, memo))
        return copy

    def features(self, x: Input) -> Tensor:
        """Return what the head reads, shape ``(N, d)``; a dict is passed to the backbone as keyword arguments."""
        return plain(self.backbone(**x) if isinstance(x, dict) else self.backbone(x))

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
        """The number of parameters; a shared one counts once, a mask not at all."""
        return sum(p.numel() for p in self.parameters())

    def unwrap(self) -> nn.Module:
        """Return a copy as a plain module: the user's own with the current head at its place, or a Sequential.

        It is called as the user's own, and as the backbone otherwise: of texts, with keywords.
        """
        copy = deepcopy(self)  # in one piece, so that tied weights stay tied
        if self.head_path is None:
            kind = nn.Sequential if takes_one(copy.backbone) else Joined
            return kind(copy.backbone, copy.head)
        if self.head_path == "":
            return copy.head
        place_head(copy.backbone, copy.head)
        return copy.backbone

    def verify(self, x: Input) -> None:
        """Run a few examples and check that head and backbone are what they claim to be.

        Raises:
            BadInput: the shapes are wrong, or something in a wrapped module comes after its head.
        """
        n = len(next(iter(x.values()))) if isinstance(x, dict) else len(x)
        x = beside(x, next(self.parameters(), None))
        with evaluating(self), torch.no_grad():
            if head_places(self.backbone):
                self._verify_place(x)
            given = own_copy(x)
            features = self._tried(given)
            if not same(given, x):
                raise BadInput(
                    f"{self.name} writes into its input, and whoever reads it after that reads something else",
                    do="Let it compute a tensor of its own: x = x - mean in the place of x -= mean.",
                )
            if features.dim() != 2 or len(features) != n:
                raise BadInput(
                    f"the features of {self.name} have the wrong shape",
                    expected=f"({n}, d)",
                    got=tuple(features.shape),
                    do="Flatten or pool them in the backbone." if self.head_path is None else self._other_heads(),
                )
            logits = self.head(features)
            self._verify_linear(features, logits)
        expected = (n, self.n_classes) if isinstance(self.head, nn.Linear) else (n, "classes")
        if logits.dim() != 2 or len(logits) != n or expected[1] not in ("classes", logits.shape[1]):
            raise BadInput(
                f"the logits of {self.name} have the wrong shape", expected=expected, got=tuple(logits.shape)
            )

    def _linear_head(self) -> nn.Linear:
        if not isinstance(self.head, nn.Linear):
            raise BadInput(f"the head of {self.name} is not linear", expected="nn.Linear", got=type(self.head).__name__)
        return self.head

    def _verify_linear(self, features: Tensor, logits: Tensor) -> None:
        """Refuse a kind of linear layer that computes more: methods fit heads and silence features by the product."""
        head = self.head
        if not isinstance(head, nn.Linear) or features.shape[1] != head.in_features:
            return
        if not _close(logits, nn.functional.linear(features, head.weight, head.bias), _tolerance(features)):
            raise BadInput(
                f"the head of {self.name} computes something else than a linear layer",
                got=type(head).__name__,
                do="Let the backbone do what comes before the product, and use an nn.Linear.",
            )

    def _verify_place(self, x: Input) -> None:
        """Put a random linear layer at the head's place: the module must compute nothing after it.

        A random layer and its opposite, because a trained one may hide what follows it (a ReLU after
        positive logits).
        """
        place = next(m for m in self.backbone.modules() if isinstance(m, HeadPlace))
        anchor = next(self.head.parameters(), torch.empty(0))
        probe = _random_linear(place.in_features, place.out_features, anchor)
        place_head(self.backbone, probe)
        try:
            whole = self._tried(own_copy(x))
            for parameter in probe.parameters():
                parameter.neg_()
            opposite = self._tried(own_copy(x))
        finally:
            _swap(self.backbone, probe, place)
        try:
            parts = probe(self.features(own_copy(x)))
        except Exception as error:
            raise BadInput(
                f"{self.name} cannot run without its layer {self.head_path!r}: {first_line(error)}",
                do=self._other_heads(),
            ) from error
        tolerance = _tolerance(anchor)
        if whole.shape != parts.shape or not _close(opposite, parts, tolerance) or not _close(whole, -parts, tolerance):
            raise BadInput(
                f"{self.name} does not end with its layer {self.head_path!r}: what it returns is not what that layer "
                "computes (a softmax after it, or another branch)",
                do=self._other_heads(),
            )

    def _tried(self, x: Input) -> Tensor:
        """Return the features; an input that will not do is a sentence."""
        with asking(self, x):
            return self.features(x)

    def _other_heads(self) -> str:
        names = [name for name in linear_layers(self.backbone) if name != self.head_path]
        return (
            "Let the module return plain logits, or name the layer that computes them: "
            f'wrap(module, head="name"), or -O head=NAME; its other linear layers: {", ".join(names[-8:]) or "none"}.'
        )


class Joined(nn.Sequential):
    """A backbone of several inputs, and a head."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the logits."""
        backbone, head = self
        logits: Tensor = head(plain(backbone(*args, **kwargs)))
        return logits


class HeadPlace(nn.Identity):
    """What a wrapped module has where its head was; features pass through it."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode, then each of its parts back in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def linear_layers(module: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers that could be a head, by name, in the order in which they were added."""
    inside = {id(part) for m in module.modules() if isinstance(m, nn.MultiheadAttention) for part in m.modules()}
    # attention reads the weights of its projection and never calls it, so that one is no layer of its own
    return {name: m for name, m in module.named_modules() if isinstance(m, nn.Linear) and id(m) not in inside}


def head_places(backbone: nn.Module) -> list[str]:
    """Return every name under which the head is missing; more than one where the module aliases it."""
    return [name for name, m in backbone.named_modules(remove_duplicate=False) if isinstance(m, HeadPlace)]


def place_head(backbone: nn.Module, head: nn.Module) -> None:
    """Put a head at every place that waits for one."""
    for name in head_places(backbone):
        _put(backbone, name, head)


def take_head(module: nn.Module, head: nn.Linear) -> None:
    """Leave a :class:`HeadPlace` wherever ``head`` is."""
    _swap(module, head, HeadPlace(head.in_features, head.out_features))


def plain(output: Any) -> Tensor:
    """Return the tensor in what a module returned: itself, its ``logits``, or the first of a tuple."""
    if not isinstance(output, Tensor):
        if hasattr(output, "logits"):  # transformers, and torchvision's nets with auxiliary heads
            output = output.logits
        elif isinstance(output, dict):
            output = output.get("logits", output)
        elif isinstance(output, tuple | list) and output:
            output = output[0]
    if not isinstance(output, Tensor):
        raise BadInput(
            "the module returns no logits",
            expected="a tensor, or an output with .logits",
            got=f"a dict of {', '.join(map(str, output))}" if isinstance(output, dict) else type(output).__name__,
        )
    return output


def _swap(module: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for name in [name for name, m in module.named_modules(remove_duplicate=False) if m is old]:
        _put(module, name, new)


def _put(module: nn.Module, name: str, part: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, part)


def _random_linear(n_in: int, n_out: int, like: Tensor) -> nn.Linear:
    """Return a linear layer with its own randomness: the global generator is not asked."""
    layer = nn.Linear(n_in, n_out, device="meta", dtype=like.dtype).to_empty(device=like.device)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return layer


def beside(x: Input, weight: Tensor | None) -> Input:
    """Return inputs on the device of a weight."""
    if weight is None:
        return x
    return {k: v.to(weight.device) for k, v in x.items()} if isinstance(x, dict) else x.to(weight.device)


def _tolerance(numbers: Tensor) -> float:
    """Return by how much two ways to one number may differ: linear maps commute with the choice of a token."""
    return 1e-3 if numbers.dtype in (torch.float32, torch.float64) else 5e-2


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    scale = float(a.nan_to_num().abs().max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=0.0, atol=tolerance * (1 + scale), equal_nan=True)
