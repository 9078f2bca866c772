"""Embedding: the features of the model, and a head on them is the head of the model; one pass for what is the same."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from spurless.core import cache
from spurless.core.errors import InputError, SpurlessWarning, UnknownNameError
from spurless.core.files import cache_folder
from spurless.core.groups import Groups
from spurless.core.progress import progress_reporter, progress_to
from spurless.data import load
from spurless.data.input_masks import InputMask
from spurless.data.loader import Loader, sequential_order
from spurless.data.split import Split, Splits
from spurless.data.transforms import Compose, Normalise, RandomFlip
from spurless.fitting import fit
from spurless.models import build
from spurless.models.classifier import Classifier
from spurless.models.features import compute_logits
from spurless.models.zoo.normalize import Normalize
from spurless.train import embed as module
from spurless.train.config import TrainConfig
from spurless.train.embed import N_PROBES, compute_features, embed, embed_split
from spurless.train.evaluate import logits
from spurless.train.run import Compute, Run, make_run

N = 1200  # three batches, the last one shorter


def test_the_head_reads_the_embedded_inputs_as_it_reads_the_models_features() -> None:
    data = load("colored-digits")
    data = replace(data, train=replace(data.train, augment=RandomFlip(), transform=Normalise((0.5,) * 3, (0.5,) * 3)))
    model = build("small-cnn", data).train()
    features = embed(model, data)
    assert features.name == "colored-digits through small-cnn"
    assert model.training
    for name in ("train", "val", "test"):
        before, after = getattr(data, name), getattr(features, name)
        torch.testing.assert_close(compute_logits(model, after.x), logits(model, before))
        assert torch.equal(after.g, before.g)
        assert after.augment is after.transform is None


def test_a_linear_model_on_them_is_a_linear_probe() -> None:
    data = load("colored-digits", conflicting=0.9)
    model = build("mlp", data, width=256)
    features = embed(model, data)
    settings = {"epochs": 20, "lr": 0.01, "optimiser": "adam"}
    probe = fit("erm", build("linear", features), features, train=settings)
    assert (probe.record.metrics["average"] or 0.0) > 0.5  # features of an untrained net; chance is 0.1
    assert probe.record.data["name"] == "colored-digits through mlp"


class Backbone(nn.Module):
    """Counts the examples it sees; what it computes depends on a number that no hash can know."""

    def __init__(self) -> None:
        super().__init__()
        self.normalise = Normalize((0.5,), (0.25,))
        self.layer = nn.Linear(12, 5)
        self.power = 1.0
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        out: Tensor = self.layer(self.normalise(x).flatten(1)) ** self.power
        return out


def counting() -> tuple[Classifier, Backbone]:
    torch.manual_seed(3)
    backbone = Backbone()
    return Classifier(backbone, nn.Linear(5, 2), name="counting"), backbone


def images(n: int = N) -> Split:
    x = torch.randint(256, (n, 1, 3, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return Split(x, torch.arange(n) % 2, torch.arange(n) % 2, Groups(("a", "b"), ("c", "d")))


def running() -> Run:
    return make_run(Compute(device="cpu"), 0, TrainConfig())


def files() -> list[Path]:
    return sorted((cache_folder() / "features").glob("*"))


@pytest.fixture
def _always_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "FAST_SECONDS", -1.0)
    monkeypatch.setattr(cache, "COMMIT_SECONDS", 0.0)


always_kept = pytest.mark.usefixtures("_always_kept")


def test_one_pass_within_a_run_without_any_file() -> None:
    model, backbone = counting()
    split, run = images(), running()
    first = compute_features(model, split, run)
    assert backbone.seen == N
    assert torch.equal(embed_split(model, split.hide_labels(), run).x, first)  # type: ignore[arg-type]
    assert torch.equal(compute_features(model, split, replace(run, score=None)), first)  # as methods hand a run on
    assert backbone.seen == N + 2 * N_PROBES
    assert files() == []
    compute_features(model, split, running())
    assert backbone.seen == 2 * N + 2 * N_PROBES


@always_kept
def test_one_pass_for_all_runs_where_it_is_kept() -> None:
    model, backbone = counting()
    first = compute_features(model, images(), running())
    torch.testing.assert_close(first, model.eval().features(images().x.float() / 255).detach())  # type: ignore[union-attr]
    assert [path.suffix for path in files()] == [".json", ".rows"]
    backbone.seen = 0
    assert torch.equal(compute_features(model, images(), running()), first)
    assert backbone.seen == N_PROBES


@dataclass(frozen=True)
class Times:
    """A transform of one number, and of a tensor."""

    factor: float
    offset: Tensor
    static: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.factor + self.offset


def halved() -> Split:
    return replace(images(), transform=Times(0.5, torch.zeros(1)))


def pixel(split: Split) -> Split:
    assert isinstance(split.x, Tensor)
    x = split.x.clone()
    x[1111, 0, 2, 3] ^= 1
    return replace(split, x=x)


def masked(split: Split, at: int) -> Split:
    masks = torch.zeros(N, 3, 4, dtype=torch.bool)
    masks[at, 0, 0] = True
    return replace(split, hidden=InputMask.of(masks))


@always_kept
@pytest.mark.parametrize(
    "other",
    [
        pixel,
        lambda split: masked(split, 7),
        lambda split: replace(split, transform=Times(0.25, torch.zeros(1))),
        lambda split: replace(split, transform=Times(0.5, torch.ones(1))),
        lambda split: replace(split, transform=Compose((split.transform,))),
        lambda split: replace(split, transform=None),
        lambda split: split.select(torch.arange(N - 1)),
        lambda split: split.select(torch.arange(N).flip(0)),
    ],
)
def test_other_inputs_are_another_pass(other: Callable[[Split], Split]) -> None:
    model, backbone = counting()
    run, changed = running(), other(halved())
    compute_features(model, halved(), run)
    backbone.seen = 0
    found = compute_features(model, changed, run)
    assert backbone.seen == len(changed)
    assert len(files()) == 4
    direct, _ = counting()
    torch.testing.assert_close(compute_logits(direct, found), logits(direct, changed))


@always_kept
def test_another_mask_is_another_pass() -> None:
    model, backbone = counting()
    for at in (7, 8):
        compute_features(model, masked(images(), at), running())
    assert backbone.seen == 2 * N


@always_kept
@pytest.mark.parametrize(
    "other",
    [
        lambda split: split.hide_labels(),
        lambda split: split.hide_attributes(),
        lambda split: replace(split, y=1 - split.y),
        lambda split: replace(split, augment=RandomFlip()),
        lambda split: replace(split, groups=Groups(("e", "f"), ("c", "d"))),
        lambda split: replace(split, transform=Times(0.5, torch.zeros(1))),  # another object, the same transform
    ],
)
def test_other_labels_are_the_same_pass(other: Callable[[Split], Split]) -> None:
    model, backbone = counting()
    compute_features(model, halved(), running())
    backbone.seen = 0
    compute_features(model, other(halved()), running())
    assert backbone.seen == N_PROBES


@torch.no_grad()
def shift(tensor: Tensor) -> None:
    tensor.view(-1)[-1] += 1e-6


@always_kept
def test_other_weights_are_another_pass_and_another_head_is_not() -> None:
    model, backbone = counting()
    run = running()
    compute_features(model, images(), run)
    changes: list[Callable[[], object]] = [
        lambda: shift(backbone.layer.weight),
        lambda: shift(backbone.layer.bias),
        lambda: shift(backbone.normalise.mean),  # a buffer that is in no state dict
        lambda: setattr(backbone, "layer", nn.Sequential(backbone.layer, nn.ReLU())),  # the same weights
        lambda: setattr(backbone.layer, "1", nn.Tanh()),  # the same weights by the same names
    ]
    for change in changes:
        backbone.seen = 0
        change()
        compute_features(model, images(), run)
        assert backbone.seen == N
        assert [name for name in run.embeddings if name.startswith(module.backbone_hash(model))] == list(run.embeddings)
        assert len(run.embeddings) == 1  # those of weights that are gone are not held on to
    backbone.seen = 0
    model.head = nn.Linear(5, 7)
    compute_features(model, images(), running())
    assert backbone.seen == N_PROBES


@always_kept
def test_a_pass_over_val_does_not_make_a_run_forget_train() -> None:
    model, backbone = counting()
    run, val = running(), images(100)
    for split in (images(), val, images(), val):
        compute_features(model, split, run)
    assert len(run.embeddings) == 2
    assert backbone.seen == N + 100 + 2 * N_PROBES


@always_kept
@pytest.mark.parametrize("fresh", [True, False])
def test_code_that_changed_is_noticed(fresh: bool) -> None:
    model, backbone = counting()
    run = running()
    compute_features(model, images(), run)
    backbone.power = 3
    with pytest.warns(SpurlessWarning, match="differ from those that the model computes now"):
        found = compute_features(model, images(), running() if fresh else run)
    torch.testing.assert_close(compute_logits(model, found), logits(model, images()))
    backbone.seen = 0
    assert torch.equal(compute_features(model, images(), running()), found)
    assert backbone.seen == N_PROBES
    backbone.power = torch.nan
    with (
        pytest.warns(SpurlessWarning, match="differ from those that the model computes"),
        pytest.raises(InputError, match="example 0 are not finite"),
    ):
        compute_features(model, images(), running())


@always_kept
def test_a_transform_that_nobody_can_describe_is_not_kept() -> None:
    model, backbone = counting()
    for transform in (lambda x: x / 255, Compose((lambda x: x / 255,)), torch.relu):
        split, run = replace(images(), transform=transform), running()
        if transform is torch.relu:
            split = replace(split, x=images().x.float())  # type: ignore[union-attr]
        backbone.seen = 0
        compute_features(model, split, run)
        torch.testing.assert_close(compute_logits(model, compute_features(model, split, run)), logits(model, split))
        assert backbone.seen == 3 * N
        assert run.embeddings == {}
    assert files() == []


@always_kept
def test_half_is_kept_as_half_and_trained_on_as_float() -> None:
    model, backbone = counting()
    full = compute_features(model, images(), running())
    rows = embed_split(model, images(), running(), dtype=torch.float16)
    assert backbone.seen == 2 * N
    assert isinstance(rows.x, Tensor)
    assert rows.x.dtype == torch.float16
    assert torch.equal(rows.x, full.half())
    assert sorted(path.stat().st_size for path in files() if path.suffix == ".rows") == [N * 10, N * 20]
    for batch in Loader(rows, sequential_order(N), 256).batches():
        assert isinstance(batch.x, Tensor)
        assert batch.x.dtype == torch.float32
    torch.testing.assert_close(logits(model.head, rows), logits(model, images()), rtol=1e-2, atol=1e-2)
    backbone.seen = 0
    compute_features(model, images(), running(), dtype=torch.float16)
    assert backbone.seen == N_PROBES


@always_kept
def test_a_probe_learns_from_half_what_it_learns_from_whole() -> None:
    data = load("colored-digits", conflicting=0.9)
    model = build("mlp", data, width=64)
    found = []
    for dtype in ("float32", "float16"):
        rows = embed(model, data, dtype=dtype)
        assert str(getattr(rows.train.x, "dtype", "")) == f"torch.{dtype}"
        settings = {"epochs": 5, "lr": 0.01, "optimiser": "adam"}
        found.append(fit("erm", build("linear", rows), rows, train=settings).record.metrics["average"] or 0.0)
    assert found[0] == pytest.approx(found[1], abs=0.03)
    with pytest.raises(UnknownNameError, match=r"No type of features is called 'bfloat16'\. .*float16, float32"):
        embed(model, data, dtype="bfloat16")


@always_kept
def test_what_was_hidden_of_the_images_is_not_hidden_of_the_features() -> None:
    model, _ = counting()
    split = masked(images(), 7)
    rows = embed(model, Splits(split, split, split)).train
    assert rows.hidden is None
    torch.testing.assert_close(logits(model.head, rows), logits(model, split))


def test_rows_of_features_are_not_passed_at_all() -> None:
    x = torch.randn(50, 6)
    split = Split(x, torch.arange(50) % 2, torch.zeros(50, dtype=torch.long), Groups(("a", "b"), ("c",)))
    for model in (build("linear", Splits(split, split, split)), Classifier(nn.Identity(), nn.Linear(6, 2))):
        found = compute_features(model, split, running())
        assert found.data_ptr() == x.data_ptr()
        half = compute_features(model, replace(split, x=x.half()), running())
        assert torch.equal(half, x.half().float())
        x[17, 3] = torch.nan
        with pytest.raises(InputError, match="features of example 17 are not finite"):
            compute_features(model, split, running())
        x[17, 3] = 0


def test_rows_that_something_is_done_to_are_passed() -> None:
    x = torch.arange(12, dtype=torch.uint8).view(4, 3)
    split = Split(x, torch.arange(4) % 2, torch.zeros(4, dtype=torch.long), Groups(("a", "b"), ("c",)))
    model = Classifier(nn.Flatten(), nn.Linear(3, 2))
    torch.testing.assert_close(compute_features(model, split, running()), x.float() / 255)
    floats = replace(split, x=x.float())
    doubled = compute_features(model, replace(floats, transform=Times(2.0, torch.zeros(1))), running())
    assert torch.equal(doubled, 2 * x.float())
    hidden = InputMask.of(torch.eye(4, 3, dtype=torch.bool))
    assert compute_features(model, replace(floats, hidden=hidden), running())[1].tolist() == [3, 0, 5]
    negated = Classifier(nn.Sequential(nn.Flatten()), nn.Linear(3, 2))
    negated.backbone.get_submodule("0").register_forward_hook(lambda _module, _inputs, output: -output)
    assert torch.equal(compute_features(negated, floats, running()), -x.float())
    with pytest.raises(InputError, match=r"expected \(N, d\), got \(12,\)"):
        compute_features(Classifier(nn.Flatten(0), nn.Linear(3, 2)), floats, running())


@always_kept
def test_the_example_whose_features_are_not_finite_is_named() -> None:
    model, _ = counting()
    x = torch.zeros(N, 1, 3, 4)
    x[517, 0, 0, 0] = torch.inf
    split = replace(images(), x=x)
    for broken in (split, replace(split, transform=torch.clone)):
        with pytest.raises(InputError, match="features of example 517 are not finite"):
            compute_features(model, broken, running())
    assert files() == []


def test_an_empty_split_is_a_sentence() -> None:
    with pytest.raises(InputError, match="the split has no examples"):
        compute_features(counting()[0], images(0), running())


@always_kept
def test_a_cache_that_cannot_be_written_is_done_without_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path / "file"))
    model, backbone = counting()
    run = running()
    with pytest.warns(SpurlessWarning, match="features could not be stored on disk and stay in memory"):
        found = compute_features(model, images(), run)
    val = compute_features(model, images(700), run)  # nothing more is said: a warning would be an error here
    torch.testing.assert_close(compute_logits(model, found), logits(model, images()))
    torch.testing.assert_close(compute_logits(model, val), logits(model, images(700)))
    backbone.seen = 0
    compute_features(model, images(), run)
    compute_features(model, images(700), run)
    assert backbone.seen == 2 * N_PROBES  # the run remembers
    shift(backbone.layer.weight)
    compute_features(model, images(), run)


def test_how_far_it_is_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "progress_reporter", lambda stage, total: progress_reporter(stage, total, patience=-9))
    heard: list[tuple[str, int, int, str]] = []
    with progress_to(lambda *told: heard.append(told)):
        embed(counting()[0], Splits(images(), images(700), images(600)))
    assert {told[0] for told in heard} == {"embed train", "embed val", "embed test"}
    assert ("embed train", 512, N, "") in heard
    heard.clear()
    compute_features(counting()[0], images(), replace(running(), progress=lambda *told: heard.append(told)))
    assert heard[0] == ("embed", 512, N, "")


# Forked from a process that has no threads yet: each child does what a process of its own would.
OTHERS = """
import os, signal, sys, torch
from pathlib import Path
from spurless.core.groups import Groups
from spurless.data.split import Split
from spurless.core import cache
from spurless.models import build
from spurless.train.config import TrainConfig
from spurless.train.embed import compute_features
from spurless.train.run import Compute, make_run

