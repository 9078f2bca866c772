"""Limits: their defaults, the variables that raise them, and the fields of the errors."""

from pathlib import Path

import pytest

from spurless.core import limits
from spurless.core.errors import InputError
from spurless.core.limits import MAX_GROUPS, MIN_UNPACKED, check_bytes, check_groups, max_bytes, max_unpacked


@pytest.fixture(autouse=True)
def defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPURLESS_MAX_BYTES", raising=False)
    monkeypatch.delenv("SPURLESS_MAX_GROUPS", raising=False)
    monkeypatch.setattr(limits, "_memory", lambda: 64 * 10**9)


def test_half_of_the_memory_is_the_default_and_the_variable_replaces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_bytes(32 * 10**9, "the array")
    with pytest.raises(InputError) as caught:
        check_bytes(32 * 10**9 + 10**8, "the array 'x'", where="a.npz")
    assert (caught.value.what, caught.value.where) == ("the array 'x' is too large", "a.npz")
    assert (caught.value.expected, caught.value.got) == ("at most 32.0 GB", "32.1 GB")
    assert "SPURLESS_MAX_BYTES" in caught.value.hint
    monkeypatch.setenv("SPURLESS_MAX_BYTES", str(10**12))
    check_bytes(10**12, "the array")
    assert max_bytes() == 10**12


def test_a_compressed_file_may_grow_by_a_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max_unpacked(10) == MIN_UNPACKED
    assert max_unpacked(10**8) == 2 * 10**10
    assert max_unpacked(10**12) == 32 * 10**9
    monkeypatch.setenv("SPURLESS_MAX_BYTES", "77")
    assert max_unpacked(10**8) == 77


def test_combinations_are_counted_without_making_them(monkeypatch: pytest.MonkeyPatch) -> None:
    check_groups([MAX_GROUPS, 0], "classes")
    with pytest.raises(InputError) as caught:
        check_groups([1000] * 50, "groups")
    assert caught.value.got == 1000**50
    monkeypatch.setenv("SPURLESS_MAX_GROUPS", "4")
    with pytest.raises(InputError):
        check_groups([2, 3], "groups")


@pytest.mark.parametrize("text", ["-1", "0", "x", "1e9", "²"])
def test_a_variable_that_is_not_a_number_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SPURLESS_MAX_BYTES", text)
    with pytest.raises(InputError) as caught:
        max_bytes()
    assert caught.value.got == text


def test_the_memory_of_a_container_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    machine = limits._memory()
    (tmp_path / "memory.max").write_text("123456\n")
    monkeypatch.setattr(limits, "_CGROUP", tmp_path / "memory.max")
    assert limits._memory() == 123456 < machine
    (tmp_path / "memory.max").write_text("max\n")
    assert limits._memory() >= machine
