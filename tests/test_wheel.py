"""The sdist and the wheel are complete, and the wheel installs and runs in an empty environment."""

import json
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


def source_files() -> set[str]:
    """Return the files of the package in the source tree, relative to its parent."""
    files = (path for path in (ROOT / "src" / "spurless").rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT / "src")) for path in files if "__pycache__" not in path.parts}


def test_the_wheel_holds_code_templates_and_the_type_marker_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "spurless/py.typed" in names
    assert any(name.startswith("spurless/reporting/templates/") for name in names)
    assert all(name.startswith(("spurless/", "spurless-")) for name in names)
    assert {name for name in names if name.startswith("spurless/")} == source_files()  # through the sdist


def test_the_sdist_holds_what_tests_docs_and_builds_need(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "Makefile", "mkdocs.yml"} <= names
    assert {"Dockerfile", ".dockerignore", "recipe/meta.yaml", "tests/conftest.py", "docs/index.md"} <= names
    assert {f"src/{name}" for name in source_files()} <= names
    assert not any("__pycache__" in name or name.endswith(".pyc") for name in names)


def test_the_metadata_is_valid(wheel: Path) -> None:
    (name,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA"))
    data = Metadata.from_email(zipfile.ZipFile(wheel).read(name), validate=True)
    assert (data.name, data.description_content_type) == ("spurless", "text/markdown")
    assert {"timm", "text", "hf", "onnx", "track"} <= set(data.provides_extra or ())
    assert (data.description or "").startswith("# Spurless")


def test_twine_accepts_the_files(dist: Path) -> None:
    pytest.importorskip("twine")
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, dist.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_the_wheel_installs_and_runs_in_an_empty_environment(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # it may lead to the source tree
    home = tmp_path / "empty"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    # the dependencies (5 GB) are lent by this environment; the package itself must come from the wheel
    site = next((home / "lib").glob("python*/site-packages"))
    (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    code = "import spurless, sys; print(spurless.__file__)"
    found = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert str(home) in found.stdout
    command = [str(python), "-m", "spurless", "doctor", "--json"]
    doctor = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert set(json.loads(doctor.stdout)["extras"]) == {"timm", "text", "hf", "ray", "track", "onnx"}
    words = [
        "fit",
        "erm",
        "--data",
        "planted",
        "--model",
        "linear",
        "--steps",
        "5",
        "--quiet",
        "--out",
        str(tmp_path / "out"),
    ]
    command = [str(home / "bin" / "spurless"), *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "records.jsonl").exists()
