"""The cache of images: the same pixels as before, found by content, and whole whatever happens while it is made."""

import errno
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.core.places import cache_folder
from spurless.data import cache, images
from spurless.data.cache import Mapped, decoded
from spurless.data.images import Encoded, ImageFiles, decode_all, fill, read

N = 60


def write(folder: Path, n: int = N, height: int = 6, width: int = 9) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    paths = [folder / f"{i}.png" for i in range(n)]
    for path in paths:
        Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)
    return paths


class Counted:
    """Image files that count what is asked of them."""

    def __init__(self, paths: list[Path], size: int | None = 4) -> None:
        self.files, self.size, self.channels = ImageFiles(paths, size), size, 3
        self.decoded: list[int] = []
        self.hashed: list[int] = []

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> Tensor:
        self.decoded.append(i)
        return self.files[i]

    def encoded(self, i: int) -> bytes:
        self.hashed.append(i)
        return self.files.encoded(i)

    def stamp(self) -> str:
        return self.files.stamp()

    def fingerprint(self) -> str:
        return self.files.fingerprint()


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return write(tmp_path / "images")


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "CHUNK", 7)


def names(folder: Path, suffix: str) -> list[str]:
    return sorted(path.name for path in folder.glob(f"*.{suffix}"))


@pytest.mark.parametrize(("size", "channels"), [(4, 3), (4, 1), (None, 3), (None, 1)])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_pixels_are_those_of_direct_decoding(
    size: int | None, channels: int, threads: int, paths: list[Path], tmp_path: Path
) -> None:
    files = ImageFiles(paths, size, channels)
    mapped = decoded(files, tmp_path / "cache", threads)
    direct = decode_all(files)
    assert mapped.shape == tuple(direct.shape)
    assert mapped.nbytes == direct.numel() == mapped.path.stat().st_size
    assert mapped.path.read_bytes() == direct.numpy().tobytes()
    assert torch.equal(mapped.tensor(), direct)
    assert torch.equal(torch.stack([mapped[i] for i in range(len(mapped))]), direct)
    index = torch.tensor([59, 0, 0, 17])
    assert torch.equal(mapped.batch(index), direct[index])
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".json", ".key", ".u8"]


def test_it_lies_in_the_cache_folder(paths: list[Path]) -> None:
    assert decoded(ImageFiles(paths, 4)).path.parent == cache_folder() / "images"


def test_what_is_read_can_be_written_to_without_harm(paths: list[Path]) -> None:
    mapped = decoded(ImageFiles(paths, 4))
    before = mapped.tensor()
    for taken in (mapped[3], mapped.batch(torch.tensor([3, 4])), mapped.tensor()):
        taken += 1
    assert torch.equal(mapped.tensor(), before)
    with pytest.raises(IndexError):
        mapped[N]
    with pytest.raises(IndexError):
        mapped.batch(torch.tensor([N]))


def test_only_the_path_travels_to_other_processes(paths: list[Path]) -> None:
    mapped = decoded(ImageFiles(paths, 4))
    before = mapped.tensor()  # the map is open now
    sent = pickle.dumps(mapped)
    assert len(sent) < 1000 < mapped.nbytes
    again = pickle.loads(sent)
    assert again == mapped
    assert torch.equal(again.tensor(), before)


def test_the_second_time_nothing_is_decoded_or_even_read(paths: list[Path]) -> None:
    first, second = Counted(paths), Counted(paths)
    assert isinstance(first, Encoded)
    made = decoded(first)
    assert sorted(first.decoded) == sorted(first.hashed) == list(range(N))
    assert decoded(second) == made
    assert second.decoded == second.hashed == []


def test_the_key_follows_content_and_not_place_or_time(paths: list[Path], tmp_path: Path) -> None:
    key = decoded(ImageFiles(paths, 4)).fingerprint()

    def unchanged(source: Counted) -> bool:
        return decoded(source).key == key and source.decoded == [] and sorted(source.hashed) == list(range(N))

    os.utime(paths[5], ns=(1, 1))
    assert unchanged(Counted(paths))
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    moved = [tmp_path / "elsewhere" / path.name for path in paths]
    assert unchanged(Counted(moved))
    renamed = [path.rename(path.with_name(f"x{path.name}")) for path in moved]
    assert unchanged(Counted(renamed))

    others = {decoded(ImageFiles(renamed, size, channels)).key for size, channels in ((5, 3), (None, 3), (4, 1))}
    others |= {decoded(ImageFiles(renamed[::-1], 4)).key, decoded(ImageFiles(renamed[1:], 4)).key}
    assert len(others | {key}) == 6


