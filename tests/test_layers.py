"""The house: imports point down, rooms are small, every module has its test."""

import ast
from pathlib import Path

import pytest

import spurless

MAY_KNOW = {
    "core": set(),
    "data": {"core"},
    "models": {"core"},
    "metrics": {"core"},
    "train": {"core", "data", "models", "metrics"},
    "explain": {"core", "data", "models", "metrics", "train"},
    "methods": {"core", "data", "models", "metrics", "train", "explain"},
    "auditing": {"core", "data", "models", "metrics", "train", "explain", "reporting"},
    "bench": {"core", "data", "models", "metrics", "train", "explain", "methods", "auditing"},
    "fixing": {"core", "data", "models", "metrics", "train", "methods", "auditing", "bench", "reporting"},
    "reporting": {"core"},
    "cli": {
        "core", "data", "models", "metrics", "train", "explain", "methods", "auditing", "bench", "fixing", "reporting",
    },
}  # fmt: skip
ROOT = Path(spurless.__path__[0])
MODULES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT)
FREE = {"__init__", "base"}


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def imported(path: Path) -> set[str]:
    """The rooms a file imports, at its head or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name.startswith("spurless.")}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_knows_only_the_rooms_below(path: Path) -> None:
    room = room_of(path)
    assert imported(path) <= MAY_KNOW[room] | {room}


def test_every_room_is_in_the_plan() -> None:
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms <= set(MAY_KNOW)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_fits_on_a_few_screens(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_says_first_what_lives_there(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_every_module_has_its_test() -> None:
    tests = Path(__file__).parent
    missing = [
        str(path.relative_to(ROOT))
        for path in MODULES
        if path.stem not in FREE and not (tests / path.relative_to(ROOT).parent / f"test_{path.stem}.py").exists()
    ]
    assert missing == []


def test_the_optimiser_steps_in_one_place() -> None:
    steppers = {room_of(path) for path in MODULES if ".step()" in path.read_text()}
    assert steppers == {"train"}


def test_nothing_prints_or_seeds_globally_outside_the_command_line() -> None:
    for path in MODULES:
        text = path.read_text()
        assert "torch.manual_seed" not in text, path
        assert "np.random.seed" not in text, path
        assert ".cuda()" not in text, path
