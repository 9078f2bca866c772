"""Claims of the learning-rate study: Barsbey, Prieto, Zafeiriou and Birdal, 2025, arXiv:2507.17748.

Rates, batch sizes and the end, 100 % accuracy on train, are the paper's (section 4.2, appendix C, Tables 1 and 2). A
run that is cut off before that end is no run of the study: a claim that needs it has no number then.

Table 1 has the smallest and the largest value of each number over the rates, not where they were. A claim compares the
ends of the rates, and its ``paper`` is the largest accuracy less the smallest.

The paper trains on all of MNIST and CIFAR-10, here a validation split is cut off first: 55,000 and 45,000 images. Its
Corrupted CIFAR-10 is that of Nam et al. (LfF), ours has the corruptions of DisEnt; see ``data/corrupted_cifar10.py``.

Images lie between 0 and 1. The authors' earlier code normalises them, which is left out: in a ResNet a batch norm
follows the first convolution, and takes out scale and mean, but for the mean at the border.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import nan
from statistics import correlation
from typing import Any

from spurless.bench.cell import Cell
from spurless.bench.claims.base import Bar, Claim
from spurless.bench.stopping import reached
from spurless.bench.study import study
from spurless.core.records import Record

SGD: dict[str, Any] = {
    "optimiser": "sgd",
    "momentum": 0.0,
    "weight_decay": 0.0,
    "batch_size": 100,
    "stop_accuracy": 1.0,
}
"""Section 4.2: constant rate, no momentum, no regularisation, to 100 %."""


def number(record: Record, metric: str) -> float:
    """Return a metric of a run that came to its end; NaN of any other, and where there is none."""
    value = record.metrics.get(metric) if reached(record) else None
    return nan if value is None else value


def rise(records: Mapping[str, Record], low: str, high: str, beside: Iterable[str]) -> float:
    """Measure how much higher unbiased accuracy is at the high rate than at the low one, in points.

    It counts as none on a seed where one of the metrics ``beside`` it does not rise too; NaN where a run was cut off.
    """
    before, after = records[low], records[high]
    points = 100 * (number(after, "unbiased") - number(before, "unbiased"))
    others = [number(after, metric) - number(before, metric) for metric in beside]
    if any(change != change for change in (points, *others)):
        return nan
    return points if all(change > 0 for change in others) else 0.0


def rate(value: float) -> str:
    """Name the cell of a learning rate, as a sweep names it."""
    return f"lr={value:g}"


# The paper gives no number of bits but that C > S. With four core bits, one spurious and 30, 35 or 40 of noise, rate
# 0.75 has 97, 85 or 65 % right on validation, mean of the seeds 100 to 103 (of 30: two); the paper has 85.7.
BITS = {"core": 4, "spurious": 1, "noise": 35}
# The paper's prunability of 0.56 can be no ratio: of two classes, a net that is right on up to 85.7 % keeps 0.625 and
# more where it guesses once pruned. As the accuracy under pruning, mean over kappa, both of its ends are possible, and
# that rises here too; the ratio falls, from 1, where there is nothing to lose. The claim is of the ratio, like all
# others; records have both.
PARITY_METRICS = ("prunability", "csi", "class_separation")


def parity_rise(records: Mapping[str, Record]) -> float:
    """Measure the rise from the paper's lowest rate to its highest; the other three must rise with it."""
    return rise(records, rate(0.01), rate(0.75), PARITY_METRICS)


PARITY = Claim(
    id="large-lr/parity",
    place=(
        "Table 1, parity, FCN, learning rate 0.01 to 0.75: accuracy 55.3 to 85.7, CSI 0.032 to 0.152, class separation "
        "0.008 to 0.136, prunability 0.56 to 0.78, which can be no ratio; the bar is ours"
    ),
    quantity=(
        "unbiased accuracy at rate 0.75 above that at 0.01, points; 0 on a seed where prunability, CSI or class "
        "separation falls"
    ),
    cells={
        rate(lr): Cell("parity", "mlp", "watched-erm", BITS, train={**SGD, "lr": lr, "epochs": 3000})
        for lr in (0.01, 0.1, 0.75)
    },
    measure=parity_rise,
    paper=30.35,
    spread=None,
    bar=Bar(15.0),
    seeds=8,
    cost="cpu",
    minutes=7,
    extra=study,
)

MNIST, BOTH, CIFAR = ("mnist.npz",), ("mnist.npz", "cifar10_jpeg.npz"), ("cifar10_jpeg.npz",)
COLORED, TENTH = {"conflicting": 0.025, "severity": 4}, {"conflicting": 0.1}
RATES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25)
"""The paper gives the ends."""
EPOCHS = 60
"""A cap; at 500 steps a second 60 epochs take some 75 s."""
LONG = 150
"""The cap where the tenth that conflicts is of CIFAR-10, which is learnt by heart, and of ways slower than SGD."""
LONGEST = 400
"""The cap where that is corrupted too: of six runs of 150 epochs four had 20 to 95 examples wrong at the end."""


def _resnet18(dataset: str, data: Mapping[str, Any], method: str = "erm", **train: Any) -> Cell:
    return Cell(dataset, "torchvision:resnet18", method, data, train={**SGD, "epochs": EPOCHS, **train})


def _over(
    rates: tuple[float, ...], dataset: str, data: Mapping[str, Any], method: str = "erm", **train: Any
) -> dict[str, Cell]:
    return {rate(lr): _resnet18(dataset, data, method, lr=lr, **train) for lr in rates}


WATCHED = _over(RATES, "colored-mnist", COLORED, "watched-erm")
"""The weights are those of ERM, so that both claims about these data may be judged by the same runs."""


