"""CelebA 10k: bits become labels by their names, and every group is shared out alike."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spurless.core.errors import IncompleteDataWarning, InputError, UnknownNameError
from spurless.data.datasets.celeba import CELEBA10K_CARD as CARD
from spurless.data.datasets.celeba import Celeba10kConfig, celeba10k
from spurless.data.split import Splits

NAMES = [f"Trait_{k}" for k in range(40)]
NAMES[9], NAMES[20], NAMES[31] = "Blond_Hair", "Male", "Wearing_Hat"
COUNTS = (40, 35, 20, 5)
N = sum(COUNTS)


def image(i: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((109, 89, 3), i, np.uint8)).save(file, "png")
    return file.getvalue()


def write(folder: Path, **changed: Any) -> Path:
    """``COUNTS`` images of the four groups in a row; every third wears a hat."""
    group = np.repeat(np.arange(4), COUNTS)
    bits = np.zeros((N, 40), np.uint8)
    bits[:, 9], bits[:, 20], bits[::3, 31] = group // 2, group % 2, 1
    columns: dict[str, Any] = {"attr": np.packbits(bits, axis=1), "names": np.array(NAMES), "img_no": np.arange(N) + 1}
    columns = {key: value for key, value in {**columns, **changed}.items() if value is not None}
    images = [image(i) for i in range(N)]
    off = np.cumsum([0, *map(len, images)])
    np.savez(folder / "celeba10k.npz", img=np.frombuffer(b"".join(images), np.uint8), off=off, **columns)
    return folder / "celeba10k.npz"


def load(root: Path, **options: Any) -> Splits:
    with pytest.warns(
        IncompleteDataWarning, match=r"celeba10k is not complete: .*celeba10k.npz has 100 images instead of 10,000"
    ):
        return celeba10k(Celeba10kConfig(root=str(root), **options))


def numbers(splits: Splits) -> list[list[int]]:
    return [split.x[:, 0, 0, 0].tolist() for split in (splits.train, splits.val, splits.test)]  # type: ignore[index]


def test_hair_and_gender_are_read_from_their_bits(tmp_path: Path) -> None:
    write(tmp_path)
    data = load(tmp_path)
    assert data.groups.names == ("not blond, female", "not blond, male", "blond, female", "blond, male")
    assert [s.counts.tolist() for s in (data.train, data.val, data.test)] == [
        [24, 21, 12, 3],
        [8, 7, 4, 1],
        [8, 7, 4, 1],
    ]
    group = torch.arange(4).repeat_interleave(torch.tensor(COUNTS))
    for split, rows in zip((data.train, data.val, data.test), numbers(data), strict=True):
        assert torch.equal(split.g, group[rows])
    assert sorted(row for rows in numbers(data) for row in rows) == list(range(N))
    assert data.train.x.shape == (60, 3, 109, 89)  # type: ignore[union-attr]


def test_the_seed_decides_the_split_and_the_shares_can_be_set(tmp_path: Path) -> None:
    write(tmp_path)
    assert numbers(load(tmp_path, seed=1)) == numbers(load(tmp_path, seed=1)) != numbers(load(tmp_path))
    assert load(tmp_path, val=0.4, test=0.4).train.counts.tolist() == [8, 7, 4, 1]


def test_any_two_attributes_will_do(tmp_path: Path) -> None:
    write(tmp_path)
    data = load(tmp_path, label="Wearing_Hat", attribute="Blond_Hair", size=32)
    assert data.groups.names[1:3] == ("not Wearing Hat, blond", "Wearing Hat, not blond")
    assert data.train.y.tolist() == [int(i % 3 == 0) for i in numbers(data)[0]]
    assert data.train.a.tolist() == [int(i >= 75) for i in numbers(data)[0]]
    assert data.train.x[0].shape == (3, 32, 32)  # type: ignore[index]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"label": "Blond"}, UnknownNameError, r"No label of celeba10k is called 'Blond'"),
        ({"attribute": "male"}, UnknownNameError, r"No attribute of celeba10k is called 'male'.*Male"),
        ({"attribute": "Blond_Hair"}, InputError, r"celeba10k: option 'attribute' must differ from the label"),
        ({"val": 1.5}, InputError, r"val must be a fraction"),
        ({"val": 0.7, "test": 0.7}, InputError, r"the fractions of train, val and test must add up to 1"),
        ({"size": -1}, InputError, r"size must not be negative"),
    ],
)
@pytest.mark.filterwarnings("ignore::spurless.core.errors.IncompleteDataWarning")
def test_wrong_options_are_refused(options: dict[str, Any], error: type[Exception], said: str, tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(error, match=said):
        celeba10k(Celeba10kConfig(root=str(tmp_path), **options))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"names": None}, r"celeba10k.npz: the attributes are malformed .*and no names"),
        ({"names": np.array(NAMES[:30])}, r"the attributes are malformed .*and 30 names"),
        ({"attr": np.zeros((N, 5))}, r"the attributes are malformed .*got float64 \(100, 5\)"),
        ({"attr": None}, r"celeba10k.npz: no column is called 'attr'"),
    ],
)
@pytest.mark.filterwarnings("ignore::spurless.core.errors.IncompleteDataWarning")
def test_a_wrong_pack_is_refused(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    write(tmp_path, **changed)
    with pytest.raises(InputError, match=said):
        celeba10k(Celeba10kConfig(root=str(tmp_path)))


def test_a_folder_without_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the files of celeba10k are missing \(expected celeba10k.npz in"):
        celeba10k(Celeba10kConfig(root=str(tmp_path)))


@pytest.mark.data
@pytest.mark.skipif("SPURLESS_DATA" not in os.environ, reason="needs the pack")
def test_the_real_pack_has_the_counts_of_the_card() -> None:
    data = celeba10k(Celeba10kConfig(root=os.environ["SPURLESS_DATA"], size=8))
    parts = (data.train, data.val, data.test)
    assert sum(split.counts for split in parts).tolist() == [4412, 4136, 1371, 81]  # type: ignore[union-attr]
    for split in parts:
        assert f"{len(split):,} ({'/'.join(map(str, split.counts.tolist()))}" in CARD.splits
