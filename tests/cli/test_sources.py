"""Sources: what is typed after ``--data`` and ``--model`` becomes splits and a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from spurless.cli.sources import Columns, build_model, open_data
from spurless.core.errors import BadInput
from spurless.data.grouped import Splits

Write = Callable[..., Path]


def shape(splits: Splits) -> tuple[int, ...]:
    example = splits.train.example()
    assert isinstance(example, torch.Tensor)
    return tuple(example.shape[1:])


def test_name_wins_over_a_folder_of_that_name(here: Path) -> None:
    (here / "planted").mkdir()
    assert open_data("planted", {"n_train": "50"}, Columns(), 0).name == "planted"


def test_seed_is_that_of_the_run_unless_the_data_have_their_own(here: Path) -> None:
    assert here.is_dir()
    first, same, other = (
        open_data("planted", {"n_train": 50, **options}, Columns(), seed).train.x
        for options, seed in (({}, 4), ({"seed": "4"}, 0), ({}, 0))
    )
    assert isinstance(first, torch.Tensor)
    assert isinstance(same, torch.Tensor)
    assert isinstance(other, torch.Tensor)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_columns_of_a_csv_are_the_ones_named(csv: Write) -> None:
    splits = open_data(str(csv()), {}, Columns("y", "place, x1", "split", "x2"), 0)
    assert shape(splits) == (1,)
    assert splits.groups.labels == ("cat", "dog")
    assert len(splits.groups.attributes) == 2 * 7


def test_images_take_the_size_said(folder: Path) -> None:
    assert shape(open_data(str(folder), {"size": 5}, Columns(), 0)) == (3, 5, 5)
    with pytest.raises(BadInput, match="option 'size' must be a whole number"):
        open_data(str(folder), {"size": [5]}, Columns(), 0)


def test_model_is_built_for_the_data(csv: Write) -> None:
    splits = open_data(str(csv()), {}, Columns("y", "place", "split"), 0)
    model = build_model("mlp", splits, 3, {"width": "4"})
    again = build_model("mlp", splits, 3, {"width": 4})
    assert (model.n_classes, model.n_features) == (2, 4)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    with pytest.raises(BadInput, match="mlp has no option 'data'"):
        build_model("mlp", splits, 3, {"data": "x"})
