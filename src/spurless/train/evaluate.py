"""Logits, predictions and the group table of a model on a whole split."""

from __future__ import annotations

from inspect import Parameter, signature

import torch
from torch import Tensor, nn

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError
from spurless.core.modules import Input, eval_mode
from spurless.data.loader import CPU, Loader, sequential_order
from spurless.data.split import Split
from spurless.metrics.groupwise import GroupTable, group_table
from spurless.models.classifier import extract_tensor
from spurless.models.input_errors import readable_forward_errors
from spurless.models.wrapping import check_has_weights
from spurless.train.run import inference_threads

EVALUATION_BATCH = 512
MAX_SMALL_INPUT = 4 * 64 * 64
"""Elements of an input up to which an accelerator finishes a batch of 512 before the next one is launched."""


class NonFiniteError(InputError):
    """A logit of an example is NaN or infinite."""

    def __init__(self, row: int, values: Tensor) -> None:
        super().__init__(
            f"the logits of example {row} are not finite",
            got=values.tolist()[:4],
            hint="The weights of the model may have diverged.",
        )


@torch.no_grad()
def logits(model: nn.Module, split: Split, device: torch.device = CPU, workers: int = 0) -> Tensor:
    """Return the logits of every example, in order, on the CPU; train and eval modes are restored.

    Raises:
        InputError: the split is empty, the model does not accept its examples, or it does not return logits.
    """
    check_arguments(logits, locals())
    check_has_weights(model, ran=True)
    if not len(split):
        raise InputError("the split has no examples", hint="Pass a split with at least one example.")
    loader = Loader(split, sequential_order(len(split)), _batch_size(split, device), device, workers=workers)
    with inference_threads(), eval_mode(model):
        parts = [_forward(model, batch.x) for batch in loader.batches()]
    outputs = torch.cat(parts).float().cpu()
    if outputs.dim() != 2 or outputs.shape[1] < 2:
        raise InputError(
            "the model does not return one logit per class",
            expected=f"({len(split)}, {len(split.groups.labels)})",
            got=tuple(outputs.shape),
            hint="Give a model with one logit a second one, so that each class has a logit.",
        )
    return outputs


def predict(model: nn.Module, split: Split, device: torch.device = CPU, workers: int = 0) -> Tensor:
    """Return the predicted label of every example, in order."""
    return logits(model, split, device, workers).argmax(dim=1)


def evaluate(model: nn.Module, split: Split, device: torch.device = CPU, workers: int = 0) -> GroupTable:
    """Return the accuracy of ``model`` in every group of ``split``; raise if a logit is not finite."""
    check_arguments(evaluate, locals())
    outputs = logits(model, split, device, workers)
    check_logits(outputs)
    return group_table(outputs.argmax(dim=1), split.y.cpu(), split.a.cpu(), split.groups)


def check_logits(outputs: Tensor) -> None:
    """Raise if a logit is NaN or infinite, for which the argmax is not a prediction; -inf excludes a class."""
    broken = ~(outputs < torch.inf).all(dim=1)
    if bool(broken.any()):
        row = int(broken.nonzero()[0])
        raise NonFiniteError(row, outputs[row])


def _forward(model: nn.Module, x: Input) -> Tensor:
    """Return the logits of a batch; a plain module may take a dict as keyword arguments."""
    with readable_forward_errors(model, x):
        output = model(**x) if isinstance(x, dict) and _takes_keywords(model, x) else model(x)
    if isinstance(output, tuple | list) and not hasattr(output, "logits"):
        raise InputError(
            f"{type(model).__name__} returns {len(output)} values, and it is not clear which are the logits",
            hint="Pass sp.wrap(module, example=...), which finds them.",
        )
    return extract_tensor(output)


def _takes_keywords(model: nn.Module, x: dict[str, Tensor]) -> bool:
    """Return whether a module takes these tensors as keyword arguments; models of this package take the dict."""
    parameters = signature(model.forward).parameters
    return set(x) <= set(parameters) or any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())


def _batch_size(split: Split, device: torch.device) -> int:
    """Return the batch size: larger for small inputs, for which launching a batch takes most of the time."""
    if device.type != "cuda" or not isinstance(split.x, Tensor) or split.transform is not None:  # it may enlarge inputs
        return EVALUATION_BATCH
    return 4 * EVALUATION_BATCH if split.x[:1].numel() <= MAX_SMALL_INPUT else EVALUATION_BATCH
