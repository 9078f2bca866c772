"""Hostile archives: whatever an archive contains, nothing outside the data folder is written, changed or moved.

Every archive is prepared twice, into an empty folder, into one with files, and into one with links to other folders.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import stat
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from spurless.cli import main
from spurless.core import limits
from spurless.core.errors import InputError
from spurless.data import DATASETS
from spurless.data.prepare import prepare_dataset, unpack

TABLE = b"img_id,img_filename,y,split,place,place_filename\n1,birds/1.jpg,0,0,0,/a/b.jpg\n"
FOLDER = "waterbirds_v1.0"  # one of the names that the dataset is looked for
SUFFIXES = ("tar", "tar.gz", "zip")
SYMLINK, HARDLINK = tarfile.SYMTYPE, tarfile.LNKTYPE


@dataclass(frozen=True)
class Member:
    """A member of an archive; ``OUT`` in names and targets stands for the absolute path of a folder outside."""

    name: str
    kind: bytes = tarfile.REGTYPE
    target: str = ""
    data: bytes = b"evil"


def folder(name: str) -> Member:
    return Member(name, tarfile.DIRTYPE, data=b"")


BENIGN = (folder(FOLDER), Member(f"{FOLDER}/metadata.csv", data=TABLE), Member(f"{FOLDER}/birds/1.jpg", data=b"jpg"))
OUTSIDE_NAMES = (
    "/OUT/evil", "//OUT/evil", "///OUT/evil", "////OUT/mine.txt", "/OUT", "//OUT", "/", "//",
    "../evil", "../outside/mine.txt", "./../outside/mine.txt", "../../evil", "..", "../", "./..",
    f"{FOLDER}/../../outside/mine.txt", f"{FOLDER}/../../../evil", f"{FOLDER}/birds/../../../outside/x",
    f"{FOLDER}/..", f"{FOLDER}/../..", "a/b/c/../../../../evil", f"{'x/' * 60}{'../' * 64}evil",
    f"{'../' * 60}OUT/evil",
    "..\\outside\\mine.txt", f"{FOLDER}\\..\\..\\outside\\mine.txt", "\\OUT\\evil", "\\\\host\\share\\evil", "\\evil",
    "C:\\evil", "C:/evil", "C:evil", "c:..\\evil", f"{FOLDER}/..\\..\\evil", "..\\/evil",
)  # fmt: skip
LINK_TARGETS = (
    "/OUT", "//OUT", "///OUT", "//etc", "/OUT/mine.txt", "../../outside", "../outside", "../../../outside", "..",
    "../..", ".", "nowhere", "/", "//", "metadata.csv", f"{FOLDER}/metadata.csv", "/proc/self/cwd", "",
)  # fmt: skip
LINK_NAMES = (f"{FOLDER}/birds", FOLDER, f"{FOLDER}/p/q/link", f"{FOLDER}/metadata.csv", "link")
ODD_NAMES = (" ", "-rf", "\n", "%2e%2e", "~", "$HOME", "\x1b[0m", "M\u00f6we")
DEVICES = (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)

REFUSED: dict[str, tuple[Member, ...]] = {
    **{f"name {name}": (*BENIGN, Member(name)) for name in OUTSIDE_NAMES},
    **{f"folder {name}": (*BENIGN, folder(name)) for name in OUTSIDE_NAMES[::5]},
    **{
        f"link {name} to {target}": (*BENIGN[:2], Member(name, SYMLINK, target), Member(f"{name}/mine.txt"))
        for name in LINK_NAMES
        for target in LINK_TARGETS
    },
    **{
        f"hard link {name} to {target}": (*BENIGN, Member(name, HARDLINK, target), Member(name))
        for name in LINK_NAMES
        for target in LINK_TARGETS[::3]
    },
    "links of links": (*BENIGN, *(Member(f"{'a/' * i}a", SYMLINK, "..") for i in range(4)), Member("a/a/a/a/evil")),
    "link and folder": (*BENIGN, Member("d", SYMLINK, "/OUT"), folder("d"), Member("d/evil")),
    "folder and link": (*BENIGN, folder("d"), Member("d", SYMLINK, "/OUT"), Member("d/evil")),
    "link alone": (Member(FOLDER, SYMLINK, "/OUT"),),
    "link first": (Member(f"{FOLDER}/birds", SYMLINK, "/OUT"), *BENIGN),
    **{f"device {kind.decode()}": (*BENIGN, Member(f"{FOLDER}/device", kind)) for kind in DEVICES},
    "file in the path": (*BENIGN, Member(f"{FOLDER}/birds/1.jpg/2.jpg")),
    "file for a folder": (*BENIGN, Member(f"{FOLDER}/birds")),
    "file for the root": (*BENIGN, Member(".")),
    "folder for a file": (*BENIGN, folder(f"{FOLDER}/metadata.csv")),
    "collision": (*BENIGN, Member("a"), folder("a/b"), Member("a/b/c")),
}
ACCEPTED: dict[str, tuple[Member, ...]] = {
    "benign": BENIGN,
    "other case": (*BENIGN, Member(f"{FOLDER}/BIRDS/1.jpg"), Member(f"{FOLDER}/Metadata.csv")),
    "same name": (*BENIGN, *BENIGN),
    "no folders": BENIGN[1:],
    "dots": tuple(Member(f"././{member.name}", member.kind, data=member.data) for member in BENIGN),
    "file for the user's folder": (*BENIGN, Member(f"{FOLDER}/own")),
    "folder for the user's file": (*BENIGN, Member(f"{FOLDER}/notes.txt/x")),
    "hidden": (*BENIGN, Member(f"{FOLDER}/.profile"), Member(".profile"), Member(f"{FOLDER}/...")),
    "odd names": (*BENIGN, *(Member(f"{FOLDER}/{name}") for name in ODD_NAMES)),
}  # fmt: skip


def mixed(number: int) -> tuple[Member, ...]:
    """Return an archive with one to three hostile members at random positions among others."""
    draw = random.Random(number)
    members = [*BENIGN, *(Member(f"{FOLDER}/birds/{i}.jpg") for i in range(draw.randrange(4)))]
    for _ in range(draw.randrange(1, 4)):
        name = draw.choice([*OUTSIDE_NAMES, *LINK_NAMES, f"{FOLDER}/{'d/' * draw.randrange(5)}x"])
        kind = draw.choice((SYMLINK, HARDLINK)) if draw.random() < 0.6 or name not in OUTSIDE_NAMES else tarfile.REGTYPE
        hostile = Member(name, kind, draw.choice(LINK_TARGETS))
        position = draw.randrange(len(members) + 1)
        members[position:position] = [hostile, *([Member(f"{name}/mine.txt")] if draw.random() < 0.5 else [])]
    return tuple(members)


REFUSED |= {f"mixed {number}": mixed(number) for number in range(60)}
ARCHIVES = REFUSED | ACCEPTED


def write_tar(path: Path, members: tuple[Member, ...], outside: Path) -> None:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            info = tarfile.TarInfo(member.name.replace("OUT", str(outside).lstrip("/")))
            info.type, info.linkname = member.kind, member.target.replace("OUT", str(outside).lstrip("/"))
            info.mode = 0o6777  # also with the bits that make programs run as their owner
            info.size = len(member.data) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(member.data) if info.isreg() else None)


def write_zip(path: Path, members: tuple[Member, ...], outside: Path) -> None:
    """Write a zip; a hard link, which it cannot contain, becomes a symbolic one."""
    kinds = {tarfile.CHRTYPE: stat.S_IFCHR, tarfile.BLKTYPE: stat.S_IFBLK, tarfile.FIFOTYPE: stat.S_IFIFO}
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of names that are there twice
        for member in members:
            name = member.name.replace("OUT", str(outside).lstrip("/"))
            is_folder, is_link = member.kind == tarfile.DIRTYPE, member.kind in (SYMLINK, HARDLINK)
            info = zipfile.ZipInfo(f"{name.rstrip('/')}/" if is_folder else name)
            info.create_system = 3
            kind = stat.S_IFLNK if is_link else kinds.get(member.kind, stat.S_IFDIR if is_folder else stat.S_IFREG)
            info.external_attr = (kind | 0o6777) << 16
            data = member.target.replace("OUT", str(outside).lstrip("/")).encode() if is_link else member.data
            archive.writestr(info, data)


def snapshot(root: Path) -> dict[str, tuple[object, ...]]:
    """Return kind, mode, identity and content of everything in a folder, without following links."""
    content: dict[str, tuple[object, ...]] = {}
    for path in [root, *root.rglob("*")]:
        status = path.lstat()
        data = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        content[str(path.relative_to(root))] = (status.st_mode, status.st_ino, status.st_nlink, data)
    return content


def files_of(root: Path) -> dict[str, tuple[object, ...]]:
    """Return the snapshot without the folders themselves, whose number of links may change."""
    return {
        name: facts
        for name, facts in snapshot(root).items()
        if not (root / name).is_dir() or (root / name).is_symlink()
    }


@dataclass(frozen=True)
class Place:
    """A data folder between things that must not change."""

    base: Path

    @property
    def data(self) -> Path:
        return self.base / "data"

    @property
    def outside(self) -> Path:
        return self.base / "outside"

    def around(self) -> dict[str, dict[str, tuple[object, ...]]]:
        """Return everything except the data folder."""
        assert sorted(path.name for path in self.base.iterdir()) == ["data", "outside"]
        return {"outside": snapshot(self.outside)}

    def check_paths(self, links: set[Path]) -> None:
        """Check that every file in the data folder really is in it, and that no link was added."""
        for path in self.data.rglob("*"):
            if path not in links:
                assert os.path.realpath(path).startswith(f"{os.path.realpath(self.data)}/"), path
                assert stat.S_ISREG(path.lstat().st_mode) or stat.S_ISDIR(path.lstat().st_mode), path
                assert not path.lstat().st_mode & 0o7000, path


Existing = Callable[[Place], set[Path]]


def nothing(_: Place) -> set[Path]:
    return set()


def files(place: Place) -> set[Path]:
    """Put the user's files where the archive has others; the table is missing, so that archives are unpacked."""
    target = place.data / FOLDER
    for name in ("birds/1.jpg", "birds/own.jpg", "p/q/own.txt", "own/x", "notes.txt"):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("own")
    return set()


