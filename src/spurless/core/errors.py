"""Errors and warnings of this package: what is wrong, where, expected and actual value, and a hint."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class SpurlessError(Exception):
    """Base class of the errors of this package; the CLI prints them on one line and exits with status 2."""

    def __reduce__(self) -> tuple[Any, ...]:
        # the default would call __init__ with the formatted message
        return _rebuild, (type(self), self.args), self.__dict__ or None


class SpurlessWarning(UserWarning):
    """Base class of the warnings of this package."""


class IncompleteDataWarning(SpurlessWarning):
    """A dataset differs from its published version, so that results differ from those of the papers."""


class InputError(SpurlessError, ValueError):
    """An invalid argument or file.

    The parts of the message are attributes: ``what``, ``where``, ``expected``, ``got`` and ``hint``.

    Example:
        >>> print(InputError("the label 7 is out of range", where="m.csv, row 3", expected="0 to 1", hint="Fix it."))
        m.csv, row 3: the label 7 is out of range (expected 0 to 1). Fix it.
    """

    def __init__(
        self, what: str, *, where: object = None, expected: object = None, got: object = None, hint: str = ""
    ) -> None:
        self.what, self.where, self.expected, self.got, self.hint = what, where, expected, got, hint
        facts = [f"{name} {fact}" for name, fact in (("expected", expected), ("got", got)) if fact is not None]
        prefix = f"{where}: " if where is not None else ""
        detail = f" ({', '.join(facts)})" if facts else ""
        super().__init__(f"{prefix}{what}{detail}." + (f" {hint}" if hint else ""))


class UnknownNameError(SpurlessError, KeyError):
    """An unknown name."""

    def __init__(self, kind: str, got: str, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(f"No {kind} is called {got!r}.{did_you_mean(got, names)} Known: {', '.join(names) or 'none'}.")

    __str__ = Exception.__str__  # KeyError would print the repr


class MissingAttributesError(SpurlessError, ValueError):
    """Groups are needed, but the attribute is hidden or unknown."""

    def __init__(self, name: str, split: str, alternatives: Iterable[str] = ()) -> None:
        options = ", ".join(sorted(alternatives))
        super().__init__(
            f"{name} needs the attribute a of every example of the {split} split, but a is hidden or unknown (-1). "
            f"Pass data with attributes{f', or use a method that needs none: {options}' if options else ''}."
        )


class UndeclaredAccessError(SpurlessError, AttributeError):
    """A method accessed labels, attributes or a split that it did not declare."""


class DataChangedError(SpurlessError, RuntimeError):
    """A method changed the caller's data in place, so that later runs would use other data than their keys state."""

    def __init__(self, method: str, split: str, part: str) -> None:
        self.method, self.split, self.part = method, split, part
        super().__init__(
            f"The method {method!r} changed {part} of the {split} split in place, and this run is not recorded. "
            "Load the data again; in the method, change a copy, such as x.clone()."
        )


class DivergedError(SpurlessError, ArithmeticError):
    """The loss, or the model's output after the last step, is not finite."""

    def __init__(self, stage: str, step: int, lr: float, what: str = "the loss") -> None:
        super().__init__(
            f"Training {stage!r} diverged: {what} was not finite by step {step} (learning rate {lr:g}). "
            f"Lower the learning rate (--lr {lr / 10:g}), clip gradients (--clip 1), or warm up (--warmup-steps 100)."
        )


class AuditFailedError(SpurlessError, AssertionError):
    """An audit does not satisfy the conditions of a test; ``failures`` has a sentence for each that fails."""

    def __init__(self, failures: Iterable[str]) -> None:
        self.failures = tuple(failures)
        super().__init__("\n".join(("The audit fails.", *(f"* {failure}" for failure in self.failures))))


class MissingExtraError(SpurlessError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package!r}. Install it with: pip install 'spurless[{extra}]'.")


def did_you_mean(got: str, known: Iterable[str]) -> str:
    """Return a suggestion to append to a message, or an empty text.

    Example:
        >>> did_you_mean("groupdro", ["erm", "group-dro"])
        " Did you mean 'group-dro'?"
    """
    near = get_close_matches(got.lower(), list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, without its full stop."""
    message = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()  # some messages contain color codes
    return (message or type(error).__name__).splitlines()[0].rstrip(".")


def _rebuild(kind: type[SpurlessError], args: tuple[object, ...]) -> SpurlessError:
    return kind.__new__(kind, *args)
