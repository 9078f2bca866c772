"""Packing: image files written into one npz file, as they are or smaller."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from io import BytesIO
from os import cpu_count
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.files import replace_file
from spurless.core.progress import teller
from spurless.data.images import ImageFiles, decode_image
from spurless.data.loader import ahead
from spurless.data.packed import IMAGES, NAMES, OFFSETS, PackedImages

QUALITY = 90
"""Of images that are made smaller, where the user names none."""
KINDS = ("webp", "jpeg")
"""What images are encoded as, if they are."""


class Packed(NamedTuple):
    """What was written."""

    images: int
    bytes: int


def write_pack(path: str | Path, images: Iterable[bytes], columns: Mapping[str, Any]) -> Packed:
    """Write a pack; one image at a time is held in memory, and the file is there whole or not at all.

    Args:
        path: the file.
        images: image files, as bytes.
        columns: by name, a number or text for every image (``y``, ``a``, ``split``, or any other); also
            ``labels``, ``attributes`` and ``sizes``, see :mod:`spurless.data.packed`.

    Raises:
        BadInput: a column cannot be packed, or is not as long as there are images.
    """
    arrays = {name: _array(name, values) for name, values in columns.items()}
    path, offsets = Path(path), [0]

    def write(scratch: Path) -> None:
        import numpy as np

        with tempfile.TemporaryFile(dir=scratch.parent) as body, ZipFile(scratch, "w") as archive:
            for image in images:
                if not image:
                    raise BadInput(f"image {len(offsets) - 1} has no bytes", where=path)
                body.write(image)
                offsets.append(offsets[-1] + len(image))
            _check_lengths(path, arrays, len(offsets) - 1)
            body.seek(0)
            with _member(archive, IMAGES, ZIP_STORED) as member:  # as they are, so that they can be mapped
                _write_header(member, offsets[-1])
                copyfileobj(body, member, 2**20)
            for name, array in {OFFSETS: np.array(offsets, np.int64), **arrays}.items():
                with _member(archive, name, ZIP_DEFLATED) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)

    replace_file(path, write)
    return Packed(len(offsets) - 1, path.stat().st_size)


def pack_images(
    images: Sequence[Path] | PackedImages,
    out: str | Path,
    columns: Mapping[str, Any],
    *,
    size: int | None = None,
    quality: int | None = None,
    kind: str = "webp",
) -> Packed:
    """Pack image files, or some of another pack: as they are, or smaller.

    Every image is decoded once, so that a broken one is found now, under its own name.

    Args:
        images: paths, or the images of a pack.
        out: the file to write.
        columns: see :func:`write_pack`.
        size: resize the short side to this, cut the centre out, and encode that.
        quality: encode anew at this quality, 1 to 100; with ``size``, 90 by default.
        kind: ``webp`` or ``jpeg``, where images are encoded anew.

    Raises:
        BadInput: an image cannot be read, or an option not be used.
    """
    if kind not in KINDS:
        raise BadInput("the kind of image is unknown", expected=" or ".join(KINDS), got=kind)
    if quality is not None and not 1 <= quality <= 100:
        raise BadInput("the quality is out of range", expected="1 to 100", got=quality)
    source = images if isinstance(images, PackedImages) else ImageFiles(images, size)

    def packed(i: int) -> bytes:
        data, where = source.encoded(i), images.where(i) if isinstance(images, PackedImages) else images[i]
        pixels = decode_image(data, where, 3, size)
        return data if size is None and quality is None else _encode(pixels, quality or QUALITY, kind)

    with closing(_in_order(packed, len(source))) as files:
        return write_pack(out, files, columns)


def _array(name: str, values: Any) -> Any:
    import numpy as np

    if name in (IMAGES, OFFSETS) or not name.replace("-", "_").isidentifier():
        raise BadInput(f"a column cannot be called {name!r}", expected="a word other than img and off")
    array = np.asarray(values)
    if array.dtype.kind not in "biufU" or array.ndim == 0:
        raise BadInput(f"the column {name!r} cannot be packed", expected="numbers or text", got=f"{array.dtype} values")
    return array


def _check_lengths(path: Path, arrays: Mapping[str, Any], n: int) -> None:
    if n == 0:
        raise BadInput("there are no images to pack", where=path)
    for name, array in arrays.items():
        if name not in NAMES and len(array) != n:
            raise BadInput(f"the column {name!r} is not as long as there are images", expected=n, got=len(array))


def _encode(pixels: Tensor, quality: int, kind: str) -> bytes:
    from PIL import Image

    file = BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).save(file, kind, quality=quality)
    return file.getvalue()


def _in_order(packed: Callable[[int], bytes], n: int) -> Generator[bytes, None, None]:
    """Yield what the threads make, in order; a few images are held at a time."""
    tell, threads = teller("pack", n), min(8, cpu_count() or 1)
    with closing(ahead(packed, range(n), threads, 8 * threads)) as files:
        for i, file in enumerate(files, start=1):
            yield file
            tell(i)


def _member(archive: ZipFile, name: str, compression: int) -> IO[bytes]:
    info = ZipInfo(f"{name}.npy")  # of 1980, so that the same images make the same file
    info.compress_type = compression
    return archive.open(info, "w", force_zip64=True)


def _write_header(member: IO[bytes], n: int) -> None:
    """Say that ``n`` bytes follow."""
    from numpy.lib import format as npy

    npy.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": (n,)})
