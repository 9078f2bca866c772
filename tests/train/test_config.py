"""Schedules against their formulas and against torch's own."""

import math
from typing import Any, get_args

import pytest
import torch

from spurless.core.errors import InputError
from spurless.train.config import Schedule, TrainConfig, learning_rate


def rates(config: TrainConfig, total: int, per_epoch: int = 10) -> list[float]:
    return [learning_rate(config, step, total, per_epoch) for step in range(total)]


def test_constant_stays() -> None:
    assert rates(TrainConfig(lr=0.3), 5) == [0.3] * 5


def test_step_decays_every_so_many_epochs() -> None:
    config = TrainConfig(lr=1.0, schedule="step", decay_epochs=2, decay_factor=0.1)
    got = rates(config, 50, per_epoch=10)
    assert got[0] == got[19] == 1.0
    assert got[20] == got[39] == pytest.approx(0.1)
    assert got[40] == pytest.approx(0.01)


def test_step_decays_after_the_steps_named_and_then_not_by_epochs() -> None:
    config = TrainConfig(lr=1.0, schedule="step", decay_at=(3, 5), decay_epochs=1)
    assert rates(config, 7, per_epoch=2) == pytest.approx([1.0, 1.0, 1.0, 0.1, 0.1, 0.01, 0.01])


def test_warm_up_stable_decay_by_hand() -> None:
    config = TrainConfig(lr=1.0, schedule="warmup-stable-decay", warmup_steps=2, decay_fraction=0.4)
    # 1/2, 2/2, constant, then k/4 over the last 4 of 10
    assert rates(config, 10) == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]


def test_warm_up_stable_decay_that_falls_all_the_way_is_linear() -> None:
    for warmup in (0, 4):
        every, linear = (
            rates(TrainConfig(lr=0.3, schedule=name, warmup_steps=warmup, decay_fraction=1.0), 13)
            for name in ("warmup-stable-decay", "linear")
        )
        assert every == pytest.approx(linear)


def test_a_warm_up_that_reaches_into_the_decay_comes_first() -> None:
    config = TrainConfig(lr=1.0, schedule="warmup-stable-decay", warmup_steps=4, decay_fraction=0.5)
    assert rates(config, 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 0.5]


def test_linear_warm_up_then_linear_decay_by_hand() -> None:
    config = TrainConfig(lr=1.0, schedule="linear", warmup_steps=4)
    # 1/4, 2/4, 3/4, 4/4, then 1 - k/4 for k = 0..3
    assert rates(config, 8) == [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25]


def test_cosine_equals_torch() -> None:
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=30)
    expected = []
    for _ in range(30):
        expected.append(theirs.get_last_lr()[0])
        optimiser.step()
        theirs.step()
    assert rates(TrainConfig(lr=0.5, schedule="cosine"), 30) == pytest.approx(expected, abs=1e-12)


def test_one_cycle_equals_torch() -> None:
    # 101 steps put torch's peak (0.3 * 101 - 1 = 29.3 of 100) near ours (30 of 100); torch counts steps its own way
    total = 1001
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=0.5, total_steps=total, cycle_momentum=False)
    expected = []
    for _ in range(total):
        expected.append(theirs.get_last_lr()[0])
        optimiser.step()
        if len(expected) < total:
            theirs.step()
    assert rates(TrainConfig(lr=0.5, schedule="one-cycle"), total) == pytest.approx(expected, abs=3e-3)


@pytest.mark.parametrize("schedule", get_args(Schedule))
def test_no_rate_is_negative_or_over_the_peak(schedule: Schedule) -> None:
    for total in (1, 2, 7, 100):
        got = rates(TrainConfig(lr=0.2, schedule=schedule, warmup_steps=3), total)
        assert all(0 <= rate <= 0.2 + 1e-12 and math.isfinite(rate) for rate in got)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"epochs": 0}, "epochs.* must be at least 1"),
        ({"steps": 0}, "steps.* must be at least 1"),
        ({"lr": -1.0}, "lr.* must be above 0"),
        ({"lr": math.nan}, "lr.* must be a finite number"),
        ({"clip": 0.0}, "clip.* must be above 0"),
        ({"clip": math.nan}, "clip.* must be a finite number"),
        ({"momentum": 1.0}, "momentum.* must be a fraction"),
        ({"beta2": -0.1}, "beta2.* must be a fraction"),
        ({"weight_decay": -1.0}, "weight_decay.* must not be negative"),
        ({"warmup_steps": -4}, "warmup_steps.* must not be negative"),
        ({"l1": -1e-3}, "l1.* must not be negative"),
        ({"l1": math.inf}, "l1.* must be a finite number"),
        ({"asam": -0.5}, "asam.* must not be negative"),
        ({"decay_fraction": 0.0}, "decay_fraction.* must be a fraction"),
        ({"decay_fraction": 20.0}, "decay_fraction.* must be a fraction"),
        ({"decay_at": (1000, 0)}, r"decay_at.* must be at least 1 \(got 0\)"),
        ({"stop_loss": math.nan}, "stop_loss.* must be a finite number"),
        ({"stop_accuracy": 99.0}, "stop_accuracy.* must be a fraction"),
        ({"batch_size": 0}, "batch_size.* must be at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        TrainConfig(**settings)


@pytest.mark.parametrize("values", [{"lr": 1e308}, {"weight_decay": 1e39}, {"steps": 10**400}, {"clip": "1"}])
def test_numbers_that_weights_cannot_store_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(values))):
        TrainConfig(**values)
