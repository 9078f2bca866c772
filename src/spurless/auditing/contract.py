"""Check that an audit follows the contract of all audits, on small examples without a shortcut.

The examples are random. The model reads one clean feature, and the labels are drawn from its own probabilities: so its
errors are noise, and neither an attribute nor anything else in the examples is a shortcut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spurless.auditing._context import AuditContext, Auditor, Needs
from spurless.auditing._user_audit import check_finding, resolve_auditors
from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError
from spurless.core.findings import Finding
from spurless.core.groups import Groups
from spurless.core.hashing import content_hash
from spurless.core.modules import Input
from spurless.core.seeds import Seeds
from spurless.data.split import Split
from spurless.models.classifier import Classifier

EXAMPLES = 240
PERMUTATIONS = 99
SIDE = 12  # of images, in pixels
OBJECT = slice(4, 8)  # rows and columns of the object in every image
WORDS = 40  # of texts; the first two tokens are special
TEXT_LENGTH = 16
STRENGTH = 2.0  # standard deviation of the logit, which makes about one label in five unexpected
DATASETS = 6  # for the rate of false alarms
MAX_FALSE_ALARMS = 2  # of them; at a rate of 0.05, more have a probability of 0.002
KINDS: dict[Needs, tuple[Needs, ...]] = {"labels": ("labels", "images", "texts")}
"""Kinds of examples for an audit; for ``labels`` they are feature vectors, if not listed the kind that it needs."""
EXPECTED_CLEAN = f"at most {MAX_FALSE_ALARMS} of {DATASETS} datasets without a shortcut"


def check_auditor(auditor: Auditor | str, *, seed: int = 0) -> None:
    """Check that an audit follows the contract, or raise.

    The audit is run on small random examples of the kind that it needs, with a model that uses no shortcut. It must

    * return a :class:`~spurless.core.findings.Finding` under its own name, with ``p`` in [0, 1] or None, finite numbers
      and existing rows, and flag only if ``p`` is at most the level;
    * return the same finding again, whatever the state of the global random generators, and leave that state unchanged:
      randomness comes from ``context.seeds``;
    * change neither the model nor the examples;
    * hardly ever flag this model.

    Args:
        auditor: an ``Auditor``, ``FILE.py:AUDIT``, or the name of an audit.
        seed: seed of the examples.

    Raises:
        InputError: the audit does not follow the contract; the message states which part.

    Example:
        >>> from spurless.auditing import AUDITS
        >>> check_auditor(AUDITS["worst-class"])
    """
    check_arguments(check_auditor, locals())
    from spurless.auditing import AUDITS

    (audit,) = resolve_auditors([auditor], AUDITS)
    for kind in KINDS.get(audit.needs, (audit.needs,)):
        seeds = [Seeds(seed).number("contract", kind, number) for number in range(DATASETS)]
        _check_repeatable(audit, make_clean_context(kind, seeds[0]))
        findings = [_run(audit, make_clean_context(kind, number)) for number in seeds]
        flagged = [finding for finding in findings if finding.flagged]
        if len(flagged) > MAX_FALSE_ALARMS:
            got = f"{len(flagged)}, such as: {flagged[0].title}"
            hint = "Compare the statistic with permutations, and flag only effects that are large enough to matter."
            what = "the audit flags a clean model"
            raise InputError(what, where=audit.name, expected=EXPECTED_CLEAN, got=got, hint=hint)


def make_clean_context(needs: Needs, seed: int) -> AuditContext:
    """Return random examples with what an audit needs, and a model of one clean feature that drew their labels."""
    generator = torch.Generator().manual_seed(seed)
    make: Callable[[torch.Generator], tuple[Input, nn.Module]] = _make_vectors
    if needs in ("images", "masks", "texts"):
        make = _make_texts if needs == "texts" else _make_images
    with Seeds(seed).seed_global_rng("model"):  # torch initializes layers from the global generator
        x, backbone = make(generator)
        model = Classifier(backbone, nn.Linear(1, 2), name="clean feature", trained=True).eval()
    with torch.no_grad():
        raw = model.features(x)
        scale = STRENGTH / float(raw.std())
        model.head.weight.copy_(torch.tensor([[0.0], [scale]]))  # type: ignore[operator]  # of a linear layer
        model.head.bias.copy_(torch.tensor([0.0, -scale * float(raw.mean())]))  # type: ignore[operator]
        logits = model(x)
    y = torch.multinomial(logits.softmax(dim=1), 1, generator=generator).flatten()
    a = torch.randint(2, (EXAMPLES,), generator=generator)
    split = Split(x, y, a, Groups(("class 0", "class 1"), ("value 0", "value 1")))
    masks = None
    if needs == "masks":
        masks = torch.zeros(EXAMPLES, SIDE, SIDE, dtype=torch.bool)
        masks[:, OBJECT, OBJECT] = True
    return AuditContext(model, split, raw, logits, seeds=Seeds(seed), permutations=PERMUTATIONS, masks=masks)


class _FirstColumn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1]


class _BarContrast(nn.Module):
    """Difference of the brightness of a horizontal and a vertical bar, which cross in the object."""

    def forward(self, x: Tensor) -> Tensor:
        patch = x[:, :, OBJECT, OBJECT].float().mean(dim=1)
        return (patch[:, 1:3].mean(dim=(1, 2)) - patch[:, :, 1:3].mean(dim=(1, 2)))[:, None]


class _WordSum(nn.Module):
    """Sum of the weights of the words, all of similar importance."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(weights), 1, _weight=weights[:, None])

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        values: Tensor = self.embedding(input_ids.long())
        return (values * attention_mask[..., None]).sum(dim=1)


