"""Features: every example in order, and a store that is whole whatever happens while it is filled."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.models import features
from spurless.models.classifier import Classifier, Input
from spurless.models.features import NotKept, Store, collect, logits_of_features, rows


@dataclass(frozen=True)
class Some:
    x: Input


def net() -> Classifier:
    return Classifier(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)), nn.Linear(4, 2))


def test_every_example_in_order_without_batch_norm_or_dropout() -> None:
    model, x = net(), torch.randn(7, 3)
    statistics = model.backbone.get_submodule("1").get_buffer("running_mean").clone()
    found = collect(model, [Some(x[:3]), Some(x[3:6]), Some(x[6:])])
    assert torch.equal(model.backbone.get_submodule("1").get_buffer("running_mean"), statistics)
    assert model.training
    assert not found.requires_grad
    torch.testing.assert_close(found, model.eval().features(x).detach())


def test_the_modes_of_all_parts_are_given_back() -> None:
    model = net()
    model.backbone.eval()
    collect(model, [Some(torch.randn(2, 3))])
    assert (model.training, model.backbone.training) == (True, False)


def test_features_are_float32() -> None:
    model = net().to(torch.bfloat16)
    assert collect(model, [Some(torch.randn(2, 3).bfloat16())]).dtype == torch.float32


def test_dicts_are_moved_and_passed_by_name() -> None:
    class Pick(nn.Module):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return ids * mask

    x = {"ids": torch.tensor([[2.0, 3.0]]), "mask": torch.tensor([[1.0, 0.0]])}
    assert collect(Classifier(Pick(), nn.Linear(2, 2)), [Some(x)], device="cpu").tolist() == [[2.0, 0.0]]


def test_logits_of_features_are_the_models_logits() -> None:
    model, x = net(), torch.randn(5, 3)
    logits = logits_of_features(model, collect(model, [Some(x)]))
    assert model.training
    torch.testing.assert_close(logits, model.eval()(x).detach())
    assert logits_of_features(model.double(), torch.randn(2, 4)).dtype == torch.float32


def test_no_batches_is_a_sentence() -> None:
    with pytest.raises(BadInput, match="there are no batches"):
        collect(net(), [])


def test_maps_are_not_features() -> None:
    with pytest.raises(BadInput, match=r"expected \(N, d\), got \(2, 3, 4\)"):
        collect(Classifier(nn.Identity(), nn.Linear(4, 2)), [Some(torch.randn(2, 3, 4))])


def test_a_row_for_every_example_or_none() -> None:
    with pytest.raises(BadInput, match=r"expected \(N, d\), got \(1, 4\)"):
        collect(Classifier(Total(), nn.Linear(4, 2)), [Some(torch.randn(2, 4))])


class Total(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(dim=0, keepdim=True)


@pytest.mark.parametrize(("value", "said"), [(torch.nan, "nan"), (torch.inf, "inf"), (-torch.inf, "-inf")])
def test_the_first_example_that_is_not_finite_is_named(value: float, said: str) -> None:
    x = torch.zeros(9, 3)
    x[7, 1] = x[8, 2] = value
    with pytest.raises(BadInput, match=rf"features of example 7 are not finite \(got {said}\). Look at example 7: "):
        collect(Classifier(nn.Identity(), nn.Linear(3, 2)), [Some(x[:5]), Some(x[5:])])


def test_what_is_too_large_for_half_a_float_is_said_so() -> None:
    model, x = Classifier(nn.Identity(), nn.Linear(1, 2)), torch.tensor([[6e4], [7e4]])
    assert [part.dtype for part in rows(model, [Some(x[:1])], dtype=torch.float16)] == [torch.float16]
    with pytest.raises(BadInput, match=r"example 11 .* float16 ends at 65,504"):
        list(rows(model, [Some(x)], dtype=torch.float16, start=10))
    assert [float(part.max()) for part in rows(model, [Some(x)])] == [7e4]


def test_whoever_reads_the_rows_may_take_gradients() -> None:
    for part in rows(net(), [Some(torch.randn(2, 3))]):
        assert torch.is_grad_enabled()
        assert not part.requires_grad


# The store. A pass here is a table of known rows, ten at a time.

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


def store(folder: Path, dtype: torch.dtype = torch.float32) -> Store:
    return Store(folder, "abc", N, dtype)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.fixture
def _always_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "QUICK", -1.0)
    monkeypatch.setattr(features, "COMMIT", 0.0)


always_kept = pytest.mark.usefixtures("_always_kept")


def test_a_quick_and_small_pass_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.equal(store(tmp_path / "s").make(Pass(table())), table())
    assert names(tmp_path / "s") == []
    monkeypatch.setattr(features, "SMALL", N * WIDTH * 4)
    store(tmp_path / "s").make(Pass(table()))
    assert names(tmp_path / "s") == []
    monkeypatch.setattr(features, "SMALL", N * WIDTH * 4 - 1)  # large: a file, however quick
    assert torch.equal(store(tmp_path / "s").make(Pass(table())), table())
    assert names(tmp_path / "s") == ["abc.json", "abc.rows"]


@always_kept
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_file_holds_the_rows_as_they_are(dtype: torch.dtype, tmp_path: Path) -> None:
    first = Pass(table(dtype))
    made = store(tmp_path, dtype).make(first)
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
    made = store(tmp_path).make(Pass(table()))
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
        lambda folder: header_with(folder, done=-1, complete=False, sample=None),
        lambda folder: header_with(folder, done="all"),
        lambda folder: header_with(folder, schema=0),
        lambda folder: header_with(folder, key="abd"),
    ],
)
def test_what_is_damaged_or_foreign_is_made_again(spoil: Callable[[Path], object], tmp_path: Path) -> None:
    store(tmp_path).make(Pass(table()))
    spoil(tmp_path)
    with pytest.warns(SpurlessWarning, match=r"stored features are damaged and are made again: .*abc\.rows"):
        assert store(tmp_path).rows() is None
    assert names(tmp_path) == []
    again = Pass(table())
    assert torch.equal(store(tmp_path).make(again), table())
    assert len(again.begun) == 10


@always_kept
def test_rows_without_a_header_were_never_begun(tmp_path: Path) -> None:
    (tmp_path / "abc.rows").write_bytes(b"a kill between the two")
    assert store(tmp_path).rows() is None
    assert torch.equal(store(tmp_path).make(Pass(table())), table())


# Forked from a process that has no threads yet. A child is killed while it works on one of its batches, whichever.
KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from spurless.models import features

folder = Path(sys.argv[1])
features.QUICK, features.COMMIT = -1.0, float(sys.argv[2])
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
    made = features.Store(folder / "store", "abc", len(table)).make(rows_from)
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("commit", [0.0, 0.001])
def test_a_pass_that_is_killed_again_and_again_ends_as_an_undisturbed_one(commit: float, tmp_path: Path) -> None:
    many = torch.randn(1003, 7)  # 101 batches: more than eight times the 12 that a child makes at most
    torch.save(many, tmp_path / "table.pt")
    undisturbed = tmp_path / "undisturbed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "QUICK", -1.0)
        Store(undisturbed, "abc", len(many)).make(Pass(many))
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
        store(tmp_path).make(Stops(table()))
    begun = store(tmp_path).rows()
    assert begun is not None
    assert torch.equal(begun, table()[:40])
    assert names(tmp_path) == ["abc.json", "abc.rows"]  # and the lock is free
    rest = Pass(table())
    assert torch.equal(store(tmp_path).make(rest), table())
    assert rest.begun == [40, 50, 60, 70, 80, 90]


BUILDERS = """
import os, sys, time
from pathlib import Path
import torch
from spurless.models import features

