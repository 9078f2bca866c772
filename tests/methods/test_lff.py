"""LfF: weights by hand, a memory that survives a kill, and a debiased network that is the one judged."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.split import Batch, Split, Splits
from spurless.fitting import Fitted, fit
from spurless.methods.lff import LfFConfig, LossHistory, Pair
from spurless.models import build
from spurless.train.checkpoint import Checkpoints
from spurless.train.config import TrainConfig
from spurless.train.evaluate import evaluate, logits
from spurless.train.losses import generalised_cross_entropy
from spurless.train.run import Compute, make_run

Y = torch.tensor([0, 0, 1, 1])
DATA = planted(PlantedConfig(core=2.0, spurious=4.0, n_train=2000, n_val=500, n_test=4000))


def memory(decay: float = 0.7) -> LossHistory:
    split = Split(torch.zeros(4, 2), Y, Y, Groups(("a", "b"), ("c", "d")))
    return LossHistory.of(split, decay, make_run(Compute("cpu"), 0, TrainConfig()))


def weigh(failures: LossHistory, index: list[int], debiased: list[float], biased: list[float]) -> Tensor:
    batch = Batch(torch.zeros(len(index), 2), Y[index], Y[index], torch.tensor(index))
    return failures.update(batch, torch.tensor(debiased), torch.tensor(biased))


def test_the_weights_of_four_examples_by_hand() -> None:
    weights = weigh(memory(), [0, 1, 2, 3], [1.0, 2.0, 1.0, 4.0], [3.0, 1.0, 2.0, 2.0])
    # shares of the class: debiased 1/2, 1, 1/4, 1 and biased 1, 1/3, 1, 1
    torch.testing.assert_close(weights, torch.tensor([2 / 3, 1 / 4, 4 / 5, 1 / 2]))


def test_the_largest_loss_of_a_class_is_sought_in_the_whole_split() -> None:
    failures = memory()
    weigh(failures, [0, 1, 2, 3], [1.0, 2.0, 1.0, 4.0], [3.0, 1.0, 2.0, 2.0])
    torch.testing.assert_close(weigh(failures, [0], [1.0], [3.0]), torch.tensor([2 / 3]))  # as beside the others


def test_the_first_loss_is_taken_as_it_is_and_later_ones_by_three_tenths() -> None:
    failures = memory()
    weigh(failures, [1, 2], [2.0, 1.0], [1.0, 5.0])
    assert failures.debiased.tolist() == [0.0, 2.0, 1.0, 0.0]
    assert failures.seen.tolist() == [0.0, 1.0, 1.0, 0.0]
    weigh(failures, [1, 0], [12.0, 3.0], [11.0, 7.0])
    torch.testing.assert_close(failures.debiased, torch.tensor([3.0, 5.0, 1.0, 0.0]))  # 0.7 * 2 + 0.3 * 12
    torch.testing.assert_close(failures.biased, torch.tensor([7.0, 4.0, 5.0, 0.0]))  # 0.7 * 1 + 0.3 * 11


def test_a_class_without_loss_weighs_nothing_and_is_a_number() -> None:
    assert weigh(memory(), [0, 1], [0.0, 0.0], [0.0, 0.0]).tolist() == [0.0, 0.0]


def test_no_gradient_flows_through_the_weights() -> None:
    losses = torch.ones(2, requires_grad=True)
    batch = Batch(torch.zeros(2, 2), Y[:2], Y[:2], torch.arange(2))
    assert not memory().update(batch, losses, losses).requires_grad


def test_the_first_loss_in_closed_form() -> None:
    # both networks start alike, so that every weight is 1/2
    model = build("linear", DATA, seed=1)
    x, y = DATA.train.x, DATA.train.y
    assert isinstance(x, Tensor)
    said = model(x.float()).detach()
    expected = torch.nn.functional.cross_entropy(said, y) / 2 + generalised_cross_entropy(said, y, 0.7).mean()
    fitted = fit("lff", model, DATA, train={"steps": 1, "batch_size": 2000}, compute=Compute("cpu"))
    assert fitted.record.history[0]["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_the_debiased_network_is_judged_and_returned() -> None:
    one, other = build("linear", DATA, seed=0), build("linear", DATA, seed=1)
    assert torch.equal(logits(Pair(one, other), DATA.val), logits(one, DATA.val))
    fitted = fit(
        "lff", one, DATA, train={"epochs": 3, "lr": 0.05}, select="val-average", seed=1, compute=Compute("cpu")
    )
    best = max(row["score"] for row in fitted.record.history)
    assert evaluate(fitted.model, DATA.val).average == best


def test_raises_the_accuracy_where_the_shortcut_misleads_without_any_attribute() -> None:
    settings = {"epochs": 8, "lr": 0.02, "batch_size": 100, "optimiser": "adam", "weight_decay": 0.0}
    gains = []
    for seed in range(3):
        erm, lff = (
            fit(name, build("linear", DATA, seed=seed), DATA, seed=seed, train=settings, compute=Compute("cpu"))
            for name in ("erm", "lff")
        )
        gains.append(worst(lff) - worst(erm))
        assert not any(lff.record.supervision.values())
    assert sorted(gains)[1] > 0.05


def worst(fitted: Fitted) -> float:
    value = fitted.record.metrics["worst_group"]
    assert value is not None
    return value


class KilledError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("name", ["lff", "disent"])
def test_a_killed_run_goes_on_with_what_it_remembered(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checkpoints, "is_due", lambda *_: True)  # keep every step
    few = Splits(DATA.train.select(torch.arange(200)), DATA.val, DATA.test)
    options: dict[str, Any] = {"swap_after": 8} if name == "disent" else {}

    def trained(folder: Path, kill_at: int = 0) -> Fitted:
        def kill(_stage: str, step: int, _total: int, _word: str) -> None:
            if step == kill_at:
                raise KilledError

        settings = {"epochs": 3, "batch_size": 50}
        monkeypatch.setattr("spurless.train.run.time.monotonic", iter(range(1000)).__next__)  # tell every step
        return fit(
            name,
            build("linear", few),
            few,
            train=settings,
            compute=Compute("cpu"),
            folder=folder,
            progress=kill,
            **options,
        )

    whole = trained(tmp_path / "whole")
    with pytest.raises(KilledError):
        trained(tmp_path / "cut", kill_at=6)
    again = trained(tmp_path / "cut")
    for ours, theirs in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match=r"q.* must be a fraction \(expected above 0 and at most 1"):
        LfFConfig(q=0.0)
    with pytest.raises(InputError, match=r"decay.* must be a fraction"):
        LfFConfig(decay=1.0)
