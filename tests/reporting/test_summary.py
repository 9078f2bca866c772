"""Tests of the sentences: each follows from the numbers of a record made by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from spurless.core.records import GroupRow, Record
from spurless.reporting.aggregate import comparisons
from spurless.reporting.summary import (
    cautions,
    compare,
    describe,
    describe_doubts,
    describe_supervision,
    findings,
    headline,
    limits,
    summarise,
)

Make = Callable[..., Record]


def test_the_baseline_is_described_with_its_worst_group(make: Make) -> None:
    (comparison,) = comparisons([make()])
    assert describe(comparison.baseline) == (
        "ERM classifies 91.2 % of the test examples correctly, but only 7.1 % of 'digits 0-4, unmarked' "
        "(n = 121; 95 % interval 3.7 to 13.2 %)."
    )
    assert (
        headline(comparison) == "ERM has a clearly worse group: 7.1 % accuracy on the worst group, 91.2 % on average."
    )


def test_a_worst_group_within_its_interval_of_the_average_is_not_called_behind(make: Make) -> None:
    (comparison,) = comparisons([make(worst=0.90, low=0.83, high=0.94)])
    assert describe(comparison.baseline).endswith("(n = 121; 95 % interval 83.0 to 94.0 %): no group is clearly worse.")
    assert headline(comparison).startswith("ERM has no clearly worse group: 90.0 %")


def test_without_groups_nothing_is_said_of_a_worst_group(make: Make) -> None:
    (comparison,) = comparisons([make(groups=())])
    assert headline(comparison) == "ERM has an accuracy of 91.2 %; there are no groups."
    assert "there is no worst group" in describe(comparison.baseline)


@pytest.mark.parametrize(
    ("worst", "average", "sentence"),
    [
        (0.483, 0.902, "JTT raises the worst group from 7.1 % to 48.3 % and costs 1.0 point of average accuracy."),
        (0.483, 0.912, "JTT raises the worst group from 7.1 % to 48.3 % at the same average accuracy."),
        (0.483, 0.935, "JTT raises the worst group from 7.1 % to 48.3 % and adds 2.3 points of average accuracy."),
        (0.071, 0.912, "JTT leaves the worst group at 7.1 % at the same average accuracy."),
        (0.071, 0.902, "JTT leaves the worst group at 7.1 % and costs 1.0 point of average accuracy."),
        (
            0.075,
            0.912,
            "JTT leaves the worst group at 7.1 % (7.1 % to 7.5 %: less than one example) at the same average accuracy.",
        ),
        (0.021, 0.912, "JTT lowers the worst group from 7.1 % to 2.1 % at the same average accuracy."),
        (0.021, 0.922, "JTT lowers the worst group from 7.1 % to 2.1 % and adds 1.0 point of average accuracy."),
        (0.021, 0.902, "JTT lowers the worst group from 7.1 % to 2.1 % and costs 1.0 point of average accuracy."),
    ],
)
def test_a_comparison_says_what_the_numbers_say(make: Make, worst: float, average: float, sentence: str) -> None:
    (comparison,) = comparisons(
        [make(), make("jtt", worst=worst, average=average, low=worst - 0.01, high=worst + 0.01)]
    )
    assert compare(comparison, comparison.methods[1]) == sentence


def test_a_clear_gain_is_the_headline(make: Make) -> None:
    (comparison,) = comparisons([make("jtt", worst=0.483, low=0.39, high=0.57, average=0.902), make()])
    assert comparison.baseline.method == "erm"
    assert headline(comparison) == compare(comparison, comparison.methods[1])
    assert not describe_doubts(comparison, comparison.methods[1])


def test_overlapping_intervals_are_said_and_soften_the_headline(make: Make) -> None:
    (comparison,) = comparisons([make(), make("jtt", worst=0.12, low=0.07, high=0.19)])
    assert describe_doubts(comparison, comparison.methods[1]) == (
        "The intervals overlap: this difference may be chance.",
    )
    assert headline(comparison) == "JTT has a better worst group than ERM (7.1 % to 12.0 %), but this may be chance."
    assert findings(comparison)[1].endswith("The intervals overlap: this difference may be chance.")


def test_an_unknown_interval_is_a_doubt(make: Make) -> None:
    (comparison,) = comparisons([make(), make("jtt", worst=0.5, low=None, high=None)])
    assert describe_doubts(comparison, comparison.methods[1]) == (
        "Its interval is unknown: this difference may be chance.",
    )


def test_seeds_that_disagree_are_said(make: Make) -> None:
    before = [make(seed=seed, worst=0.4, low=0.39, high=0.41) for seed in range(3)]
    after = [make("jtt", seed=s, worst=w, low=w - 0.01, high=w + 0.01) for s, w in enumerate((0.9, 0.9, 0.4))]
    (comparison,) = comparisons(before + after)
    assert describe_doubts(comparison, comparison.methods[1]) == (
        "The intervals overlap: this difference may be chance.",  # 90, 90, 40 is 73 -+ 72
        "The seeds disagree: 1 of 3 do not show it.",
    )
    assert headline(comparison).endswith("but this may be chance.")


@pytest.mark.parametrize(
    ("worst", "verdict"),
    [
        (0.071, "No method changes the worst-group accuracy: ERM has 7.1 %, the best other 7.1 %."),
        (0.021, "No method has a better worst group than ERM: ERM has 7.1 %, the best other 2.1 %."),
    ],
)
def test_no_gain_is_the_headline_too(make: Make, worst: float, verdict: str) -> None:
    (comparison,) = comparisons([make(), make("jtt", worst=worst, low=0, high=worst + 0.001), make("dfr", worst=0.01)])
    assert headline(comparison) == verdict


def test_ties_are_named(make: Make) -> None:
    better = {"worst": 0.483, "low": 0.39, "high": 0.57}
    (comparison,) = comparisons([make(), make("jtt", **better), make("dfr", **better)])
    assert headline(comparison) == "JTT and DFR both raise the worst group from 7.1 % to 48.3 %."
    assert "JTT and DFR tie on the worst group." in findings(comparison)
    (comparison,) = comparisons([make(), make("jtt", **better), make("dfr", **better), make("avp", **better)])
    assert headline(comparison).startswith("JTT, DFR and AVP all raise the worst group")


def test_methods_that_cannot_be_told_apart_are_named(make: Make) -> None:
    near = make("dfr", worst=0.46, low=0.37, high=0.55)
    (comparison,) = comparisons([make(), make("jtt", worst=0.483, low=0.39, high=0.57), near])
    assert findings(comparison)[-1] == "JTT and DFR cannot be ranked: their intervals overlap."


def test_a_trade_that_loses_more_than_it_gains_is_said(make: Make) -> None:
    (comparison,) = comparisons([make(), make("jtt", worst=0.171, low=0.14, high=0.2, average=0.7)])
    assert "It gives up more average accuracy than the worst group gains." in findings(comparison)[1]
    (comparison,) = comparisons([make(), make("jtt", worst=0.483, low=0.39, high=0.57, average=0.902)])
    assert "gives up more" not in " ".join(findings(comparison))


def test_one_seed_and_the_resolution_floor_are_cautions(make: Make) -> None:
    (comparison,) = comparisons([make()])
    assert cautions(comparison) == (
        "One seed only: run more seeds before trusting a difference.",
        "One example in the worst group 'digits 0-4, unmarked' (n = 121) changes its accuracy by 0.8 points: "
        "smaller differences cannot be detected.",
    )
    (comparison,) = comparisons([make(seed=0), make(seed=1), make("jtt", worst=0.5)])
    assert cautions(comparison)[0].startswith("One seed only for JTT:")
    (comparison,) = comparisons([make(seed=0), make(seed=1)])
    assert not any("seed" in line for line in cautions(comparison))


def test_more_labels_than_the_baseline_are_a_caution(make: Make) -> None:
    rich = make("group-dro", worst=0.8, supervision={"train_attributes": True, "val_labels": False})
    (comparison,) = comparisons([make(), rich])
    assert cautions(comparison)[-1] == "Group DRO used more labels than ERM: attribute labels of the train split."


def test_supervision_is_said_in_words(make: Make) -> None:
    used = {"train_attributes": True, "val_attributes": True}
    (comparison,) = comparisons(
        [make(), make("jtt", supervision={"train_attributes": True}), make("dfr", supervision=used)]
    )
    assert [describe_supervision(runs) for runs in comparison.methods] == [
        "Used: nothing beyond the training labels.",
        "Used: attribute labels of the train split.",
        "Used: attribute labels of the train split and attribute labels of the validation split.",
    ]


def test_a_worst_group_that_changes_between_seeds_is_not_given_one_name(make: Make) -> None:
    other = (GroupRow("digits 0-4, unmarked", 121, 0.5, 0.4, 0.6), GroupRow("the rest", 1000, 0.3, 0.271, 0.33))
    (comparison,) = comparisons([make(), make(seed=1, groups=other)])
    assert describe(comparison.baseline) == (
        "ERM classifies 91.2 % of the test examples correctly (mean of 2 runs), but only 18.6 % of its worst group, "
        "which differs between runs: 'digits 0-4, unmarked' and 'the rest' "
        "(n = 121 to 1,000; 95 % interval 0.0 to 100.0 %)."
    )


def test_limits_name_empty_groups_and_the_choice_of_the_best(make: Make, grid: Make) -> None:
    (comparison,) = comparisons([grid()])
    assert limits(comparison)[-1] == "Empty groups. '0 in 1' and '1 in 0' have no test examples."
    (comparison,) = comparisons([make(), make("jtt"), make("dfr")])
    assert limits(comparison)[-1].startswith("The best method on new data. The best of 3 was selected")


def test_each_dataset_has_its_own_summary(make: Make) -> None:
    other = make(data={"name": "waterbirds", "fingerprint": "w"})
    summaries = summarise([make(), other, make("jtt")])
    assert [s.comparison.name for s in summaries] == ["marked-digits", "waterbirds"]
    assert [len(s.comparison.methods) for s in summaries] == [2, 1]
    assert all(s.headline and s.findings for s in summaries)


def test_missing_numbers_are_not_available_not_a_crash(make: Make) -> None:
    (comparison,) = comparisons(
        [make(groups=(), metrics={}), make("jtt", groups=(), metrics={"average": float("nan")})]
    )
    assert headline(comparison) == "ERM has an accuracy of n/a; there are no groups."
    assert compare(comparison, comparison.methods[1]) == "JTT cannot be compared: there is no worst group."


def test_a_name_cannot_turn_a_sentence_around_or_flood_it(hostile: list[Record]) -> None:
    (comparison,) = comparisons([replace(hostile[2], groups=hostile[2].groups[2:])])
    assert len(describe(comparison.baseline)) < 350
    (comparison,) = comparisons([replace(hostile[0], groups=hostile[0].groups[3:])])
    assert "\u202e" not in describe(comparison.baseline)
    assert "\u2068" in describe(comparison.baseline)
