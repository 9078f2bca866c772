"""Moon and star: the two shapes, where they lie, and that they stay whole."""

from math import pi, sin

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.data import load
from spurless.data.datasets.moon_star import BOXES, FULL_BOX, MoonStarConfig, draw_shapes, moon_star, shapes
from spurless.data.split import Split

SMALL = MoonStarConfig(per_class=200, val_per_class=150, test_per_class=150)


def shifts(split: Split, size: int = 200) -> Tensor:
    """Return how far the box around each shape lies from where it lies unshifted."""
    assert isinstance(split.x, Tensor)
    home = draw_shapes(torch.tensor([0, 1]), torch.zeros(2, 2, dtype=torch.long), size)
    return corners(split.x) - corners(home)[split.y]


def corners(x: Tensor) -> Tensor:
    lit = x[:, 0] > 0
    return torch.stack([lit.any(dim=1).int().argmax(dim=1), lit.any(dim=2).int().argmax(dim=1)], dim=1)


def inside(shift: Tensor, box: tuple[int, int, int, int]) -> Tensor:
    x, y = shift.unbind(dim=1)
    return (box[0] <= x) & (x < box[1]) & (box[2] <= y) & (y < box[3])


def test_each_train_image_lies_in_a_box_of_its_attribute() -> None:
    train = moon_star(SMALL).train
    shift = shifts(train)
    for attribute, (first, second) in enumerate(BOXES):
        of = shift[train.a == attribute]
        in_first, in_second = inside(of, first), inside(of, second)
        assert (in_first ^ in_second).all()
        n = len(of)
        assert abs(int(in_first.sum()) - n / 2) < 4 * (n / 4) ** 0.5


def test_the_conflicting_counts_are_exact() -> None:
    assert moon_star(SMALL).train.counts.tolist() == [180, 20, 20, 180]
    assert moon_star(MoonStarConfig(0.0, 5, 1, 1)).train.counts.tolist() == [5, 0, 0, 5]


def test_the_sign_of_the_shift_is_the_attribute() -> None:
    data = moon_star(SMALL)
    for split in (data.train, data.val, data.test):
        shift = shifts(split)
        assert torch.equal(split.a, (shift[:, 0] * shift[:, 1] <= 0).long())


def test_val_and_test_are_uniform_over_the_whole_range_for_both_shapes() -> None:
    data = moon_star(MoonStarConfig(per_class=1, val_per_class=1, test_per_class=2000, size=100))
    shift = shifts(data.test, 100)
    low = torch.tensor([FULL_BOX[0], FULL_BOX[2]]) * 100 // 200
    high = torch.tensor([FULL_BOX[1], FULL_BOX[3]]) * 100 // 200
    for label in (0, 1):
        of = shift[data.test.y == label]
        assert torch.equal(of.amin(dim=0), low)
        assert torch.equal(of.amax(dim=0), high - 1)
        width = (high - low).double()
        error = ((width**2 - 1) / 12 / len(of)).sqrt()
        assert ((of.double().mean(dim=0) - (low + high - 1) / 2).abs() < 4 * error).all()


@pytest.mark.parametrize("size", [40, 64, 101, 200])
def test_a_shape_keeps_every_pixel_at_every_extreme_place(size: int) -> None:
    x_low, x_high, y_low, y_high = (edge * size // 200 for edge in FULL_BOX)
    corner = [[x, y] for x in (x_low, 0, x_high - 1) for y in (y_low, 0, y_high - 1)]
    for label, shape in enumerate(shapes(22 * size // 200)):
        x = draw_shapes(torch.full((9,), label), torch.tensor(corner), size)
        assert (x > 0).sum(dim=(1, 2, 3)).tolist() == [int(shape.sum())] * 9
        assert torch.equal(corners(x) - corners(x[4:5]), torch.tensor(corner))


def test_the_shifted_shape_is_the_shape_itself() -> None:
    shift = torch.tensor([[30, -20]])
    for label, shape in enumerate(shapes(22)):
        x = draw_shapes(torch.tensor([label]), shift, 200)[0, 0]
        top, left = 100 - 22 - 20, 100 - 22 + 30  # y is down, x is right
        assert torch.equal(x[top : top + 44, left : left + 44] > 0, shape)
        assert torch.unique(x).tolist() == [0, 255]


def test_the_shapes_have_the_area_of_their_formula() -> None:
    moon, star = shapes(200)  # fine enough that pixels count as area
    # five kites around the middle: tips at r, notches at r sin 18 / sin 54
    notch = sin(pi / 10) / sin(3 * pi / 10)
    assert int(star.sum()) / 200**2 == pytest.approx(5 * notch * sin(pi / 5), rel=0.01)
    # the bite of radius b reaches d + b = 1.2 > 1, so it is cut by the disc: the area of a lens, by quadrature
    t = (torch.arange(100_000, dtype=torch.double) + 0.5) / 50_000 - 1
    disc = (1 - t**2).sqrt()
    bite = (0.85**2 - (t - 0.35) ** 2).clamp(min=0).sqrt()
    assert int(moon.sum()) / 200**2 == pytest.approx(pi - float(2 * torch.minimum(disc, bite).mean() * 2), rel=0.01)


def test_the_star_has_five_points_and_the_moon_is_bitten_on_the_right() -> None:
    moon, star = shapes(100)
    angle = torch.arange(720, dtype=torch.double) / 720 * 2 * pi
    ring = star[(100 + 70 * angle.sin()).long(), (100 + 70 * angle.cos()).long()]
    assert int((ring & ~ring.roll(1)).sum()) == 5  # arcs of a circle through the points
    assert star[5, 100]  # one points up
    assert not moon[100, 130]
    assert moon[100, 10]


def test_the_shapes_have_about_the_same_number_of_pixels() -> None:
    moon, star = (int(shape.sum()) for shape in shapes(22))
    assert abs(moon - star) / star < 0.02


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("conflicting", 2.0),
        ("per_class", 0),
        ("test_per_class", 0),
        ("size", 39),
    ],
)
def test_bad_options_are_refused(option: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"option '{option}'.*got '?{value}"):
        load("moon-star", **{option: value})
