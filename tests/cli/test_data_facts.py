"""Facts: what describe says of a dataset, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from spurless.cli.data_facts import PARTS, association, facts_of, short, tell_files
from spurless.core.groups import Groups
from spurless.data.grouped import Grouped, Splits

BIRDS = Groups(("landbird", "waterbird"), ("land", "water"))


def of_counts(counts: list[int], groups: Groups = BIRDS) -> Grouped:
    """Return a split with so many examples of every group."""
    g = torch.repeat_interleave(torch.arange(len(groups)), torch.tensor(counts))
    y, a = groups.decode(g)
    return Grouped(torch.zeros(len(g), 2), y, a, groups)


def birds(train: list[int], test: list[int]) -> Splits:
    return Splits(of_counts(train), of_counts([1, 1, 1, 1]), of_counts(test), "birds")


def test_guesses_are_right_as_often_as_a_pencil_says() -> None:
    told = facts_of(birds([70, 10, 5, 15], [25, 25, 25, 25]))
    assert told["guess"]["majority"] == {"label": "landbird", "train": 0.8, "test": 0.5}
    assert told["guess"]["attribute"] == {"train": 0.85, "test": 0.5}  # (70 + 15) of 100
    # the attribute removes 5 of the 20 mistakes
    assert told["shortcut"]["train"]["goodman_kruskal"] == pytest.approx(0.25)
    assert told["shortcut"]["test"]["goodman_kruskal"] == 0
    assert told["shortcut"]["test"]["cramers_v"] == 0


def test_rule_of_the_attribute_is_that_of_train() -> None:
    told = facts_of(birds([9, 1, 1, 9], [1, 9, 9, 1]))  # in test it is the other way round
    assert told["guess"]["attribute"] == {"train": 0.9, "test": 0.1}
    assert told["shortcut"]["test"]["cramers_v"] == pytest.approx(0.8)


def test_value_that_train_does_not_have_is_guessed_to_be_the_largest_class() -> None:
    told = facts_of(birds([2, 0, 3, 0], [0, 4, 0, 6]))
    assert told["guess"]["majority"]["label"] == "waterbird"
    assert told["guess"]["attribute"] == {"train": 0.6, "test": 0.6}


def test_groups_that_are_empty_or_tiny_are_named() -> None:
    told = facts_of(birds([70, 19, 0, 20], [25, 25, 25, 1]))
    assert told["empty"] == {"train": ["waterbird, land"], "val": [], "test": []}
    assert told["tiny"]["train"] == ["landbird, water (19)"]
    assert told["tiny"]["test"] == ["waterbird, water (1)"]
    assert told["groups"][1] == {"name": "landbird, water", "train": 19, "val": 1, "test": 25}
    assert told["classes"][0] == {"name": "landbird", "train": 89, "val": 2, "test": 50}
    assert told["examples"] == {"train": 109, "val": 4, "test": 76}


def test_unknown_attributes_are_counted_and_left_out() -> None:
    splits = birds([8, 2, 2, 8], [5, 5, 5, 5])
    a = splits.train.a.clone()
    a[:3] = -1
    told = facts_of(replace(splits, train=replace(splits.train, a=a)))
    assert told["unknown"] == {"train": 3, "val": 0, "test": 0}
    assert told["shortcut"]["train"]["n"] == 17
    hidden = replace(splits, test=splits.test.hide_attributes())
    assert set(facts_of(hidden)["shortcut"]) == {"train"}
    assert facts_of(hidden)["guess"]["attribute"] is None
    assert association(splits.test.hide_attributes()) is None


def test_data_without_attributes_have_no_shortcut() -> None:
    split = of_counts([3, 5], Groups(("cat", "dog")))
    told = facts_of(Splits(split, split, split))
    assert told["shortcut"] == {}
    assert told["guess"] == {"majority": {"label": "dog", "train": 0.625, "test": 0.625}, "attribute": None}


def test_overlapping_attributes_are_counted_one_by_one() -> None:
    groups = Groups.overlapping(("civil", "toxic"), ("male", "female"))
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    a = torch.tensor([[0, 0], [0, 1], [0, 0], [1, 1], [1, 0], [0, 0]])
    split = Grouped(torch.zeros(6, 1), y, a, groups)
    told = facts_of(Splits(split, split, split))
    assert [(row["name"], row["train"]) for row in told["identities"]] == [("male", 2), ("female", 2)]
    assert [row["train"] for row in told["groups"]] == [0, 1, 2, 1]
    assert told["shortcut"]["train"]["attribute"] == "male"  # who is male is toxic; female says nothing
    assert told["guess"]["attribute"]["test"] == pytest.approx(5 / 6)


def test_rule_of_overlapping_attributes_reads_the_same_one_in_train_and_test() -> None:
    groups = Groups.overlapping(("civil", "toxic"), ("male", "female"))
    y = torch.tensor([0, 0, 1, 1])
    train = Grouped(torch.zeros(4, 1), y, torch.stack([y, torch.tensor([0, 1, 0, 1])], dim=1), groups)
    test = Grouped(torch.zeros(4, 1), y, torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]]), groups)
    told = facts_of(Splits(train, train, test))
    assert told["shortcut"]["train"]["attribute"] == "male"
    assert told["shortcut"]["test"]["attribute"] == "female"  # there it tells more
    assert told["guess"]["attribute"] == {"train": 1.0, "test": 0.5}


def test_an_overlapping_attribute_that_nobody_knows_hides_no_other() -> None:
    groups = Groups.overlapping(("civil", "toxic"), ("male", "female"))
    y = torch.tensor([0, 0, 1, 1])
    both, second = torch.stack([y, 1 - y.roll(1)], dim=1), torch.stack([torch.full_like(y, -1), 1 - y], dim=1)
    half, whole = (Grouped(torch.zeros(4, 2), y, a, groups) for a in (second, both))
    found = association(half)
    assert found is not None
    assert (found.attribute, found.n, found.goodman_kruskal) == ("female", 4, 1.0)
    assert facts_of(Splits(half, half, half))["guess"]["attribute"] == {"train": 1.0, "test": 1.0}
    # train knows the first best, test does not know it at all: the rule of the one is not asked of the other
    assert facts_of(Splits(whole, half, half))["guess"]["attribute"] is None


def test_domains_are_counted() -> None:
    splits = birds([2, 2, 2, 2], [1, 1, 1, 1])
    domain = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    train = replace(splits.train, domain=domain, domains=("north", "south"))
    told = facts_of(replace(splits, train=train))
    assert told["domains"] == {"train": [{"name": "north", "count": 3}, {"name": "south", "count": 5}]}


def test_inputs_are_described_by_shape_range_and_memory() -> None:
    splits = birds([1, 1, 1, 1], [1, 1, 1, 1])
    images = torch.zeros(4, 3, 5, 7, dtype=torch.uint8)
    images[2, 0, 0, 0] = 9
    told = facts_of(Splits(*(replace(getattr(splits, part), x=images) for part in PARTS)))["input"]
    assert told["words"] == "RGB image, 7 x 5 pixels, uint8"
    assert (told["low"], told["high"], told["bytes"], told["streamed"]) == (0, 9, 12 * 105, False)


def test_text_is_described_by_its_lengths() -> None:
    splits = birds([1, 1, 1, 1], [1, 1, 1, 1])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0]], dtype=torch.int32)
    tokens = {"input_ids": mask * 7, "attention_mask": mask}
    for x in (tokens, {"input_ids": mask * 7}):
        told = facts_of(Splits(*(replace(getattr(splits, part), x=x) for part in PARTS)))["input"]
        assert (told["kind"], told["shortest"], told["longest"], told["mean"]) == ("text", 1, 3, 2.0)
        assert told["bytes"] == 12 * 3 * 4 * len(x)


class Counting:
    """A source that says which examples were read."""

    def __init__(self, n: int) -> None:
        self.n, self.read = n, set[int]()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> torch.Tensor:
        self.read.add(i)
        return torch.full((1, 4, 4), i % 256, dtype=torch.uint8)

    def fingerprint(self) -> str:
        return "counting"


def test_of_a_streamed_split_a_few_inputs_are_read() -> None:
    source = Counting(1000)
    split = replace(of_counts([250] * 4), x=source)
    told = facts_of(Splits(split, split, split))["input"]
    assert told["streamed"]
    assert told["bytes"] == 3 * 1000 * 16
    assert len(source.read) <= 17
    assert max(source.read) > 900  # from all over it


def test_long_name_is_cut_and_a_path_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert short("landbird, land") == "landbird, land"
    assert len(short("x" * 99)) == 32
    place = "/" + "deep/" * 40
    tell_files({"found": ["metadata.csv"], "place": place})
    assert capsys.readouterr().out.splitlines() == ["files      metadata.csv", f"in         {place}"]
