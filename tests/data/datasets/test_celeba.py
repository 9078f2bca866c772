"""CelebA: tiny copies in three layouts are read alike, domains have the published shares, wrong copies are refused."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spurless.core.errors import IncompleteDataWarning, InputError, UnknownNameError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.datasets.celeba import (
    ATTRIBUTES,
    CARD,
    FIRST_DOMAIN,
    LAYOUT,
    PUBLISHED,
    CelebAConfig,
    _assign_domains,
    celeba,
    value_names,
)
from spurless.data.split import Split, Splits

N = 24
BLOND, MALE, YOUNG = (ATTRIBUTES.index(name) for name in ("Blond_Hair", "Male", "Young"))


def facts(i: int) -> tuple[int, int, int]:
    """Blond, male and split: two examples of every group in every split."""
    return i % 2, i // 2 % 2, i // 4 % 3


def signs(i: int) -> list[int]:
    row = [-1] * len(ATTRIBUTES)
    row[BLOND], row[MALE] = (2 * value - 1 for value in facts(i)[:2])
    row[YOUNG] = 1 if i < N // 2 else -1
    return row


def images(folder: Path) -> None:
    folder.mkdir(parents=True)
    for i in range(N):
        Image.fromarray(np.full((218, 178, 3), 10 * i, dtype=np.uint8)).save(folder / f"{i + 1:06}.jpg")


def torchvision_layout(root: Path) -> Path:
    folder = root / "celeba"
    images(folder / "img_align_celeba")
    rows = [f"{i + 1:06}.jpg  " + " ".join(f"{sign:2}" for sign in signs(i)) for i in range(N)]
    (folder / "list_attr_celeba.txt").write_text("\n".join([str(N), " ".join(ATTRIBUTES) + " ", *rows, ""]))
    splits = [f"{i + 1:06}.jpg {facts(i)[2]}" for i in range(N)]
    (folder / "list_eval_partition.txt").write_text("\n".join(splits))
    return folder


def kaggle_layout(root: Path) -> Path:
    folder = root / "celeba"
    images(folder / "img_align_celeba" / "img_align_celeba")
    write(
        folder / "list_attr_celeba.csv", ["image_id", *ATTRIBUTES], [[f"{i + 1:06}.jpg", *signs(i)] for i in range(N)]
    )
    rows = [[f"{i + 1:06}.jpg", facts(i)[2]] for i in reversed(range(N))]  # joined by name, not by place
    write(folder / "list_eval_partition.csv", ["image_id", "partition"], rows)
    return folder


def metadata_layout(root: Path) -> Path:
    folder = root / "celeba"
    images(folder / "img_align_celeba")
    rows = [[i, f"{i + 1:06}.jpg", facts(i)[0], facts(i)[2], facts(i)[1]] for i in range(N)]
    write(folder / "metadata.csv", ["img_id", "img_filename", "y", "split", "place"], rows)
    return folder


def write(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def load(root: Path, **options: Any) -> Splits:
    return celeba(CelebAConfig(root=str(root), size=16, **options))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("layout", [torchvision_layout, kaggle_layout, metadata_layout])
def test_every_layout_is_read_as_published(tmp_path: Path, layout: Callable[[Path], Path]) -> None:
    layout(tmp_path)
    with pytest.warns(IncompleteDataWarning, match=r"train has 2/2/2/2 instead of 71,629/66,874/22,880/1,387"):
        data = load(tmp_path)
    assert data.groups.names == ("not blond, female", "not blond, male", "blond, female", "blond, male")
    for number, split in enumerate((data.train, data.val, data.test)):
        assert isinstance(split.x, torch.Tensor)
        assert split.x.shape == (8, 3, 16, 16)
        shown = (split.x.float().mean(dim=(1, 2, 3)) / 10).round().long()  # the grey of an image is its number
        assert shown.tolist() == [i for i in range(N) if facts(i)[2] == number]
        assert split.y.tolist() == [facts(int(i))[0] for i in shown]
        assert split.a.tolist() == [facts(int(i))[1] for i in shown]
        assert split.domain is None


def test_the_metadata_may_lie_among_the_images(tmp_path: Path) -> None:
    folder = metadata_layout(tmp_path)
    (folder / "metadata.csv").rename(folder / "img_align_celeba" / "metadata.csv")
    for root in (tmp_path, folder / "img_align_celeba"):
        with pytest.warns(IncompleteDataWarning):
            assert len(load(root).test) == 8


@pytest.mark.parametrize("layout", [torchvision_layout, kaggle_layout])
def test_any_attribute_may_be_label_or_attribute(tmp_path: Path, layout: Callable[[Path], Path]) -> None:
    layout(tmp_path)
    with pytest.warns(IncompleteDataWarning, match=r"train has 8 instead of 162,770"):
        data = load(tmp_path, label="Young", attribute="Wearing_Hat")
    assert data.groups.labels == ("not Young", "Young")
    assert data.groups.attributes == ("not Wearing Hat", "Wearing Hat")
    assert data.train.y.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]  # images 0 to 3, and 12 to 15
    assert data.train.a.tolist() == [0] * 8


def test_the_published_counts_are_those_of_the_card() -> None:
    assert [sum(counts) for counts in PUBLISHED.values()] == [162770, 19867, 19962]
    assert "162,770" in CARD.splits
    assert len(set(ATTRIBUTES)) == 40


def whole(name: str) -> Split:
    """A split of the published size, without its pixels."""
    g = torch.repeat_interleave(torch.arange(4), torch.tensor(PUBLISHED[name]))
    return Split(torch.zeros(len(g), 1), g // 2, g % 2, Groups(value_names("Blond_Hair"), value_names("Male")))


@pytest.mark.parametrize("name", ["train", "val"])
def test_the_whole_of_celeba_is_divided_as_published(name: str) -> None:
    split = _assign_domains(whole(name), name, Seeds(1))
    assert split.domain is not None
    in_first = torch.bincount(split.g[split.domain == 0], minlength=4)
    assert in_first.tolist() == list(FIRST_DOMAIN[name])
    # Zhou et al.: as many dark-haired as blond women are in domain 0, where all blond women are
    assert FIRST_DOMAIN[name][0] == FIRST_DOMAIN[name][2] == PUBLISHED[name][2]
    assert split.given.groups.names == ("domain 0", "domain 1")
    assert split.given.counts.tolist() == [sum(FIRST_DOMAIN[name]), sum(PUBLISHED[name]) - sum(FIRST_DOMAIN[name])]
    other = _assign_domains(whole(name), name, Seeds(2))
    assert not torch.equal(split.domain, other.domain)  # type: ignore[arg-type] # it has a domain too
    assert torch.equal(split.domain, _assign_domains(whole(name), name, Seeds(1)).domain)  # type: ignore[arg-type]


def test_a_part_is_divided_by_the_same_shares_and_tested_on_the_groups(tmp_path: Path) -> None:
    torchvision_layout(tmp_path)
    with pytest.warns(IncompleteDataWarning):
        data = load(tmp_path, partition="imperfect")
    assert data.test.domain is None
    for split in (data.train, data.val):
        assert split.domain is not None
        assert split.domains == ("domain 0", "domain 1")
        first = torch.bincount(split.g[split.domain == 0], minlength=4)
        # of 2 in each group: 2 * 22880 / 71629 = 0.6, 2 * 65487 / 66874 = 1.96, all, none
        assert first.tolist() == [1, 2, 2, 0]
    assert len(data.groups) == 4


def test_the_imperfect_partition_is_of_hair_and_gender_alone(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"imperfect partition is defined only for hair and gender.*got label=Young"):
        load(tmp_path, partition="imperfect", label="Young")
    with pytest.raises(InputError, match=r"option 'partition' is unknown \(expected clean, imperfect, got dirty\)"):
        load(tmp_path, partition="dirty")


def test_an_unknown_attribute_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        UnknownNameError, match=r"No attribute of CelebA is called 'blond_hairs'. Did you mean 'Blond_Hair'"
    ):
        load(tmp_path, label="blond_hairs")
    with pytest.raises(UnknownNameError, match=r"'male'. Did you mean 'Male'"):
        load(tmp_path, attribute="male")
    with pytest.raises(InputError, match=r"label and attribute must differ"):
        load(tmp_path, label="Male")


def test_the_metadata_know_two_attributes_alone(tmp_path: Path) -> None:
    metadata_layout(tmp_path)
    with pytest.raises(InputError, match=r"metadata.csv: the file has only Blond_Hair and Male \(got Young, Male\)"):
        load(tmp_path, label="Young")


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (
            "list_attr_celeba.txt",
            "24\n",
            "202599\n",
            r"celeba.txt: the file is truncated \(expected 202599 rows, got 24\)",
        ),
        ("list_attr_celeba.txt", "24\n", "", r"line 1 is not the number of images"),
        ("list_attr_celeba.txt", " Male", " Man", r"line 2: no column is called 'Male'"),
        ("list_attr_celeba.txt", "000003.jpg  -1", "000003.jpg ", r"celeba.txt, line 5: the row is truncated"),
        ("list_attr_celeba.txt", "000002.jpg", "000001.jpg", r"the image 000001.jpg is listed twice"),
        (
            "list_attr_celeba.txt",
            "000002.jpg",
            "../02.jpg",
            r"list_eval_partition.txt: the split of ../02.jpg is missing",
        ),
        ("list_eval_partition.txt", "000002.jpg 0", "000002.jpg 7", r"split of 000002.jpg is missing .* got 7"),
        ("list_eval_partition.txt", "000002.jpg 0\n", "", r"split of 000002.jpg is missing \(expected 0, 1 or 2\)"),
    ],
)
def test_wrong_text_files_are_refused_by_name(tmp_path: Path, name: str, old: str, new: str, said: str) -> None:
    edit(torchvision_layout(tmp_path) / name, old, new)
    with pytest.raises(InputError, match=said):
        load(tmp_path)


def test_a_mark_that_is_no_sign_is_refused_by_line(tmp_path: Path) -> None:
    path = torchvision_layout(tmp_path) / "list_attr_celeba.txt"
    lines = path.read_text().splitlines()
    cells = lines[4].split()
    cells[1 + MALE] = "0"
    path.write_text("\n".join([*lines[:4], " ".join(cells), *lines[5:]]))
    with pytest.raises(InputError, match=r"line 5: an attribute is neither -1 nor 1 \(got -1 and 0\)"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("list_attr_celeba.csv", "Blond_Hair", "Blonde", r"list_attr_celeba.csv: no column is called 'Blond_Hair'"),
        (
            "list_attr_celeba.csv",
            "000002.jpg,-1,-1,-1,-1,-1,-1,-1,-1,-1,1",
            "000002.jpg" + ",-1" * 9 + ",0",
            r"row 3: '0'",
        ),
        ("list_eval_partition.csv", "partition", "split", r"list_eval_partition.csv: no column is called 'partition'"),
    ],
)
def test_wrong_sheets_are_refused_by_name(tmp_path: Path, name: str, old: str, new: str, said: str) -> None:
    edit(kaggle_layout(tmp_path) / name, old, new)
    with pytest.raises(InputError, match=said):
        load(tmp_path)


@pytest.mark.parametrize(
    ("layout", "name"),
    [(torchvision_layout, "list_eval_partition.txt"), (kaggle_layout, "list_eval_partition.csv")],
)
def test_a_missing_list_is_named(tmp_path: Path, layout: Callable[[Path], Path], name: str) -> None:
    (layout(tmp_path) / name).unlink()
    with pytest.raises(InputError, match=rf"{name}: a file of celeba is missing"):
        load(tmp_path)


def test_images_without_lists_say_what_is_missing(tmp_path: Path) -> None:
    images(tmp_path / "celeba" / "img_align_celeba")
    with pytest.raises(InputError, match=r"there is no list of attributes \(expected list_attr_celeba.txt.*CUHK"):
        load(tmp_path)


def test_a_missing_or_broken_image_is_named(tmp_path: Path) -> None:
    path = torchvision_layout(tmp_path) / "img_align_celeba" / "000004.jpg"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"000004.jpg: the image cannot be read"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"list_attr_celeba.txt, row 6: no such image file: .*000004.jpg"):
        load(tmp_path)


def test_nothing_there_says_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"files of celeba are missing .*celeba/.*Kaggle"):
        load(tmp_path)


def test_the_download_is_that_of_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("torchvision.datasets.CelebA", lambda *args, **options: calls.append((args, options)))
    assert LAYOUT.download is not None
    LAYOUT.download(tmp_path)
    assert calls == [((str(tmp_path),), {"split": "all", "download": True})]
