"""Parameters: from a name such as lr, method.gamma or data.conflicting to the setting of a cell that it means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from spurless.bench.cell import Cell
from spurless.core.errors import BadInput, UnknownName
from spurless.core.options import configure
from spurless.data import DATASETS
from spurless.methods import METHODS, make_method
from spurless.models import architecture_named
from spurless.train.config import TrainConfig

ROOMS = {"train": "train", "method": "method_options", "data": "data_options", "model": "model_options"}
"""Where a parameter may live, and the field of a cell that holds it."""
ALIASES = {"l2": "weight_decay", "rho": "asam"}
"""What papers call settings of training."""


@dataclass(frozen=True)
class Parameter:
    """A setting of a cell: in which room, and what it is called there."""

    room: str
    field: str


def parameter_named(name: str, cell: Cell) -> Parameter:
    """Find what a name means for a cell: of training or the method without a prefix, of data or model with one.

    Example:
        >>> cell = Cell("planted", "mlp", "group-dro")
        >>> parameter_named("lr", cell), parameter_named("l2", cell).field, parameter_named("step_size", cell).room
        (Parameter(room='train', field='lr'), 'weight_decay', 'method')

    Raises:
        UnknownName: no setting has that name; the nearest one is named.
        BadInput: two have, or only one of another method.
    """
    known = _known(cell)
    room, dot, field = spelt(name).rpartition(".")
    rooms = [room] if dot else ["train", "method"]
    found = [Parameter(r, ALIASES.get(field, field) if r == "train" else field) for r in rooms if r in ROOMS]
    found = [one for one in found if _has(known[one.room], one.field)]
    if len(found) > 1:
        raise BadInput(
            f"{name!r} is a setting both of training and of the method {cell.method!r}",
            do=f"Say train.{field} or method.{field}.",
        )
    if not found:
        raise _unknown(name, room, field, known)
    return found[0]


def spelt(name: str) -> str:
    """Return a name as settings are written: ``batch-size``, as a flag is, becomes ``batch_size``."""
    return name.replace("-", "_")


def convert(cell: Cell, parameter: Parameter, value: Any) -> Any:
    """Return a value with the type that the setting has; whatever the cell would refuse is refused now."""
    options = {**getattr(cell, ROOMS[parameter.room]), parameter.field: value}
    if parameter.room == "train":
        made: Any = configure(TrainConfig, options, "the training loop")
    elif parameter.room == "method":
        made = make_method(cell.method, cell.preset, **options).config
    elif parameter.room == "model":
        made = configure(architecture_named(cell.model).config, options, cell.model)
    elif cell.dataset in DATASETS:
        made = configure(DATASETS[cell.dataset].config, options, f"dataset {cell.dataset!r}")
    else:  # data of one's own have no table of options
        return value
    return getattr(made, parameter.field)


def assign(cell: Cell, values: Mapping[Parameter, Any]) -> Cell:
    """Return the cell with these settings."""
    for parameter, value in values.items():
        place = ROOMS[parameter.room]
        options: dict[str, Any] = {place: {**getattr(cell, place), parameter.field: value}}
        cell = replace(cell, **options)
    return cell


def _unknown(name: str, room: str, field: str, known: Mapping[str, Iterable[str] | None]) -> Exception:
    """Return the error for a name that means nothing here: it may mean something with another method."""
    owners = [other for other in METHODS if field in _of(type(make_method(other).config))]
    nearer = any(field in (known[beside] or ()) for beside in ("data", "model"))  # only the prefix is missing
    if room not in ("", "method") or nearer or not owners:
        return UnknownName("parameter", name, _names(known))
    return BadInput(f"{name!r} is a setting of other methods: {', '.join(owners)}", do=f"Add --method {owners[0]}.")


def _known(cell: Cell) -> dict[str, tuple[str, ...] | None]:
    """Return the settings of every room; None for data of one's own, which say themselves what they take."""
    data = DATASETS.get(cell.dataset)
    return {
        "train": _of(TrainConfig),
        "method": _of(type(make_method(cell.method, cell.preset).config)),
        "data": None if data is None else _of(data.config),
        "model": _of(architecture_named(cell.model).config),
    }


def _has(fields: tuple[str, ...] | None, name: str) -> bool:
    return fields is None or name in fields


def _of(config: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(config) if field.init)


def _names(known: Mapping[str, Iterable[str] | None]) -> list[str]:
    """Return the shortest name of every setting."""
    train, method = set(known["train"] or ()), set(known["method"] or ())
    twice = {f"{room}.{field}" for room in ("train", "method") for field in train & method}
    return [
        *(train ^ method),
        *ALIASES,
        *twice,
        *(f"{r}.{field}" for r in ("data", "model") for field in known[r] or ()),
    ]
