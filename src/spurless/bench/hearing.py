"""Hearing: what this package warns of while a run goes on belongs into its record, and is said all the same."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from spurless.core.errors import SpurlessWarning


@contextmanager
def heard() -> Iterator[list[str]]:
    """Collect this package's warnings for the record, and pass every warning on."""
    said: list[str] = []
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", SpurlessWarning)
            yield said
            said.extend(str(w.message) for w in caught if issubclass(w.category, SpurlessWarning))
    except Exception:  # what was said before an error is said all the same, but never in its place
        with suppress(Warning):
            _pass_on(caught)
        raise
    _pass_on(caught)


def _pass_on(caught: list[warnings.WarningMessage]) -> None:
    for w in caught:
        warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
