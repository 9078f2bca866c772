"""Textures: classes that differ by form alone, the same bytes for the same seed."""

import torch
from torch import Tensor

from spurless.data.datasets._textures import (
    CONTRAST,
    IMAGE_SIZE,
    NOISE_RANGE,
    TEXTURES,
    _colourize,
    _patterns,
    _shapes,
    draw_textures,
)


def drawn(seed: int = 0, n: int = 400) -> tuple[Tensor, Tensor]:
    y = torch.arange(n) % len(TEXTURES)
    return draw_textures(y, torch.Generator().manual_seed(seed)), y


def forms(scale: int = 0) -> dict[str, Tensor]:
    """The ink of one image of each class in the middle, at phase 0."""
    line = 2 * torch.arange(IMAGE_SIZE) - IMAGE_SIZE + 1
    where = line.view(1, -1, 1), line.view(1, 1, -1), torch.full((1, 1, 1), scale)
    return {k: v[0] for k, v in {**_patterns(*where, torch.zeros(2, 1, 1, 1)), **_shapes(*where)}.items()}


def test_the_seed_decides_every_byte() -> None:
    (first, _), (again, _), (other, _) = drawn(0), drawn(0), drawn(1)
    assert first.dtype == torch.uint8
    assert torch.equal(first, again)
    assert (first.flatten(1) != other.flatten(1)).any(dim=1).all()


def test_no_two_images_of_a_class_are_alike() -> None:
    x, y = drawn()
    for label in range(len(TEXTURES)):
        of_class = x[y == label].flatten(1)
        assert len(torch.unique(of_class, dim=0)) == len(of_class)


def test_the_mean_colour_says_nothing_about_the_class() -> None:
    x, y = drawn(n=4000)
    mean = x.float().mean(dim=(2, 3))
    by_class = torch.stack([mean[y == label].mean(dim=0) for label in range(len(TEXTURES))])
    error = mean.std(dim=0) / 400**0.5
    assert ((by_class - mean.mean(dim=0)).abs() < 5 * error).all()


def test_the_forms_by_hand() -> None:
    form = forms()
    assert set(form) == set(TEXTURES)
    # a period of 8 pixels: four rows of ink, four without, and the same across
    assert torch.equal(form["rows"], form["rows"][:, :1].expand(IMAGE_SIZE, IMAGE_SIZE))
    assert form["rows"][:, 0].tolist() == ([True] * 4 + [False] * 4) * 4
    assert torch.equal(form["columns"], form["rows"].T)
    assert torch.equal(form["checks"], form["rows"] != form["columns"])
    assert torch.equal(form["rings"], form["rings"].T)
    # a square of half 7 pixels, a disc of radius 8
    assert int(form["square"].sum()) == 14 * 14
    assert abs(int(form["disc"].sum()) - 201) <= 8
    # 16 rows from the point to a base of 16 pixels, a pixel wider on each side every second row
    assert form["triangle"].sum(dim=1)[8:24].tolist() == [0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14, 16]
    assert int(form["triangle"].sum()) == 128
    assert torch.equal(form["triangle"], form["triangle"].flip(1))
    assert int(form["cross"].sum()) < int(form["square"].sum())


def test_every_form_has_ink_and_ground() -> None:
    for scale in range(5):
        for ink in forms(scale).values():
            assert 0.05 < float(ink.float().mean()) < 0.8


def test_ink_differs_from_the_ground_in_every_channel_by_the_contrast() -> None:
    ink = torch.zeros(500, IMAGE_SIZE, IMAGE_SIZE, dtype=torch.bool)
    ink[:, :16] = True
    x = _colourize(ink, torch.Generator().manual_seed(0)).float()
    step = (x[:, :, :16].mean(dim=(2, 3)) - x[:, :, 16:].mean(dim=(2, 3))).abs()
    error = 5 * (2 * NOISE_RANGE**2 / 24 / 512) ** 0.5  # two uniform draws, averaged over 512 pixels, on both sides
    assert step.min() > CONTRAST[0] - 2 * error
    assert step.max() < CONTRAST[1] + 2 * error
