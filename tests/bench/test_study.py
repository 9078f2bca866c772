"""The study's numbers: by hand, on the examples that are drawn; weights that cannot act do not count."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spurless.bench.cell import Cell
from spurless.bench.engines import Machines
from spurless.bench.fitting import Fitted, evaluate_given, fit
from spurless.bench.study import EXAMPLES, acting, drawn, study, study_metrics
from spurless.bench.sweep import Sweep, run_sweep
from spurless.core.groups import Groups
from spurless.data import load
from spurless.data.grouped import Grouped, Splits
from spurless.metrics.selectivity import selectivity
from spurless.metrics.separation import separation
from spurless.models import Classifier, build
from spurless.models.classifier import evaluating
from spurless.models.masks import prune, weight_masks
from spurless.models.prunability import Prunability, prunability
from spurless.train.run import Engine

SMALL = {"n_train": 300, "n_val": 50, "n_test": 1500, "noise": 3}


def splits(x: Tensor, y: Tensor, a: Tensor, groups: Groups) -> Splits:
    split = Grouped(x, y, a, groups)
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
    found = study_metrics(*by_hand())
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
    assert found["magnitude_prunability_at_0.8"] == 1.0  # 12 of 16 weights are zeros already
    assert found["magnitude_prunability_at_0.9"] == 1.0  # int(14.4) = 14: the weak and the attribute are gone


def test_weights_that_only_meet_padding_have_no_say_in_what_is_pruned() -> None:
    backbone = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.Flatten())
    model = Classifier(backbone, nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model.get_parameter("backbone.0.weight").fill_(1.0)
        model.get_parameter("backbone.1.weight").fill_(0.0)[1] = 100.0  # beside the image, but for the middle
        model.get_parameter("backbone.1.weight")[:, 0, 1, 1] = torch.tensor([2.0, 1.0])
        model.get_parameter("head.weight").copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    y = torch.tensor([0, 1, 0, 1])
    data = splits((1.0 - 2 * y).view(4, 1, 1, 1), y, y, Groups(("up", "down"), ("up", "down")))
    found = study_metrics(model, data)
    assert found["prunability_at_0.5"] == found["magnitude_prunability_at_0.5"] == 1.0  # of 2 and 1, the 1 goes


def test_pruned_accuracy_is_prunability_times_accuracy() -> None:
    data = load("parity", **SMALL)
    run = fit("erm", build("mlp", data, width=40), data, train={"epochs": 2, "lr": 0.5}, engine=Engine("cpu"))
    found, split = study_metrics(run.model, data), drawn(data.test, 0)
    with torch.no_grad():
        whole = float((run.model(split.x).argmax(1) == split.y).double().mean())
    for kind in ("", "magnitude_"):
        assert found[f"{kind}pruned_accuracy"] == pytest.approx(whole * found[f"{kind}prunability"])
        curve = [found[f"{kind}prunability_at_0.{tenths}"] for tenths in range(1, 10)]
        assert found[f"{kind}prunability_sum"] == pytest.approx(1 + sum(curve))
        assert found[f"{kind}prunability"] == pytest.approx((1 + sum(curve)) / 10)


def test_a_thousand_examples_are_drawn_by_the_seed_alone() -> None:
    data = load("parity", **SMALL)
    first, again, other = drawn(data.test, 0), drawn(data.test, 0), drawn(data.test, 1)
    assert len(first) == EXAMPLES == 1000
    assert isinstance(first.x, Tensor)
    assert isinstance(again.x, Tensor)
    assert isinstance(other.x, Tensor)
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, other.x)
    assert len(torch.unique(torch.cat([first.x, first.y[:, None]], 1), dim=0)) > 100  # not one example many times
    few = drawn(load("parity", **{**SMALL, "n_test": 30}).test, 0)
    assert len(few) == 30


def test_what_does_not_exist_is_left_out() -> None:
    model, data = by_hand()
    hidden = replace(data, test=data.test.hide_attributes())
    known = study_metrics(model, hidden)
    assert "csi" in known
    assert not {"bsi", "bias_separation"} & set(known)
    linear = study_metrics(build("linear", data), data)
    assert not any("prun" in name for name in linear)
    with torch.no_grad():
        model.get_parameter("backbone.0.weight").zero_()  # a net that died
    dead = study_metrics(model, data)
    assert dead["activation_sparsity"] == 1.0
    assert not {"csi", "bsi", "class_separation", "activation_compressibility", "pq_index"} & set(dead)


def test_the_model_and_the_generators_are_left_as_they_were() -> None:
    data = load("parity", **SMALL)
    model = build("mlp", data, width=20).train()
    deep, before = resnet(), {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    study_metrics(model, data)
    acting(deep, torch.zeros(2, 3, 28, 28))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_train_mode_takes_the_statistics_of_the_batch() -> None:
    norm = Classifier(nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU()), nn.Linear(4, 2))
    data = by_hand()[1]
    assert (
        study_metrics(norm, data)["activation_sparsity"]
        != study_metrics(norm, data, train_mode=True)["activation_sparsity"]
    )


def test_a_run_is_studied_on_the_data_of_its_record() -> None:
    data = load("parity", **SMALL, seed=3)
    run = fit(
        "watched-erm", build("mlp", data, width=20), data, seed=2, train={"epochs": 2, "lr": 0.5}, engine=Engine("cpu")
    )
    found = study(run)
    assert found == study(run, data)
    assert {k: v for k, v in found.items() if "loss_ratio" not in k} == study_metrics(run.model, data, seed=2)
    assert found["max_loss_ratio"] == run.explanation.numbers()["max_loss_ratio"]
    given = Fitted(run.model, evaluate_given("given", run.model, data, seed=2, engine=Engine("cpu")))
    assert "max_loss_ratio" not in study(given)
    split = drawn(data.test, 2)
    assert isinstance(split.x, Tensor)
    z = run.model.features(split.x).detach().abs()
    assert found["csi"] == pytest.approx(selectivity(z, split.y).mean)


def resnet() -> Classifier:
    groups = Groups(tuple("0123456789"))
    split = Grouped(torch.zeros(2, 3, 28, 28, dtype=torch.uint8), torch.zeros(2).long(), torch.zeros(2).long(), groups)
    return build("torchvision:resnet18", Splits(split, split, split))


def test_most_weights_of_a_resnet_18_only_meet_padding_at_28_pixels() -> None:
    model, x = resnet().eval(), torch.rand(4, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for p in model.parameters():  # so that logits are not tiny, and a mistake at one weight is seen
            p.mul_(1.5)
        cut = acting(model, x).eval()
        torch.testing.assert_close(cut(x), model(x), rtol=1e-4, atol=1e-4)
    count = [sum(p.numel() for p in m.parameters()) for m in (model, cut)]
    assert count[0] - count[1] == pytest.approx(6.9e6, rel=0.01)
    assert count[0] == pytest.approx(11.2e6, rel=0.01)
    # the gradient says which weights can act: as many as are left
    model.zero_grad()
    model.train()
    torch.autograd.backward(model(torch.randn(64, 3, 28, 28)).square().sum())
    assert sum(int((p.grad != 0).sum()) for p in model.parameters() if p.grad is not None) == pytest.approx(
        count[1], rel=1e-3
    )


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(2, 3, 3, padding=1),
        nn.Conv2d(2, 3, 3, stride=2, padding=1),
        nn.Conv2d(2, 4, (3, 5), padding=(1, 2), groups=2),
        nn.Conv2d(2, 3, 3, padding=2, dilation=2, bias=False),
        nn.Conv2d(2, 3, 4, padding="same"),
        nn.Conv2d(2, 3, 7, stride=2, padding=3),
    ],
)
@pytest.mark.parametrize("size", [(1, 1), (2, 1), (1, 3), (2, 2), (5, 4)])
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_a_cut_kernel_computes_the_same(conv: nn.Conv2d, size: tuple[int, int]) -> None:
    x = torch.randn(3, 2, *size)
    model = nn.Sequential(conv)
    cut = acting(model, x)
    torch.testing.assert_close(cut(x), model(x))
    # every row and column that is left touches the image
    x = torch.randn(50, 2, *size)
    for p in cut.parameters():
        p.grad = None
    torch.autograd.backward(cut(x).square().sum())
    (weight,) = [p for p in cut.parameters() if p.dim() == 4]
    assert weight.grad is not None
    assert bool((weight.grad != 0).any(dim=3).all() if size[0] < 3 else True)


def test_kernels_that_act_and_other_paddings_stay() -> None:
    circle = nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")
    model = nn.Sequential(circle, nn.Conv2d(1, 1, 3, padding=1))
    assert [tuple(p.shape) for p in acting(model, torch.rand(1, 1, 2, 2)).parameters()] == [(1, 1, 3, 3), (1,)] * 2
    (shape, *_) = [tuple(p.shape) for p in acting(nn.Sequential(circle), torch.rand(1, 1, 1, 1)).parameters()]
    assert shape == (1, 1, 3, 3)


def test_a_layer_that_is_called_twice_keeps_what_acts_in_either_call() -> None:
    conv = nn.Conv2d(1, 1, 3, padding=1, bias=False)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = self.other = conv

        def forward(self, x: Tensor) -> Tensor:
            both: tuple[Tensor, Tensor] = self.one(x), self.other(x[..., :1, :1])
            return both[0].sum() + both[1].sum()

    wide, narrow = torch.rand(1, 1, 1, 3), torch.rand(1, 1, 1, 1)
    cut = acting(Twice(), wide)
    assert [tuple(p.shape) for p in cut.parameters()] == [(1, 1, 1, 3)]
    torch.testing.assert_close(cut(wide), Twice()(wide))
    assert [tuple(p.shape) for p in acting(Twice(), narrow).parameters()] == [(1, 1, 1, 1)]


def test_pruned_weights_stay_pruned() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1))
    masks = weight_masks(model)
    masks["0.weight"][0] = False
    prune(model, masks)
    x = torch.rand(2, 1, 1, 1)
    cut = acting(model, x)
    torch.testing.assert_close(cut(x), model(x))
    (weight,) = [p for p in cut.parameters() if p.dim() == 4]
    assert weight[0].abs().sum() == 0


def few(_: str, __: Mapping[str, Any], seed: int) -> Splits:
    """Eight images of two labels and two attributes, in every split."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (8, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return splits(x, torch.arange(8) % 2, torch.arange(8) // 2 % 2, Groups(("no", "yes"), ("off", "on")))


