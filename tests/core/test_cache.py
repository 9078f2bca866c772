"""Tensors are computed once, then read; a store of rows is complete whatever happens while it is written."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from spurless.core import cache
from spurless.core.cache import CacheWriteError, RowStore, cached_tensors
from spurless.core.errors import InputError, SpurlessWarning


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path))
    return tmp_path


class Maker:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, Tensor]:
        self.calls += 1
        return {"x": torch.arange(6).view(2, 3).T}  # a view, which cannot be saved as it lies


def test_the_second_time_nothing_is_made(folder: Path) -> None:
    make = Maker()
    first, second = cached_tensors("k", make)["x"], cached_tensors("k", make)["x"]
    assert make.calls == 1
    assert torch.equal(first, second)
    assert second.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert [path.name for path in (folder / "tensors").iterdir()] == ["k.safetensors"]


def test_another_key_is_made_on_its_own() -> None:
    make = Maker()
    cached_tensors("k", make)
    cached_tensors("l", make)
    assert make.calls == 2


@pytest.mark.parametrize("left", [0, 5, 90])
def test_a_file_that_was_cut_off_is_made_again(folder: Path, left: int) -> None:
    make = Maker()
    cached_tensors("k", make)
    path = folder / "tensors" / "k.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:left])
    assert cached_tensors("k", make)["x"].shape == (3, 2)
    assert make.calls == 2
    assert path.read_bytes() == whole


def test_an_interrupted_make_leaves_nothing(folder: Path) -> None:
    def interrupted() -> dict[str, Tensor]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_tensors("k", interrupted)
    assert not (folder / "tensors").exists()


def test_without_a_place_to_keep_it_everything_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path / "file"))
    make = Maker()
    for _ in range(2):
        with pytest.warns(SpurlessWarning, match=r"Could not write to the cache.*cannot write.*SPURLESS_CACHE"):
            assert cached_tensors("k", make)["x"].shape == (3, 2)
    assert make.calls == 2


def test_nothing_is_written_on_request(folder: Path) -> None:
    assert cached_tensors("k", Maker(), write=False)["x"].shape == (3, 2)
    assert not (folder / "tensors").exists()


# RowStore. A pass here is a table of known rows, ten at a time.

N, WIDTH, STEP = 95, 6, 10


class Pass:
    """A pass that remembers which batches were asked of it."""

    def __init__(self, table: Tensor) -> None:
        self.table, self.begun = table, list[int]()

    def __call__(self, start: int) -> Generator[Tensor]:
        for first in range(start, len(self.table), STEP):
            self.begun.append(first)
            yield self.table[first : first + STEP]


def table(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(N, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)


def store(folder: Path, dtype: torch.dtype = torch.float32) -> RowStore:
    return RowStore(folder, "abc", N, dtype)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.fixture
def _always_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "FAST_SECONDS", -1.0)
    monkeypatch.setattr(cache, "COMMIT_SECONDS", 0.0)


always_kept = pytest.mark.usefixtures("_always_kept")


def test_a_quick_and_small_pass_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.equal(store(tmp_path / "s").compute(Pass(table())), table())
    assert names(tmp_path / "s") == []
    monkeypatch.setattr(cache, "SMALL_BYTES", N * WIDTH * 4)
    store(tmp_path / "s").compute(Pass(table()))
    assert names(tmp_path / "s") == []
    monkeypatch.setattr(cache, "SMALL_BYTES", N * WIDTH * 4 - 1)  # large: a file, however quick
    assert torch.equal(store(tmp_path / "s").compute(Pass(table())), table())
    assert names(tmp_path / "s") == ["abc.json", "abc.rows"]


@always_kept
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_file_holds_the_rows_as_they_are(dtype: torch.dtype, tmp_path: Path) -> None:
    first = Pass(table(dtype))
    made = store(tmp_path, dtype).compute(first)
    assert first.begun == list(range(0, N, STEP))
    assert names(tmp_path) == ["abc.json", "abc.rows"]
    assert (tmp_path / "abc.rows").read_bytes() == table(dtype).numpy().tobytes()
    header = json.loads((tmp_path / "abc.json").read_text())
    assert (header["shape"], header["done"], header["complete"]) == ([N, WIDTH], N, True)
    found = store(tmp_path, dtype).rows()
    assert found is not None
    assert found.dtype == made.dtype == dtype
    assert torch.equal(found, table(dtype))
    assert torch.equal(made, found)


@always_kept
def test_writing_to_the_rows_is_nobody_elses_business(tmp_path: Path) -> None:
    made = store(tmp_path).compute(Pass(table()))
    made += 1
    found = store(tmp_path).rows()
    assert found is not None
    assert torch.equal(found, table())
    index = torch.tensor([94, 0, 0, 17])
    assert torch.equal(found.index_select(0, index), table()[index])
    assert torch.equal(made, table() + 1)


def header_with(folder: Path, **changes: object) -> None:
    header = json.loads((folder / "abc.json").read_text())
    (folder / "abc.json").write_text(json.dumps({**header, **changes}))


@always_kept
@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: os.truncate(folder / "abc.rows", 100),
        lambda folder: (folder / "abc.rows").unlink(),
        lambda folder: (folder / "abc.rows").write_bytes(bytes(N * WIDTH * 4)),  # the size is right
        lambda folder: (folder / "abc.json").write_text('{"shape": [9'),
        lambda folder: (folder / "abc.json").write_text("[]"),
        lambda folder: (folder / "abc.json").write_text("{}"),
        lambda folder: (folder / "abc.json").write_bytes(b"\xff\xfe"),
        lambda folder: header_with(folder, shape=7),
        lambda folder: header_with(folder, shape=[N, WIDTH + 1]),
        lambda folder: header_with(folder, shape=[N, "6"]),
        lambda folder: header_with(folder, shape=[N * 2, WIDTH]),
        lambda folder: header_with(folder, dtype="torch.float16, little endian"),
        lambda folder: header_with(folder, done=-1, complete=False, blocks=[]),
        lambda folder: header_with(folder, done="all"),
        lambda folder: header_with(folder, schema=0),
        lambda folder: header_with(folder, key="abd"),
    ],
)
def test_what_is_damaged_or_foreign_is_made_again(spoil: Callable[[Path], object], tmp_path: Path) -> None:
    store(tmp_path).compute(Pass(table()))
    spoil(tmp_path)
    assert store(tmp_path).rows() is None
    again = Pass(table())
    with pytest.warns(SpurlessWarning, match=r"Cached rows are damaged and will be computed again: .*abc\.rows"):
        assert torch.equal(store(tmp_path).compute(again), table())
    assert len(again.begun) == 10


@always_kept
@pytest.mark.parametrize(("byte", "expected"), [(0, [0, 10]), (30 * WIDTH * 4, [20, 30]), (94 * WIDTH * 4, [80, 90])])
def test_only_a_damaged_block_is_made_again(
    byte: int, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "BLOCK_BYTES", 2 * STEP * WIDTH * 4)  # two parts
    store(tmp_path).compute(Pass(table()))
    header = json.loads((tmp_path / "abc.json").read_text())
    assert [stop for stop, _ in header["blocks"]] == [20, 40, 60, 80, 95]
    with (tmp_path / "abc.rows").open("r+b") as file:
        file.seek(byte)
        value = file.read(1)
        file.seek(byte)
        file.write(bytes([value[0] ^ 1]))
    assert store(tmp_path).rows() is None
    again = Pass(table())
    with pytest.warns(SpurlessWarning, match=r"Cached rows are damaged and will be computed again: .*abc\.rows"):
        assert torch.equal(store(tmp_path).compute(again), table())
    assert again.begun == expected
    rows = store(tmp_path).rows()
    assert rows is not None
    assert torch.equal(rows, table())


@always_kept
def test_an_unfinished_file_with_a_damaged_block_is_repaired_and_continued(tmp_path: Path) -> None:
    def stops(start: int) -> Generator[Tensor]:
        for first in range(start, 50, STEP):
            yield table()[first : first + STEP]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store(tmp_path).compute(stops)
    content = bytearray((tmp_path / "abc.rows").read_bytes())
    content[7] ^= 1
    (tmp_path / "abc.rows").write_bytes(content)
    with pytest.warns(SpurlessWarning, match="damaged"):
        assert torch.equal(store(tmp_path).compute(Pass(table())), table())


@always_kept
def test_rows_without_a_header_were_never_begun(tmp_path: Path) -> None:
    (tmp_path / "abc.rows").write_bytes(b"a kill between the two")
    assert store(tmp_path).rows() is None
    assert torch.equal(store(tmp_path).compute(Pass(table())), table())


# Forked from a process that has no threads yet. A child is killed while it works on one of its batches, whichever.
KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from spurless.core import cache

folder = Path(sys.argv[1])
cache.FAST_SECONDS, cache.COMMIT_SECONDS = -1.0, float(sys.argv[2])
table = torch.load(folder / "table.pt")
moments = random.Random(0)

def child(told, most):
    def rows_from(start):
        with (folder / "starts").open("a") as starts:
            starts.write(f"{start}\\n")
        for number, first in enumerate(range(start, len(table), 10)):
            if number == most:
                time.sleep(60)  # it is killed long before
            yield table[first:first + 10]
            os.write(told, b".")
    made = cache.RowStore(folder / "store", "abc", len(table)).compute(rows_from)
    os._exit(0 if torch.equal(made, table) else 1)

for kill in [True] * 8 + [False]:
    heard, told = os.pipe()
    least = moments.randint(0, 8)
    pid = os.fork()
    if pid == 0:
        child(told, least + 4 if kill else -1)
    if kill:
        for _ in range(least):
            os.read(heard, 1)
        time.sleep(moments.uniform(0.0, 0.002))
        os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == (signal.SIGKILL if kill else 0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("commit", [0.0, 0.001])
def test_a_pass_that_is_killed_again_and_again_ends_as_an_undisturbed_one(commit: float, tmp_path: Path) -> None:
    many = torch.randn(1003, 7)  # 101 batches: more than eight times the 12 that a child makes at most
    torch.save(many, tmp_path / "table.pt")
    undisturbed = tmp_path / "undisturbed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "FAST_SECONDS", -1.0)
        RowStore(undisturbed, "abc", len(many)).compute(Pass(many))
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(commit)], check=True, timeout=120)
    killed = tmp_path / "store"
    assert names(killed)[-2:] == ["abc.json", "abc.rows"]
    assert (killed / "abc.rows").read_bytes() == (undisturbed / "abc.rows").read_bytes() == many.numpy().tobytes()
    assert (killed / "abc.json").read_text() == (undisturbed / "abc.json").read_text()
    starts = [int(line) for line in (tmp_path / "starts").read_text().split()]
    assert all(start % STEP == 0 for start in starts)
    assert starts == sorted(starts)  # nobody lost what was done before
    if commit == 0:
        assert starts[-1] >= 370  # the eight are killed after 37 batches together, at the least


@always_kept
def test_a_pass_goes_on_after_the_rows_that_were_committed(tmp_path: Path) -> None:
    class Stops(Pass):
        def __call__(self, start: int) -> Generator[Tensor]:
            for part in super().__call__(start):
                if self.begun[-1] == 40:
                    raise KeyboardInterrupt
                yield part

    with pytest.raises(KeyboardInterrupt):
        store(tmp_path).compute(Stops(table()))
    begun = store(tmp_path).rows()
    assert begun is not None
    assert torch.equal(begun, table()[:40])
    assert names(tmp_path) == ["abc.json", "abc.rows"]  # and the lock is free
    rest = Pass(table())
    assert torch.equal(store(tmp_path).compute(rest), table())
    assert rest.begun == [40, 50, 60, 70, 80, 90]


BUILDERS = """
import os, sys, time
from pathlib import Path
import torch
from spurless.core import cache

