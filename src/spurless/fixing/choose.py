"""Choose repair methods from the findings of an audit and the available labels, each with a reason.

All rules that apply are run, in this order, and the best model is kept:

1. The model relies on the attributes of validation, or on a word that the audit found if there are none
   (:mod:`spurless.fixing.holdout`): ``dfr``, with weighted and with subsampled groups.
2. The model follows properties that can be transplanted and that contain no part of the object, or the user names them:
   ``transplant`` trains on with these properties of random examples; ``dfr`` gets groups that are inferred from them
   (:mod:`spurless.fixing.typical_groups`); ``lff``, ``jtt`` and ``dcwp`` train a copy with new initial weights, if it
   can have some; ``masktune`` hides them if they are regions.
3. Hiding the region that predictions depend on corrects errors: ``masktune``, which trains on the rest of the image.
4. The accuracy on validation is much lower than on train, or only one class is worse: ``class-balanced-head`` on
   validation, where the shortcut holds less often.
5. Otherwise the few errors on validation are examples that conflict with the shortcut: ``afr``, which upweights them.
6. Validation has attributes that rule 1 does not name: ``dfr`` all the same, since it is cheap.

Methods train on the half of validation that does not decide, and on train if validation is too small. The order of rule
2 is that of the accuracy under transplants on development data. Rules 1 and 3 to 5 follow what helped on the small
embedded datasets, with two seeds each. Rule 5 is cautious: if validation is as biased as train, no method without
attributes was clearly better than the old model, and AFR was among the least harmful.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import torch

from spurless.auditing import (
    attribute_association,
    attribute_use,
    group_gap,
    hidden_regions,
    property_association,
    tokens,
    transplants,
    worst_class,
)
from spurless.core.findings import Audit, Finding
from spurless.core.repairs import Choice
from spurless.data.split import Split
from spurless.fixing.holdout import Holdout
from spurless.fixing.scores import has_groups
from spurless.methods import METHODS, make_method, method_named
from spurless.methods.base import Info, method_info
from spurless.models.classifier import Classifier
from spurless.reporting.format import join_words
from spurless.train.evaluate import predict
from spurless.train.run import Run

MIN_ACCURACY_GAP = 0.1
"""Accuracy on train minus validation from which validation is taken to conflict with the shortcut more often."""
DATA_ONLY = (attribute_association.NAME, property_association.NAME)  # audits of the data, whatever the model uses
N_TRAIN_EXAMPLES = 2000  # training examples for the accuracy on train
MIN_STEPS = 80  # steps of fine-tuning: an epoch of a small dataset has only a few
MIN_TRANSPLANT_EPOCHS, MIN_TRANSPLANT_STEPS = 10, 400  # with 400 steps colored-digits gains 10 points more
SMALL_DATA_STEPS = 100  # steps per epoch below which DCWP has the settings of the small datasets


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
    properties: tuple[str, ...] = ()  # flagged properties that can be transplanted
    can_restart: bool = False  # whether the model can be initialised again
    can_infer_groups: bool = False  # whether the examples are images without attributes
    has_regions: bool = False  # whether all flagged properties are regions of an image

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
        train_attributes=has_groups(data.train.given),
        val_labels=holdout.is_split,
        val_attributes=holdout.is_split and has_groups(data.val.given),
        accuracy_gap=_compute_accuracy(model, sample, run) - _compute_accuracy(model, data.val, run),
        has_word=holdout.word is not None,
    )


def choose(audit: Audit, context: RepairContext) -> list[Choice]:
    """Return the methods that fit the findings, the one with the highest expected value first.

    Returns an empty list if nothing is flagged that a repair could improve: only that the label is associated with
    something in the data, or a property in which a part of the object may be.
    """
    findings = {f.audit: f for f in audit.flagged if f.audit not in DATA_ONLY and not _is_doubtful_property(f)}
    if not findings and not context.properties:
        return []
    use_of_groups = findings.get(attribute_use.NAME) or findings.get(group_gap.NAME)
    use = findings.get(tokens.NAME) if context.has_word else use_of_groups
    hidden = findings.get(hidden_regions.NAME)
    has_gap = context.accuracy_gap >= MIN_ACCURACY_GAP or set(findings) == {worst_class.NAME}
    heads = ("class-balanced-head", "afr") if has_gap else ("afr", "class-balanced-head")
    choices = [
        *(_make_group_choices(use, context) if use else []),
        *(_make_property_choices(context) if context.properties else []),
        *([make_choice("masktune", context, _explain_masktune(hidden))] if hidden else []),
        *(make_choice(method, context, _explain_head(method, context, set(findings))) for method in heads),
        *([] if use else _make_group_choices(None, context)),
    ]
    return [choice for choice in choices if _can_run(choice, context)]


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


def trains_network(choice: Choice) -> bool:
    """Return whether a choice trains the whole network, so that it needs time of the budget."""
    return choice.restart or method_named(choice.method).info.fix != "fast"


def _is_doubtful_property(finding: Finding) -> bool:
    return finding.audit == transplants.NAME and bool(finding.doubt)


def _make_group_choices(finding: Finding | None, context: RepairContext) -> list[Choice]:
    """Return DFR with weighted groups, which uses all examples, and with the subsampled groups of the paper."""
    weighted = make_choice("dfr", context, _explain_dfr(finding, context), options={"balance": "weight"})
    subsampled = make_choice(
        "dfr", context, "DFR with subsampled groups, as in its paper: equally many examples of every group."
    )
    return [replace(weighted, title="DFR with weights"), subsampled]


def _make_property_choices(context: RepairContext) -> list[Choice]:
    """Return the methods for a model that follows properties which can be transplanted."""
    names = join_words(context.properties)
    first = make_choice(
        "transplant",
        context,
        f"The model follows {names}: training continues with {names} of random other examples, so that it no longer "
        "comes with the label.",
    )
    why = (
        f"DFR refits the last layer on validation, with equal weight for groups that are inferred from {names}: a "
        "label, with the class of which the property is typical."
    )
    inferred = make_choice("dfr", context, why, options={"balance": "weight"})
    inferred = replace(inferred, title="DFR with inferred groups", infers_groups=True)
    small = context.steps_per_epoch < SMALL_DATA_STEPS
    pruned = make_choice("dcwp", context, _explain_training("dcwp"), "digits" if small else None)
    restarted = [replace(make_choice(name, context, _explain_training(name)), restart=True) for name in ("lff", "jtt")]
    masked = make_choice("masktune", context, f"MaskTune hides {names} in every training image, and what is used then.")
    masked = replace(masked, title="MaskTune with these regions", hides_regions=True)
    return [
        first,
        inferred,
        *([*restarted, pruned] if context.can_restart else []),
        *([masked] if context.has_regions else []),
    ]


def _can_run(choice: Choice, context: RepairContext) -> bool:
    """Return whether all labels that a choice uses are available."""
    if choice.infers_groups:
        return context.val_labels and context.can_infer_groups
    return context.allows(get_choice_info(choice))


def _explain_training(method: str) -> str:
    return {
        "lff": "LfF trains a copy with new initial weights, with more weight on examples that a biased network gets "
        "wrong.",
        "jtt": "JTT trains a copy with new initial weights, with more weight on examples that a short training gets "
        "wrong.",
        "dcwp": "DCWP prunes the weights that examples without the shortcut do not need, and trains the rest; it finds "
        "these examples with a copy with new initial weights.",
    }[method]


def _explain_masktune(finding: Finding) -> str:
    return (
        f"{finding.title.rstrip('.')}: MaskTune hides the region that predictions depend on and trains on the rest of "
        "the image, so that the model must use something else."
    )


def _explain_dfr(finding: Finding | None, context: RepairContext) -> str:
    if finding is None:
        return (
            "Validation has an attribute, although the audit does not name it: DFR refits the last layer there with "
            "equal weight for every group."
        )
    title = finding.title.rstrip(".")
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
    "transplant": lambda context: {
        "properties": context.properties,
        "epochs": max(MIN_TRANSPLANT_EPOCHS, ceil(MIN_TRANSPLANT_STEPS / context.steps_per_epoch)),
    },
}
"""Settings for models and data of users; presets are those of published experiments.

Errors are mined on examples that the model was not trained on. An upweight of 5 is that of the text experiments; 100 is
for the few errors of a short training on train. SELF has no earlier checkpoint, and its half of validation may be
small.
"""


def _compute_accuracy(model: Classifier, split: Split, run: Run) -> float:
    predicted = predict(model.to(run.device), split, run.device, run.workers).cpu()
    model.to("cpu")
    return float((predicted == split.y.cpu()).double().mean())
