"""Claims: bars, verdicts and judgement by hand-made records."""

from dataclasses import replace

import pytest

from spurless.bench.cell import Cell
from spurless.bench.claims import CLAIMS, Bar, Claim, Verdict, claim_named, judge
from spurless.bench.claims.base import percent
from spurless.core.errors import BadInput, UnknownName
from spurless.core.records import Record

CLAIM = Claim(
    id="toy/one",
    place="Table 1",
    quantity="worst group, %",
    cells={"erm": Cell("planted", "linear", "erm")},
    measure=percent("erm", "worst_group"),
    paper=90.0,
    spread=0.5,
    bar=Bar(89.0),
    seeds=2,
    cost="cpu",
    minutes=1,
)


def record(value: float | None, seed: int = 0, cell: str = "toy/one erm") -> Record:
    return Record("erm", seed, {}, {}, {}, {}, {}, "last", (), {"worst_group": value}, {}, cell=cell)


def test_bars() -> None:
    assert Bar(1.0).holds(1.0)
    assert not Bar(1.0).holds(0.999)
    assert Bar(high=2.0).holds(2.0)
    assert not Bar(high=2.0).holds(2.001)
    assert Bar(1.0, 2.0).holds(1.5)
    assert not Bar(1.0, 2.0).holds(float("nan"))


def test_the_verdict_is_the_mean_over_seeds() -> None:
    verdict = judge(CLAIM, [record(0.88), record(0.92, seed=1), record(0.1, cell="toy/other erm")])
    assert verdict.values == pytest.approx((88.0, 92.0))
    assert verdict.ours == pytest.approx(90.0)
    assert verdict.holds
    assert verdict.line() == "toy/one  90.00  90.00 +- 0.5  >= 89  HOLDS"


def test_on_every_seed_means_the_smallest() -> None:
    strict = replace(CLAIM, over="min", spread=None)
    verdict = judge(strict, [record(0.88), record(0.92, seed=1)])
    assert verdict.ours == pytest.approx(88.0)
    assert verdict.line() == "toy/one  88.00  90.00  >= 89  FALLS SHORT"
    assert Verdict(replace(CLAIM, over="max"), (1.0, 3.0)).ours == 3.0


def test_a_number_that_does_not_exist_falls_short() -> None:
    assert not judge(CLAIM, [record(None)]).holds


def test_a_run_that_was_cut_off_is_named_and_its_seed_has_no_number() -> None:
    whole = replace(CLAIM, measure=lambda rows: 1.0 if rows["erm"].history[-1]["train_accuracy"] == 1 else float("nan"))
    ended = replace(record(0.9), train={"stop_accuracy": 1.0}, history=({"loss": 0.1, "train_accuracy": 1.0},))
    short = replace(ended, seed=1, history=({"loss": 0.1, "train_accuracy": 0.99},))
    verdict = judge(whole, [short, ended])
    assert verdict.cut_off == ("erm of seed 1",)
    assert verdict.by_seed() == "1.00, none"
    assert verdict.line() == "toy/one  none  90.00 +- 0.5  >= 89  FALLS SHORT"


def test_missing_records_are_named() -> None:
    with pytest.raises(
        BadInput, match=r"records of toy/one are not complete \(got no record\). Run: spurless reproduce"
    ):
        judge(CLAIM, [])
    two = replace(CLAIM, cells={**CLAIM.cells, "dfr": CLAIM.cells["erm"]})
    with pytest.raises(BadInput, match="got none of dfr of seed 0"):
        judge(two, [record(0.9)])


def test_a_typo_is_answered_with_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'theory/planted-erm'"):
        claim_named("theory/planted-er")


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=list(CLAIMS))
def test_every_claim_is_complete(claim: Claim) -> None:
    assert claim.place
    assert claim.quantity
    assert claim.cells
    assert claim.seeds >= 3
    assert claim.minutes > 0
    assert claim.id.count("/") == 1
