"""ImageNet-A: 42 classes of ImageNet become nine, and what ImageNet-A has of them is test."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.data.datasets.imagenet_a import LABEL_OF_WNID, PUBLISHED, WNIDS, ImagenetAConfig, imagenet_a
from spurless.data.split import Splits

OFFICIAL = {  # the classes of the published ImageNet-A that are among the 42
    "n01641577", "n01669191", "n01819313", "n01820546", "n01833805", "n01843383", "n01847000",
    "n02085620", "n02099601", "n02106550", "n02106662", "n02110958", "n02123394", "n02174001",
    "n02177972", "n02190166", "n02206856", "n02219486", "n02486410", "n02492035", "n02655020",
}  # fmt: skip
OTHER = "n01498041"  # stingray: in ImageNet and in ImageNet-A, and none of the nine


def image(path: Path, grey: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((12, 9, 3), grey, dtype=np.uint8)).save(path, format="JPEG")


def write(root: Path) -> None:
    """Three of each class in train, one in val, two in ImageNet-A; the grey is 20 times the number of the class."""
    for wnid in (*LABEL_OF_WNID, OTHER):
        grey = 20 * LABEL_OF_WNID.get(wnid, 12)
        for i in range(3):
            image(root / "imagenet" / "train" / wnid / f"{wnid}_{i}.JPEG", grey)
        image(root / "imagenet" / "val" / wnid / f"ILSVRC2012_val_{wnid}.JPEG", grey)
    for wnid in (*OFFICIAL, OTHER):
        for i in range(2):
            image(
                root / "imagenet-a" / wnid / f"0.00{i}_fox squirrel _ fox squirrel_0.9.jpg",
                20 * LABEL_OF_WNID.get(wnid, 12),
            )
    (root / "imagenet-a" / "README.txt").write_text("n01498041 stingray")


def load(root: Path) -> Splits:
    return imagenet_a(ImagenetAConfig(root=str(root), size=8))


def test_the_classes_are_gathered_into_nine(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.warns(
        IncompleteDataWarning,
        match=r"train has 126 instead of 54,600; val has 42 instead of 2,100; test has 42 instead of",
    ):
        data = load(tmp_path)
    assert data.groups.names == ("dog", "cat", "frog", "turtle", "bird", "primate", "fish", "crab", "insect")
    sizes = [5, 5, 3, 5, 5, 5, 5, 4, 5]
    assert data.train.class_counts.tolist() == [3 * size for size in sizes]
    assert data.val.class_counts.tolist() == sizes
    assert data.test.class_counts.tolist() == [10, 2, 2, 2, 10, 4, 2, 0, 10]  # no crab
    for split in (data.train, data.val, data.test):
        x: Any = split.x
        assert (x[:, 0, 0, 0].float() / 20).round().tolist() == split.y.tolist()


def test_the_published_counts_are_those_of_42_classes() -> None:
    assert len(LABEL_OF_WNID) == sum(map(len, WNIDS.values())) == 42
    assert PUBLISHED["train"] == 42 * 1300
    assert PUBLISHED["val"] == 42 * 50
    assert len(OFFICIAL) == 21
    assert set(LABEL_OF_WNID) >= OFFICIAL


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("imagenet/train", r"the files of imagenet are missing"),
        ("imagenet/val", r"imagenet/val: a file of imagenet is missing"),
        ("imagenet-a", r"the files of imagenet-a are missing \(expected imagenet-a in the folder itself.*hendrycks"),
    ],
)
def test_a_missing_part_is_named(tmp_path: Path, folder: str, said: str) -> None:
    write(tmp_path)
    (tmp_path / folder).rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=said):
        load(tmp_path)


def test_a_copy_without_any_of_the_42_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "imagenet-a").rename(tmp_path / "elsewhere")
    image(tmp_path / "imagenet-a" / OTHER / "a.jpg", 0)
    with pytest.raises(
        InputError, match=r"imagenet-a: the folder has none of the 42 classes \(expected n02085620 and others\)"
    ):
        load(tmp_path)


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    path = next((tmp_path / "imagenet-a" / "n02085620").iterdir())
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"n02085620/0.00.*: the image cannot be read"):
        load(tmp_path)
