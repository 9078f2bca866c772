"""Hostile weight files: no code of a file runs, and each is refused in a line, by the library and by the commands."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from typer.testing import CliRunner

import spurless as sp
from spurless.cli import app
from spurless.core.errors import InputError, SpurlessError
from spurless.models.weights import read_weights_info

pytestmark = pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")
DATA = ("--data", "planted", "-D", "n_train=40", "-D", "n_val=20", "-D", "n_test=20", "--device", "cpu")
MARKER = "code-of-the-file-was-run"


class Touch:
    """Unpickled, it creates a file."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def model() -> sp.Classifier:
    return sp.build("mlp", input_shape=(2,), n_classes=2, width=4)


def safetensors(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def tensors(*rows: tuple[Any, Any, Any], data: int = 64) -> bytes:
    """Return a file whose header lists tensors by dtype, shape and offsets."""
    header = {f"t{i}": {"dtype": d, "shape": s, "data_offsets": o} for i, (d, s, o) in enumerate(rows)}
    return safetensors(json.dumps(header).encode(), bytes(data))


def pickles() -> Iterator[tuple[str, bytes]]:
    payloads = {
        "touch": Touch(Path.touch, Path(MARKER)),
        "eval": Touch(eval, f"open({MARKER!r}, 'w')"),
        "exec": Touch(exec, f"open({MARKER!r}, 'w').close()"),
        "write": Touch(Path.write_text, Path(MARKER), "x"),
        "tensor": Touch(torch.save, 1, MARKER),
    }
    for name, payload in payloads.items():
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            yield f"pickle {name} {protocol}", pickle.dumps(payload, protocol)
        for is_zip in (True, False):
            file = io.BytesIO()
            torch.save({"head.weight": payload}, file, _use_new_zipfile_serialization=is_zip)
            yield f"torch {name} {'zip' if is_zip else 'legacy'}", file.getvalue()
            yield f"torch {name} cut {is_zip}", file.getvalue()[: len(file.getvalue()) // 2]
        header = pickle.dumps(payload, 0)
        yield f"pickle {name} as a header", safetensors(header)
        yield f"pickle {name} after a header", safetensors(b"{}", header)


def broken() -> Iterator[tuple[str, bytes]]:
    metadata: Any
    good = save(dict(model().state_dict()), {"spurless": json.dumps({"name": "mlp", "options": {"width": 4}})})
    for size in (0, 1, 7, 8, 9, 20, len(good) // 2, len(good) - 1):
        yield f"cut to {size}", good[:size]
    yield "longer", good + b"\0" * 8
    for length in (0, 1, 2**31, 2**32, 10**8, 10**8 + 1, 2**62, 2**63, 2**64 - 1):
        yield f"header of {length}", safetensors(b"{}", length=length)
    for text in (
        "",
        "[]",
        "1",
        '"x"',
        "null",
        "{",
        "nan",
        '{"a":1}',
        '{"a":{}}',
        '{"a":null}',
        "[" * 100_000,
        '{"a":' * 5000,
    ):
        yield f"header {text[:9]}", safetensors(text.encode())
    yield "header that is no text", safetensors(b"\xff\xfe\x00{}")
    yield "header with NUL", safetensors(b'{"a\\u0000":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}')
    for metadata in ([], 1, "x", {"a": 1}, {"a": None}, {"a": {}}, {"spurless": {"name": "mlp"}}):
        yield f"metadata {metadata}", safetensors(json.dumps({"__metadata__": metadata}).encode())
    yield from broken_tensors()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("../" + MARKER, "x")
    yield "zip", archive.getvalue()


def broken_tensors() -> Iterator[tuple[str, bytes]]:
    dtype: Any
    shape: Any
    for dtype in ("F31", "f32", "", 5, None, [], "object", "O", "STRING", "C64"):
        yield f"dtype {dtype}", tensors((dtype, [4], [0, 16]))
    for shape in ([-4], [5], [3], [2**62], [2**63], [2**32, 2**32], "4", None, [4.5], ["4"], [[4]], 4, {}):
        yield f"shape {shape}", tensors(("F32", shape, [0, 16]))
    for offsets in (
        [16, 0],
        [0, 15],
        [-16, 0],
        [0, 2**63],
        [2**63, 2**63 + 16],
        [60, 76],
        [0],
        [],
        None,
        ["0", "16"],
        [0, 16, 32],
    ):
        yield f"offsets {offsets}", tensors(("F32", [4], offsets))
    yield "overlap", tensors(("F32", [4], [0, 16]), ("F32", [4], [8, 24]))
    yield "same bytes", tensors(("F32", [4], [0, 16]), ("F32", [4], [0, 16]))
    yield "hole", tensors(("F32", [4], [0, 16]), ("F32", [4], [32, 48]))
    for start in (
        b"\x1f\x8b",
        b"BZh9",
        b"\xfd7zXZ",
        b"GGUF",
        b"\x89HDF\r\n",
        b"\x93NUMPY",
        b"{}",
        b"<html>",
        b"version https://git-lfs",
    ):
        yield f"start {start!r}", start + bytes(40)


def other_models() -> Iterator[tuple[str, bytes]]:
    state = dict(model().state_dict())
    first = next(iter(state))
    yield "other names", save({"x": torch.zeros(2)})
    yield "no tensors", save({})
    for dtype in (torch.int64, torch.bool, torch.uint8, torch.float64, torch.bfloat16, torch.complex64):
        yield f"{dtype}", save({name: value.to(dtype) for name, value in state.items()})
    yield "NaN", save({**state, first: state[first] * float("nan")})
    yield "no elements", save({**state, first: torch.zeros(0)})
    yield "one number", save({**state, first: torch.tensor(1.0)})
    yield "odd names", save({**state, "../x": torch.zeros(1), "": torch.zeros(1), "a" * 5000: torch.zeros(1)})


INFO: tuple[Any, ...] = (
    [],
    "mlp",
    5,
    None,
    {"name": 5},
    {"name": None},
    {"name": ["mlp"]},
    {"name": ""},
    {"name": "mlp", "options": []},
    {"name": "mlp", "options": {"width": "x"}},
    {"name": "mlp", "options": {"width": -1}},
    {"name": "mlp", "options": {"width": None}},
    {"name": "mlp", "options": {"width": [4]}},
    {"name": "mlp", "options": {"seed": 1}},
    {"name": "mlp", "options": {"__class__": 1}},
    {"name": "mlp", "options": {"width": 4, "activation": "__import__('os')"}},
    {"name": "mlp", "options": {"width": 4}, "n_classes": "2"},
    {"name": "mlp", "options": {"width": 4}, "n_classes": -1},
    {"name": "mlp", "options": {"width": 4}, "n_classes": [2]},
    {"name": "mlp", "options": {"width": 4}, "labels": 5},
    {"name": "mlp", "options": {"width": 4}, "labels": [1, None]},
    {"name": "mlp", "options": {"width": 4}, "labels": {"a": 1}},
    {"name": "mlp", "options": {"width": 4}, "labels": "ab"},
    {"name": "mlp", "options": {"width": 4}, "features": 5},
    {"name": "mlp", "options": {"width": 4}, "features": [None]},
    {"name": "mlp", "options": {"width": 4}, "seed": "x"},
    {"name": "mlp", "options": {"width": 4}, "seed": -1},
    {"name": "mlp", "options": {"width": 4}, "seed": 1.5},
    {"name": "mlp", "options": {"width": 4}, "seed": [1]},
    {"name": "mlp", "options": {"width": 4}, "seed": 10**30},
    {"name": "mlp", "options": {"width": 4}, "head_path": 5},
    {"name": "mlp", "options": {"width": 4}, "head_path": "../x"},
    {"name": "mlp", "options": {"width": 4}, "trained": "no"},
    {"name": "mlp", "options": {"width": 4}, "trained": None},
    {"name": "no such model"},
    {"name": "\ud800"},
    {"name": "\x1b[31mx"},
    {"name": "a" * 100_000},
    {"name": "code.py:make"},
    {"name": "os:system", "options": {"head": "1"}},
    {"name": "code.py:make", "options": {"head": "1", "code": "0" * 24}},
    {"name": "torchvision:resnet1800"},
    {"name": "torchvision:_utils"},
)


def with_info(info: Any) -> bytes:
    return save(dict(model().state_dict()), {"spurless": json.dumps(info)})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code.py").write_text(f"open({MARKER!r}, 'w').close()\ndef make(): ...\n")
    return tmp_path


def run(*words: str) -> None:
    """Run a command, which may complete or refuse its input in a line."""
    result = CliRunner().invoke(app, [*words, *DATA], standalone_mode=False)
    error = result.exception
    assert error is None or isinstance(error, SpurlessError), (words, error)
    assert "\n" not in str(error or "").strip()


def was_run(folder: Path) -> bool:
    return any(MARKER in path.name for parent in (folder, folder.parent) for path in parent.iterdir())


@pytest.mark.parametrize("corpus", [pickles, broken])
def test_a_file_that_is_not_complete_safetensors_is_refused(
    here: Path, corpus: Callable[[], Iterator[tuple[str, bytes]]]
) -> None:
    wrong = []
    for name, content in corpus():
        for suffix in (".safetensors", ".pth"):
            path = here / f"w{suffix}"
            path.write_bytes(content)
            for call in (read_weights_info, lambda path: sp.load_weights(path, model())):
                try:
                    call(path)
                    wrong += [f"{name}: accepted by {call}"] * (call is not read_weights_info)
                except InputError:
                    pass
                except Exception as error:
                    wrong.append(f"{name}: {error!r}")
        assert not was_run(here), name
    assert wrong == []


@pytest.mark.parametrize(
    ("command", "step"),
    [("eval", 20), ("audit", 20), ("explain", 20), ("fix", 20), pytest.param("eval", 1, marks=pytest.mark.slow)],
)
def test_commands_refuse_such_files(here: Path, command: str, step: int) -> None:
    for _, content in [*pickles(), *broken()][::step]:
        (here / "w.safetensors").write_bytes(content)
        run(command, "w.safetensors")
    assert not was_run(here)


def test_weights_of_another_kind_are_refused_or_loaded(here: Path) -> None:
    for _, content in other_models():
        (here / "w.safetensors").write_bytes(content)
        run("eval", "w.safetensors", "--model", "mlp", "-O", "width=4")


@pytest.mark.parametrize("number", range(len(INFO)))
def test_metadata_of_any_type_run_no_code(here: Path, number: int) -> None:
    (here / "w.safetensors").write_bytes(with_info(INFO[number]))
    run("eval", "w.safetensors")
    assert not was_run(here)
