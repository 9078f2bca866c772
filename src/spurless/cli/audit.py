"""``spurless audit``: does a trained model cheat, on what, and on which examples? One page says so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spurless.cli.console import check_places, progress_bar
from spurless.cli.data_facts import PARTS
from spurless.cli.flags import (
    OUTPUT,
    CsvAttribute,
    CsvFeatures,
    CsvFile,
    CsvLabel,
    CsvRoot,
    CsvSplit,
    CsvText,
    Data,
    DataOption,
    Device,
    Json,
    ModelOfWeights,
    ModelOption,
    Quiet,
    SeedOfWeights,
    SkipBad,
    Workers,
)
from spurless.cli.sources import Columns, open_data
from spurless.cli.weights import check_weights, open_model, seed_of, with_tokenizer
from spurless.core.errors import BadInput, UnknownName
from spurless.core.options import pairs

if TYPE_CHECKING:
    from torch import Tensor

    from spurless.core.findings import Audit

QUESTIONS = "Questions"


def audit(
    weights: Annotated[
        Path,
        typer.Argument(
            help="Weights of a trained model as safetensors; or the folder of a Hugging Face text classifier.",
            metavar="WEIGHTS",
        ),
    ],
    data: Data = "patched-digits",
    data_option: DataOption = [],
    label: CsvLabel = None,
    attribute: CsvAttribute = None,
    split: CsvSplit = None,
    features: CsvFeatures = None,
    file: CsvFile = None,
    text: CsvText = None,
    root: CsvRoot = None,
    skip_bad: SkipBad = False,
    model: ModelOfWeights = None,
    model_option: ModelOption = [],
    part: Annotated[
        str,
        typer.Option(
            help="Held-out split to ask with: val or test; train shows what was learnt by heart.",
            metavar="SPLIT",
            rich_help_panel=QUESTIONS,
        ),
    ] = "val",
    only: Annotated[
        list[str],
        typer.Option(
            help="Ask this question alone (see: spurless ls audits); repeat for more.",
            metavar="NAME",
            rich_help_panel=QUESTIONS,
        ),
    ] = [],
    masks: Annotated[
        Path | None,
        typer.Option(
            help="NumPy file of the foreground of every image of the split, (N, height, width): swaps backgrounds.",
            metavar="NPY",
            rich_help_panel=QUESTIONS,
        ),
    ] = None,
    permutations: Annotated[
        int, typer.Option(help="How often chance is asked.", min=1, rich_help_panel=QUESTIONS)
    ] = 499,
    level: Annotated[
        float,
        typer.Option(help="How often a question may flag a model that leans on nothing.", rich_help_panel=QUESTIONS),
    ] = 0.05,
    seed: SeedOfWeights = None,
    device: Device = "auto",
    workers: Workers = 0,
    out: Annotated[Path, typer.Option(help="Page to write.", metavar="HTML", rich_help_panel=OUTPUT)] = Path(
        "audit.html"
    ),
    export: Annotated[
        Path | None,
        typer.Option(help="Write the suspected examples to this table too.", metavar="CSV", rich_help_panel=OUTPUT),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Ask the model in WEIGHTS what it leans on, with examples it was not trained on.

    No attributes are needed; where the data have some, they are asked about too.
    Every question is compared with chance by permutation. The page says first
    whether the model leans on a shortcut, then on what, and shows the examples
    that seem to break it. The same is written for machines beside it, as JSON.

    Examples:
      spurless audit runs/erm-patched-digits-seed0-1a2b3c4d.safetensors
      spurless audit mine.safetensors --data birds/ --model torchvision:resnet18
      spurless audit mine.safetensors --data meta.csv --label y --export suspects.csv
      spurless audit mine.safetensors --only image-properties --only hidden-regions
    """
    from spurless.auditing import audit as ask
    from spurless.reporting import audit_json, write_audit, write_json, write_suspects
    from spurless.train.run import Engine

    if part not in PARTS:
        raise UnknownName("split", part, PARTS)
    if not 0 < level < 1:
        raise BadInput("--level is a share", expected="above 0 and below 1, such as 0.05", got=level)
    check_weights(weights)
    seed = seed_of(weights, seed)
    places = [out, *([export] if export is not None else [])]
    check_places(weights, places, "--out, --export", inputs=[data, masks])
    beside = out.with_suffix(".json")
    columns = Columns(label, attribute, split, features, file, root, text, skip_bad)
    splits = open_data(
        data, with_tokenizer(pairs(data_option, "--data-option"), columns, model, weights), columns, seed, quiet or json
    )
    asked = open_model(weights, model, pairs(model_option, "--model-option"), splits, seed)
    with progress_bar(quiet or json) as progress:
        found = ask(
            asked,
            splits,
            part=part,
            only=only,
            masks=None if masks is None else _masks(masks),
            seed=seed,
            permutations=permutations,
            level=level,
            engine=Engine(device, workers=workers),
            progress=progress,
        )
    page = write_audit(out, found)
    write_json(beside, found)
    if export is not None:
        write_suspects(export, found)
    if json:
        print(audit_json(found), end="")
        return
    _show(found)
    more = f", the suspected examples in {export}" if export is not None else ""
    print(f"page in {page.resolve()}, the same for machines in {beside}{more}")


def _show(found: Audit) -> None:
    """Print the verdict, and a line per finding."""
    from spurless.reporting import opinion

    said = opinion(found)
    print(said.headline)
    for line in filter(None, (said.what, said.sure, said.then)):
        print(f"  {line}")
    for finding in found.findings:
        mark = "flagged" if finding.flagged else "       "
        chance = "" if finding.p is None else f", p = {finding.p:.3g}"
        print(f"  {mark}  {finding.audit}: {finding.title} (severity {finding.severity:.2f}{chance})")


def _masks(path: Path) -> Tensor:
    """Read masks; a pickle is refused."""
    import numpy as np
    import torch

    try:
        return torch.from_numpy(np.load(path, allow_pickle=False))
    except FileNotFoundError:
        raise BadInput("no such file of masks", where=path) from None
    except (ValueError, TypeError, OSError, EOFError):  # what NumPy says of it is about pickles
        expected = "one array of (N, height, width), as np.save writes it"
        raise BadInput("the masks cannot be read", where=path, expected=expected) from None
