"""Several attribute columns: the used one is named alone, a random one never, and combinations only on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spurless as sp
from spurless.auditing import audit
from spurless.auditing._context import AuditContext
from spurless.auditing.attribute_association import audit_attribute_association, cross_columns, select_known
from spurless.auditing.attribute_use import audit_attribute_use
from spurless.auditing.group_gap import audit_group_gap
from spurless.core.findings import Finding
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split
from spurless.models.classifier import Classifier
from spurless.models.features import compute_logits
from spurless.train.run import Compute

N = 400
LABELS = ("thick", "thin")
CAMERAS, HANDS = ("canon", "nikon"), ("left", "right")
AUDITS = (audit_attribute_use, audit_group_gap, audit_attribute_association)
IDS = ("use", "gap", "association")
ONLY = ("attribute-use", "group-gap", "attribute-association")


def digits(columns: Mapping[str, tuple[str, ...]]) -> Groups:
    return Groups.crossed(LABELS, columns)


def follower(weight: float = 2.0) -> Classifier:
    """A model of two features, the label and the camera: the difference of its logits is their weighted sum."""
    head = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[-0.5, -weight / 2], [0.5, weight / 2]]))
    return Classifier(nn.Identity(), head)


def sample(seed: int = 0, n: int = N, agreement: float = 0.8) -> tuple[Tensor, Tensor, Tensor]:
    """Return labels, cameras that go with them, and a noisy feature of each."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=generator)
    camera = torch.where(torch.rand(n, generator=generator) < agreement, y, 1 - y)
    features = torch.stack([2.0 * y - 1, 2.0 * camera - 1], dim=1)
    return y, camera, features + torch.randn(n, 2, generator=generator)


def random_column(seed: int, values: int = 2, n: int = N) -> Tensor:
    return torch.randint(values, (n,), generator=torch.Generator().manual_seed(1000 + seed))


def make_context(
    y: Tensor, a: Tensor, features: Tensor, groups: Groups, *, model: Classifier | None = None, permutations: int = 199
) -> AuditContext:
    """A context whose training examples are the audited ones."""
    model = model or follower()
    split = Split(features, y, a, groups)
    return AuditContext(model, split, features, compute_logits(model, features), split, Seeds(0), permutations)


def two_columns(seed: int, *, camera_first: bool = True) -> AuditContext:
    """A model that uses the camera, and a second attribute that is random."""
    y, camera, features = sample()
    columns = {"camera": CAMERAS, "hand": HANDS} if camera_first else {"hand": HANDS, "camera": CAMERAS}
    a = torch.stack([camera, random_column(seed)], dim=1)
    return make_context(y, a if camera_first else a.flip(1), features, digits(columns))


@pytest.mark.parametrize("audited", AUDITS, ids=IDS)
def test_the_used_column_is_named_alone_whatever_the_random_one(audited: Callable[[AuditContext], Finding]) -> None:
    for seed in range(20):
        finding = audited(two_columns(seed, camera_first=seed % 2 == 0))
        assert finding.flagged
        assert finding.shortcut == "camera"
        assert not any(value in finding.title for value in ("hand", *HANDS, "&"))
        assert any(value in finding.title for value in CAMERAS)


@pytest.mark.parametrize("audited", AUDITS, ids=IDS)
def test_the_numbers_of_the_used_column_are_those_of_an_audit_of_it_alone(
    audited: Callable[[AuditContext], Finding],
) -> None:
    both = two_columns(1)
    split = replace(both.split, a=both.split.a[:, 0], groups=Groups(both.split.groups.labels, CAMERAS))
    finding, alone = audited(both), audited(replace(both, split=split, train=split))
    of_columns = {name: value for name, value in finding.numbers.items() if name not in alone.numbers}
    assert {name: finding.numbers[name] for name in alone.numbers} == alone.numbers
    assert (finding.severity, finding.rows, finding.p) == (alone.severity, alone.rows, alone.p)
    assert alone.shortcut in CAMERAS
    # the others are the effect and the corrected p-value of both columns
    assert {name.rpartition(" of ")[2] for name in of_columns} == {"camera", "hand"}
    assert of_columns["p of camera"] == finding.p == 1 / 200
    assert of_columns["p of hand"] > 0.05
    effects = {name: value for name, value in of_columns.items() if not name.startswith("p of")}
    assert max(effects.values()) == pytest.approx(finding.severity)
    assert finding.because.startswith(alone.because.rstrip("."))
    assert "camera 0." in finding.because
    assert ", hand " in finding.because


@pytest.mark.parametrize("audited", AUDITS, ids=IDS)
def test_crossed_on_request_is_the_finding_of_the_combinations(audited: Callable[[AuditContext], Finding]) -> None:
    context = two_columns(0)
    names = ("canon & left", "canon & right", "nikon & left", "nikon & right")
    by_hand = replace(context.split, a=2 * context.split.a[:, 0] + context.split.a[:, 1], groups=Groups(LABELS, names))
    split = cross_columns(context.split)
    assert split.groups == by_hand.groups
    assert torch.equal(split.a, by_hand.a)
    finding = audited(replace(context, split=split, train=split))
    assert finding.flagged
    assert finding.shortcut in names
    expected = audited(replace(context, split=by_hand, train=by_hand))
    assert (finding.numbers, finding.p, finding.because) == (expected.numbers, expected.p, expected.because)


