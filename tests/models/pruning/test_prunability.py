"""Prunability: whole curves by hand, and the model is left as it was."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm

from spurless.core.errors import InputError, UnknownNameError
from spurless.models import build
from spurless.models.pruning.learned_masks import add_learned_masks
from spurless.models.pruning.masks import prune
from spurless.models.pruning.prunability import KAPPAS, Prunability, Unit, find_skipped_weights, measure_prunability


def tiny() -> nn.Sequential:
    """Four inputs, four hidden neurons that copy them times 4, 1, 3 and 2, and one output that adds them up."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    with torch.no_grad():
        model.get_parameter("0.weight").copy_(torch.diag(torch.tensor([4.0, -1.0, 3.0, 2.0])))
        model.get_parameter("2.weight").fill_(1.0)
        for name in ("0.bias", "2.bias"):
            model.get_parameter(name).zero_()
    return model


def output(model: nn.Module) -> float:
    """Stand in for an accuracy: 10 for the whole model."""
    return float(model(torch.tensor([[1.0, -1.0, 1.0, 1.0]])))


def test_rows_go_smallest_first_and_the_last_layer_stays() -> None:
    found = measure_prunability(tiny(), output)
    # int(4 kappa) rows are gone: 0, 0, 0, 1, 1, 2, 2, 2, 3, 3
    assert found.kappas == KAPPAS == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    assert found.accuracies == (10.0, 10.0, 10.0, 9.0, 9.0, 7.0, 7.0, 7.0, 4.0, 4.0)
    assert found.whole == 10
    assert found.retained == pytest.approx((1, 1, 1, 0.9, 0.9, 0.7, 0.7, 0.7, 0.4, 0.4))
    assert found.total == pytest.approx(7.7)
    assert found.mean == pytest.approx(0.77)


def test_magnitude_pruning_takes_single_weights() -> None:
    model = tiny()
    with torch.no_grad():
        model.get_parameter("0.weight")[0] = torch.tensor([1.5, 0.0, 1.5, 1.5])  # row 0 is the second largest, whole
    kappas = (0.0, 10 / 16, 11 / 16, 14 / 16, 15 / 16)  # ten zeros, then 1, then three 1.5, 2, and 3
    found = measure_prunability(model, output, unit="weights", kappas=kappas)
    assert found.accuracies == (10.5, 10.5, 9.5, 5.0, 3.0)
    rows = measure_prunability(model, output, unit="kernels", kappas=(0.25, 0.5, 0.75))
    assert rows.accuracies == (9.5, 7.5, 3.0)  # norms 2.6, 1, 3 and 2


def test_the_order_of_kappas_does_not_matter_and_the_whole_is_always_measured() -> None:
    found = measure_prunability(tiny(), output, kappas=(0.75, 0.25))
    assert (found.accuracies, found.whole) == ((4.0, 9.0), 10.0)
    assert found.mean == pytest.approx((0.4 + 0.9) / 2)


def test_biases_and_norms_of_pruned_nodes_stay() -> None:
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 1, bias=False)).eval()
    with torch.no_grad():
        for name, values in (("0.weight", [[1.0], [2.0]]), ("0.bias", [5.0, 7.0]), ("2.weight", [[1.0, 1.0]])):
            model.get_parameter(name).copy_(torch.tensor(values))
        model.get_parameter("1.bias").fill_(100.0)
    found = measure_prunability(model, lambda m: float(m(torch.ones(1, 1))), kappas=(0.0, 1.0))
    assert found.accuracies == pytest.approx((215, 212), abs=1e-2)  # 1 and 2 are gone, 5 + 7 + 200 are not


