"""Images: pixels survive, cameras held sideways, and files that are none."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from spurless.core.errors import InputError
from spurless.data.loaders import images
from spurless.data.loaders.images import (
    CachedImages,
    EncodedImages,
    ImageFiles,
    channels_first,
    decode_all,
    decode_image,
    read_images,
    read_or_stream,
    to_pixels,
)
from spurless.data.split import Source


def noise(height: int, width: int, seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def save(path: Path, height: int, width: int, seed: int = 0) -> Tensor:
    array = noise(height, width, seed)
    Image.fromarray(array).save(path)
    return torch.from_numpy(array).permute(2, 0, 1)


def test_png_pixels_survive_the_round_trip(tmp_path: Path) -> None:
    expected = save(tmp_path / "ünï cödé.png", 5, 7)
    image = ImageFiles([tmp_path / "ünï cödé.png"])[0]
    assert image.dtype == torch.uint8
    assert image.is_contiguous()
    assert torch.equal(image, expected)


def test_one_channel_is_luminance(tmp_path: Path) -> None:
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
    Image.fromarray(grey).save(tmp_path / "g.png")
    assert ImageFiles([tmp_path / "g.png"], channels=1)[0].tolist() == [grey.tolist()]
    assert ImageFiles([tmp_path / "g.png"])[0].tolist() == [grey.tolist()] * 3


def test_a_sideways_photo_is_turned_upright(tmp_path: Path) -> None:
    array = noise(4, 6)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    Image.fromarray(array).save(tmp_path / "p.png", exif=exif)
    upright = np.rot90(array, k=-1).copy()
    assert torch.equal(ImageFiles([tmp_path / "p.png"])[0], torch.from_numpy(upright).permute(2, 0, 1))


@pytest.mark.parametrize("suffix", ["png", "jpg", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_the_one_pillow_makes(orientation: int, suffix: str, tmp_path: Path) -> None:
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"p.{suffix}"
    Image.fromarray(noise(24, 40)).save(path, exif=exif)
    with Image.open(path) as image:
        upright = np.array(ImageOps.exif_transpose(image))
    assert torch.equal(ImageFiles([path])[0], torch.from_numpy(upright).permute(2, 0, 1))


def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 255, 256, 65535]], dtype=np.uint16)).save(tmp_path / "x.png")
    assert ImageFiles([tmp_path / "x.png"], channels=1)[0].tolist() == [[[0, 0, 1, 255]]]


def test_alpha_and_palettes_become_colour(tmp_path: Path) -> None:
    rgba = np.dstack([noise(2, 2), np.full((2, 2), 7, np.uint8)])
    Image.fromarray(rgba).save(tmp_path / "a.png")
    assert torch.equal(ImageFiles([tmp_path / "a.png"])[0], torch.from_numpy(rgba[..., :3]).permute(2, 0, 1))
    palette = Image.new("P", (1, 1), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    palette.save(tmp_path / "p.png", transparency=b"\x00\x80")
    assert ImageFiles([tmp_path / "p.png"])[0].flatten().tolist() == [10, 20, 30]


@pytest.mark.parametrize(("height", "width"), [(40, 61), (61, 40), (33, 33), (9, 31)])
def test_resizing_is_that_of_torchvision(height: int, width: int, tmp_path: Path) -> None:
    from torchvision.transforms import v2

    save(tmp_path / "x.png", height, width)
    with Image.open(tmp_path / "x.png") as image:
        reference = v2.functional.pil_to_tensor(v2.CenterCrop(16)(v2.Resize(16)(image)))
    assert torch.equal(ImageFiles([tmp_path / "x.png"], size=16)[0], reference)


def test_images_of_two_sizes_need_size(tmp_path: Path) -> None:
    save(tmp_path / "a.png", 4, 6)
    save(tmp_path / "b.png", 5, 6)
    files = ImageFiles([tmp_path / "a.png", tmp_path / "b.png"])
    with pytest.raises(
        InputError, match=r"b.png: the images differ in size \(expected 6x4 like .*a.png, got 6x5\).*size="
    ):
        files[1]
    assert decode_all(ImageFiles(files.paths, size=4)).shape == (2, 3, 4, 4)


def test_a_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_text("hello")
    with pytest.raises(InputError, match=r"x.png: the image cannot be read: .*Repair the file or remove it"):
        ImageFiles([tmp_path / "x.png"])[0]


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_truncated_image_is_named(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"cut.{suffix}"
    save(path, 64, 64)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError, match=rf"cut.{suffix}: the image cannot be read"):
        ImageFiles([path])[0]


def test_a_missing_image_and_a_float_image_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no.png: no such image file\.$"):
        ImageFiles([tmp_path / "no.png"])[0]
    Image.fromarray(np.zeros((2, 2), np.float32)).save(tmp_path / "f.tiff")
    with pytest.raises(InputError, match=r"f.tiff: the image has floating-point pixels"):
        ImageFiles([tmp_path / "f.tiff"])[0]


def test_bytes_are_read_like_the_file_they_come_from(tmp_path: Path) -> None:
    save(tmp_path / "x.jpg", 20, 30)
    files = ImageFiles([tmp_path / "x.jpg"], size=8, channels=1)
    assert files.encoded(0) == (tmp_path / "x.jpg").read_bytes()
    assert torch.equal(decode_image(files.encoded(0), "x", channels=1, size=8), files[0])
    for broken, why in ((b"hello", "unknown image format"), (files.encoded(0)[:300], "Truncated")):
        with pytest.raises(
            InputError,
            match=rf"^pack.npz, image 3: the image cannot be read: {why}.*\. Repair the file or remove it\.$",
        ):
            decode_image(broken, "pack.npz, image 3")


def test_a_missing_file_is_named_by_whatever_asks_for_it(tmp_path: Path) -> None:
    files = ImageFiles([tmp_path / "no.png"])
    for ask in (files.stamp, files.fingerprint, lambda: files.encoded(0)):
        with pytest.raises(InputError, match=r"no.png: no such image file\.$"):
            ask()
    with pytest.raises(InputError, match=r"the image cannot be read: .*Is a directory"):
        ImageFiles([tmp_path]).encoded(0)


def test_impossible_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the size of an image must be at least 1 \(got 0\)"):
        ImageFiles([tmp_path], size=0)
    with pytest.raises(InputError, match=r"an image has 1 or 3 channels \(got 2\)"):
        ImageFiles([tmp_path], channels=2)


def test_fingerprint_follows_path_size_time_and_options(tmp_path: Path) -> None:
    import os

    path = tmp_path / "a.png"
    save(path, 4, 4)
    os.utime(path, ns=(1, 1))
    before = ImageFiles([path]).fingerprint()
    assert ImageFiles([path]).fingerprint() == before
    assert ImageFiles([path], size=4).fingerprint() != before
    os.utime(path, ns=(2, 2))
    touched = ImageFiles([path]).fingerprint()
    assert touched != before
    path.write_bytes(path.read_bytes() + b"!")
    os.utime(path, ns=(2, 2))
    assert ImageFiles([path]).fingerprint() != touched


def test_all_images_are_decoded_in_their_order(tmp_path: Path) -> None:
    expected = [save(tmp_path / f"{i}.png", 3, 3, seed=i) for i in range(150)]  # more than two chunks
    files = ImageFiles([tmp_path / f"{i}.png" for i in range(150)])
    assert torch.equal(decode_all(files), torch.stack(expected))
    assert torch.equal(decode_all(files, threads=1), torch.stack(expected))


def test_decoding_names_the_broken_file_among_many(tmp_path: Path) -> None:
    for i in range(100):
        save(tmp_path / f"{i}.png", 3, 3)
    (tmp_path / "70.png").write_bytes(b"\x89PNG")
    with pytest.raises(InputError, match=r"70.png: the image cannot be read"):
        decode_all(ImageFiles([tmp_path / f"{i}.png" for i in range(100)]))


class Growing:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> Tensor:
        return torch.zeros(2 - i, 2)

    def fingerprint(self) -> str:
        return ""


def test_a_source_of_several_shapes_is_not_broadcast() -> None:
    with pytest.raises(InputError, match=r"example 1 differs in shape \(expected \(2, 2\), got \(1, 2\)\)"):
        decode_all(Growing())


def test_the_limit_decides_what_stays_on_disk(tmp_path: Path) -> None:
    save(tmp_path / "a.png", 4, 5)
    files: Source = ImageFiles([tmp_path / "a.png"] * 2)
    assert isinstance(read_or_stream(files, limit_bytes=2 * 60), Tensor)  # 2 images of 3 * 4 * 5 bytes
    assert read_or_stream(files, limit_bytes=2 * 60 - 1) is files
    assert read_images(files, stream=True) is files
    assert isinstance(read_images(files, stream=False), Tensor)
    assert isinstance(read_images(files, stream=None), Tensor)


def test_the_cache_is_for_many_images_or_for_those_who_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(5)]
    expected = torch.stack([save(path, 4, 5, seed=i) for i, path in enumerate(paths)])
    files = ImageFiles(paths)
    assert isinstance(files, EncodedImages)

    def kept(n: int, stream: bool | None, cache: bool | None) -> str:
        x = read_images(ImageFiles(paths[:n]), stream, cache=cache)
        held = x if isinstance(x, Tensor) else torch.stack([x[i] for i in range(len(x))])
        assert torch.equal(held, expected[:n])
        return type(x).__name__

    monkeypatch.setattr(images, "MIN_CACHED_IMAGES", 5)
    assert [kept(5, True, cache) for cache in (None, True, False)] == ["CachedImages", "CachedImages", "ImageFiles"]
    assert [kept(4, True, cache) for cache in (None, True, False)] == ["ImageFiles", "CachedImages", "ImageFiles"]
    assert [kept(5, stream, True) for stream in (None, False)] == ["Tensor", "Tensor"]
    monkeypatch.setattr(images, "MAX_RESIDENT_BYTES", 5 * 60)  # 5 images of 3 * 4 * 5 bytes
    assert kept(5, None, True) == "Tensor"
    monkeypatch.setattr(images, "MAX_RESIDENT_BYTES", 5 * 60 - 1)
    assert [kept(5, stream, True) for stream in (None, False, True)] == ["CachedImages", "Tensor", "CachedImages"]
    assert [kept(4, stream, True) for stream in (None, False, True)] == ["Tensor", "Tensor", "CachedImages"]


def test_reading_through_the_cache_reads_the_files_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "a.png", 4, 5)
    files = ImageFiles([tmp_path / "a.png"] * 3)
    first = read_images(files, stream=None, cache=True)
    monkeypatch.setattr(ImageFiles, "__getitem__", lambda *_: pytest.fail("decoded again"))
    second = read_images(files, stream=None, cache=True)
    assert isinstance(first, Tensor)
    assert isinstance(second, Tensor)
    assert torch.equal(first, second)
    assert isinstance(read_images(files, stream=True, cache=True), CachedImages)


def test_a_source_that_is_not_of_stored_images_passes_the_cache_by() -> None:
    source = Growing()
    assert not isinstance(source, EncodedImages)
    assert read_images(source, stream=True, cache=True) is source


def test_batches_are_brought_to_channels_first() -> None:
    grey = torch.zeros(5, 8, 9, dtype=torch.uint8)
    assert channels_first(grey).shape == (5, 1, 8, 9)
    for channels, kept in ((1, 1), (3, 3), (4, 3)):
        x = torch.randint(256, (5, 8, 9, channels), dtype=torch.uint8)
        assert torch.equal(channels_first(x), x.permute(0, 3, 1, 2)[:, :kept])
    for x in (torch.zeros(5, 3, 8, 9, dtype=torch.uint8), torch.zeros(5, 8, 9, 3), torch.zeros(5, 4)):
        assert channels_first(x) is x


def test_a_picture_in_memory_is_read_like_a_file_and_left_as_it_is() -> None:
    array = noise(3, 4)
    image = Image.fromarray(array)
    taken = to_pixels(image)
    assert torch.equal(taken, torch.from_numpy(array).permute(2, 0, 1))
    taken.zero_()
    assert np.array_equal(np.array(image), array)
    grey = Image.fromarray(array[..., 0])
    to_pixels(grey, channels=1).zero_()
    assert np.array_equal(np.array(grey), array[..., 0])


def test_importing_the_loaders_imports_no_image_library() -> None:
    import subprocess
    import sys

    modules = ["folder", "images", "npz", "csv", "tensors", "torch_dataset", "huggingface"]
    code = "".join(f"import spurless.data.loaders.{module}\n" for module in modules)
    code += "import sys\nprint([m for m in ('PIL', 'pandas', 'datasets', 'torchvision') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
