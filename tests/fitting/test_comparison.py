"""Comparison with the starting model: counts by hand, and a warning from every run that ends worse than it started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor, nn

from spurless.core.errors import SpurlessWarning
from spurless.core.groups import Groups
from spurless.data.datasets.synthetic import PlantedConfig, planted, robust_optimum
from spurless.data.split import Split, Splits
from spurless.fitting import fit
from spurless.fitting.comparison import describe_loss, sign_test, warn_if_worse
from spurless.fitting.protocol import Protocol, fit_with_protocol, hash_run
from spurless.methods.base import Info
from spurless.models import Classifier, build
from spurless.train.config import TrainConfig
from spurless.train.embed import N_PROBES, compute_features
from spurless.train.evaluate import evaluate
from spurless.train.run import Compute, Run, make_run

CPU = Compute("cpu")
GROUPS = Groups(("no", "yes"), ("left", "right"))
KEEP = "Keep the starting model, or run `spurless fix`, which keeps it unless a repair helps."


@pytest.mark.parametrize(
    ("lost", "gained"), [(0, 0), (0, 3), (1, 0), (3, 1), (5, 0), (6, 0), (9, 2), (30, 20), (200, 150)]
)
def test_the_sign_test_is_the_one_of_scipy(lost: int, gained: int) -> None:
    expected = binomtest(lost, lost + gained, alternative="greater").pvalue if lost + gained else 1.0
    assert sign_test(lost, gained) == pytest.approx(expected)


@dataclass
class Block:
    """Examples of one label and attribute: of ``n``, the first ``before`` are correct, then other ones."""

    y: int
    a: int | Sequence[int]
    n: int
    before: int
    lost: int = 0
    gained: int = 0


def describe(groups: Groups, *blocks: Block) -> str:
    """Return the warning for predictions with these counts, with two classes."""
    y = torch.cat([torch.full((block.n,), block.y) for block in blocks])
    a = torch.cat([torch.tensor([block.a] * block.n) for block in blocks])
    was, now = [], []
    for block in blocks:
        was += [i < block.before for i in range(block.n)]
        now += [block.lost <= i < block.before + block.gained for i in range(block.n)]
    before, after = (torch.where(torch.tensor(correct), y, 1 - y) for correct in (was, now))
    return describe_loss(before, after, Split(torch.zeros(len(y), 1), y, a, groups))


def test_a_lower_worst_group_is_described_with_both_numbers() -> None:
    others = Block(0, 0, 50, 40), Block(1, 1, 50, 48)
    assert describe(GROUPS, *others, Block(1, 0, 50, 45, lost=20, gained=5)) == (  # of 45, 25 stay; 25 + 5 = 30
        "The worst-group accuracy on validation fell from 80.0% ('no, left') to 60.0% ('yes, left', 50 examples). "
        + KEEP
    )
    # as many gained as lost: other examples are incorrect, but not more of them
    assert describe(GROUPS, *others, Block(1, 0, 50, 40, lost=9, gained=9)) == ""
    # another group falls, but not below the worst one
    assert describe(GROUPS, Block(0, 0, 500, 300), Block(1, 1, 50, 48, lost=4)) == ""


def test_a_loss_of_exactly_one_point_is_accepted() -> None:
    assert describe(GROUPS, Block(0, 0, 1000, 900, lost=10)) == ""  # 90.0 to 89.0 %
    assert "from 90.0% ('no, left') to 88.9%" in describe(GROUPS, Block(0, 0, 1000, 900, lost=11))
    # the average: the worst group stays at 20 %, and 10 or 11 of 1,000 examples are lost
    worst = Block(0, 0, 500, 100)
    assert describe(GROUPS, worst, Block(1, 0, 500, 490, lost=10)) == ""
    assert describe(GROUPS, worst, Block(1, 0, 500, 490, lost=11)) == (
        "The average accuracy on validation fell from 59.0% to 57.9% (1000 examples). " + KEEP
    )


def test_a_loss_that_chance_explains_is_accepted() -> None:
    """With two groups the level is 0.025: five losses have p = 1/32, six 1/64. The average has the level 0.05."""
    fine = Block(1, 1, 60, 60, lost=0)
    assert describe(GROUPS, fine, Block(0, 0, 20, 15, lost=4)) == ""  # 1/16
    assert describe(GROUPS, fine, Block(0, 0, 20, 15, lost=5)).startswith("The average accuracy")  # 1/32
    assert describe(GROUPS, fine, Block(0, 0, 20, 15, lost=6)).startswith("The worst-group accuracy")
    assert describe(GROUPS, Block(1, 1, 200, 199), Block(0, 0, 1000, 600, lost=100, gained=85)) == ""  # p = 0.15


def test_a_lower_average_is_the_price_of_a_worst_group_that_rises_as_much() -> None:
    # the average falls by 5 of 100 points, as 10 of 80 are gained and 110 of 1,920 lost
    large = Block(1, 1, 1920, 1900, lost=110)
    assert describe(GROUPS, Block(0, 0, 80, 8, gained=10), large) == ""  # by 12.5 points
    assert describe(GROUPS, Block(0, 0, 80, 8, gained=4), large).startswith("The average")  # 5 < 5.3 points
    assert describe(GROUPS, Block(0, 0, 40, 8, gained=2), Block(1, 1, 60, 60, lost=7)) == ""  # both by 5 points


def test_unknown_attributes_count_for_the_average_only() -> None:
    known = Block(0, 0, 100, 90), Block(1, 1, 100, 90)
    assert describe(GROUPS, *known, Block(0, -1, 100, 95, lost=60)) == (
        "The average accuracy on validation fell from 91.7% to 71.7% (300 examples). " + KEEP
    )
    unknown = describe(GROUPS, Block(0, -1, 100, 95, lost=60), Block(1, -1, 100, 90))
    assert unknown == (
        "The worst-class accuracy on validation fell from 90.0% ('yes') to 35.0% ('no', 100 examples). " + KEEP
    )
    assert describe(Groups(("no", "yes")), Block(0, -1, 100, 95, lost=60), Block(1, -1, 100, 90)) == unknown


def test_groups_of_several_attributes() -> None:
    crossed = Groups.crossed(("no", "yes"), {"gender": ("f", "m"), "age": ("young", "old")})
    blocks = Block(0, (1, 0), 50, 45, lost=20), Block(1, (0, 1), 50, 40), Block(1, (0, -1), 10, 10)
    assert "from 80.0% ('yes, f & old') to 50.0% ('no, m & young', 50 examples)" in describe(crossed, *blocks)
    talk = Groups.overlapping(("civil", "toxic"), ("male", "female"))
    blocks = Block(0, (1, 1), 50, 45, lost=20), Block(1, (0, 1), 50, 40), Block(1, (0, 0), 10, 10)
    assert "from 80.0% ('toxic, female') to 50.0% ('civil, male', 50 examples)" in describe(talk, *blocks)
    places = Groups.domains(("no", "yes"), ("here", "there"))
    pair = Block(0, 0, 50, 45, lost=20), Block(1, 1, 50, 40)
    assert "from 80.0% ('there') to 50.0% ('here', 50 examples)" in describe(places, *pair)


# Effects: methods that change the head of a trained model.

DATA = planted(PlantedConfig(n_train=400, n_val=400, n_test=100, agreement=0.95))
TRAIN = {"epochs": 5, "batch_size": 50, "lr": 0.1}


@dataclass(frozen=True)
class HeadConfig:
    """The weights of the new head, a row per class."""

    weight: tuple[tuple[float, float], ...]


IGNORE_CORE = HeadConfig(((0.0, -1.0), (0.0, 1.0)))  # the attribute decides
IGNORE_SHORTCUT = HeadConfig(((-1.0, 0.0), (1.0, 0.0)))  # the optimum of the worst group
SAMPLES: list[Tensor] = []


class NewHead:
    """Replace the head of a trained model by a given one; it declares no labels of validation."""

    info: ClassVar[Info] = Info("new-head", "none", "replace the head", start="trained")
    presets: ClassVar[Mapping[str, HeadConfig]] = {"bad": IGNORE_CORE, "good": IGNORE_SHORTCUT}

    def __init__(self, config: HeadConfig = IGNORE_CORE) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        SAMPLES[:] = [data.val.y, data.val.a]
        compute_features(model, data.val, run)
        with torch.no_grad():
            head = next(model.head.parameters())
            head.copy_(torch.tensor(self.config.weight))
        return model


class FromScratch(NewHead):
    """The same result, without a model to repair."""

    info: ClassVar[Info] = Info("new-model", "none", "ignore the data")


def test_a_repair_that_ruins_the_head_warns_with_both_numbers_in_the_record() -> None:
    with pytest.warns(SpurlessWarning, match="The worst-group accuracy on validation fell") as caught:
        fitted = fit(NewHead(), build("linear", DATA), DATA, train=TRAIN, compute=CPU)
    assert fitted.start is not None
    (old, old_name), (new, new_name) = (evaluate(model, DATA.val).worst for model in (fitted.start, fitted.model))
    n = int(DATA.val.counts[DATA.groups.names.index(new_name)])
    message = f"fell from {old:.1%} ({old_name!r}) to {new:.1%} ({new_name!r}, {n} examples). {KEEP}"
    assert [str(w.message) for w in caught] == [f"The worst-group accuracy on validation {message}"]
    assert fitted.record.warnings == tuple(str(w.message) for w in caught)
    assert old - new > 0.1
    assert all(bool((hidden == -1).all()) for hidden in SAMPLES)  # the method has seen neither labels nor attributes


def test_a_repair_that_helps_and_a_training_from_scratch_are_silent() -> None:
    """``filterwarnings = error`` would raise a warning."""
    good = fit(NewHead(IGNORE_SHORTCUT), build("linear", DATA), DATA, train=TRAIN, compute=CPU)
    assert good.record.warnings == ()
    assert good.start is not None
    assert evaluate(good.model, DATA.val).worst[0] > evaluate(good.start, DATA.val).worst[0] + 0.2
    assert float(robust_optimum()[1]) == 0  # so this head is the best
    bad = fit(FromScratch(), build("linear", DATA), DATA, train=TRAIN, compute=CPU)
    assert bad.record.warnings == ()


def test_a_repair_that_changes_nothing_is_silent() -> None:
    erm = fit("erm", build("linear", DATA), DATA, train=TRAIN, compute=CPU)
    weight = tuple(map(tuple, next(erm.model.head.parameters()).tolist()))
    same = fit(NewHead(HeadConfig(weight)), erm.model, DATA, train=TRAIN, compute=CPU)
    assert same.record.warnings == ()


def test_a_model_that_abstains_is_compared_at_full_coverage() -> None:
    options: dict[str, Any] = {"train": TRAIN, "compute": CPU}
    with pytest.warns(SpurlessWarning) as caught:
        fit(NewHead(), build("linear", DATA), DATA, **options)
    with pytest.warns(SpurlessWarning) as more:
        fitted = fit(NewHead(), build("linear", DATA), DATA, coverages=(1.0, 0.8), score="product", **options)
    loss = [str(w.message) for w in more if "on validation" in str(w.message)]
    assert loss == [str(w.message) for w in caught]
    assert fitted.record.selective["score"] == "product"


def test_the_key_of_the_run_does_not_depend_on_the_warning() -> None:
    protocol, model = Protocol(TrainConfig(**TRAIN), compute=CPU), build("linear", DATA)  # type: ignore[arg-type]  # numbers
    with pytest.warns(SpurlessWarning, match="on validation fell"):
        fitted = fit_with_protocol(protocol, NewHead(), model, DATA, 0)
    assert fitted.record.key == hash_run(protocol, NewHead(), model, DATA, 0).key


# What the comparison costs and leaves behind.


class Counting(nn.Module):
    """Count examples; add noise from the global generator that is too small to change a prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.seen = [0]

    def forward(self, x: Tensor) -> Tensor:
        self.seen[0] += len(x)
        return x * self.scale + 1e-9 * torch.rand(x.shape, device=x.device)