class Kept:
    """Remember which weights a model still has at every step."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Tensor]] = []

    def __call__(self, model: nn.Module) -> float:
        self.seen.append({name: p.detach() != 0 for name, p in model.named_parameters()})
        return 1.0


def convolutions() -> nn.Sequential:
    """Two convolutions and a head; the second has two filters of two 1 x 2 kernels each."""
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, (1, 2)), nn.Flatten(), nn.Linear(2, 3))
    with torch.no_grad():
        model.get_parameter("1.weight").copy_(
            torch.tensor([[[[1.0, 1.0]], [[9.0, 0.5]]], [[[3.0, 4.0]], [[3.0, 3.0]]]])
        )
    return model


@pytest.mark.parametrize(
    ("unit", "kept"),
    [
        ("filters", [[1, 1, 1, 1], [0, 0, 0, 0]]),  # norms 9.1 and 6.6
        ("kernels", [[0, 0, 1, 1], [1, 1, 0, 0]]),  # norms 1.4, 9.01, 5 and 4.2
        ("weights", [[0, 0, 1, 0], [0, 1, 1, 1]]),  # 0.5, 1, 1, and of three 3 the first
    ],
)
def test_half_of_a_convolution_by_hand(unit: Unit, kept: list[list[int]]) -> None:
    log = Kept()
    measure_prunability(convolutions(), log, unit=unit, kappas=(0.5,))
    _, half = log.seen
    assert half["1.weight"].flatten(1).int().tolist() == kept
    assert all(bool(half[name].all()) for name in half if name != "1.weight")  # first, last and biases are whole


def test_filters_of_a_transposed_convolution_are_those_of_its_outputs() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(2, 2, 1, bias=False))
    with torch.no_grad():
        model.get_parameter("0.weight").copy_(torch.tensor([[9.0, 1.0], [1.0, 2.0]])[..., None, None])
    log = Kept()
    measure_prunability(model, log, unit="filters", kappas=(0.5,), skip=())
    assert log.seen[1]["0.weight"].flatten(1).int().tolist() == [[1, 0], [1, 0]]  # by columns: 9.06 and 2.2


def test_counts_are_not_lost_to_rounding() -> None:
    model, log = nn.Sequential(nn.Linear(3, 100), nn.Linear(100, 2)), Kept()
    measure_prunability(model, log, kappas=(0.29,))  # 0.29 * 100 is 28.999999999999996
    assert int((~log.seen[1]["0.weight"]).any(dim=1).sum()) == 29


def test_what_is_spared_by_default() -> None:
    assert find_skipped_weights(build("mlp", input_shape=(1, 8, 8), n_classes=10)) == {"head.weight"}
    resnet = build("resnet20", input_shape=(3, 32, 32), n_classes=10)
    spared = find_skipped_weights(resnet)
    assert "head.weight" in spared
    assert len(spared) == 2
    (first,) = spared - {"head.weight"}
    assert resnet.get_parameter(first).shape[1] == 3  # the one that reads the image


def test_the_head_may_be_pruned_and_others_spared() -> None:
    found = measure_prunability(tiny(), output, kappas=(0.0, 1.0), skip=("0.weight",))
    assert found.accuracies == (10.0, 0.0)
    assert measure_prunability(tiny(), output, kappas=(0.25,), skip=()).accuracies == (9.0,)


@pytest.mark.parametrize("unit", ["kernels", "weights"])
def test_the_model_is_left_as_it_was_whatever_is_done_to_the_copy(unit: Unit) -> None:
    model = tiny().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def spoil(copy: nn.Module) -> float:
        assert not copy.training
        assert not torch.is_grad_enabled()
        copy.train()
        next(copy.parameters()).mul_(2)
        return 1.0

    measure_prunability(model, spoil, unit=unit)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_a_mask_has_pruned_counts_as_smallest() -> None:
    model = tiny()
    keep = torch.ones(4, 4, dtype=torch.bool)
    keep[0] = False  # the largest neuron
    prune(model, {"0.weight": keep})
    found = measure_prunability(model, output, kappas=(0.0, 0.25, 0.5))
    assert found.accuracies == (6.0, 6.0, 5.0)
    assert output(model.requires_grad_(False)) == 6.0
    learning = tiny()
    add_learned_masks(learning, squashed=False)
    assert measure_prunability(learning, output, kappas=(0.25, 0.75)).accuracies == (9.0, 4.0)


def test_a_shared_weight_is_pruned_as_one() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1))
    model[1].weight = model[0].weight
    with torch.no_grad():
        model.get_parameter("0.weight").copy_(torch.tensor([[1.0, 1.0], [5.0, 5.0]]))
    log = Kept()
    measure_prunability(model, log, kappas=(0.5,))
    assert log.seen[1]["0.weight"].int().tolist() == [[0, 0], [1, 1]]


def test_a_model_that_was_never_right_has_nothing_to_keep() -> None:
    assert math.isnan(Prunability((0.0, 0.5), (0.0, 0.0), 0.0).mean)


def test_above_chance_a_model_that_guesses_keeps_nothing() -> None:
    found = Prunability((0.0, 0.3, 0.6, 0.9), (0.9, 0.5, 0.3, 0.1), 0.9)
    assert found.mean_accuracy == pytest.approx(0.45)
    assert found.above_chance(10) == pytest.approx((1 + 0.5 + 0.25 + 0) / 4)
    assert found.mean == pytest.approx((1 + 5 / 9 + 3 / 9 + 1 / 9) / 4)
    assert math.isnan(Prunability((0.0, 0.5), (0.5, 0.5), 0.5).above_chance(2))


def test_the_papers_floor_of_ten_classes() -> None:
    # accuracy 96 % at kappa 0 and guessing from there on: the least that a mean can be, and near the least printed
    found = Prunability(KAPPAS, (0.96, *[0.1] * 9), 0.96)
    assert found.mean == pytest.approx(0.194, abs=5e-4)
    assert found.total >= 1  # which no printed value could be, were they sums


def test_what_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"No unit of pruning is called 'kernel'. Did you mean 'kernels'\?"):
        measure_prunability(tiny(), output, unit="kernel")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"from 0 to 1, got \[1.5\]"):
        measure_prunability(tiny(), output, kappas=(0.0, 1.5))
    with pytest.raises(InputError, match="one or more from 0 to 1, got none"):
        measure_prunability(tiny(), output, kappas=())
    with pytest.raises(InputError, match=r"is called '0.wieght'. Did you mean '0.weight'\?"):
        measure_prunability(tiny(), output, skip=("0.wieght",))
    with pytest.raises(InputError, match=r"nothing to prune.*\(got 0.weight\). Pass skip=\(\)"):
        measure_prunability(nn.Sequential(nn.Linear(2, 2)), output)


@pytest.mark.parametrize("rule", [parametrizations.orthogonal, parametrizations.weight_norm, spectral_norm])
def test_a_weight_that_is_computed_from_others_is_refused(rule: Callable[[nn.Module], nn.Module]) -> None:
    model = tiny()
    rule(model[0])
    with pytest.raises(InputError, match=r"'0.weight' is computed from other parameters"):
        measure_prunability(model, output)


@pytest.mark.parametrize("unit", ["weights", "filters"])
def test_what_is_left_is_what_torch_leaves(unit: Unit) -> None:
    import torch.nn.utils.prune

    theirs: Any = torch.nn.utils.prune
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 12, 3, groups=2), nn.Flatten(), nn.Linear(48, 20), nn.Linear(20, 4)
    ).eval()
    x = torch.randn(5, 3, 6, 6)
    found = measure_prunability(net, lambda model: float(model(x).double().abs().sum()), unit=unit, kappas=(0.3, 0.5))
    for kappa, ours in zip(found.kappas, found.accuracies, strict=True):
        other: Any = copy.deepcopy(net)
        for layer in (other[2], other[4]):
            if unit == "weights":
                theirs.l1_unstructured(layer, "weight", amount=int(kappa * layer.weight.numel() + 1e-9))
            else:
                theirs.ln_structured(layer, "weight", amount=int(kappa * len(layer.weight) + 1e-9), n=2, dim=0)
        assert ours == pytest.approx(other(x).double().abs().sum().item(), rel=1e-5)
