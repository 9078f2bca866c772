"""Folded steps: the weights of single training, in float64; what may not be folded is not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.loader import shuffled_order
from spurless.data.split import Batch, Split
from spurless.methods.erm import mean_loss
from spurless.models import build
from spurless.train import concurrent as fleet
from spurless.train import step
from spurless.train.checkpoint import Checkpoints
from spurless.train.concurrent import ConcurrentSteps, JobOutcome, minimise_all
from spurless.train.concurrent_vmap import VmapSteps, group_for_vmap, separate_weights
from spurless.train.config import TrainConfig
from spurless.train.loop import Job, minimise_job
from spurless.train.run import Compute, make_run
from spurless.train.step import GraphedSteps, Objective, Stage

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@dataclass(frozen=True)
class Double:
    """Inputs in float64."""

    static: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        return x.double() / 255


def examples() -> Split:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (150, 3, 4, 4), generator=generator, dtype=torch.uint8)
    y = torch.randint(3, (150,), generator=generator)
    return Split(x, y, torch.full((150,), -1), Groups(("a", "b", "c")), transform=Double())


SPLIT = examples()
CONFIGS = (
    TrainConfig(epochs=5, batch_size=20, lr=0.05),  # 7 full batches and one of 10
    TrainConfig(epochs=4, batch_size=20, lr=0.2, schedule="cosine", clip=0.1),
    TrainConfig(steps=20, epochs=9, batch_size=20, lr=0.003, optimiser="adam"),
    TrainConfig(epochs=3, batch_size=20, lr=0.01, momentum=0.0, weight_decay=0.1, l1=1e-3),
    TrainConfig(epochs=2, batch_size=40, lr=0.05),  # another batch size: on its own
)


def job_of(number: int, config: TrainConfig, device: str = "cpu", split: Split = SPLIT, **options: Any) -> Job:
    model = build("mlp", input_shape=(3, 4, 4), n_classes=3, width=16, seed=number, bias=True, **options).double()
    run = make_run(Compute(device), number, config)
    loader = run.loader(split, shuffled_order(len(split), Seeds(number)))
    return Job(model, loader, mean_loss, run, Stage("train", static=True))


def steps_of(*jobs: Job) -> list[GraphedSteps]:
    return [ConcurrentSteps(job.model, job.loader, job.objective, job.run, job.stage) for job in jobs]


def sizes(*jobs: Job) -> list[int]:
    return sorted(map(len, group_for_vmap(steps_of(*jobs))))


def weights(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().flatten().cpu() for value in model.state_dict().values()])


def one_by_one(tasks: Sequence[Callable[[], object]]) -> None:
    for task in tasks:
        task()


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Fold on a CPU, without a graph; return the sizes of the groups, for each time it would be captured."""
    seen: list[list[int]] = []

    def turn(self: GraphedSteps) -> Tensor:
        row = int(self.counter)
        for group in self.optimiser.param_groups:
            group["lr"] = float(self.rates[row])
        self.counter += 1
        return self.rows[row]

    def graph(groups: Sequence[Sequence[GraphedSteps]], _: object) -> Callable[[], None]:
        seen.append(sorted(map(len, groups)))
        folds = [VmapSteps(group) for group in groups if len(group) > 1]
        singles = [group[0] for group in groups if len(group) == 1]

        def replay() -> None:
            for fold in folds:
                fold.body(one_by_one)
            for single in singles:
                single.body()

        return replay

    monkeypatch.setattr(GraphedSteps, "next_indices", turn)
    monkeypatch.setattr(GraphedSteps, "_run_on_side_stream", GraphedSteps.body)
    monkeypatch.setattr(GraphedSteps, "_capture", lambda _: None)
    monkeypatch.setattr(fleet, "_capture_groups", graph)
    monkeypatch.setattr(fleet, "can_run_concurrently", lambda job: job.stage.static)
    return seen


def alone(jobs: list[Job]) -> list[Job]:
    for job in jobs:
        minimise_job(job)
    return jobs


def assert_alike(together: list[Job], others: list[Job]) -> None:
    for one, other in zip(together, others, strict=True):
        torch.testing.assert_close(weights(one.model), weights(other.model), rtol=0, atol=1e-10)
        assert [row["step"] for row in one.run.history] == [row["step"] for row in other.run.history]
        for mine, its in zip(one.run.history, other.run.history, strict=True):
            assert mine["loss"] == pytest.approx(its["loss"], rel=1e-6)


RELABELLED = replace(SPLIT, x=SPLIT.x.flip(-1), y=SPLIT.y.roll(1))  # type: ignore[union-attr]  # a tensor


