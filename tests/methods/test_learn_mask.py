"""Subnetwork: logits move and weights do not, the last mask is the one, and what is told of it is true."""

import warnings
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from spurless.core.config import Count, Positive
from spurless.core.errors import InputError, SpurlessWarning
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.loader import weighted_order
from spurless.data.split import Batch, Splits
from spurless.fitting import fit
from spurless.methods._learn_mask import (
    SNAPSHOTS,
    MaskSnapshot,
    MaskTraining,
    Penalty,
    Subnetwork,
    check_prunable_model,
    copy_pruned,
    examples_per_snapshot,
    finish_pruning,
    learn_mask,
    reset,
)
from spurless.methods.erm import mean_loss
from spurless.models import Classifier, build
from spurless.models.pruning.masks import get_weight_masks, is_pruned
from spurless.train.checkpoint import Checkpoints
from spurless.train.config import TrainConfig
from spurless.train.evaluate import evaluate, logits
from spurless.train.run import Compute, Run, make_run

pytestmark = pytest.mark.filterwarnings("ignore:The subnetwork predicts")  # most nets here are untrained
DATA = planted(PlantedConfig(n_train=200, n_val=64, n_test=64))


@dataclass(frozen=True, kw_only=True)
class Learning(MaskTraining):
    """Settings for a small network."""

    squashed: bool = False
    init: float = 0.5
    prune_steps: Count = 40
    prune_lr: Positive = 0.05
    batch_size: Count = 32


def net(data: Splits = DATA) -> Classifier:
    return build("mlp", data, width=8)


def a_run(folder: Path | None = None) -> Run:
    checkpoints = None if folder is None else Checkpoints(folder, "key", seconds=0.0)
    # neither clipping nor weight decay may reach the logits
    return make_run(Compute("cpu"), 0, TrainConfig(clip=1e-9, weight_decay=0.5), checkpoints)


def learn(
    model: Classifier, config: Learning, run: Run, mined: Tensor | None = None, data: Splits = DATA
) -> tuple[MaskSnapshot, ...]:
    drawn = examples_per_snapshot(config.prune_steps, config.batch_size)
    order = weighted_order(torch.ones(len(data.train)), run.seeds.child("prune"), drawn)
    return learn_mask(model, run.loader(data.train, order, config.batch_size), mean_loss, config, run, mined)


