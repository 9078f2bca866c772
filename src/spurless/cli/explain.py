"""``spurless explain``: heat maps of given weights on one page, before and after a repair if there are two."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spurless.cli import params as cli
from spurless.cli.console import print_text, progress_bar
from spurless.cli.inputs import open_dataset
from spurless.cli.outputs import check_outputs
from spurless.cli.weights import open_model, resolve_seed
from spurless.core.errors import InputError, UnknownNameError
from spurless.core.progress import progress_to
from spurless.core.records import Record, read_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from spurless.core.figures import Picture, Section
    from spurless.data.split import Split, Splits
    from spurless.methods.masktune import MaskTuneConfig
    from spurless.models.classifier import Classifier
    from spurless.train.run import Run

ROWS_PER_PICTURE = 6  # few enough that the caption stays on the screen
PANEL = "Explanation"
RECORDS = "records.jsonl"  # name of the records next to weights


@cli.expand_params
def explain(
    *,
    before: Path | None = cli.param(
        None, PANEL, "Weights before the repair: show both models, and what MaskTune would mask.", metavar="WEIGHTS"
    ),
    how: str = cli.param(
        "auto", PANEL, "Explainer, such as xgradcam or integrated-gradients; an unknown name lists all.", metavar="NAME"
    ),
    layer: str | None = cli.param(
        None, PANEL, "Layer of xgradcam and gradcam.", metavar="NAME", show_default="the last spatial feature map"
    ),
    neurons: bool = cli.flag(
        PANEL, "Show the features that differ most between correct and incorrect predictions (NeuronTune).", "--neurons"
    ),
    subnetwork: bool = cli.flag(
        PANEL, "Show what was pruned since --before: representations, accuracy, layers (DCWP, MRM).", "--subnetwork"
    ),
    attributions: bool = cli.flag(
        PANEL, "Compare attributions with --before, and their fractions on core and shortcut regions.", "--attributions"
    ),
    records: Path | None = cli.param(
        None, PANEL, "Records for --subnetwork.", metavar="FILE", show_default="records.jsonl next to WEIGHTS"
    ),
    count: int = cli.param(12, cli.OUTPUT, "Maximum number of examples.", min=1),
    part: str = cli.param("test", cli.OUTPUT, "Split to show: train, val or test.", metavar="SPLIT"),
    data: cli.DataParams,
    given: cli.WeightsParams,
    device: cli.DeviceParams,
    out: Path = cli.param(Path("maps.html"), cli.OUTPUT, "Page to write.", metavar="FILE"),
    quiet: cli.Quiet = False,
) -> None:
    """Write a page with heat maps of WEIGHTS on examples of --data, and print its path.

    The page is one self-contained file. With --before it has four columns: the
    image, the heat map of the first model, what MaskTune would mask of it, and the
    heat map of the second model; examples whose prediction changed come first.

    Examples:
      spurless explain runs/erm-patched-digits-seed0-1a2b3c4d.safetensors
      spurless explain tuned.safetensors --before erm.safetensors --count 24
      spurless explain mine.safetensors --data birds/ --how gradcam --layer layer4
      spurless explain mine.safetensors --data birds/ --neurons --part val
      spurless explain dcwp.safetensors --before erm.safetensors --subnetwork
      spurless explain high.safetensors --before low.safetensors --attributions
    """
    from spurless.methods.masktune import MaskTuneConfig
    from spurless.reporting import write_sections
    from spurless.train.config import TrainConfig
    from spurless.train.run import limit_threads, make_run

    cli.check_split_name(part)
    _check_flags(how, before, records, subnetwork, attributions)
    weights = given.weights
    seed = resolve_seed(weights, given.seed)
    inputs = [weights, before, records or weights.with_name(RECORDS), *data.inputs]
    check_outputs([out], "--out", inputs=inputs)
    splits = open_dataset(data, seed, given.model, weights, quiet)
    split: Split = getattr(splits, part)
    has_maps = _has_images(split, needed=not (neurons or subnetwork or attributions))
    second = open_model(weights, given.model, given.options, splits, seed)
    first = second if before is None else open_model(before, given.model, given.options, splits, seed)
    run = make_run(device.compute(), seed, TrainConfig())
    with limit_threads(run.threads), progress_bar(quiet) as bar, progress_to(bar):
        after = None if before is None else second
        config = MaskTuneConfig(explainer=how, layer=layer)
        sections = [_heat_map_section(first, after, splits, part, count, config, run)] if has_maps else []
        if attributions and before is not None:
            sections.append(
                _attribution_section({before.stem: first, weights.stem: second}, splits, part, count, how, run)
            )
        sections += _neuron_sections(first, split, run) if neurons else []
        sections += subnetwork_sections(weights, first, second, split, records, run) if subnetwork else []
    title = f"Heat maps of {weights.stem}" if before is None else f"Heat maps of {before.stem} and {weights.stem}"
    print_text(write_sections(out, title, sections).resolve())


def _has_images(split: Split, needed: bool) -> bool:
    """Return whether the inputs are images; raise if they are needed and are not."""
    from spurless.explain.overlays import check_images

    try:
        check_images(split)
    except InputError:
        if needed:
            raise
        return False
    return True


def _heat_map_section(
    first: Classifier, after: Classifier | None, splits: Splits, part: str, count: int, config: MaskTuneConfig, run: Run
) -> Section:
    from spurless.core.figures import Section
    from spurless.explain.overlays import choose_examples

    split: Split = getattr(splits, part)
    index = choose_examples(first, after, split, count, run.seeds.seed, device=run.device, workers=run.workers)
    auto = "xgradcam, or gradient-x-input if the model has no spatial feature map"
    caption = f"{len(index)} of the {len(split):,} {part} examples of {splits.name}, by number. "
    caption += f"Heat maps by {auto if config.explainer == 'auto' else config.explainer}."
    if after is not None:
        caption += "\nExamples whose prediction changed come first. "
        caption += "Hidden: what MaskTune would mask for the first model."
    title = "Heat maps" if after is None else "Before and after"
    return Section(title, caption, list(_pictures(first, after, split, index, config, run)))


def _attribution_section(
    models: dict[str, Classifier], splits: Splits, part: str, count: int, how: str, run: Run
) -> Section:
    """Compare attributions; explainers that need a layer are replaced by integrated gradients, as in the study."""
    from spurless.explain.attribution import ATTRIBUTIONS
    from spurless.explain.figures.compare_models import build_attribution_section

    return build_attribution_section(
        models,
        splits,
        part=part,
        count=min(count, ROWS_PER_PICTURE),
        how=how if how in ATTRIBUTIONS else "integrated-gradients",
        seed=run.seeds.seed,
        device=run.device,
        workers=run.workers,
    )


def _neuron_sections(model: Classifier, split: Split, run: Run) -> list[Section]:
    """Show which features are biased, by the predictions of a model on a split."""
    from spurless.explain.figures.neurons import build_neuron_sections
    from spurless.metrics.spuriousness import Neurons, biased_features, spuriousness
    from spurless.models.features import compute_logits
    from spurless.train.embed import compute_features

    features = compute_features(model, split, run)
    pred = compute_logits(model, features).argmax(dim=1)
    scores = spuriousness(features, split.y.cpu(), pred, len(split.groups.labels))
    neurons = Neurons(scores, biased_features(scores), split.groups.labels, 1, ())
    return build_neuron_sections(model.cpu(), split, neurons, features)


def _check_flags(how: str, before: Path | None, records: Path | None, subnetwork: bool, attributions: bool) -> None:
    from spurless.explain.maps import AUTO, EXPLAINERS

    if how not in (AUTO, *EXPLAINERS):
        raise UnknownNameError("explainer", how, [AUTO, *EXPLAINERS])
    if subnetwork and before is None:
        hint = "Pass --before NAME-start.safetensors, which spurless fit dcwp saves next to NAME.safetensors."
        raise InputError("--subnetwork needs --before, the weights before pruning", hint=hint)
    if records is not None and not subnetwork:
        raise InputError("--records needs --subnetwork", hint="Pass --subnetwork.")
    if attributions and before is None:
        raise InputError("--attributions needs --before", hint="Pass --before WEIGHTS too.")


def _pictures(
    first: Classifier, after: Classifier | None, split: Split, index: Tensor, config: MaskTuneConfig, run: Run
) -> Iterator[Picture]:
    """Draw a few rows per picture."""
    import torch

    from spurless.explain.overlays import compare_heat_maps
    from spurless.methods.masktune import compute_masks

    compute: dict[str, Any] = {"device": run.device, "workers": run.workers}
    for number, rows in enumerate(torch.split(index, ROWS_PER_PICTURE)):
        if len(rows) == len(split):  # masks of all examples are computed in the order of the split
            rows = rows.sort().values
        hidden = None if after is None else compute_masks(first, split.select(rows), config, run)
        picture = compare_heat_maps(
            first, split, rows, after=after, hidden=hidden, how=config.explainer, layer=config.layer, **compute
        )
        start = number * ROWS_PER_PICTURE
        title = f"{start + 1} to {start + len(rows)} of {len(index)}"
        yield replace(picture, title=title) if len(index) > ROWS_PER_PICTURE else picture


def subnetwork_sections(
    weights: Path, first: Classifier, second: Classifier, split: Split, records: Path | None, run: Run
) -> list[Section]:
    """Show what was pruned between two models, and from the record, if there is one, how the mask was learned."""
    from spurless.core.figures import Section
    from spurless.explain.figures.pruning import build_subnetwork_sections
    from spurless.methods._learn_mask import MaskSnapshot, Subnetwork
    from spurless.models.pruning.masks import sparsity
    from spurless.models.pruning.size import layer_sparsity

    layers = layer_sparsity(second)
    record = find_weights_record(weights, layers, records)
    history = () if record is None else record.history
    snapshots = [
        MaskSnapshot(row["step"], row["sparsity"], row.get("mined"), row.get("others"))
        for row in history
        if row.get("stage") == "prune" and {"step", "sparsity"} <= row.keys()
    ]
    pruned = Subnetwork(None, sparsity(second), layers, tuple(snapshots))
    seed = run.seeds.seed
    sections = build_subnetwork_sections(
        first, second, split, pruned, seed=seed, device=run.device, workers=run.workers
    )
    mined = [str(row["found"]) for row in history if row.get("stage") == "mined" and "found" in row]
    return [*sections, Section("Mined examples", "\n".join(mined))] if mined else sections


def find_weights_record(weights: Path, layers: Mapping[str, float], records: Path | None) -> Record | None:
    """Return the record whose layers have the same zeros; of several, the one whose key is in the file name.

    Args:
        weights: file of weights.
        layers: fraction of zeros of every layer.
        records: file to search; by default the one next to the weights, if it exists.

    Raises:
        InputError: the given records do not contain these weights.
    """
    default = weights.with_name(RECORDS)
    if records is None and not default.exists():
        return None
    matching = [record for record in read_records(records or default) if _has_layers(record, layers)]
    if not matching and records is not None:
        expected = "a record of dcwp or mrm with the same zeros in every layer"
        hint = "Leave --records out, or pass the records.jsonl that spurless fit wrote with these weights."
        raise InputError(f"no record belongs to {weights.name}", where=records, expected=expected, hint=hint)
    return max(matching, key=lambda record: bool(record.key) and weights.stem.endswith(record.key[:8]), default=None)


def _has_layers(record: Record, layers: Mapping[str, float]) -> bool:
    from spurless.explain.figures.pruning import have_same_sparsity

    recorded: list[Any] = [row.get("layers") for row in record.history if row.get("stage") == "subnetwork"]
    return any(isinstance(row, dict) and have_same_sparsity(row, layers) for row in recorded)
