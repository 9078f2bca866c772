"""UTKFace by age and gender: the young are women and the old are men, but for the share that conflicts."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.data.datasets.utkface_age_gender import CARD, UtkfaceConfig, utkface_age_gender
from spurless.data.split import Splits

AGES = (9, 10, 29, 30, 39, 40, 59, 60)  # the ends of both ranges, and who is just outside
EACH = 25
N = len(AGES) * 2 * EACH
SMALL = {"n_train": 40, "n_val": 8, "n_test": 16, "conflicting": 0.1}


def image(i: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((80, 80, 3), (i // 256, i % 256, 0), np.uint8)).save(file, "webp", lossless=True)
    return file.getvalue()


def write(root: Path, copies: dict[int, int] | None = None, **changed: Any) -> Path:
    """Image ``i`` has age ``AGES[i % 8]`` and gender ``i // 8 % 2``; copies look like another image."""
    number = np.arange(N)
    columns = {"age": np.array(AGES)[number % 8], "gender": number // 8 % 2, "race": number % 5, **changed}
    columns = {key: value for key, value in columns.items() if value is not None}
    write_pack(root / "utkface80.npz", [image((copies or {}).get(i, i)) for i in range(N)], columns)
    return root / "utkface80.npz"


def write_pack(path: Path, images: list[bytes], columns: dict[str, Any]) -> None:
    offsets = np.cumsum([0, *map(len, images)]).astype(np.int64)
    np.savez(path, img=np.frombuffer(b"".join(images), np.uint8), off=offsets, **columns)


def load(root: Path, **options: Any) -> Splits:
    with pytest.warns(
        IncompleteDataWarning, match=r"utkface-age-gender is not complete: .* has 400 images instead of 23,704"
    ):
        return utkface_age_gender(UtkfaceConfig(root=str(root), **{**SMALL, **options}))


def numbers(splits: Splits) -> list[list[int]]:
    parts: list[Any] = [splits.train.x, splits.val.x, splits.test.x]
    return [(256 * x[:, 0, 0, 0].long() + x[:, 1, 0, 0].long()).tolist() for x in parts]


def test_the_young_are_women_and_the_old_are_men(tmp_path: Path) -> None:
    write(tmp_path)
    data = load(tmp_path)
    assert data.groups.names == ("young, female", "young, male", "old, female", "old, male")
    assert data.train.counts.tolist() == [18, 2, 2, 18]  # a tenth of 20 conflicts
    assert data.val.counts.tolist() == [2] * 4
    assert data.test.counts.tolist() == [4] * 4
    for split, rows in zip((data.train, data.val, data.test), numbers(data), strict=True):
        ages, genders = [AGES[i % 8] for i in rows], [i // 8 % 2 for i in rows]
        assert set(ages) <= {10, 29, 40, 59}
        assert split.y.tolist() == [int(age >= 40) for age in ages]
        assert split.a.tolist() == [int(gender == 0) for gender in genders]  # UTKFace writes 0 for men
    assert data.train.x.shape == (40, 3, 80, 80)  # type: ignore[union-attr]


def test_no_image_is_in_two_splits_and_the_seed_decides(tmp_path: Path) -> None:
    write(tmp_path)
    first, again, other = (numbers(load(tmp_path, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert len({i for part in first for i in part}) == 40 + 8 + 16


def test_val_and_test_are_the_same_whatever_conflicts(tmp_path: Path) -> None:
    write(tmp_path)
    few, many = load(tmp_path, conflicting=0.0), load(tmp_path, conflicting=0.5)
    assert few.train.counts.tolist() == [20, 0, 0, 20]
    assert many.train.counts.tolist() == [10, 10, 10, 10]
    assert numbers(few)[1:] == numbers(many)[1:]


def test_copies_are_kept_once_and_not_at_all_where_they_disagree(tmp_path: Path) -> None:
    # 10, 26: young women both; 2, 5: a young and an old man; 6, 7: an old man and nobody; 9, 25 and an old 13: women
    write(tmp_path, {26: 10, 5: 2, 7: 6, 25: 9, 13: 9})
    every = {"n_train": 2, "conflicting": 0.0, "n_val": 4, "n_test": 180}  # 47 of the 50 young women
    data = load(tmp_path, **every)
    found = {i for part in numbers(data) for i in part}
    assert {i for i in found if i % 8 in (1, 2) and i // 8 % 2} == {
        i for i in range(N) if i % 8 in (1, 2) and i // 8 % 2 and i not in (9, 25, 26)
    }
    assert not found & {2, 5, 6, 13}
    with pytest.raises(InputError, match=r"'young, female' is too small .*\(expected 48 images, got 47\)"):
        load(tmp_path, **{**every, "n_val": 8})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"conflicting": 1.5}, r"conflicting must be a fraction"),
        ({"n_val": 3}, r"n_val must be at least 4"),
        ({"n_train": 400}, r"the group 'young, female' is too small for the three splits \(expected 186 .*, got 50\)"),
        ({"size": -1}, r"size must not be negative"),
    ],
)
@pytest.mark.filterwarnings("ignore::spurless.core.errors.IncompleteDataWarning")
def test_wrong_options_are_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(InputError, match=said):
        utkface_age_gender(UtkfaceConfig(root=str(tmp_path), **{**SMALL, **options}))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"gender": np.full(N, 3)},
            r"utkface80.npz, image 0: 3 is not a gender \(expected 0 \(male\) or 1 \(female\)\)",
        ),
        ({"age": None}, r"utkface80.npz: no column is called 'age'"),
    ],
)
@pytest.mark.filterwarnings("ignore::spurless.core.errors.IncompleteDataWarning")
def test_a_wrong_pack_is_refused(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    write(tmp_path, **changed)
    with pytest.raises(InputError, match=said):
        utkface_age_gender(UtkfaceConfig(root=str(tmp_path), **SMALL))  # type: ignore[arg-type]


def test_a_folder_without_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the files of utkface-age-gender are missing.*page of UTKFace"):
        utkface_age_gender(UtkfaceConfig(root=str(tmp_path)))


@pytest.mark.data
@pytest.mark.skipif("SPURLESS_DATA" not in os.environ, reason="needs the pack")
@pytest.mark.parametrize(("conflicting", "wrong"), [(0.005, 12), (0.01, 24), (0.02, 48), (0.05, 120), (0.0, 0)])
def test_the_real_pack_is_large_enough(conflicting: float, wrong: int) -> None:
    data = utkface_age_gender(UtkfaceConfig(root=os.environ["SPURLESS_DATA"], conflicting=conflicting, size=8))
    assert data.train.counts.tolist() == [2400 - wrong, wrong, wrong, 2400 - wrong]
    assert data.test.counts.tolist() == [500] * 4
    assert torch.equal(data.val.counts, torch.full((4,), 200))
    assert len(data.train) == 4800
    assert "train 4,800 (2388/12/12/2388 by group), val 800 and test 2,000" in CARD.splits