def _make_vectors(generator: torch.Generator) -> tuple[Tensor, nn.Module]:
    return torch.randn(EXAMPLES, 6, generator=generator), _FirstColumn()


def _make_images(generator: torch.Generator) -> tuple[Tensor, nn.Module]:
    images = 0.3 + 0.1 * torch.rand(EXAMPLES, 3, SIDE, SIDE, generator=generator)
    bars = 0.4 * torch.rand(2, EXAMPLES, 1, 1, 1, generator=generator)
    patch = images[:, :, OBJECT, OBJECT]
    patch[:, :, 1:3] += bars[0]
    patch[:, :, :, 1:3] += bars[1]
    return images, _BarContrast()


def _make_texts(generator: torch.Generator) -> tuple[dict[str, Tensor], nn.Module]:
    ids = torch.randint(2, WORDS, (EXAMPLES, TEXT_LENGTH), generator=generator)
    ids[:, 0] = 1
    sign = torch.where(torch.arange(WORDS) % 2 == 0, 1.0, -1.0)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, _WordSum(sign)


def _run(audit: Auditor, context: AuditContext) -> Finding:
    finding = check_finding(audit.run(context), audit, context)
    if finding.flagged and (finding.p is None or finding.p > context.level):
        expected, got = f"p of at most {context.level:g}", finding.p
        raise InputError("a flagged finding is not significant", where=audit.name, expected=expected, got=got)
    return finding


def _check_repeatable(audit: Auditor, context: AuditContext) -> None:
    """Raise if a second run returns another finding, or a run changes the model, the examples or global generators."""
    findings = []
    with torch.random.fork_rng(devices=[]):
        numpy_state = np.random.get_state()  # noqa: NPY002  # an audit may have used it
        try:
            for _ in range(2):
                torch.rand(1)
                np.random.random()  # noqa: NPY002
                before = _hash_parts(context)
                findings.append(_run(audit, context))
                _check_unchanged(audit, before, _hash_parts(context))
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
    first, second = ((f.title, f.severity, f.p, f.flagged, dict(f.numbers), f.rows) for f in findings)
    if first != second:
        got = f"severity {first[1]:g} and {second[1]:g}, p {first[2]} and {second[2]}"
        hint = "Draw random numbers from context.seeds.generator(PURPOSE)."
        what = "two runs on the same examples have different results"
        raise InputError(what, where=audit.name, got=got, hint=hint)


def _check_unchanged(audit: Auditor, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    changed = [part for part, value in before.items() if after[part] != value]
    if changed:
        hint = "Work on copies, and draw random numbers from context.seeds.generator(PURPOSE)."
        raise InputError(f"the audit changes {changed[0]}", where=audit.name, hint=hint)


def _hash_parts(context: AuditContext) -> dict[str, str]:
    model, split = context.model, context.split
    x: Any = split.x
    numpy_state: Any = np.random.get_state()  # noqa: NPY002  # an audit may use the global generator
    inputs = [x[name] for name in sorted(x)] if isinstance(x, dict) else [x]
    flags: list[Any] = [(name, p.requires_grad) for name, p in model.named_parameters()]
    modes: list[Any] = [(name, module.training) for name, module in model.named_modules()]
    return {
        "the weights of the model": content_hash(*(part for item in model.state_dict().items() for part in item)),
        "the training mode or requires_grad of the model": content_hash(flags, modes),
        "the inputs": content_hash(*inputs),
        "the labels": content_hash(split.y),
        "the attributes": content_hash(split.a),
        "the features": content_hash(context.features),
        "the logits": content_hash(context.logits),
        "the global random generator": content_hash(torch.get_rng_state(), numpy_state[1].tobytes(), numpy_state[2]),
    }
