"""Find image files that cannot be read, and skip them on request."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import closing
from os import cpu_count
from pathlib import Path

import torch

from spurless.core.cache import cached_tensors
from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.hashing import content_hash
from spurless.core.progress import progress_reporter
from spurless.data.loader import prefetch
from spurless.data.loaders.images import ImageFiles, read_image

SKIP_HINT = "Or skip such images: skip_bad=True (--skip-bad)."  # hint of the loaders after a read error
MAX_NAMED_FILES = 3  # number of files that a note names
CHUNK = 64  # images per task


def drop_unreadable(paths: Sequence[Path], labels: Sequence[str], where: object) -> tuple[list[int], tuple[str, ...]]:
    """Read every image once; return the indices of readable ones, and a note on the others after a warning.

    Raise if no image of a class can be read; the error names the data by ``where``.
    """
    unreadable = find_unreadable(paths)
    if not unreadable:
        return list(range(len(paths))), ()
    readable = sorted(set(range(len(paths))) - set(unreadable))
    if empty := sorted({*labels} - {labels[i] for i in readable}):
        what = f"no image of the class {empty[0]!r} can be read, the first is {paths[labels.index(empty[0])]}"
        raise InputError(what, where=where, hint="Repair its files, or remove the class.")
    note = describe_skipped("images that cannot be read", [paths[i] for i in unreadable], f" of {len(paths):,}")
    warnings.warn(note, SpurlessWarning, stacklevel=3)
    return readable, (note,)


def find_unreadable(paths: Sequence[Path]) -> list[int]:
    """Return the indices of files that are missing or do not contain a complete image.

    The result is cached, by the paths, sizes and modification times of the files.
    """
    import PIL

    present = [i for i, path in enumerate(paths) if path.is_file()]
    missing = set(range(len(paths))) - set(present)
    files = [paths[i] for i in present]
    # the version is part of the key: another version of Pillow may read other files
    key = content_hash("unreadable", PIL.__version__, ImageFiles(files).stamp())
    broken = cached_tensors(key, lambda: {"broken": torch.tensor(_find_broken(files), dtype=torch.long)})["broken"]
    return sorted(missing | {present[i] for i in broken.tolist()})


def describe_skipped(what: str, files: Sequence[object], of: str = "") -> str:
    """Return a note on skipped files, which names the first few.

    Example:
        >>> describe_skipped("images that cannot be read", ["a/1.png", "a/2.png", "b/1.png", "b/7.png"], " of 900")
        'Skipped images that cannot be read (4 of 900): a/1.png, a/2.png, b/1.png and 1 more.'
    """
    more = f" and {len(files) - MAX_NAMED_FILES:,} more" if len(files) > MAX_NAMED_FILES else ""
    return f"Skipped {what} ({len(files):,}{of}): {', '.join(map(str, files[:MAX_NAMED_FILES]))}{more}."


def _find_broken(paths: Sequence[Path]) -> list[int]:
    threads, done, broken = min(8, cpu_count() or 1), progress_reporter("check images", len(paths)), list[int]()

    def check_chunk(start: int) -> list[int]:
        return [i for i in range(start, min(start + CHUNK, len(paths))) if not _is_readable(paths[i])]

    starts = range(0, len(paths), CHUNK)
    with closing(prefetch(check_chunk, starts, threads, 4 * threads)) as parts:
        for start, part in zip(starts, parts, strict=True):
            broken += part
            done(min(start + CHUNK, len(paths)))
    return broken


def _is_readable(path: Path) -> bool:
    try:
        read_image(path)
    except InputError:
        return False
    return True
