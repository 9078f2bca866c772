"""Folders: every image gets the class and the attribute of its place."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.seeds import Seeds
from spurless.data.loader import Loader, shuffled_order
from spurless.data.loaders.folder import from_folder
from spurless.data.split import Split, Splits


def save(path: Path, colour: int) -> None:
    """Write a small picture whose colour tells which file it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 4, 3), colour, np.uint8)).save(path)


def fill(root: Path, folders: dict[str, int]) -> dict[int, str]:
    """Write so many images into each folder; return the folder of each colour."""
    where: dict[int, str] = {}
    for folder, n in folders.items():
        for i in range(n):
            where[len(where)] = folder
            save(root / folder / f"{i}.png", len(where) - 1)
    return where


def colours(split: Split) -> list[int]:
    assert isinstance(split.x, Tensor)
    return [int(c) for c in split.x[:, 0, 0, 0]]


def every(splits: Splits) -> list[Split]:
    return [splits.train, splits.val, splits.test]


def test_class_folders_are_split_by_seed_and_keep_their_labels(tmp_path: Path) -> None:
    where = fill(tmp_path / "pets", {"black cat": 20, "dög": 10})
    data = from_folder(tmp_path / "pets", seed=1)
    assert (data.name, data.groups.labels, data.groups.attributes) == ("folder pets", ("black cat", "dög"), ())
    assert data.options == {"root": str(tmp_path / "pets"), "size": None, "seed": 1, "stream": None}
    assert [split.class_counts.tolist() for split in every(data)] == [[14, 7], [3, 2], [3, 1]]
    assert sorted(c for split in every(data) for c in colours(split)) == list(range(30))
    for split in every(data):
        assert [data.groups.labels[y] for y in split.y] == [where[c] for c in colours(split)]
        assert (split.a == -1).all()
    assert colours(from_folder(tmp_path / "pets", seed=1).val) == colours(data.val)
    assert colours(from_folder(tmp_path / "pets", seed=2).val) != colours(data.val)


def test_split_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    where = fill(tmp_path, {f"{s}/{c}": n for s, n in (("train", 3), ("valid", 2), ("Test", 1)) for c in ("a", "b")})
    data = from_folder(tmp_path)
    for name, split in zip(("train", "valid", "Test"), every(data), strict=True):
        assert [f"{name}/{data.groups.labels[y]}" for y in split.y] == [where[c] for c in colours(split)]
    assert [len(split) for split in every(data)] == [6, 4, 2]


def test_a_missing_val_is_cut_from_train(tmp_path: Path) -> None:
    where = fill(tmp_path, {"train/a": 20, "train/b": 20, "test/a": 2, "test/b": 2})
    data = from_folder(tmp_path)
    assert [split.class_counts.tolist() for split in every(data)] == [[17, 17], [3, 3], [2, 2]]
    assert {where[c].split("/")[0] for c in colours(data.val)} == {"train"}
    assert {where[c].split("/")[0] for c in colours(data.test)} == {"test"}


def test_folders_in_a_class_are_attributes(tmp_path: Path) -> None:
    where = fill(tmp_path, {"cow/grass": 10, "cow/sand": 3, "camel/sand": 10})
    data = from_folder(tmp_path)
    assert data.groups.labels == ("camel", "cow")
    assert data.groups.attributes == ("grass", "sand")
    for split in every(data):
        names = [f"{data.groups.labels[y]}/{data.groups.attributes[a]}" for y, a in zip(split.y, split.a, strict=True)]
        assert names == [where[c] for c in colours(split)]
    # camel, grass is empty; cow, sand has three: one each
    assert [split.counts.tolist() for split in every(data)] == [[0, 7, 7, 1], [0, 2, 2, 1], [0, 1, 1, 1]]


def test_attributes_may_be_known_in_val_and_test_alone(tmp_path: Path) -> None:
    fill(tmp_path, {"train/a": 3, "train/b": 3})
    fill(tmp_path, {f"{s}/{c}/{p}": 1 for s in ("val", "test") for c in "ab" for p in ("x", "y")})
    data = from_folder(tmp_path)
    assert [split.has_attributes for split in every(data)] == [False, True, True]
    assert data.val.g.tolist() == [0, 1, 2, 3]


