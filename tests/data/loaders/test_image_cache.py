"""Cached images: equal to direct decoding, found by content, and complete whatever happens while they are written."""

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
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from spurless.core import cache
from spurless.core.cache import CacheWriteError, DiskFullError
from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.files import cache_folder
from spurless.data.loaders import images
from spurless.data.loaders.images import (
    CachedImages,
    EncodedImages,
    ImageFiles,
    cache_decoded,
    decode_all,
    fill_rows,
    read_images,
)

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
    monkeypatch.setattr(images, "CHUNK", 7)
    monkeypatch.setattr(cache, "COMMIT_SECONDS", 0.0)


def names(folder: Path, suffix: str) -> list[str]:
    return sorted(path.name for path in folder.glob(f"*.{suffix}"))


@pytest.mark.parametrize(("size", "channels"), [(4, 3), (4, 1), (None, 3), (None, 1)])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_pixels_are_those_of_direct_decoding(
    size: int | None, channels: int, threads: int, paths: list[Path], tmp_path: Path
) -> None:
    files = ImageFiles(paths, size, channels)
    mapped = cache_decoded(files, tmp_path / "cache", threads)
    direct = decode_all(files)
    assert mapped.shape == tuple(direct.shape)
    assert mapped.nbytes == direct.numel() == mapped.path.stat().st_size
    assert mapped.path.read_bytes() == direct.numpy().tobytes()
    assert torch.equal(mapped.tensor(), direct)
    assert torch.equal(torch.stack([mapped[i] for i in range(len(mapped))]), direct)
    index = torch.tensor([59, 0, 0, 17])
    assert torch.equal(mapped.batch(index), direct[index])
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".json", ".key", ".rows"]


def test_it_lies_in_the_cache_folder(paths: list[Path]) -> None:
    assert cache_decoded(ImageFiles(paths, 4)).path.parent == cache_folder() / "images"


def test_what_is_read_can_be_written_to_without_harm(paths: list[Path]) -> None:
    mapped = cache_decoded(ImageFiles(paths, 4))
    before = mapped.tensor()
    for taken in (mapped[3], mapped.batch(torch.tensor([3, 4])), mapped.tensor()):
        taken += 1
    assert torch.equal(mapped.tensor(), before)
    with pytest.raises(IndexError):
        mapped[N]
    with pytest.raises(IndexError):
        mapped.batch(torch.tensor([N]))


def test_only_the_path_travels_to_other_processes(paths: list[Path]) -> None:
    mapped = cache_decoded(ImageFiles(paths, 4))
    before = mapped.tensor()  # the map is open now
    sent = pickle.dumps(mapped)
    assert len(sent) < 1000 < mapped.nbytes
    again = pickle.loads(sent)
    assert again == mapped
    assert torch.equal(again.tensor(), before)


def test_the_second_time_nothing_is_decoded_or_even_read(paths: list[Path]) -> None:
    first, second = Counted(paths), Counted(paths)
    assert isinstance(first, EncodedImages)
    made = cache_decoded(first)
    assert sorted(first.decoded) == sorted(first.hashed) == list(range(N))
    assert cache_decoded(second) == made
    assert second.decoded == second.hashed == []


def test_the_key_follows_content_and_not_place_or_time(paths: list[Path], tmp_path: Path) -> None:
    key = cache_decoded(ImageFiles(paths, 4)).fingerprint()

    def unchanged(source: Counted) -> bool:
        return cache_decoded(source).key == key and source.decoded == [] and sorted(source.hashed) == list(range(N))

    os.utime(paths[5], ns=(1, 1))
    assert unchanged(Counted(paths))
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    moved = [tmp_path / "elsewhere" / path.name for path in paths]
    assert unchanged(Counted(moved))
    renamed = [path.rename(path.with_name(f"x{path.name}")) for path in moved]
    assert unchanged(Counted(renamed))

    others = {cache_decoded(ImageFiles(renamed, size, channels)).key for size, channels in ((5, 3), (None, 3), (4, 1))}
    others |= {cache_decoded(ImageFiles(renamed[::-1], 4)).key, cache_decoded(ImageFiles(renamed[1:], 4)).key}
    assert len(others | {key}) == 6


def test_a_file_that_changed_in_place_is_decoded_anew(paths: list[Path]) -> None:
    before = cache_decoded(ImageFiles(paths, 4))
    held = before.tensor()
    Image.fromarray(np.full((6, 9, 3), 77, np.uint8)).save(paths[8])
    after = cache_decoded(ImageFiles(paths, 4))
    assert after.key != before.key
    assert (after[8] == 77).all()
    assert torch.equal(before.tensor(), held)  # whoever reads the old one still does


