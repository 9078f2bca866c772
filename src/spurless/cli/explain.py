"""``spurless explain``: where given weights look, on one page; with a second file, before and after."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spurless.cli.console import progress_bar
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
    ModelOfWeights,
    ModelOption,
    Quiet,
    SeedOfWeights,
    SkipBad,
    Workers,
)
from spurless.cli.sources import Columns, open_data
from spurless.cli.subnetworks import subnetwork_of
from spurless.cli.weights import check_weights, open_model, seed_of, with_tokenizer
from spurless.core.errors import BadInput, UnknownName
from spurless.core.files import check_apart, check_writable
from spurless.core.options import pairs
from spurless.core.progress import listening

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from spurless.core.figures import Picture, Section
    from spurless.data.grouped import Grouped, Splits
    from spurless.models.classifier import Classifier
    from spurless.train.run import Run

ROWS = 6
"""of one picture, so that its caption is in sight"""
MAPS = "Heat maps"


@dataclass(frozen=True)
class Looking:
    """How heat maps are drawn."""

    how: str
    layer: str | None


def explain(
    weights: Annotated[
        Path,
        typer.Argument(
            help="Weights to explain as safetensors; or the folder of a Hugging Face text classifier.",
            metavar="WEIGHTS",
        ),
    ],
    before: Annotated[
        Path | None,
        typer.Option(
            help="Weights before the repair: show both, and what MaskTune would hide.",
            metavar="WEIGHTS",
            rich_help_panel=MAPS,
        ),
    ] = None,
    how: Annotated[
        str,
        typer.Option(
            help="Explainer, such as xgradcam or integrated-gradients; an unknown one lists them all.",
            metavar="NAME",
            rich_help_panel=MAPS,
        ),
    ] = "auto",
    layer: Annotated[
        str | None,
        typer.Option(
            help="Where xgradcam and gradcam look.",
            metavar="NAME",
            show_default="the last map of the image",
            rich_help_panel=MAPS,
        ),
    ] = None,
    neurons: Annotated[
        bool,
        typer.Option(
            "--neurons",
            help="Show which features tell mistakes from hits, label by label, and what activates them (NeuronTune).",
            metavar="",
            rich_help_panel=MAPS,
        ),
    ] = False,
    subnetwork: Annotated[
        bool,
        typer.Option(
            "--subnetwork",
            help="Show what was pruned since --before: representations, accuracy, layers (DCWP, MRM).",
            metavar="",
            rich_help_panel=MAPS,
        ),
    ] = False,
    records: Annotated[
        Path | None,
        typer.Option(
            help="Records that tell how the mask was learned, for --subnetwork.",
            metavar="FILE",
            show_default="records.jsonl beside WEIGHTS",
            rich_help_panel=MAPS,
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="Examples to show, at most.", min=1, rich_help_panel=OUTPUT)] = 12,
    part: Annotated[
        str, typer.Option(help="Split to show: train, val or test.", metavar="SPLIT", rich_help_panel=OUTPUT)
    ] = "test",
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
    seed: SeedOfWeights = None,
    device: Device = "auto",
    workers: Workers = 0,
    out: Annotated[Path, typer.Option(help="Page to write.", metavar="FILE", rich_help_panel=OUTPUT)] = Path(
        "maps.html"
    ),
    quiet: Quiet = False,
) -> None:
    """Draw where WEIGHTS look in some examples of --data, and print the path of the page.

    The page is one file that works without a network. With --before there are
    four columns: the image, where the first model looked, what MaskTune would
    hide of that, and where the second one looks; examples whose prediction
    changed come first.

    Examples:
      spurless explain runs/erm-patched-digits-seed0-1a2b3c4d.safetensors
      spurless explain tuned.safetensors --before erm.safetensors --count 24
      spurless explain mine.safetensors --data birds/ --how gradcam --layer layer4
      spurless explain mine.safetensors --data birds/ --neurons --part val
      spurless explain dcwp.safetensors --before erm.safetensors --subnetwork
    """
    from spurless.reporting import write_sections
    from spurless.train.config import TrainConfig
    from spurless.train.run import Engine, start

    _check_words(how, part)
    _check_subnetwork(subnetwork, before, records)
    check_weights(weights)
    seed = seed_of(weights, seed)
    check_apart([out], [weights, before, records, data])
    check_writable(out.parent)
    columns = Columns(label, attribute, split, features, file, root, text, skip_bad)
    splits = open_data(
        data, with_tokenizer(pairs(data_option, "--data-option"), columns, model, weights), columns, seed, quiet
    )
    shown: Grouped = getattr(splits, part)
    drawn = _is_drawn(shown, needed=not (neurons or subnetwork))
    options = pairs(model_option, "--model-option")
    second = open_model(weights, model, options, splits, seed)
    first = second if before is None else open_model(before, model, options, splits, seed)
    run = start(Engine(device, workers=workers), seed, TrainConfig())
    with progress_bar(quiet) as bar, listening(bar):
        after = None if before is None else second
        sections = [_heat(first, after, splits, part, count, Looking(how, layer), run)] if drawn else []
        sections += _neurons(first, shown, run) if neurons else []
        sections += subnetwork_of(weights, first, second, shown, records, run) if subnetwork else []
    title = f"Where {weights.stem} looks" if before is None else f"Where {before.stem} and {weights.stem} look"
    print(write_sections(out, title, sections).resolve())


def _is_drawn(split: Grouped, needed: bool) -> bool:
    """Return whether there are images to draw; refuse data without, where they are needed."""
    from spurless.explain.pictures import check_images

    try:
        check_images(split)
    except BadInput:
        if needed:
            raise
        return False
    return True


def _heat(
    first: Classifier, after: Classifier | None, splits: Splits, part: str, count: int, looking: Looking, run: Run
) -> Section:
    from spurless.core.figures import Section
    from spurless.explain.pictures import chosen

    shown: Grouped = getattr(splits, part)
    index = chosen(first, after, shown, count, run.seeds.seed, device=run.device, workers=run.workers)
    return Section(
        "Heat maps" if after is None else "Before and after",
        _about(splits, part, index, after is not None, looking.how),
        list(_pictures(first, after, shown, index, looking, run)),
    )


def _neurons(model: Classifier, split: Grouped, run: Run) -> list[Section]:
    """Show which features are biased by the mistakes of a model on a split."""
    from spurless.explain.neurons import neuron_sections
    from spurless.metrics.spuriousness import Neurons, biased, spuriousness
    from spurless.models.features import logits_of_features
    from spurless.train.embed import features_of

    features = features_of(model, split, run)
    pred = logits_of_features(model, features).argmax(dim=1)
    scores = spuriousness(features, split.y.cpu(), pred, len(split.groups.labels))
    found = Neurons(scores, biased(scores), split.groups.labels, 1, ())
    return neuron_sections(model.cpu(), split, found, features)


def _check_words(how: str, part: str) -> None:
    from spurless.explain.heat import AUTO, EXPLAINERS

    if part not in PARTS:
        raise UnknownName("split", part, PARTS)
    if how not in (AUTO, *EXPLAINERS):
        raise UnknownName("explainer", how, [AUTO, *EXPLAINERS])


def _check_subnetwork(asked: bool, before: Path | None, records: Path | None) -> None:
    if asked and before is None:
        raise BadInput(
            "--subnetwork shows what was pruned since some weights, and none are given",
            do="Pass --before NAME-start.safetensors too, which spurless fit dcwp saves beside NAME.safetensors.",
        )
    if records is not None and not asked:
        raise BadInput("--records says how a mask was learned, and no subnetwork is asked for", do="Pass --subnetwork.")


def _pictures(
    first: Classifier, after: Classifier | None, split: Grouped, index: Tensor, looking: Looking, run: Run
) -> Iterator[Picture]:
    """Draw a few rows at a time."""
    import torch

    from spurless.explain.pictures import contrast
    from spurless.methods.masktune import MaskTuneConfig, masked

    place: dict[str, Any] = {"device": run.device, "workers": run.workers}
    config = MaskTuneConfig(explainer=looking.how, layer=looking.layer)
    for number, rows in enumerate(torch.split(index, ROWS)):
        if len(rows) == len(split):  # masks of all examples are taken in the order of the split
            rows = rows.sort().values
        hidden = None if after is None else masked(first, split.select(rows), config, run)
        drawn = contrast(first, split, rows, after=after, hidden=hidden, how=looking.how, layer=looking.layer, **place)
        last = number * ROWS + len(rows)
        yield replace(drawn, title=f"{number * ROWS + 1} to {last} of {len(index)}") if len(index) > ROWS else drawn


def _about(splits: Splits, part: str, index: Tensor, two: bool, how: str) -> str:
    """Say what is on the page, and how it was drawn."""
    whole = len(getattr(splits, part))
    auto = "xgradcam, or by gradient-x-input where the model keeps no map of the image"
    text = f"{len(index)} of the {whole:,} {part} examples of {splits.name}, by their numbers. "
    text += f"Heat maps by {auto if how == 'auto' else how}."
    if two:
        text += (
            "\nExamples whose prediction changed come first. Hidden is what MaskTune would hide from the first model."
        )
    return text
