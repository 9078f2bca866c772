"""Runs: devices, processes, progress."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from spurless.core.errors import InputError
from spurless.core.seeds import Seeds
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.loader import sequential_order
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, is_main_process, make_run

TOGETHER = """
import sys, torch
from torch import nn
from spurless.core.seeds import Seeds
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.methods import make_method
from spurless.models.classifier import Classifier
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, make_run

name, devices, place = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
data = planted(PlantedConfig(n_train=204, n_val=50, n_test=50))
with Seeds(0).seed_global_rng("init"):
    model = Classifier(nn.Sequential(nn.Linear(2, 8), nn.Tanh()), nn.Linear(8, 2))
compute = Compute("cpu", devices, "ddp" if devices > 1 else "auto")
run = make_run(compute, 0, TrainConfig(epochs=4, batch_size=20, lr=0.05))
assert run.world == devices
made = make_method(name)
made.fit(model, data, run)
if run.is_main:
    torch.save(dict(model.state_dict()), place)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["erm", "jtt", "group-dro"])
def test_two_processes_reach_the_weights_of_one(tmp_path: Path, name: str) -> None:
    """Each takes its share of the same batches, the last and shorter one included (204 = 10 x 20 + 4)."""
    script = tmp_path / "together.py"
    script.write_text(TOGETHER)
    for devices in (1, 2):
        command = [sys.executable, str(script), name, str(devices), str(tmp_path / f"{devices}.pt")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
    one, two = (torch.load(tmp_path / f"{devices}.pt", weights_only=True) for devices in (1, 2))
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.parametrize(
    ("compute", "sentence"),
    [
        (Compute(device="gpu"), "unknown device 'gpu'"),
        (Compute(device="cuda:x"), "unknown device 'cuda:x'"),
        (Compute(device="cpu", precision="half"), "unknown precision 'half'"),
        (Compute(device="cpu", devices=0), "devices must be at least 1"),
        (Compute(device="cpu", strategy="magic"), r"unknown strategy 'magic' \(expected auto, or ddp"),
        (Compute(device="cpu", strategy="fsdp"), "shards the model"),
        (Compute(device="cpu", precision="16-mixed"), "16-mixed needs a CUDA device"),
        (Compute(device="cpu:0"), "unknown device 'cpu:0'"),
    ],
)
def test_an_engine_that_does_not_exist_is_refused(compute: Compute, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make_run(compute, 0, TrainConfig())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_where_there_is_none_is_refused_with_a_remedy() -> None:
    with pytest.raises(InputError, match=r"no CUDA device is available\. Use --device cpu, or auto"):
        make_run(Compute(device="cuda"), 0, TrainConfig())


def test_auto_finds_a_device() -> None:
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert make_run(Compute(), 0, TrainConfig()).device.type == expected


def test_a_batch_that_cannot_be_shared_out_is_refused() -> None:
    data = planted(PlantedConfig(n_train=20, n_val=20, n_test=20))
    from spurless.data.loader import Loader

    with pytest.raises(InputError, match="must be a multiple of the number of devices"):
        Loader(data.train, sequential_order(20), 5, world=2)


def test_progress_is_told_at_most_ten_times_a_second_and_at_the_end() -> None:
    told: list[int] = []
    run = make_run(Compute("cpu"), 0, TrainConfig(), progress=lambda *said: told.append(said[1]))
    begin = time.monotonic()
    for step in range(1, 20001):
        run.report_progress("train", step, 20000)
    assert told[-1] == 20000
    assert len(told) <= 10 * (time.monotonic() - begin) + 2


def test_seconds_add_up_over_a_stage() -> None:
    run = make_run(Compute("cpu"), 0, TrainConfig())
    for _ in range(2):
        with run.timed("nap"):
            time.sleep(0.01)
    assert run.seconds["nap"] >= 0.02


def test_one_process_is_the_main_one_and_sums_alone() -> None:
    run = make_run(Compute("cpu"), 3, TrainConfig())
    assert run.is_main
    assert is_main_process()
    assert run.sum(torch.tensor([2.0])).tolist() == [2.0]
    assert run.seeds == Seeds(3)
