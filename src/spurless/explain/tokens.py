"""Tokens: which words a text classifier reads, by the gradient of a logit by the word vectors.

A token's importance is the absolute value of the sum, over the numbers of its vector, of vector times gradient:
to first order, by how much the logit changes when the vector becomes zero. Integrated gradients take the mean of
the gradient on the way from zero vectors to the given ones, so that the sums with their signs add up to the
difference between the two logits. Positions and token types are kept on that way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput, UnknownName
from spurless.data.checks import kind_of
from spurless.explain.probing import chosen_classes, gradient_by, probing, total_score, watching
from spurless.models.asking import asking
from spurless.models.classifier import Classifier, Input
from spurless.models.transformers_zoo import TOGETHER

ROWS = 256
"""Texts that go through the model at once, where the model does not split them further."""
WAYS: dict[str, tuple[float, ...]] = {
    "gradient-x-input": (1.0,),
    "integrated-gradients": tuple((k + 0.5) / 50 for k in range(50)),
}
"""By name: the points on the way from zero to the word vectors where gradients are taken."""


def token_attribution(
    model: Classifier,
    x: dict[str, Tensor],
    target: Tensor | None = None,
    *,
    how: str = "gradient-x-input",
    special: Tensor | None = None,
) -> Tensor:
    """Return the importance of every token, ``(N, length)``: not negative, and 0 where the attention mask is 0.

    Args:
        model: a text classifier whose word vectors come from an ``nn.Embedding``; it is left exactly as it was.
        x: ``input_ids`` and what else the model takes, ``(N, length)`` each.
        target: the class to explain, one per text; by default the predicted one.
        how: ``"gradient-x-input"``, or ``"integrated-gradients"``, which costs 50 times as much.
        special: True at the positions that are no words (a first token, separators), ``(N, length)``: these are 0.

    Raises:
        UnknownName: no way is called ``how``.
        BadInput: there are no ``input_ids``, a shape does not fit, or no embedding takes the ids.
    """
    if how not in WAYS:
        raise UnknownName("attribution of tokens", how, WAYS)
    ids = ids_of(model, x)
    keep = x["attention_mask"].bool() if "attention_mask" in x else torch.ones_like(ids, dtype=torch.bool)
    if special is not None:
        if special.shape != ids.shape or special.dtype != torch.bool:
            raise BadInput(
                "the mask of special positions does not fit the texts",
                expected=f"bool of shape {tuple(ids.shape)}",
                got=f"{special.dtype} of shape {tuple(special.shape)}".removeprefix("torch."),
            )
        keep = keep & ~special.to(keep.device)
    return torch.where(keep, contributions(model, x, target, WAYS[how]).abs(), 0)


def ids_of(model: Classifier, x: Input) -> Tensor:
    """Return the ids of the tokens.

    Raises:
        BadInput: there are none, so that this is no text.
    """
    ids = x.get("input_ids") if isinstance(x, dict) else None
    if ids is None or ids.dim() != 2:
        given = kind_of(x) if isinstance(x, dict) else type(x).__name__
        raise BadInput(
            f"token attributions of {model.name} need text",
            expected="a dict with input_ids of shape (N, length)",
            got=given if ids is None else f"input_ids of shape {tuple(ids.shape)}",
        )
    return ids


def marks(x: dict[str, Tensor]) -> Tensor:
    """Return where the marks stand that are no words, ``(N, length)``: the ends of a text, and of the first of a pair.

    A tokenizer puts one before the first word and one after each part; where it does not, these are the words there.

    Example:
        >>> ids, types = torch.tensor([[101, 7, 102, 8, 9, 102, 0]]), torch.tensor([[0, 0, 0, 1, 1, 1, 0]])
        >>> x = {"input_ids": ids, "attention_mask": (ids > 0).long(), "token_type_ids": types}
        >>> marks(x).nonzero()[:, 1].tolist()
        [0, 2, 5]
    """
    ids = x["input_ids"]
    attended = x["attention_mask"].bool() if "attention_mask" in x else torch.ones_like(ids, dtype=torch.bool)
    parts = [attended]
    if "token_type_ids" in x:
        parts.append(attended & (x["token_type_ids"] == 0))
    found = torch.zeros_like(attended)
    rows, places = torch.arange(len(ids), device=ids.device), torch.arange(1, ids.shape[1] + 1, device=ids.device)
    for part in parts:
        found[rows, (part * places).argmax(dim=1)] = True  # the last; the first place where there is none
    found[rows, (attended * places.flip(0)).argmax(dim=1)] = True
    return found


def contributions(model: Classifier, x: dict[str, Tensor], target: Tensor | None, points: tuple[float, ...]) -> Tensor:
    """Return what each token adds to the explained logit, with its sign, ``(N, length)``, float32."""
    ids = x["input_ids"]
    found = torch.zeros(ids.shape, device=ids.device)
    with probing(model):
        for rows in _together(x):
            part = {key: value[rows] for key, value in x.items()}
            with torch.no_grad(), asking(model, part):
                classes = chosen_classes(model, model(part), None if target is None else target.to(ids.device)[rows])
            for point in points:
                words = _along_the_way(model, part, classes, point) / len(points)
                found[rows, : words.shape[1]] += words
    return found


def _together(x: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Return the rows that go together: texts by length, as few as the encoders here leave in one piece.

    On the CPU an encoder sorts its batch by length and cuts it up, and the word vectors would come in that order.
    """
    ids = x["input_ids"]
    mask = x.get("attention_mask", torch.ones_like(ids))
    used = (mask.bool() * torch.arange(1, ids.shape[1] + 1, device=ids.device)).amax(dim=1)
    return torch.split(used.argsort(stable=True), TOGETHER if ids.device.type == "cpu" else ROWS)


def _along_the_way(model: Classifier, x: dict[str, Tensor], classes: Tensor, point: float) -> Tensor:
    """Return vector times gradient of every token, the gradient taken where the vectors are ``point`` times as long.

    Columns that the model cuts off, since all of them are padding, are missing.
    """
    held: list[Tensor] = []

    def hold(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        if held or not _takes(module, inputs, x["input_ids"]):
            return None
        held.append(output.detach().requires_grad_())
        return held[0] * point

    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    with watching(embeddings, hold):
        score = total_score(model, model(x), classes)
    if not held:
        raise BadInput(
            f"no embedding of {model.name} takes the input_ids as they are",
            expected="an nn.Embedding that is called with them, or with their remainder by its size",
            do="Pass one text at a time where the model reorders them.",
        )
    gradient = gradient_by(model, score, held[0])
    return (gradient / point * held[0].detach()).sum(dim=2).float()


def _takes(module: nn.Module, inputs: Any, ids: Tensor) -> bool:
    """Return whether an embedding was called with the ids; ours share word vectors among ids that are too large."""
    given = inputs[0] if inputs else None
    if not isinstance(given, Tensor) or given.dim() != 2 or len(given) != len(ids):
        return False
    ids = ids[:, : given.shape[1]]
    return given.shape == ids.shape and (
        bool((given == ids).all()) or bool((given == ids % int(getattr(module, "num_embeddings", 1))).all())
    )