def links(place: Place) -> set[Path]:
    """Add links to a folder outside, to a file outside, to nothing and to themselves."""
    target = place.data / FOLDER
    (target / "p" / "q").mkdir(parents=True)
    made = {
        target / "birds": place.outside,
        target / "p" / "q" / "link": place.outside,
        target / "notes.txt": place.outside / "mine.txt",
        target / "own": place.outside / "new",
        place.data / "link": place.outside,
        place.data / "d": place.data / "d",
        place.data / "a": Path(".."),
    }
    for path, goal in made.items():
        path.symlink_to(goal)
    return set(made)


def linked_target(place: Place) -> set[Path]:
    (place.data / FOLDER).symlink_to(place.outside)
    return {place.data / FOLDER}


EXISTING: tuple[Existing, ...] = (nothing, files, links, linked_target)


def make_place(base: Path) -> Place:
    place = Place(base)
    place.data.mkdir(parents=True)
    (place.outside / "deep").mkdir(parents=True)
    for name in ("mine.txt", "deep/mine.txt"):
        (place.outside / name).write_text("mine")
    return place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_place(tmp_path)


def archive_path(place: Place, suffix: str) -> Path:
    # a published name: the content decides how it is unpacked
    return place.data / ("waterbirds_v1.0.tar.gz" if suffix != "zip" else "waterbird_complete95_forest2water2.tar.gz")