folder = Path(sys.argv[1])
cache.FAST_SECONDS, cache.COMMIT_SECONDS = -1.0, 0.0
table = torch.arange(400.0).view(100, 4)

def rows_from(start):
    for first in range(start, 100, 10):
        with (folder / f"{os.getpid()}.count").open("a") as count:
            count.write(".")
        time.sleep(0.01)
        yield table[first:first + 10]

children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        made = cache.RowStore(folder / "store", "abc", 100).compute(rows_from)
        os._exit(0 if torch.equal(made, table) else 1)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_of_several_processes_one_makes_the_pass_and_the_others_wait(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", BUILDERS, str(tmp_path)], check=True, timeout=120)
    counts = sorted(len(path.read_text()) for path in tmp_path.glob("*.count"))
    assert counts[-1] == 10
    assert all(count <= 1 for count in counts[:-1])  # the first batch says how wide the features are
    assert names(tmp_path / "store") == ["abc.json", "abc.rows"]


@always_kept
def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheWriteError, match=r"Not a directory|File exists"):
        store(tmp_path / "file" / "features").compute(Pass(table()))


@always_kept
def test_a_disk_without_room_is_not_begun_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=N * WIDTH * 4 - 1))
    with pytest.raises(CacheWriteError, match=r"has 2,279 bytes free, 2,280 are needed"):
        store(tmp_path).compute(Pass(table()))
    assert names(tmp_path) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=N * WIDTH * 4))
    store(tmp_path).compute(Pass(table()))


