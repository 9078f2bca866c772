"""Results of an audit: findings, suspected minority examples, the verdict over all of them, and conditions on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from spurless.core.arguments import check_arguments
from spurless.core.errors import AuditFailedError, InputError, UnknownNameError
from spurless.core.figures import Figure, Picture
from spurless.core.records import GroupRow

Verdict = Literal["shortcut", "suspicious", "none-found", "inconclusive"]
FailOn = Literal["shortcut", "suspicious", "inconclusive"]
"""The mildest verdict that fails a gate: each also fails for those listed before it."""


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
    groups: tuple[GroupRow, ...] = ()
    """accuracy of each group of label and attribute that has examples; of each class if no attribute is known"""

    typical: tuple[Suspect, ...] = ()
    """a typical, correctly predicted example of the labels of the first suspects, with a picture; for comparison"""
    health: Mapping[str, Any] = field(default_factory=dict)
    """accuracy, classes, confusions, calibration, duplicates and a map of the examples; these test nothing"""

    @property
    def worst_group(self) -> GroupRow | None:
        """The group with the lowest accuracy; None in audits of older versions, which do not contain groups."""
        return min(self.groups, key=lambda row: row.accuracy or 0.0, default=None)

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

    def assert_clean(
        self, *, worst_group: float | None = None, fail_on: str = "suspicious", allow: Sequence[str] = ()
    ) -> None:
        """Raise if the audit does not satisfy the conditions of a :class:`Gate`; for tests.

        Args:
            worst_group: the lowest accuracy that the worst group may have.
            fail_on: the mildest verdict that fails: ``shortcut``, ``suspicious`` or ``inconclusive``.
            allow: names of audits whose findings are known and accepted.

        Raises:
            AuditFailedError: a condition is not satisfied; it is an ``AssertionError``.
        """
        check_arguments(Audit.assert_clean, locals())
        failures = Gate(fail_on, worst_group, tuple(allow)).check(self)
        if failures:
            raise AuditFailedError(failures.values())


VERDICT_CASE, GROUP_CASE = "verdict", "worst-group"  # conditions on the whole audit; the others are names of audits


@dataclass(frozen=True)
class Gate:
    """Conditions on an audit, for continuous integration.

    A model at chance level fails every condition on the verdict: its audit cannot find a shortcut.
    """

    fail_on: str | None = "suspicious"  # one of ``FailOn``; None: any verdict passes
    worst_group: float | None = None
    """smallest accuracy of the worst group, as measured: its interval is only reported; None: any"""
    allow: tuple[str, ...] = ()  # names of audits whose findings are accepted: the verdict is formed without them

    def __post_init__(self) -> None:
        check_arguments(Gate, vars(self))
        if self.fail_on is not None and self.fail_on not in get_args(FailOn):
            raise UnknownNameError("verdict to fail on", self.fail_on, get_args(FailOn))
        if self.worst_group is not None and not 0 <= self.worst_group <= 1:
            expected = "a fraction from 0 to 1, such as 0.8"
            raise InputError("the accuracy of the worst group is out of range", expected=expected, got=self.worst_group)

    def check(self, audit: Audit) -> dict[str, str]:
        """Return a sentence for each failure, by the name of the condition or of the audit; empty if all is well.

        Example:
            >>> Gate().check(Audit((Finding("a", "The corner is used", 0.5, True, 0.01, "Why.", ""),)))
            {'verdict': "The verdict is 'shortcut'.", 'a': 'The corner is used. Why.'}
            >>> Gate(allow=("a",)).check(Audit((Finding("a", "The corner is used", 0.5, True, 0.01, "Why.", ""),)))
            {}
        """
        return self._check_verdict(audit) | self._check_worst_group(audit)

    def _check_verdict(self, audit: Audit) -> dict[str, str]:
        if self.fail_on is None:
            return {}
        accepted = [replace(f, flagged=f.flagged and f.audit not in self.allow) for f in audit.findings]
        audit = replace(audit, findings=tuple(accepted))
        verdicts: tuple[str, ...] = get_args(FailOn)
        failing = verdicts[: verdicts.index(self.fail_on) + 1]
        if audit.verdict not in failing and audit.chance_level_reason is None:
            return {}
        reasons = [
            *filter(None, (audit.chance_level_reason,)),
            *(audit.gaps if audit.verdict == "inconclusive" else ()),
        ]
        causes = audit.confirmed if self.fail_on == "shortcut" else audit.flagged
        findings = {finding.audit: f"{finding.title.rstrip('.')}. {finding.because}" for finding in causes}
        return {VERDICT_CASE: " ".join((f"The verdict is {audit.verdict!r}.", *reasons)), **findings}

    def _check_worst_group(self, audit: Audit) -> dict[str, str]:
        if self.worst_group is None:
            return {}
        worst = audit.worst_group
        if worst is None:
            hint = "Audit the model again with this version."
            raise InputError("this audit does not contain the accuracies of groups", hint=hint)
        accuracy, low, high = (100 * (value or 0.0) for value in (worst.accuracy, worst.low, worst.high))
        if (worst.accuracy or 0.0) >= self.worst_group:
            return {}
        return {
            GROUP_CASE: f"The accuracy of the worst group, {worst.name!r}, is {accuracy:.1f} % of {worst.count:,} "
            f"examples (95 % interval {low:.1f} to {high:.1f} %); at least {100 * self.worst_group:g} % is required."
        }
