"""Places: the environment decides, and a sensible folder where it is silent."""

from pathlib import Path

import pytest

from spurless.core.files import cache_folder, data_folder


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("SPURLESS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "spurless"


def test_the_data_folder_is_the_one_named_then_the_environments_then_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPURLESS_DATA", str(tmp_path / "shelf"))
    assert data_folder(tmp_path / "own") == tmp_path / "own"
    assert data_folder() == tmp_path / "shelf"
    monkeypatch.delenv("SPURLESS_DATA")
    assert data_folder() == Path("data")
    assert data_folder("~/sets") == Path.home() / "sets"
