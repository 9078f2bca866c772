"""Evaluation: logits of a whole split, in order, and the group table they make."""

from __future__ import annotations

from inspect import Parameter, signature

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput
from spurless.data.grouped import Grouped
from spurless.data.loader import CPU, Loader, in_order
from spurless.metrics.groupwise import GroupTable, group_table
from spurless.models.asking import asking
from spurless.models.classifier import Input, evaluating, plain

EVALUATION_BATCH = 512
SMALL = 4 * 64 * 64
"""Numbers of an input up to which an accelerator is done with a batch of 512 before the next is launched."""


class NoNumbers(BadInput):
    """What a model says of an example is no number, or without bound."""

    def __init__(self, row: int, said: Tensor) -> None:
        super().__init__(
            f"the logits of example {row} are not finite",
            got=said.tolist()[:4],
            do="The weights of the model are no numbers, or have diverged.",
        )


@torch.no_grad()
def logits(model: nn.Module, split: Grouped, device: torch.device = CPU, workers: int = 0) -> Tensor:
    """Return the logits of every example, in order, on the CPU; every part of the model is left in its mode.

    Raises:
        BadInput: there is no example, or the model cannot take them, or returns no logits.
    """
    if not len(split):
        raise BadInput("there is no example to predict", do="Pass a split with at least one example.")
    loader = Loader(split, in_order(len(split)), _batch_size(split, device), device, workers=workers)
    with evaluating(model):
        parts = [_answer(model, batch.x) for batch in loader.batches()]
    found = torch.cat(parts).float().cpu()
    if found.dim() != 2 or found.shape[1] < 2:
        raise BadInput(
            "the model does not return one logit per label",
            expected=f"({len(split)}, {len(split.groups.labels)})",
            got=tuple(found.shape),
            do="A model of one logit must be given two: one for each label.",
        )
    return found


def predict(model: nn.Module, split: Grouped, device: torch.device = CPU, workers: int = 0) -> Tensor:
    """Return the predicted label of every example, in order."""
    return logits(model, split, device, workers).argmax(dim=1)


def evaluate(model: nn.Module, split: Grouped, device: torch.device = CPU, workers: int = 0) -> GroupTable:
    """Return the accuracy of ``model`` in every group of ``split``.

    Raises:
        NoNumbers: a logit is not finite.
    """
    outputs = logits(model, split, device, workers)
    check_numbers(outputs)
    return group_table(outputs.argmax(dim=1), split.y.cpu(), split.a.cpu(), split.groups)


def check_numbers(outputs: Tensor) -> None:
    """Refuse logits that are no numbers: where one stands would pass for a prediction. By -inf a class is ruled out.

    Raises:
        NoNumbers: it names the first example.
    """
    broken = ~(outputs < torch.inf).all(dim=1)
    if bool(broken.any()):
        row = int(broken.nonzero()[0])
        raise NoNumbers(row, outputs[row])


def _answer(model: nn.Module, x: Input) -> Tensor:
    """Return the logits of a batch; a plain module may take a dict as keywords, and must name its logits."""
    with asking(model, x):
        said = model(**x) if isinstance(x, dict) and _names(model, x) else model(x)
    if isinstance(said, tuple | list) and not hasattr(said, "logits"):
        raise BadInput(
            f"{type(model).__name__} returns {len(said)} things, and does not say which are the logits",
            do="Pass sp.wrap(module, example=...), which checks it.",
        )
    return plain(said)


def _names(model: nn.Module, x: dict[str, Tensor]) -> bool:
    """Return whether a module takes these tensors by their names; ours take the dict."""
    taken = signature(model.forward).parameters
    return set(x) <= set(taken) or any(each.kind is Parameter.VAR_KEYWORD for each in taken.values())


def _batch_size(split: Grouped, device: torch.device) -> int:
    """Return how many examples to pass at once: more where inputs are small and launching them is what takes time."""
    if device.type != "cuda" or not isinstance(split.x, Tensor) or split.transform is not None:  # it may enlarge them
        return EVALUATION_BATCH
    return 4 * EVALUATION_BATCH if split.x[:1].numel() <= SMALL else EVALUATION_BATCH
