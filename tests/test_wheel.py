"""The built wheel installs and runs in an empty environment, away from the source tree."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_code_templates_and_the_type_marker_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "spurless/py.typed" in names
    assert any(name.startswith("spurless/reporting/templates/") for name in names)
    assert all(name.startswith(("spurless/", "spurless-")) for name in names)


def test_the_wheel_installs_and_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
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
