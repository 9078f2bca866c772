"""Group tables against tables one can count with a pencil."""

import math

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.records import GroupRow
from spurless.metrics.groupwise import GroupTable, group_table

BIRDS = Groups(labels=("land", "water"), attributes=("forest", "sea"))


def table_of(cells: list[tuple[int, int]], groups: Groups = BIRDS) -> GroupTable:
    """Build a table from (hits, count) of every group, through predictions that have them."""
    pred, y, a = [], [], []
    for g, (hits, count) in enumerate(cells):
        label, attribute = divmod(g, max(len(groups.attributes), 1))
        y += [label] * count
        a += [attribute] * count
        pred += [label] * hits + [(label + 1) % len(groups.labels)] * (count - hits)
    p, t, b = (torch.tensor(v, dtype=torch.long) for v in (pred, y, a))
    return group_table(p, t, b, groups)


# land: 90 of 100 and 1 of 4; water: 3 of 10 and 18 of 20
TABLE = table_of([(90, 100), (1, 4), (3, 10), (18, 20)])


def test_counts_hits_and_accuracies_by_hand() -> None:
    assert TABLE.correct.tolist() == [90, 1, 3, 18]
    assert TABLE.count.tolist() == [100, 4, 10, 20]
    assert TABLE.accuracy.tolist() == [0.9, 0.25, 0.3, 0.9]
    assert TABLE.accuracy.dtype == torch.float64
    assert (TABLE.n_correct, TABLE.n) == (112, 134)


def test_worst_and_best_are_named_and_the_first_wins_a_tie() -> None:
    assert TABLE.worst == (0.25, "land, sea")
    assert TABLE.best == (0.9, "land, forest")  # water, sea has 0.9 as well


def test_the_three_averages_by_hand() -> None:
    assert TABLE.average == pytest.approx(112 / 134)
    assert TABLE.balanced == pytest.approx((0.9 + 0.25 + 0.3 + 0.9) / 4)
    # (0.9 * 1 + 0.25 * 3 + 0.3 * 2 + 0.9 * 4) / 10
    assert TABLE.adjusted(torch.tensor([1, 3, 2, 4])) == pytest.approx(0.585)


def test_gap_and_resolution_by_hand() -> None:
    assert TABLE.gap == pytest.approx(112 / 134 - 0.25)
    assert TABLE.resolution == 0.25  # the worst group has 4 examples


def test_class_summaries_by_hand() -> None:
    # land 91 of 104 = 0.875, water 21 of 30 = 0.7
    assert TABLE.worst_class == (0.7, "water")
    assert TABLE.balanced_accuracy == pytest.approx(0.7875)


def test_aligned_conflicting_and_unbiased_by_hand() -> None:
    assert TABLE.aligned == pytest.approx(0.9)  # (0.9 + 0.9) / 2
    assert TABLE.conflicting == pytest.approx(0.275)  # (0.25 + 0.3) / 2
    assert TABLE.unbiased == TABLE.balanced == pytest.approx((TABLE.aligned + TABLE.conflicting) / 2)


def test_nothing_is_aligned_where_training_pairs_other_numbers() -> None:
    found = TABLE.summary(torch.tensor([90, 10, 10, 90]))
    assert (found["aligned"], found["conflicting"]) == (TABLE.aligned, TABLE.conflicting)
    even = TABLE.summary(torch.tensor([50, 50, 50, 50]))
    assert even["aligned"] == TABLE.aligned
    other = TABLE.summary(torch.tensor([10, 90, 90, 10]))  # names in natural order, and the shortcut the other way
    assert math.isnan(other["aligned"])
    assert math.isnan(other["conflicting"])
    assert other["unbiased"] == found["unbiased"]


def test_unbiased_is_made_of_aligned_and_conflicting_for_three_labels() -> None:
    groups = Groups(("a", "b", "c"), ("red", "green", "blue"))
    table = table_of([(g, 10) for g in range(9)], groups)
    assert table.aligned == pytest.approx((0.0 + 0.4 + 0.8) / 3)
    assert table.conflicting == pytest.approx((0.1 + 0.2 + 0.3 + 0.5 + 0.6 + 0.7) / 6)
    assert table.unbiased == pytest.approx((table.aligned + 2 * table.conflicting) / 3)


@pytest.mark.parametrize(
    "groups",
    [
        Groups(("no", "yes")),
        Groups(("no", "yes"), ("a", "b", "c")),
        Groups.overlapping(("no", "yes"), ("male", "female")),
        Groups.crossed(("p", "q", "r", "s"), {"gender": ("f", "m"), "age": ("young", "old")}),
    ],
    ids=["none", "more attributes", "overlapping", "crossed"],
)
def test_aligned_does_not_exist_where_no_attribute_belongs_to_a_label(groups: Groups) -> None:
    one, columns = torch.tensor([0]), 2 if groups.overlap or groups.sizes else 1
    table = group_table(one, one, torch.zeros(1, columns, dtype=torch.long), groups)
    assert all(math.isnan(v) for v in (table.aligned, table.conflicting, table.unbiased))