def test_a_file_that_changed_in_place_is_decoded_anew(paths: list[Path]) -> None:
    before = decoded(ImageFiles(paths, 4))
    held = before.tensor()
    Image.fromarray(np.full((6, 9, 3), 77, np.uint8)).save(paths[8])
    after = decoded(ImageFiles(paths, 4))
    assert after.key != before.key
    assert (after[8] == 77).all()
    assert torch.equal(before.tensor(), held)  # whoever reads the old one still does


def test_a_new_schema_is_a_new_file(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    first = decoded(ImageFiles(paths, 4))
    monkeypatch.setattr(cache, "SCHEMA", cache.SCHEMA + 1)
    source = Counted(paths)
    assert decoded(source).key != first.key
    assert len(source.decoded) == N


def test_a_cut_off_alias_is_not_believed(paths: list[Path]) -> None:
    made = decoded(ImageFiles(paths, 4))
    (alias,) = made.path.parent.glob("*.key")
    alias.write_text(made.key[:10])
    assert decoded(ImageFiles(paths, 4)) == made
    assert alias.read_text() == made.key


def test_a_cache_that_cannot_be_written_is_read(paths: list[Path]) -> None:
    made = decoded(ImageFiles(paths, 4))
    (alias,) = made.path.parent.glob("*.key")
    alias.unlink()
    alias.mkdir()  # nobody, not even root, writes a file here
    source = Counted(paths)
    assert decoded(source) == made
    assert source.decoded == []


def spoil_header(pixels: Path, **changes: object) -> None:
    header = pixels.with_suffix(".json")
    header.write_text(json.dumps({**json.loads(header.read_text()), **changes}))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda pixels: os.truncate(pixels, pixels.stat().st_size - 1),
        lambda pixels: pixels.unlink(),
        lambda pixels: pixels.with_suffix(".json").unlink(),
        lambda pixels: pixels.with_suffix(".json").write_text("{"),
        lambda pixels: pixels.with_suffix(".json").write_text("[]"),
        lambda pixels: spoil_header(pixels, schema=0),
        lambda pixels: spoil_header(pixels, dtype="int8"),
        lambda pixels: spoil_header(pixels, count=3),
        lambda pixels: spoil_header(pixels, shape=[N, 3, 2, 8]),
    ],
)
def test_a_file_that_is_not_whole_is_made_anew(spoil: object, paths: list[Path]) -> None:
    made = decoded(ImageFiles(paths, 4))
    right = made.path.read_bytes()
    spoil(made.path)  # type: ignore[operator]
    source = Counted(paths)
    again = decoded(source)
    assert len(source.decoded) == N
    assert again == made
    assert again.path.read_bytes() == right


def test_a_file_that_is_not_whole_takes_no_room_from_its_successor(paths: list[Path], tmp_path: Path) -> None:
    made = decoded(ImageFiles(paths, 4), tmp_path / "c")
    os.truncate(made.path, 100)
    _part_built(paths, tmp_path, at=0)
    assert names(tmp_path / "c", "u8") == names(tmp_path / "c", "json") == []


# One process per moment, forked from a process that has no threads yet. Each kills itself, as a power cut would.
KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from spurless.data import cache, images
from spurless.data.images import ImageFiles

images, root, moments = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
cache.CHUNK = 7
paths = sorted(images.iterdir(), key=lambda path: int(path.stem))

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def build(moment):
    kind, number = moment.split(":")
    seen = [0]
    class Dying(ImageFiles):
        def __getitem__(self, i):
            if kind == "image" and i == int(number):
                die()
            return super().__getitem__(i)
    sync, replace = cache._sync, Path.replace
    def counting(file):
        sync(file)
        seen[0] += 1
        if kind == "sync" and seen[0] == int(number):
            die()
    def moved(self, target):
        if kind == "name" and number == "0":
            die()
        replace(self, target)
        if kind == "name":
            die()
    cache._sync, Path.replace = counting, moved
    cache.decoded(Dying(paths, 4), root / moment, threads=2)

for moment in moments:
    child = os.fork()
    if child == 0:
        build(moment)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, moment
