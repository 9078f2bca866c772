"""The scripts of the AVP study: what they compare is what they say, on runs of a few epochs and records by hand."""

import sys
from argparse import Namespace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spurless.core.records import Record, append_record
from spurless.data import load
from spurless.metrics.variability import variability
from spurless.models import build

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "benchmarks"


def script(name: str) -> Any:
    """Import a script by its file."""
    spec = spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def toy() -> Any:
    return script("avp_gaussians")


@pytest.fixture(scope="module")
def cost() -> Any:
    return script("variability")


@pytest.fixture(scope="module")
def real() -> Any:
    return script("avp_table")


class Always(nn.Module):
    """Says one class of everything."""

    def __init__(self, label: int) -> None:
        super().__init__()
        self.label = label

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(torch.full((len(x),), self.label), 5).float()


def test_a_run_is_chosen_by_validation_while_test_and_obedience_are_only_written_down(toy: Any) -> None:
    data = load("gaussians", val_per_class=10, mislabelled=4, per_class=20)
    data.val.y[:5] = 3  # 15 of 50 are of class 3 now; of test 100 of 500, and of the wrong labels 4 of 20 say so
    watch = toy.MetricHistory(data)
    assert watch(Always(3)) == pytest.approx(0.3)
    assert watch.rows == [pytest.approx({"val": 0.3, "average": 0.2, "obeyed": 0.2})]


@pytest.mark.parametrize("arm", ["AVP", "AVP, highest first", "AVP, free to regrow", "magnitude", "no pruning"])
def test_an_arm_starts_from_the_given_weights_and_tells_its_whole_way(toy: Any, arm: str) -> None:
    data = load("gaussians", seed=1)
    weights = toy.pack(build("mlp", data, seed=5, **toy.NET).state_dict())  # not those of the run's own seed
    record = toy.prune(toy.Task("biased", 1, arm, 0.01, 5), weights)
    start = toy.MetricHistory(data)
    start(build("mlp", data, seed=5, **toy.NET))
    assert record.metrics["start average"] == start.rows[0]["average"]
    assert [row["epoch"] for row in record.history] == [1, 2, 3, 4, 5]
    best = max(row["val"] for row in record.history)
    assert record.metrics["validated val"] == pytest.approx(best)
    assert record.metrics["validated epoch"] == [row["val"] for row in record.history].index(best) + 1
    assert record.metrics["25% zeros average"] is None
    assert record.config["lr"] == 0.01
    zeros = record.history[-1]["sparsity"]
    assert zeros == 0 if arm == "no pruning" else zeros <= 2 / 1248 if "regrow" in arm else zeros > 2 / 1248


def test_moments_are_the_first_epochs_with_so_many_zeros_or_the_planned_ones(toy: Any) -> None:
    rows = [{"epoch": n, "sparsity": n / 10} for n in range(1, 11)]
    pruned = dict(toy._select_checkpoints(rows, 4, toy.AVP_GAUSSIANS, 20))
    assert [row and row["epoch"] for row in pruned.values()] == [4, 3, 5, 8, 9, 10]
    free = dict(toy._select_checkpoints(rows, 1, toy.replace(toy.AVP_GAUSSIANS, regrow=True), 12))
    assert [row and row["epoch"] for row in free.values()] == [1, 3, 6, 9, None, 10]  # one weight an epoch, of 12


def test_the_table_of_the_toy_compares_the_same_seeds(toy: Any) -> None:
    def record(arm: str, seed: int, value: float, val: float = 0.5, rate: float = 0.01) -> Record:
        numbers = {"average": value, "obeyed": 0.0, "sparsity": 0.5, "val": val}
        metrics: dict[str, float | None] = {
            f"{moment} {name}": number for moment in toy.CHECKPOINTS for name, number in numbers.items()
        }
        return made(f"biased, {arm}, rate {rate:g}", seed, metrics=metrics)

    records = [record("AVP", seed, 0.9 + seed / 100) for seed in range(3)]
    records += [record("random", seed, 0.8 + seed / 100) for seed in range(1, 4)]
    records += [record("random", seed, 0.1, val=0.6, rate=0.03) for seed in range(3)]
    said = " ".join(toy.table(records).split())
    at_one_rate, at_the_best = said.split("each at its best rate on validation")
    assert "AVP 91.0 +-2.5 (3)" in at_one_rate  # 4.303 * 1 / sqrt(3)
    assert "- random +10.0 +-0.0 (2)" in at_one_rate  # seeds 1 and 2 are in both
    assert "AVP 0.01 random 0.03" in at_the_best
    assert "- random +81.0 +-2.5 (3)" in at_the_best


