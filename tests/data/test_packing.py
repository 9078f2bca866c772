"""Packing: files go in as they are or smaller, in order, one at a time; a failure leaves nothing behind."""

import io
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spurless.core.errors import BadInput
from spurless.core.progress import listening
from spurless.data.images import read_image
from spurless.data.packed import Pack
from spurless.data.packing import pack_images, write_pack


def noise(folder: Path, n: int, width: int = 40, height: int = 30) -> list[Path]:
    generator = np.random.default_rng(0)
    paths = [folder / f"{i}.png" for i in range(n)]
    for i, path in enumerate(paths):
        small = generator.integers(0, 256, (3, 4, 3), dtype=np.uint8)
        Image.fromarray(small).resize((width + i, height)).save(path)
    return paths


def test_bytes_and_columns_come_back(tmp_path: Path) -> None:
    files = [bytes([i]) * (i + 1) for i in range(4)]
    columns: dict[str, Any] = {
        "y": [0, 1, 1, 0],
        "name": ["a", "ü", "c", "d"],
        "score": torch.rand(4),
        "labels": ("cat", "dog"),
    }
    done = write_pack(tmp_path / "new" / "p.npz", iter(files), columns)
    assert done == (4, (tmp_path / "new" / "p.npz").stat().st_size)
    pack = Pack.open(tmp_path / "new" / "p.npz")
    assert [pack.encoded(i) for i in range(4)] == files
    assert pack.column("name").tolist() == ["a", "ü", "c", "d"]
    assert pack.arrays["labels"].tolist() == ["cat", "dog"]
    assert np.array_equal(pack.column("score"), columns["score"])
    with np.load(tmp_path / "new" / "p.npz", allow_pickle=False) as plain:  # NumPy alone can read it
        assert plain["img"].tobytes() == b"".join(files)
        assert plain["off"].dtype == np.int64


def test_the_same_images_make_the_same_file(tmp_path: Path) -> None:
    for name in "ab":
        write_pack(tmp_path / name, [b"one", b"two"], {"y": [0, 1]})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_images_are_not_gathered_in_memory(tmp_path: Path) -> None:
    def images() -> Iterator[bytes]:
        for i in range(64):
            yield bytes([i]) * 2**18

    tracemalloc.start()
    write_pack(tmp_path / "p.npz", images(), {"y": np.zeros(64, np.int64)})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "p.npz").stat().st_size > 2**24
    assert peak < 2**23  # 16 MiB went through


@pytest.mark.parametrize(
    ("images", "columns", "said"),
    [
        ([b"a", b"b"], {"y": [0]}, r"the column 'y' is not as long as there are images \(expected 2, got 1\)"),
        ([b"a", b""], {"y": [0, 1]}, r"p.npz: image 1 has no bytes"),
        ([], {"y": []}, r"p.npz: there are no images to pack"),
        ([b"a"], {"y": [None]}, r"the column 'y' cannot be packed \(expected numbers or text, got object values\)"),
        ([b"a"], {"y": 3}, r"the column 'y' cannot be packed"),
        ([b"a"], {"img": [1]}, r"a column cannot be called 'img'"),
        ([b"a"], {"../y": [1]}, r"a column cannot be called '../y'"),
    ],
)
def test_what_cannot_be_packed_leaves_no_file(
    images: list[bytes], columns: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (tmp_path / "p.npz").write_text("old")
    with pytest.raises(BadInput, match=said):
        write_pack(tmp_path / "p.npz", images, columns)
    assert [path.name for path in tmp_path.iterdir()] == ["p.npz"]
    assert (tmp_path / "p.npz").read_text() == "old"


def test_files_are_packed_as_they_are(tmp_path: Path) -> None:
    paths = noise(tmp_path, 100, 8, 6)  # more than are worked on at once; widths differ
    told: list[tuple[Any, ...]] = []
    with listening(lambda *words: told.append(words)):
        pack_images(paths, tmp_path / "p.npz", {"y": range(100)})
    pack = Pack.open(tmp_path / "p.npz")
    assert [pack.encoded(i) for i in range(100)] == [path.read_bytes() for path in paths]
    assert pack.images(4)[99].shape == (3, 4, 4)
    assert told == []  # quick work is quiet


@pytest.mark.parametrize(("kind", "name"), [("webp", "WEBP"), ("jpeg", "JPEG")])
def test_smaller_images_are_the_resized_ones(kind: str, name: str, tmp_path: Path) -> None:
    paths = noise(tmp_path, 3)
    fine = pack_images(paths, tmp_path / "fine.npz", {"y": [0, 1, 2]}, size=16, kind=kind)
    rough = pack_images(paths, tmp_path / "rough.npz", {"y": [0, 1, 2]}, size=16, quality=5, kind=kind)
    pack = Pack.open(tmp_path / "fine.npz")
    for i, path in enumerate(paths):
        with Image.open(io.BytesIO(pack.encoded(i))) as image:
            assert (image.format, image.size) == (name, (16, 16))
        wanted = read_image(path, size=16).float()
        close = (pack.images()[i].float() - wanted).abs().mean()
        far = (Pack.open(tmp_path / "rough.npz").images()[i].float() - wanted).abs().mean()
        assert close < 6
        assert close < far
    assert rough.bytes < fine.bytes


def test_a_quality_alone_keeps_the_size(tmp_path: Path) -> None:
    paths = noise(tmp_path, 2)
    pack_images(paths, tmp_path / "p.npz", {"y": [0, 1]}, quality=50)
    assert [Pack.open(tmp_path / "p.npz").images(rows=torch.tensor([i]))[0].shape for i in (0, 1)] == [
        (3, 30, 40),
        (3, 30, 41),
    ]


def test_a_pack_can_be_packed_anew(tmp_path: Path) -> None:
    paths = noise(tmp_path, 4)
    pack_images(paths, tmp_path / "p.npz", {"y": [0, 1, 2, 3]})
    rows = torch.tensor([2, 0])
    images = Pack.open(tmp_path / "p.npz").images(rows=rows)
    pack_images(images, tmp_path / "q.npz", {"y": [2, 0]})
    assert Pack.open(tmp_path / "q.npz").encoded(0) == paths[2].read_bytes()
    pack_images(images, tmp_path / "r.npz", {"y": [2, 0]}, size=8)
    assert Pack.open(tmp_path / "r.npz").images()[0].shape == (3, 8, 8)


def test_a_broken_file_is_found_now_and_under_its_own_name(tmp_path: Path) -> None:
    paths = noise(tmp_path, 3)
    paths[1].write_bytes(paths[1].read_bytes()[:-40])
    with pytest.raises(BadInput, match=r"1.png: the image cannot be read"):
        pack_images(paths, tmp_path / "p.npz", {"y": [0, 1, 2]})
    assert not (tmp_path / "p.npz").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"quality": 0}, r"the quality is out of range \(expected 1 to 100, got 0\)"),
        ({"kind": "gif"}, r"the kind of image is unknown \(expected webp or jpeg, got gif\)"),
        ({"size": 0}, r"the size of an image must be at least 1"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=said):
        pack_images(noise(tmp_path, 1), tmp_path / "p.npz", {"y": [0]}, **options)
