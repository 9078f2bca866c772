"""Words: how the page writes a number, a name and a list."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from spurless.reporting.arms import Estimate, number

MISSING = "n/a"
MINUS = "\u2212"
SIZES = ("parameters", "kept_parameters", "sparsity", "flops", "kept_flops")
"""what a record's model was found to have; the rest of it was chosen"""
RIGHT_TO_LEFT = ("R", "AL", "AN")


def percent(share: float | None) -> str:
    """Write a share as a percentage.

    Example:
        >>> percent(0.0714), percent(None)
        ('7.1 %', 'n/a')
    """
    value = number(share)
    return MISSING if value is None else f"{_one_decimal(100 * value)} %"


def span(estimate: Estimate) -> str:
    """Write an interval.

    Example:
        >>> span(Estimate(0.07, 0.037, 0.1322))
        '3.7 to 13.2 %'
    """
    if estimate.low is None or estimate.high is None:
        return MISSING
    return f"{_one_decimal(100 * estimate.low)} to {percent(estimate.high)}"


def points(value: float | None) -> str:
    """Write the size of a difference of two percentages.

    Example:
        >>> points(-1.0), points(41.2)
        ('1.0 point', '41.2 points')
    """
    if value is None:
        return MISSING
    size = _one_decimal(abs(value))
    return f"{size} point" if size == "1.0" else f"{size} points"


def signed(value: float | None) -> str:
    """Write a difference of two percentages with its sign.

    Example:
        >>> signed(41.2), signed(-1.0), signed(0.0)
        ('+41.2 points', '−1.0 point', '0.0 points')
    """
    if value is None or _one_decimal(abs(value)) == "0.0":
        return points(value)
    return f"{'+' if value > 0 else MINUS}{points(value)}"


def plain(value: float | None) -> str:
    """Write a number that is no share: three significant digits, whole thousands.

    Example:
        >>> plain(0.01234), plain(51234.0), plain(3.0), plain(None)
        ('0.0123', '51,234', '3', 'n/a')
    """
    known = number(value)
    if known is None:
        return MISSING
    text = f"{known:,.0f}" if 1000 <= abs(known) < 1e9 else f"{known:.3g}"
    return text.replace("-", MINUS)


def is_sparse(model: Mapping[str, Any]) -> bool:
    """Say whether enough weights of a record's model are zero to be worth a word: a head alone may have a few."""
    return (number(model.get("sparsity")) or 0.0) >= 0.01


def size(model: Mapping[str, Any]) -> str:
    """Write how large a record's model is, and what is left of it where zeros cost nothing; '' where nobody counted.

    Example:
        >>> size({"parameters": 1234, "kept_parameters": 1234, "sparsity": 0.0, "flops": 9000, "kept_flops": 9000})
        '1,234 parameters, 9,000 multiply-adds per example'
        >>> size({"parameters": 1234, "kept_parameters": 434, "sparsity": 0.8, "flops": 9000, "kept_flops": 4500})
        '80.0 % of weights are zero; left: 434 of 1,234 parameters, 4,500 of 9,000 multiply-adds per example'
    """
    sparse, counts = is_sparse(model), []
    for key, word in (("parameters", "parameters"), ("flops", "multiply-adds per example")):
        every, kept = number(model.get(key)), number(model.get(f"kept_{key}"))
        if every is not None:
            counts.append(
                f"{kept:,.0f} of {every:,.0f} {word}" if sparse and kept is not None else f"{every:,.0f} {word}"
            )
    zeros = f"{percent(model['sparsity'])} of weights are zero; left: " if sparse and counts else ""
    return zeros + ", ".join(counts)


def duration(seconds: float | None) -> str:
    """Write a time.

    Example:
        >>> duration(0.25), duration(75.4), duration(7260)
        ('0.2 s', '1 min 15 s', '2 h 1 min')
    """
    known = number(seconds)
    if known is None:
        return MISSING
    if known < 60:
        return f"{known:.1f} s"
    minutes, rest = divmod(round(known), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def name(text: object, limit: int = 60) -> str:
    r"""Write a name that someone else chose: one line, no control characters, not too long, its direction kept inside.

    Example:
        >>> name("water\tbird"), name("x" * 100, limit=5)
        ('water bird', 'xxxx…')
    """
    line = " ".join(str(text).split())
    clean = "".join(c for c in line if unicodedata.category(c) not in ("Cc", "Cs") and not _steers(c))
    if len(clean) > limit:
        clean = clean[: limit - 1].rstrip() + "…"
    return f"\u2068{clean}\u2069" if any(unicodedata.bidirectional(c) in RIGHT_TO_LEFT for c in clean) else clean


def quoted(text: object) -> str:
    """Write a name in quotes."""
    return f"'{name(text)}'"


def listed(parts: Sequence[str]) -> str:
    """Join parts as a person would.

    Example:
        >>> listed(["a", "b", "c"])
        'a, b and c'
    """
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def plural(n: int, noun: str) -> str:
    """Write a count.

    Example:
        >>> plural(1, "seed"), plural(1200, "test example")
        ('1 seed', '1,200 test examples')
    """
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _one_decimal(value: float) -> str:
    text = f"{value:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", MINUS)


def _steers(character: str) -> bool:
    """Say whether a character turns the direction of what follows it."""
    return unicodedata.bidirectional(character) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
