"""Findings: what an audit says of a model, with its numbers and its evidence; read by the page, by machines, by fix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from spurless.core.figures import Figure, Picture

Verdict = Literal["leans", "look", "none", "unasked"]


@dataclass(frozen=True)
class Finding:
    """One answer to one question: does the model lean on this?"""

    audit: str
    """the name of the audit, as in ``AUDITS``"""
    title: str
    """what was found, in one plain line"""
    severity: float
    """in [0, 1]; what it measures is in the audit's docstring and in ``because``"""
    flagged: bool
    """whether it is more than chance would give: ``p`` is at most the level of the audit"""
    p: float | None
    """how often chance does as well: by permutation, or by labels drawn as the model believes; None where not asked"""
    because: str
    """the numbers behind it, with an interval"""
    remedy: str
    """what to do about it"""
    shows_use: bool = True
    """whether it shows that the model uses something, and not only that the data have it or that a class is hard"""
    shortcut: str | None = None
    """what the model leans on, where the audit can name it: an attribute, a property of images, a word, a neuron"""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """for machines"""
    rows: tuple[int, ...] = ()
    """examples of the audited split that show it, the clearest first"""
    items: tuple[Picture | Figure, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.severity <= 1:
            raise ValueError(f"a severity lies in [0, 1], and that of {self.audit} is {self.severity}")


@dataclass(frozen=True)
class Suspect:
    """An example that seems to break the shortcut: one of the suspected minority."""

    row: int
    """of the audited split"""
    label: str
    predicted: str
    score: float
    """in [0, 1]; how many of the ways to look for it agree, and how sure they are"""
    suspected: bool
    attribute: str | None = None
    """where it is known"""
    file: str | None = None
    """where it lies, where it came from a file"""
    text: str | None = None
    """of a text"""
    picture: Picture | None = None
    heat: Picture | None = None
    """where the model looked"""


@dataclass(frozen=True)
class Audit:
    """What several audits say of one model on the same examples."""

    findings: tuple[Finding, ...]
    """those that are flagged first, the most severe first"""
    suspects: tuple[Suspect, ...] = ()
    """the most suspected first"""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """what was used: model, data, labels, attributes, seed, permutations, versions, seconds"""
    limits: tuple[str, ...] = ()
    """what this audit cannot tell, a sentence each"""
    level: float = 0.05
    guesses: str | None = None
    """a sentence that says so where the model is no better than guessing: it has learnt nothing to lean on"""

    @property
    def flagged(self) -> tuple[Finding, ...]:
        """Those findings that are more than chance."""
        return tuple(finding for finding in self.findings if finding.flagged)

    @property
    def proven(self) -> tuple[Finding, ...]:
        """Those that show *use*, and are more than chance even though so many questions were asked (Holm 1979).

        Example:
            >>> from dataclasses import replace
            >>> finding = Finding("a", "", 0.5, True, 0.03, "", "")
            >>> len(Audit((finding,)).proven), len(Audit((finding, replace(finding, audit="b"))).proven)
            (1, 0)
        """
        asked = sorted((f for f in self.findings if f.shows_use and f.p is not None), key=lambda f: f.p or 0.0)
        found: list[Finding] = []
        for done, finding in enumerate(asked):
            if (finding.p or 0.0) * (len(asked) - done) > self.level:
                break
            found += [finding] if finding.flagged else []
        return tuple(sorted(found, key=lambda finding: -finding.severity))

    @property
    def verdict(self) -> Verdict:
        """``leans`` where use is shown, ``look`` where something is flagged, ``none`` elsewhere.

        ``unasked`` is not ``none``: no question about use could be asked, such as of a model that makes no mistakes, or
        of one that is no better than guessing; whatever else is flagged is then in the data, or is what it has not
        learnt.

        Example:
            >>> Audit((Finding("a", "", 0.0, False, None, "", ""),)).verdict
            'unasked'
        """
        if self.guesses is not None and not self.proven:
            return "unasked"
        if self.flagged:
            return "leans" if self.proven else "look"
        return "none" if any(finding.shows_use and finding.p is not None for finding in self.findings) else "unasked"