def make_models(*, new_backbone: bool = False) -> tuple[Classifier, Classifier, list[int]]:
    """Return a good model, one that ignores the core feature, and the number of examples that they were given."""
    backbone, other = Counting(), Counting()
    other.seen = backbone.seen
    start, fitted = (Classifier(part, nn.Linear(2, 2, bias=False)) for part in (backbone, other))
    with torch.no_grad():
        for model, config in ((start, IGNORE_SHORTCUT), (fitted, IGNORE_CORE)):
            next(model.head.parameters()).copy_(torch.tensor(config.weight))
        if new_backbone:
            other.scale.fill_(2.0)
    return start, fitted, backbone.seen


def plain_run() -> Run:
    return make_run(CPU, 0, TrainConfig())


def test_features_are_computed_once_if_only_the_head_was_changed() -> None:
    start, fitted, seen = make_models()
    run = plain_run()
    with pytest.warns(SpurlessWarning, match="on validation fell"):
        warn_if_worse(fitted, start, DATA.val, run)
    assert seen == [400]
    with pytest.warns(SpurlessWarning, match="on validation fell"):
        warn_if_worse(fitted, start, DATA.val, run)  # cached in the run, as those that a method has used
    assert seen == [400 + N_PROBES]
    start, fitted, seen = make_models(new_backbone=True)
    with pytest.warns(SpurlessWarning, match="on validation fell"):
        warn_if_worse(fitted, start, DATA.val, plain_run())
    assert seen == [800]