def test_a_new_schema_is_a_new_file(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    first = cache_decoded(ImageFiles(paths, 4))
    monkeypatch.setattr(images, "SCHEMA", images.SCHEMA + 1)
    source = Counted(paths)
    assert cache_decoded(source).key != first.key
    assert len(source.decoded) == N


def test_a_cut_off_alias_is_not_believed(paths: list[Path]) -> None:
    made = cache_decoded(ImageFiles(paths, 4))
    (alias,) = made.path.parent.glob("*.key")
    alias.write_text(made.key[:10])
    assert cache_decoded(ImageFiles(paths, 4)) == made
    assert alias.read_text() == made.key


def test_a_cache_that_cannot_be_written_is_read(paths: list[Path]) -> None:
    made = cache_decoded(ImageFiles(paths, 4))
    (alias,) = made.path.parent.glob("*.key")
    alias.unlink()
    alias.mkdir()  # nobody, not even root, writes a file here
    source = Counted(paths)
    assert cache_decoded(source) == made
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
        lambda pixels: spoil_header(pixels, shape=[N, 3, 2, 8]),
    ],
)
def test_a_damaged_file_is_decoded_again(spoil: object, paths: list[Path]) -> None:
    first = cache_decoded(ImageFiles(paths, 4))
    pixels = first.path.read_bytes()
    spoil(first.path)  # type: ignore[operator]
    has_header = first.path.with_suffix(".json").exists()
    source = Counted(paths)
    with pytest.warns(SpurlessWarning, match="damaged and will be computed") if has_header else nullcontext():
        again = cache_decoded(source)
    assert len(source.decoded) == N
    assert again == first
    assert again.path.read_bytes() == pixels


def test_a_damaged_file_is_deleted_even_if_decoding_fails(paths: list[Path], tmp_path: Path) -> None:
    first = cache_decoded(ImageFiles(paths, 4), tmp_path / "c")
    os.truncate(first.path, 100)
    with pytest.warns(SpurlessWarning, match="damaged"):
        _stop_at(paths, tmp_path, 0)
    assert names(tmp_path / "c", "rows") == names(tmp_path / "c", "json") == []


def test_a_pixel_that_was_changed_is_decoded_again(paths: list[Path]) -> None:
    first = cache_decoded(ImageFiles(paths, 4))
    pixels = first.path.read_bytes()
    for position in range(0, len(pixels), 7):  # between any sampled rows too
        first.path.write_bytes(pixels[:position] + bytes([pixels[position] ^ 255]) + pixels[position + 1 :])
        with pytest.warns(SpurlessWarning, match="damaged and will be computed again"):
            again = cache_decoded(ImageFiles(paths, 4))
        assert again.path.read_bytes() == pixels


# One process per moment, forked from a process that has no threads yet. Each kills itself, as a power cut would.
KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from spurless.core import cache
from spurless.data.loaders import images
from spurless.data.loaders.images import ImageFiles

folder, root, moments = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
images.CHUNK, cache.COMMIT_SECONDS = 7, 0.0
paths = sorted(folder.iterdir(), key=lambda path: int(path.stem))

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def build(moment):
    kind, number = moment.split(":")
    calls = [0]
    class Dying(ImageFiles):
        def __getitem__(self, i):
            if kind == "image" and i == int(number):
                die()
            return super().__getitem__(i)
    sync = os.fsync
    def counting(descriptor):
        sync(descriptor)
        calls[0] += 1
        if kind == "sync" and calls[0] == int(number):
            die()
    os.fsync = counting
    images.cache_decoded(Dying(paths, 4), root / moment, threads=2)

for moment in moments:
    child = os.fork()
    if child == 0:
        build(moment)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, moment
