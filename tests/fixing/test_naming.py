"""Naming: texts are grouped by the word that an audit names, in every split, and nowhere else."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import spurless as sp
from spurless.core.findings import Audit, Finding
from spurless.fixing import Fixed, fix
from spurless.fixing.holdout import group_by_word
from spurless.reporting import fix_json, write_fix
from spurless.train.run import Compute

CPU = Compute("cpu")
NAME = "a negation in the second text"


def named(shortcut: str | None = NAME, flagged: bool = True) -> Audit:
    return Audit(
        (Finding("tokens", f"The model relies on {shortcut}", 0.8, flagged, 0.002, "b", "r", shortcut=shortcut),)
    )


@cache
def claims() -> sp.Splits:
    return sp.load("negated-claims", seed=1000, n_train=2000, n_val=600, n_test=600)


@cache
def blind(test: bool = True) -> sp.Splits:
    """Hide attributes; those of test only where that is said."""
    data = claims()
    hidden = replace(data, train=data.train.hide_attributes(), val=data.val.hide_attributes())
    return replace(hidden, test=data.test.hide_attributes()) if test else hidden


@cache
def cheat() -> sp.Classifier:
    model = sp.build("token-mean", claims(), seed=1000)
    train = {"epochs": 20, "optimiser": "adam", "lr": 0.01, "momentum": 0.9}
    return sp.fit("erm", model, claims(), train=train, seed=1000, compute=CPU).model


@cache
def repaired(test: bool = True) -> Fixed:
    found = repaired(False).audit_before if test else None  # of the same model and texts, and it takes its time
    return fix(cheat(), blind(test), audit=found, tolerance=0.05, compute=CPU)


def test_groups_of_the_word_are_those_of_the_attribute_that_it_is() -> None:
    found = group_by_word(blind(), named())
    assert found is not None
    word, grouped = found
    assert word == NAME
    assert grouped.groups.attributes == (f"without {NAME}", f"with {NAME}")
    for ours, theirs in zip(parts(grouped), parts(claims()), strict=True):
        assert torch.equal(ours.a, theirs.a)  # the dataset's attribute is just that


def parts(data: sp.Splits) -> tuple[sp.Split, ...]:
    return data.train, data.val, data.test


def test_nothing_is_named_where_something_is_known_or_nothing_was_found() -> None:
    assert group_by_word(claims(), named()) is None
    assert group_by_word(replace(claims(), train=blind().train), named()) is None
    assert group_by_word(blind(), named(flagged=False)) is None
    assert group_by_word(blind(), named(None)) is None
    assert group_by_word(blind(), named('the word "zebra"')) is None  # of other texts
    assert group_by_word(blind(), Audit(())) is None


def test_a_repair_by_the_word_raises_the_true_worst_group() -> None:
    done = repaired(False)
    assert done.word == NAME
    assert done.after.method == "dfr"
    worst = [record.metrics["worst_group"] or 0.0 for record in (done.before, done.after)]
    assert worst[1] > worst[0] + 0.1
    groups = [row.name for row in done.after.groups]
    assert groups == list(claims().groups.names)  # test has its own attribute, and is told by that


@pytest.mark.slow
def test_where_no_split_has_attributes_test_is_told_by_the_word(tmp_path: Path) -> None:
    done = repaired()
    assert [row.name for row in done.after.groups][:2] == [
        f"{claims().groups.labels[0]}, without {NAME}",
        f"{claims().groups.labels[0]}, with {NAME}",
    ]
    assert done.after.metrics["worst_group"] == repaired(False).after.metrics["worst_group"]
    assert not any(done.after.supervision[name] for name in ("train_attributes", "val_attributes"))
    note = f"The data have no attribute, so groups are defined by the audit: a label, with {NAME} or without."
    assert note in done.after.warnings
    assert sum(note in line for line in done.summary) == 1
    assert json.loads(fix_json(done))["named"] == NAME
    page = write_fix(tmp_path / "fixed.html", done).read_text()
    assert f"For comparison: the worst group by {NAME}." in page
    assert "oracle" not in page
    assert done.audit_after is not None
    assert {f.audit for f in done.audit_after.findings} <= {f.audit for f in done.audit_before.findings}


def test_who_names_a_method_gets_it_as_before() -> None:
    done = fix(cheat(), blind(), method="class-balanced-head", audit=named(), tolerance=1.0, compute=CPU)
    assert done.word is None
    assert [attempt.choice.method for attempt in done.attempts] == ["class-balanced-head"]
