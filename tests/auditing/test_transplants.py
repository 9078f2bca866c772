"""Transplants: follow rates by hand and by theory, and shortcuts that no held-out example breaks."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import spurless as sp
from spurless.auditing import audit
from spurless.auditing._context import AuditContext, compute_context
from spurless.auditing.swapped_backgrounds import SwappedPredictions
from spurless.auditing.transplants import (
    FollowRate,
    audit_transplants,
    flagged_properties,
    follow_donors,
    measure_follow_rate,
    sample_pool,
    select_specific,
)
from spurless.core.groups import Groups
from spurless.data.split import Split, Splits
from spurless.data.transplants import list_transplants, list_transplants_of_shape
from spurless.models.classifier import Classifier
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, make_run

GROUPS = Groups(("minus", "plus"))


def context_of(model: nn.Module, x: Tensor, y: Tensor) -> AuditContext:
    split = Split(x, y, torch.full_like(y, -1), GROUPS)
    run = make_run(Compute("cpu"), 0, TrainConfig())
    return replace(compute_context(sp.wrap(model), split, run), permutations=99)


def linear(*weights: float) -> Classifier:
    """Return a model that predicts "plus" if the weighted sum of the features is positive."""
    head = nn.Linear(len(weights), 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[-w for w in weights], list(weights)]))
    model = Classifier(nn.Identity(), head)
    model.trained = True
    return model


def test_follow_rates_by_hand() -> None:
    # sign(x0 + 2 x1): a donor's x1 decides, its x0 does not
    x = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    y = torch.tensor([1, 1, 0, 0])
    context = context_of(linear(1.0, 2.0), x, y)
    transplants = list_transplants(context.split)
    rows, donors = torch.arange(4), torch.tensor([[2, 3, 0, 1], [1, 0, 3, 2]])
    by_second = follow_donors(context, context.split, transplants["feature 1"], rows, donors)
    by_first = follow_donors(context, context.split, transplants["feature 0"], rows, donors)
    assert (by_second.followed, by_second.pairs, by_second.changed, by_second.controls) == (4, 4, 0, 4)
    assert (by_first.followed, by_first.rate, by_first.effect) == (0, 0.0, 0.0)
    assert by_second.effect == 1.0


@pytest.mark.parametrize("weights", [(1.0, 1.0), (2.0, 1.0), (0.5, 1.0)])
def test_the_follow_rate_of_a_linear_model_is_a_formula(weights: tuple[float, float]) -> None:
    """With A, B: both are predicted correctly, and C: the transplanted one is predicted as the donor, P(C | A, B).

    A = w.x1, B = -w.x2 and C = -(w0 x1_0 + w1 x2_1) are jointly normal.
    """
    from scipy.stats import multivariate_normal

    means, n = (1.0, 1.5), 40_000
    generator = torch.Generator().manual_seed(1000)
    y = torch.arange(n) % 2
    x = torch.randn(n, 2, generator=generator) + (2.0 * y - 1)[:, None] * torch.tensor(means)
    context = context_of(linear(*weights), x, y)
    correct = (~context.incorrect).nonzero().flatten()
    pool = context.split.select(correct)
    measured = measure_follow_rate(
        context, pool, torch.arange(len(pool)), list_transplants(pool)["feature 1"], "test", controls=False
    )
    (w0, w1), (m0, m1) = weights, means
    mean = [w0 * m0 + w1 * m1, w0 * m0 + w1 * m1, w1 * m1 - w0 * m0]
    size = w0**2 + w1**2
    cov = [[size, 0.0, -(w0**2)], [0.0, size, w1**2], [-(w0**2), w1**2, size]]
    joint = float(multivariate_normal([-v for v in mean], cov).cdf([0.0, 0.0, 0.0]))
    alone = float(multivariate_normal([-mean[0], -mean[1]], [row[:2] for row in cov[:2]]).cdf([0.0, 0.0]))
    assert measured.rate == pytest.approx(joint / alone, abs=0.01)


def images(y: Tensor, size: int = 12, seed: int = 0) -> Tensor:
    """Return noise with a bright center in images of label 1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 60, (len(y), 3, size, size), generator=generator, dtype=torch.uint8)
    x[y == 1, :, 5:7, 5:7] = 200
    return x


class Reads(nn.Module):
    """The brightness of a rectangle, as the logit of "plus"."""

    def __init__(self, rows: slice, columns: slice) -> None:
        super().__init__()
        self.rows, self.columns = rows, columns

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, :, self.rows, self.columns].mean((1, 2, 3)) - 0.35)[:, None]


def model_that_reads(rows: slice, columns: slice) -> Classifier:
    model = Classifier(Reads(rows, columns), linear(1.0).head)
    model.trained = True
    return model


CORNER, CENTER = (slice(0, 3), slice(0, 3)), (slice(5, 7), slice(5, 7))


def marked_images(n: int = 200) -> tuple[Tensor, Tensor]:
    """Return images of which label 1 has a bright corner and a bright center."""
    y = torch.arange(n) % 2
    x = images(y)
    x[y == 1, :, :3, :3] = 200
    return x, y


def test_a_corner_that_decides_is_named_although_no_example_breaks_the_shortcut() -> None:
    finding = audit_transplants(context_of(model_that_reads(*CORNER), *marked_images()))
    assert finding.flagged
    assert finding.doubt == ""
    assert finding.shortcut == "the top left corner"
    assert finding.numbers["follow rate: the top left corner"] == 1.0
    assert [key for key in finding.numbers if key.startswith("flagged")] == ["flagged: the top left corner"]
    assert finding.p == 0.01  # 1 / (99 + 1)


