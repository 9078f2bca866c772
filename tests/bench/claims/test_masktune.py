"""MaskTune's claims: the paper's two tests are read off the groups of one."""

import pytest

from spurless.bench.claims.masktune import BIASED_MNIST, TWO_SQUARES, both_tests
from spurless.core.records import Record
from spurless.data import load
from spurless.fitting import evaluate_given
from spurless.models import build
from spurless.train.evaluate import predict
from spurless.train.run import Compute


def record(test: str) -> Record:
    data = load("patched-digits", test=test)
    return evaluate_given("fresh", build("linear", data), data, compute=Compute("cpu"))


@pytest.mark.filterwarnings("ignore:The model predicts")
def test_both_accuracies_are_those_of_the_test_sets_apart() -> None:
    biased, original = both_tests(record("paper"))
    assert biased == pytest.approx(100 * (record("conflicting").metrics["average"] or 0.0))
    assert original == pytest.approx(100 * (record("unmarked").metrics["average"] or 0.0))
    data = load("patched-digits", test="conflicting")
    hits = (predict(build("linear", data), data.test) == data.test.y).double().mean()
    assert biased == pytest.approx(100 * float(hits))


def test_the_claims_are_measured_on_the_papers_assignment_and_tests() -> None:
    for claim in (BIASED_MNIST, TWO_SQUARES):
        for name, cell in claim.experiments.items():
            assert cell.data_options["test"] == "paper"
            assert cell.data_options.get("sorted_assignment", False) is not name.endswith("random")
    assert TWO_SQUARES.experiments["accumulative, 3"].method_options == {"iterations": 3, "accumulate": True}


def test_numbers_are_told_with_the_table_that_prints_them_and_its_spread() -> None:
    assert (BIASED_MNIST.source[:7], BIASED_MNIST.paper, BIASED_MNIST.spread) == ("Table 6", 98.26, 0.27)
    assert (TWO_SQUARES.source[:7], TWO_SQUARES.paper, TWO_SQUARES.spread) == ("Table 5", 98.88, 0.6)
