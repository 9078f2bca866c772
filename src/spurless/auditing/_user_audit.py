"""User-defined audits: an :class:`Auditor`, in the user's code or as an entry point of an installed package.

``FILE.py:AUDIT`` and ``package.module:AUDIT`` name an ``Auditor`` in a file or module; :mod:`spurless.core.user_code`
describes when it is run. A package offers an audit by its name in the entry point group ``spurless.audits``. An audit
of the user is only imported and run if it is named.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args

from spurless.auditing._context import AuditContext, Auditor, Needs, not_tested
from spurless.core.arguments import describe_value
from spurless.core.errors import InputError, SpurlessError, UnknownNameError
from spurless.core.findings import Finding
from spurless.core.user_code import is_user_code, load_user_code, user_code_error

GROUP = "spurless.audits"  # of entry points
EXPECTED = "an Auditor(NAME, QUESTION, NEEDS, RUN)"


def installed_audits() -> dict[str, EntryPoint]:
    """Return the entry points of installed audits by name, without importing them."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def resolve_auditors(audits: Sequence[Auditor | str], library: Mapping[str, Auditor]) -> list[Auditor]:
    """Return audits given by name or as objects; those of the user return valid findings or raise an InputError.

    Raises:
        UnknownNameError: there is no audit of that name.
        InputError: an audit of the user is not valid, or two have the same name.
    """
    resolved: dict[str, Auditor] = {}
    for audit in audits:
        auditor = _resolve(audit, library)
        if auditor.name in resolved:
            raise InputError("two audits have the same name", got=auditor.name, hint="Name every audit once.")
        resolved[auditor.name] = auditor
    return list(resolved.values())


def check_finding(finding: object, auditor: Auditor, context: AuditContext) -> Finding:
    """Return the finding of an audit of the user, or raise if it is not valid."""
    if not isinstance(finding, Finding):
        got = type(finding).__name__
        raise InputError("the audit does not return a finding", where=auditor.name, expected="a Finding", got=got)
    if finding.audit != auditor.name:
        what = "the finding has the name of another audit"
        raise InputError(what, where=auditor.name, expected=auditor.name, got=finding.audit)
    if finding.p is not None and not 0 <= finding.p <= 1:
        raise InputError("the p-value is out of range", where=auditor.name, expected="0 to 1, or None", got=finding.p)
    wrong = [name for name, value in finding.numbers.items() if not math.isfinite(value)]
    if wrong:
        raise InputError(f"the number {wrong[0]!r} is not finite", where=auditor.name, hint="Leave it out.")
    if any(not 0 <= row < len(context) for row in finding.rows):
        raise InputError("a row is out of range", where=auditor.name, expected=f"0 to {len(context) - 1}")
    return finding


def _resolve(audit: Auditor | str, library: Mapping[str, Auditor]) -> Auditor:
    if isinstance(audit, Auditor):
        is_own = library.get(audit.name) is not audit
        return _prepare(audit, audit.name, library) if is_own else audit
    if audit in library:
        return library[audit]
    installed = installed_audits()
    if audit in installed:
        auditor = _prepare(_load_installed(installed[audit]), installed[audit].value, library)
        if auditor.name != audit:
            what = "the audit and its entry point have different names"
            raise InputError(what, where=installed[audit].value, expected=audit, got=auditor.name)
        return auditor
    if is_user_code(audit):
        with load_user_code(audit) as code:
            return _prepare(code.get(EXPECTED, Auditor), code.name, library)
    raise UnknownNameError("audit", audit, (*library, *installed))


def _load_installed(entry: EntryPoint) -> object:
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        raise user_code_error(entry.value, "the installed audit cannot be imported", error) from error


def _prepare(auditor: object, where: str, library: Mapping[str, Auditor]) -> Auditor:
    """Return the audit with a ``run`` that checks its result, or raise if it is not an audit."""
    if not isinstance(auditor, Auditor):
        raise InputError("this is not an audit", where=where, expected=EXPECTED, got=type(auditor).__name__)
    if auditor.name in library:
        hint = "Change the name of the Auditor."
        raise InputError(f"the name {auditor.name!r} is taken by an audit of the library", where=where, hint=hint)
    _check_fields(auditor, where)

    def run(context: AuditContext) -> Finding:
        if not context.provides(auditor.needs):
            return not_tested(auditor.name, f"This audit needs {auditor.needs}, which these examples do not have.")
        try:
            finding = auditor.run(context)
        except SpurlessError:
            raise
        except (Exception, SystemExit) as error:
            raise user_code_error(where, f"the audit {auditor.name!r} failed", error) from error
        return check_finding(finding, auditor, context)

    return replace(auditor, run=run)


def _check_fields(auditor: Auditor, where: str) -> None:
    rules: dict[str, tuple[Callable[[Any], Any], str]] = {
        "name": (lambda name: isinstance(name, str) and re.fullmatch(r"[\w.+-]+", name), "letters, digits and -"),
        "question": (lambda text: isinstance(text, str) and text.strip(), "what the audit tests, as one question"),
        "needs": (lambda needs: needs in get_args(Needs), " or ".join(get_args(Needs))),
        "run": (callable, "a function from AuditContext to Finding"),
    }
    for name, (is_valid, expected) in rules.items():
        value = getattr(auditor, name)
        if not is_valid(value):
            what = f"the field {name!r} of the Auditor is not valid"
            raise InputError(what, where=where, expected=expected, got=describe_value(value))
