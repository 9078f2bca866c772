"""Metrics of "Large Learning Rates" of a trained model, in addition to its accuracy.

Barsbey, Prieto, Zafeiriou and Birdal, "Large Learning Rates Simultaneously Achieve Robustness to Spurious Correlations
and Compressibility", 2025, arXiv:2507.17748, sections 3.2 and 3.3; the names are those of its Table 1. All are measured
on the same 1,000 random examples of the test split, with the model in eval mode. The paper states this for activations;
its prunability may be that of the whole test split.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn

from spurless.core.records import Record
from spurless.core.seeds import Seeds
from spurless.data.loader import Loader, sequential_order
from spurless.data.split import Split, Splits
from spurless.fitting.protocol import Fitted
from spurless.methods.erm_loss_ratio import LossRatios
from spurless.metrics.compressibility import activation_sparsity, compressibility, pq_index
from spurless.metrics.selectivity import selectivity
from spurless.metrics.separation import separation
from spurless.models.classifier import Classifier
from spurless.models.features import collect_magnitudes
from spurless.models.pruning.masks import named_weight_layers
from spurless.models.pruning.prunability import Unit, find_skipped_weights, measure_prunability
from spurless.train.evaluate import EVALUATION_BATCH, predict

COMPRESSIBILITY = "activation_compressibility"  # A metric that every measured run has
MAX_EXAMPLES = 1000  # the paper, appendix C
PRUNED_UNITS: dict[str, Unit] = {"prunability": "kernels", "magnitude_prunability": "weights"}
"""The unit that each metric prunes: nodes and kernels (Table 1 and figure 20), or single weights (figure 21)."""


def available_device(record: Record) -> str:
    """Return the type of device of a run, or the CPU if this machine does not have it."""
    return "cuda" if record.hardware.get("device") == "cuda" and torch.cuda.is_available() else "cpu"


def measure_run(fitted: Fitted, data: Splits) -> dict[str, float]:
    """Return the metrics of a run, with those of its loss ratios if they were measured; an ``extra`` of claims."""
    record = fitted.record
    metrics = large_lr_metrics(fitted.model, data, record.seed, device=available_device(record))
    ratios = fitted.explanation
    return {**metrics, **(ratios.numbers() if isinstance(ratios, LossRatios) else {})}


def large_lr_metrics(
    model: Classifier, data: Splits, seed: int = 0, *, device: torch.device | str = "cpu", train_mode: bool = False
) -> dict[str, float]:
    """Return the metrics of a model that are defined for it, on a sample of the test split.

    In ``train_mode`` batch norms use the statistics of each batch for representations, as in the authors' code.

    Example:
        >>> from spurless.data import load
        >>> from spurless.models import build
        >>> data = load("parity", n_train=10, n_val=10, n_test=50)
        >>> metrics = large_lr_metrics(build("mlp", data, width=20), data)
        >>> [name for name in metrics if "prun" not in name]  # doctest: +NORMALIZE_WHITESPACE
        ['activation_compressibility', 'activation_sparsity', 'pq_index', 'class_separation', 'csi', 'bias_separation',
         'bsi']
    """
    split = sample_for_metrics(data.test, seed).to(device)
    model = deepcopy(model).to(device)
    loader = Loader(split, sequential_order(len(split)), EVALUATION_BATCH, torch.device(device))
    z = collect_magnitudes(model, loader.batches(), device, train_mode=train_mode)
    metrics = {**_representation_metrics(z, split), **_pruning_metrics(model, split)}
    return {name: value for name, value in metrics.items() if value == value}


def sample_for_metrics(split: Split, seed: int) -> Split:
    """Return a random sample of 1,000 examples, or the whole split if it has fewer."""
    order = torch.randperm(len(split), generator=Seeds(seed).generator("study"))
    return split.select(order[:MAX_EXAMPLES])


def _representation_metrics(z: Tensor, split: Split) -> dict[str, float]:
    metrics = {
        COMPRESSIBILITY: compressibility(z),
        "activation_sparsity": activation_sparsity(z),
        "pq_index": pq_index(z),
    }
    for kind, labels in _label_kinds(split):
        if bool(z.any()) and len(torch.unique(labels)) > 1:
            metrics[f"{kind}_separation"] = separation(z, labels).r2
            metrics["csi" if kind == "class" else "bsi"] = selectivity(z, labels).mean
    return metrics


def _label_kinds(split: Split) -> Iterator[tuple[str, Tensor]]:
    """Yield the classes, and the attributes if every example has exactly one known combination."""
    yield "class", split.y.cpu()
    if split.has_attributes and not (split.groups.overlap or split.groups.mixed):
        yield "bias", split.groups.decode(split.g)[1].cpu()  # crossed columns as one


def _pruning_metrics(model: nn.Module, split: Split) -> dict[str, float]:
    """Return the readings of prunability: mean ratio, sum, ratio above chance, and accuracy; and ratios per kappa.

    The result is empty for a model that has nothing to prune.
    """
    if find_skipped_weights(model) >= {name for name, _ in named_weight_layers(model)}:
        return {}
    y, metrics = split.y.cpu(), dict[str, float]()

    def accuracy(pruned: nn.Module) -> float:
        return float((predict(pruned, split, split.y.device) == y).double().mean())

    for name, unit in PRUNED_UNITS.items():
        curve = measure_prunability(model, accuracy, unit=unit)
        metrics |= {name: curve.mean, f"{name}_sum": curve.total}
        metrics[f"{name}_above_chance"] = curve.above_chance(len(split.groups.labels))
        metrics[name.replace("prunability", "pruned_accuracy")] = curve.mean_accuracy
        metrics |= {f"{name}_at_{k:g}": ratio for k, ratio in zip(curve.kappas, curve.retained, strict=True) if k}
    return metrics
