"""The claims of theory: their numbers are the formula's, and our runs meet them."""

import pytest

from spurless.bench.claims import CLAIMS
from spurless.bench.claims.theory import PLANTED_ERM, PLANTED_GROUP_DRO
from spurless.data.datasets.synthetic import PlantedConfig, erm_optimum, planted_accuracy, robust_optimum


def test_the_numbers_are_the_formula_s() -> None:
    config = PlantedConfig()
    assert (
        pytest.approx(100 * float(planted_accuracy(erm_optimum(config), config).min()), abs=0.005) == PLANTED_ERM.paper
    )
    worst = 100 * float(planted_accuracy(robust_optimum(config), config).min())
    assert pytest.approx(worst, abs=0.005) == PLANTED_GROUP_DRO.paper


def test_they_are_in_the_table() -> None:
    assert CLAIMS["theory/planted-erm"] is PLANTED_ERM
    assert CLAIMS["theory/planted-group-dro"] is PLANTED_GROUP_DRO
