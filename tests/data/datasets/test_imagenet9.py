"""ImageNet-9: each version of the test photographs is an attribute; without training data only testing is possible."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from spurless.core.errors import IncompleteDataWarning, InputError, UnknownNameError
from spurless.data.datasets.imagenet9 import LABELS, VERSIONS, ImagenetNineConfig, backgrounds, imagenet9
from spurless.data.split import Splits

FOLDERS = [f"{number:02}_{name}" for number, name in enumerate(LABELS)]


def image(path: Path, grey: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((10, 10, 3), grey, dtype=np.uint8)).save(path, format="JPEG")


def write(root: Path, source: str | None = "in9l") -> Path:
    """Greys: 20 times the class, plus twice the version in test, plus 17 in train and 19 in val."""
    folder = root / "backgrounds_challenge"
    for label, name in enumerate(FOLDERS):
        for number, version in enumerate(VERSIONS):
            path = folder / "bg_challenge" / version.replace("-", "_") / "val" / name / f"ILSVRC2012_val_{label}.JPEG"
            image(path, 20 * label + 2 * number)
        if source is not None:
            for i in range(2):
                image(folder / source / "train" / name / f"n01_{i}.JPEG", 20 * label + 17)
            image(folder / source / "val" / name / f"ILSVRC2012_val_9{label}.JPEG", 20 * label + 19)
    return folder


def load(root: Path, **options: Any) -> Splits:
    return imagenet9(ImagenetNineConfig(root=str(root), size=8, **options))


def greys(x: Any) -> list[int]:
    return [int(value) for value in x[:, 0, 0, 0]]


def test_test_joins_the_versions_and_the_attribute_says_which(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.warns(
        IncompleteDataWarning,
        match=r"imagenet-9 is not complete as published: test has 1/1/1/.* instead of 450/450/450/450/",
    ) as caught:
        data = load(tmp_path)
    assert "train has" not in str(caught[0].message)  # the exact size of in9l is not published
    assert data.groups.labels == LABELS
    assert data.groups.attributes == ("original", "mixed-same", "mixed-rand", "only-fg")
    assert data.train.class_counts.tolist() == [2] * 9
    assert data.train.a.tolist() == [0] * 18
    assert greys(data.train.x) == [20 * label + 17 for label in range(9) for _ in range(2)]
    assert data.val.a.tolist() == [0] * 9
    assert greys(data.val.x) == [20 * label + 19 for label in range(9)]
    number = {"original": 0, "mixed-same": 1, "mixed-rand": 2, "only-fg": 4}  # as they were written
    shown = [20 * y + 2 * number[data.groups.attributes[a]] for y, a in zip(data.test.y, data.test.a, strict=True)]
    assert greys(data.test.x) == shown
    assert data.test.counts.tolist() == [1] * 36


def test_the_bg_gap_can_be_read_off_the_groups(tmp_path: Path) -> None:
    write(tmp_path, source=None)
    test = backgrounds(ImagenetNineConfig(root=str(tmp_path), size=8, variants="mixed-same,mixed_rand"))
    assert test.groups.attributes == ("original", "mixed-same", "mixed-rand")  # what train would be comes first
    right = test.y != 3  # a classifier that gets reptiles wrong, on random backgrounds alone
    right = right | (test.a != 2)
    same, random = (float(right[test.a == a].float().mean()) for a in (1, 2))
    assert same - random == pytest.approx(1 / 9)
    assert int((test.a == 0).sum()) == 0


def test_the_smaller_training_set_has_a_published_size(tmp_path: Path) -> None:
    write(tmp_path, source="original")
    with pytest.warns(IncompleteDataWarning, match=r"train has 18 instead of 45,405; test has 1/1"):
        assert greys(load(tmp_path, train="original", variants="original,no-fg").train.x)[:2] == [17, 17]


def test_a_version_that_is_not_tested_on_is_not_missed(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.warns(IncompleteDataWarning, match=r"test has 0/1/0/1/.* instead of 0/450/0/450/"):
        assert len(load(tmp_path, variants="mixed-same").test) == 9


def test_photographs_of_test_are_left_out_of_val(tmp_path: Path) -> None:
    folder = write(tmp_path)
    image(folder / "in9l" / "val" / FOLDERS[4] / "ILSVRC2012_val_4.JPEG", 0)
    with pytest.warns(IncompleteDataWarning):
        assert len(load(tmp_path).val) == 9


def test_without_training_data_nothing_is_cut_from_test(tmp_path: Path) -> None:
    write(tmp_path, source=None)
    said = r"in9l/train: the training data of imagenet-9 are missing.*imagenet9.backgrounds"
    with pytest.raises(InputError, match=said):
        load(tmp_path)
    write(tmp_path / "other", source="in9l")
    with pytest.raises(InputError, match=r"original/train: the training data .* Get original.tar.gz"):
        load(tmp_path / "other", train="original")


def test_wrong_options_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        UnknownNameError, match=r"No version of imagenet-9 is called 'mixed-random'. Did you mean 'mixed-rand'"
    ):
        load(tmp_path, variants="original,mixed-random")
    with pytest.raises(InputError, match=r"a version occurs twice .* \(got no-fg,no_fg\)"):
        load(tmp_path, variants="no-fg,no_fg")
    with pytest.raises(InputError, match=r"option 'train' is unknown \(expected in9l, original, got in9\)"):
        load(tmp_path, train="in9")


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("bg_challenge/only_fg", r"only_fg/val: a file of imagenet-9 is missing"),
        ("bg_challenge/mixed_rand/val/02_wheeled vehicle", r"mixed_rand/val: the class 'wheeled vehicle' is missing"),
        ("in9l/val/08_fish", r"in9l/val: the class 'fish' is missing \(expected 08_fish/"),
        ("bg_challenge", r"files of imagenet-9 are missing \(expected bg_challenge.*MadryLab"),
    ],
)
def test_a_missing_part_is_named(tmp_path: Path, part: str, said: str) -> None:
    folder = write(tmp_path)
    (folder / part).rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=said):
        load(tmp_path)


def test_an_empty_part_and_a_broken_image_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path)
    path = folder / "bg_challenge" / "only_fg" / "val" / FOLDERS[0] / "ILSVRC2012_val_0.JPEG"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"only_fg/val/00_dog/ILSVRC2012_val_0.JPEG: the image cannot be read"):
        load(tmp_path)
    for image_path in (folder / "in9l" / "val").rglob("*.JPEG"):
        image_path.unlink()
    with pytest.raises(InputError, match=r"in9l/val: the folder contains no images"):
        load(tmp_path)
