"""What is shipped next to the package: citation, conda recipe and Dockerfile agree with pyproject.toml."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA_NAMES = {"torch": "pytorch"}


def read_recipe(version: str) -> dict[str, Any]:
    """Return the recipe with its two variables filled in."""
    yaml = pytest.importorskip("yaml")
    text = (ROOT / "recipe" / "meta.yaml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("{%")]
    return dict(yaml.safe_load("\n".join(lines).replace("{{ version }}", version).replace("{{ PYTHON }}", "python")))


def test_the_recipe_has_the_requirements_of_the_package() -> None:
    recipe = read_recipe(PROJECT["version"])
    pairs = [re.fullmatch(r"([\w-]+)([<>=].*)", row) for row in PROJECT["dependencies"]]
    expected = [f"{CONDA_NAMES.get(pair[1], pair[1])} {pair[2]}" for pair in pairs if pair is not None]
    assert len(expected) == len(PROJECT["dependencies"])
    python = f"python {PROJECT['requires-python']}"
    assert recipe["requirements"]["run"] == [python, *expected]
    assert python in recipe["requirements"]["host"]
    assert recipe["build"]["entry_points"] == [f"{name} = {entry}" for name, entry in PROJECT["scripts"].items()]


def test_the_recipe_has_the_name_version_and_license_of_the_package() -> None:
    text = (ROOT / "recipe" / "meta.yaml").read_text()
    assert f'{{% set version = "{PROJECT["version"]}" %}}' in text
    recipe = read_recipe(PROJECT["version"])
    assert recipe["package"] == {"name": PROJECT["name"], "version": PROJECT["version"]}
    assert recipe["about"]["summary"] == PROJECT["description"]
    assert recipe["about"]["license"] == PROJECT["license"]
    assert (ROOT / recipe["about"]["license_file"]).is_file()


def test_the_citation_file_has_what_its_format_requires() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    known = {"cff-version", "message", "title", "type", "authors", "version", "license", "keywords", "abstract"}
    assert set(citation) <= known
    assert str(citation["cff-version"]) == "1.2.0"
    assert citation["type"] in ("software", "dataset")
    assert isinstance(citation["message"], str)
    assert isinstance(citation["title"], str)
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in PROJECT["authors"]]
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert all(isinstance(keyword, str) for keyword in citation["keywords"])
    assert len(set(citation["keywords"])) == len(citation["keywords"])


def test_the_image_gets_the_files_that_a_build_needs_and_nothing_else() -> None:
    docker = (ROOT / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.*)$", docker, re.MULTILINE) for word in line.split()[:-1]]
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sorted(copied) == sorted(sent) == ["LICENSE", "README.md", "pyproject.toml", "src"]
    assert all((ROOT / name).exists() for name in copied)
    assert {PROJECT["readme"], *PROJECT["license-files"]} <= set(copied)


def test_no_registry_of_packages_is_named() -> None:
    files = [ROOT / name for name in ("Dockerfile", "Makefile", "README.md", "pyproject.toml", "recipe/meta.yaml")]
    found = {path.name: re.findall(r"https?://\S+", path.read_text()) for path in files}
    assert {name: urls for name, urls in found.items() if urls} == {}


@pytest.mark.slow
def test_the_image_builds_and_runs() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        pytest.skip("docker is not running")
    base = subprocess.run([docker, "image", "inspect", "python:3.12-slim"], capture_output=True, check=False)
    if base.returncode:
        pytest.skip("the base image is not on this machine")
    tag = "spurless-test"
    subprocess.run([docker, "build", "--tag", tag, str(ROOT)], check=True, capture_output=True, timeout=3600)
    done = subprocess.run([docker, "run", "--rm", tag, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == PROJECT["version"]
