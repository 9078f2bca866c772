"""Cells: names in, a record out; the seed reaches data, model and training."""

from spurless.bench.experiment import Experiment, run_experiment
from spurless.train.run import Compute

CELL = Experiment(
    "planted",
    "mlp",
    "jtt",
    {"n_train": 100, "n_val": 50, "n_test": 50},
    {"depth": 2, "width": 4},
    preset="celeba",
    method_options={"upweight": 3.0},
    train={"epochs": 10, "batch_size": 50, "lr": 0.1},
)


def test_every_part_of_a_cell_reaches_the_record() -> None:
    record = run_experiment(CELL, 5, Compute("cpu")).record
    assert record.data["name"] == "planted"
    assert record.data["options"]["seed"] == 5
    assert record.model["name"] == "mlp"
    assert record.model["options"]["width"] == 4
    assert record.config == {"first_epochs": 1, "upweight": 3.0}  # CelebA's, with another weight
    assert record.train["batch_size"] == 50


def test_a_cell_is_repeatable_and_seeds_differ() -> None:
    one, again, other = (run_experiment(CELL, seed, Compute("cpu")).record for seed in (0, 0, 1))
    assert one.metrics == again.metrics
    assert one.data["fingerprint"] != other.data["fingerprint"]