@always_kept
def test_a_disk_that_fills_up_is_given_its_room_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, calls = os.fsync, list[int]()

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CacheWriteError, match="No space left"):
        store(tmp_path).compute(Pass(table()))
    assert names(tmp_path) == []


@always_kept
@pytest.mark.parametrize("error", [OSError("an image is gone"), InputError("an image is broken")])
def test_what_the_data_do_wrong_is_not_the_disks(error: Exception, tmp_path: Path) -> None:
    def broken(start: int) -> Generator[Tensor]:
        yield from (table()[first : first + STEP] for first in range(start, 50, STEP))
        raise error

    with pytest.raises(type(error), match="an image is"):
        store(tmp_path).compute(broken)
    # a file that comes back is read again; an input that is wrong is another input when it is right
    assert names(tmp_path) == ([] if isinstance(error, InputError) else ["abc.json", "abc.rows"])


@always_kept
def test_what_nobody_went_on_with_for_a_week_is_removed(tmp_path: Path) -> None:
    store(tmp_path).compute(Pass(table()))
    old, new, whole, bare, dead = (digit * 24 for digit in "12345")  # keys are hashes
    for name in (old, new, whole):
        for suffix in ("json", "rows"):
            (tmp_path / f"{name}.{suffix}").write_bytes((tmp_path / f"abc.{suffix}").read_bytes())
        if name != whole:
            (tmp_path / f"{name}.json").write_text('{"complete": false}')
    (tmp_path / f"{bare}.rows").touch()
    (tmp_path / f"{dead}.lock").touch()
    for name in (f"{old}.rows", f"{whole}.rows", f"{bare}.rows", f"{dead}.lock"):
        os.utime(tmp_path / name, (1, 1))
    RowStore(tmp_path, "next", N).compute(Pass(table()))
    assert sorted({name.split(".")[0] for name in names(tmp_path)}) == [new, whole, "abc", "next"]


@always_kept
def test_files_of_the_user_in_the_cache_folder_are_never_deleted(tmp_path: Path) -> None:
    """$SPURLESS_CACHE may be a folder with other files, of any age and name."""
    mine = (
        "poetry.lock",
        "Cargo.lock",
        "table.rows",
        "table.json",
        "x.lock",
        "notes.tmp",
        ".notes.tmp",
        "AB" * 12 + ".lock",
    )
    for name in mine:
        (tmp_path / name).write_text("mine")
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / ".folder.tmp").mkdir()
    store(tmp_path).compute(Pass(table()))
    assert {name: (tmp_path / name).read_text() for name in mine} == dict.fromkeys(mine, "mine")
    assert (tmp_path / ".folder.tmp").is_dir()
