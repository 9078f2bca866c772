"""ERM with loss ratio: the weights of ERM, the ratio by hand, and a killed run that knows what it had seen."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from spurless.core.errors import DivergedError, InputError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data import load
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.loader import shuffled_order
from spurless.data.mined import find_conflicting
from spurless.data.split import Split, Splits
from spurless.fitting import Fitted, fit
from spurless.methods.erm_loss_ratio import LossRatios, _sample_groups
from spurless.metrics.loss_ratio import LossTrace
from spurless.metrics.utilisation import utilisation
from spurless.models import Classifier, build
from spurless.train.run import Compute

DATA = planted(PlantedConfig(n_train=103, n_val=50, n_test=50, agreement=0.9))
TRAIN = {"epochs": 3, "batch_size": 20, "lr": 0.5, "momentum": 0.9}


def fitted(method: str, model: Classifier | None = None, data: Splits = DATA, **train: object) -> Fitted:
    model = build("mlp", data, seed=1, width=8) if model is None else model
    return fit(method, model, data, seed=1, train={**TRAIN, **train}, compute=Compute("cpu"))


def ratios(found: Fitted) -> LossRatios:
    assert isinstance(found.explanation, LossRatios)
    return found.explanation


def test_the_weights_are_those_of_erm_to_the_bit() -> None:
    plain, watched = fitted("erm"), fitted("erm-loss-ratio")
    for theirs, ours in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(theirs, ours)
    assert [row["loss"] for row in plain.record.history] == [row["loss"] for row in watched.record.history]


def by_hand(lr: float) -> tuple[list[float], list[float], list[tuple[int, int]]]:
    """Train a linear net step by step, and return what should be noted of each: losses, and how many are fooled."""
    model = build("linear", DATA, seed=1)
    order = shuffled_order(103, Seeds(1).child("train"))
    optimiser = torch.optim.SGD(model.parameters(), lr)
    part, whole, counts = [], [], []
    x, y, a = DATA.train.x, DATA.train.y, DATA.train.a
    assert isinstance(x, Tensor)
    for epoch in range(2):
        for index in torch.split(order(epoch), 20):
            output = model(x[index])
            loss = cross_entropy(output, y[index], reduction="none")
            against = y[index] != a[index]
            part.append(float(loss.detach()[against].sum()))
            whole.append(float(loss.detach().sum()))
            counts.append((int(against.sum()), int((output.argmax(1)[against] == a[index][against]).sum())))
            optimiser.zero_grad()
            torch.autograd.backward(loss.mean())
            optimiser.step()
    return part, whole, counts


def test_every_step_is_written_down() -> None:
    found = fitted("erm-loss-ratio", build("linear", DATA, seed=1), epochs=2, lr=0.3, momentum=0.0, weight_decay=0.0)
    part, whole, counts = by_hand(0.3)
    explained = ratios(found)
    assert explained.steps_per_epoch == 6  # 103 examples in batches of 20
    torch.testing.assert_close(explained.trace.conflicting, torch.tensor(part, dtype=torch.double), rtol=1e-4, atol=0)
    torch.testing.assert_close(explained.trace.total, torch.tensor(whole, dtype=torch.double), rtol=1e-4, atol=0)
    assert list(zip(explained.conflicting.tolist(), explained.followed.tolist(), strict=True)) == counts
    expected = [sum(part[:6]) / sum(whole[:6]), sum(part[6:]) / sum(whole[6:])]
    assert explained.per_epoch.tolist() == pytest.approx(expected, rel=1e-4)
    assert [row["loss_ratio"] for row in found.record.history] == pytest.approx(expected, rel=1e-4)
    fooled = [sum(b for _, b in counts[at : at + 6]) / sum(n for n, _ in counts[at : at + 6]) for at in (0, 6)]
    assert [row["follows_shortcut"] for row in found.record.history] == pytest.approx(fooled)


def test_the_highest_ratio_over_steps_windows_and_epochs() -> None:
    part, whole = torch.zeros(300), torch.full((300,), 2.0)
    part[5] = 1.8  # one batch; half of that of its window
    part[100:200] = 0.4
    found = LossRatios(LossTrace(part, whole), torch.ones(300), torch.zeros(300), steps_per_epoch=150)
    assert found.numbers() == pytest.approx(
        {
            "max_loss_ratio": 0.9,
            "max_loss_ratio_over_10": 0.2,
            "max_loss_ratio_over_100": 0.2,
            "max_loss_ratio_over_an_epoch": (1.8 + 50 * 0.4) / 300,
        }
    )
    assert found.per_step[5] == pytest.approx(0.9)
    nothing = LossRatios(LossTrace(torch.zeros(3), torch.zeros(3)), torch.zeros(3), torch.zeros(3), 3)
    assert nothing.numbers() == {}
    assert nothing.between(0, 3) == {"loss_ratio": None, "follows_shortcut": None}


def test_after_every_epoch_it_is_written_who_uses_the_shortcut() -> None:
    found = fitted("erm-loss-ratio")
    rows = [{key: row[key] for key in row if "utilisation" in key} for row in found.record.history]
    assert tuple(rows) == ratios(found).utilisation
    assert [len(row) for row in rows] == [5] * 3
    index = _sample_groups(DATA.train, Seeds(1))
    assert len(index) == 103  # all there are: 2,000 would have room
    z = found.model.features(DATA.train.x[index]).detach().abs()  # type: ignore[index]  # a tensor
    last = utilisation(z, DATA.train.y[index], DATA.train.a[index]).numbers()
    assert rows[-1] == pytest.approx(last, abs=1e-6)  # of the weights that the epoch ended with
    assert rows[0] != rows[-1]


def test_the_sample_has_the_same_number_of_every_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spurless.methods.erm_loss_ratio.SAMPLE_SIZE", 40)
    index = _sample_groups(DATA.train, Seeds(1))
    counts = DATA.train.select(index).counts.tolist()
    assert counts == [min(10, count) for count in DATA.train.counts.tolist()]
    assert min(counts) < 10  # a group that is smaller than its room is there as a whole
    assert torch.equal(index, _sample_groups(DATA.train, Seeds(1)))
    assert not torch.equal(index, _sample_groups(DATA.train, Seeds(2)))


def test_where_nothing_conflicts_nothing_is_said_of_neurons() -> None:
    train = DATA.train.select(DATA.train.y == DATA.train.a)
    found = fitted("erm-loss-ratio", data=Splits(train, DATA.val, DATA.test))
    assert ratios(found).utilisation == ()
    assert [row["loss_ratio"] for row in found.record.history] == [0.0] * 3


def test_at_a_high_rate_the_shortcut_is_given_up() -> None:
    # two patterns, one of the label and one of the shortcut; the larger is the shortcut's, and it is learnt first
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 2
    a = torch.where(torch.rand(400, generator=generator) < 0.95, y, 1 - y)
    x = torch.randn(400, 2, generator=generator) * 0.1 + torch.stack([2 * y - 1, 4 * (2 * a - 1)], dim=1)
    split = Split(x, y, a, Groups(("no", "yes"), ("off", "on")))
    data = Splits(split, split, split)
    train = {"momentum": 0.0, "weight_decay": 0.0, "epochs": 60}
    low, high = (
        ratios(fitted("erm-loss-ratio", build("mlp", data, seed=0, width=32), data, lr=lr, **train)).utilisation
        for lr in (0.005, 0.5)
    )
    assert low[0]["spurious_utilisation"] > low[0]["core_utilisation"]
    assert high[-1]["spurious_utilisation"] < low[-1]["spurious_utilisation"]
    assert high[-1]["core_utilisation"] > low[-1]["core_utilisation"]


def test_a_run_that_stops_early_has_written_as_many_steps_as_it_made() -> None:
    found = fitted("erm-loss-ratio", steps=8)
    assert len(ratios(found).per_step) == 8
    assert [row["step"] for row in found.record.history] == [6, 8]
    stopped = fitted("erm-loss-ratio", stop_accuracy=0.01)  # after the first epoch of three
    assert len(ratios(stopped).per_step) == 6
    last = ratios(found).between(6, 8)
    assert found.record.history[1]["loss_ratio"] == last["loss_ratio"]


def test_a_killed_run_goes_on_with_what_it_had_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fitted("erm-loss-ratio")
    args: dict[str, object] = {"seed": 1, "train": TRAIN, "compute": Compute("cpu"), "folder": tmp_path}
    model = build("mlp", DATA, seed=1, width=8)
    monkeypatch.setattr("spurless.train.checkpoint.Checkpoints.is_due", lambda *_: True)

    def kill(_: object, stage: str, step: int, *_rest: object) -> None:
        if (stage, step) == ("train", 9):
            raise KeyboardInterrupt

    monkeypatch.setattr("spurless.train.run.Run.report_progress", kill)
    with pytest.raises(KeyboardInterrupt):
        fit("erm-loss-ratio", model, DATA, **args)  # type: ignore[arg-type]
    monkeypatch.undo()
    again = fit("erm-loss-ratio", model, DATA, **args)  # type: ignore[arg-type]
    assert torch.equal(ratios(again).trace.total, ratios(whole).trace.total)
    assert again.record.history == whole.record.history
    for ours, theirs in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_confident_mistakes_on_conflicting_examples_come_to_own_the_loss() -> None:
    # proposition 1 at work: where the rate is high, logits grow, and the few that conflict have most of the loss
    data = load("parity", n_train=1000, n_val=50, n_test=50, noise=3)
    low, high = (
        ratios(fitted("erm-loss-ratio", build("mlp", data, seed=0), data, lr=lr, momentum=0.0, epochs=5))
        for lr in (0.01, 0.5)
    )
    assert high.trace.maximum(50) > low.trace.maximum(50) + 0.3


def test_data_without_pairs_are_refused_in_one_sentence() -> None:
    groups = Groups(("cat", "dog"), ("day", "night", "dusk"))
    split = Split(torch.randn(6, 2), torch.tensor([0, 1] * 3), torch.tensor([0, 1, 2] * 2), groups)
    message = r"labels and attributes do not correspond.*expected as many attributes as labels, got 2 labels and 3"
    with pytest.raises(InputError, match=message):
        find_conflicting(split, "Use erm.")
    with pytest.raises(InputError, match=r"do not correspond"):
        fitted("erm-loss-ratio", data=Splits(split, split, split))


def test_a_diverged_run_says_so() -> None:
    with pytest.raises(DivergedError):
        fitted("erm-loss-ratio", lr=1e30)
