"""The inputs that all audits share (``AuditContext``), and the registry entry of an audit (``Auditor``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, cast

import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.core.findings import Finding
from spurless.core.seeds import Seeds
from spurless.data.split import Split
from spurless.data.words import TokenSpelling
from spurless.models.classifier import Classifier
from spurless.models.features import compute_logits
from spurless.train.embed import compute_features
from spurless.train.run import Run

Needs = Literal["labels", "attributes", "images", "texts", "masks"]

LEVEL = 0.05  # significance level: false-positive rate per test
PERMUTATIONS = 499  # number of permutations n; the smallest p-value is 1 / (n + 1)
NOT_TESTED = "Not tested on these examples"
MORE_ERRORS = "Pass more held-out examples, including some that the model predicts incorrectly."


@dataclass(frozen=True)
class Auditor:
    """One audit."""

    name: str
    question: str  # what it tests, as one question
    needs: Needs
    run: Callable[[AuditContext], Finding]


@dataclass(frozen=True, eq=False)
class AuditContext:
    """A model, held-out examples and its outputs on them; all tensors are on the CPU, in the order of the split."""

    model: Classifier
    split: Split  # held-out examples with labels, and attributes if known
    features: Tensor  # input of the head, ``(N, d)``
    logits: Tensor  # ``(N, classes)``
    train: Split | None = None  # the training split, if available
    seeds: Seeds = field(default_factory=Seeds)
    permutations: int = PERMUTATIONS
    level: float = LEVEL
    chance_level_reason: str | None = None  # why the model is at chance level, as a clause; None if it is better
    masks: Tensor | None = None  # foreground masks of the images, ``(N, H, W)``, if available
    spelling: TokenSpelling | None = None  # spelling of the tokens of a text dataset, if known

    def __len__(self) -> int:
        return len(self.split)

    @property
    def y(self) -> Tensor:
        """The labels."""
        return self.split.y.cpu()

    @cached_property
    def probabilities(self) -> Tensor:
        """Predicted probabilities, in float64."""
        return self.logits.double().softmax(dim=1)

    @cached_property
    def predicted(self) -> Tensor:
        """Predicted labels."""
        return self.logits.argmax(dim=1)

    @cached_property
    def incorrect(self) -> Tensor:
        """Whether the prediction is incorrect."""
        return self.predicted != self.y

    @cached_property
    def margin(self) -> Tensor:
        """Difference between the largest and the second largest logit."""
        top = self.logits.double().topk(min(2, self.logits.shape[1]), dim=1).values
        return top[:, 0] - top[:, -1]

    def provides(self, needs: Needs) -> bool:
        """Return whether the examples have what an audit needs."""
        x = cast(Any, self.split.x)
        if needs == "attributes":
            return has_any_attribute(self.split)
        if needs == "masks":
            return self.masks is not None
        is_text = isinstance(x, dict)
        return needs == "labels" or (is_text if needs == "texts" else not is_text and len(x[0].shape) == 3)


def has_any_attribute(split: Split) -> bool:
    """Return whether the attribute of at least one example is known."""
    return bool(split.groups.attributes) and bool(split.groups.known(split.a).any())


def compute_context(model: Classifier, split: Split, run: Run, train: Split | None = None) -> AuditContext:
    """Compute features and logits of a split.

    Raises:
        InputError: the labels are hidden or outside the model's range, or the logits are not finite.
    """
    y = split.y.cpu()
    if bool((y < 0).any()):
        raise InputError("the labels of this split are hidden, and an audit compares predictions with labels")
    if int(y.max()) >= model.n_classes:
        raise InputError(
            f"the model has {model.n_classes} outputs but the data have {len(split.groups.labels)} classes",
            expected=f"labels below {model.n_classes}",
            got=int(y.max()),
            hint="Give the model one output per class, two for a binary problem." if model.n_classes == 1 else "",
        )
    features = compute_features(model, split, run)
    logits = compute_logits(model, features)
    if not bool(logits.isfinite().all()):
        row = int((~logits.isfinite()).any(dim=1).nonzero()[0])
        raise InputError(
            f"the logits of example {row} are not finite",
            got=logits[row].tolist()[:4],
            hint="Check the weights of the head: training may have diverged.",
        )
    return AuditContext(
        model, _name_all_labels(split, logits.shape[1]), features, logits, train, run.seeds.child("audit")
    )


def _name_all_labels(split: Split, count: int) -> Split:
    """Add names for labels that the model can predict but the data do not have."""
    labels = split.groups.labels
    more = tuple(f"label {number}" for number in range(len(labels), count))
    return replace(split, groups=replace(split.groups, labels=(*labels, *more))) if more else split


def top_rows(score: Tensor, candidates: Tensor, limit: int = 24) -> tuple[int, ...]:
    """Return the candidates with the highest scores, the highest first.

    Example:
        >>> top_rows(torch.tensor([0.1, 0.9, 0.5]), torch.tensor([True, False, True]))
        (2, 0)
    """
    rows = candidates.nonzero().flatten()
    order = torch.argsort(score[rows], descending=True, stable=True)[:limit]
    return tuple(rows[order].tolist())


def label_name(context: AuditContext, label: int) -> str:
    """Return the name of a label; the model may have more outputs than the data have names."""
    names = context.split.groups.labels
    return names[label] if label < len(names) else f"label {label}"


def not_tested(name: str, because: str, remedy: str = "Nothing to do.", *, shows_use: bool = True) -> Finding:
    """Return the finding of an audit that cannot be computed on these examples."""
    return Finding(name, NOT_TESTED, 0.0, False, None, because, remedy, shows_use)


def make_finding(
    name: str, test: tuple[float, float, bool], title: str, title_otherwise: str, because: str, remedy: str, **more: Any
) -> Finding:
    """Return a finding from p-value, severity, and whether it is flagged; if not, it has another title, no remedy."""
    p, severity, flagged = test
    title, remedy = (title, remedy) if flagged else (title_otherwise, "Nothing to do.")
    return Finding(name, title, min(1.0, max(0.0, severity)), flagged, p, because, remedy, **more)


def format_fraction(count: int, total: int, interval: tuple[float, float] | None = None) -> str:
    """Format a fraction as a percentage of its total, with its interval if given.

    Example:
        >>> format_fraction(30, 40), format_fraction(30, 40, (0.6, 0.86))
        ('75.0 % of 40', '75.0 % of 40 (60 to 86 %)')
    """
    text = f"{100 * count / total:.1f} % of {total:,}"
    return text if interval is None else f"{text} ({100 * interval[0]:.0f} to {100 * interval[1]:.0f} %)"
