"""Errors: each says what is wrong, where, what was expected, what came, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class SpurlessError(Exception):
    """Base of every error this package raises on purpose; the CLI prints it as one line and exits with status 2."""

    def __reduce__(self) -> tuple[Any, ...]:
        # an error crosses processes by its sentence: the default would call __init__ with it
        return _again, (type(self), self.args), self.__dict__ or None


class SpurlessWarning(UserWarning):
    """Base of every warning this package gives: a known trap, with its remedy."""


class Incomplete(SpurlessWarning):
    """A dataset is there, but not as published: its numbers are not those of the papers."""


class BadInput(SpurlessError, ValueError):
    """Something the user gave cannot be used.

    Example:
        >>> print(BadInput("the label 7 is out of range", where="m.csv, row 3", expected="0 to 1", do="Fix it."))
        m.csv, row 3: the label 7 is out of range (expected 0 to 1). Fix it.
    """

    def __init__(
        self, what: str, *, where: object = None, expected: object = None, got: object = None, do: str = ""
    ) -> None:
        facts = [f"expected {expected}"] if expected is not None else []
        facts += [f"got {got}"] if got is not None else []
        place = f"{where}: " if where is not None else ""
        detail = f" ({', '.join(facts)})" if facts else ""
        super().__init__(f"{place}{what}{detail}." + (f" {do}" if do else ""))


class UnknownName(SpurlessError, KeyError):
    """A name that is in no table."""

    def __init__(self, kind: str, got: str, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(f"No {kind} is called {got!r}.{did_you_mean(got, names)} Known: {', '.join(names) or 'none'}.")

    __str__ = Exception.__str__  # KeyError would print the repr


class MissingAttributes(SpurlessError, ValueError):
    """A group was asked for, and the attribute is hidden or unknown."""

    def __init__(self, who: str, split: str, instead: Iterable[str] = ()) -> None:
        options = ", ".join(sorted(instead))
        super().__init__(
            f"{who} needs the attribute a of every example of the {split} split, but a is hidden or unknown (-1). "
            f"Pass data with attributes{f', or use a method that needs none: {options}' if options else ''}."
        )


class UndeclaredUse(SpurlessError, AttributeError):
    """A method reached for something it was not shown."""


class Diverged(SpurlessError, ArithmeticError):
    """The loss is no longer a number, or what the model says is none after the last step."""

    def __init__(self, stage: str, step: int, lr: float, what: str = "the loss") -> None:
        super().__init__(
            f"Training {stage!r} diverged: {what} was not finite by step {step} (learning rate {lr:g}). "
            f"Lower the learning rate (--lr {lr / 10:g}), clip gradients (--clip 1), or warm up (--warmup-steps 100)."
        )


class MissingExtra(SpurlessError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package!r}. Install it with: pip install 'spurless[{extra}]'.")


def did_you_mean(got: str, known: Iterable[str]) -> str:
    """Return a suggestion to append to a sentence, or nothing.

    Example:
        >>> did_you_mean("groupdro", ["erm", "group-dro"])
        " Did you mean 'group-dro'?"
    """
    near = get_close_matches(got.lower(), list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def first_line(error: Exception) -> str:
    """Return the first line of what an error says, to be part of a sentence."""
    said = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()  # some colour it
    return (said or type(error).__name__).splitlines()[0].rstrip(".")


def _again(kind: type[SpurlessError], args: tuple[object, ...]) -> SpurlessError:
    return kind.__new__(kind, *args)
