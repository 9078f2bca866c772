"""Layouts: the files are found where people keep them, and a set that is not whole says so."""

import warnings
from pathlib import Path

import pytest
import torch

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.core.groups import Groups
from spurless.data.dataset import Layout, check_published_counts, find_folder, require_file
from spurless.data.split import Split, Splits

LAYOUT = Layout(
    files=("meta.csv",), obtain="Ask the authors.", folders=("birds", "birds_v1"), markers=("meta.csv", "meta.txt")
)


@pytest.mark.parametrize("place", ["", "birds", "birds_v1"])
@pytest.mark.parametrize("marker", ["meta.csv", "meta.txt"])
def test_the_folder_itself_and_the_usual_names_are_tried(tmp_path: Path, place: str, marker: str) -> None:
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / marker).touch()
    assert find_folder("birds", LAYOUT, tmp_path) == tmp_path / place


def test_the_environment_names_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meta.csv").touch()
    monkeypatch.setenv("SPURLESS_DATA", str(tmp_path))
    assert find_folder("birds", LAYOUT, None) == tmp_path


def test_missing_files_say_what_where_and_whence(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        find_folder("birds", LAYOUT, tmp_path)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path}: the files of birds are missing")
    for part in ("meta.csv or meta.txt", "the folder itself or birds/ or birds_v1/", "Ask the authors.", "--root"):
        assert part in said


def test_a_data_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"shelf: the data folder of birds does not exist\. Set the folder with root="):
        find_folder("birds", LAYOUT, tmp_path / "shelf")


def test_a_file_of_the_layout_that_is_missing_is_named(tmp_path: Path) -> None:
    assert require_file(tmp_path, "birds") == tmp_path
    with pytest.raises(InputError, match=r"images: a file of birds is missing"):
        require_file(tmp_path / "images", "birds")


def splits() -> Splits:
    y, a = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 0, 0, 1, 1])
    part = Split(torch.zeros(5, 1), y, a, Groups(("no", "yes"), ("left", "right")))
    return Splits(part, part, part, name="birds")


def test_the_published_counts_pass_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_published_counts(splits(), {"train": (2, 0, 1, 2), "test": 5}).notes == ()


def test_other_counts_are_named_split_by_split() -> None:
    said = (
        r"birds is not complete as published: train has 2/0/1/2 instead of 2/0/1/2,000; test has 5 instead of 5,794\."
    )
    with pytest.warns(IncompleteDataWarning, match=said):
        compared = check_published_counts(splits(), {"train": (2, 0, 1, 2000), "val": 5, "test": 5794})
    assert compared.notes[0].startswith("birds is not complete")
