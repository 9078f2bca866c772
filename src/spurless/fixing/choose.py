"""Choose repair methods from the findings of an audit and the available labels, each with a reason.

The model is already trained, so methods that repair a trained model come first. Methods that train a whole network are
only tried on request; they continue from the given weights. All rules that apply are run, and the best model is kept:

1. The model relies on the attributes of validation, or on a word that the audit found if there are none
   (:mod:`spurless.fixing.holdout`): ``dfr``, which weights their groups equally.
2. Hiding the region that predictions depend on corrects errors: ``masktune``, which trains on the rest of the image.
3. The accuracy on validation is much lower than on train, or only one class is worse: ``class-balanced-head`` on
   validation, where the shortcut holds less often.
4. Otherwise the few errors on validation are examples that conflict with the shortcut: ``afr``, which upweights them.

Methods train on the half of validation that does not decide, and on train if validation is too small. Rules 1 to 3
follow what helped on the small embedded datasets, with two seeds each. Rule 4 is cautious: if validation is as biased
as train, no method without attributes was clearly better than the old model, and AFR was among the least harmful.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch

from spurless.auditing import attribute_association, attribute_use, group_gap, hidden_regions, tokens, worst_class
from spurless.core.findings import Audit, Finding
from spurless.core.repairs import Choice
from spurless.data.split import Split
from spurless.fixing.holdout import Holdout
from spurless.methods import METHODS, make_method, method_named
from spurless.methods.base import Info, method_info
from spurless.models.classifier import Classifier
from spurless.train.evaluate import predict
from spurless.train.run import Run

MIN_ACCURACY_GAP = 0.1
"""Accuracy on train minus validation from which validation is taken to conflict with the shortcut more often."""
N_TRAIN_EXAMPLES = 2000  # training examples for the accuracy on train
MIN_STEPS = 80  # steps of fine-tuning: an epoch of a small dataset has only a few


@dataclass(frozen=True)
class RepairContext:
    """The available labels, the sizes of the data and the accuracy gap, on which the choice depends."""

    n_val: int  # validation examples to train on
    steps_per_epoch: int
    train_attributes: bool = False
    val_labels: bool = True  # false if validation is too small to be split
    val_attributes: bool = False
    accuracy_gap: float = 0.0  # accuracy on train minus accuracy on validation
    has_word: bool = False  # whether the attribute is a word that the audit found

    def allows(self, info: Info) -> bool:
        """Return whether all labels that a method uses are available."""
        names = ("train_attributes", "val_labels", "val_attributes")
        return all(getattr(self, name) for name in names if getattr(info, name))


def compute_repair_context(model: Classifier, holdout: Holdout, batch_size: int, run: Run) -> RepairContext:
    """Return the available labels, and the accuracy gap of the model."""
    data = holdout.data
    sample = data.train.select(torch.arange(0, len(data.train), max(1, len(data.train) // N_TRAIN_EXAMPLES)))
    return RepairContext(
        n_val=len(data.val),
        steps_per_epoch=ceil(len(data.train) / batch_size),
        train_attributes=_has_attributes(data.train.given),
        val_labels=holdout.is_split,
        val_attributes=holdout.is_split and _has_attributes(data.val.given),
        accuracy_gap=_compute_accuracy(model, sample, run) - _compute_accuracy(model, data.val, run),
        has_word=holdout.word is not None,
    )


def choose(audit: Audit, context: RepairContext) -> list[Choice]:
    """Return the methods that fit the findings, the best first.

    Returns an empty list if nothing is flagged, or only that label and attribute are associated in the data.
    """
    findings = {finding.audit: finding for finding in audit.flagged if finding.audit != attribute_association.NAME}
    if not findings:
        return []
    use_of_groups = findings.get(attribute_use.NAME) or findings.get(group_gap.NAME)
    rules = [
        (findings.get(tokens.NAME) if context.has_word else use_of_groups, "dfr"),
        (findings.get(hidden_regions.NAME), "masktune"),
    ]
    choices = [make_choice(method, context, _explain(method, finding, context)) for finding, method in rules if finding]
    has_gap = context.accuracy_gap >= MIN_ACCURACY_GAP or set(findings) == {worst_class.NAME}
    heads = ("class-balanced-head", "afr") if has_gap else ("afr", "class-balanced-head")
    choices += [make_choice(method, context, _explain_head(method, context, set(findings))) for method in heads]
    return [choice for choice in choices if context.allows(get_choice_info(choice))]


def list_applicable(context: RepairContext, *, training: bool) -> list[Choice]:
    """Return all methods whose labels are available; ``training``: including those that train a whole network."""
    speeds = ("fast", "slow") if training else ("fast",)
    infos = [method.info for method in METHODS.values() if method.info.fix in speeds]
    choices = [make_choice(info.name, context, f"It is one of those to compare: {info.summary}.") for info in infos]
    return [choice for choice in choices if context.allows(get_choice_info(choice))]


def make_choice(
    method: str, context: RepairContext, why: str, preset: str | None = None, options: Mapping[str, Any] | None = None
) -> Choice:
    """Return a method with settings for a model that was trained elsewhere; the given options override them."""
    settings = SETTINGS[method](context) if method in SETTINGS and preset is None else {}
    return Choice(method, why, preset, {**settings, **(options or {})}, method_named(method).info.title)


def get_choice_info(choice: Choice) -> Info:
    """Return the info of a choice as it is configured."""
    return method_info(make_method(choice.method, choice.preset, **choice.options))


def _explain(method: str, finding: Finding, context: RepairContext) -> str:
    title = finding.title.rstrip(".")
    if method == "masktune":
        return (
            f"{title}: MaskTune hides the region that predictions depend on and trains on the rest of the image, so "
            "that the model must use something else."
        )
    if context.has_word:
        return (
            f"{title}, which is known for every text: DFR refits the last layer on validation, with equal weight for "
            "texts of every label with it and without it."
        )
    return (
        f"{title}, and validation has the attribute of every example: DFR refits the last layer there with equal "
        "weight for every group."
    )


def _explain_head(method: str, context: RepairContext, flagged: set[str]) -> str:
    split = "validation" if context.val_labels else "train"
    has_gap = context.accuracy_gap >= MIN_ACCURACY_GAP
    if method == "afr":
        reason = (
            "The accuracy on validation is about that on train, so its errors are examples that conflict with the "
            "shortcut: "
        )
        return f"{'' if has_gap else reason}AFR tunes the last layer on {split} with more weight on errors."
    if flagged == {worst_class.NAME}:
        return f"One class is worse: the last layer is tuned on {split}, with equally many examples of every class."
    if not has_gap:
        return f"The last layer is tuned on {split}, with equal weight for every class."
    return (
        f"The accuracy is {100 * context.accuracy_gap:.0f} points lower on validation than on train, so validation "
        f"conflicts with the shortcut more often: the last layer is tuned on {split}, with equal weight for every "
        "class."
    )


def _choose_split(context: RepairContext) -> dict[str, Any]:
    return {"on": "val" if context.val_labels else "train"}


SETTINGS: dict[str, Callable[[RepairContext], dict[str, Any]]] = {
    "class-balanced-head": _choose_split,
    "afr": _choose_split,
    "jtt-head": lambda context: {**_choose_split(context), "upweight": 5.0},
    "neurontune": lambda context: {"splits": "half/half" if context.val_labels else "train/train"},
    "self": lambda context: {"disagreement": "dropout", "n": min(500, max(10, context.n_val // 8))},
    "masktune": lambda context: {"epochs": max(1, ceil(MIN_STEPS / context.steps_per_epoch))},
    "mrm": lambda _: {"reset": False},
    "avp": lambda _: {"epochs": 50},
}
"""Settings for models and data of users; presets are those of published experiments.

Errors are mined on examples that the model was not trained on. An upweight of 5 is that of the text experiments; 100 is
for the few errors of a short training on train. SELF has no earlier checkpoint, and its half of validation may be
small.
"""


def _has_attributes(split: Split) -> bool:
    return bool(split.groups.attributes) and split.has_attributes


def _compute_accuracy(model: Classifier, split: Split, run: Run) -> float:
    predicted = predict(model.to(run.device), split, run.device, run.workers).cpu()
    model.to("cpu")
    return float((predicted == split.y.cpu()).double().mean())