def test_an_empty_group_is_nan_and_never_the_worst_nor_the_best() -> None:
    table = table_of([(3, 4), (0, 0), (2, 4), (0, 0)])
    assert [math.isnan(v) for v in table.accuracy.tolist()] == [False, True, False, True]
    assert table.worst == (0.5, "water, forest")
    assert table.best == (0.75, "land, forest")
    assert table.balanced == 0.625
    # the weights 6 and 2 of the groups that are there become 3/4 and 1/4: 0.75 * 0.75 + 0.5 * 0.25
    assert table.adjusted(torch.tensor([6, 90, 2, 5])) == pytest.approx(0.6875)
    assert table.aligned == 0.75
    assert table.conflicting == 0.5


def test_a_group_that_is_all_wrong_is_the_worst_though_another_is_empty() -> None:
    table = table_of([(0, 0), (0, 5), (4, 5), (5, 5)])
    assert table.worst == (0.0, "land, sea")
    assert table.gap == pytest.approx(9 / 15)


def test_no_example_gives_nan_everywhere_and_no_name() -> None:
    table = table_of([(0, 0)] * 4)
    assert table.worst[1] == table.best[1] == table.worst_class[1] == ""
    assert all(math.isnan(v) for v in table.summary(torch.ones(4)).values())


def test_training_groups_that_are_all_empty_here_give_nan() -> None:
    assert math.isnan(table_of([(1, 1), (0, 0), (0, 0), (0, 0)]).adjusted(torch.tensor([0, 5, 5, 5])))


def test_an_unknown_attribute_counts_in_the_average_and_in_no_group() -> None:
    y = torch.tensor([0, 0, 1, 1])
    table = group_table(torch.tensor([0, 1, 1, 0]), y, torch.tensor([0, -1, 1, -1]), BIRDS)
    assert table.count.tolist() == [1, 0, 0, 1]
    assert (table.n_correct, table.n) == (2, 4)
    assert table.worst[0] == 1.0
    assert table.gap == -0.5  # the mistakes are in no group
    assert table.class_count.tolist() == [2, 2]


def test_all_attributes_hidden_leaves_average_and_classes() -> None:
    y = torch.tensor([0, 0, 0, 1])
    summary = group_table(torch.tensor([0, 0, 1, 1]), y, torch.full((4,), -1), BIRDS).summary()
    known = {name: value for name, value in summary.items() if not math.isnan(value)}
    assert known == {"average": 0.75, "worst_class": pytest.approx(2 / 3), "balanced_accuracy": pytest.approx(5 / 6)}


def test_overlapping_groups_count_an_example_in_each_of_its_groups() -> None:
    talk = Groups.overlapping(("civil", "toxic"), ("male", "female"))
    a = torch.tensor([[1, 1], [0, 1], [0, 0]])
    table = group_table(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), a, talk)
    assert table.count.tolist() == [1, 1, 0, 1]
    assert table.correct.tolist() == [1, 1, 0, 0]
    assert (table.n_correct, table.n) == (2, 3)
    assert table.worst == (0.0, "toxic, female")


def test_without_attributes_the_groups_are_the_classes() -> None:
    table = table_of([(3, 4), (1, 4)], Groups(("no", "yes")))
    assert table.worst == table.worst_class == (0.25, "yes")


def test_crossed_attributes_are_counted_by_combination() -> None:
    faces = Groups.crossed(("no", "yes"), {"gender": ("f", "m"), "age": ("young", "old")})
    a = torch.tensor([[1, 0], [1, 0], [0, -1]])
    table = group_table(torch.tensor([1, 0, 1]), torch.tensor([1, 1, 1]), a, faces)
    assert table.count.tolist() == [0, 0, 0, 0, 0, 0, 2, 0]
    assert table.worst == (0.5, "yes, m & young")


def test_tables_of_batches_add_up_to_the_table_of_the_split() -> None:
    draw = torch.Generator().manual_seed(0)
    pred, y = (torch.randint(2, (50,), generator=draw) for _ in range(2))
    a = torch.randint(-1, 2, (50,), generator=draw)
    whole = group_table(pred, y, a, BIRDS)
    first, second, third = (group_table(pred[i], y[i], a[i], BIRDS) for i in torch.arange(50).tensor_split(3))
    assert same(first + second + third, whole)


def test_domains_have_no_attribute_of_a_label_though_they_are_as_many() -> None:
    y, a = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    found = group_table(y, y, a, Groups.domains(("no", "yes"), ("here", "there"))).summary()
    assert found["worst_group"] == 1.0
    assert all(math.isnan(found[name]) for name in ("unbiased", "aligned", "conflicting"))


