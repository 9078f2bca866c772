"""Group DRO against hand-computed steps and against what the theory promises."""

import math
from dataclasses import replace

import pytest
import torch

from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.fitting import fit
from spurless.methods.group_dro import GroupDRO, GroupDROConfig, group_means, update_weights
from spurless.models import build
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, make_run

CPU = Compute("cpu")


def test_group_means_by_hand() -> None:
    losses, g = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 2])
    assert group_means(losses, g, 3).tolist() == [2.0, 0.0, 5.0]  # group 1 is absent


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_losses_may_be_of_another_precision(kind: torch.dtype) -> None:
    losses, g = torch.tensor([1.0, 3.0, 5.0], dtype=kind), torch.tensor([0, 0, 2])
    means = group_means(losses, g, 3)
    assert (means.tolist(), means.dtype) == ([2.0, 0.0, 5.0], torch.float32)


def test_one_step_by_hand() -> None:
    q = update_weights(torch.tensor([0.5, 0.5]), torch.tensor([math.log(3.0), 0.0]), step_size=1.0)
    torch.testing.assert_close(q, torch.tensor([0.75, 0.25]))  # 0.5 * 3 : 0.5 * 1


def test_steps_compose_to_the_closed_form() -> None:
    # q_T is proportional to q_0 * exp(eta * sum_t losses_t), whatever the order of the steps
    losses = torch.rand(50, 4, generator=torch.Generator().manual_seed(0))
    q = torch.full((4,), 0.25)
    for row in losses:
        q = update_weights(q, row, step_size=0.1)
    torch.testing.assert_close(q, torch.softmax(0.1 * losses.sum(dim=0), dim=0))


def test_zero_step_leaves_the_weights_and_a_huge_step_picks_the_worst() -> None:
    losses = torch.tensor([0.2, 0.9, 0.4])
    torch.testing.assert_close(update_weights(torch.ones(3) / 3, losses, 0.0), torch.ones(3) / 3)
    torch.testing.assert_close(update_weights(torch.ones(3) / 3, losses, 1e4), torch.tensor([0.0, 1.0, 0.0]))


def test_narrows_the_gap_that_erm_leaves_on_planted_data_to_the_minimax_of_the_formula() -> None:
    data = planted(PlantedConfig(n_train=20000, n_test=20000))
    train = {"epochs": 10, "lr": 0.1, "batch_size": 200, "weight_decay": 0.0, "schedule": "cosine"}
    worst = {}
    for name, preset in (("erm", "plain"), ("group-dro", "planted")):
        fitted = fit(name, build("linear", data), data, preset=preset, train=train, compute=Compute("cpu"))
        worst[name] = fitted.record.metrics["worst_group"]
    assert worst["erm"] == pytest.approx(0.393, abs=0.025)
    assert worst["group-dro"] == pytest.approx(0.841, abs=0.025)  # Phi(1) in every group


def test_the_adjustment_favours_the_small_groups() -> None:
    # with a step of this size the weights follow C / sqrt(n_g) alone, so the two small groups take all of it
    data = planted(PlantedConfig(n_train=2000, n_val=100, n_test=2000))
    train = {"epochs": 3, "lr": 0.1, "batch_size": 200}
    plain, adjusted = (
        fit("group-dro", build("linear", data), data, train=train, compute=Compute("cpu"), step_size=1.0, adjustment=c)
        for c in (0.0, 1e3)
    )
    assert plain.record.metrics["conflicting"] < 0.95 < adjusted.record.metrics["conflicting"]  # type: ignore[operator]


def test_a_group_without_examples_takes_no_weight_from_the_others() -> None:
    data = planted(PlantedConfig(n_train=2000, n_val=100, n_test=2000))
    three = replace(data, train=data.train.select((data.train.g != 1).nonzero().flatten()))
    train = {"epochs": 5, "lr": 0.1, "batch_size": 200}
    for c in (0.0, 5.0):
        fitted = fit("group-dro", build("linear", data), three, train=train, compute=CPU, step_size=0.1, adjustment=c)
        assert fitted.record.history[-1]["loss"] > 0.1  # it was 1e-45 with c = 5: all weight on a loss of 0
    q = GroupDRO(GroupDROConfig()).job(build("linear", data), three, make_run(CPU, 0, TrainConfig())).stage.memory["q"]
    assert q.tolist() == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])


def test_the_presets_are_those_of_the_scripts() -> None:
    steps = {name: config.step_size for name, config in GroupDRO.presets.items()}
    assert steps == {"waterbirds": 0.01, "celeba": 0.01, "multinli": 0.1, "planted": 0.1}
