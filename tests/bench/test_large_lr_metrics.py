"""The study's numbers: by hand, on the examples that are drawn; weights that cannot act do not count."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spurless.bench.executors import Resources
from spurless.bench.experiment import Experiment
from spurless.bench.large_lr_metrics import MAX_EXAMPLES, large_lr_metrics, measure_run, sample_for_metrics
from spurless.bench.sweep import Sweep, run_sweep
from spurless.core.groups import Groups
from spurless.core.modules import eval_mode
from spurless.data import load
from spurless.data.split import Split, Splits
from spurless.fitting import Fitted, evaluate_given, fit
from spurless.metrics.selectivity import selectivity
from spurless.metrics.separation import separation
from spurless.models import Classifier, build
from spurless.models.pruning.prunability import Prunability, measure_prunability
from spurless.train.run import Compute

SMALL = {"n_train": 300, "n_val": 50, "n_test": 1500, "noise": 3}


def splits(x: Tensor, y: Tensor, a: Tensor, groups: Groups) -> Splits:
    split = Split(x, y, a, groups)
    return Splits(split, split, split)


def by_hand() -> tuple[Classifier, Splits]:
    """Four neurons that copy four inputs: the first two say the label, the third is weak, the fourth the attribute."""
    backbone = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU())
    model = Classifier(backbone, nn.Linear(4, 2, bias=False))
    with torch.no_grad():
        model.get_parameter("backbone.0.weight").copy_(torch.diag(torch.tensor([4.0, 3.0, 1.0, 2.0])))
        model.get_parameter("head.weight").copy_(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]))
    y, a = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    x = torch.stack([1.0 - y, 0.0 + y, torch.zeros(4), 0.0 + a], dim=1)
    return model, splits(x, y, a, Groups(("no", "yes"), ("off", "on")))


def test_every_number_by_hand() -> None:
    found = large_lr_metrics(*by_hand())
    z = torch.tensor([[4.0, 0, 0, 0], [4.0, 0, 0, 2.0], [0, 3.0, 0, 0], [0, 3.0, 0, 2.0]])
    y, a = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    assert found["activation_sparsity"] == 10 / 16
    # one of four numbers is kept: two rows are one number, two lose their 2
    lost = (2 / math.sqrt(20) + 2 / math.sqrt(13)) / 4
    assert found["activation_compressibility"] == pytest.approx(1 - lost)
    assert found["csi"] == pytest.approx((1 + 1 + 0) / 3)  # the third neuron is silent, the fourth knows no label
    assert found["bsi"] == pytest.approx((0 + 0 + 1) / 3)
    assert found["class_separation"] == pytest.approx(separation(z, y).r2)
    assert found["bias_separation"] == pytest.approx(separation(z, a).r2)
    assert found["pq_index"] == pytest.approx(
        (0.5 + 1 - 0.5 * 6 / math.sqrt(20) + 0.5 + 1 - 0.5 * 5 / math.sqrt(13)) / 4
    )
    # nodes go in the order 3, 4, 2, 1: at 0.25, 0.5 and 0.75 one, two and three are gone; half is right by guessing 0
    assert found["prunability_at_0.5"] == 1.0
    assert found["prunability_at_0.8"] == 0.5
    assert "prunability_at_0" not in found
    assert found["prunability_sum"] == pytest.approx(8 * 1.0 + 2 * 0.5)
    assert found["prunability"] == pytest.approx(0.9)
    assert found["pruned_accuracy"] == pytest.approx(0.9)  # the whole model is always right
    assert found["prunability_above_chance"] == pytest.approx(0.8)  # 1 eight times, and twice chance
    assert found["magnitude_prunability_above_chance"] == 1.0
    assert found["magnitude_prunability_at_0.8"] == 1.0  # 12 of 16 weights are zeros already
    assert found["magnitude_prunability_at_0.9"] == 1.0  # int(14.4) = 14: the weak and the attribute are gone


def test_pruned_accuracy_is_prunability_times_accuracy() -> None:
    data = load("parity", **SMALL)
    run = fit("erm", build("mlp", data, width=40), data, train={"epochs": 2, "lr": 0.5}, compute=Compute("cpu"))
    found, split = large_lr_metrics(run.model, data), sample_for_metrics(data.test, 0)
    with torch.no_grad():
        whole = float((run.model(split.x).argmax(1) == split.y).double().mean())
    for kind in ("", "magnitude_"):
        assert found[f"{kind}pruned_accuracy"] == pytest.approx(whole * found[f"{kind}prunability"])
        curve = [found[f"{kind}prunability_at_0.{tenths}"] for tenths in range(1, 10)]
        assert found[f"{kind}prunability_sum"] == pytest.approx(1 + sum(curve))
        assert found[f"{kind}prunability"] == pytest.approx((1 + sum(curve)) / 10)


def test_a_thousand_examples_are_drawn_by_the_seed_alone() -> None:
    data = load("parity", **SMALL)
    first, again, other = (
        sample_for_metrics(data.test, 0),
        sample_for_metrics(data.test, 0),
        sample_for_metrics(data.test, 1),
    )
    assert len(first) == MAX_EXAMPLES == 1000
    assert isinstance(first.x, Tensor)
    assert isinstance(again.x, Tensor)
    assert isinstance(other.x, Tensor)
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, other.x)
    assert len(torch.unique(torch.cat([first.x, first.y[:, None]], 1), dim=0)) > 100  # not one example many times
    few = sample_for_metrics(load("parity", **{**SMALL, "n_test": 30}).test, 0)
    assert len(few) == 30


def test_what_does_not_exist_is_left_out() -> None:
    model, data = by_hand()
    hidden = replace(data, test=data.test.hide_attributes())
    known = large_lr_metrics(model, hidden)
    assert "csi" in known
    assert not {"bsi", "bias_separation"} & set(known)
    linear = large_lr_metrics(build("linear", data), data)
    assert not any("prun" in name for name in linear)
    with torch.no_grad():
        model.get_parameter("backbone.0.weight").zero_()  # a net that died
    dead = large_lr_metrics(model, data)
    assert dead["activation_sparsity"] == 1.0
    assert not {"csi", "bsi", "class_separation", "activation_compressibility", "pq_index"} & set(dead)


def test_the_model_and_the_generators_are_left_as_they_were() -> None:
    data = load("parity", **SMALL)
    model = build("mlp", data, width=20).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    large_lr_metrics(model, data)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_train_mode_takes_the_statistics_of_the_batch() -> None:
    norm = Classifier(nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU()), nn.Linear(4, 2))
    data = by_hand()[1]
    assert (
        large_lr_metrics(norm, data)["activation_sparsity"]
        != large_lr_metrics(norm, data, train_mode=True)["activation_sparsity"]
    )


def test_a_run_is_measured_with_its_seed_and_loss_ratios() -> None:
    data = load("parity", **SMALL, seed=3)
    run = fit(
        "erm-loss-ratio",
        build("mlp", data, width=20),
        data,
        seed=2,
        train={"epochs": 2, "lr": 0.5},
        compute=Compute("cpu"),
    )
    found = measure_run(run, data)
    assert {k: v for k, v in found.items() if "loss_ratio" not in k} == large_lr_metrics(run.model, data, seed=2)
    assert found["max_loss_ratio"] == run.explanation.numbers()["max_loss_ratio"]
    given = Fitted(run.model, evaluate_given("given", run.model, data, seed=2, compute=Compute("cpu")))
    assert "max_loss_ratio" not in measure_run(given, data)
    split = sample_for_metrics(data.test, 2)
    assert isinstance(split.x, Tensor)
    z = run.model.features(split.x).detach().abs()
    assert found["csi"] == pytest.approx(selectivity(z, split.y).mean)


def few(_: str, __: Mapping[str, Any], seed: int) -> Splits:
    """Eight images of two labels and two attributes, in every split."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (8, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return splits(x, torch.arange(8) % 2, torch.arange(8) // 2 % 2, Groups(("no", "yes"), ("off", "on")))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torchvision:resnet50", "torchvision:swin_t", "timm:swin_tiny_patch4_window7_224"])
@pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")  # two steps teach it nothing
def test_the_other_networks_of_the_study_go_through_a_sweep(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known, changed = large_lr_metrics(*by_hand()), dict[str, bool]()

    def quick(model: nn.Module, accuracy: Any, **options: Any) -> Prunability:
        """Two kappas in place of ten; look which logits the higher one leaves."""
        x = few("", {}, 9).test.example(8)
        with eval_mode(model):
            before = model(x)

        def looking(pruned: nn.Module) -> float:
            with eval_mode(pruned):
                changed[str(options["unit"])] = not torch.allclose(before, pruned(x))
            return float(accuracy(pruned))

        return measure_prunability(model, looking, kappas=(0.0, 0.9), **options)

    monkeypatch.setattr("spurless.bench.large_lr_metrics.measure_prunability", quick)
    cell = Experiment("few", name, "erm-loss-ratio", train={"steps": 2, "batch_size": 4, "lr": 1e-4, "momentum": 0.0})
    swept = run_sweep(
        Sweep(cell, {"lr": [1e-4]}, seeds=1, load=few, large_lr_metrics=True), resources=Resources(Compute("cpu"))
    )
    (record,) = swept.records.values()
    # the ratio above chance is not defined for a model at chance level
    assert {key for key in known if "_at_" not in key and "above_chance" not in key} <= record.metrics.keys()
    assert {"prunability_at_0.9", "magnitude_prunability_at_0.9", "max_loss_ratio"} <= record.metrics.keys()
    assert changed == {"kernels": True, "weights": True}  # what is pruned acts
    assert "core_utilisation" in record.history[-1]
