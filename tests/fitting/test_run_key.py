"""Keys: whatever decides the numbers of a run is in its name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spurless.data import load
from spurless.data.split import Splits
from spurless.data.transforms import RandomFlip
from spurless.fitting import fit
from spurless.fitting.protocol import Protocol, hash_model_and_data, hash_run
from spurless.methods import make_method
from spurless.models import build
from spurless.train.config import TrainConfig

SMALL = {"n_train": 400, "n_val": 200, "n_test": 200}


def planted() -> Splits:
    return load("planted", seed=0, **SMALL)


def changed(data: Splits, **changes: Any) -> Splits:
    return replace(data, train=replace(data.train, **changes))


def test_layers_without_weights_and_what_is_done_to_the_data_are_part_of_the_key() -> None:
    data, protocol = planted(), Protocol(TrainConfig(steps=1))
    nets = [build("mlp", data, seed=0, width=8, activation=act) for act in ("relu", "tanh")]
    runs = [
        (nets[0], data),
        (nets[1], data),
        (nets[0], changed(data, augment=RandomFlip())),
        (nets[0], changed(data, transform=lambda x: 2 * x)),
        (nets[0], changed(data, transform=lambda x: 3 * x)),
    ]
    keys = [hash_run(protocol, make_method("erm"), *run, 0).key for run in runs]
    assert len(set(keys)) == len(runs)
    assert keys == [hash_run(protocol, make_method("erm"), *run, 0).key for run in runs]


def test_a_repair_does_not_begin_with_the_weights_of_another_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path))
    data, train = planted(), {"epochs": 5, "lr": 0.1, "batch_size": 20}
    starts = []
    for act in ("relu", "tanh"):
        model = build("mlp", data, seed=0, width=8, activation=act)
        own = fit("erm", model, data, train=train).model
        begun = fit("dfr", model, data, train=train).start
        assert begun is not None
        starts.append(begun)
        for ours, theirs in zip(own.parameters(), begun.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    assert hash_model_and_data(starts[0], data) != hash_model_and_data(starts[1], data)


def test_options_that_were_added_later_do_not_change_the_keys_of_earlier_runs() -> None:
    data = planted()
    plain, divided = (build("mlp", data, seed=0, width=8, divisor=divisor) for divisor in (1.0, 255.0))
    assert "divisor" not in plain.options
    assert divided.options["divisor"] == 255.0
    resnet = build("torchvision:resnet18", input_shape=(3, 32, 32), n_classes=2)
    assert set(resnet.options) == {"input_shape", "n_classes", "pretrained", "normalise"}
    erm, model = make_method("erm"), build("mlp", data, seed=0, width=8)
    keys = [
        hash_run(Protocol(TrainConfig(asam=1.0, **options)), erm, model, data, 0).key  # type: ignore[arg-type]
        for options in ({}, {"asam_scale": "kwon"}, {"asam_scale": "all"})
    ]
    assert keys[0] == keys[1] != keys[2]
