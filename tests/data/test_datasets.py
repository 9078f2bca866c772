"""What every dataset promises, checked for every row of the table; those without files are made."""

import os
import subprocess
import sys
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import spurless.data
from spurless.core.errors import InputError, UnknownNameError
from spurless.data import DATASETS, Dataset, Splits, check_splits, get_dataset, load

SMALL: dict[str, dict[str, Any]] = {"moon-star": {"per_class": 30, "val_per_class": 10, "test_per_class": 10}}

every_dataset = pytest.mark.parametrize("name", list(DATASETS))
every_twin = pytest.mark.parametrize("name", [name for name, row in DATASETS.items() if row.layout is None])
every_one_on_disk = pytest.mark.parametrize("name", [name for name, row in DATASETS.items() if row.layout is not None])


def small(name: str, **options: Any) -> Splits:
    return load(name, **SMALL.get(name, {}), **options)


@every_dataset
def test_every_field_of_the_card_is_filled(name: str) -> None:
    card = DATASETS[name].card
    assert card.name == name
    assert all(getattr(card, field.name).strip() for field in fields(card))


@every_twin
def test_the_splits_can_be_trained_on_and_share_their_groups(name: str) -> None:
    data = check_splits(small(name))
    assert data.train.groups == data.val.groups == data.test.groups == data.groups
    assert all(split.has_attributes for split in (data.train, data.val, data.test))
    assert (data.train.class_counts > 0).all()


@every_twin
def test_the_splits_carry_their_name_and_options(name: str) -> None:
    data, config = small(name, seed=3), DATASETS[name].config(**SMALL.get(name, {}), seed=3)
    assert data.name == name
    assert data.options == asdict(config)


@every_twin
def test_the_default_config_is_the_default_of_the_function(name: str) -> None:
    config = DATASETS[name].config()
    assert DATASETS[name].make(config).options == load(name).options == asdict(config)


@every_twin
def test_same_seed_same_bytes_other_seed_other_bytes(name: str) -> None:
    first, again, other = small(name, seed=0), small(name, seed=0), small(name, seed=1)
    assert first.fingerprint() == again.fingerprint()
    for split in ("train", "val", "test"):
        assert getattr(first, split).fingerprint() != getattr(other, split).fingerprint()


@every_twin
def test_the_global_generators_are_not_moved(name: str) -> None:
    before, before_numpy = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002 - the global state is tested
    small(name)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], before_numpy)  # type: ignore[index]  # noqa: NPY002


@every_dataset
def test_an_unknown_option_is_refused_by_name(name: str) -> None:
    with pytest.raises(InputError, match=f"dataset '{name}' has no option 'sead'.*Did you mean 'seed'"):
        load(name, sead=1)


@every_one_on_disk
def test_files_that_are_not_there_are_named_with_where_to_get_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)  # some come as a package, which may be installed
    layout = DATASETS[name].layout
    assert layout is not None
    assert layout.files
    with pytest.raises(InputError, match=r"root= \(on the command line --root\), or \$SPURLESS_DATA") as caught:
        load(name, root=str(tmp_path))
    assert str(tmp_path) in str(caught.value)
    assert layout.obtain.partition(". ")[0] in str(caught.value)
    with pytest.raises(InputError, match="does not exist"):
        load(name, root=str(tmp_path / "nowhere"))


@every_one_on_disk
def test_the_first_option_is_the_folder_and_another_is_the_seed(name: str) -> None:
    options = {field.name: field.default for field in fields(DATASETS[name].config)}
    assert next(iter(options)) == "root"
    assert options["seed"] == 0


@pytest.mark.data
@pytest.mark.filterwarnings("ignore:No tokenizer is installed")  # words by a hash are the same each time, too
@every_one_on_disk
def test_a_set_that_is_here_is_whole_and_the_same_each_time(name: str) -> None:
    folder = os.environ.get("SPURLESS_DATA")
    if folder is None:
        pytest.skip("SPURLESS_DATA is not set")
    try:
        data = load(name, root=folder)
    except InputError as error:
        pytest.skip(str(error))
    assert data.options["root"] == folder
    assert data.train.groups == data.val.groups == data.test.groups
    assert data.fingerprint() == load(name, root=folder).fingerprint()


def test_options_are_converted_from_words() -> None:
    data = load("colored-digits", conflicting="0.05", val_conflicting="none", seed="2")
    assert (data.options["conflicting"], data.options["val_conflicting"], data.options["seed"]) == (0.05, None, 2)


def test_every_dataset_file_is_in_the_table() -> None:
    stems = {path.stem for path in (Path(spurless.data.__path__[0]) / "datasets").glob("*.py")} - {"__init__"}
    modules = [import_module(f"spurless.data.datasets.{stem}") for stem in sorted(stems)]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Dataset)]
    assert {dataset.card.name for dataset in found} == set(DATASETS)
    assert len(found) == len(DATASETS)


def test_a_typo_is_answered_with_a_suggestion() -> None:
    with pytest.raises(
        UnknownNameError, match=r"No dataset is called 'coloured-digits'\. Did you mean 'colored-digits'\?"
    ):
        get_dataset("coloured-digits")
    with pytest.raises(UnknownNameError, match="No dataset is called 'planed'"):
        load("planed")


def test_importing_the_table_imports_nothing_heavy() -> None:
    program = "import sys, spurless.data; print([m for m in ('sklearn', 'scipy', 'torchvision') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
