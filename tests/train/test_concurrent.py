"""The fleet against single training: same weights, history and checkpoints, whoever ends, fails or is killed.

On a CPU nothing can be captured and jobs are done one after another. So that the lock-step is tested there too, the
fixture ``lock_step`` puts a plain Python step in the place of the captured one; all else is the fleet's own.
"""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import DivergedError, InputError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.loader import shuffled_order
from spurless.data.split import Batch, Split
from spurless.data.transforms import RandomFlip
from spurless.methods.erm import mean_loss
from spurless.models import build
from spurless.train import concurrent as fleet
from spurless.train import step
from spurless.train.checkpoint import Checkpoints
from spurless.train.concurrent import JobOutcome, can_run_concurrently, completed, minimise_all
from spurless.train.config import TrainConfig
from spurless.train.loop import Job, minimise_job
from spurless.train.run import Compute, Run, make_run
from spurless.train.step import GraphedSteps, Objective, Stage

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@dataclass(frozen=True)
class Double:
    """Inputs in float64, where rounding is too small to grow into a difference."""

    static: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        return x.double() / 255


def images(n: int = 130, side: int = 8) -> Split:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, 3, side, side), generator=generator, dtype=torch.uint8)
    y = (x.float().mean(dim=(1, 2, 3)) > 127).long()
    return Split(x, y, torch.full((n,), -1), Groups(("a", "b")), transform=Double())


SPLIT = images()
CONFIGS = (
    TrainConfig(epochs=3, batch_size=32, lr=0.05),  # 4 full batches and one of 2 an epoch
    TrainConfig(steps=20, epochs=9, batch_size=16, lr=0.01, schedule="cosine", clip=0.5),
    TrainConfig(epochs=4, batch_size=50, lr=0.002, optimiser="adam", warmup_steps=4),
    TrainConfig(epochs=30, batch_size=26, lr=0.1, stop_loss=0.6),
    TrainConfig(epochs=30, batch_size=64, lr=0.05, stop_accuracy=0.75, optimiser="adamw"),
)
"""Five jobs that end at different steps."""


def net(seed: int, *more: nn.Module) -> nn.Module:
    with Seeds(seed).seed_global_rng("init"):
        layers = [nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16), nn.ReLU(), *more, nn.Linear(16, 2)]
        return nn.Sequential(*layers).double()


def job_of(
    number: int,
    config: TrainConfig,
    model: nn.Module | None = None,
    split: Split = SPLIT,
    objective: Objective = mean_loss,
    checkpoints: Checkpoints | None = None,
    device: str = "cpu",
) -> Job:
    """Job ``number``: seeds of its own."""
    run = make_run(Compute(device), number, config, checkpoints)
    order = shuffled_order(len(split), Seeds(100 + number))
    chosen = net(number) if model is None else model
    return Job(chosen, run.loader(split, order), objective, run, Stage("train", static=True))


def jobs(configs: Sequence[TrainConfig] = CONFIGS, **options: Any) -> list[Job]:
    return [job_of(number, config, **options) for number, config in enumerate(configs)]


def done_alone(some: list[Job]) -> list[Job]:
    for job in some:
        minimise_job(job)
    return some


def weights(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().flatten().double().cpu() for value in model.state_dict().values()])


def assert_alike(together: list[Job], alone: list[Job], atol: float = 0.0) -> None:
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(weights(one.model), weights(other.model), rtol=0, atol=atol)
        assert one.run.history == other.run.history