@pytest.mark.parametrize("splits", [[SPLIT] * 5, [SPLIT, RELABELLED, SPLIT, replace(SPLIT, y=SPLIT.y.roll(2)), SPLIT]])
def test_folded_jobs_end_as_if_each_were_alone(on_a_cpu: list[list[int]], splits: list[Split]) -> None:
    def jobs() -> list[Job]:
        return [job_of(k, config, split=split) for k, (config, split) in enumerate(zip(CONFIGS, splits, strict=True))]

    together = jobs()
    assert minimise_all(together) == [JobOutcome(None, 5)] * 5
    assert on_a_cpu == [[1, 4], [4], [3], [2], [1]]  # after 8, 20, 24, 32 and 40 steps one leaves
    assert_alike(together, alone(jobs()))


def test_who_watches_a_folded_job_sees_its_own_weights(on_a_cpu: list[list[int]]) -> None:
    def look(model: nn.Module, _: int) -> dict[str, Any]:
        return {"sum": float(weights(model).sum()), "out": float(model(torch.ones(1, 3, 4, 4).double()).sum())}

    def jobs(watch: Any) -> list[Job]:
        made = [job_of(number, config) for number, config in enumerate(CONFIGS[:4])]
        return [replace(job, stage=replace(job.stage, watch=watch)) for job in made]

    together, others = jobs(look), jobs(None)
    minimise_all(together)
    minimise_all(others)
    assert on_a_cpu[0] == [4]
    for one, other in zip(together, others, strict=True):
        assert torch.equal(weights(one.model), weights(other.model))  # to the bit, as without it
    for one, other in zip(together, alone(jobs(look)), strict=True):
        for key in ("sum", "out"):
            seen = [[row[key] for row in job.run.history] for job in (one, other)]
            assert seen[0] == pytest.approx(seen[1], abs=1e-8)


def test_a_job_takes_its_weights_along_when_it_leaves(on_a_cpu: list[list[int]], tmp_path: Path) -> None:
    jobs = []
    for number in range(3):
        job = job_of(number, CONFIGS[0])
        checkpoints = Checkpoints(tmp_path / str(number), "key", seconds=0.0)
        jobs.append(replace(job, run=replace(job.run, checkpoints=checkpoints)))
    minimise_all(jobs)
    assert on_a_cpu == [[3]]
    pointers = {weight.untyped_storage().data_ptr() for job in jobs for weight in job.model.parameters()}
    assert len(pointers) == 3 * 6  # three linear layers with biases, nothing shared
    for number, job in enumerate(jobs):
        state = torch.load(tmp_path / str(number) / "stage-train.pt", weights_only=True)
        for weight, saved in zip(job.model.parameters(), state["model"].values(), strict=True):
            own = weight.numel() * weight.element_size()
            assert weight.untyped_storage().nbytes() == saved.untyped_storage().nbytes() == own  # of one model, not 3


def test_one_step_by_hand() -> None:
    fold = VmapSteps(steps_of(job_of(0, CONFIGS[3]), job_of(1, CONFIGS[3])))
    before = [weights(member.model) for member in fold.members]
    rows = [torch.arange(20), torch.arange(40, 60)]
    for member, row in zip(fold.members, rows, strict=True):  # as the member itself would at the start of an epoch
        member.rows[2].copy_(row)
        member.rates.fill_(9.0)[2] = 0.01
        member.counter.fill_(2)
    fold.body(one_by_one)
    for number, (member, row) in enumerate(zip(fold.members, rows, strict=True)):
        other = job_of(number, CONFIGS[3]).model
        loss = mean_loss(other, member.loader.gather(row))
        slopes = torch.autograd.grad(loss, list(other.parameters()))
        # no momentum: w - lr (slope + l1 sign(w) + decay w)
        moved = [
            (w - 0.01 * (slope + 1e-3 * w.sign() + 0.1 * w)).detach().flatten()
            for w, slope in zip(other.parameters(), slopes, strict=True)
        ]
        torch.testing.assert_close(weights(member.model), torch.cat(moved), rtol=0, atol=1e-14)
        assert float(member.loss) == pytest.approx(float(loss.detach()), rel=1e-6)
        assert int(member.counter) == 3
        assert not torch.equal(weights(member.model), before[number])


def test_what_a_captured_step_reads_is_kept_alive_by_the_members() -> None:
    fold = VmapSteps(steps_of(*(job_of(number, CONFIGS[0]) for number in range(3))))
    read = [part for part in vars(fold).values() if isinstance(part, Tensor)] + list(fold.weights.values())
    last = fold.members[-1]
    held = [*last.model.parameters(), last.rows, last.rates, last.counter, last.loss]
    held.append(last.optimiser.param_groups[0]["lr"])
    places = [{part.untyped_storage().data_ptr() for part in parts} for parts in (read, held)]
    assert len(places[0]) == 6 + 5
    assert places[0] == places[1]


def test_unfolding_changes_no_weight_and_leaves_a_model_of_its_own_alone() -> None:
    job = job_of(0, CONFIGS[0])
    expected, places = weights(job.model).clone(), [weight.data_ptr() for weight in job.model.parameters()]
    separate_weights(job.model)
    assert [weight.data_ptr() for weight in job.model.parameters()] == places
    VmapSteps(steps_of(job, job_of(1, CONFIGS[0])))
    separate_weights(job.model)
    assert torch.equal(weights(job.model), expected)


