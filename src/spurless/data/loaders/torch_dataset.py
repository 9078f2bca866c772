"""Load map-style torch datasets, into memory or streamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError, SpurlessError, first_line
from spurless.core.hashing import content_hash
from spurless.core.seeds import Seeds
from spurless.data.loaders.images import MAX_RESIDENT_BYTES, channels_first, to_pixels
from spurless.data.loaders.tensors import Names, encode_labels, from_tensors, to_integers, to_tensor
from spurless.data.split import Source, Split, Splits, Transform
from spurless.data.splitting import concat_attributes, make_splits

KEYS = (
    ("x", "image", "pixel_values", "img", "inputs"),
    ("y", "label", "labels", "target"),
    ("a", "attribute"),
)
"""Keys of the parts of an example that is a dict; the parts of a tuple are in this order."""

Batches: TypeAlias = "tuple[Any, Tensor, Tensor | None]"
"""Inputs, labels and attributes of many examples."""

GRAY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L")  # Pillow modes without color


def from_dataset(  # noqa: PLR0913 - one parameter per option
    dataset: Any,
    *,
    val: Any = None,
    test: Any = None,
    labels: Sequence[str] | None = None,
    attributes: Names | None = None,
    overlapping: bool = False,
    size: int | None = None,
    seed: int = 0,
    stream: bool | None = None,
    name: str | None = None,
    held_out: bool = False,
    transform: Transform | None = None,
    augment: Transform | None = None,
) -> Splits:
    """Load datasets whose examples are ``(x, y)``, ``(x, y, a)`` or dicts with these keys, or DataLoaders of them.

    One pass collects labels and attributes, and the inputs if they fit in memory. Use ``augment`` for random
    augmentation: inputs in memory are read once, so that a random transform of the dataset is drawn once. A missing val
    or test split is taken from ``dataset`` at random, stratified, 15 % for each. A DataLoader, or a dataset that can
    only be iterated, is read once into memory.

    Args:
        dataset: the train split, or all examples.
        val: the val split.
        test: the test split.
        labels: names of the classes; by default ``dataset.classes``, or their numbers.
        attributes: names of the attribute values; for several columns, a mapping from column to names.
        overlapping: the columns of ``a`` are 0/1, and an example may have several attributes or none.
        size: resize the short side of Pillow images to this and crop the center.
        seed: seed of the split.
        stream: read inputs on demand (True), now (False), or now if they fit in 1 GiB (None). A streamed dataset
            with ``targets``, such as torchvision's, is not read for its labels.
        name: name of the data; by default the name of the dataset's class.
        held_out: the examples were not trained on: without a train split, none is made, and without any splits all
            examples are test.
        transform: function from a batch to model input.
        augment: transform that is applied first, in training only.
    """
    check_arguments(from_dataset, locals())
    given = {k: part for k, part in enumerate((dataset, val, test)) if part is not None}
    names = labels or _classes(dataset)
    name = name or f"dataset {type(getattr(dataset, 'dataset', dataset)).__name__}"
    if all(isinstance(part, DataLoader) for part in given.values()):
        batches = {k: _collect_batches(part) for k, part in given.items()}
        return from_tensors(
            *_join_batches(list(batches.values())),
            split=[k for k, (_, y, _) in batches.items() for _ in y] if len(given) > 1 else None,
            labels=names,
            attributes=attributes,
            overlapping=overlapping,
            seed=seed,
            name=name,
            held_out=held_out,
            transform=transform,
            augment=augment,
        )
    for part in given.values():
        if isinstance(part, Tensor) and not part.dim():
            raise InputError("a number is not a dataset", got=tuple(part.shape), expected="a Dataset or DataLoader")
    given = {k: _to_map_style(part) for k, part in given.items()}
    dataset = given.get(0)
    examples = ConcatDataset(list(given.values())) if len(given) > 1 else dataset
    source = DatasetInputs.of(examples, size)
    stream = stream if stream is not None else len(source) * source.bytes > MAX_RESIDENT_BYTES
    listed = [_targets(part) for part in given.values()] if stream else []
    targets = [target for target in listed if target is not None]
    x, y, a = (source, torch.cat(targets), None) if len(targets) == len(given) else _collect(source, stream)
    y, a, groups = encode_labels(y, a, names, attributes, overlapping)
    return make_splits(
        Split(x, y, a, groups, transform, augment),
        torch.cat([torch.full((len(part),), k) for k, part in given.items()]) if len(given) > 1 else None,
        seeds=Seeds(seed),
        name=name,
        options={"size": size, "seed": seed, "stream": stream, "overlapping": overlapping},
        held_out=held_out,
    )


@dataclass(frozen=True)
class DatasetInputs:
    """The inputs of a map-style dataset as a source; all have the shape of the first."""

    dataset: Any
    shape: tuple[int, ...]
    dtype: torch.dtype
    size: int | None = None
    channels: int = 3
    key: str | None = None  # key of the input, if it is not one of ``KEYS``
    content: str | None = None  # content hash of the dataset, if it has one

    @classmethod
    def of(
        cls, dataset: Any, size: int | None = None, key: str | None = None, content: str | None = None
    ) -> DatasetInputs:
        """Take shape and type from the first example."""
        if len(dataset) == 0:
            raise InputError("the dataset is empty")
        first = _part(_read(dataset, 0), 0, key)
        channels = 1 if getattr(first, "mode", "RGB") in ("1", "L", "I;16") else 3
        like = _as_input(first, channels, size)
        return cls(dataset, tuple(like.shape), like.dtype, size, channels, key, content)

    @property
    def bytes(self) -> int:
        """Size of one example in bytes."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta").nbytes

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Tensor:
        return self.input(_read(self.dataset, i), i)

    def input(self, example: Any, i: int) -> Tensor:
        """Return the input of an example that was read before."""
        given = _part(example, 0, self.key)
        if self.channels == 1 and getattr(given, "mode", "L") not in GRAY_MODES:  # Pillow would drop the colors
            raise InputError(
                f"example {i} is in color, but the first is gray",
                hint="Convert all images in the dataset: image.convert('RGB'), or for Hugging Face "
                "dataset.cast_column(COLUMN, datasets.Image(mode='RGB')).",
            )
        try:
            x = _as_input(given, self.channels, self.size)
        except (InputError, OSError) as error:  # Pillow decodes lazily, so that a broken image fails only here
            raise InputError(str(error).removesuffix("."), where=f"example {i}") from error
        if (tuple(x.shape), x.dtype) != (self.shape, self.dtype):
            what = f"example {i} differs from the first in shape or type"
            expected = f"{self.dtype} of shape {self.shape}"
            got = f"{x.dtype} of shape {tuple(x.shape)}"
            raise InputError(what, expected=expected, got=got, hint="Resize images with size=, or in the dataset.")
        return x

    def fingerprint(self) -> str:
        """Return the content hash of the dataset, or a hash of its length and of three examples."""
        if self.content is not None:
            return content_hash("examples", self.content, len(self), self.size, self.key)
        return content_hash("examples", len(self), *(self[i] for i in (0, len(self) // 2, len(self) - 1)))


def _collect(source: DatasetInputs, stream: bool) -> tuple[Tensor | Source, Tensor, Tensor | None]:
    """Read every example once: label, attributes and, unless streamed, input."""
    n = len(source)
    x = None if stream else torch.empty((n, *source.shape), dtype=source.dtype)
    y = torch.empty(n, dtype=torch.long)
    rows: list[Tensor | None] = []
    for i in range(n):
        example = _read(source.dataset, i)
        if x is not None:
            x[i] = source.input(example, i)
        y[i] = _to_label(_part(example, 1), i)
        a = _part(example, 2)
        rows.append(None if a is None else to_integers(a, f"attributes of example {i}"))
    return source if x is None else x, y, _stack(rows)


def _read(dataset: Any, i: int) -> Any:
    try:
        return dataset[i]
    except SpurlessError:
        raise
    except (OSError, LookupError, TypeError) as error:
        reason = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {first_line(error)}"
        raise InputError(f"the example cannot be read: {reason}", where=f"example {i}") from error


def _stack(rows: Sequence[Tensor | None]) -> Tensor | None:
    """Stack the attributes of examples; examples without attributes get -1."""
    known = next((row for row in rows if row is not None), None)
    if known is None:
        return None
    for i, row in enumerate(rows):
        if row is not None and row.shape != known.shape:
            raise InputError(f"example {i} differs from the others in the number of attributes", got=row.tolist())
    blank = torch.full_like(known, -1)
    return torch.stack([blank if row is None else row for row in rows])


def _part(example: Any, part: int, key: str | None = None) -> Any:
    """Return the input (0), the label (1) or the attribute (2) of an example; None if it has no attribute."""
    if isinstance(example, Mapping):
        names = KEYS[part] if key is None else (key,)
        present = next((name for name in names if name in example), None)
        if present is None and part < 2:
            raise InputError(f"an example has none of the keys {', '.join(names)}", got=", ".join(map(str, example)))
        return None if present is None else example[present]
    if not isinstance(example, Sequence) or isinstance(example, str) or len(example) not in (2, 3):
        raise InputError("an example must be (x, y), (x, y, a) or a dict", got=type(example).__name__)
    return example[part] if part < len(example) else None


def _as_input(x: Any, channels: int, size: int | None) -> Tensor:
    """Convert an input to a tensor; Pillow images and uint8 arrays become channels first."""
    if hasattr(x, "convert") and hasattr(x, "mode"):  # a Pillow image, recognized without importing Pillow
        return to_pixels(x, channels, size)
    values = x.detach() if isinstance(x, Tensor) else channels_first(to_tensor(x, "inputs")[None])[0]
    return values.float() if values.is_floating_point() or values.dtype == torch.bool else values


def _to_label(value: Any, i: int) -> Tensor:
    label = to_integers(value, f"label of example {i}")
    if label.numel() != 1:
        raise InputError(f"the label of example {i} must be one number", got=f"shape {tuple(label.shape)}")
    return label.flatten()[0]


def _targets(dataset: Any) -> Tensor | None:
    """Return ``dataset.targets``, if they agree with the first example and there are no attributes."""
    targets = getattr(dataset, "targets", None)
    if targets is None or getattr(dataset, "target_transform", None) is not None or len(targets) != len(dataset):
        return None
    first = dataset[0]
    if _part(first, 2) is not None:
        return None
    labels = to_integers(targets, "targets")
    return labels if labels.dim() == 1 and int(labels[0]) == int(_to_label(_part(first, 1), 0)) else None


def _classes(dataset: Any) -> Sequence[str] | None:
    names = getattr(dataset, "classes", None)
    if names is None and hasattr(dataset, "dataset"):  # of a DataLoader or a Subset
        return _classes(dataset.dataset)
    return names if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names) else None


def _to_map_style(dataset: Any) -> Any:
    """Return a dataset with indices: one that can only be iterated is read into a list."""
    is_indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if is_indexed and not isinstance(dataset, IterableDataset):
        return dataset
    if not hasattr(dataset, "__iter__"):
        what, expected = "the dataset can be neither indexed nor iterated", "a torch Dataset or DataLoader"
        raise InputError(what, expected=expected, got=type(dataset).__name__)
    return list(dataset)


def _collect_batches(loader: Any) -> Batches:
    """Return inputs, labels and attributes of all batches of a DataLoader."""
    parts = [_split_batch(batch) for batch in loader]
    if not parts:
        raise InputError("the DataLoader yields no batch")
    return _join_batches(parts)


def _split_batch(batch: Any) -> Batches:
    """Return inputs, labels and attributes of a batch: a tuple, or a dict with the names of ``KEYS``."""
    if isinstance(batch, Mapping):
        x, y, a = (next((batch[name] for name in names if name in batch), None) for names in KEYS)
        if x is None:  # tokens
            x = {key: value for key, value in batch.items() if not any(key in names for names in KEYS[1:])}
    elif isinstance(batch, tuple | list) and len(batch) in (2, 3):
        x, y, a = (*batch, None)[:3]
    else:
        x, y, a = batch, None, None
    if y is None:
        got = ", ".join(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
        expected = "batches (x, y) or (x, y, a), or dicts with y, label, labels or target"
        raise InputError("the batches have no labels", expected=expected, got=got)
    x = (
        {key: to_tensor(value, "inputs") for key, value in x.items()}
        if isinstance(x, Mapping)
        else to_tensor(x, "inputs")
    )
    return x, to_integers(y, "labels").flatten(), None if a is None else to_integers(a, "attributes")


def _join_batches(batches: Sequence[Batches]) -> Batches:
    xs = [x for x, _, _ in batches]
    attributes = concat_attributes([a for _, _, a in batches], [len(y) for _, y, _ in batches])
    try:
        x = {key: torch.cat([x[key] for x in xs]) for key in xs[0]} if isinstance(xs[0], dict) else torch.cat(xs)
    except RuntimeError as error:
        hint = "Resize images, and pad texts to one length."
        raise InputError(f"the batches differ in shape: {first_line(error)}", hint=hint) from None
    return x, torch.cat([y for _, y, _ in batches]), attributes
