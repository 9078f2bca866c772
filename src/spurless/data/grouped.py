"""Grouped: examples with their labels and attributes; what every method is trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol, TypeAlias, cast, runtime_checkable

import torch
from torch import Tensor

from spurless.core.errors import UndeclaredUse
from spurless.core.groups import Groups
from spurless.core.provenance import digest
from spurless.data.hidden import Faded, Hidden
from spurless.data.names import Names

Input: TypeAlias = "Tensor | dict[str, Tensor]"
Transform: TypeAlias = Callable[[Tensor], Tensor]
"""From a batch to a batch, on the device of the batch."""


@runtime_checkable
class Source(Protocol):
    """Examples that are read on demand, for data that does not fit in memory.

    A source that reads many at once says so by a method ``batch``, from a tensor of indices to a tensor.
    """

    def __len__(self) -> int:
        """Return how many examples there are."""

    def __getitem__(self, i: int, /) -> Tensor:
        """Read one example, as stored (images as uint8, channels first)."""

    def fingerprint(self) -> str:
        """Return a content hash, without reading every example."""


@dataclass(frozen=True)
class Batch:
    """Some examples, ready for the model; ``index`` says where in the split they lie."""

    x: Input
    y: Tensor
    a: Tensor
    index: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, repr=False)
class Grouped:
    """One split: inputs ``x``, labels ``y``, attributes ``a`` (-1 where hidden or unknown), and the group names.

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
    """Where a method is given coarser groups than label and attribute: the domain of each example."""
    domains: tuple[str, ...] = ()
    """The names of the domains."""
    hidden: Hidden | Faded | None = None
    """What a model shall not see of each example."""
    names: Names | None = None
    """Where each example came from, where that is known; no part of the content."""

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        kind = (
            "streamed"
            if self.streamed
            else f"{self.x.dtype}".removeprefix("torch.")
            if isinstance(self.x, Tensor)
            else "text"
        )
        shape = f" {tuple(self.x.shape[1:])}" if isinstance(self.x, Tensor) else ""
        known = "" if self.has_attributes else ", attributes unknown" if self.groups.attributes else ", no attributes"
        return f"Grouped({len(self)} examples, {kind}{shape}, {len(self.groups)} groups{known})"

    @property
    def streamed(self) -> bool:
        """Whether examples are read on demand rather than held in memory."""
        return not isinstance(self.x, Tensor | dict)

    @property
    def has_attributes(self) -> bool:
        """Whether every example's attribute is known."""
        return bool(self.groups.attributes) and bool(self.groups.known(self.a).all())

    @property
    def g(self) -> Tensor:
        """The group number of every example."""
        return self.groups.encode(self.y, self.a)

    @property
    def counts(self) -> Tensor:
        """The number of examples in every group; unknown attributes are in none."""
        return self.groups.count(self.y, self.a)

    @property
    def class_counts(self) -> Tensor:
        """The number of examples of every label."""
        return torch.bincount(self.y, minlength=len(self.groups.labels))

    @property
    def given(self) -> Grouped:
        """The split as a method is given it: in domains, where there are some, and by label and attribute elsewhere."""
        if self.domain is None:
            return self
        groups = Groups.domains(self.groups.labels, self.domains)
        return replace(self, a=self.domain, groups=groups, domain=None, domains=())

    def hide_attributes(self) -> Grouped:
        """Return the same examples with every attribute hidden."""
        return replace(self, a=torch.full_like(self.a, -1))

    def hide_labels(self) -> Grouped:
        """Return the same examples with every label and attribute hidden."""
        return replace(self.hide_attributes(), y=torch.full_like(self.y, -1))

    def column(self, attribute: str) -> Grouped:
        """Return the same examples with the groups of one overlapping attribute."""
        groups = self.groups.column(attribute)
        return replace(self, a=self.a[:, self.groups.attributes.index(attribute)], groups=groups)

    def select(self, index: Tensor) -> Grouped:
        """Return the examples at ``index``, in that order; a mask chooses those that are True."""
        x: Input | Source
        index = index.nonzero().flatten() if index.dtype == torch.bool else index
        if isinstance(self.x, Tensor):
            x = self.x.index_select(0, index.to(self.x.device))
        elif isinstance(self.x, dict):
            x = {key: value.index_select(0, index.to(value.device)) for key, value in self.x.items()}
        else:
            x = Picked(self.x, index)
        domain = None if self.domain is None else self.domain[index]
        hidden = None if self.hidden is None else self.hidden.select(index)
        names = None if self.names is None else self.names.select(index)
        return replace(self, x=x, y=self.y[index], a=self.a[index], domain=domain, hidden=hidden, names=names)

    def to(self, device: torch.device | str) -> Grouped:
        """Return the split on a device; a streamed ``x`` stays where it is."""
        x = self.x
        if isinstance(x, Tensor):
            x = x.to(device)
        elif isinstance(x, dict):
            x = {key: value.to(device) for key, value in x.items()}
        domain = None if self.domain is None else self.domain.to(device)
        hidden = None if self.hidden is None else self.hidden.to(device)
        return replace(self, x=x, y=self.y.to(device), a=self.a.to(device), domain=domain, hidden=hidden)

    def prepare(self, x: Input, training: bool = False) -> Input:
        """Turn a raw batch into what the model takes: augment (training only), transform, float."""
        if not isinstance(x, Tensor):
            return x
        if training and self.augment is not None:
            x = self.augment(x)
        if self.transform is not None:
            return self.transform(x)
        if x.dtype == torch.uint8:
            return x.float() / 255
        return x.float() if x.is_floating_point() else x

    def example(self, n: int = 2) -> Input:
        """Return the first ``n`` inputs as the model would get them."""
        first = self.select(torch.arange(min(n, len(self))))
        x = first.x if isinstance(first.x, Tensor | dict) else torch.stack([first.x[i] for i in range(len(first))])
        return self.prepare(x)

    def fingerprint(self) -> str:
        """Return a content hash of inputs, labels, attributes and names."""
        if isinstance(self.x, Tensor):
            content = digest(self.x)
        elif isinstance(self.x, dict):
            content = digest(*(part for key in sorted(self.x) for part in (key, self.x[key])))
        else:
            content = self.x.fingerprint()
        names = list(self.groups.labels), list(self.groups.attributes)
        domain = () if self.domain is None else (self.domain, list(self.domains))
        hidden = () if self.hidden is None else (self.hidden.fingerprint(),)
        return digest(content, self.y, self.a, *names, *domain, *hidden)