folder = Path(sys.argv[1])
features.QUICK, features.COMMIT = -1.0, 0.0
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
        made = features.Store(folder / "store", "abc", 100).make(rows_from)
        os._exit(0 if torch.equal(made, table) else 1)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
"""


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
    with pytest.raises(NotKept, match=r"Not a directory|File exists"):
        store(tmp_path / "file" / "features").make(Pass(table()))


@always_kept
def test_a_disk_without_room_is_not_begun_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=N * WIDTH * 4 - 1))
    with pytest.raises(NotKept, match=r"room for 2,279 bytes, and they take 2,280"):
        store(tmp_path).make(Pass(table()))
    assert names(tmp_path) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=N * WIDTH * 4))
    store(tmp_path).make(Pass(table()))


@always_kept
def test_a_disk_that_fills_up_is_given_its_room_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, calls = os.fsync, list[int]()

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotKept, match="No space left"):
        store(tmp_path).make(Pass(table()))
    assert names(tmp_path) == []


@always_kept
@pytest.mark.parametrize("error", [OSError("an image is gone"), BadInput("an image is broken")])
def test_what_the_data_do_wrong_is_not_the_disks(error: Exception, tmp_path: Path) -> None:
    def broken(start: int) -> Generator[Tensor]:
        yield from (table()[first : first + STEP] for first in range(start, 50, STEP))
        raise error

    with pytest.raises(type(error), match="an image is"):
        store(tmp_path).make(broken)
    # a file that comes back is read again; an input that is wrong is another input when it is right
    assert names(tmp_path) == ([] if isinstance(error, BadInput) else ["abc.json", "abc.rows"])


@always_kept
def test_what_nobody_went_on_with_for_a_week_is_removed(tmp_path: Path) -> None:
    store(tmp_path).make(Pass(table()))
    for name in ("old", "new", "whole"):
        for suffix in ("json", "rows"):
            (tmp_path / f"{name}.{suffix}").write_bytes((tmp_path / f"abc.{suffix}").read_bytes())
        if name != "whole":
            (tmp_path / f"{name}.json").write_text('{"complete": false}')
    (tmp_path / "bare.rows").touch()
    for name in ("old", "whole", "bare"):
        os.utime(tmp_path / f"{name}.rows", (1, 1))
    Store(tmp_path, "next", N).make(Pass(table()))
    assert sorted({name.split(".")[0] for name in names(tmp_path)}) == ["abc", "new", "next", "whole"]
