"""Checksums: are files the ones that a list, as ``sha256sum`` writes it, speaks of?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath

from spurless.core.errors import BadInput
from spurless.core.progress import teller

SUMS = "SHA256SUMS"
"""What a list is called."""
MIB = 2**20


@dataclass(frozen=True)
class Sums:
    """What the lists said."""

    right: int
    absent: int
    """Files that are listed and not here, which is no fault: a list may speak of more than one needs."""


def listed(sums: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of a list and their checksums; those that lie outside its folder are left out.

    Raises:
        BadInput: a line is no checksum.
    """
    for number, line in enumerate(sums.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"([0-9a-fA-F]{64}) [ *](.+)", line)
        if match is None:
            raise BadInput("this is no checksum", where=f"{sums}, line {number}", expected="64 hex digits and a path")
        path = PurePosixPath(match[2])
        if not path.is_absolute() and ".." not in path.parts:
            yield sums.parent / path, match[1].lower()


def verify(expected: Mapping[Path, str]) -> Sums:
    """Compare files with their checksums.

    Raises:
        BadInput: one is wrong; the sentence names the file.
    """
    present = {path: path.stat().st_size for path in expected if path.is_file()}
    tell, read = teller("check sums", sum(present.values()) // MIB), 0
    for path in present:
        found = sha256()
        with path.open("rb") as file:
            while chunk := file.read(MIB):
                found.update(chunk)
                read += len(chunk)
                tell(read // MIB)
        if found.hexdigest() != expected[path]:
            raise BadInput(
                f"the file is not the one that {SUMS} lists",
                where=path,
                expected=f"{expected[path][:12]}...",
                got=f"{found.hexdigest()[:12]}...",
                do="It was cut off or changed: get it again.",
            )
    return Sums(len(present), len(expected) - len(present))
