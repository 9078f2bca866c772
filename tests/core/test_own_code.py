"""Own code: known by its form, found from anywhere, marked by its content, run only when it is opened."""

import sys
from pathlib import Path

import pytest

from spurless.core.errors import BadInput
from spurless.core.own_code import is_own, mark_of, opened, settled


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("nets.py:make", True),
        ("/a b/nets-2.py:make", True),
        ("mine.nets:Net", True),
        ("torch:zeros", True),
        ("no_such_module:make", False),
        ("__main__:make", False),
        ("small-cnn", False),
        ("nets.py", False),
        ("nets.py:", False),
        (":make", False),
        ("nets.pyc:a-b", False),
        ("a-b.c:make", False),
    ],
)
def test_own_code_is_known_by_its_form(name: str, own: bool) -> None:
    assert is_own(name) is own


def test_a_name_is_settled_for_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert settled("nets.py:plain") == f"{tmp_path.resolve() / 'nets.py'}:plain"
    assert [settled(name) for name in ("mine.nets:Net", "small-cnn", "timm:resnet18")] == [
        "mine.nets:Net",
        "small-cnn",
        "timm:resnet18",
    ]


def test_the_mark_is_that_of_the_content(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("one = 1\n")
    name = settled(f"{path}:one")
    with opened(name) as code:
        assert code.wanted("a number") == 1
        assert code.mark == mark_of(name)
    path.write_text("one = 2\n")
    assert mark_of(name) != code.mark
    with opened(name) as anew:
        assert anew.wanted("a number") == 2
    assert code.wanted("a number") == 1
    assert (mark_of("json:loads"), mark_of(f"{tmp_path}/gone.py:one")) == (None, None)


def test_what_lies_beside_can_be_imported_while_it_is_open_and_no_longer(tmp_path: Path) -> None:
    (tmp_path / "beside_of_mine.py").write_text("two = 2\n")
    (tmp_path / "a.py").write_text("def two():\n    from beside_of_mine import two\n    return two\n")
    before = list(sys.path)
    with opened(f"{tmp_path / 'a.py'}:two") as code:
        assert code.wanted("a function")() == 2
    del sys.modules["beside_of_mine"]
    assert sys.path == before
    with pytest.raises(ModuleNotFoundError):
        code.wanted("a function")()


def test_what_is_misspelt_is_answered_with_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def make(): ...\ndef _hidden(): ...\n")
    with (
        opened(f"{tmp_path / 'a.py'}:mkae") as code,
        pytest.raises(BadInput, match=r"no 'mkae' in it \(expected a thing\)\. Did you mean 'make'\?"),
    ):
        code.wanted("a thing")
    with (
        opened(f"{tmp_path / 'a.py'}:zzz") as code,
        pytest.raises(BadInput, match=r"It has: make\."),
    ):
        code.wanted("a thing")
