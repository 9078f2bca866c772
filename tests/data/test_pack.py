"""Packs: any pack is loaded by its columns, and one made of a folder or a table gives what these give."""

import csv
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.data.folder import from_folder
from spurless.data.grouped import Grouped, Splits
from spurless.data.npz import from_npz
from spurless.data.pack import from_pack, is_pack, pack_folder, pack_table
from spurless.data.packed import Pack
from spurless.data.packing import write_pack
from spurless.data.table import from_csv

N = 24
Y = [i % 2 for i in range(N)]
A = [i // 2 % 2 for i in range(N)]
SPLIT = [i // 8 for i in range(N)]


def png(shade: int, size: int = 4) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), shade, np.uint8)).save(file, "png")
    return file.getvalue()


FILES = [png(10 * i) for i in range(N)]


def pack(folder: Path, **columns: Any) -> Path:
    write_pack(folder / "p.npz", FILES, columns)
    return folder / "p.npz"


def every(splits: Splits) -> list[Grouped]:
    return [splits.train, splits.val, splits.test]


def numbers(split: Grouped) -> list[int]:
    x = split.x if isinstance(split.x, Tensor) else torch.stack([split.x[i] for i in range(len(split))])  # type: ignore[index]
    return [int(v) // 10 for v in x[:, 0, 0, 0]]


def alike(found: Splits, expected: Splits) -> bool:
    return found.groups == expected.groups and all(
        torch.equal(a.y, b.y) and torch.equal(a.a, b.a) and torch.equal(a.x, b.x)  # type: ignore[arg-type]
        for a, b in zip(every(found), every(expected), strict=True)
    )


def test_the_usual_columns_are_taken_by_themselves(tmp_path: Path) -> None:
    path = pack(tmp_path, y=Y, a=A, split=SPLIT, labels=("cat", "dog"), attributes=("day", "night"))
    data = from_pack(path)
    assert data.name == "pack p.npz"
    assert data.groups.names == ("cat, day", "cat, night", "dog, day", "dog, night")
    assert [numbers(split) for split in every(data)] == [[*range(8)], [*range(8, 16)], [*range(16, 24)]]
    for split in every(data):
        assert split.y.tolist() == [Y[i] for i in numbers(split)]
        assert split.a.tolist() == [A[i] for i in numbers(split)]
    assert data.options["split"] == "split"


def test_columns_can_be_named_and_their_values_are_the_names(tmp_path: Path) -> None:
    kind, place = [("owl", "ant")[y] for y in Y], [(7, 10)[a] for a in A]
    where = [("test", "TRAIN", "valid")[s] for s in SPLIT]
    data = from_pack(
        pack(tmp_path, kind=kind, place=place, where=where), label="kind", attribute="place", split="where"
    )
    assert data.groups.names == ("ant, place 7", "ant, place 10", "owl, place 7", "owl, place 10")
    assert numbers(data.test) == [*range(8)]
    assert data.train.y.tolist() == [1 - Y[i] for i in numbers(data.train)]  # ant comes before owl
    assert data.train.a.tolist() == [A[i] for i in numbers(data.train)]


def test_without_splits_they_are_drawn_by_seed(tmp_path: Path) -> None:
    path = pack(tmp_path, y=Y, a=A)
    first, again, other = (from_pack(path, seed=seed) for seed in (1, 1, 2))
    assert sorted(i for split in every(first) for i in numbers(split)) == [*range(N)]
    assert numbers(first.val) == numbers(again.val) != numbers(other.val)


def test_without_an_attribute_the_groups_are_the_classes(tmp_path: Path) -> None:
    data = from_pack(pack(tmp_path, y=Y, place=A))
    assert data.groups.names == ("y 0", "y 1")
    assert set(data.train.a.tolist()) == {-1}


def test_several_attributes_are_crossed(tmp_path: Path) -> None:
    path = pack(tmp_path, y=Y, split=SPLIT, sky=[("dark", "light")[a] for a in A], third=[i % 3 for i in range(N)])
    data = from_pack(path, attribute=("sky", "third"))
    assert data.groups.sizes == (2, 3)
    assert data.groups.name(1) == "y 0, dark & third 1"
    assert data.val.a.tolist() == [[A[i], i % 3] for i in range(8, 16)]


def test_an_unknown_attribute_is_minus_one_or_empty(tmp_path: Path) -> None:
    for a in ([-1, *A[1:]], ["", *map(str, A[1:])]):
        train = from_pack(pack(tmp_path, y=Y, a=a, split=SPLIT)).train
        assert train.a.tolist() == [-1, *A[1:8]]


def test_labels_of_minus_one_and_one_are_two_classes(tmp_path: Path) -> None:
    data = from_pack(pack(tmp_path, y=[2 * y - 1 for y in Y], split=SPLIT))
    assert data.groups.labels == ("y -1", "y 1")
    assert data.train.y.tolist() == Y[:8]


def test_images_are_resized_streamed_and_kept_as_asked(tmp_path: Path) -> None:
    cache = Path(os.environ["SPURLESS_CACHE"]) / "images"
    path = pack(tmp_path, y=Y, split=SPLIT)
    held = from_pack(path, size=2).train.x
    assert isinstance(held, Tensor)
    assert held.shape == (8, 3, 2, 2)
    assert not cache.exists()
    streamed = from_pack(path, stream=True)
    assert streamed.train.streamed
    assert numbers(streamed.val) == [*range(8, 16)]
    kept = from_pack(path, cache=True)
    assert cache.exists()
    assert alike(kept, from_pack(path, cache=False))


def test_an_archive_that_is_a_pack_is_loaded_as_one(tmp_path: Path) -> None:
    path = pack(tmp_path, y=Y, a=A)
    assert is_pack(path)
    assert alike(from_npz(path, seed=4), from_pack(path, seed=4))
    with pytest.raises(BadInput, match=r"p.npz: a pack names its classes itself"):
        from_npz(path, labels=("no", "yes"))
    np.savez(tmp_path / "x.npz", x=np.zeros((4, 2)), y=np.arange(4))
    assert not is_pack(tmp_path / "x.npz")
    assert not is_pack(tmp_path / "none.npz")
    assert not is_pack(tmp_path)
    (tmp_path / "x.npz").write_bytes(path.read_bytes().replace(b"PK\x01\x02", b"PK\x01\x03"))  # its list is broken
    assert not is_pack(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ({"a": A}, {}, r"p.npz: no column is called 'y'. Columns: a."),
        ({"y": Y, "place": A}, {"attribute": "plaec"}, r"no column is called 'plaec'. Did you mean 'place'\?"),
        ({"y": Y}, {"split": "fold"}, r"no column is called 'fold'"),
        ({"y": Y, "split": [0, 7] * 12}, {}, r"p.npz, image 1: the split '7' is unknown"),
        ({"y": [0.5] * N}, {}, r"the values of column 'y' must be whole numbers \(got 0.5\)"),
        ({"y": ["cat", ""] * 12}, {}, r"p.npz, image 1: the column 'y' lacks a label"),
        ({"y": [[0, 1]] * N}, {}, r"p.npz: the column 'y' must be one value per image"),
        ({"y": Y, "labels": ["one"]}, {}, r"pack p.npz: the label of example 1 is out of range"),
        ({"y": ["a", "b"] * 12, "labels": ["a", "b"]}, {}, r"the column 'y' is text, and yet its numbers are named"),
        ({"y": Y, "a": [[0, 1]] * N}, {}, r"p.npz: the column 'a' is several, and their values are not named"),
        ({"y": Y, "a": [[0, 1]] * N, "attributes": ["x"], "sizes": [2, 2]}, {}, r"their values are not named"),
    ],
)
def test_wrong_columns_are_refused_by_name(
    columns: dict[str, Any], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=said):
        from_pack(pack(tmp_path, **columns), **options)


