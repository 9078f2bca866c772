"""Save and load the weights of a model as safetensors; pickles are not opened."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError
from spurless.core.files import data_folder, replace_file
from spurless.models.classifier import Classifier, WholeNetwork, find_head_slots
from spurless.models.pruning.masks import is_pruned, make_permanent, remove_parametrization
from spurless.models.wrapping import check_has_weights, wrap

NAME_LISTS = ("labels", "features")  # fields of the header; other values than lists of names are ignored
BATCH_COUNT_SUFFIX = ".num_batches_tracked"


def save_weights(
    path: Path | str, model: nn.Module, *, seed: int | None = None, data: Mapping[str, Any] | None = None
) -> None:
    """Write the weights of a model, replacing the file atomically; pruned weights are written as zeros.

    A plain module is wrapped.

    The header contains what :func:`read_weights_info` returns.
    ``seed`` is the seed of the run, by which the data may have been split. Of ``data``, the data section of the record,
    the names of the data, of the classes and of the columns are stored.

    Raises:
        InputError: the file cannot be written, the model has no weights, or ``data`` has no names of classes.
    """
    check_arguments(save_weights, locals())
    path, model = Path(path), wrap(model)
    names = {} if data is None else _names_of_data(data)
    if is_pruned(model):
        model = deepcopy(model)
        make_permanent(model)
    # copies, because tied weights share memory, which safetensors does not support
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()}
    info = {
        "name": model.name,
        "options": model.options,
        "n_classes": model.n_classes if isinstance(model.head, nn.Linear) else None,
        "head_path": model.head_path,
        "trained": model.trained,
        **({} if seed is None else {"seed": seed}),
        **names,
    }
    header = {"format": "pt", "spurless": json.dumps(info, default=str)}

    def write(scratch: Path) -> None:
        try:
            save_file(tensors, scratch, metadata=header)
        except SafetensorError as error:
            raise OSError(str(error)) from None
        _sort_metadata(scratch)

    replace_file(path, write)


def _sort_metadata(path: Path) -> None:
    """Sort the metadata of a safetensors file, whose order is random, so that equal tensors are equal bytes."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size)
        if len(text) == size:  # else a character is escaped in another way
            file.seek(8)
            file.write(text)


def load_weights(path: Path | str, model: Classifier) -> None:
    """Load weights into a model, in place; nothing changes unless all of them fit.

    The file may contain the names of the classifier or of the wrapped module, also with a prefix such as ``module.``
    or ``_orig_mod.``. The batch counts of norms may be missing, as in old files. If a method has replaced the head by a
    plain layer with a bias, the head of the model becomes one too.

    Raises:
        InputError: the file is missing, is a pickle, or does not fit the model.
    """
    check_arguments(load_weights, locals())
    path = Path(path)
    check_has_weights(model)
    if is_pruned(model):
        raise InputError("the model is pruned", where=path, hint="Load into an untrained model, then prune it.")
    info = read_weights_info(path)
    state = model.state_dict(keep_vars=True)
    tensors = load_file(path)
    namings = (tensors, _remove_prefix(tensors), _remove_prefix(_remove_prefix(tensors)))
    candidates = (_to_classifier_names(names, model, state) for names in namings)
    given = min(candidates, key=lambda names: _count_mismatches(names, state))
    _complete_head(given, state, model)
    _complete_ties(given, state)
    head = _match_head(given, model, state)
    if head is not model.head:
        others = {name: value for name, value in state.items() if not name.startswith("head.")}
        state = others | {f"head.{name}": value for name, value in head.state_dict(keep_vars=True).items()}
    given |= {name: state[name].detach() for name in state.keys() - given.keys() if name.endswith(BATCH_COUNT_SUFFIX)}
    problems = _find_problems(given, state)
    if problems:
        raise InputError(
            f"the weights do not fit {model.name}: {'; '.join(problems)}",
            where=path,
            hint=f"The file was saved from {info['name']!r}; build or wrap the same model." if "name" in info else "",
        )
    model.head = head
    load_tensors(model, given)
    model.trained = bool(info.get("trained", True))


def _names_of_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names of classes and columns in the data section of a record."""
    labels = data.get("labels") if isinstance(data, Mapping) else None
    options = data.get("options", {}) if isinstance(data, Mapping) else None
    if not isinstance(labels, list | tuple) or not isinstance(options, Mapping):
        expected = "the data section of a record, with labels and options: data=fitted.record.data"
        raise InputError("data= does not name the classes", expected=expected, got=type(data).__name__)
    names = [str(label) for label in labels]
    return {"data": data.get("name"), "labels": names, "features": options.get("features")}


def load_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load tensors that have the names of the module's state dict, in place.

    Files do not contain the versions of the layers, without which some do not load (MNASNet).
    """
    state: OrderedDict[str, Tensor] = OrderedDict(tensors)
    state._metadata = module.state_dict(keep_vars=True)._metadata  # type: ignore[attr-defined]  # torch reads it
    module.load_state_dict(state)


