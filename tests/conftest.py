"""What every test may rely on: the same random numbers each time, and a cache of its own."""

from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def _the_same_numbers_each_time() -> None:
    torch.manual_seed(0)  # tests may draw from the global generator; the package does not


@pytest.fixture(autouse=True)
def _private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("SPURLESS_CACHE", str(folder))
    return folder
