"""Splitting: shares by hand, nothing lost, nothing shared, and names in the order a person expects."""

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split, Splits
from spurless.data.splitting import (
    concat_attributes,
    encode_values,
    make_splits,
    name_groups,
    parse_split,
    sort_naturally,
    split_stratified,
)


def counts(parts: tuple[Tensor, ...], cells: Tensor) -> list[list[int]]:
    return [torch.bincount(cells[part], minlength=int(cells.max()) + 1).tolist() for part in parts]


def test_every_cell_keeps_its_share() -> None:
    cells = torch.tensor([0] * 100 + [1] * 20 + [2] * 10)
    # 100 -> 70, 15, 15; 20 -> 14, 3, 3; 10 -> 7, 1.5, 1.5: the first of two equal remainders gets the odd one
    assert counts(split_stratified(cells, seeds=Seeds(0)), cells) == [[70, 14, 7], [15, 3, 2], [15, 3, 1]]


def test_splits_are_disjoint_complete_and_in_order() -> None:
    cells = torch.randint(5, (997,), generator=torch.Generator().manual_seed(0))
    parts = split_stratified(cells, seeds=Seeds(3))
    assert torch.cat(parts).sort().values.tolist() == list(range(997))
    assert all(bool((part.diff() > 0).all()) for part in parts)


def test_same_seed_same_split_and_another_seed_another() -> None:
    cells = torch.tensor([0, 1] * 50)
    first, again, other = (split_stratified(cells, seeds=Seeds(seed)) for seed in (1, 1, 2))
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[1], other[1])


def test_three_examples_of_a_class_are_one_for_each_split() -> None:
    cells = torch.tensor([0] * 3 + [1] * 4)
    assert counts(split_stratified(cells, seeds=Seeds(0)), cells) == [[1, 2], [1, 1], [1, 1]]


def test_small_cells_are_pooled_so_that_their_class_is_in_every_split() -> None:
    # class 0 has cells of 2 and 1 examples, too small to share out alone
    cells, classes = torch.tensor([0, 0, 1, 2, 2, 2, 2]), torch.tensor([0, 0, 0, 1, 1, 1, 1])
    parts = split_stratified(cells, seeds=Seeds(0), classes=classes)
    assert counts(parts, classes) == [[1, 2], [1, 1], [1, 1]]


def test_a_pair_stays_in_train_and_a_split_without_share_stays_empty() -> None:
    assert [len(part) for part in split_stratified(torch.tensor([0, 0]), seeds=Seeds(0))] == [2, 0, 0]
    assert [len(p) for p in split_stratified(torch.zeros(20), (0.85, 0.15, 0.0), seeds=Seeds(0))] == [17, 3, 0]
    assert [len(part) for part in split_stratified(torch.empty(0), seeds=Seeds(0))] == [0, 0, 0]


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.5, 0.5, 0.5), (1.2, -0.2, 0.0)])
def test_shares_that_do_not_add_up_are_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="the fractions of train, val and test must add up to 1"):
        split_stratified(torch.zeros(9), shares, seeds=Seeds(0))


def test_values_are_numbered_in_natural_order() -> None:
    names, codes = encode_values(["b10", "b9", "a", None, "b9"])
    assert names == ("a", "b9", "b10")
    assert codes.tolist() == [2, 1, 0, -1, 1]


def test_what_a_table_lacks_is_no_value() -> None:
    class NAType:
        """What pandas has for a missing value in its own kinds of columns."""

    names, numbers = encode_values(["a", float("nan"), None, NAType(), "b"])
    assert (names, numbers.tolist()) == (("a", "b"), [0, -1, -1, -1, 1])


def test_a_list_is_no_value() -> None:
    with pytest.raises(InputError, match=r"a class or an attribute must be a string or a number .got \[1\]"):
        encode_values([0, [1]])  # type: ignore[list-item]  # as a column of lists gives them


def test_numbers_are_sorted_by_value() -> None:
    assert encode_values([10, 9, -1])[0] == ("-1", "9", "10")
    assert sort_naturally({"0.5", "-2", "10", "9"}) == ("-2", "0.5", "9", "10")
    assert sort_naturally({"img02", "img1", "Img3", "img10"}) == ("img1", "img02", "Img3", "img10")
    assert sort_naturally({"9" * 5000, "x"}) == ("9" * 5000, "x")  # longer than int() would take


def test_the_same_name_from_two_types_is_one_value() -> None:
    assert encode_values([1, "1"])[1].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("value", "number"),
    [("0", 0), (1, 1), (" Train ", 0), ("valid", 1), ("validation", 1), ("VAL", 1), ("test", 2), (2, 2)],
)
def test_splits_go_by_several_names(value: object, number: int) -> None:
    assert parse_split(value, "here") == number


