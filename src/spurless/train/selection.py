"""Criteria that select the epoch whose weights are used, and the labels that they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spurless.core.errors import UnknownNameError
from spurless.metrics.groupwise import GroupTable


@dataclass(frozen=True)
class Criterion:
    """A score to maximise on the validation split, and the labels that it needs there."""

    name: str
    what: str
    labels: bool
    attributes: bool
    score: Callable[[GroupTable], float]
    inferred: bool = False  # whether the groups are inferred: label, and whether the starting model was correct


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
    )
}


def get_criterion(name: str) -> Criterion:
    """Return the criterion of that name."""
    if name not in CRITERIA:
        raise UnknownNameError("selection criterion", name, CRITERIA)
    return CRITERIA[name]
