"""Study: every number that the learning-rate study takes of a trained model beside its accuracy.

Barsbey, Prieto, Zafeiriou and Birdal, "Large Learning Rates Simultaneously Achieve Robustness to Spurious Correlations
and Compressibility", 2025, arXiv:2507.17748, sections 3.2 and 3.3; the names are those of its Table 1. All are taken on
the same 1,000 examples of the test split, drawn at random, the model in eval mode. The paper says so of activations;
its prunability may be that of the whole test split.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn

from spurless.bench.fitting import Fitted
from spurless.core.records import Record
from spurless.core.seeds import Seeds
from spurless.data import load
from spurless.data.grouped import Grouped, Splits
from spurless.data.loader import Loader, in_order
from spurless.methods.watched_erm import LossRatios
from spurless.metrics.compressibility import activation_sparsity, compressibility, pq_index
from spurless.metrics.selectivity import selectivity
from spurless.metrics.separation import separation
from spurless.models.classifier import Classifier
from spurless.models.masks import weight_layers
from spurless.models.prunability import Unit, never_pruned, prunability
from spurless.models.representations import representations
from spurless.train.evaluate import EVALUATION_BATCH, predict

EXAMPLES = 1000  # the paper, appendix C
PRUNED: dict[str, Unit] = {"prunability": "kernels", "magnitude_prunability": "weights"}
"""What each number prunes: nodes and kernels (the paper's Table 1 and figure 20), or single weights (figure 21)."""


def data_again(record: Record) -> Splits:
    """Make the data of a run again, by its record."""
    return load(record.data["name"], **record.data["options"])


def device_of(record: Record) -> str:
    """Return the kind of device that a run had, where there is one here too."""
    return "cuda" if record.hardware.get("device") == "cuda" and torch.cuda.is_available() else "cpu"


def study(fitted: Fitted, data: Splits | None = None) -> dict[str, float]:
    """Return the study's numbers of a run, those of its loss ratio among them where it was watched.

    It is a claim's ``extra``.

    Args:
        fitted: the run.
        data: what it was run on; made again by the record where they are not given.
    """
    record = fitted.record
    data = data_again(record) if data is None else data
    found = study_metrics(fitted.model, data, record.seed, device=device_of(record))
    watched = fitted.explanation
    return {**found, **(watched.numbers() if isinstance(watched, LossRatios) else {})}


def study_metrics(
    model: Classifier,
    data: Splits,
    seed: int = 0,
    *,
    device: torch.device | str = "cpu",
    train_mode: bool = False,
) -> dict[str, float]:
    """Return the study's numbers of a model; one that does not exist is left out.

    Args:
        model: it is left as it was, and where it was.
        data: its test split is looked at, attributes too where they are known.
        seed: of the examples that are drawn.
        device: where the arithmetic is done.
        train_mode: whether batch norms use the statistics of each batch where representations are taken, as in the
            code of the study's authors.

    Example:
        >>> from spurless.models import build
        >>> data = load("parity", n_train=10, n_val=10, n_test=50)
        >>> found = study_metrics(build("mlp", data, width=20), data)
        >>> [name for name in found if "prun" not in name]  # doctest: +NORMALIZE_WHITESPACE
        ['activation_compressibility', 'activation_sparsity', 'pq_index', 'class_separation', 'csi', 'bias_separation',
         'bsi']
    """
    split = drawn(data.test, seed).to(device)
    model = deepcopy(model).to(device)
    loader = Loader(split, in_order(len(split)), EVALUATION_BATCH, torch.device(device))
    z = representations(model, loader.batches(), device, train_mode=train_mode)
    found = {**_of_representations(z, split), **_of_pruning(model, split)}
    return {name: value for name, value in found.items() if value == value}


def drawn(split: Grouped, seed: int) -> Grouped:
    """Return the examples that the study looks at: all, or 1,000 at random."""
    order = torch.randperm(len(split), generator=Seeds(seed).generator("study"))
    return split.select(order[:EXAMPLES])


def _of_representations(z: Tensor, split: Grouped) -> dict[str, float]:
    found = {
        "activation_compressibility": compressibility(z),
        "activation_sparsity": activation_sparsity(z),
        "pq_index": pq_index(z),
    }
    for kind, labels in _kinds(split):
        if bool(z.any()) and len(torch.unique(labels)) > 1:
            found[f"{kind}_separation"] = separation(z, labels).r2
            found["csi" if kind == "class" else "bsi"] = selectivity(z, labels).mean
    return found


def _kinds(split: Grouped) -> Iterator[tuple[str, Tensor]]:
    """Yield labels, and attributes where each example has one that is known."""
    yield "class", split.y.cpu()
    if split.has_attributes and not (split.groups.overlap or split.groups.mixed):
        yield "bias", split.groups.decode(split.g)[1].cpu()  # crossed columns as one


def _of_pruning(model: nn.Module, split: Grouped) -> dict[str, float]:
    """Return prunability by its mean, its sum and at every kappa, and the accuracy under it, without dividing.

    Nothing is returned of a model that has nothing to prune.
    """
    if never_pruned(model) >= {name for name, _ in weight_layers(model)}:
        return {}
    y, found = split.y.cpu(), dict[str, float]()

    def accuracy(pruned: nn.Module) -> float:
        return float((predict(pruned, split, split.y.device) == y).double().mean())

    for name, unit in PRUNED.items():
        curve = prunability(model, accuracy, unit=unit)
        kept = sum(curve.accuracies) / len(curve.accuracies)
        found |= {name: curve.mean, f"{name}_sum": curve.total, name.replace("prunability", "pruned_accuracy"): kept}
        found |= {f"{name}_at_{k:g}": share for k, share in zip(curve.kappas, curve.retained, strict=True) if k}
    return found
