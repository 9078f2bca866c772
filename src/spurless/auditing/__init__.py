"""Auditing: model and held-out examples in, findings out; does it cheat, on what, and on which examples?"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from spurless.auditing import (
    attribute_association,
    attribute_use,
    biased_neurons,
    error_slices,
    group_gap,
    hidden_regions,
    image_properties,
    suspects,
    swapped_backgrounds,
    tokens,
    worst_class,
)
from spurless.auditing.base import Auditor
from spurless.auditing.excess import sentence
from spurless.auditing.gallery import PICTURED, suspects_of
from spurless.auditing.guessing import no_better
from spurless.auditing.subject import LEVEL, PERMUTATIONS, Subject, look
from spurless.core.errors import BadInput, SpurlessWarning, UnknownName
from spurless.core.findings import Audit, Finding
from spurless.core.progress import Progress, listening
from spurless.core.provenance import hardware, versions
from spurless.data.grouped import Grouped, Splits
from spurless.explain.neurons import model_sees_images
from spurless.explain.probing import reached
from spurless.models.classifier import beside
from spurless.models.wrapping import wrap
from spurless.reporting import audit_html
from spurless.train.config import TrainConfig
from spurless.train.run import Engine, start

AUDITS: dict[str, Auditor] = {
    auditor.name: auditor
    for auditor in (
        Auditor(group_gap.NAME, group_gap.QUESTION, "attributes", group_gap.audit_group_gap),
        Auditor(attribute_use.NAME, attribute_use.QUESTION, "attributes", attribute_use.audit_attribute_use),
        Auditor(
            attribute_association.NAME,
            attribute_association.QUESTION,
            "attributes",
            attribute_association.audit_attribute_association,
        ),
        Auditor(error_slices.NAME, error_slices.QUESTION, "labels", error_slices.audit_error_slices),
        Auditor(biased_neurons.NAME, biased_neurons.QUESTION, "labels", biased_neurons.audit_biased_neurons),
        Auditor(suspects.NAME, suspects.QUESTION, "labels", suspects.audit_suspects),
        Auditor(worst_class.NAME, worst_class.QUESTION, "labels", worst_class.audit_worst_class),
        Auditor(image_properties.NAME, image_properties.QUESTION, "images", image_properties.audit_image_properties),
        Auditor(hidden_regions.NAME, hidden_regions.QUESTION, "images", hidden_regions.audit_hidden_regions),
        Auditor(tokens.NAME, tokens.QUESTION, "texts", tokens.audit_tokens),
    )
}
"""By name. Swapped backgrounds need masks, so they are asked where masks are given."""

LIMITS = (
    "Only what the examples show can be found: where none breaks the shortcut, none of these questions sees it.",
    "Mistakes in the labels look like examples that break a shortcut.",
    "A finding says that the model leans on something, not that this is wrong: that is for you to say.",
)


class Audited(Audit):
    """An audit that a notebook shows as a table; ``spurless.reporting.write_audit`` makes the page of it."""

    def _repr_html_(self) -> str:
        return audit_html(self)


def audit(  # noqa: PLR0913 - a public door
    model: nn.Module,
    data: Splits | Grouped,
    *,
    part: str = "val",
    only: Sequence[str] = (),
    masks: Tensor | None = None,
    seed: int = 0,
    permutations: int = PERMUTATIONS,
    level: float = LEVEL,
    pictured: int = PICTURED,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Audited:
    """Ask a trained model what it leans on, with examples that it was not trained on.

    Args:
        model: a classifier, or any module whose head can be found; it is left as it was.
        data: splits, or one split of held-out examples with labels. Attributes are used where they are known.
        part: the split that is looked at.
        only: names of ``AUDITS``; by default all that the data allow.
        masks: of the foreground of every image, ``(N, height, width)``: backgrounds are then swapped too.
        seed: of permutations, clusters and choices.
        permutations: how often chance is asked.
        level: how often an audit may flag a model that leans on nothing.
        pictured: how many of the suspected minority are drawn.
        engine: where the arithmetic is done.
        progress: called with stage, step, total and a word.

    Raises:
        UnknownName: no audit has that name.
        BadInput: labels are hidden, or are none of the model's.
    """
    if not 0 < level < 1 or permutations < 1:
        raise BadInput("the level is a share and permutations a number", got=f"{level}, {permutations}")
    split, train = _parts(data, part)
    classifier = wrap(model, example=split.example())
    run = start(engine or Engine(), seed, TrainConfig())
    run.progress = progress
    begin, seconds = time.perf_counter(), {}
    with listening(progress):
        subject = replace(look(classifier, split, run, train), permutations=permutations, level=level)
        subject = replace(subject, guesses=no_better(subject, run))
        seconds["look"] = time.perf_counter() - begin
        asked = _asked(subject, data, only, masks)
        findings = []
        for number, auditor in enumerate(asked):
            with run.timed(auditor.name), listening(_inside(progress, number, len(asked), auditor.name)):
                findings.append(auditor.run(subject))
        with run.timed("gallery"), listening(_inside(progress, len(asked), len(asked), "gallery")):
            gallery = suspects_of(subject, suspects.suspicion(subject), pictured, _spelling(data))
        run.tell("audit", len(asked) + 1, len(asked) + 1)
    _warn(findings, permutations, level)
    for note in _said(subject):
        warnings.warn(note, SpurlessWarning, stacklevel=2)
    return Audited(
        tuple(sorted(findings, key=_rank)),
        gallery,
        _facts(subject, data, part, {**seconds, **run.seconds}, seed),
        LIMITS,
        level,
        None if subject.guesses is None else sentence(subject.guesses),
    )


def _inside(progress: Progress | None, number: int, count: int, name: str) -> Progress | None:
    """Say that a question is asked; return who is told how far it is, as a word about the whole."""
    if progress is None:
        return None
    progress("audit", number, count + 1, name)
    return lambda stage, step, total, _: progress("audit", number, count + 1, f"{name}: {stage}, {step:,} of {total:,}")


def _warn(findings: Sequence[Finding], permutations: int, level: float) -> None:
    """Warn where chance was asked so seldom that nothing could be shown, whatever the model does."""
    asked = sum(finding.shows_use and finding.p is not None for finding in findings)
    if asked > level * (permutations + 1) + 1e-9:
        warnings.warn(
            f"With {permutations} permutations and {asked} questions about use, no finding can be shown at a level of "
            f"{level:g}: ask for at least {math.ceil(asked / level) - 1} permutations.",
            SpurlessWarning,
            stacklevel=3,
        )


def _said(subject: Subject) -> tuple[str, ...]:
    """Return what is to be said of the model before what was found."""
    return *_guesses(subject), *_no_maps(subject)


def _no_maps(subject: Subject) -> tuple[str, ...]:
    """Say where nobody knows what the model looks at."""
    if not len(subject) or isinstance(subject.split.x, dict) or not model_sees_images(subject.split):
        return ()
    if reached(subject.model, beside(subject.split.example(1), next(subject.model.parameters(), None))):
        return ()
    return (
        f"No gradient of {subject.model.name} reaches its input: a part of it runs under torch.no_grad(), or detaches "
        "what it computes. So there are no heat maps, and hidden-regions cannot be asked. Freeze that part by "
        "requires_grad_(False) instead.",
    )


def _guesses(subject: Subject) -> tuple[str, ...]:
    """Say where a model is no better than guessing: what is found is then what it does not listen to."""
    if subject.guesses is None:
        return ()
    one = len(torch.unique(subject.predicted)) == 1
    so = "so it leans on nothing that it sees" if one else "so its mistakes do not tell what it leans on"
    return (
        f"{sentence(subject.guesses).rstrip('.')}, {so}. See whether the weights, the order of the classes and the "
        "preparation of the inputs are those of its training.",
    )


def _rank(finding: Finding) -> tuple[bool, bool, float]:
    """Put what is flagged first, of that what shows use, and of that the most severe."""
    return not finding.flagged, not finding.shows_use, -finding.severity


def _parts(data: Splits | Grouped, part: str) -> tuple[Grouped, Grouped | None]:
    if isinstance(data, Grouped):
        return data, None
    if part not in ("train", "val", "test"):
        raise UnknownName("split", part, ("train", "val", "test"))
    return getattr(data, part), data.train


def _asked(subject: Subject, data: Splits | Grouped, only: Sequence[str], masks: Tensor | None) -> list[Auditor]:
    """Return the audits that the data allow, or those that were named."""
    for name in only:
        if name not in (*AUDITS, swapped_backgrounds.NAME):
            raise UnknownName("audit", name, (*AUDITS, swapped_backgrounds.NAME))
    if masks is None and swapped_backgrounds.NAME in only:
        raise BadInput(f"{swapped_backgrounds.NAME} needs masks", do="Pass masks=, on the command line --masks NPY.")
    x: Any = subject.split.x
    texts = isinstance(x, dict)
    have = {
        "labels": True,
        "attributes": _any_attribute(subject.split),
        "images": not texts and len(x[0].shape) == 3,
        "texts": texts,
    }
    asked = [auditor for auditor in AUDITS.values() if (auditor.name in only if only else have[auditor.needs])]
    if texts:
        spell = _spelling(data)
        asked = [
            replace(auditor, run=partial(tokens.audit_tokens, spell=spell)) if auditor.name == tokens.NAME else auditor
            for auditor in asked
        ]
    if masks is not None and (not only or swapped_backgrounds.NAME in only):
        swap = partial(swapped_backgrounds.audit_swapped_backgrounds, masks=masks)
        asked.append(Auditor(swapped_backgrounds.NAME, swapped_backgrounds.QUESTION, "masks", swap))
    return asked


def _any_attribute(split: Grouped) -> bool:
    """Return whether the attribute of some example is known: questions about it are asked with those."""
    return bool(split.groups.attributes) and bool(split.groups.known(split.a).any())


def _spelling(data: Splits | Grouped) -> tokens.Spell | None:
    return tokens.spelling(data) if isinstance(data, Splits) and isinstance(data.train.x, dict) else None


def _facts(
    subject: Subject, data: Splits | Grouped, part: str, seconds: Mapping[str, float], seed: int
) -> dict[str, Any]:
    split = subject.split
    notes = [*(data.notes if isinstance(data, Splits) else ()), *_said(subject)]
    return {
        "model": subject.model.name,
        "data": data.name if isinstance(data, Splits) else "one split",
        "part": part if isinstance(data, Splits) else "as given",
        **({"notes": notes} if notes else {}),
        "examples": len(split),
        "labels": list(split.groups.labels),
        "attributes": list(split.groups.attributes) if _any_attribute(split) else [],
        "accuracy": float((~subject.wrong).double().mean()),
        "mistakes": int(subject.wrong.sum()),
        "seed": seed,
        "permutations": subject.permutations,
        "level": subject.level,
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "versions": versions(),
        "hardware": hardware(next((p.device for p in subject.model.parameters()), subject.features.device)),
    }


__all__ = ["AUDITS", "Auditor", "Subject", "audit", "look"]
