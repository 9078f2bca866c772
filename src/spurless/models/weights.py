"""Weights: a model's parameters on disk, as safetensors, whole or not at all; pickles are not opened."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from spurless.core.errors import BadInput
from spurless.core.files import replace_file
from spurless.models.classifier import Classifier, head_places
from spurless.models.masks import is_pruned, make_permanent, make_plain

BATCHES = ".num_batches_tracked"


def save_weights(
    path: Path | str, model: Classifier, *, seed: int | None = None, data: Mapping[str, Any] | None = None
) -> None:
    """Write a model's weights, replacing the file in one step; pruned weights are written as zeros.

    The header says what :func:`weights_info` returns.

    Args:
        path: the file.
        model: whose weights.
        seed: of the run that made them, by which data may have been cut.
        data: what the record of that run says of the data; the names of classes and columns are kept.

    Raises:
        BadInput: the place cannot be written.
    """
    path = Path(path)
    if is_pruned(model):
        model = deepcopy(model)
        make_permanent(model)
    # copies, because tied weights share memory, which the format does not know
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()}
    info = {
        "name": model.name,
        "options": model.options,
        "n_classes": model.n_classes if isinstance(model.head, nn.Linear) else None,
        "head_path": model.head_path,
        "trained": model.trained,
        **({} if seed is None else {"seed": seed}),
        **({} if data is None else {"labels": data["labels"], "features": data["options"].get("features")}),
    }
    header = {"format": "pt", "spurless": json.dumps(info, default=str)}

    def write(scratch: Path) -> None:
        try:
            save_file(tensors, scratch, metadata=header)
        except SafetensorError as error:
            raise OSError(str(error)) from None

    replace_file(path, write)


def load_weights(path: Path | str, model: Classifier) -> None:
    """Read weights into a model, in place; nothing changes unless all of them fit.

    The file may hold the names of the classifier, or those of the module that was wrapped, all of them after a word
    that something around it has put there (``module.``, ``_orig_mod.``). How many batches a norm has seen may be
    missing, as it is in files of old. A head that a method fitted anew is a plain layer with a bias of its own, and so
    is the model's then.

    Raises:
        BadInput: the file is missing, is a pickle, or does not fit the model.
    """
    path = Path(path)
    if is_pruned(model):
        raise BadInput("the model is pruned", where=path, do="Load into a fresh model, then prune it.")
    info = weights_info(path)
    state = model.state_dict(keep_vars=True)
    tensors = load_file(path)
    namings = (tensors, _bare(tensors), _bare(_bare(tensors)))
    given = min((_fitting(names, model, state) for names in namings), key=lambda names: _odd(names, state))
    _complete_ties(given, state)
    head = _head_as_in(given, model, state)
    if head is not model.head:
        others = {name: value for name, value in state.items() if not name.startswith("head.")}
        state = others | {f"head.{name}": value for name, value in head.state_dict(keep_vars=True).items()}
    given |= {name: state[name].detach() for name in state.keys() - given.keys() if name.endswith(BATCHES)}
    problems = _problems(given, state)
    if problems:
        raise BadInput(
            f"the weights do not fit {model.name}: {'; '.join(problems)}",
            where=path,
            do=f"The file was saved from {info['name']!r}; build or wrap the same model." if "name" in info else "",
        )
    model.head = head
    restore(model, given)
    model.trained = bool(info.get("trained", True))


def restore(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load tensors that are named as the module's own, in place.

    Files and copies do not hold the versions of the layers, and some refuse to load without theirs (MNASNet).
    """
    state: OrderedDict[str, Tensor] = OrderedDict(tensors)
    state._metadata = module.state_dict(keep_vars=True)._metadata  # type: ignore[attr-defined]  # where torch looks
    module.load_state_dict(state)


