"""Pruning loop: one ranking by hand, what is pruned stays pruned, schedules, the kept epoch, and a kill."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.core.seeds import Seeds
from spurless.data.datasets.gaussians import GaussiansConfig, gaussians
from spurless.data.split import Splits
from spurless.fitting import Fitted, fit
from spurless.methods._prune_loop import MAX_ROWS, Pruned, PruningConfig, lowest, prune_and_train
from spurless.models import build
from spurless.models.classifier import Classifier
from spurless.models.pruning.masks import is_pruned, named_weight_layers, prune, sparsity
from spurless.train.checkpoint import Checkpoints
from spurless.train.config import TrainConfig
from spurless.train.evaluate import evaluate
from spurless.train.run import Compute, Run, make_run

DATA = gaussians(GaussiansConfig(per_class=12, mislabelled=1, val_per_class=8, test_per_class=8))
TRAIN = TrainConfig(batch_size=65, optimiser="adam", lr=0.01, weight_decay=0.0)
CPU = Compute("cpu")


def a_run(**changes: Any) -> Run:
    return make_run(CPU, 0, replace(TRAIN, **changes))


def a_net(width: int = 6) -> Classifier:
    return build("mlp", DATA, depth=3, width=width, activation="tanh", bias=True)


def by_size(model: Classifier, _: int) -> Mapping[str, Tensor]:
    return {name: layer.weight.detach().abs() for name, layer in named_weight_layers(model)}


def walked(config: PruningConfig, model: Classifier | None = None, run: Run | None = None) -> tuple[Classifier, Pruned]:
    run = run or a_run()
    model = prune_and_train(model or a_net(), DATA, run, config, by_size)
    assert isinstance(run.explanation, Pruned)
    return model, run.explanation


def test_one_ranking_over_two_layers_by_hand() -> None:
    scores = {"a": torch.tensor([[5.0, 1.0], [4.0, 3.0]]), "b": torch.tensor([[2.0, 0.5, 6.0]])}
    alive = {"a": torch.ones(2, 2, dtype=torch.bool), "b": torch.tensor([[True, False, True]])}
    found = lowest(scores, alive, 3, floor=0.0)  # 0.5 is pruned already; then 1, 2, 3
    assert {name: index.tolist() for name, index in found.items()} == {"a": [1, 3], "b": [0]}
    assert lowest(scores, alive, 0, floor=0.0) == {}
    everything = lowest(scores, alive, 99, floor=0.0)
    assert sum(map(len, everything.values())) == 6


def test_infinite_and_missing_scores_are_never_pruned() -> None:
    alive = {"a": torch.ones(3, dtype=torch.bool), "b": torch.ones(2, dtype=torch.bool)}
    found = lowest({"a": torch.tensor([math.inf, 2.0, 1.0])}, alive, 5, floor=0.0)
    assert {name: index.tolist() for name, index in found.items()} == {"a": [2, 1]}


def test_the_floor_keeps_the_highest_of_every_layer() -> None:
    scores = {"a": torch.tensor([1.0, 2.0, 3.0, 4.0]), "b": torch.tensor([50.0, 60.0])}
    alive = {"a": torch.tensor([True, True, True, True]), "b": torch.tensor([True, True])}
    found = lowest(scores, alive, 4, floor=0.5)  # two of a and one of b must stay
    assert {name: index.tolist() for name, index in found.items()} == {"a": [0, 1], "b": [0]}
    pruned = {"a": torch.tensor([False, False, True, True]), "b": torch.tensor([False, True])}
    assert lowest(scores, pruned, 4, floor=0.5) == {}
    hundred = lowest({"a": torch.arange(100.0)}, {"a": torch.ones(100, dtype=torch.bool)}, 100, floor=0.07)
    assert len(hundred["a"]) == 93  # 0.07 * 100 is a little more than 7


def test_the_smallest_go_first_and_stay_pruned_while_the_rest_is_trained() -> None:
    model = a_net()
    begun = {name: layer.weight.detach().clone() for name, layer in named_weight_layers(model)}
    sizes = torch.cat([w.abs().flatten() for w in begun.values()])
    limit = sizes.sort().values[2]
    config = PruningConfig(candidates=3, probability=1.0, epochs=20, epochs_between=20, keep="last")
    model, found = walked(config, model)
    for name, layer in named_weight_layers(model):
        assert torch.equal(layer.weight == 0, begun[name].abs() <= limit)  # pruned once, at the start
        assert not torch.equal(layer.weight, begun[name])
    assert found.curve == pytest.approx([3 / len(sizes)] * 20)
    assert found.sparsity == sparsity(model) == pytest.approx(3 / len(sizes))
    assert not is_pruned(model)  # plain layers, with zeros in them


def test_every_pruning_takes_new_weights() -> None:
    _, found = walked(PruningConfig(candidates=2, probability=1.0, epochs=5, keep="last"))
    total = 2 * 6 + 6 * 6 + 6 * 5
    assert found.curve == pytest.approx([2 * k / total for k in range(1, 6)])
    assert sum(found.layers.values()) > 0


def test_an_epoch_of_several_batches_has_one_pruning() -> None:
    _, found = walked(PruningConfig(candidates=2, probability=1.0, epochs=3, keep="last"), run=a_run(batch_size=20))
    assert found.curve == pytest.approx([2 / 78, 4 / 78, 6 / 78])
    assert found.sparsity == pytest.approx(6 / 78)


def test_candidates_are_pruned_with_the_probability() -> None:
    total, count = 2 * 40 + 40 * 40 + 40 * 5, 900
    one = PruningConfig(candidates=count, probability=0.3, epochs=1, keep="last")
    _, found = walked(one, a_net(40))
    n = round(found.sparsity * total)
    assert abs(n - 0.3 * count) < 4 * (count * 0.3 * 0.7) ** 0.5
    _, none = walked(replace(one, probability=0.0), a_net(40))
    assert none.curve == (0.0,)


def test_the_paper_prunes_one_weight_an_epoch_on_average() -> None:
    _, found = walked(PruningConfig(epochs=60, keep="last"))
    total = 2 * 6 + 6 * 6 + 6 * 5
    assert abs(round(found.sparsity * total) - 60) < 4 * (120 * 0.25) ** 0.5


def test_what_may_regrow_does() -> None:
    config = PruningConfig(candidates=30, probability=1.0, epochs=4, epochs_between=2, regrow=True, keep="last")
    model, found = walked(config)
    total = 2 * 6 + 6 * 6 + 6 * 5
    assert found.curve[0] == pytest.approx(30 / total)
    assert found.curve[1] < 0.1  # a step later nearly all have moved; a dead unit has no gradient
    assert found.curve[2] == pytest.approx(30 / total)
    assert found.sparsity == sparsity(model) < 0.1


def test_regrowing_does_not_lift_a_mask_that_the_model_came_with() -> None:
    model = a_net()
    keep = torch.ones_like(model.head.weight, dtype=torch.bool)  # type: ignore[arg-type]
    keep[0] = False
    prune(model, {"head.weight": keep})
    config = PruningConfig(candidates=5, probability=1.0, epochs=2, regrow=True, keep="last")
    model, _ = walked(config, model)
    weight = model.get_parameter("head.parametrizations.weight.original")  # the mask is the user's, and stays
    assert bool((model.head.weight[0] == 0).all())  # type: ignore[index]
    assert bool((weight[0] != 0).all())


def test_all_pruned_is_an_end_and_no_error() -> None:
    model, found = walked(PruningConfig(candidates=50, probability=1.0, epochs=4, keep="last"))
    assert found.curve == pytest.approx([50 / 78, 1.0, 1.0, 1.0])
    assert sparsity(model) == 1.0


@pytest.mark.parametrize(
    ("schedule", "expected"), [("linear", [0.2, 0.4, 0.6]), ("cubic", [0.6 * 19 / 27, 0.6 * 26 / 27, 0.6])]
)
def test_the_target_is_reached_by_its_schedule(schedule: Any, expected: list[float]) -> None:
    config = PruningConfig(
        target_sparsity=0.6, schedule=schedule, probability=1.0, epochs=8, start_epoch=2, epochs_between=2, keep="last"
    )
    _, found = walked(config, a_net(20))
    steps = [0.0, 0.0, *(share for share in expected for _ in range(2))]
    assert found.curve == pytest.approx(steps, abs=2 / 540)


def test_a_target_is_met_on_average_where_candidates_may_be_spared() -> None:
    config = PruningConfig(target_sparsity=0.5, probability=0.5, epochs=6, keep="last")
    _, found = walked(config, a_net(30))
    assert found.curve[0] == pytest.approx(0.5 * 91 / 216, abs=0.05)  # twice as many candidates as are to fall
    assert found.sparsity == pytest.approx(0.5, abs=0.05)


def test_the_floor_holds_in_every_layer_whatever_the_target() -> None:
    config = PruningConfig(target_sparsity=0.9, probability=1.0, epochs=3, floor=0.3, keep="last")
    _, found = walked(config)
    assert max(found.layers.values()) <= 0.7
    assert found.sparsity == pytest.approx(0.7, abs=0.03)


def test_the_optimiser_goes_on_with_its_moments() -> None:
    # with probability 0 the loop is plain training: one stage of as many epochs
    from spurless.data.loader import shuffled_order
    from spurless.methods.erm import mean_loss
    from spurless.train.loop import minimise
    from spurless.train.step import Stage

    ours, _ = walked(PruningConfig(probability=0.0, epochs=15, keep="last"))
    plain, run = a_net(), a_run(epochs=15)
    loader = run.loader(DATA.train, shuffled_order(len(DATA.train), run.seeds.child("prune")))
    minimise(plain, loader, mean_loss, run, Stage("prune"))
    for name, value in plain.state_dict().items():
        assert torch.allclose(ours.state_dict()[name], value, atol=1e-6)


def test_the_settings_are_the_runs_with_a_steady_rate() -> None:
    first, _ = walked(PruningConfig(epochs=3, keep="last"), run=a_run(schedule="cosine", stop_loss=99.0))
    same, _ = walked(PruningConfig(epochs=3, keep="last"))
    slow, _ = walked(PruningConfig(epochs=3, keep="last", lr=1e-6))
    assert torch.equal(first.head.weight, same.head.weight)  # type: ignore[arg-type]
    assert torch.allclose(slow.head.bias, a_net().head.bias, atol=1e-5)  # type: ignore[arg-type]


def test_where_it_is_the_whole_training_it_follows_the_users_schedule() -> None:
    def head(**options: Any) -> torch.Tensor:
        model, _ = walked(PruningConfig(epochs=3, keep="last", overfitted=False), run=a_run(**options))
        return cast(torch.Tensor, model.head.weight)

    plain = head()
    assert torch.equal(plain, head(stop_loss=99.0))  # the last pruning is to come
    for options in ({"schedule": "cosine"}, {"l1": 0.1}, {"asam": 0.5}):
        assert not torch.equal(plain, head(**options)), options


def test_the_epoch_that_validation_likes_best_is_kept_with_its_sparsity() -> None:
    config = PruningConfig(candidates=2, probability=1.0, epochs=39)  # to the last weight
    model, found = walked(config, run=a_run(lr=0.05))
    best = max(found.scores)
    assert found.epoch == 1 + found.scores.index(best) < 39
    assert found.sparsity == pytest.approx(found.curve[found.epoch - 1]) == sparsity(model)
    assert evaluate(model, DATA.val).average == best > found.scores[-1]
    _, last = walked(replace(config, keep="last"), run=a_run(lr=0.05))
    assert last.epoch == 39
    assert last.scores == ()
    assert last.sparsity == 1.0


def test_a_criterion_that_the_user_names_takes_the_place_of_both() -> None:
    for keep in ("validated", "last"):
        run = replace(a_run(), score=lambda model: -abs(sparsity(model) - 10 / 78))
        _, found = walked(PruningConfig(candidates=2, probability=1.0, epochs=9, keep=keep), run=run)
        assert found.epoch == 5


def test_validation_labels_are_seen_only_where_they_are_declared() -> None:
    def fitted(**options: Any) -> Fitted:
        settings = {"epochs": 30, "batch_size": 65, "optimiser": "adam"}
        return fit("magnitude-prune", a_net(), DATA, train=settings, compute=CPU, epochs=3, **options)

    assert fitted().record.supervision["val_labels"]
    assert not fitted(keep="last").record.supervision["val_labels"]
    moved = Splits(DATA.train, replace(DATA.val, y=DATA.val.y.flip(0)), DATA.test)
    blind = prune_and_train(a_net(), moved, a_run(), PruningConfig(epochs=3, keep="last"), by_size)
    seeing = prune_and_train(a_net(), DATA, a_run(), PruningConfig(epochs=3, keep="last"), by_size)
    assert torch.equal(blind.head.weight, seeing.head.weight)  # type: ignore[arg-type]


def test_a_model_that_is_not_overfitted_is_trained_as_it_was_given() -> None:
    settings = {"epochs": 30, "batch_size": 65, "optimiser": "adam"}
    one = fit("random-prune", a_net(), DATA, train=settings, compute=CPU, epochs=30, overfitted=False)
    assert one.start is None
    assert not any(row["stage"] == "erm" for row in one.record.history)
    other = fit("random-prune", a_net(), DATA, train=settings, compute=CPU, epochs=3)
    assert other.start is not None


def test_the_record_has_a_few_rows_and_the_explanation_all_of_them() -> None:
    run = a_run()
    _, found = walked(PruningConfig(epochs=250, candidates=1, probability=0.1), run=run)
    rows = [row for row in run.history if row["stage"] == "prune"]
    assert len(found.curve) == len(found.scores) == len(found.train_accuracy) == 250
    assert len(rows) <= 1.3 * MAX_ROWS
    assert found.epoch in [row["epoch"] for row in rows]
    for row in rows:
        assert row["sparsity"] == found.curve[row["epoch"] - 1]
        assert row["train_accuracy"] == found.train_accuracy[row["epoch"] - 1]
        assert row["score"] == found.scores[row["epoch"] - 1]
    assert run.history[-1] | {"layers": {}} == {
        "stage": "pruned", "epoch": found.epoch, "sparsity": found.sparsity, "layers": {},
    }  # fmt: skip


def test_train_accuracy_is_of_the_batches_as_they_came() -> None:
    model = a_net()
    before = evaluate(model, DATA.train).average
    _, found = walked(PruningConfig(probability=0.0, epochs=1, keep="last"), model)  # one batch, before its step
    assert found.train_accuracy == pytest.approx([before])


class KilledError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("name", ["avp", "random-prune", "magnitude-prune"])
@pytest.mark.parametrize("kill_at", [5, 10])  # within an epoch, and at the end of one
def test_a_killed_run_goes_on_to_the_same_weights(
    name: str, kill_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checkpoints, "is_due", lambda *_: True)  # keep every step

    def trained(folder: Path, kill: int = 0) -> Fitted:
        def stop(stage: str, step: int, _total: int, _word: str) -> None:
            if stage == "prune" and step == kill:
                raise KilledError

        monkeypatch.setattr("spurless.train.run.time.monotonic", iter(range(1000)).__next__)  # tell every step
        settings = {"epochs": 2, "batch_size": 33, "optimiser": "adam"}
        options: dict[str, Any] = {"epochs": 8, "candidates": 6}
        return fit(name, a_net(), DATA, train=settings, compute=CPU, folder=folder, progress=stop, **options)

    whole = trained(tmp_path / "whole")
    with pytest.raises(KilledError):
        trained(tmp_path / "cut", kill_at)
    again = trained(tmp_path / "cut")
    assert again.explanation == whole.explanation
    for ours, theirs in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_another_seed_prunes_others() -> None:
    config = PruningConfig(candidates=40, probability=0.5, epochs=1, keep="last")
    one, other = (walked(config, run=replace(a_run(), seeds=Seeds(seed)))[0] for seed in (0, 1))
    assert not torch.equal(one.head.weight == 0, other.head.weight == 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"candidates": 0}, r"candidates.* must be at least 1"),
        ({"probability": 1.5}, r"probability.* must be a fraction"),
        ({"start_epoch": 1200}, r"start_epoch must be one of its epochs"),
        ({"floor": 2.0}, r"floor.* must be a fraction"),
        ({"target_sparsity": 1.0}, r"target_sparsity.* must be a fraction"),
        ({"target_sparsity": 0.5, "probability": 0.0}, r"needs a probability above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        PruningConfig(**options)


def test_layers_that_share_a_weight_are_refused() -> None:
    model = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(2, 2)), nn.Linear(2, 2))
    model.head.weight = model.backbone[1].weight  # type: ignore[index]
    with pytest.raises(InputError, match=r"is shared by several layers"):
        walked(PruningConfig(epochs=1, keep="last"), model)


def test_the_lowest_magnitudes_of_all_layers_are_those_of_torch() -> None:
    import torch.nn.utils.prune

    theirs: Any = torch.nn.utils.prune
    net: Any = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 3, groups=2), nn.Flatten(), nn.Linear(12, 5))
    scores = {f"{i}.weight": net[i].weight.detach().abs() for i in (0, 1, 3)}
    alive = {name: torch.ones_like(score, dtype=torch.bool) for name, score in scores.items()}
    chosen = lowest(scores, alive, 100, floor=0.0)
    theirs.global_unstructured([(net[i], "weight") for i in (0, 1, 3)], theirs.L1Unstructured, amount=100)
    for i in (0, 1, 3):
        assert set(chosen[f"{i}.weight"].tolist()) == set((net[i].weight_mask == 0).flatten().nonzero()[:, 0].tolist())