def test_only_what_is_of_one_form_is_folded() -> None:
    plain, config = job_of(0, CONFIGS[0]), CONFIGS[0]

    def other(number: int, model: nn.Module | None = None, objective: Objective = mean_loss, **new: Any) -> Job:
        made = job_of(number, config, **new)
        return replace(made, model=made.model if model is None else model, objective=objective)

    frozen, hooked, normed = job_of(1, config).model, job_of(1, config).model, job_of(1, config).model
    next(frozen.parameters()).requires_grad_(False)
    hooked.register_forward_hook(lambda *_: None)
    assert isinstance(normed.backbone, nn.Sequential)
    normed.backbone.append(nn.BatchNorm1d(16).double())

    def again(model: nn.Module, batch: Batch) -> Tensor:
        return mean_loss(model, batch)

    assert sizes(plain, other(1), other(2, split=RELABELLED)) == [3]
    for odd in (
        other(1, frozen),
        other(1, hooked),
        other(1, normed),
        other(1, objective=again),
        other(1, activation="tanh"),
        job_of(1, replace(config, asam=0.1)),
        job_of(1, replace(config, batch_size=25)),
        other(1, split=SPLIT.select(torch.arange(100))),
        replace(other(1), stage=Stage("train", memory={"q": torch.zeros(1)}, static=True)),
    ):
        assert sizes(plain, odd) == [1, 1]
        assert sizes(plain, odd, other(2)) == [1, 2]


def test_examples_are_gathered_at_once_where_all_have_the_same() -> None:
    def one_split(split: Split) -> bool:
        return VmapSteps(steps_of(job_of(0, CONFIGS[0]), job_of(1, CONFIGS[0], split=split))).has_one_split

    assert one_split(SPLIT)
    assert one_split(replace(SPLIT, y=SPLIT.y.clone()))
    assert not one_split(RELABELLED)
    assert not one_split(replace(SPLIT, y=SPLIT.y.roll(1)))
    assert not one_split(replace(SPLIT, a=SPLIT.a + 1))
    assert not one_split(replace(SPLIT, transform=Double()))
    assert not one_split(replace(SPLIT, augment=Double()))


class Scaled:
    """Its objective is a method, which is another object every time it is asked for."""

    def objective(self, model: nn.Module, batch: Batch) -> Tensor:
        return 2 * mean_loss(model, batch)


def test_a_method_of_one_object_is_one_objective() -> None:
    mine = Scaled()
    one, two, three = (replace(job_of(k, CONFIGS[0]), objective=mine.objective) for k in range(3))
    assert sizes(one, two, replace(three, objective=Scaled().objective)) == [1, 2]


def test_an_objective_that_cannot_be_folded_is_captured_unfolded(
    on_a_cpu: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = fleet._capture_groups

    def tried(groups: Sequence[Sequence[GraphedSteps]], streams: Any) -> Callable[[], None]:
        if any(len(group) > 1 for group in groups):  # a capture runs the step
            VmapSteps(groups[0]).body(one_by_one)
        return graph(groups, streams)

    def by_features(model: nn.Module, batch: Batch) -> Tensor:
        return mean_loss(lambda x: model.head(model.features(x)), batch)  # type: ignore[arg-type,operator]

    monkeypatch.setattr(fleet, "_capture_groups", tried)
    monkeypatch.setattr(VmapSteps, "_next_indices", lambda self: self.rows[:, 0])  # what is tried here must not count
    jobs = [replace(job_of(k, CONFIGS[4]), objective=by_features) for k in range(2)]
    assert minimise_all(jobs) == [JobOutcome(None, 2)] * 2
    assert on_a_cpu == [[1, 1]]


@gpu
@pytest.mark.gpu
def test_captured_folded_jobs_end_as_if_each_were_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "MIN_STEPS_TO_CAPTURE", 5)
    captures, folds = [0], list[int]()

    def captured(body: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
        captures[0] += 1
        return step.capture_graph(body, device)

    def fold(group: Sequence[GraphedSteps]) -> VmapSteps:
        folds.append(len(group))
        return VmapSteps(group)

    monkeypatch.setattr(fleet, "capture_graph", captured)
    monkeypatch.setattr(fleet, "VmapSteps", fold)
    split = SPLIT.to("cuda")
    together = [job_of(number, config, "cuda", split) for number, config in enumerate(CONFIGS)]
    assert minimise_all(together) == [JobOutcome(None, 5)] * 5
    assert folds == [4, 4, 3, 2]
    assert captures == [5]  # none was tried a second time, unfolded
    assert_alike(together, alone([job_of(number, config, "cuda", split) for number, config in enumerate(CONFIGS)]))
