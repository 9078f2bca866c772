"""Weights files that are empty, truncated, text or of another kind, and metadata with wrong values."""

import io
import json
import pickle
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import spurless as sp
from spurless.cli.weights import check_no_selector, open_model, resolve_seed
from spurless.core.errors import SpurlessError
from spurless.models.weights import read_weights_info

DATA = sp.load("planted", n_train=60, n_val=60, n_test=60)
WRONG: tuple[Any, ...] = (
    None, 3, -1, 10**30, 1.5, float("nan"), float("inf"), True, "x", "", [], [1], ["a", None], ["x", "b"], [[1]], {},
    {"x": 1}, 10**9, "../../etc", "\ud800",
)  # fmt: skip


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.safetensors"
    data = {"labels": list(DATA.groups.labels), "options": {}}
    sp.save_weights(path, sp.build("mlp", DATA, width=4, depth=2), seed=0, data=data)
    return path


def use(path: Path) -> None:
    """Use weights as the commands do; only the errors of this package may be raised."""
    with suppress(SpurlessError):
        seed = resolve_seed(path, None)
        check_no_selector(path)
        sp.evaluate(open_model(path, None, {}, DATA, seed), DATA.test)


@pytest.mark.filterwarnings("ignore")
def test_truncated_and_foreign_files(good: Path, tmp_path: Path) -> None:
    raw = good.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    cut = [raw[:k] for k in (0, 1, 7, 8, 9, 50, n, n + 7, n + 8, n + 9, len(raw) - 1)]
    foreign = [
        b"hello world" * 9,
        bytes(1000),
        struct.pack("<Q", 2**62) + raw[8:],
        raw + b"xx",
        b'{"a": 1}',
        b"PK\x03\x04",
    ]
    for i, content in enumerate([*cut, *foreign]):
        path = tmp_path / f"{i}.safetensors"
        path.write_bytes(content)
        with pytest.raises(SpurlessError) as caught:
            read_weights_info(path)
        assert str(path) in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_damaged_bytes(good: Path, tmp_path: Path) -> None:
    raw, rng = good.read_bytes(), random.Random(0)
    for i in range(100):
        damaged = bytearray(raw)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path = tmp_path / f"{i}.safetensors"
        path.write_bytes(bytes(damaged))
        use(path)


def wrong_headers(info: dict[str, Any]) -> Iterator[str]:
    yield from map(json.dumps, (None, 3, [], "x", {}, {"name": 3}, {"name": "mlp"}, {"name": "mlp, two encoders"}))
    yield from ("[" * 100_000, '{"name":' * 50_000, "", "\0", "NaN")
    for key in (*info, "seed", "features"):
        yield from (json.dumps({**info, key: value}) for value in WRONG)
    for key in (*info["options"], "unknown"):
        yield from (json.dumps({**info, "options": {**info["options"], key: value}}) for value in WRONG)
    for name in ("linear", "small-cnn", "torchvision:", "token-mean", "x.py:Y", "os:system", "mlp:", "a" * 9999, "\0"):
        yield json.dumps({**info, "name": name})


@pytest.mark.filterwarnings("ignore")
def test_wrong_metadata(good: Path, tmp_path: Path) -> None:
    tensors = dict(sp.build("mlp", DATA, width=4, depth=2).state_dict())
    for i, header in enumerate(wrong_headers(read_weights_info(good))):
        path = tmp_path / f"{i}.safetensors"
        save_file(tensors, path, metadata={"spurless": header})
        use(path)
        path.unlink()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float16, torch.uint8, torch.float64], ids=str)
def test_tensors_of_another_type_or_shape(dtype: torch.dtype, good: Path, tmp_path: Path) -> None:
    header = {"spurless": json.dumps(read_weights_info(good))}
    state = sp.build("mlp", DATA, width=4, depth=2).state_dict()
    changes: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda value: value.to(dtype), lambda value: value[:0].to(dtype), lambda _: torch.ones((), dtype=dtype),
    )  # fmt: skip
    for change in changes:
        save_file({name: change(value) for name, value in state.items()}, tmp_path / "t.safetensors", metadata=header)
        use(tmp_path / "t.safetensors")


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


PICKLES = {
    "empty": b"", "text": b"hello", "page": b"<html>404</html>", "truncated": saved({"a": torch.zeros(99)})[:300],
    "list": saved([1]), "number": saved(3), "none": saved(None), "other weights": saved({"a": torch.zeros(3)}),
    "number keys": saved({1: torch.zeros(2)}), "zip": b"PK\x03\x04" + b"x" * 99, "zeros": bytes(999),
    "class": pickle.dumps(Path("x")), "gzip": b"\x1f\x8b" + bytes(50), "legacy": b"\x80\x02}q\x00.",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", PICKLES)
def test_cached_weights_of_torchvision_that_are_no_weights(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchvision = pytest.importorskip("torchvision")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    url = torchvision.models.get_model_weights("squeezenet1_1").DEFAULT.url
    path = tmp_path / "hub" / "checkpoints" / url.rpartition("/")[2]
    path.parent.mkdir(parents=True)
    path.write_bytes(PICKLES[kind])
    with pytest.raises(SpurlessError, match="squeezenet1_1 could not be read"):
        sp.build("torchvision:squeezenet1_1", input_shape=(3, 64, 64), n_classes=2, pretrained=True)
