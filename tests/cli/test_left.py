"""What a run leaves is called by its weights, and a run that is recorded is found by its key."""

from pathlib import Path

import spurless as sp
from spurless.cli.left import beside, recorded, save
from spurless.core.records import append
from spurless.models.weights import weights_info

TRAIN = {"epochs": 5, "batch_size": 20, "lr": 0.1}


def test_a_repair_leaves_what_it_began_with_and_says_so(tmp_path: Path) -> None:
    data = sp.load("planted", n_train=200, n_val=100, n_test=100, seed=3)
    fitted = sp.fit("dfr", sp.build("linear", data), data, seed=3, train=TRAIN)
    place, records = tmp_path / "dfr.safetensors", tmp_path / "records.jsonl"
    save(place, fitted, given=False)
    assert beside(place, None) == f", those before the repair in {tmp_path / 'dfr-start.safetensors'}"
    assert beside(tmp_path / "other.safetensors", Path("m.onnx")) == ", ONNX in m.onnx"
    assert weights_info(place)["seed"] == weights_info(tmp_path / "dfr-start.safetensors")["seed"] == 3
    assert recorded(records, fitted.record.key) is None
    append(records, fitted.record)
    found = recorded(records, fitted.record.key)
    assert found is not None
    assert found.metrics["average"] == fitted.record.metrics["average"]
    assert recorded(records, "another") is None
