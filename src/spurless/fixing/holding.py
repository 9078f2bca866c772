"""Holding out: validation is cut in two; one part is learnt from, the other judges."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.seeds import Seeds
from spurless.data.grouped import Grouped, Splits
from spurless.data.splitting import stratified
from spurless.fixing.naming import Named
from spurless.methods.base import Info

LEAST = 20
"""Examples of every class that validation needs to be cut: ten learn and ten judge."""


@dataclass(frozen=True, eq=False)
class Held:
    """Splits to learn from, and examples that nothing has learnt from."""

    data: Splits
    """``val`` is the part that a method may learn from, where it was cut"""
    judge: Grouped
    cut: bool
    """whether the two are apart; where validation is too small, all of it judges"""
    whole: Splits
    """as they were given: what is audited, which learns nothing"""
    named: Named | None = None
    """what stands in for the attribute, where nobody gave one; ``data`` and ``judge`` are then in its groups"""

    @property
    def said(self) -> str:
        """How validation is used, in a sentence."""
        groups = f" {self.named.said}" if self.named is not None else ""
        if self.cut:
            return (
                f"Validation is audited whole, then cut in two: {len(self.data.val):,} examples to learn from, "
                f"{len(self.judge):,} to judge by. Test decides nothing.{groups}"
            )
        return (
            f"Validation is too small to be cut (fewer than {LEAST} examples of a class): all of it, "
            f"{len(self.judge):,} examples, judges, and methods learn from train alone. Test decides nothing.{groups}"
        )

    def check_apart(self, method: str, info: Info) -> None:
        """Refuse a method that would learn from the examples that judge it.

        Raises:
            BadInput: validation was too small to be cut, and the method learns from it.
        """
        if info.val_labels and not self.cut:
            raise BadInput(
                f"{method} learns from validation, which is too small to learn from and to judge by",
                expected=f"at least {LEAST} examples of every class",
                got=int(self.judge.class_counts[self.judge.class_counts > 0].min()),
                do=f"Pass more, or run it without a judge: sp.fit({method!r}, ...).",
            )


def hold_out(data: Splits, seed: int) -> Held:
    """Cut validation in halves, stratified by label, and by group where attributes are known."""
    val = data.val
    counts = val.class_counts
    if int(counts[counts > 0].min()) < LEAST:
        return Held(data, val, cut=False, whole=data)
    seeds = Seeds(seed).child("fix")
    first, second, _ = stratified(_cells(val), (0.5, 0.5, 0.0), seeds=seeds, classes=val.y.cpu())
    return Held(replace(data, val=val.select(first)), val.select(second), cut=True, whole=data)


def regroup(held: Held, named: Named, seed: int) -> Held:
    """Cut validation anew in the groups of what an audit named; audits go on without them."""
    return replace(hold_out(named.data, seed), whole=held.whole, named=named)


def _cells(split: Grouped) -> Tensor:
    """Number the pairs of label and attributes; an unknown attribute is a value like any other."""
    y, a = split.y.cpu(), split.a.cpu()
    number: Tensor = torch.unique(torch.cat([y[:, None], a.reshape(len(a), -1)], dim=1), dim=0, return_inverse=True)[1]
    return number
