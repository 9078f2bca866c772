"""Swapped backgrounds: a model of the background follows it, a model of the foreground does not."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spurless.auditing._context import AuditContext
from spurless.auditing._permutation import p_value
from spurless.auditing.swapped_backgrounds import (
    SwappedPredictions,
    audit_swapped_backgrounds,
    compute_following,
    fill_masked,
    predict_swapped,
    swap_backgrounds,
)
from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split
from spurless.models.classifier import Classifier

SIDE = 12


def subject_of(
    front: float, behind: float, agree: float = 1.0, n: int = 100, seed: int = 0
) -> tuple[AuditContext, Tensor]:
    """Squares on a background, both light where the label is 1, the background in a share ``agree`` of the images.

    The model is linear in the light of the middle and of the rim, by the weights ``front`` and ``behind``.
    """
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=generator)
    light = torch.where(torch.rand(n, generator=generator) < agree, y, 1 - y)
    masks = torch.zeros(n, SIDE, SIDE, dtype=torch.bool)
    masks[:, 4:8, 4:8] = True
    noise = 0.1 * torch.rand(n, 1, SIDE, SIDE, generator=generator)
    images = noise + 0.8 * torch.where(masks[:, None], y[:, None, None, None], light[:, None, None, None])
    weight = torch.where(masks[0], front / 16, behind / (SIDE * SIDE - 16)).flatten()
    model = Classifier(nn.Flatten(), nn.Linear(SIDE * SIDE, 2))
    with torch.no_grad():
        model.head.weight.copy_(torch.stack([torch.zeros_like(weight), weight]))  # type: ignore[operator]
        model.head.bias.copy_(torch.tensor([0.0, -0.45 * (front + behind)]))  # type: ignore[operator]
        logits = model(images)
    split = Split(images, y, torch.full_like(y, -1), Groups(("dark", "light")))
    return AuditContext(model, split, images.flatten(1), logits, seeds=Seeds(seed), permutations=199), masks


def test_a_model_of_the_background_follows_it_always() -> None:
    context, masks = subject_of(0.0, 10.0)
    found = audit_swapped_backgrounds(replace(context, masks=masks))
    assert (found.severity, found.p, found.flagged) == (1.0, 1 / 200, True)
    assert found.shortcut == "the background"
    assert found.numbers["accuracy"] == found.numbers["accuracy_equal_background"] == 1
    assert found.numbers["accuracy_other_background"] == 0
    assert (found.numbers["changed_other_background"], found.numbers["changed_equal_background"]) == (1, 0)
    assert "foregrounds get that prediction, 100 % (95 % interval 9" in found.because
    assert len(found.rows) == 24
    assert [item.title for item in found.items][1] == "Foregrounds that follow the background"
    assert "predicted light" in found.items[1].caption


def test_a_model_of_the_foreground_does_not() -> None:
    context, masks = subject_of(10.0, 0.0)
    found = audit_swapped_backgrounds(replace(context, masks=masks))
    assert (found.severity, found.flagged, found.rows) == (0.0, False, ())
    assert found.p == 1.0
    assert found.numbers["accuracy_other_background"] == 1


def test_a_model_that_reads_both_is_told_by_how_often_the_background_wins() -> None:
    """The foreground outweighs the background, but where the two cannot be told apart by much."""
    context, masks = subject_of(10.0, 9.9)
    found = audit_swapped_backgrounds(replace(context, masks=masks))
    assert 0.2 < found.severity < 0.8
    assert found.flagged


def test_a_background_is_followed_where_it_has_nothing_to_do_with_labels() -> None:
    """As on a split that was balanced by hand: the shortcut is in the model, not in these data."""
    context, masks = subject_of(0.0, 10.0, agree=0.5)
    found = audit_swapped_backgrounds(replace(context, masks=masks))
    assert (found.severity, found.flagged) == (1.0, True)
    assert 0.3 < found.numbers["accuracy"] < 0.7


def test_a_model_that_is_led_by_anything_but_the_background_is_left_alone() -> None:
    """Swapped images are odd, and change predictions at random: 40 problems, of which the level allows 2."""
    small = 0
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        own, behind = (
            torch.randint(3, (60,), generator=generator),
            torch.stack([torch.randperm(60, generator=generator) for _ in range(2)]),
        )
        said = torch.where(
            torch.rand(2, 60, generator=generator) < 0.6, own, torch.randint(3, (2, 60), generator=generator)
        )
        found = SwappedPredictions(torch.arange(60), behind, said)
        mixed = torch.stack([torch.randperm(60, generator=generator) for _ in range(99)])
        chance = compute_following(found, own, own[mixed], 3)
        small += p_value(float(compute_following(found, own, own[None], 3)), chance) <= 0.05
    assert small <= 5  # P(more | Binomial(40, 0.05)) = 0.01


def test_p_is_that_of_permuted_predictions_behind() -> None:
    """A model of the foreground that backgrounds disturb a little, and a p that is neither small nor 1."""
    context, masks = subject_of(10.0, 7.7, agree=0.5, n=60, seed=1)
    own, found = context.predicted, predict_swapped(context, masks, torch.arange(60))
    said = found.predicted.where(
        torch.rand(2, 60, generator=torch.Generator().manual_seed(0)) < 0.5, 1 - found.predicted
    )
    noisy = replace(found, predicted=said)
    generator = torch.Generator().manual_seed(1)
    observed = float(compute_following(noisy, own, own[None], 2))
    chance = [
        float(compute_following(noisy, own, own[torch.randperm(60, generator=generator)][None], 2)) for _ in range(199)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spurless.auditing.swapped_backgrounds.predict_swapped", lambda *_: noisy)
        p = audit_swapped_backgrounds(replace(context, masks=masks)).p
    assert p == pytest.approx(p_value(observed, chance), abs=0.12)  # other draws of the same chance
    assert 0.1 < p_value(observed, chance) < 0.9


def test_every_background_is_used_as_often() -> None:
    context, masks = subject_of(1.0, 1.0, n=40)
    found = predict_swapped(context, masks, torch.arange(40))
    assert [row.sort().values.tolist() for row in found.behind] == [list(range(40))] * 2
    assert not torch.equal(found.behind[0], found.behind[1])


def test_what_is_followed_is_counted_by_hand() -> None:
    """Three labels; foregrounds 0 1 2 2, on the backgrounds of the last, the first, the second and the third."""
    y = torch.tensor([0, 1, 2, 2])
    found = SwappedPredictions(torch.arange(4), torch.tensor([[3, 0, 1, 2]]), torch.tensor([[2, 1, 1, 0]]))
    # other labels: 2 followed, 0 not, 1 followed: 2/3; the equal one is wrong: 1/2 for each of the other labels
    assert compute_following(found, y, y[None], 3).tolist() == pytest.approx([2 / 3 - 1 / 2])
    labels = torch.tensor([[2, 0, 2, 1]])  # behind: 1, 2, 0, 2 -> other, other, other, equal; followed: none; wrong: 1
    assert compute_following(found, y, labels, 3).tolist() == pytest.approx([0 - 1 / 2])


def test_pixels_are_put_where_they_belong() -> None:
    context, masks = subject_of(1.0, 1.0, n=4)
    one, two = torch.tensor([0]), torch.tensor([3])
    images: Any = context.split.x
    found = swap_backgrounds(context.split, masks, one, two)[0, 0]
    assert torch.equal(found[4:8, 4:8], images[0, 0, 4:8, 4:8])
    assert torch.equal(found[:4], images[3, 0, :4])
    masks[3] = False
    masks[3, :2] = True  # another foreground: its place is filled, and the first one's is not larger for it
    found = swap_backgrounds(context.split, masks, one, two)[0, 0]
    assert torch.equal(found[4:8, 4:8], images[0, 0, 4:8, 4:8])
    assert torch.equal(found[2:4], images[3, 0, 2:4])
    assert not torch.equal(found[:2], images[0, 0, :2])
    assert not torch.equal(found[:2], images[3, 0, :2])
    bytes_ = replace(context.split, x=(images * 255).to(torch.uint8))
    assert swap_backgrounds(bytes_, masks, one, two).dtype == torch.uint8


def test_nothing_of_the_old_foreground_is_left() -> None:
    image = torch.full((1, 3, 16, 16), 0.25)
    mask = torch.zeros(1, 16, 16, dtype=torch.bool)
    mask[0, 3:13, 2:11] = True
    image[:, :, 3:13, 2:11] = 99.0
    assert torch.allclose(fill_masked(image, mask), torch.full((1, 3, 16, 16), 0.25))
    ramp = torch.linspace(0, 1, 16).expand(1, 1, 16, 16).clone()
    filled = fill_masked(ramp.masked_fill(mask[:, None], 99.0), mask)
    assert float((filled - ramp).abs().max()) < 0.35  # a smooth guess between the two sides
    assert torch.equal(filled[:, :, :3], ramp[:, :, :3])


def test_swaps_are_the_same_each_time() -> None:
    context, masks = subject_of(1.0, 1.0)
    one, two = (predict_swapped(context, masks, torch.arange(100)) for _ in range(2))
    assert torch.equal(one.behind, two.behind)
    assert torch.equal(one.predicted, two.predicted)
    assert not torch.equal(
        one.behind, predict_swapped(replace(context, seeds=Seeds(1)), masks, torch.arange(100)).behind
    )


def test_images_without_a_foreground_or_a_background_are_left_out() -> None:
    context, masks = subject_of(0.0, 10.0)
    masks[:10], masks[10:20] = False, True
    assert audit_swapped_backgrounds(replace(context, masks=masks)).numbers["images"] == 80
    lonely = replace(context, logits=torch.tensor([[1.0, 0.0]]).expand(100, -1))
    assert "all have the same prediction" in audit_swapped_backgrounds(replace(lonely, masks=masks)).because


def test_what_cannot_be_answered_is_said_and_wrong_masks_are_refused() -> None:
    context, masks = subject_of(0.0, 10.0)
    assert audit_swapped_backgrounds(replace(context, masks=torch.zeros_like(masks))).p is None
    rows = Split(torch.randn(100, 4), context.y, context.split.a, context.split.groups)
    assert audit_swapped_backgrounds(replace(context, split=rows, masks=masks)).because.endswith(
        "these examples are not images."
    )
    with pytest.raises(InputError, match=r"the masks do not fit the images"):
        audit_swapped_backgrounds(replace(context, masks=masks[:50]))