def _table1(dataset: str, cells: Mapping[str, Cell], paper: tuple[float, float], needs: Any, minutes: float) -> Claim:
    rates = [float(name.removeprefix("lr=")) for name in cells]
    low, high = rate(min(rates)), rate(max(rates))
    whole = paper[1] - paper[0]
    return Claim(
        id=f"large-lr/{dataset}-resnet18",
        place=(
            f"Table 1, {dataset}, ResNet-18, learning rate {min(rates):g} to {max(rates):g}: accuracy {paper[0]:g} to "
            f"{paper[1]:g}; the bar is half of that rise"
        ),
        quantity="unbiased accuracy at the high rate above that at the low one, points; 0 where prunability falls",
        cells=cells,
        measure=lambda records: rise(records, low, high, ("prunability",)),
        paper=whole,
        spread=None,
        bar=Bar(round(whole / 2, 2)),
        seeds=3,
        cost="gpu",
        minutes=minutes,
        needs=needs,
        extra=study,
    )


DOUBLE = _over((0.001, 0.1), "double-mnist", {"conflicting": 0.025})
DOMINOES = _over((0.001, 0.25), "mnist-cifar", TENTH, epochs=LONG)
CORRUPTED = _over((0.001, 0.5), "corrupted-cifar10", TENTH, epochs=LONGEST)
RESNET18 = (
    _table1("colored-mnist", WATCHED, (68.343, 91.543), MNIST, 5),
    _table1("double-mnist", DOUBLE, (85.44, 95.577), MNIST, 3),
    _table1("mnist-cifar", DOMINOES, (26.233, 47.513), BOTH, 4),
    _table1("corrupted-cifar10", CORRUPTED, (35.153, 47.795), CIFAR, 12),
)


def along(records: Mapping[str, Record], metric: str = "max_loss_ratio") -> float:
    """Measure the correlation of a metric with unbiased accuracy over the rates of a seed; NaN if a run was cut off."""
    runs = [(number(record, metric), number(record, "unbiased")) for record in records.values()]
    ratios, accuracies = zip(*runs, strict=True)
    if any(value != value for run in runs for value in run) or len(set(ratios)) < 2 or len(set(accuracies)) < 2:
        return nan
    return correlation(ratios, accuracies)


LOSS_RATIO = Claim(
    id="large-lr/loss-ratio",
    place="Section 6 and figure 12, Colored MNIST: accuracy goes with the highest loss ratio; the bar is ours",
    quantity="correlation over rates of unbiased accuracy and the highest share of a mini-batch's loss that conflicts",
    cells=WATCHED,
    measure=along,
    paper=None,
    spread=None,
    bar=Bar(0.8),
    seeds=3,
    cost="gpu",
    minutes=5,
    needs=MNIST,
    extra=study,
)

# Table 2, at the low rate but where the rate is the row. The paper gives the range of each, not which was best. Here it
# is the strongest where that comes to 100 %, else one below: focal 25, ASAM 10, L1 0.001 and L2 0.001 at the high rate
# did not within 60 epochs (benchmarks/records/large_lr_cut_off.jsonl), and ASAM 1 not within 150. Batch sizes are
# told there as 1/100 to 1/3; batches of 3 would take a run half an hour.
LOW, HIGH = 0.001, 0.15
OTHERS: dict[str, dict[str, Any]] = {
    "batch size 10": {"batch_size": 10, "epochs": 20},
    "momentum 0.99": {"momentum": 0.99},
    "l1 0.0001": {"l1": 0.0001, "epochs": LONG},
    "l2 0.05": {"weight_decay": 0.05},
    "asam 1": {"asam": 1.0, "epochs": LONG},
}
ROWS = {
    "low rate": _resnet18("colored-mnist", COLORED, lr=LOW),
    "high rate": _resnet18("colored-mnist", COLORED, lr=HIGH),
    "high rate, l2 0.0001": _resnet18("colored-mnist", COLORED, lr=HIGH, weight_decay=0.0001),
    **{name: _resnet18("colored-mnist", COLORED, lr=LOW, **train) for name, train in OTHERS.items()},
    "focal 5": Cell(
        "colored-mnist",
        "torchvision:resnet18",
        "focal",
        COLORED,
        method_options={"gamma": 5.0},
        train={**SGD, "epochs": LONG, "lr": LOW},
    ),
}


def ahead(records: Mapping[str, Record]) -> float:
    """Measure how far the better of the two high rates is above the best other row, in points.

    Ours must have come to their end, and NaN is told where neither did; others count as far as they came.
    """
    ours = [value for row in ROWS if row.startswith("high") and (value := number(records[row], "unbiased")) == value]
    theirs = [records[row].metrics.get("unbiased") or 0.0 for row in ROWS if not row.startswith("high")]
    return 100 * (max(ours) - max(theirs)) if ours else nan


COMPARISON = Claim(
    id="large-lr/comparison",
    place=(
        "Table 2, Colored MNIST, ResNet-18, highest accuracy of each row: learning rate 92.2, with L2 94.3; batch size "
        "90.3, momentum 91.2, L1 90.3, L2 89.7, focal 91.8, ASAM 91.0; the bar is ours"
    ),
    quantity="unbiased accuracy of a high rate, with or without L2, above the best of the other rows, points",
    cells=ROWS,
    measure=ahead,
    paper=2.45,
    spread=None,
    bar=Bar(0.0),
    seeds=3,
    cost="gpu",
    minutes=28,
    needs=MNIST,
    extra=study,
)

CLAIMS = (PARITY, *RESNET18, LOSS_RATIO, COMPARISON)
