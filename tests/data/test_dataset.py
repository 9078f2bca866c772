"""Cards: a row of the table makes what its card says."""

from dataclasses import asdict

from spurless.data import DATASETS


def test_a_row_makes_the_dataset_of_its_name_with_its_options() -> None:
    for name in ("planted", "linear-bits"):
        row = DATASETS[name]
        data = row.make(row.config())
        assert data.name == row.card.name == name
        assert dict(data.options) == asdict(row.config())
