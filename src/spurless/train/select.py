"""Selection: which epoch's weights to keep, by criteria that declare which labels they use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spurless.core.errors import UnknownName
from spurless.metrics.groupwise import GroupTable


@dataclass(frozen=True)
class Criterion:
    """A number to maximise on the validation split, and the labels it needs there."""

    name: str
    what: str
    labels: bool
    attributes: bool
    score: Callable[[GroupTable], float]
    inferred: bool = False
    """Whether the groups are inferred: label, and whether the starting model was right."""


CRITERIA: dict[str, Criterion] = {
    criterion.name: criterion
    for criterion in (
        Criterion("last", "the last epoch; looks at nothing", False, False, lambda _: 0.0),
        Criterion("val-average", "accuracy on validation", True, False, lambda table: table.average),
        Criterion("val-worst-class", "accuracy of the worst class", True, False, lambda table: table.worst_class[0]),
        Criterion("val-balanced", "mean accuracy of the classes", True, False, lambda table: table.balanced_accuracy),
        Criterion(
            "val-worst-inferred",
            "accuracy of the worst of the groups: label, and whether the starting model was right",
            True,
            False,
            lambda table: table.worst[0],
            inferred=True,
        ),
        Criterion("val-worst-group", "accuracy of the worst group", True, True, lambda table: table.worst[0]),
        Criterion("val-balanced-groups", "mean accuracy of the groups", True, True, lambda table: table.balanced),
    )
}


def criterion_named(name: str) -> Criterion:
    """Return the criterion of that name."""
    try:
        return CRITERIA[name]
    except KeyError:
        raise UnknownName("selection criterion", name, CRITERIA) from None
