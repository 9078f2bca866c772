"""The declared dependencies: every imported package is one, every one is used, and each has a lowest version.

``python tests/test_dependencies.py`` prints the lowest versions for pip, and ``make test-lowest`` installs them.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = {"PIL": "pillow", "sklearn": "scikit-learn"}  # distributions with another name than their package
THROUGH_OTHERS = {"tensorboard", "mlflow", "onnxscript"}  # imported by lightning and torch
ALTERNATIVES = {"onnxruntime", "pytest"}  # used if they are installed
NOT_FOR_USERS = {"dev", "docs"}  # extras
SELF = "spurless"


def read_requirements() -> dict[str, list[str]]:
    """Return the requirements of the package ("") and of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    return {"": project["dependencies"]} | {name: rows for name, rows in extras.items() if name not in NOT_FOR_USERS}


def distribution_of(requirement: str) -> str:
    return re.split(r"[\[<>=!~;, ]", requirement)[0].lower()


def imported_packages(path: Path) -> Iterator[str]:
    """Yield the packages that a file imports by a statement, ``import_module`` or ``find_spec``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("import_module", "find_spec"):
            yield from (
                part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)
            )


def all_imported() -> set[str]:
    """Return the distributions that the package imports."""
    found = {name.partition(".")[0] for path in (ROOT / "src").rglob("*.py") for name in imported_packages(path)}
    return {NAMES.get(name, name) for name in found - set(sys.stdlib_module_names) - {SELF}}


def lowest_versions() -> dict[str, str]:
    """Return the lowest version of every requirement of the package and of its extras."""
    rows = [row for rows in read_requirements().values() for row in rows]
    bounds = {distribution_of(row): re.search(r">=([\d.]+)", row) for row in rows}
    return {name: bound.group(1) for name, bound in bounds.items() if bound is not None}


def test_every_imported_package_is_declared() -> None:
    declared = {distribution_of(row) for rows in read_requirements().values() for row in rows}
    assert all_imported() - declared - ALTERNATIVES == set()


def test_every_declared_package_is_imported() -> None:
    declared = {distribution_of(row) for rows in read_requirements().values() for row in rows}
    assert declared - all_imported() - THROUGH_OTHERS == set()


def test_every_requirement_has_a_lowest_version() -> None:
    rows = [row for rows in read_requirements().values() for row in rows]
    assert [row for row in rows if ">=" not in row] == []


if __name__ == "__main__":
    wanted = set(sys.argv[1:]) or set(lowest_versions())
    sys.stdout.writelines(f"{name}=={version}\n" for name, version in lowest_versions().items() if name in wanted)
