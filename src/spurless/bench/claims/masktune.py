"""Claims of MaskTune: Asgari Taghanaki et al., NeurIPS 2022, arXiv:2210.00055."""

from __future__ import annotations

from collections.abc import Mapping

from spurless.bench.cell import Cell
from spurless.bench.claims.base import Bar, Claim, Measure, percent
from spurless.core.records import Record
from spurless.metrics.selective import COVERAGES

# Section 3: SGD .01, halved every 25 of 100 epochs. The authors' code never halves it; see MaskTune's deviations.
MNIST = {
    "epochs": 100,
    "batch_size": 128,
    "lr": 0.01,
    "weight_decay": 1e-4,
    "schedule": "step",
    "decay_epochs": 25,
    "decay_factor": 0.5,
}
AUTHORS = {"sorted_assignment": True, "test": "paper"}
"""Each minority is one digit, as in the authors' code; both of their test sets at once."""
DIGITS = {"steps": 170, "batch_size": 64, "lr": 0.01}


def both_tests(record: Record) -> tuple[float, float]:
    """Return the accuracy, in percent, on the paper's biased test (large digits marked) and on the original one."""
    small, marked, unmarked = (
        _hits(record, name) for name in ("0 to 4, unmarked", "5 to 9, marked", "5 to 9, unmarked")
    )
    biased, original = ((small[0] + large[0]) / (small[1] + large[1]) for large in (marked, unmarked))
    return 100 * biased, 100 * original


def lower_test(cell: str) -> Measure:
    """Measure the lower of the two test accuracies of a cell."""
    return lambda records: min(both_tests(records[cell]))


def _hits(record: Record, group: str) -> tuple[float, int]:
    row = next(row for row in record.groups if row.name == group)
    return (row.accuracy or 0.0) * row.count, row.count


def _gain(records: Mapping[str, Record]) -> float:
    tuned, plain = (records[cell].metrics["unbiased"] or 0.0 for cell in ("masktune", "erm"))
    return 100 * (tuned - plain)


BIASED_MNIST = Claim(
    id="masktune/biased-mnist",
    place="Table 6 (figure 2, left, has no numbers): biased 98.26, original 98.46; random masking 59.06 and 91.02",
    quantity="the lower of biased and original test accuracy, %",
    cells={
        "erm": Cell("biased-mnist", "small-cnn", "erm", AUTHORS, train=MNIST),
        "randmask": Cell("biased-mnist", "small-cnn", "randmask", AUTHORS, train=MNIST),
        "masktune": Cell("biased-mnist", "small-cnn", "masktune", AUTHORS, train=MNIST),
        "masktune at the last rate": Cell(
            "biased-mnist", "small-cnn", "masktune", AUTHORS, preset="paper", train=MNIST
        ),
        "erm, random": Cell("biased-mnist", "small-cnn", "erm", {"test": "paper"}, train=MNIST),
        "masktune, random": Cell("biased-mnist", "small-cnn", "masktune", {"test": "paper"}, train=MNIST),
    },
    measure=lower_test("masktune"),
    paper=98.26,
    spread=0.27,
    bar=Bar(98.0),
    seeds=3,
    cost="gpu",
    minutes=6,
    needs=("mnist.npz",),
)

TWO_SQUARES = Claim(
    id="masktune/two-squares",
    place="Table 5, three accumulative iterations: biased 98.88, original 99.00; ERM 18.59 and 60.78",
    quantity="the lower of biased and original test accuracy, %",
    cells={
        f"{'' if accumulate else 'not '}accumulative, {n}": Cell(
            "biased-mnist",
            "small-cnn",
            "masktune",
            {**AUTHORS, "squares": 2},
            method_options={"iterations": n, "accumulate": accumulate},
            train=MNIST,
        )
        for accumulate, n in ((True, 1), (True, 2), (True, 3), (False, 3))
    },
    measure=lower_test("accumulative, 3"),
    paper=98.88,
    spread=0.6,
    bar=Bar(97.0),
    seeds=3,
    cost="gpu",
    minutes=3,
    needs=("mnist.npz",),
)

PATCHED_DIGITS = Claim(
    id="masktune/patched-digits",
    place="not in the paper: its embedded twin, 99 to 1; the bar is ours",
    quantity="unbiased accuracy above that of ERM with as many steps, points",
    cells={
        "erm": Cell("patched-digits", "small-cnn", "erm", train={**DIGITS, "steps": 250}),
        "masktune": Cell("patched-digits", "small-cnn", "masktune", preset="digits", train=DIGITS),
    },
    measure=_gain,
    paper=None,
    spread=None,
    bar=Bar(8.0),
    seeds=5,
    cost="cpu",
    minutes=3,
)

# Section 3: SGD .1 halved every 25 of 300 epochs, batch 128; here a third of it, so that three seeds take minutes.
# Train and validation at 80 to 20, and the augmentation, are those of the authors' code.
CIFAR = {
    "epochs": 100,
    "batch_size": 128,
    "lr": 0.1,
    "weight_decay": 1e-4,
    "schedule": "step",
    "decay_epochs": 8,
    "decay_factor": 0.5,
}
SELECTIVE = {"val": 10_000, "augment": "turn"}

SELECTIVE_CIFAR10 = Claim(
    id="masktune/selective-cifar10",
    place="Table 7, CIFAR-10, target coverage 90 %; at 100, 95, 85, 80 %: 8.96, 6.54, 3.23, 2.13",
    quantity="error at 90 % coverage, %",
    cells={
        "masktune at the last rate": Cell(
            "cifar10", "resnet32", "masktune", SELECTIVE, preset="paper", train=CIFAR, coverages=COVERAGES
        ),
        "masktune": Cell("cifar10", "resnet32", "masktune", SELECTIVE, train=CIFAR, coverages=COVERAGES),
    },
    measure=percent("masktune at the last rate", "error_at_90"),
    paper=4.74,
    spread=0.31,
    bar=Bar(high=5.36),  # two published spreads above
    seeds=3,
    cost="gpu",
    minutes=12,
    needs=("cifar10_jpeg.npz",),
)

CLAIMS = (BIASED_MNIST, TWO_SQUARES, SELECTIVE_CIFAR10, PATCHED_DIGITS)
