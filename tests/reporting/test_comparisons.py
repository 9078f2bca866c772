"""Tests of gathering: which records belong together, and how they are told apart."""

from __future__ import annotations

from collections.abc import Callable

from spurless.core.records import Record
from spurless.reporting.aggregate import comparisons

Make = Callable[..., Record]


def test_seeds_of_one_method_are_one_arm(make: Make) -> None:
    (comparison,) = comparisons([make(seed=1), make(seed=0), make("jtt", seed=0)])
    assert [(arm.name, arm.seeds) for arm in comparison.methods] == [("ERM", (0, 1)), ("JTT", (0,))]


def test_seeds_whose_networks_have_unlike_sizes_are_one_arm(make: Make) -> None:
    counted = [{"parameters": 9, "kept_parameters": n, "sparsity": n / 9, "flops": 9, "kept_flops": n} for n in (3, 4)]
    runs = [make("avp", seed=n, model={"name": "mlp", **sizes}) for n, sizes in enumerate(counted)]
    assert len(comparisons(runs)[0].methods) == 1


def test_the_baseline_is_erm_or_else_the_first(make: Make) -> None:
    assert comparisons([make("jtt"), make("erm")])[0].baseline.name == "ERM"
    assert comparisons([make("jtt"), make("dfr")])[0].baseline.name == "JTT"


def test_configurations_are_told_apart_by_what_differs(make: Make) -> None:
    runs = [make("jtt", config={"up": up, "same": 1}) for up in (20, 50)]
    assert [arm.name for arm in comparisons(runs)[0].methods] == ["JTT (up 20)", "JTT (up 50)"]


def test_of_many_variations_each_says_what_it_varies_and_the_usual_one_is_the_baseline(make: Make) -> None:
    usual = {"epochs": 60, "lr": 0.001, "momentum": 0.0, "l2": 0.0}
    varied: tuple[dict[str, float], ...]
    varied = ({"lr": 0.15}, {"lr": 0.15, "l2": 0.1}, {"momentum": 0.9}, {}, {"epochs": 8, "l2": 0.5}, {"l2": 0.3})
    (comparison,) = comparisons([make(train={**usual, **change}) for change in varied])
    assert [arm.name for arm in comparison.methods] == [
        "ERM",
        "ERM (lr 0.15)",
        "ERM (lr 0.15, l2 0.1)",
        "ERM (momentum 0.9)",
        "ERM (epochs 8, l2 0.5)",
        "ERM (l2 0.3)",
    ]
    assert comparison.baseline.records[0].train == usual


def test_another_learning_rate_or_model_is_another_arm(make: Make) -> None:
    runs = [make(), make(train={"epochs": 2, "lr": 1.0}), make(model={"name": "resnet"})]
    assert len(comparisons(runs)[0].methods) == 3


def test_the_same_key_is_the_same_run(make: Make) -> None:
    (comparison,) = comparisons([make(key="k"), make(key="k"), make(seed=1)])
    assert len(comparison.baseline.records) == 2


def test_datasets_of_one_name_are_told_apart_by_their_options(make: Make) -> None:
    runs = [make(data={"name": "d", "fingerprint": str(c), "options": {"conflicting": c}}) for c in (0.01, 0.05)]
    assert [comparison.name for comparison in comparisons(runs)] == ["d (conflicting 0.01)", "d (conflicting 0.05)"]


def test_a_dataset_drawn_anew_with_every_seed_is_one_dataset(make: Make) -> None:
    runs = [
        make(seed=seed, data={"name": "d", "fingerprint": f"f{seed}", "options": {"c": 0.1, "seed": seed}})
        for seed in (0, 1, 2)
    ]
    (comparison,) = comparisons(runs)
    assert comparison.name == "d"
    assert comparison.baseline.seeds == (0, 1, 2)


def test_one_seed_with_two_contents_is_two_datasets(make: Make) -> None:
    runs = [make(data={"name": "tensors", "fingerprint": mark, "options": {"seed": 0}}) for mark in ("one", "two")]
    assert [comparison.name for comparison in comparisons(runs)] == [
        "tensors (fingerprint one)",
        "tensors (fingerprint two)",
    ]
