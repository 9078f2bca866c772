"""``spurless data pack``: own images in one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spurless.cli.console import progress_bar
from spurless.cli.flags import (
    OUTPUT,
    CsvAttribute,
    CsvFile,
    CsvLabel,
    CsvRoot,
    CsvSplit,
    Quiet,
    Seed,
    SkipBad,
)
from spurless.cli.sources import Columns, columns_named
from spurless.core.errors import BadInput
from spurless.core.progress import listening

if TYPE_CHECKING:
    from spurless.data.packing import Packed


def pack(
    source: Annotated[str, typer.Argument(help="Class folders, or a CSV of image files.", metavar="SOURCE")],
    out: Annotated[Path, typer.Argument(help="File to write.", metavar="OUT.npz")],
    size: Annotated[
        int | None,
        typer.Option(
            help="Bring images to this many pixels: the short side is resized, the centre cut out.",
            min=1,
            show_default="as they are",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    quality: Annotated[
        int | None,
        typer.Option(
            help="Encode images anew, as WebP of this quality, 1 to 100.",
            min=1,
            max=100,
            show_default="as they are; 90 with --size",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that is there.", metavar="", rich_help_panel=OUTPUT)
    ] = False,
    label: CsvLabel = None,
    attribute: CsvAttribute = None,
    split: CsvSplit = None,
    file: CsvFile = None,
    root: CsvRoot = None,
    skip_bad: SkipBad = False,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Pack the images of SOURCE and their labels, attributes and splits into one file.

    A pack is opened like any other data: --data OUT.npz. It travels as one
    file, and a hundred thousand small ones need not be looked for. Splits that
    SOURCE does not have are cut now, by --seed, and stay as they are. Every
    image is decoded once, so that a broken one is found now, or left out with
    --skip-bad.

    Examples:
      spurless data pack animals/ animals.npz --size 96
      spurless data pack meta.csv birds.npz --label y --attribute place
    """
    _check_place(out, force)
    with progress_bar(quiet) as bar, listening(bar):
        columns = Columns(label, attribute, split, None, file, root, skip_bad=skip_bad)
        packed = _packed(Path(source), out, columns, size, quality, seed)
    print(f"{out}: {packed.images:,} images, {packed.bytes:,} bytes")
    print(f"Look at it: spurless data show {out}\nTrain on it: spurless fit erm --data {out}")


def _check_place(out: Path, force: bool) -> None:
    if out.suffix.lower() != ".npz":
        raise BadInput("a pack is called .npz", got=out)
    if out.exists() and not force:
        raise BadInput("the file is there already", where=out, do="Choose another name, or replace it with --force.")


def _packed(path: Path, out: Path, columns: Columns, size: int | None, quality: int | None, seed: int) -> Packed:
    from spurless.data.pack import pack_folder, pack_table

    if path.is_dir():
        if columns != Columns(skip_bad=columns.skip_bad):
            raise BadInput("--label, --attribute, --split, --file and --root are for CSV files", got=path)
        return pack_folder(path, out, size, quality, seed, skip_bad=columns.skip_bad)
    if not path.exists():
        raise BadInput("no such file or folder", where=path)
    if path.suffix.lower() not in (".csv", ".tsv"):
        raise BadInput("only class folders and CSV files of images can be packed", got=path)
    if columns.label is None:
        raise BadInput("a CSV needs --label, the column that holds the class", where=path)
    return pack_table(
        path,
        out,
        label=columns.label,
        attribute=columns_named(columns.attribute),
        split=columns.split,
        root=columns.root or path.parent,  # said, so that a table without a column of files is refused as such
        file=columns.file,
        size=size,
        quality=quality,
        seed=seed,
        delimiter="\t" if path.suffix.lower() == ".tsv" else ",",
        skip_bad=columns.skip_bad,
    )
