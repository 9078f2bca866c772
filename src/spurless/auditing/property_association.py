r"""Property association: does one simple property of the data predict the label?

This tests the data, not the model: the properties of images of :mod:`spurless.auditing.image_properties` and the words
of texts. The values of a property are cut into bins of equal size; the most frequent label of a bin, with all labels
weighted alike, in four fifths of the examples predicts the label of the others. With the balanced accuracy :math:`B` of
these predictions and :math:`K` labels, the statistic is the largest skill :math:`(B - 1/K) / (1 - 1/K)` of all
properties. Null hypothesis: labels are independent of the properties; they are permuted. Severity: the skill.

A property that predicts the label is suspicious: a model can use it instead of the object. If transplants
(:mod:`spurless.auditing.transplants`) were tested and none is flagged, the finding is cleared, unless the property
almost determines the label and a transplant is followed in part.
Features of a table are legitimate evidence, so they are not tested.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from spurless.auditing._context import AuditContext, make_finding, not_tested
from spurless.auditing._figures import Axis, Series, bars
from spurless.auditing._permutation import p_value
from spurless.auditing.image_properties import measure_properties
from spurless.core.figures import Figure
from spurless.core.findings import Finding
from spurless.data.words import find_words
from spurless.explain.overlays import has_images

NAME = "property-association"
QUESTION = "Does one simple property of the data, such as a color, a corner or a word, predict the label?"
MIN_EFFECT = 0.5  # smallest skill that is flagged; brightness and color predict many labels a little
STRONG_SKILL, MIN_PARTIAL_EFFECT = 0.8, 0.2  # skill, and largest effect of a transplant, that are never cleared
N_BINS, FOLDS = 16, 5
MIN_EXAMPLES = 40
MAX_PERMUTATIONS = 99
MAX_BARS = 12


def audit_property_association(context: AuditContext) -> Finding:
    """Return the property that predicts the label best."""
    if len(context) < MIN_EXAMPLES or len(torch.unique(context.y)) < 2:
        return _not_tested(f"there are fewer than {MIN_EXAMPLES} examples, or all have the same label")
    if isinstance(context.split.x, dict):
        words = find_words(context.split, context.spelling)
        names, codes = words.names, words.present
    elif has_images(context.split):
        names, values = measure_properties(context.split)
        codes = bin_by_rank(values)
    else:
        return _not_tested("these examples are neither images nor texts")
    if not names:
        return _not_tested("no word is in some of the texts and not in others")
    skill = compute_skill(codes, context.y, context.seeds.generator(NAME, "folds"))
    n_permutations = min(MAX_PERMUTATIONS, context.permutations)
    generator, null = context.seeds.generator(NAME, "permutations"), []
    for _ in range(n_permutations):
        labels = context.y[torch.randperm(len(context), generator=generator)]
        null.append(float(compute_skill(codes, labels, context.seeds.generator(NAME, "folds")).max()))
    best, p = int(skill.argmax()), p_value(float(skill.max()), null)
    severity, name = float(skill[best]), names[best]
    accuracy = severity * (1 - 1 / _count_labels(context.y)) + 1 / _count_labels(context.y)
    return make_finding(
        NAME,
        (p, severity, p <= context.level and severity >= MIN_EFFECT),
        f"One property predicts the label: {name}",
        "No single property predicts the label well",
        f"Of {len(names)} properties, {name} predicts the label best: its balanced accuracy on examples that it was "
        f"not fitted to is {100 * accuracy:.0f} %, {severity:.2f} of the way from chance to perfect (p = {p:.3g} by "
        f"{n_permutations} permutations; flagged from {MIN_EFFECT:g}). This is a test of the data, not of the model.",
        f"Check whether the label may depend on {name}. If not, collect examples in which it does not predict the "
        "label, or hide it.",
        shows_use=False,
        shortcut=name if severity >= MIN_EFFECT else None,
        numbers={"skill": severity, "balanced_accuracy": accuracy, "properties": float(len(names))},
        items=(_plot(names, skill),),
    )


def bin_by_rank(values: Tensor, n_bins: int = N_BINS) -> Tensor:
    """Return the bin of every value of every column, ``(N, P)``; equal values share a bin.

    Example:
        >>> bin_by_rank(torch.tensor([[0.0], [5.0], [5.0], [9.0]]), 2).flatten().tolist()
        [0, 0, 0, 1]
    """
    n = len(values)
    ordered = values.double().sort(dim=0).values
    columns = zip(ordered.T, values.double().T, strict=True)
    rank = torch.stack([torch.searchsorted(column.contiguous(), v.contiguous()) for column, v in columns], dim=1)
    return (rank * n_bins // n).clamp(max=n_bins - 1)


def compute_skill(codes: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """Return the cross-validated skill of each property ``(P,)``: 0 by chance, 1 if it determines the label.

    Example:
        >>> y = torch.arange(40) % 2
        >>> compute_skill(torch.stack([y, torch.zeros(40).long()], 1), y, torch.Generator().manual_seed(0)).tolist()
        [1.0, 0.0]
    """
    n, n_properties = codes.shape
    n_classes, n_bins = int(y.max()) + 1, int(codes.max()) + 1
    fold = torch.empty(n, dtype=torch.long)
    fold[torch.randperm(n, generator=generator)] = torch.arange(n) % FOLDS
    weight = 1 / torch.bincount(y, minlength=n_classes).clamp(min=1).double()
    cell = torch.arange(n_properties) * n_bins + codes  # (N, P)
    counts = torch.zeros(FOLDS, n_properties * n_bins, n_classes, dtype=torch.double)
    values = (one_hot(y, n_classes) * weight)[:, None].expand(n, n_properties, n_classes).reshape(-1, n_classes)
    index = (fold[:, None] * n_properties * n_bins + cell).flatten()
    counts.view(-1, n_classes).index_add_(0, index, values)
    predicted = (counts.sum(dim=0, keepdim=True) - counts).argmax(dim=2)  # by the other folds, (folds, cells)
    correct = (predicted[fold[:, None], cell] == y[:, None]).double()
    recall = one_hot(y, n_classes).double().T @ correct * weight[:, None]
    n_present = _count_labels(y)
    balanced: Tensor = recall.sum(dim=0) / n_present
    return ((balanced - 1 / n_present) / (1 - 1 / n_present)).clamp(min=0)


def _count_labels(y: Tensor) -> int:
    return len(torch.unique(y))


def _not_tested(reason: str) -> Finding:
    return not_tested(NAME, f"Not tested: {reason}.", shows_use=False)


def _plot(names: tuple[str, ...], skill: Tensor) -> Figure:
    order = skill.argsort(descending=True, stable=True)[:MAX_BARS].tolist()
    caption = "How well each property predicts the label: 0 by chance, 1 if it determines the label."
    text, axis = ("Properties that predict the label", caption), Axis("skill", (0, 1))
    series = [Series("skill", skill[order].tolist(), "@series1")]
    return bars(text, [names[j] for j in order], series, values=axis, horizontal=True)
