"""Study: every number that the learning-rate study takes of a trained model beside its accuracy.

Barsbey, Prieto, Zafeiriou and Birdal, "Large Learning Rates Simultaneously Achieve Robustness to Spurious Correlations
and Compressibility", 2025, arXiv:2507.17748, sections 3.2 and 3.3; the names are those of its Table 1. All are taken on
the same 1,000 examples of the test split, drawn at random, the model in eval mode.

At 28 x 28 pixels 6.9 of the 11.2 million weights of a ResNet-18 only ever meet padding. They never train, and would
take part in every ranking of weights by size. Prunability here counts weights that can act: kernels are cut down to
what meets the image, which changes no logit.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

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
from spurless.models.classifier import Classifier, Input, evaluating
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
    found = {**_of_representations(z, split), **_of_pruning(acting(model, split.example()), split)}
    return {name: value for name, value in found.items() if value == value}


def drawn(split: Grouped, seed: int) -> Grouped:
    """Return the examples that the study looks at: all, or 1,000 at random."""
    order = torch.randperm(len(split), generator=Seeds(seed).generator("study"))
    return split.select(order[:EXAMPLES])


def acting(model: nn.Module, x: Input) -> nn.Module:
    """Return a copy of a model without the weights that only ever meet padding; its logits are the same.

    Convolutions in two dimensions over zero padding are cut down, to the smallest box that holds what can act.

    Args:
        model: any module.
        x: a few examples; their shape decides.

    Example:
        >>> conv = nn.Conv2d(1, 1, 3, padding=1, bias=False)  # on a single pixel the one in the middle acts
        >>> [tuple(p.shape) for p in acting(nn.Sequential(conv), torch.zeros(1, 1, 1, 1)).parameters()]
        [(1, 1, 1, 1)]
    """
    model = deepcopy(model)
    with evaluating(model), torch.no_grad():
        smaller = {layer: cut for layer, sizes in _seen(model, x).items() if (cut := _cut(layer, sizes)) is not None}
    for name, part in list(model.named_modules(remove_duplicate=False)):
        if isinstance(part, nn.Conv2d) and part in smaller:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, smaller[part])
    return model


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


def _seen(model: nn.Module, x: Input) -> dict[nn.Conv2d, set[tuple[int, int]]]:
    """Run the model once and return the heights and widths that each convolution over zero padding is given."""
    sizes: dict[nn.Conv2d, set[tuple[int, int]]] = {}

    def look(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        height, width = given[0].shape[-2:]
        sizes.setdefault(cast(nn.Conv2d, layer), set()).add((int(height), int(width)))

    layers = [part for part in model.modules() if isinstance(part, nn.Conv2d) and part.padding_mode == "zeros"]
    handles = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        model(x)
    finally:
        for handle in handles:
            handle.remove()
    return sizes


def _cut(layer: nn.Conv2d, sizes: set[tuple[int, int]]) -> nn.Module | None:
    """Return the layer with a smaller kernel and as much less padding; None where all of it acts."""
    left, right, top, bottom = layer._reversed_padding_repeated_twice
    rows, columns = (
        set().union(*(_reached(layer, axis, size[axis], *pads) for size in sizes))
        for axis, pads in ((0, (top, bottom)), (1, (left, right)))
    )
    if not rows or not columns or (len(rows), len(columns)) == tuple(layer.kernel_size):
        return None
    (tall, wide), (up, before) = layer.dilation, (min(rows), min(columns))
    down, after = layer.kernel_size[0] - 1 - max(rows), layer.kernel_size[1] - 1 - max(columns)
    weight = layer.weight[:, :, up : max(rows) + 1, before : max(columns) + 1].clone()
    made: Any = skip_init(  # type: ignore[no-untyped-call]  # torch does not annotate it; nothing is drawn
        nn.Conv2d, layer.in_channels, layer.out_channels, tuple(weight.shape[2:]), layer.stride, 0, layer.dilation,
        layer.groups, bias=layer.bias is not None, device=weight.device, dtype=weight.dtype,
    )  # fmt: skip
    made.weight, made.bias = nn.Parameter(weight), layer.bias
    padding = (left - before * wide, right - after * wide, top - up * tall, bottom - down * tall)
    return nn.Sequential(nn.ZeroPad2d(padding), made)


def _reached(layer: nn.Conv2d, axis: int, size: int, before: int, after: int) -> set[int]:
    """Return which places of a kernel ever lie on the image, along one axis of ``size`` pixels."""
    kernel, stride, dilation = layer.kernel_size[axis], layer.stride[axis], layer.dilation[axis]
    steps = (size + before + after - dilation * (kernel - 1) - 1) // stride + 1
    starts = [step * stride - before for step in range(steps)]
    return {place for place in range(kernel) if any(0 <= at + place * dilation < size for at in starts)}