@pytest.mark.parametrize("name", ["torchvision:resnet50", "torchvision:swin_t", "timm:swin_tiny_patch4_window7_224"])
@pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")  # two steps teach it nothing
def test_the_other_networks_of_the_study_go_through_a_sweep(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known, changed = study_metrics(*by_hand()), dict[str, bool]()

    def quick(model: nn.Module, accuracy: Any, **options: Any) -> Prunability:
        """Two kappas in place of ten; look which logits the higher one leaves."""
        x = few("", {}, 9).test.example(8)
        with evaluating(model):
            before = model(x)

        def looking(pruned: nn.Module) -> float:
            with evaluating(pruned):
                changed[str(options["unit"])] = not torch.allclose(before, pruned(x))
            return float(accuracy(pruned))

        return prunability(model, looking, kappas=(0.0, 0.9), **options)

    monkeypatch.setattr("spurless.bench.study.prunability", quick)
    cell = Cell("few", name, "watched-erm", train={"steps": 2, "batch_size": 4, "lr": 1e-4, "momentum": 0.0})
    swept = run_sweep(Sweep(cell, {"lr": [1e-4]}, seeds=1, load=few, study=True), machines=Machines(Engine("cpu")))
    (record,) = swept.records.values()
    assert {key for key in known if "_at_" not in key} <= record.metrics.keys()
    assert {"prunability_at_0.9", "magnitude_prunability_at_0.9", "max_loss_ratio"} <= record.metrics.keys()
    assert changed == {"kernels": True, "weights": True}  # what is pruned acts
    assert "core_utilisation" in record.history[-1]
