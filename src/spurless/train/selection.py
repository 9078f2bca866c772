"""Criteria that select the epoch whose weights are used, and the labels that they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from spurless.core.errors import InputError, UnknownNameError
from spurless.metrics.groupwise import GroupTable
from spurless.train.transplant_accuracy import DONORS

TRANSPLANTS = "val-transplants"


@dataclass(frozen=True)
class Criterion:
    """A score to maximise on the validation split, and the labels that it needs there."""

    name: str
    what: str
    labels: bool
    attributes: bool
    score: Callable[[GroupTable], float]
    inferred: bool = False  # whether the groups are inferred: label, and whether the starting model was correct
    properties: tuple[str, ...] = ()
    """properties that are transplanted; the score is that of :mod:`spurless.train.transplant_accuracy` then"""


CRITERIA: dict[str, Criterion] = {
    criterion.name: criterion
    for criterion in (
        Criterion("last", "the last epoch; uses no labels", False, False, lambda _: 0.0),
        Criterion("val-average", "accuracy on validation", True, False, lambda table: table.average),
        Criterion("val-worst-class", "accuracy of the worst class", True, False, lambda table: table.worst_class[0]),
        Criterion("val-balanced", "mean accuracy of the classes", True, False, lambda table: table.balanced_accuracy),
        Criterion(
            "val-worst-inferred",
            "accuracy of the worst inferred group: label, and whether the starting model was correct",
            True,
            False,
            lambda table: table.worst[0],
            inferred=True,
        ),
        Criterion("val-worst-group", "accuracy of the worst group", True, True, lambda table: table.worst[0]),
        Criterion("val-balanced-groups", "mean accuracy of the groups", True, True, lambda table: table.balanced),
        Criterion(
            TRANSPLANTS,
            f"accuracy under transplants of the named properties ({TRANSPLANTS}:the frame): the lowest mean accuracy "
            f"of the classes if all of these properties, or one, come from {DONORS} random examples of any class",
            True,
            False,
            lambda table: table.balanced_accuracy,  # of the untransplanted examples; see ``properties``
        ),
    )
}


def get_criterion(name: str) -> Criterion:
    """Return the criterion of that name; ``val-transplants:`` is followed by names of properties, separated by ``;``.

    Example:
        >>> get_criterion("val-transplants:the frame; the color").properties
        ('the frame', 'the color')

    Raises:
        UnknownNameError: there is no such criterion.
        InputError: ``val-transplants`` without a property, or another criterion with one.
    """
    base, separator, text = name.partition(":")
    if base not in CRITERIA or (separator and base != TRANSPLANTS):
        raise UnknownNameError("selection criterion", name, CRITERIA)
    if base != TRANSPLANTS:
        return CRITERIA[name]
    properties = tuple(dict.fromkeys(part.strip() for part in text.split(";") if part.strip()))
    if not properties:
        raise InputError(
            f"{TRANSPLANTS} needs the names of the properties to transplant",
            expected=f"for example '{TRANSPLANTS}:the frame', or several, separated by ';'",
            got=repr(name),
            hint="`spurless audit` lists the properties that a model follows.",
        )
    return replace(CRITERIA[base], name=f"{base}:{';'.join(properties)}", properties=properties)
