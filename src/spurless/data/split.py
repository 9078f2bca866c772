"""Splits of a dataset: inputs, labels and attributes of examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeAlias, cast, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from spurless.core.errors import InputError, UndeclaredAccessError
from spurless.core.groups import Groups
from spurless.core.hashing import content_hash
from spurless.core.modules import Input
from spurless.data.input_masks import InputMask, SoftInputMask

Transform: TypeAlias = Callable[[Tensor], Tensor]  # A function from a batch to a batch, on the same device


@runtime_checkable
class Source(Protocol):
    """Examples that are read on demand, for data that do not fit in memory.

    A source that can read many examples at once also has a method ``batch``, from a tensor of indices to a tensor.
    """

    def __len__(self) -> int:
        """Return the number of examples."""

    def __getitem__(self, i: int, /) -> Tensor:
        """Read one example, as stored (images as uint8, channels first)."""

    def fingerprint(self) -> str:
        """Return a content hash, without reading every example."""


def map_input(function: Callable[[Tensor], Tensor], x: Input) -> Input:
    """Apply a function to a tensor, or to every tensor of a dict."""
    return function(x) if isinstance(x, Tensor) else {key: function(part) for key, part in x.items()}


@dataclass(frozen=True)
class Batch:
    """Examples, ready for the model; ``index`` contains their positions in the split."""

    x: Input
    y: Tensor
    a: Tensor
    index: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False, repr=False)
class ExampleIds:
    """The file, or the row in a file, of every example, and its text if it is one.

    Subsets share the lists of all examples and differ in ``index`` only. Ids are not part of fingerprints and run keys:
    images that are moved are the same data.

    Example:
        >>> names = ExampleIds.of_files(["cow/1.png", "cow/2.png", "camel/1.png"]).select(torch.tensor([2, 0]))
        >>> names[0], len(names)
        ('camel/1.png', 2)
        >>> ExampleIds(torch.arange(2), prefix="own.csv, row", rows=torch.tensor([2, 4]))[1]
        'own.csv, row 4'
    """

    index: Tensor  # index of each example in the lists of all examples
    files: Sequence[str] | None = None  # file of every example, if each has one
    prefix: str = ""  # otherwise, text before the number of an example, such as "own.csv, row"
    rows: Tensor | None = None  # number of every example after the prefix; by default its index
    texts: Sequence[str] | None = None  # text of every example, if they were given as texts

    @classmethod
    def of_files(cls, files: Iterable[str | Path]) -> ExampleIds:
        """Identify every example by its file."""
        names = [str(file) for file in files]  # a path takes three times the memory
        return cls(torch.arange(len(names)), names)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, i: int) -> str | None:
        number = int(self.index[i])
        if self.files is not None:
            return str(self.files[number])
        return f"{self.prefix} {number if self.rows is None else int(self.rows[number])}" if self.prefix else None

    def text(self, i: int) -> str | None:
        """Return the text of an example, if known."""
        return None if self.texts is None else self.texts[int(self.index[i])]

    def select(self, index: Tensor) -> ExampleIds:
        """Return the ids of the examples at ``index``."""
        return ExampleIds(self.index[index.to(self.index.device)], self.files, self.prefix, self.rows, self.texts)


@dataclass(frozen=True, repr=False)
class Split:
    """One split: inputs ``x``, labels ``y``, attributes ``a`` (-1 if hidden or unknown), and group names.

    ``x`` is a tensor, a dict of tensors (text), or a :class:`Source` that reads on demand. Images stay
    uint8 until they are batched; ``augment`` (training only) and ``transform`` then run on the device.
    """

    x: Input | Source
    y: Tensor
    a: Tensor
    groups: Groups
    transform: Transform | None = None
    augment: Transform | None = None
    domain: Tensor | None = None
    """Domain of each example, if methods are given domains instead of groups of label and attribute."""
    domains: tuple[str, ...] = ()  # names of the domains
    hidden: InputMask | SoftInputMask | None = None  # parts of each example that are hidden from the model
    names: ExampleIds | None = None  # file, row or text of each example, if known; not part of the content

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        kind = "streamed" if self.streamed else "text"
        if isinstance(self.x, Tensor):
            kind = str(self.x.dtype).removeprefix("torch.")
        shape = f" {tuple(self.x.shape[1:])}" if isinstance(self.x, Tensor) else ""
        known = "" if self.has_attributes else ", attributes unknown" if self.groups.attributes else ", no attributes"
        return f"Split({len(self)} examples, {kind}{shape}, {len(self.groups)} groups{known})"

    @property
    def streamed(self) -> bool:
        """Whether examples are read on demand instead of held in memory."""
        return not isinstance(self.x, Tensor | dict)

    @property
    def has_attributes(self) -> bool:
        """Whether the attribute of every example is known."""
        return bool(self.groups.attributes) and bool(self.groups.known(self.a).all())

    @property
    def g(self) -> Tensor:
        """The group of every example."""
        return self.groups.encode(self.y, self.a)

    @property
    def counts(self) -> Tensor:
        """The number of examples in every group; examples with unknown attribute are not counted."""
        return self.groups.count(self.y, self.a)

    @property
    def class_counts(self) -> Tensor:
        """The number of examples of every label."""
        return torch.bincount(self.y, minlength=len(self.groups.labels))

    @property
    def given(self) -> Split:
        """The split as methods see it: with the domains as groups, if there are any."""
        if self.domain is None:
            return self
        groups = Groups.domains(self.groups.labels, self.domains)
        return replace(self, a=self.domain, groups=groups, domain=None, domains=())

    @property
    def detached(self) -> Split:
        """The split without access to the files, the source and the tensors that other splits are also parts of."""
        x = map_input(_detach, self.x) if isinstance(self.x, Tensor | dict) else OpaqueSource(self.x)
        names = self.names
        if names is not None:
            texts = tuple(names.text(i) or "" for i in range(len(names))) if names.texts is not None else None
            names = None if texts is None else ExampleIds(torch.arange(len(texts)), texts=texts)
        domain = None if self.domain is None else _detach(self.domain)
        return replace(self, x=x, y=_detach(self.y), a=_detach(self.a), domain=domain, names=names)

    def hide_attributes(self) -> Split:
        """Return the same examples with every attribute hidden."""
        return replace(self, a=torch.full_like(self.a, -1))

    def hide_labels(self) -> Split:
        """Return the same examples with every label and attribute hidden."""
        return replace(self.hide_attributes(), y=torch.full_like(self.y, -1))

    def column(self, attribute: str) -> Split:
        """Return the same examples with the groups of one overlapping attribute."""
        groups = self.groups.column(attribute)
        return replace(self, a=self.a[:, self.groups.attributes.index(attribute)], groups=groups)

    def select(self, index: Tensor) -> Split:
        """Return the examples at ``index``, in that order, or those where a boolean mask is True."""
        index = index.nonzero().flatten() if index.dtype == torch.bool else index
        x: Input | Source = SourceSubset(self.x, index) if not isinstance(self.x, Tensor | dict) else self.x
        if isinstance(x, Tensor | dict):
            x = map_input(lambda part: part.index_select(0, index.to(part.device)), x)
        domain = None if self.domain is None else self.domain[index]
        hidden = None if self.hidden is None else self.hidden.select(index)
        names = None if self.names is None else self.names.select(index)
        return replace(self, x=x, y=self.y[index], a=self.a[index], domain=domain, hidden=hidden, names=names)

    def to(self, device: torch.device | str) -> Split:
        """Return the split on a device; a streamed ``x`` is not moved."""
        x = map_input(lambda part: part.to(device), self.x) if isinstance(self.x, Tensor | dict) else self.x
        domain = None if self.domain is None else self.domain.to(device)
        hidden = None if self.hidden is None else self.hidden.to(device)
        return replace(self, x=x, y=self.y.to(device), a=self.a.to(device), domain=domain, hidden=hidden)

    def prepare(self, x: Input, training: bool = False) -> Input:
        """Convert a raw batch to model input: augment (training only), transform, float."""
        if not isinstance(x, Tensor):
            return cast(Any, self.augment)(x) if training and self.augment is not None else x
        if training and self.augment is not None:
            x = self.augment(x)
        if self.transform is not None:
            return self.transform(x)
        if x.dtype == torch.uint8:
            return x.float() / 255
        return x.float() if x.is_floating_point() else x

    def example(self, n: int = 2) -> Input:
        """Return the first ``n`` inputs, ready for the model."""
        first = self.select(torch.arange(min(n, len(self))))
        x = first.x if isinstance(first.x, Tensor | dict) else torch.stack([first.x[i] for i in range(len(first))])
        return self.prepare(x)

    def fingerprint(self) -> str:
        """Return a content hash of inputs, labels, attributes and names."""
        if isinstance(self.x, Tensor):
            content = content_hash(self.x)
        elif isinstance(self.x, dict):
            content = content_hash(*(part for key in sorted(self.x) for part in (key, self.x[key])))
        else:
            content = self.x.fingerprint()
        names = list(self.groups.labels), list(self.groups.attributes)
        domain = () if self.domain is None else (self.domain, list(self.domains))
        hidden = () if self.hidden is None else (self.hidden.fingerprint(),)
        return content_hash(content, self.y, self.a, *names, *domain, *hidden)


@dataclass(frozen=True, repr=False)
class Splits:
    """The three splits of a dataset, with its name and options."""

    train: Split
    val: Split
    test: Split
    name: str = "own data"
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # remarks on the data, which every record contains among its warnings

    def __repr__(self) -> str:
        return f"Splits({self.name}: train {self.train!r}, val {len(self.val)}, test {len(self.test)})"

    @property
    def groups(self) -> Groups:
        """The groups, shared by all splits."""
        return self.train.groups

    @property
    def parts(self) -> tuple[Split, ...]:
        """The splits that have examples: of train, val and test."""
        return tuple(split for split in (self.train, self.val, self.test) if len(split))

    def example(self, n: int = 2) -> Input:
        """Return the first ``n`` inputs, ready for the model: of train, or of val or test if train is empty."""
        return self.parts[0].example(n)

    def join(self) -> Split:
        """Return the examples of all splits as one: those of train, then val, then test."""
        first, *others = parts = self.parts
        if not others:
            return first
        if any(split.hidden is not None for split in parts):
            raise InputError("splits whose inputs are partly hidden cannot be joined", where=self.name)
        names = [split.names for split in parts if split.names is not None]
        shared = {(id(ids.files), id(ids.texts), id(ids.rows), ids.prefix) for ids in names}
        joined = len(names) == len(parts) and len(shared) == 1
        return replace(
            first,
            x=_join_inputs([split.x for split in parts]),
            y=torch.cat([split.y for split in parts]),
            a=torch.cat([split.a for split in parts]),
            domain=None if first.domain is None else torch.cat([cast(Tensor, split.domain) for split in parts]),
            names=replace(names[0], index=torch.cat([ids.index for ids in names])) if joined else None,
        )

    def column(self, attribute: str) -> Splits:
        """Return the same splits with the groups of one overlapping attribute."""
        parts = {name: getattr(self, name).column(attribute) for name in ("train", "val", "test")}
        return replace(self, **parts)

    def visible(self, *, train_attributes: bool, val_labels: bool, val_attributes: bool) -> Splits:
        """Return the labels and attributes that a method declared, with a sealed test split.

        Files, sources, notes and options are left out, except for the tokenizer: they lead to what is hidden.
        """
        train, val = self.train.given, self.val.given
        train = train if train_attributes else train.hide_attributes()
        val = val if val_attributes else val.hide_attributes() if val_labels else val.hide_labels()
        options = {key: value for key, value in self.options.items() if key == "tokenizer"}
        test = cast(Split, SealedSplit())
        return replace(self, train=train.detached, val=val.detached, test=test, options=options, notes=())

    def fingerprint(self) -> str:
        """Return a content hash of all three splits."""
        return content_hash(*(split.fingerprint() for split in (self.train, self.val, self.test)))


@dataclass(frozen=True)
class SourceSubset:
    """Examples of a source at given indices."""

    source: Source
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, i: int) -> Tensor:
        return self.source[int(self.index[i])]

    @property
    def batch(self) -> Callable[[Tensor], Tensor]:
        """A function that reads many examples at once; missing if the source has none."""
        read_batch: Callable[[Tensor], Tensor] = cast(Any, self.source).batch  # AttributeError if it has none
        return lambda index: read_batch(self.index[index])

    def fingerprint(self) -> str:
        """Return a content hash of the source and the indices."""
        return content_hash(self.source.fingerprint(), self.index)


_SOURCES: WeakKeyDictionary[OpaqueSource, Source] = WeakKeyDictionary()


class OpaqueSource:
    """The examples of a source, without access to the source, which may contain other splits or name its files.

    The source is in a table of this module, because an attribute or a closure could be read by a method.
    """

    def __init__(self, source: Source) -> None:
        _SOURCES[self] = source

    def __len__(self) -> int:
        return len(_SOURCES[self])

    def __getitem__(self, i: int) -> Tensor:
        return _SOURCES[self][i]

    def __reduce__(self) -> tuple[Any, ...]:
        return OpaqueSource, (_SOURCES[self],)  # for worker processes

    @property
    def batch(self) -> Callable[[Tensor], Tensor]:
        """A function that reads many examples at once; missing if the source has none."""
        _ = cast(Any, _SOURCES[self]).batch  # AttributeError if it has none
        return partial(_read_batch, self)

    def fingerprint(self) -> str:
        """Return the content hash of the source."""
        return _SOURCES[self].fingerprint()


def _read_batch(source: OpaqueSource, index: Tensor) -> Tensor:
    batch: Tensor = cast(Any, _SOURCES[source]).batch(index)
    return batch


def _detach(part: Tensor) -> Tensor:
    """Return a copy of a view into a larger tensor, through which the rest could be read; other tensors as they are."""
    is_view = part.untyped_storage().nbytes() > part.numel() * part.element_size()
    return part.clone() if is_view else part


@dataclass(frozen=True)
class JoinedSources:
    """The examples of several sources, one source after the other."""

    sources: Sequence[Source]

    def __len__(self) -> int:
        return sum(map(len, self.sources))

    def __getitem__(self, i: int) -> Tensor:
        for source in self.sources:
            if i < len(source):
                return source[i]
            i -= len(source)
        raise IndexError(i)

    def fingerprint(self) -> str:
        """Return a content hash of all sources."""
        return content_hash(*(source.fingerprint() for source in self.sources))


def _join_inputs(inputs: Sequence[Input | Source]) -> Input | Source:
    """Return tensors, dicts of tensors or sources as one."""
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    if tensors:
        return torch.cat(tensors)
    dicts = [x for x in inputs if isinstance(x, dict)]
    if dicts:
        return {key: torch.cat([x[key] for x in dicts]) for key in dicts[0]}
    subsets = [x for x in inputs if isinstance(x, SourceSubset)]
    if len(subsets) == len(inputs) and len({id(x.source) for x in subsets}) == 1:
        return SourceSubset(subsets[0].source, torch.cat([x.index for x in subsets]))
    return JoinedSources(cast(Sequence[Source], inputs))


class SealedSplit:
    """Placeholder of the test split during training; every access raises."""

    def _raise(self) -> NoReturn:
        raise UndeclaredAccessError("Methods cannot access the test split. Use data.val for selection.")

    def __getattr__(self, name: str) -> NoReturn:
        self._raise()

    def __len__(self) -> int:
        self._raise()
