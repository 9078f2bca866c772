"""Flags: the words that several commands share, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spurless.core.errors import BadInput

DATA = "Data"
MODEL = "Model"
METHOD = "Method"
OWN_METHOD = (
    "(see: spurless ls methods); or FILE.py:METHOD or package.module:METHOD, code of your own, which is then run"
)
TRAINING = "Training"
MACHINE = "Machine"
ABSTAINING = "Abstaining"
OUTPUT = "Output"

Data = Annotated[
    str,
    typer.Option(
        "--data",
        "--dataset",
        help="Name (see: spurless ls datasets) or path: class folders, CSV, npz, a Hugging Face dataset on disk.",
        rich_help_panel=DATA,
    ),
]
DataArgument = Annotated[
    str,
    typer.Argument(
        help="Name (see: spurless ls datasets) or path: class folders, CSV, npz, a Hugging Face dataset on disk.",
        metavar="DATA",
    ),
]
DataOption = Annotated[
    list[str],
    typer.Option(
        "--data-option",
        "-D",
        help="Option of the dataset, such as conflicting=0.01; repeat for more.",
        metavar="KEY=VALUE",
        rich_help_panel=DATA,
    ),
]
CsvLabel = Annotated[
    str | None, typer.Option(help="Column of the class, in a CSV or a pack.", metavar="COLUMN", rich_help_panel=DATA)
]
CsvAttribute = Annotated[
    str | None,
    typer.Option(help="Column of the attribute; several as A,B.", metavar="COLUMN", rich_help_panel=DATA),
]
CsvSplit = Annotated[
    str | None,
    typer.Option(
        help="Column of the split: train, val, test or 0, 1, 2.",
        metavar="COLUMN",
        show_default="cut at random",
        rich_help_panel=DATA,
    ),
]
CsvFeatures = Annotated[
    str | None,
    typer.Option(
        help="CSV columns of the features, as A,B; for tables of numbers.",
        metavar="COLUMNS",
        show_default="all others",
        rich_help_panel=DATA,
    ),
]
CsvFile = Annotated[
    str | None,
    typer.Option(
        help="CSV column of the image files; for tables of images.",
        metavar="COLUMN",
        show_default="file, path or image",
        rich_help_panel=DATA,
    ),
]
CsvText = Annotated[
    str | None,
    typer.Option(
        help="Column of the text, of a pair as A,B; for texts in a CSV or a Hugging Face dataset.",
        metavar="COLUMNS",
        rich_help_panel=DATA,
    ),
]
CsvRoot = Annotated[
    Path | None,
    typer.Option(
        help="Folder that holds a named dataset's files, or that the CSV's image files start from.",
        metavar="FOLDER",
        show_default="$SPURLESS_DATA, else data; that of the CSV",
        rich_help_panel=DATA,
    ),
]
SkipBad = Annotated[
    bool,
    typer.Option(
        "--skip-bad",
        help="Leave out images that cannot be read, and say which; for own folders and CSVs.",
        metavar="",
        rich_help_panel=DATA,
    ),
]
Model = Annotated[
    str,
    typer.Option(
        help="Model to build (see: spurless ls models), such as torchvision:resnet18 or hf:FOLDER; or FILE.py:FACTORY "
        "or package.module:FACTORY, code of your own, which is then run.",
        rich_help_panel=MODEL,
    ),
]
ModelOption = Annotated[
    list[str],
    typer.Option(
        "--model-option",
        "-O",
        help="Option of the model, such as width=64, or head=NAME of your own; repeat for more.",
        metavar="KEY=VALUE",
        rich_help_panel=MODEL,
    ),
]
ModelOfWeights = Annotated[
    str | None,
    typer.Option(
        help="Model that the weights belong to; FILE.py:FACTORY or package.module:FACTORY for code of your own, which "
        "is then run.",
        show_default="the one the file names",
        rich_help_panel=MODEL,
    ),
]
MethodOption = Annotated[
    list[str],
    typer.Option(
        "--method-option",
        "-M",
        help="Option of the method, such as upweight=20; repeat for more.",
        metavar="KEY=VALUE",
        rich_help_panel=METHOD,
    ),
]
Select = Annotated[
    str, typer.Option(help="Epoch to keep (see: spurless ls criteria), such as val-average.", rich_help_panel=METHOD)
]
Coverage = Annotated[
    str | None,
    typer.Option(
        help="Count the errors also of a model that predicts these shares and abstains from the rest, as 1,0.9,0.8.",
        metavar="SHARES",
        rich_help_panel=ABSTAINING,
    ),
]
Score = Annotated[
    str,
    typer.Option(
        help="How sure the model is of an example: softmax, product, masktune-authors or selector.",
        rich_help_panel=ABSTAINING,
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of data, weights and training; not negative.", min=0)]
SeedOfWeights = Annotated[
    int | None,
    typer.Option(
        help="Seed of data that are drawn or cut by it; that of the weights, where they say it, else 0.", min=0
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.", rich_help_panel=MACHINE)]
Devices = Annotated[int, typer.Option(help="Train one model on so many devices.", min=1, rich_help_panel=MACHINE)]
Strategy = Annotated[str, typer.Option(help="How several devices work together, such as ddp.", rich_help_panel=MACHINE)]
Precision = Annotated[str, typer.Option(help="auto (float32), bf16-mixed or 16-mixed.", rich_help_panel=MACHINE)]
Workers = Annotated[int, typer.Option(help="Processes that read streamed data.", min=0, rich_help_panel=MACHINE)]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="Where runs are done: auto, here, processes, ray or fleet (many small trainings at once on one GPU).",
        rich_help_panel=MACHINE,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="Processes at once.", min=1, show_default="all cores, with --engine processes", rich_help_panel=MACHINE
    ),
]
Together = Annotated[
    int, typer.Option(help="Trainings that share a GPU, with --engine fleet.", min=1, rich_help_panel=MACHINE)
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Running Ray cluster, as HOST:PORT or auto.",
        show_default="one that is started here, for these runs",
        rich_help_panel=MACHINE,
    ),
]
GpusPerRun = Annotated[
    float | None,
    typer.Option(
        help="GPUs that a run takes, with --engine ray.",
        min=0,
        show_default="0.25 if there are any",
        rich_help_panel=MACHINE,
    ),
]
CpusPerRun = Annotated[
    float, typer.Option(help="CPUs that a run takes, with --engine ray.", min=0, rich_help_panel=MACHINE)
]
Threads = Annotated[
    int,
    typer.Option(
        help="CPU threads of a run; another number changes the last digits of its results.",
        min=1,
        rich_help_panel=MACHINE,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        help="TOML file of options, in sections \\[data], \\[model], \\[method], \\[train]; flags win over it.",
        metavar="FILE",
    ),
]
Onnx = Annotated[Path | None, typer.Option(help="Write the model as ONNX too.", metavar="ONNX", rich_help_panel=OUTPUT)]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON for machines instead of a table.", metavar="", rich_help_panel=OUTPUT)
]
Track = Annotated[
    str | None,
    typer.Option(
        help="Follow every run, epoch by epoch, with csv, tensorboard, mlflow or wandb (offline); a folder for it as "
        "csv:FOLDER. Needs pip install 'spurless\\[track]', but for csv.",
        metavar="KIND",
        show_default="nothing; the folder OUT/track",
        rich_help_panel=OUTPUT,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Draw no progress bar.", metavar="", rich_help_panel=OUTPUT)]


def tracker(track: str | None, out: Path) -> str | None:
    """Read --track, and refuse now what cannot be, before data are opened; without a folder it is one of ``out``."""
    if track is None:
        return None
    from spurless.train.tracking import settled

    return settled(track, out / "track")


def shares(text: str | None) -> tuple[float, ...]:
    """Read the shares of --coverage, each once.

    Example:
        >>> shares("1, 0.9,0.8"), shares(None)
        ((1.0, 0.9, 0.8), ())
    """
    if text is None:
        return ()
    return tuple(dict.fromkeys(_share(word.strip()) for word in text.split(",")))


def _share(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        raise BadInput(f"--coverage {word!r} is no share", expected="shares such as 1,0.9,0.8") from None
    if 1 < value <= 100:
        raise BadInput(f"--coverage takes shares, and {word} is a percentage", do=f"Write {value / 100:g}.")
    if not 0 < value <= 1:
        raise BadInput(f"--coverage {word} is no share", expected="above 0 and at most 1")
    return value
