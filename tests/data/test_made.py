"""Made: once made, then read; what was cut off is made again."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from spurless.core.errors import SpurlessWarning
from spurless.data.made import kept


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path))
    return tmp_path


class Maker:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, Tensor]:
        self.calls += 1
        return {"x": torch.arange(6).view(2, 3).T}  # a view, which cannot be saved as it lies


def test_the_second_time_nothing_is_made(cache: Path) -> None:
    make = Maker()
    first, second = kept("k", make)["x"], kept("k", make)["x"]
    assert make.calls == 1
    assert torch.equal(first, second)
    assert second.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert [path.name for path in (cache / "made").iterdir()] == ["k.safetensors"]


def test_another_key_is_made_on_its_own() -> None:
    make = Maker()
    kept("k", make)
    kept("l", make)
    assert make.calls == 2


@pytest.mark.parametrize("left", [0, 5, 90])
def test_a_file_that_was_cut_off_is_made_again(cache: Path, left: int) -> None:
    make = Maker()
    kept("k", make)
    path = cache / "made" / "k.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:left])
    assert kept("k", make)["x"].shape == (3, 2)
    assert make.calls == 2
    assert path.read_bytes() == whole


def test_an_interrupted_make_leaves_nothing(cache: Path) -> None:
    def interrupted() -> dict[str, Tensor]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept("k", interrupted)
    assert not (cache / "made").exists()


def test_without_a_place_to_keep_it_everything_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path / "file"))
    make = Maker()
    for _ in range(2):
        with pytest.warns(SpurlessWarning, match=r"is not kept.*cannot write here.*SPURLESS_CACHE"):
            assert kept("k", make)["x"].shape == (3, 2)
    assert make.calls == 2
