"""The README fits on one screen and points at files that exist; test_docs.py runs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_the_readme_fits_on_a_screen() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) <= 140


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "GLOSSARY.md"])
def test_every_link_leads_to_a_file(name: str) -> None:
    prose = re.sub(r"^```.*?^```$", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)", prose):
        assert "://" in target or (ROOT / target).exists(), target


def test_the_citation_has_the_version_of_the_package() -> None:
    import spurless

    assert f"\nversion: {spurless.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
