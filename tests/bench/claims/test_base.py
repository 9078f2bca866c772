"""Claims: bars, verdicts and judgement by hand-made records."""

from dataclasses import replace

import pytest

from spurless.bench.claims import CLAIMS, Bar, Claim, ClaimResult, check_claim, get_claim
from spurless.bench.claims.base import percent
from spurless.bench.experiment import Experiment
from spurless.core.errors import InputError, UnknownNameError
from spurless.core.records import Record

CLAIM = Claim(
    id="toy/one",
    source="Table 1",
    quantity="worst group, %",
    experiments={"erm": Experiment("planted", "linear", "erm")},
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
    verdict = check_claim(CLAIM, [record(0.88), record(0.92, seed=1), record(0.1, cell="toy/other erm")])
    assert verdict.values == pytest.approx((88.0, 92.0))
    assert verdict.ours == pytest.approx(90.0)
    assert verdict.holds
    assert verdict.line() == "toy/one  90.00  90.00 +- 0.5  >= 89  HOLDS"


def test_on_every_seed_means_the_smallest() -> None:
    strict = replace(CLAIM, over="min", spread=None)
    verdict = check_claim(strict, [record(0.88), record(0.92, seed=1)])
    assert verdict.ours == pytest.approx(88.0)
    assert verdict.line() == "toy/one  88.00  90.00  >= 89  FALLS SHORT"
    assert ClaimResult(replace(CLAIM, over="max"), (1.0, 3.0)).ours == 3.0


def test_a_number_that_does_not_exist_falls_short() -> None:
    assert not check_claim(CLAIM, [record(None)]).holds


def test_a_run_that_was_cut_off_is_named_and_its_seed_has_no_number() -> None:
    whole = replace(CLAIM, measure=lambda rows: 1.0 if rows["erm"].history[-1]["train_accuracy"] == 1 else float("nan"))
    ended = replace(record(0.9), train={"stop_accuracy": 1.0}, history=({"loss": 0.1, "train_accuracy": 1.0},))
    short = replace(ended, seed=1, history=({"loss": 0.1, "train_accuracy": 0.99},))
    verdict = check_claim(whole, [short, ended])
    assert verdict.cut_off == ("erm of seed 1",)
    assert verdict.by_seed() == "1.00, none"
    assert verdict.line() == "toy/one  none  90.00 +- 0.5  >= 89  FALLS SHORT"


def test_missing_records_are_named() -> None:
    with pytest.raises(
        InputError, match=r"records of toy/one are incomplete \(got no record\). Run: spurless reproduce"
    ):
        check_claim(CLAIM, [])
    two = replace(CLAIM, experiments={**CLAIM.experiments, "dfr": CLAIM.experiments["erm"]})
    with pytest.raises(InputError, match="got no record of dfr of seed 0"):
        check_claim(two, [record(0.9)])


def test_a_typo_is_answered_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'theory/planted-erm'"):
        get_claim("theory/planted-er")


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=list(CLAIMS))
def test_every_claim_is_complete(claim: Claim) -> None:
    assert claim.source
    assert claim.quantity
    assert claim.experiments
    assert claim.seeds >= 3
    assert claim.minutes > 0
    assert claim.id.count("/") == 1