def test_the_p_value_is_corrected_for_the_number_of_columns() -> None:
    """With 6 random columns, one of them is below 0.05 in 26 % of the seeds."""
    y, _, features = sample()
    groups = digits({f"column {i}": ("no", "yes") for i in range(6)})
    for audited in AUDITS:
        p = []
        for seed in range(60):
            a = torch.stack([random_column(100 * seed + i) for i in range(6)], dim=1)
            finding = audited(make_context(y, a, features, groups, permutations=99))
            assert finding.p is not None
            p.append(finding.p)
        assert sum(value <= 0.05 for value in p) <= 7  # of 60, more than 7 once in 100 times
        assert 0.35 < sum(p) / 60 < 0.65


def test_of_two_used_columns_the_one_with_the_larger_effect_is_named() -> None:
    y, camera, features = sample(n=4000)
    weak = torch.where(torch.rand(4000, generator=torch.Generator().manual_seed(1)) < 0.65, camera, 1 - camera)
    groups = digits({"hand": HANDS, "camera": CAMERAS})
    for audited in AUDITS:
        finding = audited(make_context(y, torch.stack([weak, camera], dim=1), features, groups, permutations=99))
        assert finding.shortcut == "camera"
        assert finding.numbers["p of hand"] == finding.numbers["p of camera"] == 1 / 100


def test_a_column_that_is_not_used_is_not_flagged() -> None:
    y, camera, features = sample()
    a = torch.stack([camera, random_column(0)], dim=1)
    context = make_context(y, a, features, digits({"camera": CAMERAS, "hand": HANDS}), model=follower(0.0))
    assert not audit_attribute_use(context).flagged
    assert not audit_group_gap(context).flagged
    assert audit_attribute_association(context).shortcut == "camera"  # which is presence


def test_examples_need_every_column_that_is_ever_known() -> None:
    y, camera, features = sample()
    a = torch.stack([torch.full((N,), -1), camera, random_column(0, 3)], dim=1)
    a[:100, 2] = -1
    groups = digits({"day": ("mon", "tue"), "camera": CAMERAS, "size": ("s", "m", "l")})
    known = select_known(Split(features, y, a, groups))
    assert known.rows.tolist() == list(range(100, N))
    assert [column.name for column in known.columns] == ["camera", "size"]
    assert [part.groups.attributes for part in known.parts] == [CAMERAS, ("s", "m", "l")]
    assert torch.equal(known.columns[1].a, a[100:, 2])
    assert audit_attribute_use(make_context(y, a, features, groups)).numbers["examples"] == 300
    for audited in AUDITS:
        hidden = audited(make_context(y, torch.full_like(a, -1), features, groups))
        assert hidden.p is None
        assert "No example has a known attribute" in hidden.because


def test_columns_that_are_crossed_already_are_split() -> None:
    y, camera, features = sample()
    groups = digits({"camera": CAMERAS, "size": ("s", "m", "l")})
    a = torch.stack([camera, random_column(0, 3)], dim=1)
    a[0] = -1
    crossed = torch.where(a.amin(dim=1) < 0, -1, 3 * a[:, 0] + a[:, 1])
    columns = groups.split_columns(crossed)
    assert torch.equal(columns, a)
    one = select_known(Split(features, y, crossed, groups))
    assert torch.equal(one.a, a[1:])


# The whole audit, from a file of several attribute columns.


@pytest.fixture
def table(tmp_path: Path) -> Path:
    y, camera, features = sample(n=1000)
    hand = random_column(0, n=1000)
    rows = [
        f"{x0},{x1},{LABELS[k]},{CAMERAS[c]},{HANDS[h]}"
        for (x0, x1), k, c, h in zip(features.tolist(), y.tolist(), camera.tolist(), hand.tolist(), strict=True)
    ]
    path = tmp_path / "own.csv"
    path.write_text("\n".join(["x0,x1,digit,camera,hand", *rows]) + "\n")
    return path


def load_table(path: Path, *attributes: str) -> sp.Splits:
    return sp.from_csv(path, label="digit", features=["x0", "x1"], attribute=attributes or ("camera", "hand"))


OPTIONS: dict[str, Any] = {"only": ONLY, "permutations": 199, "compute": Compute("cpu"), "pictured": 0}


def test_an_audit_of_a_file_names_the_column(table: Path) -> None:
    data, model = load_table(table), follower()
    assert data.groups.columns == (("camera", CAMERAS), ("hand", HANDS))
    result = audit(model, data, **OPTIONS)
    assert {finding.audit: finding.shortcut for finding in result.flagged} == dict.fromkeys(ONLY, "camera")
    [use] = [finding for finding in result.findings if finding.audit == "attribute-use"]
    assert use.title.startswith("Predictions follow the attribute “camera”: ")
    crossed = audit(model, data, crossed=True, **OPTIONS)
    assert all(" & " in str(finding.shortcut) for finding in crossed.flagged)
    assert len(crossed.flagged) == 3
    alone = load_table(table, "camera")
    plain, requested = (audit(model, alone, crossed=value, **OPTIONS) for value in (False, True))
    assert plain.findings == requested.findings  # one column has no combinations
    assert all(finding.shortcut in CAMERAS for finding in plain.flagged)


def test_names_of_columns_are_not_part_of_fingerprints(table: Path) -> None:
    data = load_table(table)
    other = replace(data.val, groups=replace(data.groups, columns=(("a", CAMERAS), ("b", HANDS))))
    assert other.fingerprint() == data.val.fingerprint()
