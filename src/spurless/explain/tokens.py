"""Attributions of a text classifier to its tokens, by the gradient of a logit with respect to the word vectors.

The importance of a token is the absolute value of the sum of vector times gradient: to first order, the change of the
logit when the vector becomes zero. Integrated gradients use the mean gradient between zero vectors and the given ones,
so that the signed sums add up to the difference of the two logits. Positions and token types are not changed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError, UnknownNameError
from spurless.core.modules import Input
from spurless.data.checks import describe_kind
from spurless.explain.gradients import (
    compute_gradient,
    forward_hooks,
    input_gradient_mode,
    select_classes,
    sum_explained_logits,
)
from spurless.models.classifier import Classifier
from spurless.models.input_errors import readable_forward_errors
from spurless.models.wrapping import wrap
from spurless.models.zoo.transformers import CPU_BATCH_SIZE

ROWS = 256  # texts per forward pass, unless the model splits them further
PATH_POINTS: dict[str, tuple[float, ...]] = {
    "gradient-x-input": (1.0,),
    "integrated-gradients": tuple((k + 0.5) / 50 for k in range(50)),
}
"""By name: the fractions of the word vectors at which gradients are computed."""


def attribute_tokens(
    model: nn.Module,
    x: dict[str, Tensor],
    target: Tensor | None = None,
    *,
    how: str = "gradient-x-input",
    special: Tensor | None = None,
) -> Tensor:
    """Return the importance of every token, ``(N, length)``: non-negative, and 0 if the attention mask is 0.

    Args:
        model: a text classifier whose word vectors come from an ``nn.Embedding``; it is not changed.
        x: ``input_ids`` and other inputs of the model, ``(N, length)`` each.
        target: the class to explain, one per text; by default the predicted one.
        how: ``"gradient-x-input"``, or ``"integrated-gradients"``, which costs 50 times as much.
        special: True at special tokens (a first token, separators), ``(N, length)``: their importance is 0.

    Raises:
        UnknownNameError: no method is called ``how``.
        InputError: ``input_ids`` are missing, a shape does not fit, or no embedding gets the ids.
    """
    check_arguments(attribute_tokens, locals())
    if how not in PATH_POINTS:
        raise UnknownNameError("attribution of tokens", how, PATH_POINTS)
    model = wrap(model)
    ids = get_token_ids(model, x)
    keep = x["attention_mask"].bool() if "attention_mask" in x else torch.ones_like(ids, dtype=torch.bool)
    if special is not None:
        if special.shape != ids.shape or special.dtype != torch.bool:
            raise InputError(
                "the mask of special tokens does not fit the texts",
                expected=f"bool of shape {tuple(ids.shape)}",
                got=f"{special.dtype} of shape {tuple(special.shape)}".removeprefix("torch."),
            )
        keep = keep & ~special.to(keep.device)
    return torch.where(keep, compute_contributions(model, x, target, PATH_POINTS[how]).abs(), 0)


def get_token_ids(model: Classifier, x: Input) -> Tensor:
    """Return the token ids."""
    ids = x.get("input_ids") if isinstance(x, dict) else None
    if ids is None or ids.dim() != 2:
        given = describe_kind(x) if isinstance(x, dict) else type(x).__name__
        raise InputError(
            f"token attributions of {model.name} need text",
            expected="a dict with input_ids of shape (N, length)",
            got=given if ids is None else f"input_ids of shape {tuple(ids.shape)}",
        )
    return ids


def find_special_tokens(x: dict[str, Tensor]) -> Tensor:
    """Return a mask of special tokens, ``(N, length)``: the first, the last, and the end of the first part of a pair.

    Tokenizers put one before the first word and one after each part; otherwise the mask covers the words there.

    Example:
        >>> ids, types = torch.tensor([[101, 7, 102, 8, 9, 102, 0]]), torch.tensor([[0, 0, 0, 1, 1, 1, 0]])
        >>> x = {"input_ids": ids, "attention_mask": (ids > 0).long(), "token_type_ids": types}
        >>> find_special_tokens(x).nonzero()[:, 1].tolist()
        [0, 2, 5]
    """
    ids = x["input_ids"]
    attended = x["attention_mask"].bool() if "attention_mask" in x else torch.ones_like(ids, dtype=torch.bool)
    parts = [attended]
    if "token_type_ids" in x:
        parts.append(attended & (x["token_type_ids"] == 0))
    special = torch.zeros_like(attended)
    rows, positions = torch.arange(len(ids), device=ids.device), torch.arange(1, ids.shape[1] + 1, device=ids.device)
    for part in parts:
        special[rows, (part * positions).argmax(dim=1)] = True  # the last position; the first if there is none
    special[rows, (attended * positions.flip(0)).argmax(dim=1)] = True
    return special


def compute_contributions(
    model: Classifier, x: dict[str, Tensor], target: Tensor | None, points: tuple[float, ...]
) -> Tensor:
    """Return the signed contribution of each token to the explained logit, ``(N, length)``, float32."""
    ids = x["input_ids"]
    total = torch.zeros(ids.shape, device=ids.device)
    with input_gradient_mode(model):
        for rows in _batch_by_length(x):
            part = {key: value[rows] for key, value in x.items()}
            with torch.no_grad(), readable_forward_errors(model, part):
                classes = select_classes(model, model(part), None if target is None else target.to(ids.device)[rows])
            for point in points:
                values = _compute_at_point(model, part, classes, point) / len(points)
                total[rows, : values.shape[1]] += values
    return total


def _batch_by_length(x: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Return batches of rows, sorted by length, as small as those of the encoders of this package.

    On the CPU an encoder sorts its batch by length and splits it, which would reorder the word vectors.
    """
    ids = x["input_ids"]
    mask = x.get("attention_mask", torch.ones_like(ids))
    lengths = (mask.bool() * torch.arange(1, ids.shape[1] + 1, device=ids.device)).amax(dim=1)
    return torch.split(lengths.argsort(stable=True), CPU_BATCH_SIZE if ids.device.type == "cpu" else ROWS)


def _compute_at_point(model: Classifier, x: dict[str, Tensor], classes: Tensor, point: float) -> Tensor:
    """Return vector times gradient of every token, with the gradient at ``point`` times the vectors.

    Columns of padding that the model removes are missing.
    """
    stored: list[Tensor] = []

    def scale(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        if stored or not _gets_ids(module, inputs, x["input_ids"]):
            return None
        stored.append(output.detach().requires_grad_())
        return stored[0] * point

    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    with forward_hooks(embeddings, scale):
        score = sum_explained_logits(model, model(x), classes)
    if not stored:
        raise InputError(
            f"no embedding of {model.name} gets the input_ids unchanged",
            expected="an nn.Embedding that is called with them, or with them modulo its size",
            hint="Pass one text at a time if the model reorders them.",
        )
    gradient = compute_gradient(model, score, stored[0])
    return (gradient / point * stored[0].detach()).sum(dim=2).float()


def _gets_ids(module: nn.Module, inputs: Any, ids: Tensor) -> bool:
    """Return whether an embedding was called with the ids, or with the ids modulo its size."""
    given = inputs[0] if inputs else None
    if not isinstance(given, Tensor) or given.dim() != 2 or len(given) != len(ids):
        return False
    ids = ids[:, : given.shape[1]]
    return given.shape == ids.shape and (
        bool((given == ids).all()) or bool((given == ids % int(getattr(module, "num_embeddings", 1))).all())
    )
