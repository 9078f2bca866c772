"""Own code: known by its form, found from anywhere, marked by its content, run only when it is opened."""

import sys
from pathlib import Path

import pytest

from spurless.core.errors import InputError
from spurless.core.user_code import is_user_code, load_user_code, resolve_user_code_name, user_code_hash


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
    assert is_user_code(name) is own


def test_a_name_is_settled_for_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_user_code_name("nets.py:plain") == f"{tmp_path.resolve() / 'nets.py'}:plain"
    assert [resolve_user_code_name(name) for name in ("mine.nets:Net", "small-cnn", "timm:resnet18")] == [
        "mine.nets:Net",
        "small-cnn",
        "timm:resnet18",
    ]


def test_the_mark_is_that_of_the_content(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("one = 1\n")
    name = resolve_user_code_name(f"{path}:one")
    with load_user_code(name) as code:
        assert code.get("a number") == 1
        assert code.file_hash == user_code_hash(name)
    path.write_text("one = 2\n")
    assert user_code_hash(name) != code.file_hash
    with load_user_code(name) as anew:
        assert anew.get("a number") == 2
    assert code.get("a number") == 1
    assert (user_code_hash("json:loads"), user_code_hash(f"{tmp_path}/gone.py:one")) == (None, None)


def test_what_lies_beside_can_be_imported_while_it_is_open_and_no_longer(tmp_path: Path) -> None:
    (tmp_path / "beside_of_mine.py").write_text("two = 2\n")
    (tmp_path / "a.py").write_text("def two():\n    from beside_of_mine import two\n    return two\n")
    before = list(sys.path)
    with load_user_code(f"{tmp_path / 'a.py'}:two") as code:
        assert code.get("a function")() == 2
    del sys.modules["beside_of_mine"]
    assert sys.path == before
    with pytest.raises(ModuleNotFoundError):
        code.get("a function")()


def test_what_is_misspelt_is_answered_with_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def make(): ...\ndef _hidden(): ...\n")
    with (
        load_user_code(f"{tmp_path / 'a.py'}:mkae") as code,
        pytest.raises(InputError, match=r"it does not define 'mkae' \(expected a thing\)\. Did you mean 'make'\?"),
    ):
        code.get("a thing")
    with (
        load_user_code(f"{tmp_path / 'a.py'}:zzz") as code,
        pytest.raises(InputError, match=r"It has: make\."),
    ):
        code.get("a thing")