"""
# within a chunk, between writing a chunk and marking it, after the header, before and after the file gets its name
MOMENTS = ["image:0", "image:23", "image:59", "sync:1", "sync:5", "sync:10", "name:0", "name:1"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_build_goes_on_where_it_stopped(paths: list[Path], tmp_path: Path) -> None:
    right = decoded(ImageFiles(paths, 4), tmp_path / "undisturbed")
    command = [sys.executable, "-c", KILLED, str(paths[0].parent), str(tmp_path / "killed"), *MOMENTS]
    subprocess.run(command, check=True, timeout=120)
    finished = {}
    for moment in MOMENTS:
        folder = tmp_path / "killed" / moment
        pixels = folder / right.path.name
        lines = (folder / f"{right.key}.done").read_text().split("\n")[1:]
        done = {i for line in lines for i in range(int(line.split()[0]), min(int(line.split()[0]) + 7, N))}
        finished[moment] = len(done)
        assert names(folder, "lock") == [f"{right.key}.lock"]  # of a dead process: it must not block
        assert pixels.exists() == (moment == "name:1")
        source = Counted(paths)
        assert decoded(source, folder).path.read_bytes() == right.path.read_bytes()
        assert sorted(source.decoded) == sorted(set(range(N)) - done)
        assert source.hashed == []  # what was hashed is remembered too
        assert names(folder, "part") == []
        assert moment == "name:1" or names(folder, "lock") == names(folder, "done") == []
    assert finished["image:0"] == finished["sync:1"] == 0  # a chunk that is written but not marked does not count
    assert finished["sync:5"] == 28
    assert finished["sync:10"] == finished["name:0"] == N


def test_a_torn_or_foreign_journal_is_not_believed(paths: list[Path], tmp_path: Path) -> None:
    right = decoded(ImageFiles(paths, 4), tmp_path / "undisturbed")
    plan = json.dumps({"schema": 1, "dtype": "uint8", "shape": [N, 3, 4, 4], "count": N, "chunk": 7})
    for number, (journal, kept) in enumerate(
        {
            f"{plan}\n7 done\n1": 7,  # killed in the middle of "14 done"
            f"{plan}\n7 do\n14 done": 7,
            plan.replace('"chunk": 7', '"chunk": 8') + "\n7 done": 0,
            plan[:20]: 0,
            "": 0,
        }.items()
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / f"{right.key}.part").write_bytes(right.path.read_bytes())
        (folder / f"{right.key}.done").write_text(journal)
        source = Counted(paths)
        assert decoded(source, folder).path.read_bytes() == right.path.read_bytes()
        assert len(source.decoded) == N - kept
    # a journal without its part
    (folder / f"{right.key}.u8").unlink()
    (folder / f"{right.key}.done").write_text(f"{plan}\n7 done")
    source = Counted(paths)
    assert decoded(source, folder).path.read_bytes() == right.path.read_bytes()
    assert len(source.decoded) == N


BUILDERS = """
import os, sys, time
from pathlib import Path
from spurless.data import cache, images
from spurless.data.images import ImageFiles

images, folder = Path(sys.argv[1]), Path(sys.argv[2])
cache.CHUNK = 7
paths = sorted(images.iterdir(), key=lambda path: int(path.stem))

class Slow(ImageFiles):
    def __getitem__(self, i):
        with (folder / f"{os.getpid()}.count").open("a") as count:
            count.write(".")
        time.sleep(0.002)
        return super().__getitem__(i)

children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        mapped = cache.decoded(Slow(paths, 4), folder, threads=1)
        (folder / f"{os.getpid()}.sum").write_text(str(int(mapped.tensor().sum())))
        os._exit(0)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_of_several_builders_one_builds_and_the_others_wait(paths: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    command = [sys.executable, "-c", BUILDERS, str(paths[0].parent), str(folder)]
    subprocess.run(command, check=True, timeout=120)
    assert [len(path.read_text()) for path in folder.glob("*.count")] == [N]
    right = str(int(decode_all(ImageFiles(paths, 4)).sum()))
    assert [path.read_text() for path in folder.glob("*.sum")] == [right] * 4
    assert names(folder, "lock") == names(folder, "part") == names(folder, "done") == []


def test_builders_of_one_process_wait_for_each_other_too(paths: list[Path], tmp_path: Path) -> None:
    sources = [Counted(paths) for _ in range(4)]
    threads = [threading.Thread(target=decoded, args=(source, tmp_path / "c", 1)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(len(source.decoded) for source in sources) == {0: 3, N: 1}


def test_without_room_it_says_where_how_much_and_what_to_do(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=N * 48 - 1))
    with pytest.raises(
        BadInput,
        match=r"/full: there is no room for the decoded images \(expected 2,880 bytes, got 2,879 free\)\. "
        r"Name another folder with \$SPURLESS_CACHE, make the images smaller with size=, or pass cache=False\.$",
    ):
        decoded(ImageFiles(paths, 4), tmp_path / "full")
    assert [path.suffix for path in (tmp_path / "full").iterdir()] == [".key"]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=N * 48))
    assert len(decoded(ImageFiles(paths, 4), tmp_path / "full")) == N