@pytest.mark.parametrize("new_backbone", [False, True])
def test_weights_modes_and_global_generators_are_not_changed(new_backbone: bool) -> None:
    start, fitted, _ = make_models(new_backbone=new_backbone)
    fitted.train()
    weights = [part.clone() for model in (start, fitted) for part in model.state_dict().values()]
    state = torch.get_rng_state()
    with pytest.warns(SpurlessWarning, match="on validation fell"):
        warn_if_worse(fitted, start, DATA.val, plain_run())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, weights, [part for model in (start, fitted) for part in model.state_dict().values()]))
    assert (start.training, fitted.training, fitted.backbone.training) == (True, True, True)


def test_only_the_main_process_compares() -> None:
    start, fitted, seen = make_models()
    other = SimpleNamespace(is_global_zero=False, device=torch.device("cpu"), world_size=2)
    warn_if_worse(fitted, start, DATA.val, replace(plain_run(), fabric=other))
    assert seen == [0]


@dataclass(frozen=True)
class Stream:
    """Rows that are read one by one."""

    x: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Tensor:
        return self.x[i]

    def fingerprint(self) -> str:
        return "rows"


class Words(nn.Module):
    """The mean embedding of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2, 2)
        with torch.no_grad():
            self.embedding.weight.copy_(torch.tensor([[-1.0, 1.0], [1.0, 1.0]]))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        embedded = self.embedding(input_ids) * attention_mask[..., None]
        mean: Tensor = embedded.sum(dim=1) / attention_mask.sum(dim=1, keepdim=True)
        return mean


@pytest.mark.parametrize("new_backbone", [False, True])
def test_streamed_examples_are_compared(new_backbone: bool) -> None:
    start, fitted, _ = make_models(new_backbone=new_backbone)
    assert isinstance(DATA.val.x, Tensor)
    with pytest.warns(SpurlessWarning) as plain:
        warn_if_worse(fitted, start, DATA.val, plain_run())
    for change in ({"x": Stream(DATA.val.x)}, {"x": Stream(DATA.val.x), "transform": lambda x: x.clone()}):
        with pytest.warns(SpurlessWarning) as streamed:
            warn_if_worse(fitted, start, replace(DATA.val, **change), replace(plain_run(), workers=1))
        assert str(streamed[0].message) == str(plain[0].message)


@pytest.mark.parametrize("new_backbone", [False, True])
def test_texts_are_compared(new_backbone: bool) -> None:
    y = torch.arange(100) % 2
    x = {"input_ids": y[:, None].repeat(1, 3), "attention_mask": torch.ones(100, 3, dtype=torch.long)}
    text = Split(x, y, torch.full_like(y, -1), Groups(("no", "yes")))
    start, fitted = (Classifier(Words(), nn.Linear(2, 2, bias=False)) for _ in range(2))
    with torch.no_grad():
        for model, config in ((start, IGNORE_SHORTCUT), (fitted, IGNORE_CORE)):
            next(model.head.parameters()).copy_(torch.tensor(config.weight))
        if new_backbone:
            next(fitted.backbone.parameters()).mul_(2)
    expected = r"worst-class accuracy on validation fell from 100.0% \('no'\) to 0.0% \('no', 50 examples\)"
    with pytest.warns(SpurlessWarning, match=expected):
        warn_if_worse(fitted, start, text, plain_run())


TWO_PROCESSES = """
import sys, warnings
import torch
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.fitting import fit
from spurless.methods.base import Info
from spurless.methods.erm import ERM
from spurless.models import build
from spurless.train.run import Compute