"""
# two syncs for the stored key and two for the empty file; then per chunk one for its rows, its header and the folder
MOMENTS = {"image:0": 0, "sync:3": 0, "sync:5": 0, "sync:6": 0, "sync:7": 7}
MOMENTS |= {"sync:18": 28, "sync:30": 56, "sync:31": N}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.slow
def test_a_killed_process_continues_where_it_stopped(paths: list[Path], tmp_path: Path) -> None:
    undisturbed = cache_decoded(ImageFiles(paths, 4), tmp_path / "undisturbed")
    moments = [*MOMENTS, "image:23", "image:59"]
    command = [sys.executable, "-c", KILLED, str(paths[0].parent), str(tmp_path / "killed"), *moments]
    subprocess.run(command, check=True, timeout=120)
    for moment in moments:
        folder = tmp_path / "killed" / moment
        header = folder / f"{undisturbed.key}.json"
        n_done = json.loads(header.read_text())["done"] if header.exists() else 0
        assert n_done == MOMENTS.get(moment, n_done)
        assert names(folder, "lock") == [f"{undisturbed.key}.lock"]  # of a dead process: it must not block
        source = Counted(paths)
        assert cache_decoded(source, folder).path.read_bytes() == undisturbed.path.read_bytes()
        assert sorted(source.decoded) == list(range(n_done, N))
        assert source.hashed == []  # the key is stored too
        assert moment == "sync:31" or names(folder, "lock") == []


BUILDERS = """
import os, sys, time
from pathlib import Path
from spurless.core import cache
from spurless.data.loaders import images
from spurless.data.loaders.images import ImageFiles

source, folder = Path(sys.argv[1]), Path(sys.argv[2])
images.CHUNK, cache.COMMIT_SECONDS = 7, 0.0
paths = sorted(source.iterdir(), key=lambda path: int(path.stem))

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
        mapped = images.cache_decoded(Slow(paths, 4), folder, threads=1)
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
    assert names(folder, "lock") == []


def test_builders_of_one_process_wait_for_each_other_too(paths: list[Path], tmp_path: Path) -> None:
    sources = [Counted(paths) for _ in range(4)]
    threads = [threading.Thread(target=cache_decoded, args=(source, tmp_path / "c", 1)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(len(source.decoded) for source in sources) == {0: 3, N: 1}


def test_a_full_disk_is_an_error_before_decoding(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=N * 48 - 1))
    with pytest.raises(DiskFullError, match=r"/full has 2,879 bytes free, 2,880 are needed"):
        cache_decoded(ImageFiles(paths, 4), tmp_path / "full")
    assert [path.suffix for path in (tmp_path / "full").iterdir()] == [".key"]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=N * 48))
    assert len(cache_decoded(ImageFiles(paths, 4), tmp_path / "full")) == N


def test_a_full_disk_is_an_error_only_if_a_cache_was_requested(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "MIN_CACHED_IMAGES", 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.warns(SpurlessWarning, match=r"cannot be cached: .* 0 bytes free, .* They are decoded again"):
        x = read_images(ImageFiles(paths, 4), None)
    assert torch.equal(x, decode_all(ImageFiles(paths, 4)))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="too little disk space") as error:
        read_images(ImageFiles(paths, 4), None, cache=True)
    assert "$SPURLESS_CACHE" in error.value.hint
    assert "cache=False" in error.value.hint


def _stop_at(paths: list[Path], tmp_path: Path, at: int, error: Exception | None = None) -> None:
    """Let decoding fail at one image."""

    class Failing(Counted):
        def __getitem__(self, i: int) -> Tensor:
            if i == at:
                raise error or RuntimeError("stop")
            return super().__getitem__(i)

    with pytest.raises(type(error or RuntimeError()), match="stop"):
        cache_decoded(Failing(paths), tmp_path / "c", threads=1)


def test_finished_rows_are_kept_after_an_error_and_need_no_further_space(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stop_at(paths, tmp_path, 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=32 * 48))  # 28 of 60 are done
    source = Counted(paths)
    cache_decoded(source, tmp_path / "c")
    assert sorted(source.decoded) == list(range(28, N))


def test_a_broken_image_is_named_and_leaves_no_file(paths: list[Path], tmp_path: Path) -> None:
    _stop_at(paths, tmp_path, 30, InputError("stop"))
    assert names(tmp_path / "c", "rows") == names(tmp_path / "c", "json") == []
    paths[3].write_bytes(b"hello")
    with pytest.raises(InputError, match=r"3\.png: the image cannot be read: .* Repair the file or remove it\.$"):
        cache_decoded(ImageFiles(paths, 4), tmp_path / "c")
    paths[3].unlink()
    with pytest.raises(InputError, match=r"3\.png: no such image file\.$"):
        cache_decoded(ImageFiles(paths, 4), tmp_path / "c")


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
        with pytest.raises(InputError, match="image files changed while they were read"):
            cache_decoded(Restless(paths), tmp_path / "c")
        assert len(names(tmp_path / "c", "key")) == (when == "decode")  # its bytes were of one moment
        assert names(tmp_path / "c", "rows") == names(tmp_path / "c", "json") == []