def weights_info(path: Path | str) -> dict[str, Any]:
    """Return what a file says of its model: name, options, n_classes, head_path, trained.

    If they are known, also the seed, the names of the classes (labels) and of the columns of a table (features).

    Raises:
        BadInput: the file is missing, is a pickle, or is no safetensors file.
    """
    path = Path(path)
    if not path.is_file():
        raise BadInput("no such file", where=path, expected="a .safetensors file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from None
    try:
        info = json.loads(metadata.get("spurless", "{}"))
    except ValueError:
        info = {}
    return info if isinstance(info, dict) else {}


def _bare(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors without the word before the first dot that all names share: parallel and compiled modules."""
    words = {name.partition(".")[0] for name in tensors}
    return {name.partition(".")[2]: value for name, value in tensors.items()} if len(words) == 1 else tensors


def _odd(given: dict[str, Tensor], state: dict[str, Any]) -> int:
    """Count the names that one side lacks."""
    return len(given.keys() ^ state.keys())


def _fitting(tensors: dict[str, Tensor], model: Classifier, state: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors under the classifier's names, whichever of the two namings fits better."""
    if model.head_path is None:
        return tensors
    places = [f"{place}." for place in head_places(model.backbone)] or [""]
    renamed = {}
    for name, value in tensors.items():
        place = next((place for place in places if name.startswith(place)), None)
        renamed[f"backbone.{name}" if place is None else f"head.{name.removeprefix(place)}"] = value
    return min((tensors, renamed), key=lambda names: _odd(names, state))


def _complete_ties(given: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Add the names that a file left out because they share the tensor of one that it has."""
    by_tensor = {id(state[name]): given[name] for name in given if name in state}
    for name, parameter in state.items():
        if name not in given and id(parameter) in by_tensor:
            given[name] = by_tensor[id(parameter)]


def _head_as_in(given: dict[str, Tensor], model: Classifier, state: dict[str, Any]) -> nn.Module:
    """Return the model's head, or one for a head that a method fitted anew: plain, with a bias, tied to nothing."""
    head = model.head
    if not isinstance(head, nn.Linear) or "head.weight" not in given:
        return head
    biased = "head.bias" in given and head.bias is None
    if not biased and "head.weight" in state and not _torn(given, state, "head.weight"):
        return head
    head = deepcopy(head)  # by itself, and so tied to nothing
    make_plain(head)
    if biased:
        head.bias = nn.Parameter(head.weight.detach().new_zeros(head.out_features), head.weight.requires_grad)
    return head


def _torn(given: dict[str, Tensor], state: dict[str, Any], name: str) -> str | None:
    """Return another name of the same tensor, for which the file has other numbers."""
    twins = [other for other in given if other != name and state.get(other) is state[name]]
    return next((other for other in twins if not torch.equal(given[other], given[name])), None)


def _problems(given: dict[str, Tensor], state: dict[str, Any]) -> list[str]:
    shapes = [
        f"{name} is {tuple(given[name].shape)} and should be {tuple(value.shape)}"
        for name, value in state.items()
        if name in given and given[name].shape != value.shape
    ]
    found = [f"missing {_some(state.keys() - given.keys())}"] if state.keys() - given.keys() else []
    found += [f"unexpected {_some(given.keys() - state.keys())}"] if given.keys() - state.keys() else []
    torn = ((name, _torn(given, state, name)) for name in sorted(given.keys() & state.keys()))
    found += [
        f"{name} and {other} differ and should be one" for name, other in torn if other is not None and name < other
    ]
    return found + shapes[:5] + ([f"and {len(shapes) - 5} more of the wrong shape"] if len(shapes) > 5 else [])


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")


def _unreadable(path: Path, error: Exception) -> BadInput:
    with path.open("rb") as file:
        start = file.read(4)
    pickled = start.startswith(b"PK\x03\x04") or (len(start) > 1 and start[0] == 0x80 and start[1] in range(2, 6))
    if pickled:
        return BadInput(
            "the file is a pickle, which can run any code when it is opened, so it is not",
            where=path,
            expected="a .safetensors file",
            do="Convert it once, if you trust where it came from: "
            "model.load_state_dict(torch.load(path, weights_only=True)), then save_weights(new_path, wrap(model)).",
        )
    return BadInput(f"the file is not a whole safetensors file: {error}", where=path)