def test_tables_of_other_groups_do_not_add() -> None:
    with pytest.raises(InputError, match="tables of different groups cannot be added"):
        TABLE + table_of([(1, 1), (1, 1)], Groups(("land", "water")))
    with pytest.raises(TypeError, match="unsupported operand"):
        TABLE + 1  # type: ignore[operator]  # what a caller might do by mistake


def test_agrees_with_loops_over_the_examples() -> None:
    draw = torch.Generator().manual_seed(1)
    pred, y, a = (torch.randint(2, (200,), generator=draw) for _ in range(3))
    table = group_table(pred, y, a, BIRDS)
    for g in range(4):
        inside = [i for i in range(200) if 2 * int(y[i]) + int(a[i]) == g]
        assert int(table.count[g]) == len(inside)
        assert int(table.correct[g]) == sum(int(pred[i] == y[i]) for i in inside)


def test_rows_carry_intervals_and_training_counts_and_none_for_an_empty_group() -> None:
    rows = table_of([(10, 10), (0, 0), (0, 10), (5, 10)]).rows(torch.tensor([7, 1, 2, 3]))
    assert rows[1] == GroupRow("land, sea", 0, None, None, None, 1)
    assert (rows[0].name, rows[0].count, rows[0].accuracy, rows[0].high, rows[0].train_count) == (
        "land, forest",
        10,
        1.0,
        1.0,
        7,
    )
    assert rows[0].low == pytest.approx(0.72247, abs=1e-5)  # 1 / (1 + 1.96^2 / 10)
    assert rows[2].low == 0.0
    assert [row.train_count for row in TABLE.rows()] == [0, 0, 0, 0]


def test_the_adjusted_average_needs_the_training_counts() -> None:
    assert math.isnan(TABLE.summary()["adjusted_average"])
    assert TABLE.summary(torch.tensor([1, 3, 2, 4]))["adjusted_average"] == pytest.approx(0.585)
    with pytest.raises(InputError, match=r"one number per group \(expected shape \(4,\), got \(2,\)\)"):
        TABLE.adjusted(torch.ones(2))


LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("pred", "y", "a", "message"),
    [
        (
            torch.tensor([0]),
            LABELS,
            LABELS,
            r"one per example \(expected shape \(2,\), got torch.int64 of shape \(1,\)",
        ),
        (torch.rand(2, 2), LABELS, LABELS, r"Pass predicted labels, such as logits.argmax\(dim=1\)"),
        (torch.rand(2), LABELS, LABELS, "predictions must be integers"),
        (
            LABELS,
            LABELS.float(),
            LABELS,
            r"labels must be int64, one per example \(got torch.float32",
        ),
        (LABELS, LABELS, torch.tensor([0]), r"labels and attributes differ in length \(got 2 and 1\)"),
        (LABELS, torch.tensor([0, 2]), LABELS, r"a label is out of range \(expected 0 to 1, got 2\)"),
        (LABELS, torch.tensor([0, -1]), LABELS, r"a label is out of range \(expected 0 to 1, got -1\)"),
        (LABELS, LABELS, torch.tensor([0, 2]), r"the attribute of example 1 is out of range \(got 2\)"),
        (LABELS, LABELS, torch.zeros(2, 3).long(), r"expected 1 column, got torch.int64 of shape \(2, 3\)"),
        (LABELS, LABELS, LABELS.float(), "attributes must be integers, one row per example"),
    ],
)
def test_says_what_is_wrong_with_the_input(pred: Tensor, y: Tensor, a: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        group_table(pred, y, a, BIRDS)


def test_columns_are_checked_against_overlapping_and_crossed_groups() -> None:
    talk = Groups.overlapping(("civil", "toxic"), ("male", "female"))
    with pytest.raises(InputError, match="expected 2 columns"):
        group_table(LABELS, LABELS, LABELS, talk)
    with pytest.raises(InputError, match="attribute of example 0 is out of range"):
        group_table(LABELS, LABELS, torch.tensor([[2, 0], [0, 0]]), talk)
    faces = Groups.crossed(("no", "yes"), {"gender": ("f", "m"), "age": ("young", "middle", "old")})
    with pytest.raises(InputError, match=r"attribute of example 1 is out of range \(got \[2, 0\]\)"):
        group_table(LABELS, LABELS, torch.tensor([[1, 2], [2, 0]]), faces)


def same(one: GroupTable, other: GroupTable) -> bool:
    tensors = ("correct", "count", "class_correct", "class_count")
    return (one.n_correct, one.n) == (other.n_correct, other.n) and all(
        torch.equal(getattr(one, name), getattr(other, name)) for name in tensors
    )
