"""The shared machinery of the digit sets, on images small enough to check by eye."""

import pytest
import torch

from spurless.core.errors import InputError
from spurless.core.seeds import Seeds
from spurless.data.datasets._digits import (
    COLOUR_BATCH,
    PALETTE,
    SEVERITY_STD,
    Corner,
    add_square,
    assign_attributes,
    assign_n_conflicting,
    colourize,
    draw_partners,
    load_base_digits,
    load_digit_images,
    place_side_by_side,
    split_digits,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_there_are_1797_digits_with_the_class_counts_of_scikit_learn() -> None:
    images, y = load_digit_images()
    assert images.shape == (1797, 28, 28)
    assert images.dtype == torch.uint8
    assert torch.bincount(y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_at_their_own_size_the_digits_are_only_scaled_to_255() -> None:
    from sklearn.datasets import load_digits

    raw = torch.from_numpy(load_digits().images).long()  # 0 to 16
    assert torch.equal(load_digit_images(8)[0].long(), (raw * 255 + 8) // 16)


@pytest.mark.parametrize("size", [16, 28, 33])
def test_resizing_agrees_with_torch(size: int) -> None:
    from sklearn.datasets import load_digits

    raw = torch.from_numpy(load_digits().images) * 255 / 16
    reference = torch.nn.functional.interpolate(raw[:, None], size=(size, size), mode="bilinear")[:, 0]
    assert (load_digit_images(size)[0] - reference).abs().max() <= 0.5 + 1e-9  # one rounding apart


def test_a_size_under_the_originals_is_refused() -> None:
    with pytest.raises(InputError, match=r"option 'size' must be at least 8, .*got 7"):
        load_digit_images(7)


def test_the_splits_are_a_partition_of_1000_297_and_500() -> None:
    _, y = load_digit_images()
    parts = split_digits(y, Seeds(0))
    assert [len(part) for part in parts] == [1000, 297, 500]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(1797))


def test_every_class_is_shared_out_alike() -> None:
    _, y = load_digit_images()
    total = torch.bincount(y)
    for part, size in zip(split_digits(y, Seeds(0)), (1000, 297, 500), strict=True):
        assert ((torch.bincount(y[part]) - total * size / 1797).abs() < 1.01).all()


def test_the_seed_decides_the_split() -> None:
    _, y = load_digit_images()
    first, again, other = (split_digits(y, Seeds(seed))[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_sizes_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(InputError, match=r"must be positive and add up \(expected 4, got \(1, 1, 1\)\)"):
        split_digits(torch.tensor([0, 0, 1, 1]), Seeds(0), sizes=(1, 1, 1))


def test_conflicting_counts_are_exact_in_every_class() -> None:
    y = torch.tensor([0] * 40 + [1] * 100 + [2] * 7)
    a = assign_attributes(y, 3, 0.1, generator())
    assert [int((a[y == label] != label).sum()) for label in range(3)] == [4, 10, 1]  # 0.1 * 7 rounds to 1


def test_conflicting_examples_are_spread_evenly_over_the_other_attributes() -> None:
    y = torch.zeros(100, dtype=torch.long)
    a = assign_attributes(y, 10, 0.2, generator())  # 20 over 9 others: two each, and two of them three
    counts = torch.bincount(a, minlength=10)
    assert counts[0] == 80
    assert sorted(counts[1:].tolist()) == [2] * 7 + [3] * 2


@pytest.mark.parametrize("n", range(10, 31))
def test_nine_in_ten_conflicting_is_unbiased(n: int) -> None:
    counts = torch.bincount(assign_attributes(torch.full((n,), 3), 10, 0.9, generator()), minlength=10)
    assert counts.sum() == n
    assert counts.max() - counts.min() <= 1


def test_no_share_and_the_whole_share() -> None:
    y = torch.tensor([0, 1, 1, 0])
    assert torch.equal(assign_attributes(y, 2, 0.0, generator()), y)
    assert torch.equal(assign_attributes(y, 2, 1.0, generator()), 1 - y)


def test_chance_decides_who_conflicts() -> None:
    y = torch.zeros(100, dtype=torch.long)
    assert not torch.equal(assign_attributes(y, 2, 0.1, generator(0)), assign_attributes(y, 2, 0.1, generator(1)))


@pytest.mark.parametrize(("y", "n"), [([0, 2], 2), ([0], 1)])
def test_a_label_without_an_attribute_is_refused(y: list[int], n: int) -> None:
    with pytest.raises(InputError, match=f"an attribute for every label.*got {n}"):
        assign_attributes(torch.tensor(y), n, 0.5, generator())


def test_a_total_is_shared_out_by_largest_remainder() -> None:
    y = torch.tensor([0] * 30 + [1] * 50 + [2] * 20)
    a = assign_n_conflicting(y, 3, 7, generator())  # 2.1, 3.5 and 1.4: the one left over goes to the second
    assert [int((a[y == label] != label).sum()) for label in range(3)] == [2, 4, 1]
    assert torch.equal(assign_n_conflicting(y, 3, 0, generator()), y)
    assert (assign_n_conflicting(y, 3, 100, generator()) != y).all()


def test_a_total_is_spread_over_the_other_attributes_as_a_share_is() -> None:
    y = torch.zeros(100, dtype=torch.long)
    assert torch.equal(assign_n_conflicting(y, 10, 20, generator()), assign_attributes(y, 10, 0.2, generator()))


@pytest.mark.parametrize("total", [-1, 5])
def test_a_total_that_cannot_be_is_refused(total: int) -> None:
    with pytest.raises(InputError, match=rf"conflicting examples is out of range \(expected 0 to 4, got {total}\)"):
        assign_n_conflicting(torch.tensor([0, 0, 1, 1]), 2, total, generator())


def test_partners_have_the_label_that_is_wanted_and_are_used_equally_often() -> None:
    y = torch.tensor([0, 1, 0, 1, 0])
    a = torch.tensor([1] * 5 + [0] * 7)
    chosen = draw_partners(y, a, generator())
    assert torch.equal(y[chosen], a)
    used = torch.bincount(chosen, minlength=5)
    assert sorted(used[y == 1].tolist()) == [2, 3]
    assert sorted(used[y == 0].tolist()) == [2, 2, 3]
    with pytest.raises(InputError, match="no example has the label 2"):
        draw_partners(y, torch.tensor([2]), generator())


def test_the_raw_digits_are_the_loaded_ones_with_their_splits() -> None:
    raw, (images, y) = load_base_digits(16, Seeds(3)), load_digit_images(16)
    assert torch.equal(raw.x, images)
    for part, expected in zip(raw.indices.values(), split_digits(y, Seeds(3)), strict=True):
        assert torch.equal(part, expected)


def test_colouring_many_is_colouring_each() -> None:
    n = COLOUR_BATCH + 3
    images, a = torch.full((n, 1, 1), 200, dtype=torch.uint8), torch.arange(n) % 10
    shade = (PALETTE[a] + 0.05 * torch.randn(n, 3, generator=generator())).clamp(0, 1)
    assert torch.equal(colourize(images, a, PALETTE, 0.05, generator())[:, :, 0, 0], (200 * shade).round().byte())


def test_colour_multiplies_the_grey_digit_by_hand() -> None:
    images = torch.tensor([[[0, 100, 255]]], dtype=torch.uint8)
    x = colourize(images, torch.tensor([1]), torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.5, 0.0]]), 0.0, generator())
    # red 1.0, green 0.5 (127.5 rounds to the even 128), blue 0
    assert x.tolist() == [[[[0, 100, 255]], [[0, 50, 128]], [[0, 0, 0]]]]


def test_colour_has_one_shade_per_image_with_the_given_spread() -> None:
    images = torch.full((4000, 2, 2), 255, dtype=torch.uint8)
    x = colourize(images, torch.zeros(4000, dtype=torch.long), torch.full((1, 3), 0.5), 0.05, generator()) / 255
    assert torch.equal(x[:, :, 0, 0], x[:, :, 1, 1])
    shade = x[:, :, 0, 0]
    assert (shade.mean(dim=0) - 0.5).abs().max() < 4 * 0.05 / 4000**0.5  # four standard errors
    assert (shade.std(dim=0) - 0.05).abs().max() < 4 * 0.05 / 8000**0.5


def test_a_shade_is_clamped_rather_than_wrapped() -> None:
    images = torch.full((100, 1, 1), 255, dtype=torch.uint8)
    x = colourize(images, torch.zeros(100, dtype=torch.long), torch.ones(1, 3), 0.05, generator())
    assert x.min() > 200
    assert (x == 255).float().mean() > 0.4  # half of the draws lie above 1


def test_the_palette_is_that_of_lff_in_bytes() -> None:
    known = [(251, 80, 43), (253, 233, 90), (172, 118, 148), (200, 212, 153), (22, 198, 250)]
    known += [(82, 245, 114), (6, 60, 194), (142, 26, 194), (53, 100, 5), (213, 52, 68)]
    assert (PALETTE * 255 - torch.tensor(known)).abs().max() < 0.6  # half a byte, and means known to four digits
    assert SEVERITY_STD == (0.05, 0.02, 0.01, 0.005, 0.002)


@pytest.mark.parametrize(
    ("corner", "row", "column"),
    [("top-left", 0, 0), ("top-right", 0, 3), ("bottom-left", 3, 0), ("bottom-right", 3, 3)],
)
def test_a_patch_fills_one_corner_of_the_marked_images(corner: Corner, row: int, column: int) -> None:
    images = torch.full((2, 5, 5), 7, dtype=torch.uint8)
    x = add_square(images, torch.tensor([True, False]), 2, corner, (255, 1, 2))
    assert (x[1] == 7).all()
    assert x[0, :, row : row + 2, column : column + 2].flatten(1).tolist() == [[255] * 4, [1] * 4, [2] * 4]
    assert int((x[0] == 7).sum()) == 3 * (25 - 4)


def test_a_second_patch_leaves_the_first_and_its_input_alone() -> None:
    images = torch.zeros(1, 6, 6, dtype=torch.uint8)
    first = add_square(images, torch.tensor([True]), 2, "top-left", (9, 9, 9))
    before = first.clone()
    second = add_square(first, torch.tensor([True]), 2, "top-right", (5, 5, 5))
    assert torch.equal(first, before)
    assert not images.any()
    assert second[0, 0, 0].tolist() == [9, 9, 0, 0, 5, 5]


def test_a_pair_by_hand() -> None:
    core = torch.tensor([[[10, 255]]], dtype=torch.uint8)
    spurious = torch.tensor([[[3, 200]]], dtype=torch.uint8)
    assert place_side_by_side(core, spurious, 0.5).tolist() == [[[[5, 128, 3, 200]]]]
