"""ImageNet: a few classes in the official layout; val is cut from train, by seed; wrong copies are refused by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.data.datasets.imagenet import PUBLISHED, ImagenetConfig, class_files, find_imagenet, imagenet
from spurless.data.split import Splits

CLASSES = ("n01440764", "n02012849", "n03126707")  # tench, crane (the bird), crane (the machine)
TRAIN, TEST = 6, 2


def image(path: Path, grey: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((20, 30), grey, dtype=np.uint8)).save(path, format="JPEG")  # some of ImageNet are grey


def write(root: Path, classes: tuple[str, ...] = CLASSES) -> Path:
    """The grey of an image is 60 times its class, plus 6 times its number in train, plus 50 in the official val."""
    folder = root / "imagenet"
    for k, wnid in enumerate(classes):
        for i in range(TRAIN):
            image(folder / "train" / wnid / f"{wnid}_{i}.JPEG", 60 * k + 6 * i)
        for i in range(TEST):
            image(folder / "val" / wnid / f"ILSVRC2012_val_{k}{i:07}.JPEG", 60 * k + 50)
    return folder


def load(root: Path, **options: Any) -> Splits:
    return imagenet(ImagenetConfig(root=str(root), size=8, **options))


def greys(x: Any) -> list[int]:
    return [round(float(value)) for value in x.float().mean(dim=(1, 2, 3))]


def test_the_official_validation_images_are_test_and_val_is_cut_from_train(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.warns(
        IncompleteDataWarning,
        match=r"train has 12 instead of 1,231,167; val has 6 instead of 50,000; test has 6 instead of",
    ):
        data = load(tmp_path, val_per_class=2)
    assert data.groups.labels == CLASSES
    assert data.groups.attributes == ()
    assert data.train.class_counts.tolist() == [4, 4, 4]
    assert data.val.class_counts.tolist() == [2, 2, 2]
    assert greys(data.test.x) == [50, 50, 110, 110, 170, 170]
    assert data.test.y.tolist() == [0, 0, 1, 1, 2, 2]
    both = sorted(greys(data.train.x) + greys(data.val.x))
    assert both == [60 * k + 6 * i for k in range(3) for i in range(TRAIN)]  # each once, none lost
    for split in (data.train, data.val):
        assert split.y.tolist() == [grey // 60 for grey in greys(split.x)]


@pytest.mark.filterwarnings("ignore::spurless.core.errors.IncompleteDataWarning")
def test_the_seed_draws_val_and_at_most_half_of_a_class(tmp_path: Path) -> None:
    write(tmp_path)
    draws = [greys(load(tmp_path, val_per_class=2, seed=seed).val.x) for seed in range(8)]
    half = load(tmp_path)
    assert greys(load(tmp_path, val_per_class=2, seed=0).val.x) == draws[0]
    assert len({tuple(draw) for draw in draws}) > 4
    places = [[grey % 60 for grey in draw[2 * k : 2 * k + 2]] for draw in draws for k in range(3)]
    assert not all(places[3 * n] == places[3 * n + 1] == places[3 * n + 2] for n in range(8))  # each class its own draw
    assert half.val.class_counts.tolist() == [3, 3, 3]  # 50 are wanted


def test_the_published_counts_are_the_official_ones() -> None:
    assert PUBLISHED["train"] + PUBLISHED["val"] == 1_281_167
    assert PUBLISHED["val"] == 50 * 1000


def test_classes_are_called_in_words_where_a_list_is_there(tmp_path: Path) -> None:
    folder = write(tmp_path)
    index = {"0": [CLASSES[0], "tench"], "134": [CLASSES[1], "crane"], "517": [CLASSES[2], "tower_crane"]}
    (folder / "imagenet_class_index.json").write_text(json.dumps(index))
    with pytest.warns(IncompleteDataWarning):
        assert load(tmp_path).groups.labels == ("tench", "crane", "tower crane")
    lines = [f"{CLASSES[0]} tench, Tinca tinca", f"{CLASSES[1]} crane", f"{CLASSES[2]} crane"]
    (tmp_path / "LOC_synset_mapping.txt").write_text("\n".join(lines) + "\n")
    (folder / "imagenet_class_index.json").unlink()
    with pytest.warns(IncompleteDataWarning):
        assert load(tmp_path).groups.labels == ("tench", "crane (n02012849)", "crane (n03126707)")


@pytest.mark.parametrize("content", ["[1, 2]", "{", '{"0": 3}', '{"0": ["n01440764", 5]}'])
def test_a_list_of_words_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (write(tmp_path) / "imagenet_class_index.json").write_text(content)
    with pytest.raises(InputError, match=r"imagenet_class_index.json: the file is not a class index"):
        load(tmp_path)


def test_a_heap_of_validation_images_is_refused_with_the_remedy(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "val").rename(folder / "sorted")
    image(folder / "val" / "ILSVRC2012_val_00000001.JPEG", 0)
    with pytest.raises(
        InputError, match=r"val: the images are not sorted into class folders. Move each into val/<wnid>/"
    ):
        load(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: (f / "val").rename(f / "test"), r"imagenet/val: a file of imagenet is missing"),
        (lambda f: image(f / "val" / "n99999999" / "a.JPEG", 0), r"val: the class n99999999 is not in train"),
        (lambda f: (f / "train" / "n09999999").mkdir(), r"train/n09999999: the folder contains no images"),
        (lambda f: (f / "train" / CLASSES[1] / f"{CLASSES[1]}_3.JPEG").write_bytes(b"no image"), r"_3.JPEG: the image"),
    ],
)
def test_a_wrong_copy_is_refused_by_name(tmp_path: Path, spoil: Any, said: str) -> None:
    spoil(write(tmp_path))
    with pytest.raises(InputError, match=said):
        load(tmp_path)


def test_a_train_folder_of_other_classes_is_not_imagenet(tmp_path: Path) -> None:
    image(tmp_path / "train" / "cat.0.jpg", 0)
    image(tmp_path / "train" / "cats" / "0.jpg", 0)
    with pytest.raises(InputError, match=r"files of imagenet are missing \(expected train/n01440764.*image-net.org"):
        load(tmp_path)
    folder = write(tmp_path, CLASSES[1:])  # a part, without the first class
    assert find_imagenet(str(tmp_path)) == folder
    with pytest.warns(IncompleteDataWarning):
        assert load(tmp_path).groups.labels == CLASSES[1:]


def test_a_folder_is_listed_in_order_without_what_is_no_image(tmp_path: Path) -> None:
    names = [f"n_{i}.JPEG" for i in range(30)]
    for name in (*names, ".hidden.JPEG"):
        image(tmp_path / name, 0)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "folder.jpg").mkdir()
    assert class_files(tmp_path) == [tmp_path / name for name in sorted(names)]


def test_pixels_are_coloured(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.warns(IncompleteDataWarning):
        x = load(tmp_path).train.x
    assert isinstance(x, torch.Tensor)
    assert x.shape[1:] == (3, 8, 8)
