"""Audit a trained model on held-out examples: find shortcuts, and examples that conflict with them."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
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
    property_association,
    suspects,
    swapped_backgrounds,
    tokens,
    transplants,
    worst_class,
)
from spurless.auditing._chance_level import find_chance_level_reason
from spurless.auditing._context import (
    LEVEL,
    NOT_TESTED,
    PERMUTATIONS,
    AuditContext,
    Auditor,
    Needs,
    compute_context,
    has_any_attribute,
)
from spurless.auditing._residuals import MIN_ERRORS, to_sentence
from spurless.auditing._user_audit import resolve_auditors
from spurless.auditing.contract import check_auditor
from spurless.auditing.health import assess_health
from spurless.auditing.suspects import MAX_PICTURES, find_suspected, list_suspects, list_typical
from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError, SpurlessWarning, UnknownNameError
from spurless.core.findings import Audit, Finding
from spurless.core.groups import Groups
from spurless.core.progress import Progress, progress_to
from spurless.core.provenance import hardware, versions
from spurless.core.records import GroupRow
from spurless.data.loaders.objects import as_splits
from spurless.data.split import Split, Splits
from spurless.data.words import load_spelling
from spurless.explain.gradients import gradient_reaches_input
from spurless.explain.overlays import has_images
from spurless.metrics.groupwise import group_table
from spurless.models.classifier import Classifier, move_to_device_of
from spurless.models.wrapping import wrap
from spurless.models.zoo.normalize import Normalize, published_normalization
from spurless.reporting import audit_html
from spurless.reporting.format import format_count
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, limit_threads, make_run

_TABLE: tuple[tuple[ModuleType, Needs, Callable[[AuditContext], Finding]], ...] = (
    (group_gap, "attributes", group_gap.audit_group_gap),
    (attribute_use, "attributes", attribute_use.audit_attribute_use),
    (attribute_association, "attributes", attribute_association.audit_attribute_association),
    (transplants, "labels", transplants.audit_transplants),
    (property_association, "labels", property_association.audit_property_association),
    (error_slices, "labels", error_slices.audit_error_slices),
    (biased_neurons, "labels", biased_neurons.audit_biased_neurons),
    (suspects, "labels", suspects.audit_suspects),
    (worst_class, "labels", worst_class.audit_worst_class),
    (image_properties, "images", image_properties.audit_image_properties),
    (hidden_regions, "images", hidden_regions.audit_hidden_regions),
    (tokens, "texts", tokens.audit_tokens),
    (swapped_backgrounds, "masks", swapped_backgrounds.audit_swapped_backgrounds),
)
AUDITS = {module.NAME: Auditor(module.NAME, module.QUESTION, needs, run) for module, needs, run in _TABLE}
"""All audits, by name."""

LIMITS = (
    "Audits of errors only find what the examples show. If none conflicts with the shortcut, only transplants can "
    "detect it, and only if it is a property that they exchange: not an object, a pose or a person's gender.",
    "Labelling errors look like examples that conflict with a shortcut.",
    "A finding shows that the model relies on something, not that this is wrong: that is for you to decide.",
)
ALL = "all"  # the part of data that contains all of their splits
ROUNDING_TOLERANCE = 1e-9
MIN_LEVEL = 1e-9  # significance level that billions of permutations could reach
MIN_ERROR_FRACTION = 0.05  # of the examples; a shortcut that holds in all others could not have been seen
MIN_GROUP_EXAMPLES = 10  # examples of a group from which an audit can compare it with others
MAX_NAMES = 5  # groups that are listed


class Audited(Audit):
    """An audit that is shown as a table in a notebook; ``spurless.reporting.write_audit`` writes its page."""

    def _repr_html_(self) -> str:
        return audit_html(self)


def audit(  # noqa: PLR0913 - public API
    model: nn.Module,
    data: Splits | Split | Any,
    *,
    part: str | None = None,
    only: Sequence[Auditor | str] = (),
    extra: Sequence[Auditor | str] = (),
    crossed: bool = False,
    masks: Tensor | None = None,
    seed: int = 0,
    permutations: int = PERMUTATIONS,
    level: float = LEVEL,
    pictured: int = MAX_PICTURES,
    compute: Compute | None = None,
    progress: Progress | None = None,
) -> Audited:
    """Test which shortcuts a trained model relies on, with examples that it was not trained on.

    Args:
        model: a classifier, or any module whose head can be found; it is not changed.
        data: splits, one split of held-out examples with labels, or held-out data as a torch Dataset or DataLoader, a
            Hugging Face dataset, or arrays ``(x, y)``. Attributes are used if they are known.
        part: the split to audit: ``"train"``, ``"val"``, ``"test"`` or ``"all"``; by default val, or all if there is
            no train split.
        only: names of audits; by default all of ``AUDITS`` that the data allow.
        extra: audits of your own to run as well: ``Auditor`` objects, ``FILE.py:AUDIT``, or names of installed ones.
        crossed: test the combinations of several attribute columns as one attribute; by default, every column is tested
            on its own.
        masks: foreground masks of the images, ``(N, height, width)``, for the audit of swapped backgrounds.
        seed: seed of permutations, clusters and samples.
        permutations: number of permutations.
        level: significance level: false-positive rate per test.
        pictured: number of suspected minority examples with a picture.
        compute: device, precision and CPU threads.
        progress: called with stage, step, total and a message.

    Raises:
        UnknownNameError: there is no audit of that name.
        InputError: the labels are hidden or outside the model's range, masks are missing, or an audit of your own is
            not valid.
    """
    check_arguments(audit, locals())
    if not MIN_LEVEL <= level < 1 or permutations < 1:
        raise InputError(
            f"the level must be at least {MIN_LEVEL:g} and below 1, and permutations at least 1",
            got=f"{level}, {permutations}",
        )
    named, added = _resolve_audits(only, extra, masks)
    if not isinstance(data, Split):
        data = as_splits(data, held_out=True, seed=seed)
    if isinstance(data, Splits) and part is None:
        part = "val" if len(data.train) else ALL
    split, train = _select_splits(data, part or ALL, crossed)
    classifier = wrap(model, example=split.example())
    run = make_run(compute or Compute(), seed, TrainConfig(), progress=progress)
    begin, seconds = time.perf_counter(), {}
    with limit_threads(run.threads, all_for_inference=True), progress_to(progress):
        context = compute_context(classifier, split, run, train)
        is_text = isinstance(split.x, dict)
        spelling = load_spelling(data) if isinstance(data, Splits) and is_text else None
        context = replace(context, permutations=permutations, level=level, masks=masks, spelling=spelling)
        context = replace(context, chance_level_reason=find_chance_level_reason(context, run))
        seconds["context"] = time.perf_counter() - begin
        usual = named or [auditor for auditor in AUDITS.values() if context.provides(auditor.needs)]
        auditors = list({auditor.name: auditor for auditor in (*usual, *added)}.values())
        findings = []
        for number, auditor in enumerate(auditors):
            with run.timed(auditor.name), progress_to(_report_stage(progress, number, len(auditors), auditor.name)):
                findings.append(_name_question(auditor.run(context), auditor.question))
        with run.timed("gallery"), progress_to(_report_stage(progress, len(auditors), len(auditors), "gallery")):
            minority = find_suspected(context)
            gallery = list_suspects(context, minority, pictured)
            typical = list_typical(context, minority, gallery) if pictured else ()
        with run.timed("health"):
            health = assess_health(context, minority.suspected)
        run.report_progress("audit", len(auditors) + 1, len(auditors) + 1)
    _warn_if_underpowered(findings, permutations, level)
    notes = [*_check_normalization(model, split), *_collect_notes(context)]
    for note in notes:
        warnings.warn(note, SpurlessWarning, stacklevel=2)
    seconds = {name: round(value, 2) for name, value in {**seconds, **run.seconds}.items()}
    findings = _require_agreement(_clear_associations(findings))
    return Audited(
        tuple(sorted(findings, key=lambda f: (not f.flagged, not f.shows_use, -f.severity))),
        gallery,
        _collect_facts(context, data, part or ALL, notes) | {"seconds": seconds, "seed": seed, "threads": run.threads},
        LIMITS,
        level,
        None if context.chance_level_reason is None else to_sentence(context.chance_level_reason),
        find_gaps(context, findings, int(minority.suspected.sum())),
        _measure_groups(context),
        typical,
        health,
    )


def _measure_groups(context: AuditContext) -> tuple[GroupRow, ...]:
    """Return the accuracy of every group that has examples; of every class if no attribute is known."""
    split = context.split
    groups = split.groups if has_any_attribute(split) else Groups(split.groups.labels)
    a = split.a.cpu() if groups.attributes else torch.zeros_like(context.y)
    return tuple(row for row in group_table(context.predicted, context.y, a, groups).rows() if row.count)


def _name_question(finding: Finding, question: str) -> Finding:
    """Replace the title of an audit that was not possible by its question."""
    return replace(finding, title=f"Not tested: {question}") if finding.title == NOT_TESTED else finding


def find_gaps(context: AuditContext, findings: Sequence[Finding], n_suspected: int) -> tuple[str, ...]:
    """Return why these examples could not have shown a shortcut; empty if they could.

    With known attributes, every group needs examples. Without them, the examples that conflict with the shortcut are
    among the errors and the suspected examples, so both limit what can be concluded.
    """
    if has_any_attribute(context.split):
        return _find_small_groups(context.split)
    n_errors, n = int(context.incorrect.sum()), len(context)
    gaps = []
    if n_errors < max(MIN_ERRORS, MIN_ERROR_FRACTION * n):
        gaps.append(
            f"The model makes {n_errors:,} errors in {n:,} predictions. If these examples are as biased as the "
            "training data, a model that relies on a shortcut makes as few. Collect examples in which the suspected "
            "shortcut does not hold, or pass the attribute."
        )
    if n_suspected >= suspects.MIN_GROUP_SIZE:
        gaps.append(
            f"{n_suspected:,} examples have labels that are unexpected for this model and may conflict with a "
            "shortcut. Look through them: if they have something in common, pass that as the attribute."
        )
    if not any(finding.audit == transplants.NAME and finding.p is not None for finding in findings):
        gaps.append("No property of these examples could be transplanted, so only errors could be tested.")
    return tuple(gaps)


def _find_small_groups(split: Split) -> tuple[str, ...]:
    """Return a sentence if some groups are too small to show that the model is worse on them."""
    counts = split.counts.tolist()
    small = [(name, n) for name, n in zip(split.groups.names, counts, strict=True) if n < MIN_GROUP_EXAMPLES]
    if not small:
        return ()
    names = ", ".join(f"{name!r} ({n})" for name, n in small[:MAX_NAMES])
    more = f" and {len(small) - MAX_NAMES} others" if len(small) > MAX_NAMES else ""
    return (
        f"There are fewer than {MIN_GROUP_EXAMPLES} examples of these groups: {names}{more}. Collect more, so that the "
        "audit can compare them.",
    )


def _require_agreement(findings: Sequence[Finding]) -> list[Finding]:
    """Add doubts to findings about features of errors, which name nothing that can be checked.

    A class or a kind of example that is hard looks like a shortcut to them: neurons of a hard class differ by chance
    more than their test assumes, so they need error-slices, and weak slices need another finding that shows use.
    """
    flagged = {finding.audit for finding in findings if finding.flagged}
    others = {f.audit for f in findings if f.flagged and f.shows_use and not f.doubt} - {error_slices.NAME}
    slices = next((finding for finding in findings if finding.audit == error_slices.NAME), None)
    doubts = {}
    if error_slices.NAME not in flagged:
        doubts[biased_neurons.NAME] = "A hard class can look like this, and error-slices is not flagged."
    if not others and slices is not None and slices.numbers.get("low", 0.0) < error_slices.MIN_EFFECT_ALONE:
        doubts[error_slices.NAME] = "Hard examples can look like this: no other finding shows what they have in common."
    return [replace(f, doubt=doubts[f.audit]) if f.flagged and f.audit in doubts else f for f in findings]


def _clear_associations(findings: Sequence[Finding]) -> list[Finding]:
    """Clear properties that predict the label if transplants were tested and none is flagged.

    A property that almost determines the label is not cleared if one is followed in part: a model that also uses the
    object follows a shortcut less often.
    """
    tested = next((f for f in findings if f.audit == transplants.NAME and f.p is not None and not f.flagged), None)
    if tested is None:
        return list(findings)
    is_followed = tested.severity >= property_association.MIN_PARTIAL_EFFECT
    cleared = []
    for finding in findings:
        is_strong = is_followed and finding.severity >= property_association.STRONG_SKILL
        if finding.flagged and finding.audit == property_association.NAME and not is_strong:
            title = f"{finding.title}, but no transplant is followed often enough to be flagged"
            because = f"{finding.because} The model may still use it in a way that transplants do not exchange."
            finding = replace(finding, flagged=False, title=title, because=because)
        cleared.append(finding)
    return cleared


def _report_stage(progress: Progress | None, number: int, count: int, name: str) -> Progress | None:
    """Report the start of an audit, and return a callback that reports its steps as messages of the whole."""
    if progress is None:
        return None
    progress("audit", number, count + 1, name)
    return lambda stage, step, total, _: progress("audit", number, count + 1, f"{name}: {stage}, {step:,} of {total:,}")


def _warn_if_underpowered(findings: Sequence[Finding], permutations: int, level: float) -> None:
    """Warn if there are too few permutations for any finding to be confirmed."""
    n_tests = sum(finding.shows_use and finding.p is not None for finding in findings)
    if n_tests > level * (permutations + 1) + ROUNDING_TOLERANCE:
        warnings.warn(
            f"With {permutations} permutations and {n_tests} tests of use, no finding can be confirmed at a level of "
            f"{level:g}: use at least {math.ceil(n_tests / level) - 1} permutations.",
            SpurlessWarning,
            stacklevel=3,
        )


def _check_normalization(model: nn.Module, split: Split) -> list[str]:
    """Return a note if a network of timm or torchvision, trained elsewhere, gets images in [0, 1]."""
    known = None if isinstance(model, Classifier) else published_normalization(model)
    if known is None or not has_images(split):
        return []
    example = split.example(8)
    if not isinstance(example, Tensor) or float(example.min()) < 0 or float(example.max()) > 1:
        return []
    return [
        f"The {type(model).__name__} gets images in [0, 1], but its library normalizes images with {known}. If it was "
        "trained with that, put nn.Sequential(spurless.models.Normalize(mean, std), model) in its place."
    ]


def _collect_notes(context: AuditContext) -> list[str]:
    """Return notes on a model at chance level, and on a model without heat maps."""
    notes = []
    if context.chance_level_reason is not None:
        is_constant = len(torch.unique(context.predicted)) == 1
        result = "so it uses nothing in its input" if is_constant else "so its errors do not show what it relies on"
        notes.append(
            f"{to_sentence(context.chance_level_reason).rstrip('.')}, {result}. Check that the weights, the order of "
            "the classes and the preprocessing of the inputs are those of its training."
        )
    if has_images(context.split):
        example = move_to_device_of(context.split.example(1), next(context.model.parameters(), None))
        if not gradient_reaches_input(context.model, example):
            notes.append(
                f"No gradient of {context.model.name} reaches its input: a part of it runs under torch.no_grad(), or "
                "detaches its output. So there are no heat maps, and hidden-regions cannot be tested. Freeze that part "
                "by requires_grad_(False) instead."
            )
    return notes


def _select_splits(data: Splits | Split, part: str, crossed: bool = False) -> tuple[Split, Split | None]:
    """Return the split to audit, and train if there is one; ``crossed``: with attribute columns as one attribute."""
    prepare = attribute_association.cross_columns if crossed else lambda split: split
    if isinstance(data, Split):
        return prepare(data), None
    if part not in ("train", "val", "test", ALL):
        raise UnknownNameError("split", part, ("train", "val", "test", ALL))
    split = data.join() if part == ALL else getattr(data, part)
    if not len(split):
        got = ", ".join(name for name in ("train", "val", "test") if len(getattr(data, name)))
        raise InputError(f"the data have no {part} split", where=data.name, got=got)
    return prepare(split), prepare(data.train) if part != ALL and len(data.train) else None


def _resolve_audits(
    only: Sequence[Auditor | str], extra: Sequence[Auditor | str], masks: Tensor | None
) -> tuple[list[Auditor], list[Auditor]]:
    """Return the audits of ``only``, those of the library first and in its order, and of ``extra``."""
    order, only = list(AUDITS), list(dict.fromkeys(only))
    audits = resolve_auditors([*only, *(audit for audit in dict.fromkeys(extra) if audit not in only)], AUDITS)
    named, added = audits[: len(only)], audits[len(only) :]
    if masks is None and any(auditor.needs == "masks" for auditor in audits):
        name = next(auditor.name for auditor in audits if auditor.needs == "masks")
        raise InputError(f"{name} needs masks", hint="Pass masks=, on the command line --masks NPY.")
    return sorted(named, key=lambda a: order.index(a.name) if a.name in AUDITS else len(order)), added


def _describe_input(context: AuditContext) -> dict[str, str]:
    """Return what the model gets, if the examples are images: their shape, and the normalization in the model."""
    if not has_images(context.split):
        return {}
    channels, height, width = context.split.example(1).shape[1:]  # type: ignore[union-attr]  # images
    layer = next((part for part in context.model.modules() if isinstance(part, Normalize)), None)
    normalized = "not normalized by the model" if layer is None else f"normalized with {layer}"
    return {"input": f"{format_count(channels, 'channel')}, {height} x {width} pixels, {normalized}"}


def _describe_part(split: Split, data: Splits | Split, part: str) -> str:
    """Return how many examples were audited, and why these."""
    if isinstance(data, Split):
        return f"all {len(split):,} examples of the given split"
    total = sum(map(len, data.parts))
    if part == ALL:
        note = "" if len(data.train) else ", as held-out data"
        return f"all {total:,} examples{note}"
    return f"{len(split):,} of {total:,} examples: the {part} split"


def _collect_facts(context: AuditContext, data: Splits | Split, part: str, notes: Sequence[str]) -> dict[str, Any]:
    split = context.split
    notes = [*(data.notes if isinstance(data, Splits) else ()), *notes]
    return {
        "model": context.model.name,
        "data": data.name if isinstance(data, Splits) else "one split",
        "part": part if isinstance(data, Splits) else "as given",
        **({"notes": notes} if notes else {}),
        "examples": len(split),
        "audited": _describe_part(split, data, part),
        **_describe_input(context),
        "labels": list(split.groups.labels),
        "attributes": list(split.groups.attributes) if has_any_attribute(split) else [],
        "accuracy": float((~context.incorrect).double().mean()),
        "mistakes": int(context.incorrect.sum()),
        "permutations": context.permutations,
        "level": context.level,
        "versions": versions(),
        "hardware": hardware(next((p.device for p in context.model.parameters()), context.features.device)),
    }


__all__ = ["ALL", "AUDITS", "AuditContext", "Auditor", "Finding", "audit", "check_auditor", "compute_context"]
