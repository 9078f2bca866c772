"""Hidden regions: a region that misleads is found by hiding it; one that tells the truth is not."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from spurless.auditing._context import AuditContext
from spurless.auditing.hidden_regions import (
    HiddenPredictions,
    audit_hidden_regions,
    corrected_fraction,
    mask_hottest,
    overconfidence_p_value,
    predict_hidden,
    shift_masks,
)
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.input_masks import InputMask
from spurless.data.split import Split
from spurless.data.transforms import Normalise, Resize
from spurless.models.classifier import Classifier

SIDE = 12


def subject_of(trust: float, n: int = 160, seed: int = 0) -> tuple[AuditContext, Tensor]:
    """A linear model of pixels: it reads a dark or light stripe below, and by ``trust`` a square in the corner.

    Labels are drawn as its reading of the stripe says; the square is on half of the images, whatever the label.
    """
    generator = torch.Generator().manual_seed(seed)
    images = torch.zeros(n, 1, SIDE, SIDE)
    marked = torch.rand(n, generator=generator) < 0.5
    images[:, 0, :3, :3] = marked.float()[:, None, None]
    stripe = torch.rand(n, generator=generator)
    images[:, 0, 8:, :] = stripe[:, None, None]
    weight = torch.zeros(1, SIDE, SIDE)
    weight[0, 8:, :] = 20 / (4 * SIDE)
    honest = (images * weight).sum(dim=(1, 2, 3)) - 10
    weight[0, :3, :3] = trust / 9
    y = (torch.rand(n, generator=generator) < honest.sigmoid()).long()
    model = Classifier(nn.Flatten(), nn.Linear(SIDE * SIDE, 2))
    with torch.no_grad():
        model.head.weight.copy_(torch.stack([torch.zeros(SIDE * SIDE), weight.flatten()]))  # type: ignore[operator]
        model.head.bias.copy_(torch.tensor([0.0, -10.0]))  # type: ignore[operator]
        logits = model(images)
    split = Split(images, y, torch.full_like(y, -1), Groups(("dark", "light")))
    return AuditContext(model, split, images.flatten(1), logits, seeds=Seeds(seed), permutations=99), marked


def test_a_square_that_misleads_is_found_and_its_images_are_shown() -> None:
    context, marked = subject_of(20.0)
    found = audit_hidden_regions(context)
    assert found.flagged
    assert found.p is not None
    assert found.p == 0.01
    assert found.numbers["put_right_by_hot"] > 0.5  # a hidden pixel has the mean light, not none
    assert found.numbers["put_right_by_other"] < 0.1
    assert found.severity == pytest.approx(found.numbers["put_right_by_hot"] - found.numbers["put_right_by_other"])
    assert all(bool(marked[row]) and bool(context.incorrect[row]) for row in found.rows[:10])
    assert "corrects" in found.because
    assert "masktune" in found.remedy
    assert len(found.items) == 2
    assert found.items[1].title == "Errors that hiding the region corrects"


def test_what_is_hot_is_the_square() -> None:
    context, marked = subject_of(20.0)
    index = marked.nonzero().flatten()
    found = predict_hidden(context, index)
    masks = found.masks.masks(torch.arange(len(index)))
    assert bool(masks[:, :3, :3].all())
    assert masks.sum(dim=(1, 2)).tolist() == [14] * len(index)  # a tenth of 144


def test_a_square_that_decides_everything_is_found() -> None:
    """Labels have nothing to do with the images: there is no better prediction, but such a model is too bold."""
    context, _ = subject_of(24.0)
    y, weight = torch.arange(160) % 2, context.model.head.weight
    with torch.no_grad():
        weight[1].view(SIDE, SIDE)[8:] = 0  # type: ignore[index]
        logits = context.model(context.split.x)
    found = audit_hidden_regions(replace(context, split=replace(context.split, y=y), logits=logits))
    assert found.p == 0.01
    assert found.flagged


def test_an_honest_model_is_left_alone() -> None:
    """40 problems without a shortcut; the level allows 2."""
    found = [audit_hidden_regions(subject_of(0.0, n=100, seed=seed)[0]) for seed in range(40)]
    assert sum(one.flagged for one in found) <= 2
    assert sum(one.p is not None and one.p <= 0.05 for one in found) <= 5  # P(more) = 0.01


def test_put_right_counts_mistakes_alone() -> None:
    hot, other = torch.tensor([1, 0, 1, 0]), torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
    found = HiddenPredictions(torch.arange(4), InputMask.of(torch.zeros(4, 2, 2)), hot, other)
    said = torch.tensor([0, 1, 0, 1])
    # labels 1 0 0 1: the first two are wrong; hot puts both right, others none of the first and half of the second
    assert corrected_fraction(torch.tensor([1, 0, 0, 1]), said, found) == (1 + 0.5) / 2
    # all right: nothing to put right
    assert corrected_fraction(said, said, found) == 0.0


def test_too_bold_is_about_predictions_that_rest_on_the_region() -> None:
    """Half of the predictions rest on the region; where only these are wrong, and all are as sure, p is small."""
    n = 200
    said, rests = torch.arange(n) % 2, torch.arange(n) < n // 2
    logits = 3.0 * torch.nn.functional.one_hot(said, 2)
    hot = torch.where(rests, 1 - said, said)
    found = HiddenPredictions(torch.arange(n), InputMask.of(torch.zeros(n, 2, 2)), hot, said.expand(3, -1))
    base, _ = subject_of(0.0, n=n)
    for wrong, small in ((rests & (torch.arange(n) % 4 < 2), True), (~rests & (torch.arange(n) % 4 < 2), False)):
        y = torch.where(wrong, 1 - said, said)
        context = replace(base, split=replace(base.split, y=y), logits=logits)
        p = overconfidence_p_value(context, found)
        assert (p == 0.01) if small else (p > 0.9)


def test_moved_masks_keep_their_shape_and_leave_their_place() -> None:
    masks = torch.zeros(50, 8, 12, dtype=torch.bool)
    masks[:, 1:3, 2:5] = True
    other = shift_masks(masks, torch.Generator().manual_seed(0))
    assert other.sum(dim=(1, 2)).tolist() == [6] * 50
    assert not bool((masks & other).any())  # by 2 rows and 3 columns at least
    assert all(int(mask.any(dim=1).sum()) == 2 and int(mask.any(dim=0).sum()) == 3 for mask in other)
    assert len({tuple(mask.flatten().tolist()) for mask in other}) > 5


def test_a_map_without_heat_hides_nothing() -> None:
    assert int(mask_hottest(torch.zeros(2, 5, 5)).sum()) == 0
    assert int(mask_hottest(torch.rand(2, 10, 10), 0.1).sum()) == 20


def test_at_most_so_many_images_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spurless.auditing.hidden_regions.MAX_EXAMPLES", 90)
    context, _ = subject_of(20.0)
    found = audit_hidden_regions(context)
    assert found.numbers["images"] == 90
    again = audit_hidden_regions(context)
    assert (found.p, found.rows, found.numbers) == (again.p, again.rows, again.numbers)


def test_the_model_may_see_another_size_and_scale() -> None:
    context, _ = subject_of(20.0)
    large = (context.split.x.repeat_interleave(2, 2).repeat_interleave(2, 3) * 255).to(torch.uint8)  # type: ignore[union-attr]
    small = replace(context.split, x=large, transform=lambda x: Normalise((0.0,), (1.0,))(Resize(SIDE, SIDE)(x)))
    found = audit_hidden_regions(replace(context, split=small))
    assert found.flagged
    assert found.severity > 0.5


def test_what_cannot_be_answered_is_said() -> None:
    context, _ = subject_of(20.0)
    rows = Split(torch.randn(160, 4), context.y, context.split.a, context.split.groups)
    found = audit_hidden_regions(replace(context, split=rows))
    assert (found.p, found.flagged, found.because) == (None, False, "Not tested: these examples are not images.")
    right = replace(context, split=replace(context.split, y=context.predicted))
    assert "0 errors in 160" in audit_hidden_regions(right).because
