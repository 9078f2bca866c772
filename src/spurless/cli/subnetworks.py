"""Subnetworks at the door: from two files of weights, and a record where there is one, to what the page shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from spurless.core.errors import BadInput
from spurless.core.records import Record, read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spurless.core.figures import Section
    from spurless.data.grouped import Grouped
    from spurless.models.classifier import Classifier
    from spurless.train.run import Run


def subnetwork_of(
    weights: Path, first: Classifier, second: Classifier, split: Grouped, records: Path | None, run: Run
) -> list[Section]:
    """Show what was pruned between two models; how the mask was learned is in the record, where one is found.

    Raises:
        BadInput: nothing is pruned, the models differ, or the given records have none of these weights.
    """
    from spurless.core.figures import Section
    from spurless.explain.subnetworks import subnetwork_sections
    from spurless.methods.subnetwork import Look, Subnetwork
    from spurless.models.counting import layer_sparsity
    from spurless.models.masks import sparsity

    layers = layer_sparsity(second)
    record = record_of(weights, layers, records)
    history = () if record is None else record.history
    looks = [
        Look(row["step"], row["sparsity"], row.get("mined"), row.get("others"))
        for row in history
        if row.get("stage") == "prune" and {"step", "sparsity"} <= row.keys()
    ]
    found = Subnetwork(None, sparsity(second), layers, tuple(looks))
    seed = run.seeds.seed
    sections = subnetwork_sections(first, second, split, found, seed=seed, device=run.device, workers=run.workers)
    said = [str(row["found"]) for row in history if row.get("stage") == "mined" and "found" in row]
    return [*sections, Section("Mined examples", "\n".join(said))] if said else sections


def record_of(weights: Path, layers: Mapping[str, float], records: Path | None) -> Record | None:
    """Return the record of these weights: by the zeros of every layer, and of several by the key in the file's name.

    Args:
        weights: the file.
        layers: the share of zeros in every layer of it.
        records: where to look; by default beside the weights, where nothing need be found.

    Raises:
        BadInput: the given records have none of these weights.
    """
    beside = weights.with_name("records.jsonl")
    if records is None and not beside.exists():
        return None
    alike = [record for record in read(records or beside) if _is_of(record, layers)]
    if not alike and records is not None:
        raise BadInput(
            f"no record is of {weights.name}",
            where=records,
            expected="one of dcwp or mrm with the same zeros in every layer",
            do="Leave --records out, or pass the records.jsonl that spurless fit wrote with these weights.",
        )
    return max(alike, key=lambda record: bool(record.key) and weights.stem.endswith(record.key[:8]), default=None)


def _is_of(record: Record, layers: Mapping[str, float]) -> bool:
    from spurless.explain.subnetworks import same_layers

    told: list[Any] = [row.get("layers") for row in record.history if row.get("stage") == "subnetwork"]
    return any(isinstance(each, dict) and same_layers(each, layers) for each in told)
