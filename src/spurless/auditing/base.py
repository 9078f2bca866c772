"""The contract of an audit: a question, what it needs, and a function from a subject to a finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from spurless.auditing.subject import Subject
from spurless.core.findings import Finding

Needs = Literal["labels", "attributes", "images", "texts", "masks"]


@dataclass(frozen=True)
class Auditor:
    """One audit."""

    name: str
    question: str
    """what it asks, in one plain sentence"""
    needs: Needs
    run: Callable[[Subject], Finding]
