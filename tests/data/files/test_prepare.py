"""Preparing: files are found, unpacked or fetched, compared with their checksums, and never replaced."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from spurless.core.errors import InputError
from spurless.data import DATASETS, from_tensors
from spurless.data.dataset import Card, Dataset, Layout, find_folder
from spurless.data.prepare import Prepared, find_files, prepare_dataset
from spurless.data.split import Splits

TABLE = "".join(f"{i % 2}\n" for i in range(60))
LAYOUT = Layout(
    files=(("table.csv", "table.txt"), "*/*.png"),
    folders=("toy", "toy_v1"),
    markers=("table.csv",),
    archives=("toy_v1.tar.gz", "images.zip"),
    obtain="Ask the authors.",
)
CARD = Card("toy", "s", "i", "l", "a", "s", "s", "l", "c")


@dataclass(frozen=True)
class ToyConfig:
    root: str | None = None
    seed: int = 0


def dataset(layout: Layout | None = LAYOUT) -> Dataset:
    def make(config: ToyConfig) -> Splits:
        folder = find_folder("toy", layout, config.root) if layout else None
        y = [int(line) for line in ((folder / "table.csv").read_text() if folder else TABLE).split()]
        if folder is not None and not list(folder.glob("*/*.png")):
            raise InputError("no images", where=folder)
        splits = from_tensors(torch.arange(len(y)).float()[:, None], y, name="toy")
        return replace(splits, options=asdict(config))

    return Dataset(CARD, ToyConfig, make, layout)


def ready(root: Path, layout: Layout | None = LAYOUT, download: bool = False) -> Prepared:
    return prepare_dataset(dataset(layout), ToyConfig(str(root)), download)


def write(folder: Path) -> Path:
    (folder / "birds").mkdir(parents=True)
    (folder / "table.csv").write_text(TABLE)
    (folder / "birds" / "1.png").write_bytes(b"one")
    return folder


def tar(path: Path, files: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def tree(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_files_that_are_there_are_only_loaded(tmp_path: Path) -> None:
    write(tmp_path / "toy")
    found = ready(tmp_path)
    assert (found.unpacked, found.downloaded, found.checksums) == ((), False, None)
    assert found.files == find_files("toy", LAYOUT, tmp_path)
    assert found.files.folder == tmp_path / "toy"
    assert found.files.missing == ()
    assert sum(map(len, (found.splits.train, found.splits.val, found.splits.test))) == 60


def test_files_are_called_by_the_names_they_have(tmp_path: Path) -> None:
    files = (("train.mat", "a.idx"), ("train.mat", "b.idx"), "*/*.png", ("one.csv", "three.csv"))
    layout = replace(LAYOUT, files=files, markers=("raw",))
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.idx.gz").touch()
    assert find_files("toy", layout, tmp_path).missing == ("train.mat or b.idx", "*/*.png", "one.csv or three.csv")
    for name in ("raw/b.idx", "raw/x.png", "three.csv", "two.csv"):
        (tmp_path / name).touch()
    found = find_files("toy", layout, tmp_path)
    assert found.missing == ()
    assert found.present == ("raw/a.idx.gz", "raw/b.idx", "*/*.png", "three.csv")


def test_an_embedded_dataset_needs_nothing(tmp_path: Path) -> None:
    found = ready(tmp_path, None)
    assert (found.files, found.unpacked, found.downloaded) == (None, (), False)
    assert len(found.splits.train) == 42


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ("toy_v1/", "toy_v1/"),  # a name that is looked for stays
        ("", "toy/"),  # bare files get a folder of their own
        ("release-2/", "toy/"),  # a name that nobody looks for does not stay
        ("home/me/", "toy/"),
    ],
)
def test_an_archive_is_unpacked_to_where_the_files_are_looked_for(tmp_path: Path, inside: str, expected: str) -> None:
    tar(tmp_path / "toy_v1.tar.gz", {f"{inside}table.csv": TABLE.encode(), f"{inside}birds/1.png": b"one"})
    found = ready(tmp_path)
    assert found.unpacked == (tmp_path / "toy_v1.tar.gz",)
    assert tree(tmp_path) == {"toy_v1.tar.gz", f"{expected}table.csv", f"{expected}birds/1.png"}
    assert ready(tmp_path).unpacked == ()  # once


def test_an_archive_of_the_images_joins_the_table_that_is_there(tmp_path: Path) -> None:
    for home in (tmp_path / "a", tmp_path / "b" / "toy"):
        home.mkdir(parents=True)
        (home / "table.csv").write_text(TABLE)
        with zipfile.ZipFile(home / "images.zip", "w") as archive:
            archive.writestr("birds/1.png", b"one")
            archive.writestr("table.csv", b"changed")
    for root, home in ((tmp_path / "a", tmp_path / "a"), (tmp_path / "b", tmp_path / "b" / "toy")):
        assert find_files("toy", LAYOUT, root).missing == ("*/*.png",)
        assert ready(root).unpacked == (home / "images.zip",)
        assert (home / "birds" / "1.png").read_bytes() == b"one"
        assert (home / "table.csv").read_text() == TABLE  # what is there is never replaced


@pytest.mark.parametrize("damage", ["cut off", "escape", "stranger"])
def test_a_bad_archive_is_named_and_leaves_nothing(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "toy_v1.tar.gz"
    tar(path, {"../evil.csv" if damage == "escape" else "n01440764.tar": b"x" * 5000})
    if damage == "cut off":
        path.write_bytes(path.read_bytes()[:20])
    match = r"contains no file of toy \(expected table.csv.*Ask the authors" if damage == "stranger" else ""
    with pytest.raises(InputError, match=rf"toy_v1.tar.gz.*{match}"):
        ready(tmp_path)
    assert tree(tmp_path) == {"toy_v1.tar.gz"}
    assert not list(tmp_path.glob(".*"))


def hostile_tar(path: Path, name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> None:
    with tarfile.open(path, "w:gz") as archive:
        for member, data in ((tarfile.TarInfo("toy/table.csv"), TABLE.encode()), (tarfile.TarInfo(name), b"evil")):
            if member.name == name:
                member.type, member.linkname = kind, target
            member.size = len(data) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(data) if member.isreg() else None)
        if kind == tarfile.SYMTYPE:  # and a file that would be written through the link
            archive.addfile(tarfile.TarInfo(f"{name}/evil"))


def hostile_zip(path: Path, name: str, mode: int = 0) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("toy/table.csv", TABLE)
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        archive.writestr(info, "../outside")


HOSTILE: dict[str, partial[None]] = {
    **{
        f"{kind} {name}": partial(write, name=name)
        for kind, write in (("tar", hostile_tar), ("zip", hostile_zip))
        for name in ("/{outside}/evil", "//{outside}/evil", "../outside/evil", "toy/../../outside/evil")
    },
    **{
        f"{kind.decode()} to {target}": partial(hostile_tar, name="toy/birds", kind=kind, target=target)
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE)
        for target in ("/{outside}", "//{outside}", "../../outside", "../birds", "toy/table.csv")
    },
    "device": partial(hostile_tar, name="toy/device", kind=tarfile.CHRTYPE),
    "zip symlink": partial(hostile_zip, name="toy/birds", mode=stat.S_IFLNK | 0o777),
}


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_archive_changes_nothing(attack: str, existing: bool, tmp_path: Path) -> None:
    outside, data = tmp_path / "outside", tmp_path / "data"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    (data / "toy" / "birds" if existing else data).mkdir(parents=True)
    build = HOSTILE[attack]
    words = {
        key: value.format(outside=str(outside).lstrip("/"))
        for key, value in build.keywords.items()
        if isinstance(value, str)
    }
    archive = data / ("images.zip" if "zip" in attack else "toy_v1.tar.gz")
    partial(build, **words)(archive)
    for _ in range(2):
        with pytest.raises(InputError, match=r"member '.*': the member (leaves its folder|is a link|is a device)"):
            ready(data)
        assert tree(tmp_path) == {"outside/mine", archive.relative_to(tmp_path).as_posix()}
        assert (data / "toy" / "birds").is_dir() == existing
        assert not list(data.glob(".*"))


@pytest.mark.parametrize("times", [1, 2])
def test_an_archive_is_not_unpacked_through_a_link(tmp_path: Path, times: int) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "data" / "toy").mkdir(parents=True)
    (tmp_path / "data" / "toy" / "birds").symlink_to(tmp_path / "outside")
    tar(tmp_path / "data" / "toy_v1.tar.gz", {"toy/table.csv": TABLE.encode(), "toy/birds/1.png": b"one"})
    for _ in range(times):
        with pytest.raises(InputError, match=r"toy/birds: the folder is a link"):
            ready(tmp_path / "data")
    assert tree(tmp_path) == {"data/toy_v1.tar.gz"}


def test_missing_files_are_described_with_where_to_get_them(tmp_path: Path) -> None:
    match = (
        r"nowhere: the files of toy are missing \(expected table.csv.*in toy/ or toy_v1/, got no such folder\)\. Ask"
    )
    with pytest.raises(InputError, match=match):
        ready(tmp_path / "nowhere")
    with pytest.raises(
        InputError, match=r"cannot be downloaded automatically\. Ask the authors\. Set the folder with root="
    ):
        ready(tmp_path, download=True)


def test_download_fills_the_data_folder_when_it_is_asked_to(tmp_path: Path) -> None:
    asked: list[Path] = []

    def fetch(folder: Path) -> None:
        asked.append(folder)
        write(folder / "toy")

    layout = replace(LAYOUT, download=fetch)
    with pytest.raises(InputError, match=r"Download them: spurless data prepare toy --download\. Or by hand: Ask"):
        ready(tmp_path / "new", layout)
    assert asked == []
    found = ready(tmp_path / "new", layout, download=True)
    assert asked == [tmp_path / "new"]
    assert found.downloaded
    assert found.files is not None
    assert found.files.folder == tmp_path / "new" / "toy"
    assert not ready(tmp_path / "new", layout, download=True).downloaded  # it is there
    assert len(asked) == 1


def test_download_that_fails_is_one_sentence_and_leaves_no_folder(tmp_path: Path) -> None:
    def fail(_: Path) -> None:
        raise RuntimeError("File not found or corrupted.")

    with pytest.raises(InputError, match=r"toy could not be downloaded: File not found.*by hand\. Ask"):
        ready(tmp_path / "new", replace(LAYOUT, download=fail), download=True)
    assert not (tmp_path / "new").exists()
    with pytest.raises(InputError, match=r"The download does not contain the expected files"):
        ready(tmp_path, replace(LAYOUT, download=lambda _: None), download=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match=r"file: cannot write"):
        ready(tmp_path / "file", replace(LAYOUT, download=fail), download=True)


def test_a_dataset_that_finds_its_files_by_rules_of_its_own_is_asked_first(tmp_path: Path) -> None:
    free = dataset(None)
    found = prepare_dataset(replace(free, layout=LAYOUT), ToyConfig(str(tmp_path)))
    assert len(found.splits.train) == 42
    assert found.files is None


@pytest.fixture
def listed(tmp_path: Path) -> Callable[..., Path]:
    """Write a list of the right checksums of all files, with some changed by name."""

    def make(root: Path, **changes: str) -> Path:
        sums = {name: sha256((root / name).read_bytes()).hexdigest() for name in tree(root)} | changes
        (root / "SHA256SUMS").write_text("".join(f"{value}  {name}\n" for name, value in sorted(sums.items())))
        assert root.is_relative_to(tmp_path)
        return root

    return make


def test_checksums_of_the_folder_of_the_dataset_are_compared(tmp_path: Path, listed: Any) -> None:
    write(tmp_path / "toy")
    (tmp_path / "other.npz").write_bytes(b"other")
    listed(tmp_path, **{"toy/masks.npz": "0" * 64, "other.npz": "0" * 64})
    sums = ready(tmp_path).checksums
    assert sums is not None
    assert (sums.correct, sums.absent) == (2, 1)  # the other dataset is none of ours
    listed(tmp_path, **{"toy/birds/1.png": "0" * 64})
    with pytest.raises(
        InputError, match=r"birds/1.png: the file differs from its checksum in SHA256SUMS \(expected 0000"
    ):
        ready(tmp_path)


def test_in_a_folder_that_several_share_the_layout_says_which_are_its_own(tmp_path: Path, listed: Any) -> None:
    write(tmp_path)
    (tmp_path / "other.npz").write_bytes(b"other")
    listed(tmp_path, **{"other.npz": "0" * 64})
    sums = ready(tmp_path).checksums
    assert sums is not None
    assert (sums.correct, sums.absent) == (2, 0)
    listed(tmp_path, **{"table.csv": "0" * 64})
    with pytest.raises(InputError, match=r"table.csv: the file differs"):
        ready(tmp_path)


@pytest.mark.parametrize("name", [name for name, row in DATASETS.items() if row.layout is not None])
def test_every_named_dataset_says_where_to_get_it(tmp_path: Path, name: str) -> None:
    row = DATASETS[name]
    with pytest.raises(InputError, match=rf"{name}.* (are missing|does not exist)"):
        prepare_dataset(row, row.config(root=str(tmp_path)))
    assert tree(tmp_path) == set()
