"""Format numbers, names and lists for pages and the console."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from spurless.core.repairs import Accuracy
from spurless.reporting.aggregate import Estimate, finite_number

MISSING = "n/a"
MINUS = "\u2212"
FORMULA = "=+-@\uff1d\uff0b\uff0d\uff20"  # first characters of a formula in a spreadsheet
BREAKS = "\t\r\n"  # characters that a spreadsheet may skip at the start of a cell
RIGHT_TO_LEFT = ("R", "AL", "AN")


def format_percent(fraction: float | None) -> str:
    """Format a fraction as a percentage: 0.0714 as "7.1 %"."""
    value = finite_number(fraction)
    return MISSING if value is None else f"{_one_decimal(100 * value)} %"


def format_interval(estimate: Estimate | Accuracy) -> str:
    """Format an interval of fractions: "3.7 to 13.2 %"."""
    if estimate.low is None or estimate.high is None:
        return MISSING
    return f"{_one_decimal(100 * estimate.low)} to {format_percent(estimate.high)}"


def format_points(value: float | None) -> str:
    """Format the size of a difference of two percentages: -1.0 as "1.0 point"."""
    if value is None:
        return MISSING
    size = _one_decimal(abs(value))
    return f"{size} point" if size == "1.0" else f"{size} points"


def format_change(value: float | None) -> str:
    """Format a difference of two percentages with its sign: 41.2 as "+41.2 points"."""
    if value is None or _one_decimal(abs(value)) == "0.0":
        return format_points(value)
    return f"{'+' if value > 0 else MINUS}{format_points(value)}"


def format_number(value: float | None) -> str:
    """Format a number with three significant digits, or without decimals from 1,000 on."""
    known = finite_number(value)
    if known is None:
        return MISSING
    text = f"{known:,.0f}" if 1000 <= abs(known) < 1e9 else f"{known:.3g}"
    return text.replace("-", MINUS)


def is_sparse(model: Mapping[str, Any]) -> bool:
    """Return whether at least 1 % of the weights of a record's model are zero."""
    return (finite_number(model.get("sparsity")) or 0.0) >= 0.01


def format_size(model: Mapping[str, Any]) -> str:
    """Format the size of a record's model, and of its weights that are not zero; '' if it was not measured.

    Example:
        >>> dense = {"parameters": 1234, "kept_parameters": 1234, "sparsity": 0.0, "flops": 9000, "kept_flops": 9000}
        >>> format_size(dense)
        '1,234 parameters, 9,000 multiply-adds per example'
        >>> format_size(dense | {"kept_parameters": 434, "sparsity": 0.8, "kept_flops": 4500})
        '80.0 % of weights are zero; remaining: 434 of 1,234 parameters, 4,500 of 9,000 multiply-adds per example'
    """
    sparse, counts = is_sparse(model), []
    for key, noun in (("parameters", "parameters"), ("flops", "multiply-adds per example")):
        total, remaining = finite_number(model.get(key)), finite_number(model.get(f"kept_{key}"))
        if total is not None:
            counts.append(
                (f"{remaining:,.0f} of " if sparse and remaining is not None else "") + f"{total:,.0f} {noun}"
            )
    zeros = f"{format_percent(model['sparsity'])} of weights are zero; remaining: " if sparse and counts else ""
    return zeros + ", ".join(counts)


def format_duration(seconds: float | None) -> str:
    """Format a duration: 75.4 as "1 min 15 s"."""
    known = finite_number(seconds)
    if known is None:
        return MISSING
    if known < 60:
        return f"{known:.1f} s"
    minutes, rest = divmod(round(known), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def clean_name(text: object, limit: int = 60) -> str:
    r"""Clean a name of unknown origin: one line, no control characters, a maximum length, isolated direction.

    Example:
        >>> clean_name("water\tbird"), clean_name("x" * 100, limit=5)
        ('water bird', 'xxxx…')
    """
    line = " ".join(str(text).split())
    clean = "".join(c for c in line if unicodedata.category(c) not in ("Cc", "Cs") and not _changes_direction(c))
    if len(clean) > limit:
        clean = clean[: limit - 1].rstrip() + "…"
    return f"\u2068{clean}\u2069" if any(unicodedata.bidirectional(c) in RIGHT_TO_LEFT for c in clean) else clean


def escape_formula(text: str) -> str:
    """Put an apostrophe in front of the text of a CSV cell that a spreadsheet would evaluate.

    Example:
        >>> escape_formula("=1+1"), escape_formula("cat")
        ("'=1+1", 'cat')
    """
    is_risky = text[:1] in tuple(BREAKS) or text.lstrip()[:1] in tuple(FORMULA)
    return f"'{text}" if is_risky else text


def quote(text: object) -> str:
    """Clean a name and put it in quotes."""
    return f"'{clean_name(text)}'"


def join_words(parts: Sequence[str]) -> str:
    """Join words with commas and "and": "a, b and c"."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def format_count(n: int, noun: str) -> str:
    """Format a count with its noun: "1,200 test examples"."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _one_decimal(value: float) -> str:
    text = f"{value:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", MINUS)


def _changes_direction(character: str) -> bool:
    """Return whether a character changes the direction of the text after it."""
    return unicodedata.bidirectional(character) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