def test_an_outer_region_is_only_suspicious_if_its_inner_part_is_what_decides() -> None:
    """In 12 x 12 pixels the central ellipse has rows 1 to 10 of the middle columns, and the top band is rows 0 to 2."""
    x, y = marked_images()
    x[:, :, :3] = x[:, :, 5:6, 5:6]  # the top band has the brightness of the label
    for rows, is_certain in ((slice(0, 1), True), (slice(2, 3), False)):
        finding = audit_transplants(context_of(model_that_reads(rows, slice(5, 7)), x, y))
        assert finding.flagged
        assert finding.numbers[f"follow rate: {finding.shortcut}"] == 1.0
        assert (finding.doubt == "") is is_certain
        assert ("--property" in finding.remedy) is not is_certain


def test_a_color_and_a_corner_that_both_decide_are_both_flagged() -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            corner, inside = x[:, :, :3, :3].mean((1, 2, 3)) - 0.35, x[:, :, 3:9, 3:9].mean((2, 3))
            red = inside[:, 0] - inside[:, 1] - 0.1
            return torch.where(torch.arange(len(x)) % 2 == 0, corner, red)[:, None]

    x, y = marked_images()
    x[:, 0] += (100 * y)[:, None, None].to(torch.uint8).clamp(max=55)  # a red tint
    model = Classifier(Both(), linear(1.0).head)
    model.trained = True
    finding = audit_transplants(context_of(model, x, y))
    flagged = [key.removeprefix("flagged: ") for key in finding.numbers if key.startswith("flagged: ")]
    assert flagged[0] == "the top left corner"
    assert len(flagged) == 2
    assert flagged[1] in ("the color", "the mean color")


def test_the_center_is_use_and_not_a_shortcut() -> None:
    finding = audit_transplants(context_of(model_that_reads(*CENTER), *marked_images()))
    assert not finding.flagged
    assert finding.shortcut is None
    assert finding.numbers["follow rate: the center"] == 1.0
    assert "reported as use only" in finding.because


def test_features_of_a_table_are_use_and_not_a_shortcut() -> None:
    y = torch.arange(100) % 2
    x = torch.stack([2.0 * y - 1, 2.0 * y - 1], 1)
    finding = audit_transplants(context_of(linear(0.0, 1.0), x, y))
    assert (finding.flagged, finding.numbers["follow rate: feature 1"]) == (False, 1.0)


def test_too_few_correct_examples_are_not_tested() -> None:
    x, y = marked_images(16)
    assert audit_transplants(context_of(model_that_reads(*CORNER), x, y)).p is None
    y = torch.zeros(100, dtype=torch.long)  # one class has no donors
    assert audit_transplants(context_of(model_that_reads(*CORNER), images(y), y)).p is None


def test_the_pool_has_as_many_of_every_class_and_only_correct_ones() -> None:
    y = (torch.arange(2000) % 10 == 0).long()  # 200 of label 1
    x = images(y)
    x[y == 1, :, :3, :3] = 200
    x[:400, :, :3, :3] = 200  # so 360 of label 0 are predicted incorrectly
    context = context_of(model_that_reads(*CORNER), x, y)
    pool = sample_pool(context)
    assert torch.bincount(pool.y).tolist() == [160, 160]
    assert bool((pool.x[pool.y == 0][:, 0, 0, 0] < 100).all())  # type: ignore[index]  # a tensor


def rate(name: str, effect: float) -> FollowRate:
    empty = torch.zeros(0, dtype=torch.long)
    swapped = SwappedPredictions(empty, empty[None], empty[None])
    return FollowRate(list_transplants_of_shape((3, 24, 24))[name], 0, 1, 0, 1, effect, swapped)


def test_the_most_specific_property_is_named_and_regions_do_not_overlap() -> None:
    def names(*rates: FollowRate) -> list[str]:
        return [r.name for r in select_specific(rates)]

    corner, band = rate("the top left corner", 0.9), rate("the left band", 1.0)
    assert names(band, corner, rate("the frame", 0.95)) == ["the top left corner"]
    assert names(band, rate("the top left corner", 0.5)) == ["the left band"]  # the corner is only a part of it
    assert names(corner, rate("the bottom right corner", 0.5)) == ["the top left corner", "the bottom right corner"]
    assert names(rate("the color", 0.85), rate("the low frequencies", 1.0)) == ["the color"]
    assert names(corner, rate("the color", 0.4), rate("the mean color", 0.5)) == [
        "the top left corner",
        "the mean color",
    ]
    assert names() == []


def biased_splits(conflicting: float, seed: int) -> Splits:
    data = sp.load("patched-digits", conflicting=conflicting, val_conflicting=conflicting, size=16, seed=seed)
    parts = {part: getattr(data, part).hide_attributes() for part in ("train", "val")}
    return replace(data, **parts)


@pytest.mark.slow  # trains six networks
def test_no_false_all_clear_and_no_false_alarm() -> None:
    train = {"epochs": 20, "batch_size": 64, "lr": 0.01}
    for seed in (1000, 1001):
        for conflicting in (0.0, 0.01, 0.5):
            data = biased_splits(conflicting, seed)
            model = sp.fit("erm", sp.build("small-cnn", data, width=8, hidden=64), data, seed=seed, train=train).model
            report = audit(model, data, seed=seed)
            if conflicting == 0.5:  # the corner is independent of the label
                assert report.verdict == "inconclusive"  # a model without errors looks the same
                assert flagged_properties(report) == ()
            else:
                assert report.verdict == "shortcut"
                assert flagged_properties(report)[0] == "the top left corner"
