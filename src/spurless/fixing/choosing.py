"""Choosing: from what an audit found, and from which labels there are, to a method, and why in a sentence.

The model is trained already, so methods that repair one come first. Methods that train a whole network are tried where
the user asks for all; they go on from the weights that they are given. The rules, of which those that fit are run
and the best is taken:

1. The model leans on the attributes that validation has, or on a word that the audit names where it has none
   (:mod:`spurless.fixing.naming`): ``dfr``, for which their groups count alike.
2. Hiding what the model looks at puts its mistakes right: ``masktune``, which trains it on the rest.
3. The model is right far less often on validation than on train, or a class is all that is behind:
   ``class-balanced-head`` on validation, where the shortcut holds less often.
4. Else its few mistakes on validation are what breaks the shortcut: ``afr``, which learns most from them.

What is learnt from is the part of validation that does not judge, and train where validation is too small. Rules 1 to 3
go by what helped on small embedded data, two seeds each. Rule 4 is caution: where validation was as biased as train, no
method without attributes was clearly better than the old model, and AFR was one that did little harm.
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
from spurless.data.grouped import Grouped, Splits
from spurless.fixing.holding import Held
from spurless.methods import METHODS, make_method
from spurless.methods.base import Info, declared
from spurless.models.classifier import Classifier
from spurless.train.evaluate import predict
from spurless.train.run import Run

STRANGE = 0.1
"""From how much lower accuracy on validation than on train it is taken to break the shortcut more often."""
SEEN = 2000
"""Training examples that are looked at for that."""
STEPS = 80
"""Of tuning, at least: an epoch of a small dataset is a handful."""
APART = {
    **dict.fromkeys(("erm", "watched-erm"), "trains as the model was trained"),
    **dict.fromkeys(("selectivenet", "deep-gamblers", "one-sided"), "learns to abstain"),
    **dict.fromkeys(("random-prune", "magnitude-prune", "randmask"), "is what others are compared with"),
    "dcwp": "begins with the untrained model",
}
"""Methods that are not tried, and why; the user may name them."""
LONG = ("mrm", "avp")
"""Methods that begin with a trained network and train all of it for long."""


@dataclass(frozen=True)
class Labels:
    """Which labels there are beyond those of train."""

    train_attributes: bool = False
    val_labels: bool = True
    """False where validation is too small to learn from and to judge by"""
    val_attributes: bool = False

    @classmethod
    def of(cls, data: Splits, learn: bool = True) -> Labels:
        """Return those that the data have; ``learn``: whether validation may be learnt from."""
        train, val = data.train.given, data.val.given
        return cls(_known(train), learn, learn and _known(val))

    def allow(self, info: Info) -> bool:
        """Return whether a method needs none that is missing."""
        uses = {name: getattr(info, name) for name in ("train_attributes", "val_labels", "val_attributes")}
        return all(getattr(self, name) for name, used in uses.items() if used)


@dataclass(frozen=True)
class Situation:
    """What settings and rules go by."""

    labels: Labels
    val: int
    """examples of validation to learn from"""
    steps: int
    """per epoch of train"""
    gap: float = 0.0
    """how much more often the model is right on train than on validation"""
    named: bool = False
    """whether the attribute is a word that the audit named"""


def situation(model: Classifier, held: Held, batch_size: int, run: Run) -> Situation:
    """Look at what there is."""
    data, learn = held.data, held.cut
    some = data.train.select(torch.arange(0, len(data.train), max(1, len(data.train) // SEEN)))
    gap = _accuracy(model, some, run) - _accuracy(model, data.val, run)
    steps = ceil(len(data.train) / batch_size)
    return Situation(Labels.of(data, learn), len(data.val), steps, gap, held.named is not None)


def choose(audit: Audit, here: Situation) -> list[Choice]:
    """Return what to do about the findings, the best first; the others are for where it cannot be done.

    Nothing is returned where nothing is flagged, or only that label and attribute go together in the data.
    """
    found = {finding.audit: finding for finding in audit.flagged if finding.audit != attribute_association.NAME}
    if not found:
        return []
    rules = [
        (found.get(tokens.NAME) if here.named else _leans_on_groups(found), "dfr"),
        (found.get(hidden_regions.NAME), "masktune"),
    ]
    choices = [choice_of(method, here, _because(method, finding, here)) for finding, method in rules if finding]
    strange = here.gap >= STRANGE or set(found) == {worst_class.NAME}
    heads = ("class-balanced-head", "afr") if strange else ("afr", "class-balanced-head")
    choices += [choice_of(method, here, _because_of_gap(method, here, set(found))) for method in heads]
    return [choice for choice in choices if here.labels.allow(info_of(choice))]


def applicable(here: Situation, *, training: bool) -> list[Choice]:
    """Return every method that needs no label that is missing; ``training``: those that train a whole network too."""
    quick = [name for name, method in METHODS.items() if method.info.start == "trained" and name not in LONG]
    named = [name for name in (METHODS if training else quick) if name not in APART]
    choices = [choice_of(name, here, f"It is one of those to compare: {METHODS[name].info.summary}.") for name in named]
    return [choice for choice in choices if here.labels.allow(info_of(choice))]


def choice_of(
    method: str, here: Situation, why: str, preset: str | None = None, options: Mapping[str, Any] | None = None
) -> Choice:
    """Return a method with settings for a model that was trained elsewhere; what the user says goes over them."""
    own = SETTINGS[method](here) if method in SETTINGS and preset is None else {}
    return Choice(method, why, preset, {**own, **(options or {})})


def info_of(choice: Choice) -> Info:
    """Return which labels a choice uses, as it is configured."""
    return declared(make_method(choice.method, choice.preset, **choice.options))


def _leans_on_groups(found: Mapping[str, Finding]) -> Finding | None:
    return found.get(attribute_use.NAME) or found.get(group_gap.NAME)


def _because(method: str, finding: Finding, here: Situation) -> str:
    if here.named and method == "dfr":
        return (
            f"{finding.title.rstrip('.')}, and every text can be asked for that: DFR refits the last layer on "
            "validation, with every label counting alike with it and without."
        )
    if method == "dfr":
        return (
            f"{finding.title.rstrip('.')}, and validation has the attribute of every example: DFR refits the last "
            "layer there with every group counting alike."
        )
    return (
        f"{finding.title.rstrip('.')}: MaskTune hides what the model looked at and trains it on the rest, so that it "
        "must find something else."
    )


def _because_of_gap(method: str, here: Situation, found: set[str]) -> str:
    where = "validation" if here.labels.val_labels else "train"
    strange = here.gap >= STRANGE
    if method == "afr":
        alike = (
            "The model is about as good on validation as on train, so that its mistakes are what breaks the shortcut: "
        )
        return f"{'' if strange else alike}AFR tunes the last layer on {where} with more weight on mistakes."
    if found == {worst_class.NAME}:
        return f"One class is behind: the last layer is tuned on as many examples of every class of {where}."
    if not strange:
        return f"The last layer is tuned on {where}, with every class counting alike."
    return (
        f"The model is right {100 * here.gap:.0f} points less often on validation than on train, so that validation "
        f"breaks the shortcut more often: the last layer is tuned on {where}, with every class counting alike."
    )


def _on(here: Situation) -> dict[str, Any]:
    return {"on": "val" if here.labels.val_labels else "train"}


SETTINGS: dict[str, Callable[[Situation], dict[str, Any]]] = {
    "class-balanced-head": _on,
    "afr": _on,
    "jtt-head": lambda here: {**_on(here), "upweight": 5.0},
    "neurontune": lambda here: {"splits": "half/half" if here.labels.val_labels else "train/train"},
    "self": lambda here: {"disagreement": "dropout", "n": min(500, max(10, here.val // 8))},
    "masktune": lambda here: {"epochs": max(1, ceil(STEPS / here.steps))},
    "mrm": lambda _: {"reset": False},
    "avp": lambda _: {"epochs": 50},
}
"""For a user's own trained model and data: presets are named after experiments, and this is none of them.

Mistakes are sought where the model was not trained. An upweight of 5 is that of texts; 100 is for the few mistakes that
a short training leaves on train. SELF cannot know an earlier model, and its half of validation may be small.
"""


def _known(split: Grouped) -> bool:
    return bool(split.groups.attributes) and split.has_attributes


def _accuracy(model: Classifier, split: Grouped, run: Run) -> float:
    pred = predict(model.to(run.device), split, run.device, run.workers).cpu()
    model.to("cpu")
    return float((pred == split.y.cpu()).double().mean())
