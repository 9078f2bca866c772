"""``spurless data describe``: the card, the groups and the shortcut in words, on 80 columns, and whole as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spurless.core.groups import Groups
from spurless.data import DATASETS
from spurless.data.grouped import Grouped, Splits

Cli = Callable[..., Any]
Refused = Callable[..., None]


def flat(text: str) -> str:
    return " ".join(text.split())


def test_describe_says_it_all_on_80_columns(cli: Cli) -> None:
    said = cli("data", "describe", "patched-digits", "-D", "conflicting=0.01")
    assert (said.status, said.err) == (0, "")
    assert max(map(len, said.out.splitlines())) <= 80
    text = flat(said.out)
    for sentence in (
        "summary Small against large digits",
        "options conflicting=0.01, squares=1",
        "inputs RGB image, 28 x 28 pixels, uint8; values from 0 to 255",
        "memory 4.2 MB, held",
        "0 to 4, unmarked 5 0.5 %",
        "0 to 4 501 50.1 % 149 50.2 % 251 50.2 %",
        "in train the attribute tells most of the label: it removes 98 % of the mistakes",
        "in test the attribute tells hardly anything of the label: it removes 0 % of the mistakes",
        "is right in 50.1 % of train and 50.2 % of test; the label that goes with the attribute in train, in 99.0 %",
        "under 20 examples in train: 0 to 4, unmarked (5); 5 to 9, marked (5)",
    ):
        assert sentence in text


def test_options_shown_are_those_in_use(cli: Cli) -> None:
    assert "options conflicting=0.3," in flat(cli("data", "describe", "patched-digits", "-D", "conflicting=0.3").out)


def test_json_has_every_number(cli: Cli) -> None:
    told = json.loads(cli("data", "describe", "planted", "-D", "agreement=1.0", "--json").out)
    assert told["card"]["name"] == "planted"
    assert told["options"]["agreement"] == 1.0
    assert told["needs"] is None
    assert told["files"] == {"found": [], "place": None}
    assert told["shortcut"]["train"]["cramers_v"] == pytest.approx(1.0)
    assert told["guess"]["attribute"]["train"] == 1.0
    assert [row["name"] for row in told["groups"]] == ["minus, left", "minus, right", "plus, left", "plus, right"]


def test_many_groups_show_the_largest_and_name_the_empty(cli: Cli) -> None:
    said = cli("data", "describe", "colored-digits", "-D", "conflicting=0")
    text = flat(said.out)
    assert "100 groups, the 24 largest in train (all: --json)" in text
    assert sum(line.startswith(tuple(f"{i}, " for i in range(10))) for line in said.out.splitlines()) == 24
    assert "no examples in train: 0, yellow; 0, mauve" in text
    assert "and 84 more" in text


def test_own_images_are_counted_and_hardly_read(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spurless.data import images

    read: list[Path] = []
    usual = images.read_image

    def noted(path: Path, *more: Any) -> torch.Tensor:
        read.append(path)
        return usual(path, *more)

    monkeypatch.setattr(images, "read_image", noted)
    text = flat(cli("data", "describe", folder).out)
    assert len(set(read)) <= 17  # of 30
    assert f"files {folder}" in text
    assert "read on demand; all inputs would need 5.8 kB" in text
    assert "no attribute is known, so nothing can be said of one" in text
    assert "always dark, the largest class of train, is right in 50.0 %" in text
    assert "classes" not in text  # the groups are the classes


def test_missing_files_leave_the_card_and_where_to_get_it(cli: Cli, here: Path) -> None:
    said = cli("data", "describe", "waterbirds", "--root", here)
    assert said.status == 2
    assert "citation Sagawa et al." in flat(said.out)
    assert "needs metadata.csv, <species>/<image>.jpg. Get waterbird_complete95" in flat(said.out)
    (line,) = said.err.splitlines()
    assert "the files of waterbirds are not there" in line
    told = cli("data", "describe", "waterbirds", "--root", here, "--json")
    assert told.status == 2
    assert json.loads(told.out)["needs"]["files"] == ["metadata.csv", "<species>/<image>.jpg"]


def test_wrong_option_is_refused_before_anything_is_said(refused: Refused) -> None:
    refused(r"dataset 'planted' has no option 'agremeent'", "data", "describe", "planted", "-D", "agremeent=1")
    refused(r"'gone' is no dataset's name, and no folder, CSV or npz file", "data", "describe", "gone")


def test_few_of_many_are_not_none() -> None:
    from spurless.cli.data_describe import _of

    assert [_of(n, 44_969) for n in (0, 5, 450)] == ["0.0 %", "<0.1 %", "1.0 %"]
    assert _of(0, 0) == "n/a"


def test_identities_domains_and_unknown_attributes_are_said(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups.overlapping(("civil", "toxic"), ("male", "female"))
    y = torch.arange(40) % 2
    a = torch.stack([y, torch.arange(40) // 20], dim=1)
    a[0] = -1
    split = Grouped({"input_ids": torch.ones(40, 6, dtype=torch.int32)}, y, a, groups)
    train = replace(split, domain=torch.arange(40) // 30, domains=("early", "late"))
    row = replace(DATASETS["planted"], make=lambda _: Splits(train, split, split, "talk", notes=("A lossy copy.",)))
    monkeypatch.setitem(DATASETS, "planted", row)
    text = flat(cli("data", "describe", "planted").out)
    assert "note A lossy copy." in text
    assert "talk: 2 attributes" in text
    assert "male 20 50.0 % 20 50.0 % 20 50.0 %" in text
    assert "1 examples of train have no known attribute" in text
    assert "methods are given these in train: early 30, late 10" in text
    assert "the attribute (male, the one that tells most) tells most of the label" in text
    assert "text as token numbers (input_ids); 6 to 6 tokens, 6 on average" in text