def test_without_room_who_did_not_ask_for_a_cache_goes_on_without(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "MANY", 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.warns(
        SpurlessWarning, match=r"cannot be kept: .* no room for the decoded images .*, got 0 free\)\. They"
    ):
        x = read(ImageFiles(paths, 4), None)
    assert torch.equal(x, decode_all(ImageFiles(paths, 4)))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="there is no room for the decoded images"):
        read(ImageFiles(paths, 4), None, cache=True)


def test_what_is_there_already_needs_no_room(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = _part_built(paths, tmp_path, at=30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=32 * 48))  # 28 of 60 are done
    assert decoded(ImageFiles(paths, 4), tmp_path / "c").key == key


def _part_built(paths: list[Path], tmp_path: Path, at: int) -> str:
    """Let a build fail at one image, with what was before it done; return its key."""

    class Failing(Counted):
        def __getitem__(self, i: int) -> Tensor:
            if i == at:
                raise BadInput("the image cannot be read", where=paths[i])
            return super().__getitem__(i)

    with pytest.raises(BadInput, match=rf"{at}\.png: the image cannot be read"):
        decoded(Failing(paths), tmp_path / "c", threads=1)
    (part,) = (tmp_path / "c").glob("*.part")
    return part.stem


def test_a_broken_image_is_named_and_what_was_done_is_kept(paths: list[Path], tmp_path: Path) -> None:
    _part_built(paths, tmp_path, at=30)
    source = Counted(paths)
    decoded(source, tmp_path / "c")
    assert sorted(source.decoded) == list(range(28, N))
    paths[3].write_bytes(b"hello")
    with pytest.raises(BadInput, match=r"3\.png: the image cannot be read: .* Repair the file or remove it\.$"):
        decoded(ImageFiles(paths, 4), tmp_path / "c")
    paths[3].unlink()
    with pytest.raises(BadInput, match=r"3\.png: no such image file\.$"):
        decoded(ImageFiles(paths, 4), tmp_path / "c")


def test_images_that_change_meanwhile_are_not_kept(paths: list[Path], tmp_path: Path) -> None:
    class Restless(Counted):
        def encoded(self, i: int) -> bytes:
            if i == moment.get("hash"):
                os.utime(paths[0], ns=(5, 5))
            return super().encoded(i)

        def __getitem__(self, i: int) -> Tensor:
            if i == moment.get("decode"):
                os.utime(paths[0], ns=(6, 6))
            return super().__getitem__(i)

    for when in ("hash", "decode"):
        moment = {when: 50}
        with pytest.raises(BadInput, match=r"image files changed while they were read\. Start again when they are"):
            decoded(Restless(paths), tmp_path / "c")
        assert len(names(tmp_path / "c", "key")) == (when == "decode")  # its bytes were of one moment
        assert names(tmp_path / "c", "u8") == names(tmp_path / "c", "part") == names(tmp_path / "c", "done") == []


def test_an_example_of_another_shape_is_refused(paths: list[Path], tmp_path: Path) -> None:
    class Lying(Counted):
        def __getitem__(self, i: int) -> Tensor:
            return super().__getitem__(i)[:, :, : 3 if i == 20 else 4]

    with pytest.raises(BadInput, match=r"example 20 differs in shape \(expected \(3, 4, 4\), got \(3, 4, 3\)\)"):
        decoded(Lying(paths), tmp_path / "c")
    Image.new("RGB", (5, 5)).save(paths[9])
    with pytest.raises(BadInput, match=r"9\.png: the images differ in size"):
        decoded(ImageFiles(paths), tmp_path / "c")