@pytest.fixture
def lock_step(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let jobs advance together on a CPU; return how many did, for each time the graph would be captured."""
    crews: list[int] = []

    def turn(self: GraphedSteps) -> Tensor:
        row = int(self.counter)
        assert row < len(self.rows)  # inside a graph this would end the device
        for group in self.optimiser.param_groups:
            group["lr"] = float(self.rates[row])
        self.counter += 1
        return self.rows[row]

    def graph(groups: Sequence[Sequence[GraphedSteps]], _: object) -> Callable[[], None]:
        crews.append(sum(map(len, groups)))
        members = [member for group in groups for member in group]

        def replay() -> None:
            for member in members:
                member.body()

        return replay

    monkeypatch.setattr(GraphedSteps, "next_indices", turn)
    monkeypatch.setattr(GraphedSteps, "_run_on_side_stream", GraphedSteps.body)
    monkeypatch.setattr(GraphedSteps, "_capture", lambda _: None)  # who goes alone makes eager steps
    monkeypatch.setattr(fleet, "_capture_groups", graph)
    monkeypatch.setattr(fleet, "can_run_concurrently", lambda job: job.stage.static)
    return crews


def test_on_a_cpu_jobs_are_done_alone_to_the_same_bits() -> None:
    together = jobs()
    assert not any(map(can_run_concurrently, together))
    assert minimise_all(together) == [JobOutcome(None, 1)] * 5
    assert_alike(together, done_alone(jobs()))


def test_in_lock_step_every_job_ends_as_if_it_were_alone(lock_step: list[int]) -> None:
    together, alone = jobs(), done_alone(jobs())
    outcomes = minimise_all(together)
    assert [outcome.error for outcome in outcomes] == [None] * 5
    assert [outcome.together for outcome in outcomes] == [5] * 5
    assert_alike(together, alone)
    ends = {job.run.history[-1]["step"] for job in alone}
    assert len(ends) == 5  # all end at steps of their own,
    assert lock_step == [5, 4, 3, 2, 1]  # and each leaves the others to a new graph
    for job in together:
        assert job.run.seconds["train"] > 0


def test_what_is_done_with_a_job_that_ended_does_not_move_the_others(lock_step: list[int]) -> None:
    together, order = jobs(), list[int]()
    for number, outcome in completed(together):
        assert outcome == JobOutcome(None, 5)
        order.append(number)
        assert sum("train" in job.run.seconds for job in together) == len(order)  # the others are on their way
        torch.rand(7)
    assert lock_step == [5, 4, 3, 2, 1]
    assert sorted(order) == list(range(5)) != order
    assert_alike(together, done_alone(jobs()))


def test_the_next_job_begins_where_one_has_ended(lock_step: list[int]) -> None:
    together = jobs()
    outcomes = minimise_all(together, at_once=2)
    assert_alike(together, done_alone(jobs()))
    assert max(lock_step) == 2
    assert lock_step.count(2) == 4  # five jobs, two at a time: a new pair whenever one ends, until one is left
    assert {outcome.together for outcome in outcomes} == {2}
    with pytest.raises(InputError, match=r"at_once must be at least 1 \(got 0\)"):
        minimise_all(together, at_once=0)
    assert minimise_all([]) == []


def test_a_job_that_diverges_leaves_and_stops_no_other(lock_step: list[int]) -> None:
    wild = replace(CONFIGS[0], lr=1e30, epochs=4)
    together = jobs((CONFIGS[0], wild, CONFIGS[1]))
    outcomes = minimise_all(together)
    assert [type(outcome.error) for outcome in outcomes] == [type(None), DivergedError, type(None)]
    assert "learning rate 1e+30" in str(outcomes[1].error)
    assert lock_step[0] == 3
    assert_alike([together[0], together[2]], done_alone([job_of(0, CONFIGS[0]), job_of(2, CONFIGS[1])]))
    assert together[1].run.history == []  # as when it is raised


def test_what_draws_is_done_alone_with_its_own_draws(lock_step: list[int]) -> None:
    def noisy(model: nn.Module, batch: Batch) -> Tensor:
        return mean_loss(model, batch) + torch.rand(()) * 1e-3

    flipped = replace(SPLIT, augment=RandomFlip())

    def mixed() -> list[Job]:
        return [
            job_of(0, CONFIGS[0]),
            job_of(1, CONFIGS[0], net(1, nn.Dropout(0.3))),
            job_of(2, CONFIGS[0], split=flipped),
            job_of(3, CONFIGS[0], objective=noisy),
            job_of(4, CONFIGS[0]),
        ]

    together = mixed()
    outcomes = minimise_all(together)
    assert outcomes == [JobOutcome(None, shared) for shared in (2, 1, 1, 1, 2)]
    assert lock_step == [2]
    assert_alike(together, done_alone(mixed()))


def test_a_stage_without_the_promise_is_done_alone(lock_step: list[int]) -> None:
    one, two = jobs(CONFIGS[:2])

    def objective(model: nn.Module, batch: Batch) -> Tensor:
        assert one.run.stages == set()  # nobody waits for it half-way
        return mean_loss(model, batch)

    together = [one, replace(two, stage=Stage("train"), objective=objective)]
    assert [outcome.together for outcome in minimise_all(together)] == [1, 1]
    assert lock_step == [1]
    assert_alike(together, done_alone(jobs(CONFIGS[:2])))


def test_a_graph_that_cannot_be_captured_lets_everybody_go_on_alone(
    lock_step: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(fleet, "_capture_groups", refuse)
    together = jobs()
    outcomes = minimise_all(together)
    assert outcomes == [JobOutcome(None, 1)] * 5
    assert_alike(together, done_alone(jobs()))
    assert lock_step == []


def test_the_epoch_that_the_criterion_likes_best_is_kept_of_each(lock_step: list[int]) -> None:
    def scored(number: int) -> Job:
        job, scores = job_of(number, CONFIGS[0]), iter([0.1, 0.9, 0.9, 0.3, 0.2][number:] + [0.0] * number)
        return replace(job, run=replace(job.run, score=lambda _: next(scores)))

    together, alone = [scored(0), scored(1), scored(3)], done_alone([scored(0), scored(1), scored(3)])
    minimise_all(together)
    assert_alike(together, alone)
    assert lock_step == [3]


def test_the_memory_of_an_objective_is_its_own(lock_step: list[int]) -> None:
    seen = [torch.zeros(len(SPLIT)) for _ in range(2)]

    def counting(count: Tensor) -> Objective:
        def objective(model: nn.Module, batch: Batch) -> Tensor:
            count.index_add_(0, batch.index, torch.ones(len(batch)))
            return mean_loss(model, batch)

        return objective

    configs = (TrainConfig(epochs=3, batch_size=26), TrainConfig(epochs=5, batch_size=16))
    together = [
        replace(job_of(k, config, objective=counting(count)), stage=Stage("train", memory={"n": count}, static=True))
        for k, (config, count) in enumerate(zip(configs, seen, strict=True))
    ]
    minimise_all(together)
    assert seen[0].tolist() == [3.0] * 130  # every example once an epoch, the short batch of 2 included
    assert seen[1].tolist() == [5.0] * 130
    assert lock_step == [2, 1]


class Kill(BaseException):
    """Stands for a kill between two steps: no error that one job could keep to itself."""


class KillAfter(Checkpoints):
    """Kills right after the save of a step, of which there is one per step."""

    def after(self, saves: int) -> "KillAfter":
        self.left = saves
        return self

    def save(self, stage: str, state: dict[str, Any]) -> None:
        super().save(stage, state)
        self.left -= 1
        if self.left == 0:
            raise Kill


def resumable(folder: Path, names: Sequence[int] = range(5), kill: dict[int, int] | None = None) -> list[Job]:
    """Jobs that save every step, each in its folder; ``kill`` says after which step of which job everything ends."""

    def checkpoints(number: int) -> Checkpoints:
        return KillAfter(folder / str(number), f"key{number}", seconds=0.0).after((kill or {}).get(number, 0))

    return [job_of(number, CONFIGS[number], checkpoints=checkpoints(number)) for number in names]


@pytest.mark.parametrize("after", [2, 8])
@pytest.mark.usefixtures("lock_step")
def test_a_killed_fleet_goes_on_to_the_same_weights(tmp_path: Path, after: int) -> None:
    with pytest.raises(Kill):
        minimise_all(resumable(tmp_path, kill={2: after}))
    again = resumable(tmp_path)
    for number, job in enumerate(again):
        if (tmp_path / str(number)).exists():  # 2 steps are less than the warm-up: two jobs have not yet begun
            job.model.load_state_dict(net(77).state_dict())  # other weights: all must come from the checkpoint
    assert [outcome.error for outcome in minimise_all(again)] == [None] * 5
    assert_alike(again, done_alone(jobs()))


@pytest.mark.usefixtures("lock_step")
def test_ctrl_c_is_heard_between_two_steps_and_every_member_is_saved(tmp_path: Path) -> None:
    class Pressed(Checkpoints):
        asked = 0

        def is_due(self, stage: str) -> bool:
            self.asked += 1
            if self.asked == 6 and self.key == "key2":
                signal.raise_signal(signal.SIGINT)
            return super().is_due(stage)

    def made() -> list[Job]:
        places = [Pressed(tmp_path / str(number), f"key{number}") for number in range(5)]
        return [job_of(number, CONFIGS[number], checkpoints=place) for number, place in enumerate(places)]

    with pytest.raises(KeyboardInterrupt):
        minimise_all(made())
    steps = [torch.load(tmp_path / str(k) / "stage-train.pt", weights_only=True)["loop"]["step"] for k in range(5)]
    assert steps[2] in (6, 7)
    assert all(step > 3 for step in steps)
    again = []
    for number, job in enumerate(made()):
        job.model.load_state_dict(net(77).state_dict())
        checkpoints = Checkpoints(tmp_path / str(number), f"key{number}")
        again.append(replace(job, run=replace(job.run, checkpoints=checkpoints)))
    minimise_all(again)
    assert_alike(again, done_alone(jobs()))


@pytest.mark.usefixtures("lock_step")
def test_a_single_run_continues_what_a_fleet_began_and_the_other_way_round(tmp_path: Path) -> None:
    alone = done_alone(jobs())
    with pytest.raises(Kill):
        minimise_all(resumable(tmp_path, kill={4: 5}))
    assert_alike(done_alone(resumable(tmp_path, (0, 1))), alone[:2])
    for job in resumable(tmp_path, (2, 3), kill={2: 3, 3: 4}):
        with pytest.raises(Kill):
            minimise_job(job)
    rest = resumable(tmp_path)
    minimise_all(rest)
    assert_alike(rest, alone)


def test_checkpoints_of_a_fleet_are_those_of_single_runs(tmp_path: Path, lock_step: list[int]) -> None:
    def saved(folder: Path) -> list[dict[str, Any]]:
        return [torch.load(folder / str(k) / "stage-train.pt", weights_only=True) for k in range(5)]

    minimise_all(resumable(tmp_path / "fleet"))
    done_alone(resumable(tmp_path / "alone"))
    for one, other in zip(saved(tmp_path / "fleet"), saved(tmp_path / "alone"), strict=True):
        assert one.keys() == other.keys()
        assert torch.equal(one["generator"], other["generator"])  # its own, not that of whoever came last
        assert one["loop"] == other["loop"]
    assert lock_step[0] == 5


def test_a_failure_of_one_job_is_given_back_as_it_is(lock_step: list[int]) -> None:
    def picky(model: nn.Module, batch: Batch) -> Tensor:
        if len(batch) == 2:  # the short batch, made eagerly at the end of an epoch
            raise ZeroDivisionError("one job only")
        return mean_loss(model, batch)

    together = [job_of(0, CONFIGS[0], objective=picky), job_of(1, CONFIGS[1])]
    outcomes = minimise_all(together)
    assert isinstance(outcomes[0].error, ZeroDivisionError)
    assert outcomes[1].error is None
    assert_alike(together[1:], done_alone([job_of(1, CONFIGS[1])]))
    assert lock_step == [2, 1]


def test_an_order_that_leaves_the_split_is_an_error_before_it_reaches_the_device(lock_step: list[int]) -> None:
    run = make_run(Compute("cpu"), 0, CONFIGS[0])
    loader = run.loader(SPLIT, lambda epoch: torch.arange(64) + 34 * epoch)
    astray = Job(net(0), loader, mean_loss, run, Stage("train", static=True))
    outcomes = minimise_all([astray, job_of(1, CONFIGS[1])])
    assert isinstance(outcomes[0].error, InputError)  # the third epoch reaches example 131
    assert "examples from 0 to 129" in str(outcomes[0].error)
    assert outcomes[1].error is None
    assert lock_step == [2, 1]


def test_leaves_the_global_generator_alone(lock_step: list[int]) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    together = [*jobs(CONFIGS[:2]), job_of(2, CONFIGS[0], net(2, nn.Dropout(0.3)))]
    # a criterion that draws
    together = [replace(job, run=replace(job.run, score=lambda _: float(torch.rand(())))) for job in together]
    minimise_all(together)
    assert torch.equal(before, torch.get_rng_state())
    assert lock_step[0] == 2


def watched(some: list[Job]) -> list[Job]:
    """The same jobs, each with somebody who draws, runs the model on one example and notes its weights."""

    def look(model: nn.Module, step: int) -> dict[str, Any]:
        first = next(model.parameters())
        torch.rand(3, device=first.device)
        model(torch.zeros(1, 3, 8, 8, dtype=torch.double, device=first.device))
        return {"at": step, "weight": float(weights(model).sum())}

    return [replace(job, stage=replace(job.stage, watch=look)) for job in some]


def test_each_is_watched_at_the_end_of_its_own_epochs(lock_step: list[int]) -> None:
    together, alone, plain = watched(jobs()), done_alone(watched(jobs())), done_alone(jobs())
    minimise_all(together)
    assert_alike(together, alone)  # what was seen of the weights too, to the bit
    assert lock_step == [5, 4, 3, 2, 1]
    for one, other in zip(together, plain, strict=True):
        assert torch.equal(weights(one.model), weights(other.model))
        assert [row["at"] for row in one.run.history] == [row["step"] for row in other.run.history]
        assert len({row["weight"] for row in one.run.history}) == len(one.run.history)


def test_one_who_watches_and_fails_stops_no_other(lock_step: list[int]) -> None:
    def fall(_: nn.Module, step: int) -> dict[str, Any]:
        raise ZeroDivisionError(step)

    together = jobs(CONFIGS[:2])
    together[0] = replace(together[0], stage=replace(together[0].stage, watch=fall))
    outcomes = minimise_all(together)
    assert isinstance(outcomes[0].error, ZeroDivisionError)
    assert_alike(together[1:], done_alone([job_of(1, CONFIGS[1])]))
    assert lock_step == [2, 1]


def gpu_jobs(name: str, configs: Sequence[TrainConfig], side: int = 28, **options: Any) -> list[Job]:
    split = images(300, side).to("cuda")
    made = []
    for number, config in enumerate(configs):
        model = build(name, input_shape=(3, side, side), n_classes=2, seed=number, **options).double()
        made.append(job_of(number, config, model, split, device="cuda"))
    return made


GPU_CONFIGS = (
    TrainConfig(steps=20, epochs=9, batch_size=64, lr=0.01),
    TrainConfig(steps=20, epochs=9, batch_size=32, lr=0.001, schedule="cosine"),
    TrainConfig(steps=20, epochs=9, batch_size=50, lr=0.005, weight_decay=0.0),
    TrainConfig(steps=20, epochs=9, batch_size=100, lr=0.0001, optimiser="adam"),
)


def assert_close_histories(together: list[Job], alone: list[Job]) -> None:
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(weights(one.model), weights(other.model), rtol=0, atol=1e-10)
        assert [row["step"] for row in one.run.history] == [row["step"] for row in other.run.history]
        losses = [[row["loss"] for row in job.run.history] for job in (one, other)]
        torch.testing.assert_close(*map(torch.tensor, losses), rtol=1e-5, atol=1e-6)


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("name", ["small-cnn", "torchvision:resnet18", "mlp"])
def test_captured_together_every_job_ends_as_if_it_were_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "MIN_STEPS_TO_CAPTURE", 5)
    together, alone = gpu_jobs(name, GPU_CONFIGS), gpu_jobs(name, GPU_CONFIGS)
    eager = [replace(job, run=replace(job.run, graph=False)) for job in gpu_jobs(name, GPU_CONFIGS)]
    assert all(map(can_run_concurrently, together))
    assert minimise_all(together) == [JobOutcome(None, 4)] * 4
    assert_close_histories(together, done_alone(alone))
    assert_close_histories(together, done_alone(eager))


@gpu
@pytest.mark.gpu
def test_captured_and_watched_every_job_ends_as_if_nobody_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "MIN_STEPS_TO_CAPTURE", 5)
    split, draws = images().to("cuda"), nn.Dropout(0.3)

    def made() -> list[Job]:
        some = [job_of(k, config, split=split, device="cuda") for k, config in enumerate(GPU_CONFIGS)]
        return [*some, job_of(9, GPU_CONFIGS[0], net(9, draws), split, device="cuda")]  # a graph that draws, alone

    together = watched(made())
    assert [outcome.together for outcome in minimise_all(together)] == [4, 4, 4, 4, 1]
    for others in (done_alone(made()), done_alone(watched(made()))):
        assert_close_histories(together, others)


@gpu
@pytest.mark.gpu
def test_captured_a_finished_job_and_a_diverging_one_leave_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "MIN_STEPS_TO_CAPTURE", 5)
    configs = (
        TrainConfig(steps=40, epochs=99, batch_size=64, lr=0.01),
        TrainConfig(steps=12, epochs=99, batch_size=50, lr=0.01),
        TrainConfig(steps=60, epochs=99, batch_size=64, lr=1e30),
        TrainConfig(epochs=99, batch_size=64, lr=0.01, stop_loss=0.69),
    )
    together = gpu_jobs("small-cnn", configs)
    outcomes = minimise_all(together)
    assert [type(outcome.error) for outcome in outcomes] == [type(None), type(None), DivergedError, type(None)]
    keep = (0, 1, 3)
    alone = gpu_jobs("small-cnn", configs)
    assert_close_histories([together[k] for k in keep], done_alone([alone[k] for k in keep]))
    assert float(torch.zeros(3, device="cuda").sum()) == 0.0  # the device is as good as before


@gpu
@pytest.mark.gpu
def test_captured_more_jobs_than_fit_at_once_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "MIN_STEPS_TO_CAPTURE", 5)
    configs = [replace(GPU_CONFIGS[0], steps=10 + 3 * k) for k in range(5)]
    together = gpu_jobs("mlp", configs)
    assert [outcome.together for outcome in minimise_all(together, at_once=2)] == [2] * 5
    assert_close_histories(together, done_alone(gpu_jobs("mlp", configs)))


@gpu
@pytest.mark.gpu
def test_what_draws_on_the_device_is_done_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "MIN_STEPS_TO_CAPTURE", 5)

    def mixed() -> list[Job]:
        split, config = images().to("cuda"), GPU_CONFIGS[0]
        flipped = replace(split, augment=RandomFlip())
        return [
            job_of(0, config, split=split, device="cuda"),
            job_of(1, config, net(1, nn.Dropout(0.3)), split, device="cuda"),
            job_of(2, config, split=flipped, device="cuda"),
            job_of(3, config, split=split, device="cuda"),
        ]

    together = mixed()
    assert [outcome.together for outcome in minimise_all(together)] == [2, 1, 1, 2]
    assert_close_histories(together, done_alone(mixed()))


@gpu
@pytest.mark.gpu
def test_a_job_that_looks_at_values_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "MIN_STEPS_TO_CAPTURE", 5)

    def looking(model: nn.Module, batch: Batch) -> Tensor:
        loss = mean_loss(model, batch)
        return loss if loss.item() < 1e9 else loss * 0

    split = images().to("cuda")
    together = [
        job_of(0, GPU_CONFIGS[0], split=split, device="cuda"),
        job_of(1, GPU_CONFIGS[1], split=split, objective=looking, device="cuda"),
    ]
    with pytest.warns(UserWarning, match="could not be captured"):
        outcomes = minimise_all(together)
    assert outcomes == [JobOutcome(None, 1)] * 2
    alone = [job_of(k, GPU_CONFIGS[k], split=split, device="cuda") for k in range(2)]
    assert_close_histories(together, done_alone(alone))


@gpu
@pytest.mark.gpu
def test_a_killed_fleet_goes_on_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "MIN_STEPS_TO_CAPTURE", 5)

    def made(kill: int) -> list[Job]:
        found = []
        for number, job in enumerate(gpu_jobs("small-cnn", GPU_CONFIGS)):
            points = KillAfter(tmp_path / str(number), f"key{number}", seconds=0.0)
            run = replace(job.run, checkpoints=points.after(kill if number == 3 else 0))
            found.append(replace(job, run=run))
        return found

    with pytest.raises(Kill):
        minimise_all(made(kill=9))
    again = made(kill=0)
    assert minimise_all(again) == [JobOutcome(None, 4)] * 4
    assert_close_histories(again, done_alone(gpu_jobs("small-cnn", GPU_CONFIGS)))


@gpu
@pytest.mark.gpu
def test_half_precision_together_is_half_precision_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "MIN_STEPS_TO_CAPTURE", 5)

    def made() -> list[Job]:
        split = replace(images(300, 28), transform=None).to("cuda")
        found = []
        for number in range(3):
            run: Run = make_run(Compute("cuda", precision="bf16-mixed"), number, GPU_CONFIGS[number])
            model = build("small-cnn", input_shape=(3, 28, 28), n_classes=2, seed=number)
            loader = run.loader(split, shuffled_order(300, Seeds(number)))
            found.append(Job(model, loader, mean_loss, run, Stage("train", static=True)))
        return found

    together, alone = made(), done_alone(made())
    assert minimise_all(together) == [JobOutcome(None, 3)] * 3
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(weights(one.model), weights(other.model), rtol=5e-2, atol=2e-2)