def test_an_unknown_split_is_named_with_its_place() -> None:
    with pytest.raises(InputError, match=r"m.csv, row 3: the split 'tets' is unknown \(expected 0, 1, 2 or train"):
        parse_split("tets", "m.csv, row 3")


def test_groups_of_no_one_and_two_columns() -> None:
    labels = ("no", "yes")
    assert name_groups(labels, {}) == Groups(labels)
    assert name_groups(labels, {"place": ("land", "water")}) == Groups(labels, ("land", "water"))
    crossed = name_groups(labels, {"place": ("land", "water"), "age": ("young",)})
    assert (crossed.attributes, crossed.sizes) == (("land & young", "water & young"), (2, 1))
    with pytest.raises(InputError, match="the attribute 'place' is always empty"):
        name_groups(labels, {"place": ()})


def test_a_part_without_attributes_is_filled_with_unknown() -> None:
    joined = concat_attributes([None, torch.tensor([[1, 0]])], [2, 1])
    assert joined is not None
    assert joined.tolist() == [[-1, -1], [-1, -1], [1, 0]]
    assert concat_attributes([None, None], [2, 1]) is None
    with pytest.raises(InputError, match="the splits differ in the number of attributes"):
        concat_attributes([torch.zeros(2), torch.zeros(2, 2)], [2, 2])


def whole(n: int = 40) -> Split:
    y, a = torch.arange(n) % 2, torch.arange(n) // 2 % 2
    return Split(torch.arange(n, dtype=torch.float32)[:, None], y, a, Groups(("0", "1"), ("l", "r")))


def members(splits: Splits) -> list[list[float]]:
    return [split.x.flatten().tolist() for split in (splits.train, splits.val, splits.test)]  # type: ignore[union-attr]


def test_assemble_keeps_every_group_in_every_split() -> None:
    splits = make_splits(whole(), None, seeds=Seeds(0), name="w")
    # 10 examples of each of four groups: 7, 2, 1
    assert [split.counts.tolist() for split in (splits.train, splits.val, splits.test)] == [[7] * 4, [2] * 4, [1] * 4]
    assert sorted(x for split in members(splits) for x in split) == list(range(40))


def test_assemble_leaves_named_splits_alone() -> None:
    split = torch.tensor([0] * 20 + [1] * 12 + [2] * 8)
    train, val, test = members(make_splits(whole(), split, seeds=Seeds(0), name="w"))
    assert (train, val, test) == (list(range(20)), list(range(20, 32)), list(range(32, 40)))


def test_assemble_cuts_a_missing_val_from_train_alone() -> None:
    split = torch.tensor([2] * 8 + [0] * 32)
    train, val, test = members(make_splits(whole(), split, seeds=Seeds(0), name="w"))
    assert test == list(range(8))
    assert sorted(train + val) == list(range(8, 40))
    assert len(val) == 4  # 8 of each group: 6.8 and 1.2


def test_a_class_that_train_lacks_is_told() -> None:
    y = torch.tensor([1, 2] * 5)  # counted from 1
    whole = Split(torch.rand(10, 2), y, torch.full_like(y, -1), Groups(("0", "1", "2")))
    with pytest.warns(SpurlessWarning, match="Train has no examples of the class '0', which cannot be learned"):
        data = make_splits(whole, torch.tensor([0] * 6 + [1] * 2 + [2] * 2), seeds=Seeds(0), name="mine")
    assert len(data.notes) == 1
    spread = Split(torch.rand(10, 2), y * 3, torch.full_like(y, -1), Groups(tuple("0123456")))
    with pytest.warns(SpurlessWarning, match=r"of 5 classes \('0', '1', '2', '4', '5'\), which cannot be learned"):
        make_splits(spread, torch.tensor([0] * 6 + [1] * 2 + [2] * 2), seeds=Seeds(0), name="mine")


def test_assemble_refuses_what_cannot_be_split() -> None:
    with pytest.raises(InputError, match="w: the data contain no examples"):
        make_splits(whole(0), None, seeds=Seeds(0), name="w")
    with pytest.raises(
        InputError, match=r"w: no class has enough examples for every split .expected at least 3 of a class"
    ):
        make_splits(whole(2), None, seeds=Seeds(0), name="w")
    with pytest.raises(InputError, match="w, train split: the split is empty"):
        make_splits(whole(), torch.tensor([1, 2] * 20), seeds=Seeds(0), name="w")