def write_folder(root: Path, attributes: bool) -> None:
    for i in range(40):
        place = root / ("cat", "dog")[i % 2] / (("day", "night")[i // 2 % 2] if attributes else "")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i}.png").write_bytes(png(6 * i))


@pytest.mark.parametrize("attributes", [True, False])
def test_a_packed_folder_is_the_folder(attributes: bool, tmp_path: Path) -> None:
    write_folder(tmp_path / "pets", attributes)
    done = pack_folder(tmp_path / "pets", tmp_path / "p.npz", seed=3)
    assert done == (40, (tmp_path / "p.npz").stat().st_size)
    assert alike(from_pack(tmp_path / "p.npz"), from_folder(tmp_path / "pets", seed=3))
    files = sorted((tmp_path / "pets").rglob("*.png"), key=lambda path: (path.parent, int(path.stem)))
    opened = Pack.open(tmp_path / "p.npz")
    assert [opened.encoded(i) for i in range(40)] == [path.read_bytes() for path in files]  # in order of names


def test_a_packed_folder_can_be_smaller_and_its_images_of_any_size(tmp_path: Path) -> None:
    write_folder(tmp_path / "pets", True)
    (tmp_path / "pets" / "cat" / "day" / "0.png").write_bytes(png(0, 9))
    pack_folder(tmp_path / "pets", tmp_path / "p.npz", size=3)
    data, expected = from_pack(tmp_path / "p.npz"), from_folder(tmp_path / "pets", size=3)
    assert torch.equal(data.train.y, expected.train.y)
    assert (data.train.x.float() - expected.train.x.float()).abs().max() < 8  # type: ignore[union-attr]


@pytest.mark.parametrize("attribute", [None, "sky", ("sky", "digit")])
@pytest.mark.parametrize("split", [None, "part"])
def test_a_packed_table_is_the_table(attribute: Any, split: str | None, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    with (tmp_path / "t.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["picture", "kind", "sky", "digit", "part"])
        for i in range(40):
            (tmp_path / "images" / f"{i}.png").write_bytes(png(6 * i))
            sky = "" if i == 5 else ("dark & wet", "light")[i // 2 % 2]  # an ampersand must not be taken for a cross
            writer.writerow([f"{i}.png", ("owl", "ant")[i % 2], sky, i % 3, ("test", "train", "val")[i // 15]])
    options: dict[str, Any] = {"label": "kind", "attribute": attribute, "split": split, "file": "picture", "seed": 2}
    done = pack_table(tmp_path / "t.csv", tmp_path / "p.npz", root=tmp_path / "images", **options)
    assert done.images == 40
    expected = from_csv(tmp_path / "t.csv", root=tmp_path / "images", **options)
    assert alike(from_pack(tmp_path / "p.npz"), expected)


def test_a_table_of_numbers_is_no_pack(tmp_path: Path) -> None:
    rows = [f"{i},{i % 2}" for i in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["height,kind", *rows]))
    with pytest.raises(BadInput, match=r"t.csv: this is a table of numbers, not of images"):
        pack_table(tmp_path / "t.csv", tmp_path / "p.npz", label="kind")
