"""Unreadable: broken images are named, counted and left out by wish; everything else about the data stays."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import spurless.data.loaders.broken_images as unreadable_module
from spurless.core.errors import InputError, SpurlessWarning
from spurless.data.loaders.broken_images import drop_unreadable, find_unreadable
from spurless.data.loaders.csv import from_csv
from spurless.data.loaders.folder import from_folder
from spurless.data.loaders.images import read_image


@pytest.fixture
def pets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path / "cache"))
    for label in ("cat", "dog"):
        (tmp_path / "pets" / label).mkdir(parents=True)
        for number in range(8):
            noise = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(noise).save(tmp_path / "pets" / label / f"{number}.png")
    return tmp_path / "pets"


def spoil(root: Path, *names: str) -> None:
    """Cut files in half: the header is sound, the pixels are not."""
    for name in names:
        data = (root / name).read_bytes()
        (root / name).write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize("reading", [{}, {"stream": True}, {"cache": True}])
def test_broken_images_are_left_out_named_and_counted(pets: Path, reading: dict[str, bool]) -> None:
    sound = from_folder(pets)
    spoil(pets, "cat/3.png", "dog/0.png")
    (pets / "dog" / "5.png").write_bytes(b"")
    with pytest.warns(SpurlessWarning, match=r"^Skipped images that cannot be read \(3 of 16\): .*cat/3\.png, .*dog/0"):
        data = from_folder(pets, skip_bad=True, **reading)  # type: ignore[arg-type]  # switches
    assert len(data.train) + len(data.val) + len(data.test) == 13
    assert data.groups == sound.groups
    assert len(data.notes) == 1
    assert "dog/5.png" in data.notes[0]
    assert data.options["skip_bad"] is True
    assert "skip_bad" not in sound.options


@pytest.mark.parametrize("reading", [{}, {"cache": True}])
def test_without_the_wish_the_file_and_the_way_out_are_named(pets: Path, reading: dict[str, bool]) -> None:
    spoil(pets, "cat/3.png")
    with pytest.raises(InputError, match=r"cat/3\.png: the image cannot be read: .*Or skip such images: .*--skip-bad"):
        from_folder(pets, **reading)  # type: ignore[arg-type]  # switches
    streamed = from_folder(pets, stream=True).train.x
    with pytest.raises(InputError, match=r"cat/3\.png: .*--skip-bad\)\.$"):
        [streamed[i] for i in range(11)]  # type: ignore[index]  # images


def test_whole_data_need_no_word(pets: Path) -> None:
    data = from_folder(pets, skip_bad=True)
    assert data.notes == ()
    assert data.fingerprint() == from_folder(pets).fingerprint()


def test_a_class_without_a_sound_image_is_refused(pets: Path) -> None:
    spoil(pets, *(f"dog/{number}.png" for number in range(8)))
    with pytest.raises(InputError, match=r"pets: no image of the class 'dog' can be read, the first is .*dog/0\.png"):
        from_folder(pets, skip_bad=True)


def test_a_table_forgets_the_rows_of_images_that_are_broken_or_gone(pets: Path) -> None:
    rows = [
        f"{label}/{n}.png,{label},{'in' if n % 2 else 'out'},{'train' if n < 5 else 'test'}"
        for label in ("cat", "dog")
        for n in range(8)
    ]
    table = pets / "meta.csv"
    table.write_text("\n".join(["path,kind,place,fold", *rows]))
    spoil(pets, "cat/1.png")
    (pets / "dog" / "7.png").unlink()
    broken = pets / "without the last.csv"
    broken.write_text("\n".join(["path,kind,place,fold", *rows[:-1]]))
    with pytest.raises(InputError, match=r"meta\.csv, row 17: no such image file"):
        from_csv(table, label="kind", attribute="place", split="fold")
    with pytest.raises(InputError, match=r"cat/1\.png: the image cannot be read: .*--skip-bad"):
        from_csv(broken, label="kind")
    with pytest.warns(SpurlessWarning, match=r"\(2 of 16\): .*cat/1\.png, .*dog/7\.png\.$"):
        data = from_csv(table, label="kind", attribute="place", split="fold", skip_bad=True)
    assert len(data.test) == 5
    for split in (data.train, data.val, data.test):
        for row in range(len(split)):
            assert split.names is not None
            label, number = str(split.names[row]).removesuffix(".png").split("/")
            assert data.groups.labels[int(split.y[row])] == label
            assert data.groups.attributes[int(split.a[row])] == ("in" if int(number) % 2 else "out")


def test_a_path_that_leaves_its_root_is_refused_all_the_same(pets: Path) -> None:
    (pets / "meta.csv").write_text("path,kind\n../secret.png,cat\n")
    with pytest.raises(InputError, match=r"leaves the root folder"):
        from_csv(pets / "meta.csv", label="kind", skip_bad=True)


def test_a_table_of_numbers_has_no_images_to_skip(pets: Path) -> None:
    (pets / "n.csv").write_text("x,kind\n" + "\n".join(f"{n},{n % 2}" for n in range(20)))
    with pytest.raises(InputError, match=r"n\.csv: skip_bad is for images, but the file has no column of file names"):
        from_csv(pets / "n.csv", label="kind", skip_bad=True)


def test_a_second_look_reads_no_image_until_a_file_changes(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [pets / "cat" / f"{number}.png" for number in range(8)]
    spoil(pets, "cat/2.png")
    looked: list[Path] = []

    def watched(path: Path) -> object:
        looked.append(path)
        return read_image(path)

    monkeypatch.setattr(unreadable_module, "read_image", watched)
    assert find_unreadable(paths) == [2]
    assert sorted(looked) == paths
    assert find_unreadable(paths) == [2]
    assert len(looked) == 8
    (pets / "cat" / "4.png").write_bytes(b"nothing")
    assert find_unreadable(paths) == [2, 4]
    paths[0].unlink()
    assert find_unreadable(paths) == [0, 2, 4]


def test_a_cache_that_cannot_be_written_does_not_matter(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPURLESS_CACHE", str(pets / "cat" / "0.png"))
    spoil(pets, "cat/2.png")
    with pytest.warns(SpurlessWarning, match="Could not write to the cache"):
        assert find_unreadable([pets / "cat" / "1.png", pets / "cat" / "2.png"]) == [1]


def test_nothing_broken_is_nothing_said(pets: Path) -> None:
    assert drop_unreadable([pets / "cat" / "1.png"], ["cat"], pets) == ([0], ())
