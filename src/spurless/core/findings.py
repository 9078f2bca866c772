"""Results of an audit: findings, suspected minority examples, and the verdict over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from spurless.core.figures import Figure, Picture

Verdict = Literal["shortcut", "suspicious", "none-found", "inconclusive"]


@dataclass(frozen=True)
class Finding:
    """The result of one audit."""

    audit: str  # name of the audit, as in ``AUDITS``
    title: str  # the result in one line
    severity: float  # effect size in [0, 1]; its definition is in the audit's docstring and in ``because``
    flagged: bool  # whether the effect is significant (``p`` is at most the level) and large enough to matter
    p: float | None
    """p-value, by permutation or by labels sampled from calibrated probabilities; None if not tested"""
    because: str  # the numbers behind the result, with an interval
    remedy: str  # what to do about it
    shows_use: bool = True
    """whether the audit tests that the model uses something, not only that the data contain it or a class is hard"""
    doubt: str = ""
    """why a flagged finding of use is suspicious at most, as a sentence; empty if it can be confirmed"""
    shortcut: str | None = None
    """what the model relies on, if the audit can name it: an attribute, an image property, a word, a neuron"""
    numbers: Mapping[str, float] = field(default_factory=dict)  # all numbers, by name
    rows: tuple[int, ...] = ()  # examples of the audited split that show the effect, the clearest first
    items: tuple[Picture | Figure, ...] = ()  # pictures and charts

    def __post_init__(self) -> None:
        if not 0 <= self.severity <= 1:
            raise ValueError(f"severity must be in [0, 1], but that of {self.audit} is {self.severity}")


@dataclass(frozen=True)
class Suspect:
    """A suspected minority example: its label is unexpected, as if it conflicts with a shortcut."""

    row: int  # index in the audited split
    label: str
    predicted: str
    score: float  # degree of suspicion in [0, 1]
    suspected: bool
    attribute: str | None = None  # attribute value, if known
    file: str | None = None  # file that the example was read from, if any
    text: str | None = None  # the text of a text example
    picture: Picture | None = None
    heat: Picture | None = None  # heat map of the prediction


@dataclass(frozen=True)
class Audit:
    """The results of several audits of one model on the same examples."""

    findings: tuple[Finding, ...]  # flagged findings first, then by severity
    suspects: tuple[Suspect, ...] = ()  # suspected minority examples, the most suspected first
    facts: Mapping[str, Any] = field(default_factory=dict)
    """what was used: model, data, labels, attributes, seed, permutations, versions, seconds"""
    limits: tuple[str, ...] = ()  # what the audit cannot detect, a sentence each
    level: float = 0.05  # significance level
    chance_level_reason: str | None = None
    """a sentence on why the model is at chance level; None if it is better than chance"""
    gaps: tuple[str, ...] = ()
    """why these examples could not have shown a shortcut, a sentence each, with what to collect; empty if they could"""
    typical: tuple[Suspect, ...] = ()
    """a typical, correctly predicted example of the labels of the first suspects, with a picture; for comparison"""
    health: Mapping[str, Any] = field(default_factory=dict)
    """accuracy, classes, confusions, calibration, duplicates and a map of the examples; these test nothing"""

    @property
    def flagged(self) -> tuple[Finding, ...]:
        """The flagged findings."""
        return tuple(finding for finding in self.findings if finding.flagged)

    @property
    def confirmed(self) -> tuple[Finding, ...]:
        """Flagged findings of use that stay significant after correction for multiple tests (Holm 1979).

        A finding with a ``doubt`` is not confirmed.

        Example:
            >>> from dataclasses import replace
            >>> finding = Finding("a", "", 0.5, True, 0.03, "", "")
            >>> len(Audit((finding,)).confirmed), len(Audit((finding, replace(finding, audit="b"))).confirmed)
            (1, 0)
        """
        tested = sorted((f for f in self.findings if f.shows_use and f.p is not None), key=lambda f: f.p or 0.0)
        confirmed: list[Finding] = []
        for rank, finding in enumerate(tested):
            if (finding.p or 0.0) * (len(tested) - rank) > self.level:
                break
            confirmed += [finding] if finding.flagged and not finding.doubt else []
        return tuple(sorted(confirmed, key=lambda finding: -finding.severity))

    @property
    def verdict(self) -> Verdict:
        """The overall result.

        * ``shortcut``: at least one finding is confirmed.
        * ``suspicious``: something is flagged, but nothing is confirmed.
        * ``none-found``: use was tested, nothing is flagged, and the examples could have shown a shortcut.
        * ``inconclusive``: use could not be tested, the model is at chance level, or the examples have ``gaps``: they
          may be as biased as the training data.

        Example:
            >>> finding = Finding("a", "", 0.0, False, 0.5, "", "")
            >>> Audit((finding,)).verdict, Audit((finding,), gaps=("The model makes 2 errors.",)).verdict
            ('none-found', 'inconclusive')
        """
        if self.confirmed:
            return "shortcut"
        if self.chance_level_reason is not None:
            return "inconclusive"
        if self.flagged:
            return "suspicious"
        is_tested = any(finding.shows_use and finding.p is not None for finding in self.findings)
        return "none-found" if is_tested and not self.gaps else "inconclusive"
