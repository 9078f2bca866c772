"""The table of datasets: to add one, write its file and add its row here. Nothing else changes."""

from __future__ import annotations

from typing import Any

from spurless.core.errors import UnknownName
from spurless.core.groups import Groups
from spurless.core.options import configure
from spurless.data.card import Card, Dataset
from spurless.data.checks import check_splits
from spurless.data.colored_digits import DATASET as COLORED_DIGITS
from spurless.data.core_spurious_noise import DATASET as CORE_SPURIOUS_NOISE
from spurless.data.double_digits import DATASET as DOUBLE_DIGITS
from spurless.data.folder import from_folder
from spurless.data.gaussians import DATASET as GAUSSIANS
from spurless.data.grouped import Batch, Grouped, Splits
from spurless.data.huggingface import from_huggingface
from spurless.data.linear_bits import DATASET as LINEAR_BITS
from spurless.data.moon_star import DATASET as MOON_STAR
from spurless.data.npz import from_npz
from spurless.data.parity import DATASET as PARITY
from spurless.data.patched_digits import DATASET as PATCHED_DIGITS
from spurless.data.planted import DATASET as PLANTED
from spurless.data.table import from_csv
from spurless.data.tensors import from_tensors
from spurless.data.torch_dataset import from_dataset
from spurless.data.waterbirds import DATASET as WATERBIRDS

DATASETS: dict[str, Dataset] = {
    dataset.card.name: dataset
    for dataset in (
        COLORED_DIGITS,
        PATCHED_DIGITS,
        DOUBLE_DIGITS,
        PLANTED,
        GAUSSIANS,
        LINEAR_BITS,
        CORE_SPURIOUS_NOISE,
        PARITY,
        MOON_STAR,
        WATERBIRDS,
    )
}


def dataset_named(name: str) -> Dataset:
    """Return the dataset of that name."""
    try:
        return DATASETS[name]
    except KeyError:
        raise UnknownName("dataset", name, DATASETS) from None


def load(name: str, **options: Any) -> Splits:
    """Make the splits of a dataset; options are the fields of its config.

    Example:
        >>> data = load("planted", agreement=1.0, n_train=100)
        >>> bool((data.train.a == data.train.y).all())
        True

    Raises:
        UnknownName: no dataset has that name.
        BadInput: an option is unknown or its value cannot be used.
    """
    dataset = dataset_named(name)
    return check_splits(dataset.make(configure(dataset.config, options, owner=f"dataset {name!r}")))


__all__ = [
    "DATASETS",
    "Batch",
    "Card",
    "Dataset",
    "Grouped",
    "Groups",
    "Splits",
    "check_splits",
    "dataset_named",
    "from_csv",
    "from_dataset",
    "from_folder",
    "from_huggingface",
    "from_npz",
    "from_tensors",
    "load",
]