class Ruin(ERM):
    info = Info("ruin", "none", "negate the head", start="trained")
    presets = ERM.presets

    def fit(self, model, data, run):
        model = super().fit(model, data, run)
        with torch.no_grad():
            next(model.head.parameters()).neg_()
        return model

torch.set_num_threads(1)
data = planted(PlantedConfig(n_train=200, n_val=100, n_test=50))
train = {"epochs": 2, "batch_size": 20, "lr": 0.05}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    fitted = fit(Ruin(), build("linear", data), data, train=train, compute=Compute("cpu", 2, "ddp"))
rank = torch.distributed.get_rank()
lines = [line for line in fitted.record.warnings if "on validation fell" in line]
assert len([w for w in caught if "on validation fell" in str(w.message)]) == len(lines) == (rank == 0), (rank, lines)
open(f"{sys.argv[1]}/rank{rank}", "w").write("compared" if lines else "silent")
"""


@pytest.mark.slow
def test_of_two_processes_the_first_warns(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(TWO_PROCESSES)
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"rank{rank}").read_text() for rank in (0, 1)] == ["compared", "silent"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("new_backbone", [False, True])
def test_on_a_gpu_the_numbers_are_those_of_the_cpu(new_backbone: bool) -> None:
    messages = []
    for device in ("cpu", "cuda"):
        start, fitted, _ = make_models(new_backbone=new_backbone)
        run = make_run(Compute(device), 0, TrainConfig())
        state = torch.cuda.get_rng_state()
        with pytest.warns(SpurlessWarning) as caught:
            warn_if_worse(fitted.to(run.device), start, DATA.val, run)
        assert torch.equal(torch.cuda.get_rng_state(), state)
        messages.append([str(w.message) for w in caught])
    assert messages[0] == messages[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_after_a_fit_on_a_gpu_both_models_are_on_the_cpu() -> None:
    with pytest.warns(SpurlessWarning, match="on validation fell"):
        fitted = fit(NewHead(), build("linear", DATA), DATA, train=TRAIN, compute=Compute("cuda"))
    assert fitted.start is not None
    assert {part.device.type for model in (fitted.model, fitted.start) for part in model.parameters()} == {"cpu"}
