"""Naming: a word that an audit names stands in for the attribute that nobody gave.

Whether a text has a word needs no labelling, so that every split can be grouped by it. A repair then learns from such
groups and is judged by them, as if the attribute were known: ``negated-claims`` in ``docs/detection.md`` has what that
brings.

Properties of images that an audit names are not used so. In a trial with two seeds of seven problems, their bins made
groups that were large enough for DFR on three; on these it was mostly worse than what is done without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spurless.auditing import tokens
from spurless.core.findings import Audit
from spurless.core.groups import Groups
from spurless.data.grouped import Grouped, Splits


@dataclass(frozen=True, eq=False)
class Named:
    """Data in the groups of what an audit named."""

    word: str
    data: Splits

    @property
    def said(self) -> str:
        """What the groups are, in a sentence."""
        return (
            f"Nobody gave an attribute, so that groups are those of what the audit named: a label, with {self.word} or "
            "without."
        )


def name_groups(data: Splits, found: Audit) -> Named | None:
    """Group all splits by the word that an audit of validation names; None where it names none.

    Where an attribute of train or validation is known, it is left alone.
    """
    finding = next((finding for finding in found.flagged if finding.audit == tokens.NAME), None)
    if finding is None or finding.shortcut is None or _partly_known(data.train) or _partly_known(data.val):
        return None
    words = tokens.words_of(data.val, tokens.spelling(data))
    if finding.shortcut not in words.names:  # the audit was of other texts
        return None
    kinds, word = words.kinds[words.names.index(finding.shortcut)], finding.shortcut
    groups = Groups(data.groups.labels, (f"without {word}", f"with {word}"))

    def grouped(split: Grouped) -> Grouped:
        return replace(split, a=tokens.having(split, kinds).to(split.y.device), groups=groups, domain=None, domains=())

    return Named(word, replace(data, train=grouped(data.train), val=grouped(data.val), test=grouped(data.test)))


def _partly_known(split: Grouped) -> bool:
    return bool(split.groups.attributes) and bool(split.groups.known(split.a).any())