@dataclass(frozen=True, repr=False)
class Splits:
    """The three splits of a dataset, and where they come from."""

    train: Grouped
    val: Grouped
    test: Grouped
    name: str = "own data"
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What a reader of numbers on these data must know; every record carries them among its warnings."""

    def __repr__(self) -> str:
        return f"Splits({self.name}: train {self.train!r}, val {len(self.val)}, test {len(self.test)})"

    @property
    def groups(self) -> Groups:
        """The groups, which all splits share."""
        return self.train.groups

    def column(self, attribute: str) -> Splits:
        """Return the same splits with the groups of one overlapping attribute."""
        parts = {name: getattr(self, name).column(attribute) for name in ("train", "val", "test")}
        return replace(self, **parts)

    def shown(self, *, train_attributes: bool, val_labels: bool, val_attributes: bool) -> Splits:
        """Return what a method may see: the labels and attributes it declared, and never the test split."""
        train, val = self.train.given, self.val.given
        train = train if train_attributes else train.hide_attributes()
        val = val if val_attributes else val.hide_attributes() if val_labels else val.hide_labels()
        return replace(self, train=train, val=val, test=cast(Grouped, _Sealed()))

    def fingerprint(self) -> str:
        """Return a content hash of all three splits."""
        return digest(*(split.fingerprint() for split in (self.train, self.val, self.test)))


@dataclass(frozen=True)
class Picked:
    """Some examples of a source, in another order."""

    source: Source
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, i: int) -> Tensor:
        return self.source[int(self.index[i])]

    @property
    def batch(self) -> Callable[[Tensor], Tensor]:
        """Read many examples in one go; there only where the source can do so too."""
        at_once: Callable[[Tensor], Tensor] = cast(Any, self.source).batch  # AttributeError where it cannot
        return lambda index: at_once(self.index[index])

    def fingerprint(self) -> str:
        """Return a content hash of the source and the choice."""
        return digest(self.source.fingerprint(), self.index)


class _Sealed:
    """Stands where the test split would be; any look inside is an error."""

    def _refuse(self) -> NoReturn:
        raise UndeclaredUse("The test split is never shown to a method. Select on data.val instead.")

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse()

    def __len__(self) -> int:
        self._refuse()
