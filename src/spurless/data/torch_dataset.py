"""Torch datasets: any map-style dataset, read once into memory or streamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, IterableDataset

from spurless.core.errors import BadInput
from spurless.core.provenance import digest
from spurless.core.seeds import Seeds
from spurless.data.grouped import Grouped, Source, Splits, Transform
from spurless.data.images import LIMIT, channels_first, pixels
from spurless.data.splitting import assemble
from spurless.data.tensors import Names, numbered, tensor, whole

KEYS = (("x", "image"), ("y", "label"), ("a", "attribute"))
"""What the parts of an example may be called where it is a dict; by place where it is a tuple."""

GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L")
"""The modes of pictures without colour."""


def from_dataset(  # noqa: PLR0913 - a loader's options are its arguments
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
    transform: Transform | None = None,
    augment: Transform | None = None,
) -> Splits:
    """Load map-style datasets whose examples are ``(x, y)``, ``(x, y, a)`` or dicts with these keys.

    One pass collects labels and attributes, and the inputs where they fit in memory. Inputs are taken as the
    dataset gives them: leave random augmentation to ``augment``, or every epoch sees the same draw. Where val or
    test is not given, it is cut from ``dataset`` at random, stratified, 15 % of it for each.

    Args:
        dataset: the train split, or everything.
        val: the val split.
        test: the test split.
        labels: the names of the classes; by default those of ``dataset.classes``, or else their numbers.
        attributes: the names of the attribute values; for several columns, a mapping from column to names.
        overlapping: the columns of ``a`` are 0/1, and an example may have several attributes or none.
        size: resize the short side of Pillow images to this and cut the centre out.
        seed: of the split.
        stream: read inputs on demand (True), now (False), or now if they fit in 1 GiB (None). A streamed dataset
            with ``targets``, as torchvision's have them, is not read through for its labels.
        name: what to call the data; by default the name of the dataset's class.
        transform: from a batch to what the model takes.
        augment: before ``transform``, in training only.

    Raises:
        BadInput: the dataset cannot be indexed, or an example cannot be used.
    """
    given = {k: part for k, part in enumerate((dataset, val, test)) if part is not None}
    for part in given.values():
        _check_map_style(part)
    examples = ConcatDataset(list(given.values())) if len(given) > 1 else dataset
    source = Examples.of(examples, size)
    stream = stream if stream is not None else len(source) * source.bytes > LIMIT
    listed = [_targets(part) for part in given.values()] if stream else []
    targets = [target for target in listed if target is not None]
    x, y, a = (source, torch.cat(targets), None) if len(targets) == len(given) else _collect(source, stream)
    y, a, groups = numbered(y, a, labels or _classes(dataset), attributes, overlapping)
    return assemble(
        Grouped(x, y, a, groups, transform, augment),
        torch.cat([torch.full((len(part),), k) for k, part in given.items()]),
        seeds=Seeds(seed),
        name=name or f"dataset {type(dataset).__name__}",
        options={"size": size, "seed": seed, "stream": stream, "overlapping": overlapping},
    )


@dataclass(frozen=True)
class Examples:
    """The inputs of a map-style dataset as a source; all have the shape of the first."""

    dataset: Any
    shape: tuple[int, ...]
    dtype: torch.dtype
    size: int | None = None
    channels: int = 3
    key: str | None = None
    """The key of the input, where it is none of the usual."""
    content: str | None = None
    """A content hash, where the dataset has one."""

    @classmethod
    def of(cls, dataset: Any, size: int | None = None, key: str | None = None, content: str | None = None) -> Examples:
        """Look at the first example, and expect the others to be like it."""
        if len(dataset) == 0:
            raise BadInput("the dataset is empty")
        first = _part(_read(dataset, 0), 0, key)
        channels = 1 if getattr(first, "mode", "RGB") in ("1", "L", "I;16") else 3
        like = _as_input(first, channels, size)
        return cls(dataset, tuple(like.shape), like.dtype, size, channels, key, content)

    @property
    def bytes(self) -> int:
        """The size of one example."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta").nbytes

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Tensor:
        return self.input(_read(self.dataset, i), i)

    def input(self, example: Any, i: int) -> Tensor:
        """Return the input of an example that was read already."""
        given = _part(example, 0, self.key)
        if self.channels == 1 and getattr(given, "mode", "L") not in GREY:  # Pillow would drop the colours
            raise BadInput(
                f"example {i} is in colour, and the first is grey",
                do="Let the dataset give all alike: image.convert('RGB'); of Hugging Face, "
                "dataset.cast_column(COLUMN, datasets.Image(mode='RGB')).",
            )
        try:
            x = _as_input(given, self.channels, self.size)
        except (BadInput, OSError) as error:  # Pillow decodes late, so that a broken image shows only here
            raise BadInput(str(error).removesuffix("."), where=f"example {i}") from error
        if (tuple(x.shape), x.dtype) != (self.shape, self.dtype):
            raise BadInput(
                f"example {i} differs from the first in shape or type",
                expected=f"{self.dtype} of shape {self.shape}",
                got=f"{x.dtype} of shape {tuple(x.shape)}",
                do="Pass size= to bring images to one size, or let the dataset do so.",
            )
        return x

    def fingerprint(self) -> str:
        """Return a hash of the number of examples and of three of them, or what the dataset says of itself."""
        if self.content is not None:
            return digest("examples", self.content, len(self), self.size, self.key)
        return digest("examples", len(self), *(self[i] for i in (0, len(self) // 2, len(self) - 1)))


def _collect(source: Examples, stream: bool) -> tuple[Tensor | Source, Tensor, Tensor | None]:
    """Read every example once, for its label, its attributes and, unless streamed, its input."""
    n = len(source)
    x = None if stream else torch.empty((n, *source.shape), dtype=source.dtype)
    y = torch.empty(n, dtype=torch.long)
    rows: list[Tensor | None] = []
    for i in range(n):
        example = _read(source.dataset, i)
        if x is not None:
            x[i] = source.input(example, i)
        y[i] = _one(_part(example, 1), i)
        a = _part(example, 2)
        rows.append(None if a is None else whole(a, f"attributes of example {i}"))
    return source if x is None else x, y, _stack(rows)


def _read(dataset: Any, i: int) -> Any:
    try:
        return dataset[i]
    except OSError as error:
        raise BadInput(f"the example cannot be read: {error}", where=f"example {i}") from error


def _stack(rows: Sequence[Tensor | None]) -> Tensor | None:
    """Stack the attributes of examples; those without any get -1."""
    known = next((row for row in rows if row is not None), None)
    if known is None:
        return None
    for i, row in enumerate(rows):
        if row is not None and row.shape != known.shape:
            raise BadInput(f"example {i} differs from the others in the number of attributes", got=row.tolist())
    blank = torch.full_like(known, -1)
    return torch.stack([blank if row is None else row for row in rows])


def _part(example: Any, place: int, key: str | None = None) -> Any:
    """Return the input (0), the label (1) or the attribute (2) of an example; None for an attribute it lacks."""
    if isinstance(example, Mapping):
        names = KEYS[place] if key is None else (key,)
        found = next((name for name in names if name in example), None)
        if found is None and place < 2:
            raise BadInput(f"an example has none of the keys {', '.join(names)}", got=", ".join(map(str, example)))
        return None if found is None else example[found]
    if not isinstance(example, Sequence) or isinstance(example, str) or len(example) not in (2, 3):
        raise BadInput("an example must be (x, y), (x, y, a) or a dict", got=type(example).__name__)
    return example[place] if place < len(example) else None


def _as_input(x: Any, channels: int, size: int | None) -> Tensor:
    """Turn what a dataset yields into a tensor: Pillow images and uint8 arrays to channels first."""
    if hasattr(x, "convert") and hasattr(x, "mode"):  # a Pillow image, told without importing Pillow
        return pixels(x, channels, size)
    values = x.detach() if isinstance(x, Tensor) else channels_first(tensor(x, "inputs")[None])[0]
    return values.float() if values.is_floating_point() or values.dtype == torch.bool else values


def _one(value: Any, i: int) -> Tensor:
    label = whole(value, f"label of example {i}")
    if label.numel() != 1:
        raise BadInput(f"the label of example {i} must be one number", got=f"shape {tuple(label.shape)}")
    return label.flatten()[0]


def _targets(dataset: Any) -> Tensor | None:
    """Return the labels that a dataset lists, if its examples bear them out and carry no attribute."""
    targets = getattr(dataset, "targets", None)
    if targets is None or getattr(dataset, "target_transform", None) is not None or len(targets) != len(dataset):
        return None
    first = dataset[0]
    if _part(first, 2) is not None:
        return None
    labels = whole(targets, "targets")
    return labels if labels.dim() == 1 and int(labels[0]) == int(_one(_part(first, 1), 0)) else None


def _classes(dataset: Any) -> Sequence[str] | None:
    names = getattr(dataset, "classes", None)
    return names if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names) else None


def _check_map_style(dataset: Any) -> None:
    indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if isinstance(dataset, IterableDataset) or not indexed:
        raise BadInput(
            f"{type(dataset).__name__} can only be iterated, but epochs are shuffled by index",
            expected="a map-style dataset, with __len__ and __getitem__",
            do="Collect it into a list first.",
        )