def test_numbering_is_natural_and_junk_is_ignored(tmp_path: Path) -> None:
    fill(tmp_path, {"class 10": 4, "class 9": 4})
    (tmp_path / "class 9" / "Thumbs.db").write_text("not an image")
    (tmp_path / "class 9" / ".hidden.png").write_text("not an image")
    (tmp_path / ".git").mkdir()
    (tmp_path / "class 9" / ".thumbs").mkdir()
    (tmp_path / "README.md").write_text("hello")
    data = from_folder(tmp_path)
    assert data.groups.labels == ("class 9", "class 10")
    assert sum(map(len, every(data))) == 8
    assert data.notes == ()


def test_files_that_are_no_images_are_named_and_left_out(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 4, "b": 4})
    for name in ("a/notes.txt", "b/9.heic", "b/10.heic", "b/film.mp4"):
        (tmp_path / name).write_text("not an image")
    with pytest.warns(
        SpurlessWarning, match=r"without the extension of an image \(4\): .*a/notes\.txt, .*b/9\.heic, .* and 1 more"
    ):
        data = from_folder(tmp_path)
    assert sum(map(len, every(data))) == 8
    assert [note.partition(" (")[0] for note in data.notes] == ["Skipped files without the extension of an image"]


@pytest.mark.parametrize("splits", [(), ("train", "test")])
def test_images_outside_the_class_folders_are_named_and_left_out(tmp_path: Path, splits: tuple[str, ...]) -> None:
    fill(tmp_path, {f"{split}/{c}": 4 for split in splits or (".",) for c in "ab"})
    save(tmp_path / (splits[-1] if splits else ".") / "lost.png", 99)
    with pytest.warns(SpurlessWarning, match=r"Skipped images outside the class folders \(1\): .*lost\.png\.$"):
        data = from_folder(tmp_path)
    assert 99 not in [c for split in every(data) for c in colours(split)]
    assert sum(map(len, every(data))) == (16 if splits else 8)


def test_a_class_of_other_files_says_which(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 4})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1.heic").write_text("a picture, to others")
    with pytest.raises(
        InputError,
        match=r"b: the folder contains no images .got 1 files without the extension of an image, such as 1.heic",
    ):
        from_folder(tmp_path)


def test_links_are_followed(tmp_path: Path) -> None:
    fill(tmp_path / "store", {"one": 3, "two": 3})
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "a").symlink_to(tmp_path / "store" / "one")
    (tmp_path / "root" / "b").mkdir()
    for i in range(3):
        (tmp_path / "root" / "b" / f"{i}.png").symlink_to(tmp_path / "store" / "two" / f"{i}.png")
    assert [len(split) for split in every(from_folder(tmp_path / "root"))] == [2, 2, 2]


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    fill(tmp_path, {"train": 3, "plane": 3})
    assert from_folder(tmp_path).groups.labels == ("plane", "train")


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_and_resident_give_the_same_batches(workers: int, tmp_path: Path) -> None:
    fill(tmp_path, {"a": 12, "b": 9})
    held, streamed = from_folder(tmp_path, stream=False), from_folder(tmp_path, stream=True)
    assert (held.train.streamed, streamed.train.streamed) == (False, True)
    assert streamed.fingerprint() == from_folder(tmp_path, stream=True).fingerprint()
    loaders = [
        Loader(data.train, shuffled_order(len(data.train), Seeds(0)), batch_size=4, workers=workers)
        for data in (held, streamed)
    ]
    for one, other in zip(loaders[0].batches(), loaders[1].batches(), strict=True):
        assert isinstance(one.x, Tensor)
        assert isinstance(other.x, Tensor)
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)
        assert torch.equal(one.index, other.index)


