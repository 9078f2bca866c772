"""The loop against a hand-written one, against theory, and against SIGKILL."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.errors import DivergedError, InputError
from spurless.core.seeds import Seeds
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.loader import shuffled_order
from spurless.data.split import Batch, Split
from spurless.data.transforms import RandomFlip
from spurless.methods.erm import mean_loss
from spurless.train.checkpoint import Checkpoints
from spurless.train.config import TrainConfig
from spurless.train.evaluate import evaluate
from spurless.train.loop import minimise
from spurless.train.run import Compute, Run, make_run
from spurless.train.step import Stage

DATA = planted(PlantedConfig(n_train=200, n_val=100, n_test=100))
CPU = Compute(device="cpu")


def fresh(seed: int = 0) -> nn.Sequential:
    with Seeds(seed).seed_global_rng("init"):
        return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def weights(model: nn.Module) -> Tensor:
    return torch.cat([value.flatten().double() for value in model.state_dict().values()])


def train(model: nn.Module, config: TrainConfig, run: Run | None = None, split: Split = DATA.train) -> Run:
    run = run or make_run(CPU, 0, config)
    minimise(model, run.loader(split, shuffled_order(len(split), Seeds(5))), mean_loss, run, Stage("train"))
    return run


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_equals_a_hand_written_loop(kind: str) -> None:
    config = TrainConfig(epochs=3, batch_size=32, lr=0.05, optimiser=kind, schedule="cosine", clip=0.5)  # type: ignore[arg-type]
    ours, by_hand = nn.Linear(2, 2), nn.Linear(2, 2)
    by_hand.load_state_dict(ours.state_dict())
    train(ours, config)

    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind]
    extra = {"momentum": 0.9} if kind == "sgd" else {}
    optimiser = make(by_hand.parameters(), lr=0.05, weight_decay=1e-4, **extra)
    total = 3 * 7  # 200 examples in batches of 32: 6 full ones and one of 8
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, total)
    for epoch in range(3):
        for index in torch.split(shuffled_order(200, Seeds(5))(epoch), 32):
            optimiser.zero_grad()
            assert isinstance(DATA.train.x, Tensor)
            loss = cross_entropy(by_hand(DATA.train.x[index]), DATA.train.y[index])
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(by_hand.parameters(), 0.5)
            optimiser.step()
            scheduler.step()
    torch.testing.assert_close(weights(ours), weights(by_hand))


def test_stops_after_the_steps_asked_for() -> None:
    run = train(fresh(), TrainConfig(epochs=100, steps=17, batch_size=32))
    assert run.history[-1]["step"] == 17
    assert len(run.history) == 3  # 7 steps an epoch: 7, 14, 17


def test_stops_at_the_train_accuracy_asked_for() -> None:
    run = train(nn.Linear(2, 2), TrainConfig(epochs=100, lr=0.1, stop_accuracy=0.9))
    assert run.history[-1]["train_accuracy"] >= 0.9
    assert all(row["train_accuracy"] < 0.9 for row in run.history[:-1])
    assert len(run.history) < 100


def test_stops_under_the_loss_asked_for() -> None:
    run = train(nn.Linear(2, 2), TrainConfig(epochs=100, lr=0.1, stop_loss=0.25))
    assert run.history[-1]["loss"] < 0.25 <= min(row["loss"] for row in run.history[:-1])


def test_the_loss_of_an_epoch_is_the_mean_of_its_batches() -> None:
    model = nn.Linear(2, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    run = train(model, TrainConfig(epochs=1, lr=1e-12))
    assert run.history[0]["loss"] == pytest.approx(0.693147, abs=1e-5)  # log 2


def test_divergence_is_an_error_that_names_the_rate_and_a_remedy() -> None:
    assert isinstance(DATA.train.x, Tensor)
    wild = replace(DATA.train, x=DATA.train.x * 1e4)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2))
    with pytest.raises(DivergedError, match=r"Training 'train' diverged.*learning rate 1000.*--lr 100"):
        train(model, TrainConfig(epochs=50, lr=1e3, weight_decay=0.5), split=wild)


def test_keeps_the_epoch_that_the_criterion_likes_best() -> None:
    config, scores = TrainConfig(epochs=4), iter([0.1, 0.9, 0.9, 0.3])
    seen: list[Tensor] = []

    def score(model: nn.Module) -> float:
        seen.append(weights(model).clone())
        return next(scores)

    run = replace(make_run(CPU, 0, config), score=score)
    model = fresh()
    train(model, config, run)
    assert torch.equal(weights(model), seen[1])  # the earlier of the two best
    assert [row["score"] for row in run.history] == [0.1, 0.9, 0.9, 0.3]


class Versioned(nn.Linear):
    """Refuses to load without its version, as MNASNet does."""

    _version = 2

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        if local_metadata.get("version") != 2:
            raise ValueError("version should be set to 2")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


def test_a_layer_that_asks_for_its_version_is_told_it_by_the_kept_epoch_and_by_a_checkpoint(tmp_path: Path) -> None:
    config = TrainConfig(epochs=2)
    model, again = Versioned(2, 2), Versioned(2, 2)
    for net in (model, again):
        run = replace(make_run(CPU, 0, config, Checkpoints(tmp_path, "key")), score=lambda _: 1.0)
        train(net, config, run)
    assert torch.equal(weights(model), weights(again))  # the second was loaded


def test_a_stage_that_must_not_look_is_not_scored() -> None:
    run = replace(make_run(CPU, 0, TrainConfig(epochs=2)), score=lambda _: pytest.fail("scored"))
    minimise(
        fresh(), run.loader(DATA.train, shuffled_order(200, Seeds(0))), mean_loss, run, Stage("scout", select=False)
    )


def test_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    train(fresh(), TrainConfig(epochs=1))
    assert torch.equal(before, torch.get_rng_state())


def test_parameters_that_need_no_gradient_stay() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    before = weights(model[0])
    train(model, TrainConfig(epochs=2, lr=0.5))
    assert torch.equal(before, weights(model[0]))


class CutError(Exception):
    """Stands for a kill between two steps."""


class CutAfter(Checkpoints):
    """Cuts the run right after its n-th save."""

    def cut_after(self, saves: int) -> "CutAfter":
        self.left = saves
        return self

    def save(self, stage: str, state: dict[str, Any]) -> None:
        super().save(stage, state)
        self.left -= 1
        if self.left == 0:
            raise CutError


@pytest.mark.parametrize("cut", [1, 6, 7, 8, 13, 20])
def test_a_run_cut_after_any_step_ends_with_the_same_weights(tmp_path: Path, cut: int) -> None:
    config = TrainConfig(epochs=3, batch_size=32, lr=0.05, schedule="cosine")  # 7 steps an epoch
    whole = fresh()
    expected = train(whole, config)
    with pytest.raises(CutError):
        train(fresh(), config, make_run(CPU, 0, config, CutAfter(tmp_path, "key", seconds=0.0).cut_after(cut)))
    resumed = fresh(seed=9)  # other initial weights: everything must come from the checkpoint
    again = train(resumed, config, make_run(CPU, 0, config, Checkpoints(tmp_path, "key")))
    assert torch.equal(weights(whole), weights(resumed))
    assert again.history == expected.history


def test_the_objective_s_memory_is_saved_and_restored(tmp_path: Path) -> None:
    config = TrainConfig(epochs=2, batch_size=50)

    def count(steps: Tensor, stop: int | None) -> None:
        run = make_run(CPU, 0, config, Checkpoints(tmp_path, "key", seconds=0.0))

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            if stop is not None and float(steps) == stop:
                raise CutError
            steps.add_(1)
            return mean_loss(model, batch)

        loader = run.loader(DATA.train, shuffled_order(200, Seeds(0)))
        minimise(fresh(), loader, objective, run, Stage("train", memory={"steps": steps}))

    with pytest.raises(CutError):
        count(torch.zeros(()), 3)
    steps = torch.zeros(())
    count(steps, None)
    assert float(steps) == 8  # 4 steps an epoch, each counted once although the run was cut


def test_a_finished_stage_is_loaded_not_repeated(tmp_path: Path) -> None:
    config = TrainConfig(epochs=2)
    model = fresh()
    train(model, config, make_run(CPU, 0, config, Checkpoints(tmp_path, "key")))
    again = fresh(seed=4)
    run = make_run(CPU, 0, config, Checkpoints(tmp_path, "key"))
    minimise(
        again,
        run.loader(DATA.train, shuffled_order(200, Seeds(5))),
        lambda *_: pytest.fail("trained again"),
        run,
        Stage("train"),
    )
    assert torch.equal(weights(model), weights(again))


def nosy(model: nn.Module, step: int) -> dict[str, Any]:
    """Look at the model in ways that training would notice: it draws, and runs it on one example."""
    torch.rand(step)
    modes = {part.training for part in model.modules()}
    output = model(torch.ones(1, 2))  # a batch of one: in train mode a batch norm would refuse it
    return {"seen": step, "modes": str(modes), "graph": output.requires_grad, "out": float(output.sum())}


def watched(config: TrainConfig, checkpoints: Checkpoints | None = None, seed: int = 0) -> tuple[nn.Module, Run]:
    run, model, ended = make_run(CPU, 0, config, checkpoints), fresh(seed), list[int]()
    stage = Stage("train", watch=nosy, after=lambda: ended.append(len(run.history)))
    minimise(model, run.loader(DATA.train, shuffled_order(200, Seeds(5))), mean_loss, run, stage)
    assert ended == [len(run.history)]  # once, when the history is there
    return model, run


def test_who_watches_sees_every_epoch_and_moves_nothing() -> None:
    config, plain = TrainConfig(epochs=3, batch_size=32, lr=0.05, steps=18), fresh()
    expected = train(plain, config)
    model, run = watched(config)
    assert torch.equal(weights(plain), weights(model))  # though it drew, and dropout draws too
    assert model.training
    assert [row["seen"] for row in run.history] == [7, 14, 18]
    assert {row["modes"] for row in run.history} == {"{False}"}
    assert not any(row["graph"] for row in run.history)
    assert len({row["out"] for row in run.history}) == 3  # the weights of the moment
    assert [{key: row[key] for key in old} for row, old in zip(run.history, expected.history, strict=True)] == (
        expected.history
    )


@pytest.mark.parametrize("cut", [1, 7, 8, 20])
def test_a_watched_run_that_was_cut_says_the_same(tmp_path: Path, cut: int) -> None:
    config = TrainConfig(epochs=3, batch_size=32, lr=0.05)
    whole, expected = watched(config)
    with pytest.raises(CutError):
        watched(config, CutAfter(tmp_path, "key", seconds=0.0).cut_after(cut))
    for _ in range(2):  # the second finds the stage finished
        resumed, again = watched(config, Checkpoints(tmp_path, "key"), seed=9)
        assert again.history == expected.history
        assert torch.equal(weights(whole), weights(resumed))


@pytest.mark.parametrize("at", [1, 7, 12, 21])
def test_ctrl_c_within_a_step_is_heard_at_its_end_and_nothing_is_lost(tmp_path: Path, at: int) -> None:
    config = TrainConfig(epochs=3, batch_size=32, lr=0.05, schedule="cosine")  # 7 steps an epoch
    whole = fresh()
    expected = train(whole, config)
    order, calls = shuffled_order(len(DATA.train), Seeds(5)), list[int]()

    def interrupted(model: nn.Module, batch: Batch) -> Tensor:
        calls.append(1)
        if len(calls) == at:
            signal.raise_signal(signal.SIGINT)
        return mean_loss(model, batch)

    run = make_run(CPU, 0, config, Checkpoints(tmp_path, "key"))
    with pytest.raises(KeyboardInterrupt):
        minimise(fresh(), run.loader(DATA.train, order), interrupted, run, Stage("train"))
    assert len(calls) == at
    assert torch.load(tmp_path / "stage-train.pt", weights_only=True)["loop"]["step"] == at
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = fresh(seed=9)
    again = train(resumed, config, make_run(CPU, 0, config, Checkpoints(tmp_path, "key")))
    assert torch.equal(weights(whole), weights(resumed))
    assert again.history == expected.history


DRIVER = '''
"""Imports once, then forks one child per attempt, so that a kill costs milliseconds instead of an import."""
import os, random, signal, sys, time, traceback
from pathlib import Path
import torch
from torch import nn
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split
from spurless.data.loader import shuffled_order
from spurless.data.transforms import RandomFlip
from spurless.methods.erm import mean_loss
from spurless.train.checkpoint import Checkpoints
from spurless.train.config import TrainConfig
from spurless.train.loop import minimise
from spurless.train.run import Compute, make_run
from spurless.train.step import Stage
import lightning.fabric

torch.set_num_threads(1)

def go(folder):
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (256, 1, 12, 12), generator=g).to(torch.uint8)
    y = torch.randint(2, (256,), generator=g)
    split = Split(x, y, torch.full((256,), -1), Groups(("a", "b")), augment=RandomFlip())
    with Seeds(1).seed_global_rng("init"):
        model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3),
                              nn.Linear(800, 2))
    config = TrainConfig(epochs=40, batch_size=32, lr=0.05, schedule="one-cycle")
    run = make_run(Compute(device="cpu"), 0, config, Checkpoints(folder / "checkpoints", "key", seconds=0.0))
    minimise(model, run.loader(split, shuffled_order(256, Seeds(2))), mean_loss, run, Stage("train"))
    torch.save(model.state_dict(), folder / "weights.tmp")
    (folder / "weights.tmp").rename(folder / "weights.pt")

def attempt(folder, patience):
    child = os.fork()
    if child == 0:
        try:
            go(folder)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if patience is not None:
        time.sleep(patience)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit("the run failed by itself")

base = Path(sys.argv[1])
for name in ("peace", "killed"):
    (base / name).mkdir()
begin = time.monotonic()
attempt(base / "peace", None)
whole = time.monotonic() - begin
draw, kills, tries = random.Random(0), 0, 0
while not (base / "killed" / "weights.pt").exists():
    tries += 1
    patience = draw.uniform(0, whole / 8) if kills < 20 else None
    attempt(base / "killed", patience)
    kills += patience is not None and not (base / "killed" / "weights.pt").exists()
print(kills)
'''


@pytest.mark.slow
def test_sigkill_at_twenty_random_moments_changes_no_bit(tmp_path: Path) -> None:
    """One training, killed twenty times on its way, against the same training left in peace."""
    done = subprocess.run([sys.executable, "-c", DRIVER, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kills = int(done.stdout.split()[-1])
    expected, got = (torch.load(tmp_path / name / "weights.pt", weights_only=True) for name in ("peace", "killed"))
    assert kills >= 10  # twenty are tried; on a machine that speeds up midway the run may be over before
    assert all(torch.equal(expected[key], got[key]) for key in expected)


def test_random_augmentation_is_part_of_the_run_and_of_its_seed() -> None:
    x = torch.arange(200 * 4, dtype=torch.uint8).view(200, 1, 2, 2)
    split = replace(DATA.train, x=x, augment=RandomFlip())
    config = TrainConfig(epochs=2, batch_size=50)

    def model() -> nn.Module:
        with Seeds(0).seed_global_rng("init"):
            return nn.Sequential(nn.Flatten(), nn.Linear(4, 2))

    first, second = model(), model()
    train(first, config, split=split)
    train(second, config, split=split)
    plain = model()
    train(plain, config, split=replace(split, augment=None))
    assert torch.equal(weights(first), weights(second))
    assert not torch.equal(weights(first), weights(plain))


def test_a_linear_model_reaches_the_population_optimum_of_the_formula() -> None:
    from spurless.data.datasets.synthetic import erm_optimum, planted_accuracy

    config = PlantedConfig(n_train=20000, n_test=20000)
    data = planted(config)
    model = nn.Linear(2, 2)
    train(model, TrainConfig(epochs=10, lr=0.1, batch_size=200, weight_decay=0.0, schedule="cosine"), split=data.train)
    expected = planted_accuracy(erm_optimum(config), config)
    table = evaluate(model, data.test)
    # four standard errors of the smallest group (5000 examples), and a point for the finite train split
    torch.testing.assert_close(table.accuracy, expected.double(), atol=4 * 0.5 / 5000**0.5 + 0.01, rtol=0)


def test_two_stages_of_one_name_are_refused() -> None:
    run = train(nn.Linear(2, 2), TrainConfig(epochs=1))
    with pytest.raises(InputError, match="this run has two stages named 'train'"):
        train(nn.Linear(2, 2), TrainConfig(epochs=1), run)
