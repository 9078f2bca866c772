"""Hugging Face: a dataset of images from the hub, from disk or from memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset

from spurless.core.errors import BadInput, MissingExtra, did_you_mean
from spurless.core.seeds import Seeds
from spurless.data.grouped import Grouped, Splits, Transform
from spurless.data.images import read
from spurless.data.splitting import SPLIT_NAMES, assemble, name_groups, name_values
from spurless.data.torch_dataset import Examples


def from_huggingface(  # noqa: PLR0913 - a loader's options are its arguments
    name_or_dataset: Any,
    *,
    image: str = "image",
    label: str = "label",
    attribute: str | Sequence[str] | None = None,
    config: str | None = None,
    revision: str | None = None,
    size: int | None = None,
    seed: int = 0,
    stream: bool | None = None,
    transform: Transform | None = None,
    augment: Transform | None = None,
) -> Splits:
    """Load a dataset of images by its name on the hub, its folder, or itself (``Dataset`` or ``DatasetDict``).

    Classes and attributes are called as their ``ClassLabel`` says, or by their values in natural order. Where val
    or test is missing, it is cut from train at random, stratified, 15 % of it for each.

    Args:
        name_or_dataset: a name such as ``owner/name`` (this asks the network), a folder, or a dataset.
        image: the column of the input.
        label: the column of the class.
        attribute: the column of the attribute, or several to cross.
        config: which configuration, where a name has several.
        revision: which commit of the hub, so that tomorrow's data is today's.
        size: resize the short side to this and cut the centre out; needed where images differ in size.
        seed: of the split.
        stream: decode images on demand (True), now (False), or now if they fit in 1 GiB (None).
        transform: from a batch of uint8 images to what the model takes.
        augment: before ``transform``, in training only.

    Raises:
        MissingExtra: the package ``datasets`` is not installed.
        BadInput: the dataset, a column or an example cannot be used.
    """
    parts = _parts(_loaded(name_or_dataset, config, revision))
    attributes = [attribute] if isinstance(attribute, str) else list(attribute or ())
    for part in parts.values():
        for column in (image, label, *attributes):
            _check_column(part, column)
    labels, y = _codes(parts, label)
    if bool((y < 0).any()):
        raise BadInput(f"example {int((y < 0).nonzero()[0])} has no label", where=f"column {label!r}")
    named = {column: _codes(parts, column) for column in attributes}
    codes = [a for _, a in named.values()] or [torch.full_like(y, -1)]
    content = ",".join(str(getattr(part, "_fingerprint", "")) for part in parts.values())
    source = Examples.of(ConcatDataset(list(parts.values())), size, image, content)
    return assemble(
        Grouped(
            read(source, stream, threads=1),
            y,
            codes[0] if len(codes) == 1 else torch.stack(codes, dim=1),
            name_groups(labels, {column: names for column, (names, _) in named.items()}),
            transform,
            augment,
        ),
        torch.cat([torch.full((len(part),), k) for k, part in parts.items()]),
        seeds=Seeds(seed),
        name=f"huggingface {name_or_dataset if isinstance(name_or_dataset, str | Path) else 'dataset'}",
        options={
            "image": image,
            "label": label,
            "attribute": attributes,
            "config": config,
            "revision": revision,
            "size": size,
            "seed": seed,
            "stream": stream,
        },
    )


def _loaded(name: Any, config: str | None, revision: str | None) -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingExtra("datasets", "hf", "Loading data from Hugging Face") from None

    if not isinstance(name, str | Path):
        return name
    folder = Path(name)
    try:
        if (folder / "dataset_dict.json").exists() or (folder / "dataset_info.json").exists():
            return datasets.load_from_disk(str(name))
        return datasets.load_dataset(str(name), config, revision=revision)
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(f"the dataset cannot be loaded: {error}", where=name) from error


def _parts(dataset: Any) -> dict[int, Any]:
    """Number the splits of a dataset; one that has none is train."""
    import datasets

    splits = dict(dataset) if isinstance(dataset, Mapping) else {"train": dataset}
    parts: dict[int, Any] = {}
    for name, part in splits.items():
        number = SPLIT_NAMES.get(str(name).lower())
        if number is None or number in parts:
            raise BadInput(
                f"the split {str(name)!r} is {'unknown' if number is None else 'there twice'}",
                expected="train, validation, test",
                got=", ".join(map(str, splits)),
                do="Pass a dict of the splits to use, by these names.",
            )
        if not isinstance(part, datasets.Dataset):
            raise BadInput(
                f"{type(part).__name__} cannot be indexed",
                expected="a Dataset or a DatasetDict",
                do="Load it without streaming=True.",
            )
        parts[number] = part
    if 0 not in parts:
        raise BadInput("there is no train split", got=", ".join(map(str, splits)) or "no split at all")
    return dict(sorted(parts.items()))


def _codes(parts: Mapping[int, Any], column: str) -> tuple[tuple[str, ...], Tensor]:
    """Number the values of a column over all splits; -1 where there is none."""
    values = [value for part in parts.values() for value in part.select_columns([column])[:][column]]
    spoken = {tuple(getattr(part.features[column], "names", None) or ()) for part in parts.values()}
    if len(spoken) > 1:
        raise BadInput(f"the splits differ in the names of column {column!r}", got=sorted(spoken))
    (names,) = spoken
    if not names:
        return name_values(values)
    return names, torch.tensor([-1 if value is None else value for value in values], dtype=torch.long)


def _check_column(part: Any, column: str) -> None:
    known = list(part.column_names)
    if column not in known:
        do = f"{did_you_mean(column, known)} Columns: {', '.join(known)}.".strip()
        raise BadInput(f"no column is called {column!r}", do=do)