def prepare(place: Place) -> None:
    row = DATASETS["waterbirds"]
    prepare_dataset(row, row.config(root=str(place.data)))


def prepare_twice(name: str, suffix: str, existing: Existing, base: Path) -> None:
    """Prepare an archive twice, and check the files inside and outside after each time."""
    place = make_place(base)
    known = existing(place)
    write_archive(archive_path(place, suffix), suffix, ARCHIVES[name], place.outside)
    around, before = place.around(), files_of(place.data)
    for _ in range(2):
        with pytest.raises(InputError) as caught:  # also of the others: they lack most images
            prepare(place)
        assert place.around() == around, name
        assert before.items() <= files_of(place.data).items(), name  # nothing of the user's was changed or moved
        place.check_paths(known)
        if name in REFUSED:
            assert files_of(place.data) == before, name
            assert "member" in caught.value.what or existing is linked_target, name
    assert not list(place.data.rglob(".*.tmp")), name
    shutil.rmtree(base)


def test_hostile_archives_change_nothing_outside(tmp_path: Path) -> None:
    for number, name in enumerate([*[*REFUSED][::2], *ACCEPTED]):
        prepare_twice(name, SUFFIXES[number % 3], EXISTING[number % 4], tmp_path / "base")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_dataset_folder_that_is_a_link_to_outside_is_refused(suffix: str, place: Place) -> None:
    linked_target(place)
    (place.data / "waterbirds").symlink_to(place.outside)
    around = place.around()
    for members in (BENIGN, tuple(Member(member.name.replace(FOLDER, "x"), member.kind) for member in BENIGN)):
        write_archive(archive_path(place, suffix), suffix, members, place.outside)
        with pytest.raises(InputError, match="the folder is a link"):
            prepare(place)
        assert place.around() == around