def test_an_example_of_another_shape_is_refused(paths: list[Path], tmp_path: Path) -> None:
    class Lying(Counted):
        def __getitem__(self, i: int) -> Tensor:
            return super().__getitem__(i)[:, :, : 3 if i == 20 else 4]

    with pytest.raises(InputError, match=r"example 20 differs in shape \(expected \(3, 4, 4\), got \(3, 4, 3\)\)"):
        cache_decoded(Lying(paths), tmp_path / "c")
    Image.new("RGB", (5, 5)).save(paths[9])
    with pytest.raises(InputError, match=r"9\.png: the images differ in size"):
        cache_decoded(ImageFiles(paths), tmp_path / "c")


def test_a_folder_that_cannot_be_written_costs_a_warning_only(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path / "file" / "below"))
    files = ImageFiles(paths, 4)
    with pytest.raises(CacheWriteError, match="Not a directory"):
        cache_decoded(files)
    with pytest.warns(SpurlessWarning, match=r"cannot be cached: .*below.* Set \$SPURLESS_CACHE"):
        x = read_images(files, stream=None, cache=True)
    assert isinstance(x, Tensor)
    assert torch.equal(x, decode_all(files))
    with pytest.warns(SpurlessWarning, match="decoded again each time"):
        assert read_images(files, stream=True, cache=True) is files


def test_a_disk_that_fills_up_meanwhile_is_emptied_again(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    sync, calls = os.fsync, list[int]()

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(SpurlessWarning, match="No space left on device"):
        x = read_images(ImageFiles(paths, 4), stream=False, cache=True)
    assert isinstance(x, Tensor)
    assert [path.suffix for path in (cache_folder() / "images").iterdir()] == [".key"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ahead_")]


def test_no_more_than_a_few_chunks_are_in_memory(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, most, sync = [0], [0], os.fsync

    def counting(out: Tensor, source: EncodedImages, start: int) -> Tensor:
        live[0] += 1
        most[0] = max(most[0], live[0])
        weakref.finalize(out, lambda: live.__setitem__(0, live[0] - 1))
        return fill_rows(out, source, start)

    monkeypatch.setattr(images, "fill_rows", counting)

    def slow(descriptor: int) -> None:  # a disk that is slower than the decoder
        time.sleep(0.002)
        sync(descriptor)

    monkeypatch.setattr(images, "CHUNK", 1)
    monkeypatch.setattr(os, "fsync", slow)
    cache_decoded(ImageFiles(paths, 4), tmp_path / "c", threads=2)
    assert 1 <= most[0] <= 2 * 2 + 2  # twice the threads, one being written and one waiting


def test_large_images_make_small_chunks(paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = set()

    def noting(out: Tensor, source: EncodedImages, start: int) -> Tensor:
        sizes.add(len(out))
        return fill_rows(out, source, start)

    monkeypatch.setattr(images, "fill_rows", noting)
    monkeypatch.setattr(images, "CHUNK_BYTES", 3 * 48 + 47)
    cache_decoded(ImageFiles(paths, 4), tmp_path / "three")
    assert sizes == {3}
    monkeypatch.setattr(images, "CHUNK_BYTES", 1)  # an image that is larger than a chunk
    cache_decoded(ImageFiles(paths, 4), tmp_path / "one")
    assert sizes == {3, 1}


def test_progress_counts_images_and_continues_with_the_finished_ones(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, int, int]] = []
    _stop_at(paths, tmp_path, 30)
    monkeypatch.setattr(
        images, "progress_reporter", lambda stage, total: lambda step: steps.append((stage, step, total))
    )
    cache_decoded(ImageFiles(paths, 4), tmp_path / "c")
    assert steps == [("decode", step, N) for step in (35, 42, 49, 56, 60)]
    steps.clear()
    cache_decoded(ImageFiles(paths, 5), tmp_path / "c")
    assert [step for stage, step, _ in steps if stage == "hash"] == [7, 14, 21, 28, 35, 42, 49, 56, 60]


def test_a_map_is_equal_to_itself_alone(paths: list[Path]) -> None:
    mapped = cache_decoded(ImageFiles(paths, 4))
    assert mapped == CachedImages(mapped.path, (N, 3, 4, 4), mapped.key)
    assert mapped != cache_decoded(ImageFiles(paths, 5))
