"""Unreadable: image files that hold no whole image; found before anything is trained, named, and left out by wish."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from contextlib import closing, suppress
from os import cpu_count
from pathlib import Path

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.core.files import replace_file
from spurless.core.places import cache_folder
from spurless.core.progress import teller
from spurless.core.provenance import digest
from spurless.data.images import ImageFiles, read_image
from spurless.data.loader import ahead

HINT = "Or leave such images out: skip_bad=True, on the command line --skip-bad."
"""What the loaders of own images say after an error of reading."""
FEW = 3
"""files that are named"""
CHUNK = 64  # images per task


def readable(paths: Sequence[Path], labels: Sequence[str], where: object) -> tuple[list[int], tuple[str, ...]]:
    """Read every image once, and return which can be read; of the others, a note that says so, after a warning.

    Args:
        paths: the files.
        labels: the class of each: none may be left without an image.
        where: what an error calls the data.

    Raises:
        BadInput: no image of a class can be read.
    """
    bad = unreadable(paths)
    if not bad:
        return list(range(len(paths))), ()
    kept = sorted(set(range(len(paths))) - set(bad))
    if lost := sorted({*labels} - {labels[i] for i in kept}):
        raise BadInput(
            f"no image of the class {lost[0]!r} can be read, the first is {paths[labels.index(lost[0])]}",
            where=where,
            do="Repair its files, or remove the class.",
        )
    note = left_out("images that cannot be read", [paths[i] for i in bad], f" of {len(paths):,}")
    warnings.warn(note, SpurlessWarning, stacklevel=3)
    return kept, (note,)


def unreadable(paths: Sequence[Path]) -> list[int]:
    """Return the numbers of the files that hold no whole image, or are not there.

    What was found is kept in the cache folder, by the paths, sizes and times of the files: another look takes no time.
    """
    import PIL

    there = [i for i, path in enumerate(paths) if path.is_file()]
    gone = set(range(len(paths))) - set(there)
    stamp = ImageFiles([paths[i] for i in there]).stamp()
    # another Pillow may read what this one does not
    kept = cache_folder() / "images" / f"{digest('unreadable', PIL.__version__, stamp)}.bad"
    with suppress(OSError, ValueError, TypeError):
        return sorted(gone | {there[place] for place in map(int, json.loads(kept.read_text()))})
    found = _broken([paths[i] for i in there])
    with suppress(BadInput):  # a cache that may only be read is a cache all the same
        replace_file(kept, lambda scratch: scratch.write_text(json.dumps(found)))
    return sorted(gone | {there[place] for place in found})


def left_out(what: str, files: Sequence[object], of: str = "") -> str:
    """Say which files are left out and how many; the first few are named.

    Example:
        >>> left_out("images that cannot be read", ["a/1.png", "a/2.png", "b/1.png", "b/7.png"], " of 900")
        'Left out images that cannot be read (4 of 900): a/1.png, a/2.png, b/1.png and 1 more.'
    """
    more = f" and {len(files) - FEW:,} more" if len(files) > FEW else ""
    return f"Left out {what} ({len(files):,}{of}): {', '.join(map(str, files[:FEW]))}{more}."


def _broken(paths: Sequence[Path]) -> list[int]:
    threads, told, found = min(8, cpu_count() or 1), teller("check images", len(paths)), list[int]()

    def look(start: int) -> list[int]:
        return [i for i in range(start, min(start + CHUNK, len(paths))) if not _sound(paths[i])]

    starts = range(0, len(paths), CHUNK)
    with closing(ahead(look, starts, threads, 4 * threads)) as parts:
        for start, part in zip(starts, parts, strict=True):
            found += part
            told(min(start + CHUNK, len(paths)))
    return found


def _sound(path: Path) -> bool:
    try:
        read_image(path)
    except BadInput:
        return False
    return True
