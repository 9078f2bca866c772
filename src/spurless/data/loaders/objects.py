"""Load data from an object of Python, whatever its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from spurless.core.errors import InputError
from spurless.data.loaders.huggingface import IMAGE, from_huggingface
from spurless.data.loaders.images import channels_first
from spurless.data.loaders.tensors import from_tensors, to_tensor
from spurless.data.loaders.torch_dataset import KEYS, from_dataset
from spurless.data.split import Splits

EXPECTED = (
    "splits such as those of sp.from_folder, a torch Dataset or DataLoader, a Hugging Face dataset, or a pair (x, y)"
)


def as_splits(data: Any, *, held_out: bool = False, seed: int = 0) -> Splits:
    """Return splits of a torch Dataset or DataLoader, a Hugging Face dataset, or arrays ``(x, y)`` or ``(x, y, a)``.

    Splits are returned unchanged. A DataLoader is iterated once.

    Args:
        data: the object. Arrays may also be a dict with the keys x, y and a.
        held_out: the examples were not trained on: if they have no splits, all are test.
        seed: seed of the split.

    Example:
        >>> data = as_splits((np.ones((20, 3)), [0, 1] * 10), held_out=True)
        >>> len(data.train), len(data.test)
        (0, 20)

    Raises:
        InputError: the object is of another kind, or its examples have no labels.
    """
    if isinstance(data, Splits):
        return data
    if type(data).__module__.partition(".")[0] == "datasets":  # without importing the package
        return _from_huggingface(data, held_out, seed)
    if isinstance(data, tuple | dict) and len(data) in (2, 3) and {"x", "y"} <= {*_name_parts(data)}:
        parts = _name_parts(data)
        x = parts["x"]
        x = x if isinstance(x, Mapping) else channels_first(to_tensor(x, "inputs"))
        return from_tensors(x, parts["y"], parts.get("a"), name="arrays", held_out=held_out, seed=seed)
    if isinstance(data, Tensor | np.ndarray):
        hint = "Pass the inputs and the labels as a pair: (x, y)."
        raise InputError("the data have no labels", got=f"one array of shape {tuple(data.shape)}", hint=hint)
    if isinstance(data, str | Mapping) or not (hasattr(data, "__getitem__") or hasattr(data, "__iter__")):
        raise InputError("the data are of an unknown kind", expected=EXPECTED, got=type(data).__name__)
    return from_dataset(data, held_out=held_out, seed=seed)


def _name_parts(data: Any) -> dict[str, Any]:
    return data if isinstance(data, dict) else dict(zip("xya", data, strict=False))


def _from_huggingface(data: Any, held_out: bool, seed: int) -> Splits:
    """Load a dataset of Hugging Face: by its column of images, else by columns with the names of ``KEYS``."""
    first = next(iter(data.values())) if isinstance(data, Mapping) else data
    features = getattr(first, "features", None) or {}
    images = [name for name, feature in features.items() if type(feature).__name__ == "Image"]
    label = next((name for name in KEYS[1] if name in features), None)
    if label is None:
        hint = "Load it with sp.from_huggingface(data, label=COLUMN)."
        raise InputError(
            "the dataset has no column of labels", expected=" or ".join(KEYS[1]), got=", ".join(features), hint=hint
        )
    if images:
        image = IMAGE if IMAGE in images else images[0]
        attribute = next((name for name in KEYS[2] if name in features), None)
        return from_huggingface(data, image=image, label=label, attribute=attribute, held_out=held_out, seed=seed)
    if not any(name in features for name in KEYS[0]):
        hint = "Load it with sp.from_huggingface(data, image=COLUMN), or text=COLUMN for texts."
        raise InputError("the dataset has no column of images", got=", ".join(features), hint=hint)
    if isinstance(data, Mapping):
        raise InputError("only datasets of images may have several splits", hint="Pass one split of the dataset.")
    return from_dataset(data, held_out=held_out, seed=seed)
