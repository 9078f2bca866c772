"""Write the result of a gate as JUnit XML, which continuous integration services display."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from spurless.core.arguments import check_arguments
from spurless.core.files import replace_text
from spurless.core.findings import GROUP_CASE, VERDICT_CASE, Audit, Gate
from spurless.reporting.audit_text import audit_title, summarize_audit

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(path: Path | str, audit: Audit, gate: Gate) -> Path:
    """Write :func:`junit_xml` and return its path; the file is written completely or not at all."""
    check_arguments(write_junit, locals())
    return replace_text(path, junit_xml(audit, gate))


def junit_xml(audit: Audit, gate: Gate) -> str:
    """Return the result of a gate as JUnit XML.

    The test cases are the conditions of the gate and the audits. An audit fails if its finding made the gate fail, and
    is skipped if it was not possible.
    """
    check_arguments(junit_xml, locals())
    failures, seconds = gate.check(audit), audit.facts.get("seconds", {})
    cases = [] if gate.fail_on is None else [(VERDICT_CASE, summarize_audit(audit).headline, False)]
    cases += [] if gate.worst_group is None else [(GROUP_CASE, "The worst group is good enough.", False)]
    cases += [(f.audit, f"{f.title.rstrip('.')}. {f.because}", f.p is None and not f.flagged) for f in audit.findings]
    counts = {"tests": len(cases), "failures": len(failures), "errors": 0}
    counts["skipped"] = sum(is_skipped for _, _, is_skipped in cases)
    suite = ElementTree.Element("testsuite", {"name": _clean(audit_title(audit.facts)), **_texts(counts)})
    for name, text, is_skipped in cases:
        time = seconds.get(name, 0.0) if isinstance(seconds, Mapping) else 0.0
        case = ElementTree.SubElement(suite, "testcase", {"classname": "spurless", "name": _clean(name)})
        case.set("time", str(time))
        if name in failures:
            message = _clean(failures[name])
            ElementTree.SubElement(case, "failure", {"message": message, "type": "AuditFailedError"}).text = message
        elif is_skipped:
            ElementTree.SubElement(case, "skipped", {"message": _clean(text)})
        else:
            ElementTree.SubElement(case, "system-out").text = _clean(text)
    root = ElementTree.Element("testsuites", {"name": "spurless", **_texts(counts)})
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _texts(counts: Mapping[str, int]) -> dict[str, str]:
    return {key: str(count) for key, count in counts.items()}


def _clean(text: str) -> str:
    """Replace the characters that XML does not allow."""
    return _NOT_XML.sub("\ufffd", text)