def test_the_naive_form_is_the_closed_one_for_any_convolution(cost: Any) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 4, 3, stride=2, padding=1)
    inputs = [torch.rand(5, 3, 7, 7) for _ in range(2)]
    cost.MAX_PRODUCTS = 700  # several pieces
    torch.testing.assert_close(
        cost.naive_variability(layer, inputs), variability(layer, inputs)["weight"], rtol=1e-4, atol=1e-7
    )


def test_products_by_hand(cost: Any) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 5))
    assert cost.count_products(net, torch.zeros(1, 1, 4, 4)) == 18 * 4 + 40  # four places, then one


def made(cell: str, seed: int, **parts: Any) -> Record:
    filled: dict[str, Any] = {"metrics": {}, "train": {}, "history": (), **parts}
    empty: dict[str, Any] = {"data": {}, "model": {}, "config": {}, "supervision": {}, "groups": ()}
    return Record("m", seed, selection="last", seconds={"total": 1.0}, cell=cell, **filled, **empty)


def asked(real: Any, **changes: Any) -> Namespace:
    plain = {"lr": 0.1, "rates": None, "data": list(real.SETTINGS), "arm": list(real.ARMS), "seed": 0, "seeds": 1}
    return Namespace(**{**plain, "partition": list(real.PARTITIONS), **changes})


def test_methods_without_groups_run_once_and_the_others_on_both_partitions(real: Any) -> None:
    cells = [task.cell for task in real.list_tasks(asked(real, data=["celeba10k"]))]
    assert len(cells) == len(set(cells)) == 4 * 2 + 5
    assert "celeba10k, any: ERM" in cells
    assert {"celeba10k, clean: GC-DRO", "celeba10k, imperfect: GC-DRO"} <= set(cells)


def test_the_rate_is_the_best_on_validation(real: Any, tmp_path: Path) -> None:
    for rate, scores in ((0.1, (0.5, 0.9, 0.4)), (0.2, (0.8, 0.8, 0.8))):
        history = ({"stage": "erm", "loss": 1.0}, *({"stage": "train", "score": score} for score in scores))
        append_record(tmp_path / "r", made(f"mnli20k, choosing: rate {rate}", 100, train={"lr": rate}, history=history))
    tasks = list(real.list_tasks(asked(real, lr=None, rates=tmp_path / "r", data=["mnli20k"])))
    assert {task.lr for task in tasks} == {0.1}
    with pytest.raises(SystemExit, match=r"no learning rate was chosen for celeba10k"):
        list(real.list_tasks(asked(real, lr=None, rates=tmp_path / "r", data=["celeba10k"])))


def test_every_arm_has_the_values_of_its_data(real: Any) -> None:
    for name, setting in real.SETTINGS.items():
        for title, arm in real.ARMS.items():
            for partition in real.PARTITIONS:
                preset = real._preset(arm, setting, partition)
                options = real._pruning(arm, setting, 5) if arm.prunes else {}
                method = real_method(arm.method, preset, options)
                assert (preset is None) == (title in ("ERM", "resampling")), name
                if title == "GC-DRO" and name == "mnli20k":
                    assert method.config.beta == {"clean": 0.5, "imperfect": 0.2}[partition]
                if arm.prunes:
                    assert (method.config.epochs, method.config.start_epoch, method.config.overfitted) == (5, 1, False)
                    assert method.config.keep == ("last" if arm.last else "validated")


def real_method(name: str, preset: str | None, options: dict[str, Any]) -> Any:
    from spurless.methods import make_method

    return make_method(name, preset, **options)


def test_the_table_repeats_what_has_no_partition_and_reads_the_zeros(real: Any) -> None:
    pruned = ({"stage": "pruned", "sparsity": 0.75},)
    records = [made("mnli20k, any: ERM", s, metrics={"worst_group": 0.5, "average": 0.9}) for s in (0, 1)]
    records += [made("mnli20k, clean: GC-DRO", s, metrics={"worst_group": 0.7, "average": 0.8}) for s in (0, 1)]
    records += [
        made("mnli20k, any: AVP", s, metrics={"worst_group": 0.6, "average": 0.9}, history=pruned) for s in (0, 1)
    ]
    clean, imperfect = real.table(records).split("\n\n")
    for block, paper in ((clean, "70.84"), (imperfect, "70.84")):
        rows = {line[:46].strip(): line[46:].split() for line in block.splitlines()}
        assert rows["ERM"] == ["50.0", "+-0.0", "90.0", "+-0.0", "0%", "1.0", "2", paper]
        assert rows["AVP"] == ["60.0", "+-0.0", "90.0", "+-0.0", "75%", "1.0", "2", "-"]
        assert rows["AVP - ERM"] == ["+10.0", "+-0.0", "+0.0", "+-0.0"]
        assert ("GC-DRO" in rows) == (block is clean)
