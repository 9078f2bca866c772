"""Split validation in two: methods may train on one half, and the other half decides which model is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spurless.auditing import tokens
from spurless.auditing._context import has_any_attribute
from spurless.core.errors import InputError
from spurless.core.findings import Audit
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split, Splits
from spurless.data.splitting import split_stratified
from spurless.data.words import find_words, load_spelling, mark_texts
from spurless.methods.base import Info

MIN_EXAMPLES = 20  # validation examples of every class that a split in two needs: ten for training and ten to decide


@dataclass(frozen=True, eq=False)
class Holdout:
    """Splits to train on, and held-out examples that decide."""

    data: Splits  # ``val`` is the half that a method may train on, if validation is split
    scoring: Split  # the held-out examples
    is_split: bool  # false if validation is too small: then all of it decides, and methods use the training split only
    whole: Splits  # the splits as given, which are audited
    word: str | None = None
    """the word that is used as the attribute, if the data have none; ``data`` and ``scoring`` are grouped by it"""
    val: Split | None = None  # all of validation, with the groups of ``data``; None: that of ``data``

    @property
    def full(self) -> Splits:
        """The splits with all of validation to train on, for a method that was accepted."""
        return self.data if self.val is None else replace(self.data, val=self.val)

    @property
    def word_note(self) -> str:
        """A sentence on how groups are defined; empty if attributes are given or there are none."""
        if self.word is None:
            return ""
        return f"The data have no attribute, so groups are defined by the audit: a label, with {self.word} or without."

    @property
    def description(self) -> str:
        """Sentences on how validation is used."""
        if self.is_split:
            use = (
                f"The whole validation split is audited. Then it is split in two: {len(self.data.val):,} examples for "
                f"training, {len(self.scoring):,} held-out examples that decide."
            )
        else:
            use = (
                f"Validation is too small to be split (fewer than {MIN_EXAMPLES} examples of a class): all of its "
                f"{len(self.scoring):,} examples decide, and methods use the training split only."
            )
        return f"{use} The test split decides nothing. {self.word_note}".rstrip()

    def check_method(self, method: str, info: Info) -> None:
        """Raise if a method would train on the examples that decide.

        Raises:
            InputError: validation is too small to be split, and the method trains on it.
        """
        if info.val_labels and not self.is_split:
            raise InputError(
                f"{method} trains on validation, which is too small to be split",
                expected=f"at least {MIN_EXAMPLES} examples of every class",
                got=int(self.scoring.class_counts[self.scoring.class_counts > 0].min()),
                hint=f"Pass more, or run it without a comparison: sp.fit({method!r}, ...).",
            )


def split_validation(data: Splits, seed: int) -> Holdout:
    """Split validation into halves, stratified by label, and by group if attributes are known."""
    val = data.val
    counts = val.class_counts
    if int(counts[counts > 0].min()) < MIN_EXAMPLES:
        return Holdout(data, val, is_split=False, whole=data)
    seeds = Seeds(seed).child("fix")
    first, second, _ = split_stratified(_number_groups(val), (0.5, 0.5, 0.0), seeds=seeds, classes=val.y.cpu())
    return Holdout(replace(data, val=val.select(first)), val.select(second), is_split=True, whole=data, val=val)


def group_by_word(data: Splits, audit: Audit) -> tuple[str, Splits] | None:
    """Group all splits by the word that an audit of validation found.

    Returns:
        The word and the grouped splits; None if there is no such word, or an attribute of train or validation is known.
    """
    finding = next((finding for finding in audit.flagged if finding.audit == tokens.NAME), None)
    if finding is None or finding.shortcut is None or has_any_attribute(data.train) or has_any_attribute(data.val):
        return None
    words = find_words(data.val, load_spelling(data)).words
    word = next((word for word in words if word.name == finding.shortcut), None)
    if word is None:  # the audit was of other texts
        return None
    groups = Groups(data.groups.labels, (f"without {word.name}", f"with {word.name}"))

    def regroup(split: Split) -> Split:
        a = mark_texts(split, word).to(split.y.device)
        return replace(split, a=a, groups=groups, domain=None, domains=())

    return word.name, replace(data, train=regroup(data.train), val=regroup(data.val), test=regroup(data.test))


def _number_groups(split: Split) -> Tensor:
    """Number the combinations of label and attributes; an unknown attribute counts as a value."""
    y, a = split.y.cpu(), split.a.cpu()
    number: Tensor = torch.unique(torch.cat([y[:, None], a.reshape(len(a), -1)], dim=1), dim=0, return_inverse=True)[1]
    return number
