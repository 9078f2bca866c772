"""Packed: images come out as they went in, from disk or memory; damaged packs are refused by name."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.data.loaders.images import EncodedImages, cache_decoded, decode_all
from spurless.data.loaders.pack import Pack, read_arrays


def png(shade: int, width: int = 6, height: int = 4) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), shade, np.uint8)).save(file, "png")
    return file.getvalue()


def arrays(files: list[bytes], **columns: Any) -> dict[str, Any]:
    off = np.cumsum([0, *map(len, files)]).astype(np.int64)
    return {"img": np.frombuffer(b"".join(files), np.uint8), "off": off, **columns}


FILES = [png(10 * i) for i in range(5)]


@pytest.fixture(params=["stored", "deflated"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    save: Any = np.savez if request.param == "stored" else np.savez_compressed
    save(tmp_path / "p.npz", **arrays(FILES, y=np.arange(5), labels=np.array(list("abcde")), shape=np.arange(3)))
    return tmp_path / "p.npz"


def test_every_image_comes_out_as_it_went_in(path: Path) -> None:
    pack = Pack.open(path)
    assert len(pack) == 5
    assert [pack.encoded(i) for i in range(5)] == FILES
    x = decode_all(pack.images())
    assert x.shape == (5, 3, 4, 6)
    assert x[:, 1, 3, 5].tolist() == [0, 10, 20, 30, 40]
    assert pack.images(size=2, channels=1)[4].tolist() == [[[40, 40], [40, 40]]]


def test_columns_have_a_row_per_image_and_other_arrays_are_kept_apart(path: Path) -> None:
    pack = Pack.open(path)
    assert set(pack.columns) == {"y", "labels"}
    assert set(pack.arrays) == {"y", "labels", "shape"}
    assert pack.column("y").tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(InputError, match=r"p.npz: no column is called 'yy'. Did you mean 'y'\? Columns: y."):
        pack.column("yy")


def test_images_that_are_stored_as_they_are_stay_on_disk(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", **arrays(FILES))
    np.savez_compressed(tmp_path / "q.npz", **arrays(FILES))
    assert isinstance(read_arrays(tmp_path / "p.npz")["img"], np.memmap)
    assert not isinstance(read_arrays(tmp_path / "q.npz")["img"], np.memmap)


def test_some_rows_in_another_order(path: Path) -> None:
    images = Pack.open(path).images(rows=torch.tensor([3, 1]))
    assert len(images) == 2
    assert [int(images[i].max()) for i in (0, 1)] == [30, 10]
    assert images.encoded(1) == FILES[1]
    assert images.where(0).endswith("p.npz, image 3")
    with pytest.raises(IndexError, match=r"image 2 of 2"):
        images[2]


def test_another_process_gets_the_path_alone(path: Path) -> None:
    images = Pack.open(path).images(rows=torch.tensor([4]))
    sent = pickle.dumps(images)
    assert FILES[4] not in sent
    assert torch.equal(pickle.loads(sent)[0], images[0])


def test_the_fingerprint_is_of_the_content_and_the_stamp_of_the_file(path: Path, tmp_path: Path) -> None:
    images, copy = Pack.open(path).images(), tmp_path / "copy.npz"
    copy.write_bytes(path.read_bytes())
    assert Pack.open(copy).images().fingerprint() == images.fingerprint()
    assert Pack.open(copy).images().stamp() != images.stamp()
    for other in (images.pack.images(2), images.pack.images(channels=1), images.pack.images(rows=torch.arange(5))):
        assert other.fingerprint() != images.fingerprint()
        assert other.stamp() != images.stamp()
    stamp = images.stamp()
    np.savez(path, **arrays([png(1)] * 5))
    assert images.stamp() != stamp
    assert Pack.open(path).images().fingerprint() != images.fingerprint()
    path.unlink()
    with pytest.raises(InputError, match=r"p.npz: the pack cannot be read"):
        images.stamp()


def test_a_pack_is_decoded_once(path: Path, tmp_path: Path) -> None:
    images = Pack.open(path).images(3)
    assert isinstance(images, EncodedImages)
    kept = cache_decoded(images, tmp_path / "kept")
    assert torch.equal(kept.tensor(), decode_all(images))


def test_another_number_of_images_is_a_warning(path: Path) -> None:
    pack = Pack.open(path)
    pack.check_count("faces", 5)
    with pytest.warns(IncompleteDataWarning, match=r"faces is not complete: .*p.npz has 5 images instead of 1,000"):
        pack.check_count("faces", 1000)


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", **arrays([FILES[0], FILES[1][:-30], b"text", png(0, 3, 3)]))
    images = Pack.open(tmp_path / "p.npz").images()
    for i in (1, 2):
        with pytest.raises(InputError, match=rf"p.npz, image {i}: the image cannot be read"):
            images[i]
    with pytest.raises(
        InputError, match=r"image 3: the images differ in size \(expected 6x4 like the first, got 3x3\)"
    ):
        images[3]
    assert images.pack.images(2)[3].shape == (3, 2, 2)


@pytest.mark.parametrize(("size", "channels", "said"), [(0, 3, r"at least 1 \(got 0\)"), (8, 2, r"1 or 3 channels")])
def test_impossible_images_are_refused(size: int, channels: int, said: str, path: Path) -> None:
    with pytest.raises(InputError, match=said):
        Pack.open(path).images(size, channels)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"off": None}, r"p.npz: the archive lacks the key 'off' \(expected a pack, got img\)"),
        ({"img": None}, r"p.npz: the archive lacks the key 'img'"),
        ({"off": np.array([0, 4, 3])}, r"p.npz, image 1: the offsets must increase"),
        ({"off": np.array([0, 4, 4])}, r"p.npz, image 1: the offsets must increase"),
        ({"off": np.array([0, 4, 99])}, r"the offsets do not match the images \(expected 0 to 10, got 0 to 99\)"),
        ({"off": np.array([1, 4, 10])}, r"the offsets do not match the images \(expected 0 to 10, got 1 to 10\)"),
        ({"off": np.array([0, 4, 9])}, r"the offsets do not match the images"),
        ({"off": np.array([0])}, r"the offsets must be two or more integers"),
        ({"off": np.array([0.0, 10.0])}, r"the offsets must be two or more integers \(got float64"),
        ({"off": np.array([10, 0], np.uint64)}, r"image 0: the offsets must increase"),
        ({"img": np.zeros((5, 2), np.uint8)}, r"one-dimensional array of bytes \(got uint8 \(5, 2\)\)"),
        ({"img": np.zeros(10, np.int64)}, r"one-dimensional array of bytes"),
        ({"img": np.array([{}])}, r"p.npz: the array 'img' contains Python objects, which are never loaded"),
        ({"notes": np.array([{}])}, r"p.npz: the array 'notes' contains Python objects, which are never loaded"),
    ],
)
def test_a_wrong_pack_is_refused_by_name(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    whole = {"img": np.zeros(10, np.uint8), "off": np.array([0, 4, 10]), **change}
    np.savez(tmp_path / "p.npz", **{key: value for key, value in whole.items() if value is not None})
    with pytest.raises(InputError, match=said):
        Pack.open(tmp_path / "p.npz")


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no.npz: no such file"):
        Pack.open(tmp_path / "no.npz")
    np.savez(tmp_path / "p.npz", **arrays(FILES))
    whole = (tmp_path / "p.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:-40])
    with pytest.raises(InputError, match=r"cut.npz: the file is not an npz archive, or damaged"):
        Pack.open(tmp_path / "cut.npz")


def test_a_header_that_promises_more_than_there_is_is_refused(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.zeros(10, np.uint8))
    lying = file.getvalue().replace(b"(10,)", b"(99,)")
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive:
        archive.writestr("img.npy", lying)
    with pytest.raises(InputError, match=r"p.npz: the array 'img' cannot be read: its header does not match its size"):
        Pack.open(tmp_path / "p.npz")
