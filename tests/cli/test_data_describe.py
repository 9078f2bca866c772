"""``spurless data describe``: numbers by hand, and the text and JSON that are printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spurless.cli.data_describe import associate_known, compute_facts, show_files
from spurless.cli.params import SPLITS
from spurless.core.groups import Groups
from spurless.data import DATASETS
from spurless.data.split import Split, Splits

Cli = Callable[..., Any]
Refused = Callable[..., None]


def flat(text: str) -> str:
    return " ".join(text.split())


def test_describe_says_it_all_on_80_columns(cli: Cli) -> None:
    result = cli("data", "describe", "patched-digits", "-D", "conflicting=0.01")
    assert (result.status, result.err) == (0, "")
    assert max(map(len, result.out.splitlines())) <= 80
    text = flat(result.out)
    for sentence in (
        "summary Small against large digits",
        "options conflicting=0.01, squares=1",
        "inputs RGB image, 28 x 28 pixels, uint8; values from 0 to 255",
        "memory 4.2 MB, loaded",
        "0 to 4, unmarked 5 0.5 %",
        "0 to 4 501 50.1 % 149 50.2 % 251 50.2 %",
        "in train the attribute is very strongly associated with the class: predicting from it makes 98 % fewer errors",
        "in test the attribute is hardly associated with the class: predicting from it makes 0 % fewer errors",
        "is correct in 50.1 % of train and 50.2 % of test; the most frequent class of each attribute",
        "in train, in 99.0 %",
        "under 20 examples in train: 0 to 4, unmarked (5); 5 to 9, marked (5)",
    ):
        assert sentence in text


def test_options_shown_are_those_in_use(cli: Cli) -> None:
    assert "options conflicting=0.3," in flat(cli("data", "describe", "patched-digits", "-D", "conflicting=0.3").out)


def test_json_has_every_number(cli: Cli) -> None:
    facts = json.loads(cli("data", "describe", "planted", "-D", "agreement=1.0", "--json").out)
    assert facts["card"]["name"] == "planted"
    assert facts["options"]["agreement"] == 1.0
    assert facts["needs"] is None
    assert facts["files"] == {"found": [], "place": None}
    assert facts["shortcut"]["train"]["cramers_v"] == pytest.approx(1.0)
    assert facts["guess"]["attribute"]["train"] == 1.0
    assert [row["name"] for row in facts["groups"]] == ["minus, left", "minus, right", "plus, left", "plus, right"]


def test_many_groups_show_the_largest_and_name_the_empty(cli: Cli) -> None:
    result = cli("data", "describe", "colored-digits", "-D", "conflicting=0")
    text = flat(result.out)
    assert "100 groups, the 24 largest in train (all: --json)" in text
    assert sum(line.startswith(tuple(f"{i}, " for i in range(10))) for line in result.out.splitlines()) == 24
    assert "no examples in train: 0, yellow; 0, mauve" in text
    assert "and 84 more" in text


def test_own_images_are_counted_and_hardly_read(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spurless.data.loaders import images

    read: list[Path] = []
    usual = images.read_image

    def noted(path: Path, *more: Any) -> torch.Tensor:
        read.append(path)
        return usual(path, *more)

    monkeypatch.setattr(images, "read_image", noted)
    text = flat(cli("data", "describe", folder).out)
    assert len(set(read)) <= 17  # of 30
    assert f"files {folder}" in text
    assert "5.8 kB if all were loaded; read on demand" in text
    assert "the data have no attribute" in text
    assert "always dark, the largest class of train, is correct in 50.0 %" in text
    assert "classes" not in text  # the groups are the classes


def test_missing_files_leave_the_card_and_where_to_get_it(cli: Cli, here: Path) -> None:
    result = cli("data", "describe", "waterbirds", "--root", here)
    assert result.status == 2
    assert "citation Sagawa et al." in flat(result.out)
    assert "needs metadata.csv, */*.jpg. Get waterbird_complete95" in flat(result.out)
    (line,) = result.err.splitlines()
    assert "the files of waterbirds are missing" in line
    facts = cli("data", "describe", "waterbirds", "--root", here, "--json")
    assert facts.status == 2
    assert json.loads(facts.out)["needs"]["files"] == ["metadata.csv", "*/*.jpg"]


def test_wrong_option_is_refused_before_anything_is_said(refused: Refused) -> None:
    refused(r"dataset 'planted' has no option 'agremeent'", "data", "describe", "planted", "-D", "agremeent=1")
    refused(r"'gone' is neither the name of a dataset", "data", "describe", "gone")


def test_few_of_many_are_not_none() -> None:
    from spurless.cli.data_describe import _fraction

    assert [_fraction(n, 44_969) for n in (0, 5, 450)] == ["0.0 %", "<0.1 %", "1.0 %"]
    assert _fraction(0, 0) == "n/a"


def test_identities_domains_and_unknown_attributes_are_said(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups.overlapping(("civil", "toxic"), ("male", "female"))
    y = torch.arange(40) % 2
    a = torch.stack([y, torch.arange(40) // 20], dim=1)
    a[0] = -1
    split = Split({"input_ids": torch.ones(40, 6, dtype=torch.int32)}, y, a, groups)
    train = replace(split, domain=torch.arange(40) // 30, domains=("early", "late"))
    row = replace(DATASETS["planted"], make=lambda _: Splits(train, split, split, "talk", notes=("A lossy copy.",)))
    monkeypatch.setitem(DATASETS, "planted", row)
    text = flat(cli("data", "describe", "planted").out)
    assert "note A lossy copy." in text
    assert "talk: 2 attributes" in text
    assert "male 20 50.0 % 20 50.0 % 20 50.0 %" in text
    assert "1 examples of train have no known attribute" in text
    assert "given to methods in train: early 30, late 10" in text
    assert "the attribute male, the strongest one, is very strongly associated with the class" in text
    assert "text as token numbers (input_ids); 6 to 6 tokens, 6 on average" in text


BIRDS = Groups(("landbird", "waterbird"), ("land", "water"))


def of_counts(counts: list[int], groups: Groups = BIRDS) -> Split:
    """Return a split with so many examples of every group."""
    g = torch.repeat_interleave(torch.arange(len(groups)), torch.tensor(counts))
    y, a = groups.decode(g)
    return Split(torch.zeros(len(g), 2), y, a, groups)


def birds(train: list[int], test: list[int]) -> Splits:
    return Splits(of_counts(train), of_counts([1, 1, 1, 1]), of_counts(test), "birds")


def test_guesses_are_right_as_often_as_a_pencil_says() -> None:
    facts = compute_facts(birds([70, 10, 5, 15], [25, 25, 25, 25]))
    assert facts["guess"]["majority"] == {"label": "landbird", "train": 0.8, "test": 0.5}
    assert facts["guess"]["attribute"] == {"train": 0.85, "test": 0.5}  # (70 + 15) of 100
    # the attribute removes 5 of the 20 mistakes
    assert facts["shortcut"]["train"]["goodman_kruskal"] == pytest.approx(0.25)
    assert facts["shortcut"]["test"]["goodman_kruskal"] == 0
    assert facts["shortcut"]["test"]["cramers_v"] == 0


def test_rule_of_the_attribute_is_that_of_train() -> None:
    facts = compute_facts(birds([9, 1, 1, 9], [1, 9, 9, 1]))  # in test it is the other way round
    assert facts["guess"]["attribute"] == {"train": 0.9, "test": 0.1}
    assert facts["shortcut"]["test"]["cramers_v"] == pytest.approx(0.8)


def test_value_that_train_does_not_have_is_guessed_to_be_the_largest_class() -> None:
    facts = compute_facts(birds([2, 0, 3, 0], [0, 4, 0, 6]))
    assert facts["guess"]["majority"]["label"] == "waterbird"
    assert facts["guess"]["attribute"] == {"train": 0.6, "test": 0.6}


def test_groups_that_are_empty_or_tiny_are_named() -> None:
    facts = compute_facts(birds([70, 19, 0, 20], [25, 25, 25, 1]))
    assert facts["empty"] == {"train": ["waterbird, land"], "val": [], "test": []}
    assert facts["tiny"]["train"] == ["landbird, water (19)"]
    assert facts["tiny"]["test"] == ["waterbird, water (1)"]
    assert facts["groups"][1] == {"name": "landbird, water", "train": 19, "val": 1, "test": 25}
    assert facts["classes"][0] == {"name": "landbird", "train": 89, "val": 2, "test": 50}
    assert facts["examples"] == {"train": 109, "val": 4, "test": 76}


def test_unknown_attributes_are_counted_and_left_out() -> None:
    splits = birds([8, 2, 2, 8], [5, 5, 5, 5])
    a = splits.train.a.clone()
    a[:3] = -1
    facts = compute_facts(replace(splits, train=replace(splits.train, a=a)))
    assert facts["unknown"] == {"train": 3, "val": 0, "test": 0}
    assert facts["shortcut"]["train"]["n"] == 17
    hidden = replace(splits, test=splits.test.hide_attributes())
    assert set(compute_facts(hidden)["shortcut"]) == {"train"}
    assert compute_facts(hidden)["guess"]["attribute"] is None
    assert associate_known(splits.test.hide_attributes()) is None


def test_data_without_attributes_have_no_shortcut() -> None:
    split = of_counts([3, 5], Groups(("cat", "dog")))
    facts = compute_facts(Splits(split, split, split))
    assert facts["shortcut"] == {}
    assert facts["guess"] == {"majority": {"label": "dog", "train": 0.625, "test": 0.625}, "attribute": None}


def test_overlapping_attributes_are_counted_one_by_one() -> None:
    groups = Groups.overlapping(("civil", "toxic"), ("male", "female"))
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    a = torch.tensor([[0, 0], [0, 1], [0, 0], [1, 1], [1, 0], [0, 0]])
    split = Split(torch.zeros(6, 1), y, a, groups)
    facts = compute_facts(Splits(split, split, split))
    assert [(row["name"], row["train"]) for row in facts["identities"]] == [("male", 2), ("female", 2)]
    assert [row["train"] for row in facts["groups"]] == [0, 1, 2, 1]
    assert facts["shortcut"]["train"]["attribute"] == "male"  # who is male is toxic; female says nothing
    assert facts["guess"]["attribute"]["test"] == pytest.approx(5 / 6)


def test_rule_of_overlapping_attributes_reads_the_same_one_in_train_and_test() -> None:
    groups = Groups.overlapping(("civil", "toxic"), ("male", "female"))
    y = torch.tensor([0, 0, 1, 1])
    train = Split(torch.zeros(4, 1), y, torch.stack([y, torch.tensor([0, 1, 0, 1])], dim=1), groups)
    test = Split(torch.zeros(4, 1), y, torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]]), groups)
    facts = compute_facts(Splits(train, train, test))
    assert facts["shortcut"]["train"]["attribute"] == "male"
    assert facts["shortcut"]["test"]["attribute"] == "female"  # there it tells more
    assert facts["guess"]["attribute"] == {"train": 1.0, "test": 0.5}


def test_an_overlapping_attribute_that_nobody_knows_hides_no_other() -> None:
    groups = Groups.overlapping(("civil", "toxic"), ("male", "female"))
    y = torch.tensor([0, 0, 1, 1])
    both, second = torch.stack([y, 1 - y.roll(1)], dim=1), torch.stack([torch.full_like(y, -1), 1 - y], dim=1)
    half, whole = (Split(torch.zeros(4, 2), y, a, groups) for a in (second, both))
    found = associate_known(half)
    assert found is not None
    assert (found.attribute, found.n, found.goodman_kruskal) == ("female", 4, 1.0)
    assert compute_facts(Splits(half, half, half))["guess"]["attribute"] == {"train": 1.0, "test": 1.0}
    # train knows the first best, test does not know it at all: the rule of the one is not asked of the other
    assert compute_facts(Splits(whole, half, half))["guess"]["attribute"] is None


def test_domains_are_counted() -> None:
    splits = birds([2, 2, 2, 2], [1, 1, 1, 1])
    domain = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    train = replace(splits.train, domain=domain, domains=("north", "south"))
    facts = compute_facts(replace(splits, train=train))
    assert facts["domains"] == {"train": [{"name": "north", "count": 3}, {"name": "south", "count": 5}]}


def test_inputs_are_described_by_shape_range_and_memory() -> None:
    splits = birds([1, 1, 1, 1], [1, 1, 1, 1])
    images = torch.zeros(4, 3, 5, 7, dtype=torch.uint8)
    images[2, 0, 0, 0] = 9
    facts = compute_facts(Splits(*(replace(getattr(splits, part), x=images) for part in SPLITS)))["input"]
    assert facts["words"] == "RGB image, 7 x 5 pixels, uint8"
    assert (facts["low"], facts["high"], facts["bytes"], facts["streamed"]) == (0, 9, 12 * 105, False)


def test_text_is_described_by_its_lengths() -> None:
    splits = birds([1, 1, 1, 1], [1, 1, 1, 1])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0]], dtype=torch.int32)
    tokens = {"input_ids": mask * 7, "attention_mask": mask}
    for x in (tokens, {"input_ids": mask * 7}):
        facts = compute_facts(Splits(*(replace(getattr(splits, part), x=x) for part in SPLITS)))["input"]
        assert (facts["kind"], facts["shortest"], facts["longest"], facts["mean"]) == ("text", 1, 3, 2.0)
        assert facts["bytes"] == 12 * 3 * 4 * len(x)


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
    facts = compute_facts(Splits(split, split, split))["input"]
    assert facts["streamed"]
    assert facts["bytes"] == 3 * 1000 * 16
    assert len(source.read) <= 17
    assert max(source.read) > 900  # from all over it


def test_a_long_path_is_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    place = "/" + "deep/" * 40
    show_files({"found": ["metadata.csv"], "place": place})
    assert capsys.readouterr().out.splitlines() == ["files      metadata.csv", f"in         {place}"]