def read_weights_info(path: Path | str) -> dict[str, Any]:
    """Return the header of a file: name, options, n_classes, head_path, trained.

    If known, also the seed, and the names of the data, of the classes (labels) and of the columns (features).
    """
    path = Path(path)
    if not path.is_file():
        raise InputError("no such file", where=path, expected="a .safetensors file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise _unreadable_error(path, error) from None
    try:
        info = json.loads(metadata.get("spurless", "{}"))
    except (ValueError, RecursionError):
        info = {}
    if not isinstance(info, dict):
        return {}
    return {key: value for key, value in info.items() if key not in NAME_LISTS or _is_list_of_names(value)}


def _is_list_of_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def find_pretrained(variant: str, weights: str | None, pretrained: bool) -> Path | None:
    """Return the file of pretrained weights of another library: the given one, or one in the data folder.

    With ``pretrained``, that is ``weights/VARIANT*.safetensors`` in the data folder; None if it does not exist.

    Raises:
        InputError: the given file does not exist, or is not a safetensors file.
    """
    if weights is not None:
        path = Path(weights).expanduser()
        if path.suffix != ".safetensors":
            raise InputError("weights must be a safetensors file", where=path, hint="Convert them first.")
        if not path.is_file():
            raise InputError("no such file", where=path)
        return path
    if not pretrained:
        return None
    paths = sorted((data_folder() / "weights").glob(f"{variant}*.safetensors"))
    # a longer name may be another model: resnet18d is not resnet18
    return next((path for path in paths if not path.stem.removeprefix(variant)[:1].isalnum()), None)


def check_pretrained(file: Path, names: Iterable[str], state: Iterable[str], head: str, owner: str) -> None:
    """Raise if a file does not have the tensors of a model, apart from those of its head, which may be missing."""
    given, expected = ({name for name in part if not name.startswith(f"{head}.")} for part in (names, state))
    if given != expected:
        name = min(given ^ expected)
        problem = "missing" if name in expected else "not part of the model"
        raise InputError(f"the file does not have the weights of {owner}: {name} is {problem}", where=file)


def has_v1_strides(file: Path, variant: str) -> bool:
    """Return whether a file has weights of a ResNet for strides of version 1, by its name or its metadata.

    The name contains ``_v1`` after that of the model, or the value of the key ``stride`` in the metadata begins with
    ``v1``. ``v1.5`` are the strides of torchvision and timm.
    """
    try:
        with safe_open(file, framework="pt") as archive:
            metadata = archive.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise _unreadable_error(file, error) from None
    words = [*file.stem.removeprefix(variant).lower().split("_"), *metadata.get("stride", "").lower().split()[:1]]
    return any(word.rstrip(":,;.") == "v1" for word in words)


def find_image_format(path: Path | str) -> tuple[int | None, int | None]:
    """Return the channels (1 or 3) and the side of the images of weights; None if it is not known.

    The header of a file by :func:`save_weights` has them. Otherwise the channels are those of a convolution: only the
    first one of a network for colors has 3 input channels, and without such a one, 1 channel means gray images.
    """
    shape = read_weights_info(path).get("options", {}).get("input_shape")
    if isinstance(shape, list) and len(shape) == 3:
        return shape[0] if shape[0] in (1, 3) else None, shape[1] if shape[1] == shape[2] else None
    with safe_open(path, framework="pt") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118 (not a mapping)
    channels = {shape[1] for shape in shapes if len(shape) == 4 and shape[2] * shape[3] > 1}
    return next((number for number in (3, 1) if number in channels), None), None


def _remove_prefix(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the first part of all names if they share it, as parallel and compiled modules add one."""
    prefixes = {name.partition(".")[0] for name in tensors}
    return {name.partition(".")[2]: value for name, value in tensors.items()} if len(prefixes) == 1 else tensors


def _count_mismatches(given: dict[str, Tensor], state: dict[str, Any]) -> int:
    return len(given.keys() ^ state.keys())


def _to_classifier_names(tensors: dict[str, Tensor], model: Classifier, state: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors under the names of the classifier or of the wrapped module; the better match is used."""
    if model.head_path is None and not isinstance(model.backbone, WholeNetwork):
        return tensors
    slots = [f"{slot}." for slot in find_head_slots(model.backbone)] or [""] * (model.head_path is not None)
    names = [name.removeprefix("backbone.") for name in state if name.startswith("backbone.")] + slots
    candidates = [tensors]
    # also the names of a module that is wrapped with a layer without weights before it, such as a normalization
    for prefix in _common_prefixes(names):
        renamed = {}
        for key, value in tensors.items():
            name = prefix + key
            slot = next((slot for slot in slots if name.startswith(slot)), None)
            renamed[f"backbone.{name}" if slot is None else f"head.{name.removeprefix(slot)}"] = value
        candidates.append(renamed)
    return min(candidates, key=lambda names: _count_mismatches(names, state))


def _common_prefixes(names: Sequence[str]) -> list[str]:
    """Return the parts, up to a dot, with which all names start; the shortest, which is empty, first.

    Example:
        >>> _common_prefixes(["module.1.conv.weight", "module.1.fc.weight"])
        ['', 'module.', 'module.1.']
    """
    first = min(names, default="")
    ends = [i + 1 for i, character in enumerate(first) if character == "."]
    return ["", *(first[:end] for end in ends if all(name.startswith(first[:end]) for name in names))]


def _complete_head(given: dict[str, Tensor], state: dict[str, Any], model: Classifier) -> None:
    """Add the head that a network without a linear layer gets, and the second logit of a head with one."""
    if isinstance(model.backbone, WholeNetwork) and "head.weight" not in given:
        given["head.weight"] = state["head.weight"].detach()
    for name in ("head.weight", "head.bias"):
        if name in given and name in state and (given[name].shape[:1], state[name].shape[:1]) == ((1,), (2,)):
            given[name] = torch.cat([torch.zeros_like(given[name]), given[name]])


def _complete_ties(given: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Add names that a file leaves out because their tensor is tied to one that it has."""
    by_tensor = {id(state[name]): given[name] for name in given if name in state}
    for name, parameter in state.items():
        if name not in given and id(parameter) in by_tensor:
            given[name] = by_tensor[id(parameter)]


def _match_head(given: dict[str, Tensor], model: Classifier, state: dict[str, Any]) -> nn.Module:
    """Return the head of the model, or a plain head with a bias if the file has one that a method has replaced."""
    head = model.head
    if not isinstance(head, nn.Linear) or "head.weight" not in given:
        return head
    adds_bias = "head.bias" in given and head.bias is None
    if not adds_bias and "head.weight" in state and not _find_untied(given, state, "head.weight"):
        return head
    head = deepcopy(head)  # copied alone, so that it is not tied
    remove_parametrization(head)
    if adds_bias:
        head.bias = nn.Parameter(head.weight.detach().new_zeros(head.out_features), head.weight.requires_grad)
    return head


def _find_untied(given: dict[str, Tensor], state: dict[str, Any], name: str) -> str | None:
    """Return another name of the same tensor for which the file has other values, or None."""
    tied = [other for other in given if other != name and state.get(other) is state[name]]
    return next((other for other in tied if not torch.equal(given[other], given[name])), None)


def _find_problems(given: dict[str, Tensor], state: dict[str, Any]) -> list[str]:
    shapes = [
        f"{name} is {tuple(given[name].shape)} and should be {tuple(value.shape)}"
        for name, value in state.items()
        if name in given and given[name].shape != value.shape
    ]
    shapes += [
        f"{name} is {given[name].dtype} and should be {value.dtype}"
        for name, value in state.items()
        if name in given and given[name].is_complex() and not value.is_complex()
    ]
    problems = [f"missing {_list_names(state.keys() - given.keys())}"] if state.keys() - given.keys() else []
    problems += [f"unexpected {_list_names(given.keys() - state.keys())}"] if given.keys() - state.keys() else []
    untied = ((name, _find_untied(given, state, name)) for name in sorted(given.keys() & state.keys()))
    problems += [
        f"{name} and {other} differ and should be one" for name, other in untied if other is not None and name < other
    ]
    return problems + shapes[:5] + ([f"and {len(shapes) - 5} more"] if len(shapes) > 5 else [])


def _list_names(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")


def _unreadable_error(path: Path, error: Exception) -> InputError:
    with path.open("rb") as file:
        start = file.read(4)
    pickled = start.startswith(b"PK\x03\x04") or (len(start) > 1 and start[0] == 0x80 and start[1] in range(2, 6))
    if pickled:
        return InputError(
            "the file is a pickle, which can run any code when opened",
            where=path,
            expected="a .safetensors file",
            hint="Convert it once, if you trust its source: "
            "model.load_state_dict(torch.load(path, weights_only=True)), then save_weights(new_path, wrap(model)).",
        )
    return InputError(f"the file is not a complete safetensors file: {error}", where=path)
