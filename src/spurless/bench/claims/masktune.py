"""Claims of MaskTune: Asgari Taghanaki et al., NeurIPS 2022, arXiv:2210.00055."""

from __future__ import annotations

from functools import partial

from spurless.bench.claims.base import Bar, Claim, Measurement, gain, percent
from spurless.bench.experiment import Experiment
from spurless.core.metric_info import COVERAGES
from spurless.core.records import Record

# Section 3: SGD .01, halved every 25 of 100 epochs. The authors' code never halves it; see MaskTune's deviations.
HALVED = {"epochs": 100, "batch_size": 128, "weight_decay": 1e-4, "schedule": "step", "decay_factor": 0.5}
MNIST = {**HALVED, "lr": 0.01, "decay_epochs": 25}
AUTHORS = {"sorted_assignment": True, "test": "paper"}
"""Each minority is one digit, as in the authors' code; the test split contains both of their test sets."""
DIGITS = {"steps": 170, "batch_size": 64, "lr": 0.01}


def both_tests(record: Record) -> tuple[float, float]:
    """Return the accuracy, in percent, on the paper's biased test (large digits marked) and on the original one."""
    small, large_marked, large_unmarked = (
        _count_correct(record, name) for name in ("0 to 4, unmarked", "5 to 9, marked", "5 to 9, unmarked")
    )
    biased, original = ((small[0] + large[0]) / (small[1] + large[1]) for large in (large_marked, large_unmarked))
    return 100 * biased, 100 * original


def lower_test(name: str) -> Measurement:
    """Measure the lower of the two test accuracies of an experiment."""
    return lambda records: min(both_tests(records[name]))


def _count_correct(record: Record, group: str) -> tuple[float, int]:
    row = next(row for row in record.groups if row.name == group)
    return (row.accuracy or 0.0) * row.count, row.count


_biased_mnist = partial(Experiment, "biased-mnist", "small-cnn", data_options=AUTHORS, train=MNIST)
_on_mnist = partial(
    Claim, quantity="the lower of biased and original test accuracy, %", cost="gpu", needs=("mnist.npz",)
)

BIASED_MNIST = _on_mnist(
    id="masktune/biased-mnist",
    source="Table 6 (figure 2, left, has no numbers): biased 98.26, original 98.46; random masking 59.06 and 91.02",
    experiments={
        "erm": _biased_mnist("erm"),
        "randmask": _biased_mnist("randmask"),
        "masktune": _biased_mnist("masktune"),
        "masktune at the last rate": _biased_mnist("masktune", preset="paper"),
        "erm, random": _biased_mnist("erm", data_options={"test": "paper"}),
        "masktune, random": _biased_mnist("masktune", data_options={"test": "paper"}),
    },
    measure=lower_test("masktune"),
    paper=98.26,
    spread=0.27,
    bar=Bar(98.0),
    seeds=3,
    minutes=6,
)

TWO_SQUARES = _on_mnist(
    id="masktune/two-squares",
    source="Table 5, three accumulative iterations: biased 98.88, original 99.00; ERM 18.59 and 60.78",
    experiments={
        f"{'' if accumulate else 'not '}accumulative, {n}": _biased_mnist(
            "masktune",
            data_options={**AUTHORS, "squares": 2},
            method_options={"iterations": n, "accumulate": accumulate},
        )
        for accumulate, n in ((True, 1), (True, 2), (True, 3), (False, 3))
    },
    measure=lower_test("accumulative, 3"),
    paper=98.88,
    spread=0.6,
    bar=Bar(97.0),
    seeds=3,
    minutes=3,
)

PATCHED_DIGITS = Claim(
    id="masktune/patched-digits",
    source="not in the paper: its offline version, 99 to 1; the bar is ours",
    quantity="gain in unbiased accuracy over ERM with the same number of steps, points",
    experiments={
        "erm": Experiment("patched-digits", "small-cnn", "erm", train={**DIGITS, "steps": 250}),
        "masktune": Experiment("patched-digits", "small-cnn", "masktune", preset="digits", train=DIGITS),
    },
    measure=gain("masktune", "erm", "unbiased"),
    bar=Bar(8.0),
    seeds=5,
    minutes=3,
)

# Section 3: SGD .1 halved every 25 of 300 epochs, batch 128; here a third of it, so that three seeds take minutes.
# The split into 80 % train and 20 % validation and the augmentation are those of the authors' code.
CIFAR = {**HALVED, "lr": 0.1, "decay_epochs": 8}
SELECTIVE = {"val": 10_000, "augment": "turn"}
_selective_cifar10 = partial(Experiment, "cifar10", "resnet32", "masktune", SELECTIVE, train=CIFAR, coverages=COVERAGES)

SELECTIVE_CIFAR10 = Claim(
    id="masktune/selective-cifar10",
    source="Table 7, CIFAR-10, target coverage 90 %; at 100, 95, 85, 80 %: 8.96, 6.54, 3.23, 2.13",
    quantity="error at 90 % coverage, %",
    experiments={"masktune at the last rate": _selective_cifar10(preset="paper"), "masktune": _selective_cifar10()},
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
