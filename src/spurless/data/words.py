"""Words: a tokenizer that needs no files and no network: every word, in small letters, is numbered by a hash.

Two words may share a number: of 30,000 different ones in 32,768 numbers most do. It serves where no pretrained
vocabulary is at hand, with models that are trained from scratch such as ``token-mean``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from zlib import crc32

NAME = "words"
"""What this tokenizer is called where one is named."""
VOCABULARY = 2**15
"""How many numbers there are; more than BERT has, so that its encoders refuse these tokens."""
PAD, START, END = range(3)
_WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")


def encode(texts: Sequence[str], pairs: Sequence[str] | None, max_length: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the token numbers and token types of every text, or pair, as BERT lays them out.

    Example:
        >>> ids, types = next(encode(["A cat."], ["No cat"], 16))
        >>> ids[0] == START, ids[4] == ids[7] == END, ids[2] == ids[6]
        (True, True, True)
        >>> types
        [0, 0, 0, 0, 0, 1, 1, 1]
    """
    for i, text in enumerate(texts):
        first = [number(word) for word in _WORD.findall(text.lower())]
        second = [] if pairs is None else [number(word) for word in _WORD.findall(pairs[i].lower())]
        marks = 2 if pairs is None else 3
        while len(first) + len(second) > max_length - marks:  # of a pair, the longer part is cut first
            (first if len(first) > len(second) else second).pop()
        ids = [START, *first, END] + ([] if pairs is None else [*second, END])
        yield ids, [0] * (len(first) + 2) + [1] * (len(ids) - len(first) - 2)


@lru_cache(maxsize=2**16)
def number(word: str) -> int:
    """Return the number of a word; the same on every machine."""
    return END + 1 + crc32(word.encode()) % (VOCABULARY - END - 1)
