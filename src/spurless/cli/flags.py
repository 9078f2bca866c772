"""Flags: the words that several commands share, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

OWN = "Own data"
MACHINE = "Machine"

Data = Annotated[str, typer.Option(help="Name (spurless ls datasets), or a path: class folders, a CSV, an npz file.")]
DataOption = Annotated[
    list[str], typer.Option("--data-option", "-D", help="Option of the dataset as KEY=VALUE, such as conflicting=0.01.")
]
CsvLabel = Annotated[str | None, typer.Option(help="CSV column that holds the class.", rich_help_panel=OWN)]
CsvAttribute = Annotated[
    str | None, typer.Option(help="CSV column that holds the attribute; several as A,B.", rich_help_panel=OWN)
]
CsvSplit = Annotated[
    str | None, typer.Option(help="CSV column that holds the split (train, val, test or 0, 1, 2).", rich_help_panel=OWN)
]
CsvRoot = Annotated[Path | None, typer.Option(help="Folder that the CSV's file names start from.", rich_help_panel=OWN)]
Model = Annotated[str, typer.Option(help="Model to build (spurless ls models), such as torchvision:resnet18.")]
ModelOption = Annotated[
    list[str], typer.Option("--model-option", "-O", help="Option of the model as KEY=VALUE, such as width=64.")
]
MethodOption = Annotated[
    list[str], typer.Option("--method-option", "-M", help="Option of the method as KEY=VALUE, such as upweight=20.")
]
Select = Annotated[str, typer.Option(help="Which epoch to keep (spurless ls criteria), such as val-average.")]
Seed = Annotated[int, typer.Option(help="Seed of data, weights and training.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.", rich_help_panel=MACHINE)]
Devices = Annotated[int, typer.Option(help="Train one model on so many devices.", min=1, rich_help_panel=MACHINE)]
Strategy = Annotated[str, typer.Option(help="How several devices work together: ddp, fsdp.", rich_help_panel=MACHINE)]
Precision = Annotated[str, typer.Option(help="auto (float32), bf16-mixed or 16-mixed.", rich_help_panel=MACHINE)]
Workers = Annotated[int, typer.Option(help="Processes that read streamed data.", min=0, rich_help_panel=MACHINE)]
ConfigFile = Annotated[
    Path | None, typer.Option(help="TOML file with [data], [model], [method], [train]; flags win over it.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Draw no progress bar.")]
