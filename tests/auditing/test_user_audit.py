"""Audits of a user: by file, as an object and as an installed entry point; run only if named, and checked."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch

import spurless as sp
from spurless.auditing import Auditor, audit
from spurless.auditing._context import AuditContext
from spurless.auditing._user_audit import installed_audits
from spurless.core.errors import InputError, UnknownNameError
from spurless.core.findings import Finding
from spurless.models.classifier import Classifier
from spurless.train.run import Compute

OWN_AUDITS = """
from spurless.auditing import Auditor, Finding

def count(context):
    return Finding("count", f"{len(context)} examples", 0.25, False, None, "because", "remedy", shows_use=False)

COUNT = Auditor("count", "How many examples are there?", "labels", count)
TEXTS = Auditor("count-texts", "How many texts are there?", "texts", count)
NUMBER = 3
TAKEN = Auditor("worst-class", "Is it?", "labels", count)
SPACED = Auditor("my audit", "Is it?", "labels", count)
SILENT = Auditor("silent", " ", "labels", count)
SOUND = Auditor("sound", "Is it?", "sounds", count)
IDLE = Auditor("idle", "Is it?", "labels", None)
OTHER = Auditor("other", "Is it?", "labels", count)
FAILS = Auditor("fails", "Is it?", "labels", lambda context: 1 / 0)
EXITS = Auditor("exits", "Is it?", "labels", lambda context: exit(3))
"""
SHORT: dict[str, Any] = {"permutations": 19, "compute": Compute("cpu"), "pictured": 0}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "audits.py").write_text(OWN_AUDITS)
    return tmp_path / "audits.py"


@pytest.fixture(scope="module")
def problem() -> tuple[Classifier, Any]:
    data = sp.load("planted", n_train=60, n_val=200, n_test=20)
    model = sp.build("linear", data, seed=0)
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[0.0, 0.0], [3.0, 0.0]]))  # type: ignore[operator]  # of a linear layer
    return model, data.val


def names(result: Any) -> set[str]:
    return {finding.audit for finding in result.findings}


@pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")
def test_an_audit_of_a_file_runs_alone_or_with_the_others(own: Path, problem: Any) -> None:
    alone = audit(*problem, only=[f"{own}:COUNT"], **SHORT)
    assert [(f.audit, f.title, f.severity) for f in alone.findings] == [("count", "200 examples", 0.25)]
    with_two = audit(*problem, only=["worst-class"], extra=[f"{own}:COUNT"], **SHORT)
    assert names(with_two) == {"count", "worst-class"}
    with_all = audit(*problem, extra=[f"{own}:COUNT"], **SHORT)
    assert names(with_all) == names(audit(*problem, **SHORT)) | {"count"}


@pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")
def test_an_object_is_an_audit_and_naming_it_twice_runs_it_once(problem: Any) -> None:
    runs = []

    def run(context: AuditContext) -> Finding:
        runs.append(len(context))
        return Finding("mine", "title", 0.0, False, None, "because", "remedy")

    mine = Auditor("mine", "Is it?", "labels", run)
    assert names(audit(*problem, only=[mine, mine], extra=[mine], **SHORT)) == {"mine"}
    assert runs == [200]
    assert names(audit(*problem, only=["tokens", "tokens"], extra=["tokens"], **SHORT)) == {"tokens"}


@pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")
def test_without_what_it_needs_it_is_not_run(own: Path, problem: Any) -> None:
    (finding,) = audit(*problem, only=[f"{own}:TEXTS"], **SHORT).findings
    assert (finding.p, finding.title) == (None, "Not tested: How many texts are there?")
    assert "texts" in finding.because


@pytest.mark.parametrize(
    ("called", "what"),
    [
        ("NUMBER", "not an audit .*got int"),
        ("CUONT", "does not define 'CUONT'.*It has: .*OTHER, FAILS, EXITS"),
        ("TAKEN", "taken by an audit of the library"),
        ("SPACED", "field 'name' .*got 'my audit'"),
        ("SILENT", "field 'question'"),
        ("SOUND", "field 'needs' .*expected labels or attributes .*got 'sounds'"),
        ("IDLE", "field 'run' .*got NoneType"),
        ("OTHER", "name of another audit .expected other, got count"),
        ("FAILS", "'fails' failed: ZeroDivisionError"),
        ("EXITS", "'exits' failed: SystemExit"),
    ],
)
def test_one_that_is_not_valid_is_one_sentence(own: Path, problem: Any, called: str, what: str) -> None:
    with pytest.raises(InputError, match=what) as raised:
        audit(*problem, only=[f"{own}:{called}"], **SHORT)
    assert "\n" not in str(raised.value)


def test_two_of_the_same_name_are_an_error(own: Path, problem: Any) -> None:
    copy = own.with_name("copy.py")
    copy.write_text(OWN_AUDITS)
    with pytest.raises(InputError, match=r"same name .got count"):
        audit(*problem, extra=[f"{own}:COUNT", f"{copy}:COUNT"], **SHORT)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package on the path with entry points, as pip installs them; its import leaves a file."""
    info = tmp_path / "site" / "counting-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n")
    lines = "count = counting_audits:COUNT", "renamed = counting_audits:COUNT", "gone = counting_audits:GONE"
    (info / "entry_points.txt").write_text("\n".join(["[spurless.audits]", *lines]))
    imported = tmp_path / "imported"
    code = f"{OWN_AUDITS}\nopen({str(imported)!r}, 'w').close()\n"
    (tmp_path / "site" / "counting_audits.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return imported


@pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")
def test_an_installed_audit_is_imported_only_if_it_is_named(installed: Path, problem: Any) -> None:
    assert {"count", "renamed", "gone"} <= set(installed_audits())
    assert "count" not in names(audit(*problem, **SHORT))
    with pytest.raises(UnknownNameError, match="Did you mean 'count'"):
        audit(*problem, only=["cuont"], **SHORT)
    assert not installed.exists()
    assert names(audit(*problem, only=["count"], **SHORT)) == {"count"}
    assert installed.exists()
    with pytest.raises(InputError, match=r"different names .expected renamed, got count"):
        audit(*problem, extra=["renamed"], **SHORT)
    with pytest.raises(InputError, match="cannot be imported: AttributeError"):
        audit(*problem, extra=["gone"], **SHORT)


def test_the_package_itself_has_no_entry_points() -> None:
    assert [entry for entry in entry_points(group="spurless.audits") if entry.value.startswith("spurless")] == []