def test_a_folder_that_cannot_be_written_costs_a_warning_only(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path / "file" / "below"))
    files = ImageFiles(paths, 4)
    with pytest.raises(NotADirectoryError):
        decoded(files)
    with pytest.warns(SpurlessWarning, match=r"cannot be kept: .*below.* Name a folder .* with \$SPURLESS_CACHE"):
        x = read(files, stream=None, cache=True)
    assert isinstance(x, Tensor)
    assert torch.equal(x, decode_all(files))
    with pytest.warns(SpurlessWarning, match="decoded anew each time"):
        assert read(files, stream=True, cache=True) is files


def test_a_disk_that_fills_up_meanwhile_is_emptied_again(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = []

    def full(file: object) -> None:
        syncs.append(file)
        if len(syncs) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache, "_sync", full)
    with pytest.warns(SpurlessWarning, match="No space left on device"):
        x = read(ImageFiles(paths, 4), stream=False, cache=True)
    assert isinstance(x, Tensor)
    assert [path.suffix for path in (cache_folder() / "images").iterdir()] == [".key"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ahead_")]


def test_parts_that_nobody_went_on_with_are_swept_away(paths: list[Path], tmp_path: Path) -> None:
    folder, key = tmp_path / "c", _part_built(paths, tmp_path, at=30)
    others = {"old.part": 8, "old.done": 8, "old.lock": 8, "new.part": 6, "old.u8": 90}
    for name, days in {**others, f"{key}.part": 8, f"{key}.done": 8}.items():
        (folder / name).touch()
        os.utime(folder / name, (time.time() - days * 24 * 3600,) * 2)
    source = Counted(paths)
    decoded(source, folder)
    assert {path.name for path in folder.iterdir() if path.stem in ("old", "new")} == {"new.part", "old.u8"}
    assert sorted(source.decoded) == list(range(28, N))  # its own part is old too, and wanted now


def test_no_more_than_a_few_chunks_are_in_memory(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, most, sync = [0], [0], cache._sync

    def counting(out: Tensor, source: Encoded, start: int) -> Tensor:
        live[0] += 1
        most[0] = max(most[0], live[0])
        weakref.finalize(out, lambda: live.__setitem__(0, live[0] - 1))
        return fill(out, source, start)

    monkeypatch.setattr(cache, "fill", counting)

    def slow(file: object) -> None:  # a disk that is slower than the decoder
        time.sleep(0.002)
        sync(file)

    monkeypatch.setattr(cache, "CHUNK", 1)
    monkeypatch.setattr(cache, "_sync", slow)
    decoded(ImageFiles(paths, 4), tmp_path / "c", threads=2)
    assert 1 <= most[0] <= 2 * 2 + 2  # twice the threads, one being written and one waiting


def test_large_images_make_small_chunks(paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = set()

    def noting(out: Tensor, source: Encoded, start: int) -> Tensor:
        sizes.add(len(out))
        return fill(out, source, start)

    monkeypatch.setattr(cache, "fill", noting)
    monkeypatch.setattr(cache, "CHUNK_BYTES", 3 * 48 + 47)
    decoded(ImageFiles(paths, 4), tmp_path / "three")
    assert sizes == {3}
    monkeypatch.setattr(cache, "CHUNK_BYTES", 1)  # an image that is larger than a chunk
    decoded(ImageFiles(paths, 4), tmp_path / "one")
    assert sizes == {3, 1}


def test_progress_counts_images_and_goes_on_from_what_was_done(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int, int]] = []
    _part_built(paths, tmp_path, at=30)
    monkeypatch.setattr(cache, "teller", lambda stage, total: lambda step: told.append((stage, step, total)))
    decoded(ImageFiles(paths, 4), tmp_path / "c")
    assert told == [("decode", step, N) for step in (35, 42, 49, 56, 60)]
    told.clear()
    decoded(ImageFiles(paths, 5), tmp_path / "c")
    assert [step for stage, step, _ in told if stage == "hash"] == [7, 14, 21, 28, 35, 42, 49, 56, 60]


def test_a_map_is_equal_to_itself_alone(paths: list[Path]) -> None:
    mapped = decoded(ImageFiles(paths, 4))
    assert mapped == Mapped(mapped.path, (N, 3, 4, 4), mapped.key)
    assert mapped != decoded(ImageFiles(paths, 5))
