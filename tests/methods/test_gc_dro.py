"""GC-DRO: weights by hand, Greedy DRO as a special case, and partitions that Group DRO cannot see through."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from spurless.core.errors import InputError
from spurless.core.seeds import Seeds
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.loader import shuffled_order
from spurless.data.split import Splits
from spurless.fitting import Fitted, fit
from spurless.methods.gc_dro import GCDRO, GCDROConfig, example_weights
from spurless.models import build
from spurless.train.checkpoint import Checkpoints
from spurless.train.run import Compute

TRAIN = {"epochs": 5, "lr": 0.1, "batch_size": 200, "weight_decay": 0.0, "schedule": "cosine"}
CPU = Compute("cpu")


def test_example_weights_by_hand() -> None:
    losses = torch.tensor([0.3, 5.0, 0.1, 4.0, 0.2, 3.0, 0.9])
    g = torch.tensor([0, 1, 0, 1, 0, 1, 0])
    found = example_weights(losses, g, 0.5, torch.zeros(2))
    # half of each group at 2: two of the four, and one and a half of the three
    torch.testing.assert_close(found, torch.tensor([2.0, 2.0, 0.0, 1.0, 0.0, 0.0, 2.0]))


def test_as_many_are_chosen_as_in_the_authors_code_and_the_mean_of_a_group_is_one() -> None:
    generator = torch.Generator().manual_seed(0)
    g = torch.cat([torch.full((n,), k) for k, n in enumerate((1000, 300, 7, 1))])
    weights = example_weights(torch.rand(len(g), generator=generator), g, 0.1, torch.full((4,), 0.1))
    top = weights[g == 0] > 9.99
    assert int(top.sum()) == 90  # int(0.9 * 1000 * 0.1 / (1 - 0.1 * 0.1))
    for k in range(4):
        torch.testing.assert_close(weights[g == k].mean(), torch.tensor(1.0))
    assert weights.min() == pytest.approx(0.1)


def test_the_floor_may_differ_by_group_as_in_the_authors_code_for_texts() -> None:
    g = torch.tensor([0] * 60 + [1] * 40)
    weights = example_weights(torch.arange(100.0), g, 0.25, torch.tensor([0.6, 0.4]))
    # int((100 - 60) * 60 * 0.25 / (100 - 60 * 0.25)) = 7 and int((100 - 40) * 40 * 0.25 / (100 - 40 * 0.25)) = 6
    assert [int((weights[g == k] > 3.99).sum()) for k in (0, 1)] == [7, 6]
    assert weights[0] == pytest.approx(0.6)
    assert weights[60] == pytest.approx(0.4)
    assert weights[59] == weights[99] == 4.0  # the largest losses


def test_the_whole_group_as_the_worst_case_weighs_alike() -> None:
    weights = example_weights(torch.rand(9), torch.tensor([0] * 5 + [1] * 4), 1.0, torch.tensor([0.1, 0.1]))
    torch.testing.assert_close(weights, torch.ones(9))


def trained(name: str, data: Splits, seed: int = 0, **options: Any) -> Fitted:
    settings = {"train": TRAIN, "compute": CPU, **options}
    return fit(name, build("linear", data, seed=seed), data, seed=seed, **settings)


def weights_of(fitted: Fitted) -> Tensor:
    return torch.cat([p.detach().flatten() for p in fitted.model.parameters()])


def worst_group(fitted: Fitted) -> float:
    value = fitted.record.metrics["worst_group"]
    assert value is not None
    return value


def in_one_domain(data: Splits) -> Splits:
    train, val = (
        replace(split, domain=torch.zeros_like(split.y), domains=("all",)) for split in (data.train, data.val)
    )
    return replace(data, train=train, val=val)


def by_hand(data: Splits, config: GCDROConfig, epochs: int, lr: float) -> Tensor:
    """GC-DRO written out: loops over groups and examples, two batches an epoch, plain gradient descent."""
    train, model = data.train, build("linear", data)
    x, g, n = data.train.x, train.g.tolist(), len(train)
    assert isinstance(x, Tensor)
    members = [[i for i in range(n) if g[i] == k] for k in range(4)]
    weight, running = [1.0] * n, [0.0] * n
    for epoch in range(epochs):
        average = [0.0] * 4
        for index in shuffled_order(n, Seeds(0).child("train"))(epoch).view(2, -1).tolist():
            losses = cross_entropy(model(x[index]), train.y[index], reduction="none")
            losses = losses * torch.tensor([weight[i] for i in index])
            for k in range(4):
                own = [float(loss.detach()) for i, loss in zip(index, losses, strict=True) if g[i] == k]
                average[k] += config.ema * (sum(own) / len(own) - average[k]) if own else 0.0
            left, group = config.alpha, [config.floor] * 4
            for k in sorted(range(4), key=lambda k: -average[k]):
                share = len(members[k]) / n
                group[k] = max(config.floor, min(left, share) / (config.alpha * share))
                left = max(0.0, left - share)
            loss = (losses * torch.tensor([group[g[i]] for i in index])).mean()
            slopes = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, slope in zip(model.parameters(), slopes, strict=True):
                    parameter.sub_(lr * slope)
        now = cross_entropy(model(x), train.y, reduction="none").tolist()
        running = [v if epoch == 0 else r + config.example_ema * (v - r) for r, v in zip(running, now, strict=True)]
        for own_members in members:
            floor = len(own_members) / n if config.example_floor is None else config.example_floor
            left = len(own_members) * (1 - floor) / (1 / config.beta - floor)
            for i in sorted(own_members, key=lambda i: -running[i]):
                weight[i] = floor + (1 / config.beta - floor) * min(1.0, left)
                left = max(0.0, left - 1)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("example_floor", [0.1, None])
def test_equals_the_algorithm_written_out(example_floor: float | None) -> None:
    data = planted(PlantedConfig(n_train=100, n_val=10, n_test=10, agreement=0.8))
    config = GCDROConfig(0.3, 0.4, ema=0.1, count_ema=0.0, example_ema=0.3, example_floor=example_floor)
    plain = {"epochs": 12, "lr": 0.3, "batch_size": 50, "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant"}
    ours = trained("gc-dro", data, train=plain, **asdict(config))
    torch.testing.assert_close(weights_of(ours), by_hand(data, config, 12, 0.3), rtol=1e-3, atol=1e-4)


def test_with_beta_one_it_is_greedy_dro() -> None:
    data = planted(PlantedConfig(n_train=400, n_val=50, n_test=50))
    ours, greedy = trained("gc-dro", data, beta=1.0), trained("greedy-dro", data)
    assert torch.equal(weights_of(ours), weights_of(greedy))
    assert not torch.equal(weights_of(trained("gc-dro", data, beta=0.5)), weights_of(greedy))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_raises_the_worst_group_with_clean_groups(seed: int) -> None:
    data = planted(PlantedConfig(n_train=4000, n_val=100, n_test=20000, seed=seed))
    longer = {**TRAIN, "epochs": 10}
    ours = trained("gc-dro", data, seed, train=longer, preset="planted")
    erm = trained("erm", data, seed, train=longer)
    assert worst_group(ours) > worst_group(erm) + 0.25  # 0.39 for ERM, and at most Phi(1) = 0.84


def test_serves_the_worst_group_where_the_partition_says_nothing() -> None:
    # one domain: Greedy DRO can do no more than ERM there, while the worst examples are still the conflicting ones
    errors = {"erm": 0.0, "greedy-dro": 0.0, "gc-dro": 0.0}
    for seed in range(5):
        data = planted(PlantedConfig(core=3.0, spurious=3.0, n_train=4000, n_val=100, n_test=20000, seed=seed))
        for name in errors:
            few = {**TRAIN, "epochs": 2, "schedule": "constant"}
            errors[name] += (1 - worst_group(trained(name, in_one_domain(data), seed, train=few))) / 5
    assert errors["greedy-dro"] == pytest.approx(errors["erm"], abs=1e-3)
    assert errors["gc-dro"] < errors["erm"] / 2  # 0.008 against 0.051


def test_selection_is_by_the_run_s_criterion_and_without_one_the_last_epoch_is_kept() -> None:
    data, steady = planted(PlantedConfig(n_train=400, n_val=200, n_test=50)), {**TRAIN, "schedule": "constant"}
    last = trained("gc-dro", data, train=steady)
    assert [row["epoch"] for row in last.record.history] == [1, 2, 3, 4, 5]
    assert not any("score" in row for row in last.record.history)  # the number of the epoch is no score
    best = trained("gc-dro", data, train=steady, select="val-worst-group")
    scores = [row["score"] for row in best.record.history]
    chosen = scores.index(max(scores)) + 1
    assert len(set(scores)) > 1
    assert chosen < 5
    assert torch.equal(weights_of(best), weights_of(trained("gc-dro", data, train={**steady, "epochs": chosen})))
    assert not torch.equal(weights_of(best), weights_of(last))


class KilledError(Exception):
    """Stands for a kill."""


def test_a_killed_run_goes_on_with_what_it_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoints, "is_due", lambda *_: True)  # keep every step
    data = planted(PlantedConfig(n_train=200, n_val=50, n_test=50))

    def run(folder: Path, kill_at: int = 0) -> Fitted:
        def kill(_stage: str, step: int, _total: int, _word: str) -> None:
            if step == kill_at:
                raise KilledError

        monkeypatch.setattr("spurless.train.run.time.monotonic", iter(range(1000)).__next__)  # tell every step
        settings = {"epochs": 4, "batch_size": 50, "lr": 0.1}
        return trained("gc-dro", data, train=settings, folder=folder, progress=kill, preset="planted")

    whole = run(tmp_path / "whole")
    with pytest.raises(KilledError):
        run(tmp_path / "cut", kill_at=10)  # in the third epoch, with weights of two looks
    again = run(tmp_path / "cut")
    assert torch.equal(weights_of(again), weights_of(whole))
    assert again.record.history == whole.record.history


def test_the_presets_are_those_of_the_authors_scripts() -> None:
    table = {
        name: (c.alpha, c.beta, c.ema, c.example_ema, c.example_floor)
        for name, c in GCDRO.presets.items()
        if name != "planted"
    }
    assert table == {
        "celeba": (0.2, 0.1, 0.1, 0.1, 0.1),
        "multinli": (0.5, 0.2, 0.5, 0.5, None),
        "multinli-clean": (0.2, 0.5, 0.5, 0.5, None),
        "fdcl18": (0.5, 0.25, 0.1, 0.5, None),
        "fdcl18-clean": (0.2, 0.5, 0.5, 0.5, None),
    }


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match=r"beta.* must be a fraction \(expected above 0 and at most 1, got 0\.0\)"):
        GCDROConfig(beta=0.0)
    with pytest.raises(InputError, match=r"example_floor.* must be a fraction"):
        GCDROConfig(example_floor=2.0)
