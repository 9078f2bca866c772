"""Balancing: weights by hand, and the optimum that balance has in theory."""

import pytest
import torch

from spurless.core.seeds import Seeds
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.split import Splits
from spurless.fitting import fit
from spurless.methods.balancing import cell_weights
from spurless.models import build
from spurless.train.run import Compute

DATA = planted(PlantedConfig(n_train=20000, n_test=20000))
TRAIN = {"epochs": 5, "lr": 0.1, "batch_size": 200, "weight_decay": 0.0, "schedule": "cosine"}


def test_weights_by_hand() -> None:
    # 6 examples in 2 cells that are there: each cell is to weigh 3
    assert cell_weights(torch.tensor([0, 0, 0, 0, 2, 2])).tolist() == [0.75, 0.75, 0.75, 0.75, 1.5, 1.5]


def test_every_cell_weighs_the_same_and_the_mean_is_one() -> None:
    cells = torch.randint(7, (1000,), generator=Seeds(0).generator("cells"))
    weights = cell_weights(cells)
    sums = torch.zeros(7).index_add(0, cells, weights)
    torch.testing.assert_close(sums, torch.full((7,), 1000 / 7))
    assert float(weights.mean()) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["group-reweight", "group-resample", "group-subsample"])
def test_balanced_groups_make_the_spurious_feature_useless(name: str) -> None:
    # with a independent of y the optimum ignores a: every group is right Phi(1) = 84.1 % of the time
    fitted = fit(name, build("linear", DATA), DATA, train=TRAIN, compute=Compute("cpu"))
    for row in fitted.record.groups:
        assert row.accuracy == pytest.approx(0.841, abs=0.04)


def unbalanced() -> Splits:
    """Classes 9 to 1, nothing spurious: ERM leans to the large class."""
    data = planted(PlantedConfig(core=0.5, spurious=0.0, agreement=0.5, n_train=8000, n_test=8000))
    keep = (data.train.y == 0) | (torch.rand(8000, generator=Seeds(0).generator("keep")) < 1 / 9)
    return Splits(data.train.select(keep.nonzero().flatten()), data.val, data.test)


@pytest.mark.parametrize("name", ["class-reweight", "class-resample", "class-subsample"])
def test_balanced_classes_are_served_alike(name: str) -> None:
    # means at +-0.5: ERM's threshold shifts by log(9) / (2 * 0.5) = 2.2, so it all but ignores the small class;
    # balanced, each class is right Phi(0.5) = 69.1 % of the time
    data = unbalanced()
    erm = fit("erm", build("linear", data), data, train=TRAIN, compute=Compute("cpu"))
    fair = fit(name, build("linear", data), data, train=TRAIN, compute=Compute("cpu"))
    assert erm.record.metrics["worst_class"] < 0.1  # type: ignore[operator]
    assert fair.record.metrics["worst_class"] == pytest.approx(0.691, abs=0.06)