def test_with_the_cache_it_is_the_same_data_and_the_same_run(tmp_path: Path) -> None:
    fill(tmp_path, {"a/x": 12, "a/y": 3, "b/x": 9, "b/y": 4})
    without, kept = from_folder(tmp_path, cache=False), from_folder(tmp_path, cache=True)
    assert kept.fingerprint() == without.fingerprint()
    assert kept.options == without.options
    streamed = from_folder(tmp_path, cache=True, stream=True)
    for held, mapped in zip(every(without), every(streamed), strict=True):
        assert isinstance(held.x, Tensor)
        assert (held.streamed, mapped.streamed) == (False, True)
        assert torch.equal(torch.stack([mapped.x[i] for i in range(len(mapped))]), held.x)  # type: ignore[index]
        assert torch.equal(mapped.example(3), held.example(3))  # type: ignore[arg-type]
    loaders = [Loader(data.train, shuffled_order(len(data.train), Seeds(0)), 4) for data in (without, streamed)]
    for one, other in zip(loaders[0].batches(), loaders[1].batches(), strict=True):
        assert torch.equal(one.x, other.x)  # type: ignore[arg-type]
    # by content: another place is the same data, another image is not
    (tmp_path / "a").rename(tmp_path / "A")
    (tmp_path / "A").rename(tmp_path / "a")
    assert from_folder(tmp_path, cache=True, stream=True).fingerprint() == streamed.fingerprint()
    save(tmp_path / "a" / "x" / "0.png", 200)
    assert from_folder(tmp_path, cache=True, stream=True).fingerprint() != streamed.fingerprint()


def test_size_transform_and_augment_reach_the_batches(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 3, "b": 3})
    data = from_folder(tmp_path, size=2, transform=lambda x: x + 1, augment=lambda x: x * 2)
    raw = torch.tensor([10], dtype=torch.uint8)
    assert data.train.x.shape[1:] == (3, 2, 2)  # type: ignore[union-attr]
    assert data.train.prepare(raw, training=True).tolist() == [21]  # type: ignore[union-attr]
    assert data.train.prepare(raw).tolist() == [11]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("folders", "empty", "message"),
    [
        ({}, [], r"no such folder"),
        ({}, ["."], r"data: the folder contains no class folders \(expected .*/<class>/\*.jpg\)"),
        ({"a": 9}, [], r"the data have only one class"),
        ({"images/a": 5, "images/b": 5}, [], r"only one class folder.*one level deeper, pass .*data/images"),
        ({"a": 1, "b": 1}, [], r"folder data: no class has enough examples for every split"),
        ({"a": 3}, ["b"], r"data/b: the folder contains no images. Add some, or delete the folder"),
        ({"a/x": 3, "b/x": 3}, ["b/y"], r"b/y: the folder contains no images"),
        ({"a/x": 3, "b": 3}, [], r"the class 'a' has attribute folders and the class 'b' has none"),
        ({"train/a": 3, "train/b": 3}, ["test"], r"data/test: the folder contains no class folders"),
        (
            {"train/a": 3, "train/b": 3, "tset/a": 3},
            [],
            r"data/tset: the folder is not a split, unlike its neighbor 'train'",
        ),
        ({"train/a": 3, "val/a": 3, "valid/a": 3}, [], r"the folders 'val' and 'valid' are the same split"),
        ({"val/a": 3, "test/a": 3}, [], r"there is no train folder \(got test, val\)"),
        ({"train/a": 3, "train/b": 3, "test/A": 3}, [], r"the class 'A' is not in the train folder \(got a, b\)"),
    ],
)
def test_a_bad_tree_is_answered_with_a_sentence(
    folders: dict[str, int], empty: list[str], message: str, tmp_path: Path
) -> None:
    fill(tmp_path / "data", folders)
    for folder in empty:
        (tmp_path / "data" / folder).mkdir(parents=True)
    with pytest.raises(InputError, match=message):
        from_folder(tmp_path / "data")


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(InputError, match="the path is a file instead of a folder"):
        from_folder(tmp_path / "x")
