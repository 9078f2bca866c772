"""Calibration error by hand, and against a loop over the bins."""

import math

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.metrics.calibration import calibration_by_group, expected_calibration_error

GROUPS = Groups(("no", "yes"), ("left", "right"))


def confident(*confidence: float) -> Tensor:
    """Return rows that say "no" with these probabilities."""
    p = torch.tensor(confidence, dtype=torch.float64)
    return torch.stack([p, 1 - p], dim=1)


def test_two_bins_by_hand() -> None:
    p, y = confident(0.625, 0.625, 1.0, 1.0), torch.tensor([0, 1, 0, 0])
    # bin of 0.625: right 1/2, sure 0.625, off by 0.125 for 2 of 4; bin of 1: no error
    assert expected_calibration_error(p, y, bins=4) == pytest.approx(0.0625)


def test_too_shy_and_too_bold_in_one_bin_cancel_and_in_two_do_not() -> None:
    p, y = confident(0.75, 1.0), torch.tensor([0, 1])
    # one bin: right 1/2, sure 0.875; two bins: |1 - 0.75| / 2 + |0 - 1| / 2
    assert expected_calibration_error(p, y, bins=1) == pytest.approx(0.375)
    assert expected_calibration_error(p, y, bins=4) == pytest.approx(0.625)


def test_an_edge_belongs_to_the_bin_below() -> None:
    p, y = confident(0.75, 0.625), torch.tensor([0, 1])
    # with 4 bins both are in (0.5, 0.75]: |(1 - 0.75) + (0 - 0.625)| / 2
    assert expected_calibration_error(p, y, bins=4) == pytest.approx(0.1875)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_edge_is_an_edge_in_single_precision_too(dtype: torch.dtype) -> None:
    p, y = confident(0.8, 0.7).to(dtype), torch.tensor([0, 1])
    # with 5 bins both are in (0.6, 0.8]: |(1 - 0.8) + (0 - 0.7)| / 2; apart it would be 0.45
    assert expected_calibration_error(p, y, bins=5) == pytest.approx(0.25, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bins", [15, 20, 100])
def test_every_edge_is_an_edge(bins: int, dtype: torch.dtype) -> None:
    for k in range(bins // 2 + 1, bins):
        inside = (k - 0.5) / bins
        p, y = confident(k / bins, inside).to(dtype), torch.tensor([0, 1])
        assert expected_calibration_error(p, y, bins) == pytest.approx(abs(1 - k / bins - inside) / 2, abs=1e-6), k


def test_a_label_that_is_none_is_no_mistake() -> None:
    with pytest.raises(InputError, match="a label is out of range"):
        expected_calibration_error(confident(0.8, 0.7), torch.tensor([0, -1]))


def test_agrees_with_a_loop_over_the_bins() -> None:
    draw = torch.Generator().manual_seed(0)
    p = torch.randn(300, 3, generator=draw, dtype=torch.float64).softmax(dim=1)
    y = torch.randint(3, (300,), generator=draw)
    confidence, pred = p.max(dim=1)
    total = 0.0
    for i in range(15):
        inside = (confidence > i / 15) & (confidence <= (i + 1) / 15)
        if inside.any():
            right = (pred == y)[inside].double().mean()
            total += float(inside.double().mean() * (right - confidence[inside].mean()).abs())
    assert expected_calibration_error(p, y) == pytest.approx(total)


def test_groups_by_hand_and_an_empty_one_is_nan() -> None:
    p = confident(1.0, 1.0, 0.75, 0.75)
    y, a = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, -1])
    errors = calibration_by_group(p, y, a, GROUPS)
    # (no, left): sure and right; (yes, right): 0.75 sure of the wrong label; the last is in no group
    assert errors[[0, 3]].tolist() == [0.0, 0.75]
    assert errors.isnan().tolist() == [False, True, True, False]


def test_a_split_of_one_group_has_the_error_of_the_split() -> None:
    p, y, a = confident(0.9, 0.6, 0.7), torch.zeros(3).long(), torch.ones(3).long()
    assert float(calibration_by_group(p, y, a, GROUPS)[1]) == pytest.approx(expected_calibration_error(p, y))


def test_no_example_has_no_error() -> None:
    assert math.isnan(expected_calibration_error(torch.zeros(0, 2), torch.zeros(0).long()))


@pytest.mark.parametrize(
    ("p", "message"),
    [
        (torch.tensor([[2.0, -1.0], [0.5, 0.5]]), r"Pass logits.softmax\(dim=1\)"),
        (torch.tensor([[0.5, 0.4], [0.5, 0.5]]), "expected rows that sum to 1"),
        (torch.tensor([[math.nan, 0.4], [0.5, 0.5]]), "the rows are not probabilities"),
        (torch.ones(2), r"expected shapes \(N, classes\) and \(N,\), got \(2,\) and \(2,\)"),
        (torch.ones(3, 1), r"got \(3, 1\) and \(2,\)"),
    ],
)
def test_says_what_is_wrong(p: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        expected_calibration_error(p, torch.tensor([0, 1]))


def test_needs_a_bin() -> None:
    with pytest.raises(InputError, match=r"number of bins is out of range .*got 0"):
        expected_calibration_error(confident(1.0), torch.tensor([0]), bins=0)


@pytest.mark.parametrize("bins", [7, 10, 15])
def test_agrees_with_torchmetrics(bins: int) -> None:
    calibration = pytest.importorskip("torchmetrics.functional.classification")  # it comes with lightning
    generator = torch.Generator().manual_seed(0)
    p = (2 * torch.randn(500, 5, generator=generator)).softmax(dim=1)
    y = torch.randint(5, (500,), generator=generator)
    theirs = calibration.multiclass_calibration_error(p, y, num_classes=5, n_bins=bins, norm="l1")
    assert expected_calibration_error(p, y, bins) == pytest.approx(float(theirs), abs=1e-6)