cache.FAST_SECONDS, cache.COMMIT_SECONDS = -1.0, 0.0
folder, run = Path(sys.argv[1]), make_run(Compute(device="cpu"), 0, TrainConfig())

def child(name, cache, last):
    os.environ["SPURLESS_CACHE"] = str(folder / cache)
    x = torch.randn(5000, 20, generator=torch.Generator().manual_seed(1))
    split = Split(x, torch.arange(5000) % 2, torch.zeros(5000, dtype=torch.long), Groups(("a", "b"), ("c",)))
    model, seen = build("mlp", input_shape=(20,), n_classes=2, width=33), [0]

    def count(_module, inputs):
        seen[0] += len(inputs[0])
        if seen[0] > last:
            os.kill(os.getpid(), signal.SIGKILL)

    model.backbone.get_submodule("1").register_forward_pre_hook(count)
    found = compute_features(model, split, run)
    torch.save((seen[0], found.clone()), folder / f"{name}.pt")
    os._exit(0)

for name, cache, last in (("first", "a", 10**9), ("again", "a", 10**9), ("killed", "b", 2600), ("rest", "b", 10**9)):
    pid = os.fork()
    if pid == 0:
        try:
            child(name, cache, last)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == (signal.SIGKILL if name == "killed" else 0), name
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_another_process_finds_the_pass_or_goes_on_with_it(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", OTHERS, str(tmp_path)], env=environment, check=True, timeout=120)
    first, again, rest = (torch.load(tmp_path / f"{name}.pt") for name in ("first", "again", "rest"))
    # five batches were committed when it died in the sixth
    assert (first[0], again[0], rest[0]) == (5000, N_PROBES, 5000 - 5 * 512 + N_PROBES)
    assert torch.equal(again[1], first[1])
    assert torch.equal(rest[1], first[1])
    undisturbed, killed = (next((tmp_path / name / "features").glob("*.rows")) for name in "ab")
    assert undisturbed.name == killed.name
    assert undisturbed.read_bytes() == killed.read_bytes()


LARGE = """
import resource, torch
from torch import nn
from spurless.core.groups import Groups
from spurless.data.split import Split
from spurless.models.classifier import Classifier
from spurless.train.config import TrainConfig
from spurless.train.embed import compute_features
from spurless.train.run import Compute, make_run

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def split(n):
    return Split(torch.randn(n, 4), torch.arange(n) % 2, torch.zeros(n).long(), Groups(("a", "b"), ("c",)))

model = Classifier(nn.Linear(4, 2048), nn.Linear(2048, 2))
run = make_run(Compute(device="cpu"), 0, TrainConfig())
compute_features(model, split(1024), run)
before = peak()
found = compute_features(model, split(30000), run)
print(found.nbytes / 2**20, peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts memory in kilobytes, as Linux does")
def test_features_that_are_large_are_not_held_in_memory() -> None:
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True, timeout=120)
    size, taken = map(float, done.stdout.split())
    assert size > 230
    assert taken < 60
