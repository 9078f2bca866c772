"""Docstrings for the site: Sphinx roles become code, ``.. math::`` a block of LaTeX, ``Example:`` a block of code."""

from __future__ import annotations

import re
from textwrap import dedent, indent
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|attr|mod|math):`~?([^`]+)`")
MATH = re.compile(r"^(?P<pad> *)\.\. math::(?P<first>[^\n]*)\n(?P<rest>(?:(?P=pad) +\S[^\n]*\n|\n)*)", re.MULTILINE)


EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)


class PlainDocstrings(griffe.Extension):
    """Rewrite every docstring before it is parsed, and document every name where it lives, not where it is imported."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ARG002  the name of the hook
        """Rewrite one."""
        if obj.docstring is not None:
            obj.docstring.value = plain(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:  # noqa: ARG002  the name of the hook
        """Forget the names that a room offers a second time."""
        _forget_imports(pkg)


def _forget_imports(module: griffe.Module) -> None:
    for name, member in list(module.members.items()):
        if isinstance(member, griffe.Alias) and member.target_path.startswith("spurless."):
            del module.members[name]
        elif isinstance(member, griffe.Module):
            _forget_imports(member)


def plain(text: str) -> str:
    """Return Markdown."""
    text = EXAMPLE.sub(r"\1Examples:", text)  # the plural is the name of a section, the singular would be prose
    return ROLE.sub(r"`\1`", MATH.sub(_block, text + "\n").rstrip("\n"))


def _block(found: re.Match[str]) -> str:
    body = f"{found['first'].strip()}\n{dedent(found['rest']).strip()}".strip()
    return indent(f"```latex\n{body}\n```\n", found["pad"]) + "\n"
