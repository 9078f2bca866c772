"""Pytest plugin: the fixture ``spurless`` audits models in tests, and can keep the pages of its audits.

It is a module of the top level because pytest imports it in every test session, whether or not spurless is used; it
must import neither torch nor other parts of this package before the fixture is used.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import nn

    from spurless.auditing import Audited
    from spurless.data import Split, Splits


class Auditing:
    """Audits models in one test, and writes their pages if ``--spurless-pages FOLDER`` is given."""

    def __init__(self, name: str, folder: str | None) -> None:
        self._name, self._folder, self._count = name, folder, 0

    def audit(self, model: nn.Module, data: Splits | Split, **options: Any) -> Audited:
        """Return :func:`spurless.audit` of a model; ``assert_clean`` of the result fails the test."""
        from spurless.auditing import audit
        from spurless.reporting import write_audit, write_json

        result = audit(model, data, **options)
        self._count += 1
        if self._folder is not None:
            stem = re.sub(r"[^\w.-]+", "-", self._name)[-150:] + (f"-{self._count}" if self._count > 1 else "")
            write_audit(Path(self._folder, f"{stem}.html"), result)
            write_json(Path(self._folder, f"{stem}.json"), result)
        return result


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for pages."""
    help_text = "write page and JSON of every audit of the fixture 'spurless' to this folder"
    parser.getgroup("spurless").addoption("--spurless-pages", metavar="FOLDER", help=help_text)


@pytest.fixture
def spurless(request: pytest.FixtureRequest) -> Auditing:
    """Audit a model: ``spurless.audit(model, data).assert_clean(worst_group=0.8)``."""
    return Auditing(request.node.nodeid, request.config.getoption("--spurless-pages"))
