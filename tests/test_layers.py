"""The architecture: packages import only packages below them, and every module is documented and tested."""

import ast
from pathlib import Path

import spurless

MAY_IMPORT = {
    "core": set(),
    "data": {"core"},
    "models": {"core", "data"},
    "metrics": {"core"},
    "train": {"core", "data", "models", "metrics"},
    "explain": {"core", "data", "models", "metrics", "train"},
    "methods": {"core", "data", "models", "metrics", "train", "explain"},
    "fitting": {"core", "data", "models", "metrics", "train", "explain", "methods"},
    "auditing": {"core", "data", "models", "metrics", "train", "explain", "reporting"},
    "fixing": {"core", "data", "models", "metrics", "train", "methods", "fitting", "auditing", "reporting"},
    "bench": {"core", "data", "models", "metrics", "train", "explain", "methods", "fitting"},
    "reporting": {"core"},
}
MAY_IMPORT["cli"] = set(MAY_IMPORT)
ROOT = Path(spurless.__path__[0])
MODULES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT)
MOST_LINES = 500


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def imported_packages(path: Path) -> set[str]:
    """Return the packages a file imports, at module level or inside a function."""
    packages = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        packages |= {name.split(".")[1] for name in names if name.startswith("spurless.")}
    return packages


def test_packages_import_only_packages_below_them() -> None:
    wrong = {
        str(path.relative_to(ROOT)): sorted(imported_packages(path) - MAY_IMPORT[package_of(path)] - {package_of(path)})
        for path in MODULES
    }
    assert {path: packages for path, packages in wrong.items() if packages} == {}


def test_every_package_is_in_the_table() -> None:
    packages = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert packages == set(MAY_IMPORT)


def test_files_have_at_most_500_lines_and_a_module_docstring() -> None:
    long = [str(path.relative_to(ROOT)) for path in MODULES if len(path.read_text().splitlines()) > MOST_LINES]
    silent = [str(path.relative_to(ROOT)) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))]
    assert (long, silent) == ([], [])


def test_every_module_is_imported_by_a_test_of_its_package() -> None:
    """A test file per module, or one for several modules of a package."""
    tests = Path(__file__).parent
    missing = []
    for path in MODULES:
        module = ".".join(("spurless", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        texts = (test.read_text() for test in (tests / package_of(path)).rglob("test_*.py"))
        name = path.stem.lstrip("_")
        own = any((tests / package_of(path)).rglob(f"test_{name}.py"))
        if path.stem != "__init__" and not own and not any(module in text for text in texts):
            missing.append(module)
    assert missing == []


def test_the_optimizer_steps_only_in_train() -> None:
    assert {package_of(path) for path in MODULES if ".step()" in path.read_text()} == {"train"}


def test_nothing_prints_or_seeds_globally_outside_the_command_line() -> None:
    for path in MODULES:
        text = path.read_text()
        assert "torch.manual_seed" not in text, path
        assert "np.random.seed" not in text, path
        assert ".cuda()" not in text, path


def test_the_command_line_prints_through_the_console_module() -> None:
    """It escapes control characters; help texts and the version contain none."""
    others = [path for path in MODULES if package_of(path) == "cli" and path.name != "console.py"]
    prints = [line.strip() for path in others for line in path.read_text().splitlines() if " print(" in line]
    allowed = (
        "print(context.get_help())",
        "print(__version__)",
        'print(f"spurless: warning: {escape_controls(message)}"',
    )
    assert [line for line in prints if not line.startswith(allowed)] == []
