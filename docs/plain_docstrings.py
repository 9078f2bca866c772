"""Convert docstrings to Markdown for the site: Sphinx roles, ``.. math::`` and ``Example:`` sections."""

from __future__ import annotations

import re
from textwrap import dedent, indent
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|attr|mod|math):`~?([^`]+)`")
MATH = re.compile(r"^(?P<pad> *)\.\. math::(?P<first>[^\n]*)\n(?P<rest>(?:(?P=pad) +\S[^\n]*\n|\n)*)", re.MULTILINE)


EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)


class PlainDocstrings(griffe.Extension):
    """Rewrite every docstring before it is parsed, and document every name only in its own module."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ARG002  griffe passes more
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = plain(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:  # noqa: ARG002  griffe passes more
        """Drop names that a package re-exports."""
        _drop_imports(pkg)


def _drop_imports(module: griffe.Module) -> None:
    for name, member in list(module.members.items()):
        if isinstance(member, griffe.Alias) and member.target_path.startswith("spurless."):
            del module.members[name]
        elif isinstance(member, griffe.Module):
            _drop_imports(member)


def plain(text: str) -> str:
    """Return Markdown."""
    text = EXAMPLE.sub(r"\1Examples:", text)  # the plural is the name of a section, the singular would be prose
    return ROLE.sub(r"`\1`", MATH.sub(_block, text + "\n").rstrip("\n"))


def _block(found: re.Match[str]) -> str:
    body = f"{found['first'].strip()}\n{dedent(found['rest']).strip()}".strip()
    return indent(f"```latex\n{body}\n```\n", found["pad"]) + "\n"