def nothing(model: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = model(batch.x).sum() * 0
    return loss


def test_the_mask_is_learned_and_no_weight_moves() -> None:
    model, run = net(), a_run()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    learn(model, Learning(), run)
    masks = get_weight_masks(model)
    assert 0 < sum(int((~mask).sum()) for mask in masks.values()) < sum(mask.numel() for mask in masks.values())
    for name, p in model.named_parameters():
        plain = name.replace("parametrizations.", "").replace(".original", "")
        assert torch.equal(p, before[plain])
        assert p.requires_grad
    assert [row["stage"] for row in run.history] == ["prune"] * SNAPSHOTS


def test_a_penalty_that_is_all_that_counts_prunes_everything_in_steps_of_the_rate() -> None:
    config = Learning(sparsity=1e3, prune_steps=40)  # far above the epsilon: 0.05 a step, from 0.5
    model, run = net(), a_run()
    order = weighted_order(torch.ones(len(DATA.train)), run.seeds, examples_per_snapshot(40, 32))
    looks = learn_mask(model, run.loader(DATA.train, order, config.batch_size), nothing, config, run)
    assert {look.step: look.sparsity for look in looks}[8] == 0.0
    assert {look.step: look.sparsity for look in looks}[12] == 1.0
    # Adam's epsilon against lambda is the schedule: at equal size, half of the rate
    model, run = net(), a_run()
    looks = learn_mask(
        model, run.loader(DATA.train, order, config.batch_size), nothing, replace(config, sparsity=1e-8), run
    )
    shares = {look.step: look.sparsity for look in looks}
    assert shares[16] == 0.0
    assert shares[24] == 1.0


def test_a_subnetwork_that_knows_nothing_is_warned_of() -> None:
    trained = fit("erm", build("linear", DATA), DATA, train={"epochs": 30, "lr": 0.1}).model
    emptied = Learning(sparsity=1.0, prune_steps=20)  # the penalty is all that counts
    with pytest.warns(SpurlessWarning, match="the mask was learned from noise"):
        assert learn(deepcopy(trained), emptied, a_run())[-1].sparsity == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn(deepcopy(trained), replace(emptied, sparsity=0.0), a_run())
        learn(deepcopy(trained), replace(emptied, sparsity=0.0), a_run(), DATA.train.y == 1)  # each part of one label


@pytest.mark.parametrize("penalty", ["absolute", "expected"])
def test_the_other_penalties_do_what_they_are_for(penalty: Penalty) -> None:
    run, model = a_run(), net()
    order = weighted_order(torch.ones(len(DATA.train)), run.seeds, examples_per_snapshot(40, 32))
    config = Learning(penalty=penalty, sparsity=1e3, prune_lr=0.04)
    last = learn_mask(model, run.loader(DATA.train, order, config.batch_size), nothing, config, run)[-1].sparsity
    assert (last == 1.0) if penalty == "expected" else (last < 1.0)  # the one goes on, the other turns at 0


def test_what_is_told_is_true() -> None:
    mined, run, model = DATA.train.a != DATA.train.y, a_run(), net()
    looks = learn(model, Learning(), run, mined)
    assert [look.step for look in looks] == list(range(4, 41, 4))
    rows = [row for row in run.history if row["stage"] == "prune"]
    assert [row["sparsity"] for row in rows] == [look.sparsity for look in looks]
    assert "score" not in rows[0]
    assert rows[0]["loss"] > 0
    masks = torch.cat([mask.flatten() for mask in get_weight_masks(model).values()])
    assert looks[-1].sparsity == pytest.approx(float((~masks).double().mean()))  # the last one is kept
    for part, told in ((mined, looks[-1].mined), (~mined, looks[-1].others)):
        assert told == pytest.approx(evaluate(model, DATA.train.select(part)).average)
    pruned = copy_pruned(model)
    model = finish_pruning(model, None, looks, run, pruned)
    found = run.explanation
    assert isinstance(found, Subnetwork)
    assert found.sparsity == pytest.approx(looks[-1].sparsity)
    zeros = {name: float((p == 0).double().mean()) for name, p in model.named_parameters() if p.dim() > 1}
    assert found.layers == pytest.approx(zeros)
    assert found.pruned is pruned


def test_a_copy_of_the_pruned_model_stays_as_it_was_and_leaves_the_other_its_mask() -> None:
    model, run = net(), a_run()
    learn(model, Learning(), run)
    said, masks = logits(model, DATA.val), get_weight_masks(model)
    copy = copy_pruned(model)
    assert torch.equal(logits(copy, DATA.val), said)
    assert not is_pruned(copy)
    for name, keep in masks.items():
        assert not copy.get_parameter(name)[~keep].any()  # real zeros
    assert all(map(torch.equal, get_weight_masks(model).values(), masks.values()))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    assert torch.equal(logits(copy, DATA.val), said)


def test_without_mined_examples_there_is_no_accuracy_of_them() -> None:
    assert {look.mined for look in learn(net(), Learning(), a_run())} == {None}


def test_a_model_of_which_little_can_be_pruned_is_warned_of() -> None:
    data = planted(PlantedConfig(n_train=20, n_val=10, n_test=10))
    plain = Classifier(nn.Linear(2, 8), nn.Linear(8, 2))
    check_prunable_model(plain, data)
    words = Classifier(nn.Sequential(nn.Embedding(10, 8), nn.Flatten(), nn.Linear(16, 2)), nn.Linear(2, 2))
    # 80 in the table; 32 + 4 weights and 4 biases
    with pytest.warns(
        SpurlessWarning,
        match=r"Only linear and convolutional layers are pruned: they contain 30% of the weights of own model",
    ):
        check_prunable_model(words, data)


def test_no_criterion_decides_which_mask_is_kept() -> None:
    run = replace(a_run(), score=lambda _: 1 / 0)  # never called
    model, plain = net(), net()
    learn(model, Learning(), run)
    learn(plain, Learning(), a_run())
    assert all(map(torch.equal, get_weight_masks(model).values(), get_weight_masks(plain).values()))


@pytest.mark.parametrize("steps", [1, 9, 19, 20, 29])
def test_any_number_of_steps_has_its_looks(steps: int) -> None:
    looks = learn(net(), Learning(prune_steps=steps), a_run())
    assert looks[-1].step == steps
    assert len(looks) < 2 * SNAPSHOTS


class KilledError(Exception):
    """Stands for a kill."""


def test_a_killed_run_goes_on_to_the_same_mask_and_tells_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, kept = net(), DATA.train.a != DATA.train.y
    looks = learn(whole, Learning(), a_run(), kept)

    def kill(*said: object) -> None:
        if said[2] == 23:  # the step
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Run, "report_progress", kill)
        with pytest.raises(KilledError):
            learn(net(), Learning(), a_run(tmp_path), kept)
    model, run = net(), a_run(tmp_path)
    assert learn(model, Learning(), run, kept) == looks
    assert len(run.history) == SNAPSHOTS
    assert all(map(torch.equal, model.state_dict().values(), whole.state_dict().values()))


def test_a_reset_model_has_the_initial_weights_and_the_mask() -> None:
    model, run, untrained = net(), a_run(), build("mlp", DATA, seed=5, width=8)
    learn(model, Learning(), run)
    with pytest.raises(InputError, match=r"the initial weights are unknown.*untrained model, or use reset=False"):
        reset(model, run)
    run = replace(run, make_untrained=lambda: build("mlp", DATA, seed=5, width=8))
    again = reset(model, run)
    assert all(map(torch.equal, get_weight_masks(again).values(), get_weight_masks(model).values()))
    first = again.get_parameter("backbone.1.parametrizations.weight.original")
    assert torch.equal(first, untrained.get_parameter("backbone.1.weight"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prune_steps": 0}, "prune_steps.* must be at least 1"),
        ({"batch_size": 0}, "batch_size.* must be at least 1"),
        ({"prune_lr": 0.0}, "prune_lr.* must be above 0"),
        ({"tau": -1.0}, "tau.* must be above 0"),
        ({"sparsity": -1e-8}, "sparsity.* must not be negative"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Learning(**options)  # type: ignore[arg-type]
