"""What a run leaves is called by its weights, and a run that is recorded is found by its key."""

from pathlib import Path

import spurless as sp
from spurless.cli.outputs import find_record, list_files, save_run
from spurless.core.records import append_record
from spurless.models.weights import read_weights_info

TRAIN = {"epochs": 5, "batch_size": 20, "lr": 0.1}


def test_a_repair_leaves_what_it_began_with_and_says_so(tmp_path: Path) -> None:
    data = sp.load("planted", n_train=200, n_val=100, n_test=100, seed=3)
    fitted = sp.fit("dfr", sp.build("linear", data), data, seed=3, train=TRAIN)
    place, records = tmp_path / "dfr.safetensors", tmp_path / "records.jsonl"
    save_run(place, fitted, has_initial_weights=False)
    assert list_files(place, None) == f", weights before the repair in {tmp_path / 'dfr-start.safetensors'}"
    assert list_files(tmp_path / "other.safetensors", Path("m.onnx")) == ", ONNX in m.onnx"
    assert read_weights_info(place)["seed"] == read_weights_info(tmp_path / "dfr-start.safetensors")["seed"] == 3
    assert find_record(records, fitted.record.key) is None
    append_record(records, fitted.record)
    found = find_record(records, fitted.record.key)
    assert found is not None
    assert found.metrics["average"] == fitted.record.metrics["average"]
    assert find_record(records, "another") is None