@pytest.mark.slow
@pytest.mark.parametrize("existing", EXISTING, ids=lambda existing: existing.__name__)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_hostile_archives_of_every_kind_change_nothing_outside(suffix: str, existing: Existing, tmp_path: Path) -> None:
    for name in ARCHIVES:
        prepare_twice(name, suffix, existing, tmp_path / "base")


def write_archive(path: Path, suffix: str, members: tuple[Member, ...], outside: Path) -> None:
    if suffix == "zip":
        write_zip(path, members, outside)
        return
    plain = path.with_name(f"archive.{suffix}")
    write_tar(plain, members, outside)
    plain.rename(path)


def test_there_are_at_least_a_hundred_archives_of_each_kind() -> None:
    assert len(ARCHIVES) >= 200  # of which the fast test tries half
    assert len({repr(members) for members in ARCHIVES.values()}) == len(ARCHIVES)


def test_an_archive_of_far_more_than_its_size_is_refused_before_it_is_unpacked(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MIN_UNPACKED", 1000)
    archive = place.data / "bomb.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("zeros", bytes(10**6))
    with pytest.raises(InputError, match="too large"):
        unpack(archive, place.data / "new")
    assert not (place.data / "new").exists()
    monkeypatch.setenv(limits.MAX_BYTES_VARIABLE, str(10**7))
    unpack(archive, place.data / "new")
    assert (place.data / "new" / "zeros").stat().st_size == 10**6


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_benign_archive_is_unpacked(suffix: str, place: Place) -> None:
    write_archive(archive_path(place, suffix), suffix, BENIGN, place.outside)
    with pytest.raises(InputError):
        prepare(place)
    assert (place.data / FOLDER / "metadata.csv").read_bytes() == TABLE
    assert (place.data / FOLDER / "birds" / "1.jpg").read_bytes() == b"jpg"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_unpacking_hostile_archives_directly_leaves_nothing(suffix: str, place: Place) -> None:
    around = place.around()
    for name, members in REFUSED.items():
        path = place.data / f"a.{suffix}"
        write_archive(path, suffix, members, place.outside)
        with pytest.raises(InputError):
            unpack(path, place.data / "new")
        path.unlink()
        assert (place.around(), list(place.data.iterdir())) == (around, []), name


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_command_prints_one_line(
    suffix: str, place: Place, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    around = place.around()
    for name, members in [*REFUSED.items()][::8]:
        write_archive(archive_path(place, suffix), suffix, members, place.outside)
        monkeypatch.setattr(sys, "argv", ["spurless", "data", "prepare", "waterbirds", "--root", str(place.data)])
        with pytest.raises(SystemExit) as leaving:
            main()
        out, err = capfd.readouterr()
        assert (leaving.value.code, out, len(err.splitlines())) == (2, "", 1), name
        assert place.around() == around, name


@pytest.mark.parametrize("umask", [0o022, 0o077])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_unpacked_files_have_the_mode_of_the_users_umask(suffix: str, umask: int, place: Place) -> None:
    before = os.umask(umask)
    try:
        write_archive(place.data / f"a.{suffix}", suffix, BENIGN, place.outside)
        unpack(place.data / f"a.{suffix}", place.data / "new")
    finally:
        os.umask(before)
    for path in (place.data / "new").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o777 if path.is_dir() else 0o666) & ~umask


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_archives_are_refused_or_unpacked_inside(suffix: str, place: Place) -> None:
    """Bytes are changed at random: whatever they mean, the error is an InputError and nothing is outside."""
    path, around = place.data / f"a.{suffix}", place.around()
    write_archive(path, suffix, BENIGN, place.outside)
    whole = path.read_bytes()
    draw = random.Random(0)
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(draw.randrange(1, 6)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged[: draw.randrange(len(damaged)) if draw.random() < 0.2 else None])
        try:
            unpack(path, place.data / "new")
        except InputError:
            assert not (place.data / "new").exists()
        place.check_paths(set())
        assert place.around() == around
        shutil.rmtree(place.data / "new", ignore_errors=True)
