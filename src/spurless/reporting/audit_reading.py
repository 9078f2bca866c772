"""Audit reading: an audit from the JSON beside its page; everything but the pictures is there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spurless.core.errors import BadInput
from spurless.core.findings import Audit, Finding, Suspect
from spurless.reporting.audit_words import SCHEMA


def read_audit(path: Path | str) -> Audit:
    """Read what ``write_json`` wrote, or ``spurless audit --json`` printed.

    Raises:
        BadInput: the file cannot be read, or holds no audit of this version.
    """
    try:
        told = json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        raise _bad(path, "no such file") from None
    except (OSError, ValueError):
        raise _bad(path, "the audit cannot be read") from None
    if not isinstance(told, dict) or told.get("schema") != SCHEMA or "verdict" not in told:
        raise _bad(path, "this is no audit of this version")
    try:
        return Audit(
            tuple(_finding(row) for row in told["findings"]),
            tuple(Suspect(**row) for row in told["suspects"]),
            dict(told["facts"]),
            tuple(map(str, told["limits"])),
            float(told["level"]),
            told.get("guesses"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _bad(path, f"the audit is incomplete: {error}") from None


def _finding(row: Mapping[str, Any]) -> Finding:
    """Return a finding; whether it is proven follows from all of them, and numbers that were none are left out."""
    told = {key: value for key, value in row.items() if key != "proven"}
    told["numbers"] = {key: value for key, value in told["numbers"].items() if value is not None}
    return Finding(**told | {"rows": tuple(told["rows"])})


def _bad(path: Path | str, what: str) -> BadInput:
    return BadInput(what, where=path, expected="the JSON that spurless audit writes beside its page")
