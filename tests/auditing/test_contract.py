"""The contract that every audit follows, for the library's and for those of a user; each part of it is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from spurless.auditing import AUDITS, Auditor, check_auditor
from spurless.auditing._context import AuditContext
from spurless.auditing.contract import make_clean_context
from spurless.core.errors import InputError
from spurless.core.findings import Finding


@pytest.mark.parametrize("name", list(AUDITS))
def test_every_audit_of_the_library_follows_the_contract(name: str) -> None:
    check_auditor(name)


@pytest.mark.parametrize("needs", ["labels", "images", "texts", "masks", "attributes"])
def test_the_labels_are_drawn_from_the_models_probabilities(needs: str) -> None:
    context = make_clean_context(needs, 3)  # type: ignore[arg-type]
    assert context.provides(needs)  # type: ignore[arg-type]
    expected = float((1 - context.probabilities.max(dim=1).values).mean())
    assert float(context.incorrect.double().mean()) == pytest.approx(expected, abs=0.08)  # three standard deviations
    assert torch.equal(context.model(context.split.x), context.logits)


def finding(**changes: object) -> Finding:
    return replace(Finding("mine", "title", 0.1, False, 0.5, "because", "remedy"), **changes)  # type: ignore[arg-type]


def auditor(run: Callable[[AuditContext], object]) -> Auditor:
    return Auditor("mine", "Is it?", "labels", run)  # type: ignore[arg-type]


def test_a_correct_audit_passes() -> None:
    check_auditor(auditor(lambda context: finding(numbers={"n": len(context)}, rows=(0,))))


def add_one(context: AuditContext) -> Finding:
    context.logits.add_(1)
    return finding()


def train_head(context: AuditContext) -> Finding:
    next(context.model.parameters()).requires_grad_(False)
    return finding()


def shift_inputs(context: AuditContext) -> Finding:
    context.split.x.mul_(2)  # type: ignore[union-attr]
    return finding()


def draw_globally(_: AuditContext) -> Finding:
    torch.rand(1)
    return finding()


def draw_with_own_state(_: AuditContext) -> Finding:
    return finding(severity=float(np.random.default_rng().random()))


def flag_all(_: AuditContext) -> Finding:
    return finding(flagged=True, p=0.01)


@pytest.mark.parametrize(
    ("run", "what"),
    [
        (lambda _: None, "does not return a finding"),
        (lambda _: finding(audit="other"), "the name of another audit"),
        (lambda _: finding(p=1.5), "p-value is out of range"),
        (lambda _: finding(p=float("nan")), "p-value is out of range"),
        (lambda _: finding(severity=2.0), "failed: ValueError: severity must be"),
        (lambda _: finding(numbers={"low": float("nan")}), "'low' is not finite"),
        (lambda _: finding(rows=(10**6,)), "row is out of range"),
        (lambda _: finding(flagged=True, p=None), "flagged finding is not significant"),
        (lambda _: finding(flagged=True, p=0.2), "flagged finding is not significant"),
        (add_one, "changes the logits"),
        (shift_inputs, "changes the inputs"),
        (train_head, "changes the training mode or requires_grad"),
        (draw_globally, "changes the global random generator"),
        (draw_with_own_state, "two runs .* different results"),
        (flag_all, "flags a clean model"),
    ],
)
def test_each_part_of_the_contract_is_checked(run: Callable[[AuditContext], object], what: str) -> None:
    state = torch.get_rng_state()
    with pytest.raises(InputError, match=what) as raised:
        check_auditor(auditor(run))
    assert "mine" in str(raised.value)
    assert torch.equal(torch.get_rng_state(), state)
