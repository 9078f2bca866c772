"""Claims of DCWP: Park et al., CVPR 2023, arXiv:2210.05247."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spurless.bench.cell import Cell
from spurless.bench.claims.base import Bar, Claim, percent
from spurless.bench.fitting import Fitted, evaluate_given
from spurless.bench.study import data_again, device_of
from spurless.core.records import Record
from spurless.methods.mining import MINING_COLORED_MNIST, How
from spurless.methods.subnetwork import Subnetwork
from spurless.metrics.shortcut_theory import weight_ratio
from spurless.train.run import Engine

# Appendix B.3: 500 epochs in batches of 1024. Optimiser, rate and size of the data are not in the paper.
LINEAR = {"epochs": 500, "batch_size": 1024, "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
AGREEMENTS = (0.6, 0.8, 0.95, 0.99)
NOTHING: Mapping[str, Any] = {}


def ratio(fitted: Fitted) -> Mapping[str, float]:
    """Return the ratio of spurious to invariant weight of a linear model; of two labels, the difference counts."""
    minus, plus = fitted.model.get_parameter("head.weight").detach().cpu()
    return {"weight_ratio": weight_ratio(plus - minus)}


def rising(records: Mapping[str, Record]) -> float:
    """Measure the ratio at the strongest shortcut; 0 where it does not rise with p up to 0.95, and above that of 0.8.

    From 0.95 to 0.99 a single seed may fall, where the invariant weight began far above 0.
    """
    first, second, third, last = (records[f"p {p}"].metrics["weight_ratio"] or 0.0 for p in AGREEMENTS)
    return last if first < second < third and second < last else 0.0


LINEAR_RATIO = Claim(
    id="dcwp/linear-ratio",
    place="Appendix B.3 and figure 2: the ratio increases to 1 on average as p goes to 1",
    quantity="mean spurious weight / invariant weight at p = 0.99, median of seeds; 0 where it does not rise with p",
    cells={f"p {p}": Cell("linear-bits", "linear", "erm", {"p": p}, train=LINEAR) for p in AGREEMENTS},
    measure=rising,
    paper=1.0,
    spread=None,
    # Two standard errors: weights end at 0.6 and begin at +- 0.2. So the median too: a ratio's mean is not safe there.
    bar=Bar(0.75, 1.25),
    seeds=15,
    cost="cpu",
    minutes=5,
    over="median",
    extra=ratio,
)

# The starting point of all; mining, pruning and retraining are 200 steps each, so ERM alone has 800.
DIGITS = {"steps": 200, "batch_size": 64, "lr": 0.01}


def _digits(method: str, options: Mapping[str, Any] = NOTHING, **train: Any) -> Cell:
    """Return a cell with a net of the paper's kind, a quarter as wide."""
    data, net, preset = {"conflicting": 0.1}, {"channels": (16, 32, 64)}, None if method == "erm" else "digits"
    return Cell("colored-digits", "pooled-cnn", method, data, net, preset, options, {**DIGITS, **train})


def gain(records: Mapping[str, Record]) -> float:
    """Measure how many points of unbiased accuracy DCWP is above ERM."""
    pruned, plain = (records[cell].metrics["unbiased"] for cell in ("dcwp", "erm"))
    return float("nan") if pruned is None or plain is None else 100 * (pruned - plain)


COLORED_DIGITS = Claim(
    id="dcwp/colored-digits",
    place="not in the paper: its embedded twin, 10 % conflicting; the bar is ours",
    quantity="unbiased accuracy above that of ERM with as many steps in all, points, on every seed at least",
    cells={
        "erm": _digits("erm", steps=800),
        "erm, 10 times the rate": _digits("erm", steps=800, lr=0.1),
        "dcwp": _digits("dcwp"),
        "no mask": _digits("dcwp", {"mask": False}),
        "no alignment": _digits("dcwp", {"align": 0.0, "prune_align": 0.0}),
        "mrm": _digits("mrm", steps=300),  # twice, and 200 for the mask
    },
    measure=gain,
    paper=None,
    spread=None,
    bar=Bar(8.0),
    seeds=5,
    cost="cpu",
    minutes=4,
    over="min",
)

# Appendix E.2 and the authors' scripts: Adam at 0.01 for 10,000 steps, batches of 256; runs are judged at their end.
ADAM = {"optimiser": "adam", "beta2": 0.99, "weight_decay": 0.0, "batch_size": 256}
MNIST = {**ADAM, "steps": 10_000, "epochs": 1000, "lr": 0.01}
# LfF and DisEnt as their authors run them, nets included; EnD and ReBias as ERM, ReBias at its authors' rate;
# EnD also as its authors have it, with their schedule and a head that reads features of length 1.
FAILURE = {"optimiser": "adam", "weight_decay": 0.0, "batch_size": 256, "epochs": 100, "lr": 1e-3}
DISENTANGLED = {
    "optimiser": "adam", "weight_decay": 0.0, "batch_size": 256, "steps": 50_000, "epochs": 1000, "lr": 0.01,
    "schedule": "step", "decay_at": (20_000, 30_000, 40_000), "decay_factor": 0.5,
}  # fmt: skip  # halved every 10,000 steps, counted from the 10,000 at which swapping begins
ENTANGLED = {
    "optimiser": "adam", "weight_decay": 1e-4, "batch_size": 256, "epochs": 80, "lr": 1e-3,
    "schedule": "step", "decay_epochs": 20, "decay_factor": 0.1,
}  # fmt: skip
SMALL = {"depth": 4, "width": 100, "bias": True}
LABEL_FREE = ("erm", "mrm", "lff", "lff, same net", "disent")


def _mnist(ratio: float, method: str, preset: str | None = None, **options: Any) -> Cell:
    """Return a cell of DCWP's net. Colours vary by 0.05, which no paper states."""
    data = {"conflicting": ratio / 100, "severity": 1}
    return Cell("colored-mnist", "pooled-cnn", method, data, preset=preset, method_options=options, train=MNIST)


def leading(records: Mapping[str, Record]) -> float:
    """Measure the unbiased accuracy of DCWP, in percent; 0 where a method that needs no attributes is ahead of it."""
    ours, *others = (records[cell].metrics["unbiased"] or 0.0 for cell in ("dcwp", *LABEL_FREE))
    return 100 * ours if ours > max(others) else 0.0


def _colored_mnist(ratio: float, paper: float, rest: str) -> Claim:
    preset, data = f"colored-mnist-{ratio:g}", {"conflicting": ratio / 100, "severity": 1}
    upweight = {0.5: 80.0, 1: 50.0, 2: 30.0, 5: 10.0}[ratio]
    return Claim(
        id=f"dcwp/{preset}",
        place=f"Table 1, CMNIST, {ratio:g} %; {rest}",
        quantity="unbiased accuracy of DCWP, %; 0 where another method without attributes is ahead",
        cells={
            "erm": _mnist(ratio, "erm"),
            "dcwp": _mnist(ratio, "dcwp", preset),
            "no mask": _mnist(ratio, "dcwp", preset, mask=False),
            "no alignment": _mnist(ratio, "dcwp", preset, align=0.0, prune_align=0.0),
            "as written": _mnist(ratio, "dcwp", "colored-mnist-paper", upweight=upweight),
            "mrm": _mnist(ratio, "mrm", "colored-mnist"),
            "end": _mnist(ratio, "end", "colored-mnist"),
            "end, as its authors": replace(
                _mnist(ratio, "end", "colored-mnist"), model_options={"unit": True}, train=ENTANGLED
            ),
            "rebias": replace(_mnist(ratio, "rebias", "colored-mnist"), train={**MNIST, "lr": 1e-3}),
            "lff": Cell("colored-mnist", "mlp", "lff", data, SMALL, "colored-mnist", train=FAILURE),
            "lff, same net": _mnist(ratio, "lff", "colored-mnist"),
            "disent": Cell(
                "colored-mnist", "mlp", "disent", data, {**SMALL, "features": 16}, "colored-mnist", train=DISENTANGLED
            ),
        },
        measure=leading,
        paper=paper,
        spread=None,
        bar=Bar(paper - 1.5),
        seeds=4,
        cost="gpu",
        minutes=6,
        needs=("mnist.npz",),
    )


COLORED_MNIST = (
    _colored_mnist(0.5, 93.41, "ERM 62.36, EnD 84.32, ReBias 69.12, MRM 60.98, LfF 83.73, DisEnt 86.74"),
    _colored_mnist(1, 95.98, "ERM 81.73, EnD 94.98, ReBias 84.65, MRM 80.42, LfF 88.44, DisEnt 93.15"),
    _colored_mnist(2, 97.16, "ERM 89.33, EnD 97.01, ReBias 91.96, MRM 89.31, LfF 92.67, DisEnt 95.15"),
    _colored_mnist(5, 98.02, "ERM 95.22, EnD 98.00, ReBias 96.74, MRM 95.23, LfF 94.90, DisEnt 96.76"),
)

# Table 2 is by SGD, with a rate that no paper has. Of three that were tried, 0.1 (as in their mining, with its decay),
# 0.03 and 0.01, the last gives the table: at the others early stopping lists too few; see benchmarks/dcwp_rates.py.
RATE = 0.01
SGD = {"steps": 2000, "epochs": 10, "batch_size": 256, "lr": RATE, "weight_decay": 1e-4}
RETRAIN = {"optimiser": "sgd", "lr": 1e-3, "weight_decay": 1e-4}
ROWS = {
    1: "", 2: "a", 3: "ae", 4: "ab", 5: "abd", 6: "abcd", 7: "ade", 8: "abe", 9: "abcde",
}  # fmt: skip
"""Row of table 2 to what it has: a oversampling, b pruning, c alignment of the mask, d of the weights, e GCE."""


def _row(parts: str) -> Cell:
    options: dict[str, Any] = {
        **RETRAIN,
        "mask": "b" in parts,
        "prune_align": 0.05 if "c" in parts else 0.0,
        "align": 0.05 if "d" in parts else 0.0,
    }
    if "a" not in parts:
        options |= {"upweight": 1.0, "prune_upweight": 1.0}
    how: How = "gce" if "e" in parts else "early"
    options["mining"] = replace(MINING_COLORED_MNIST, how=how, lr=RATE, decay_steps=None)
    return replace(_mnist(1, "dcwp", "colored-mnist-1", **options), train=SGD)


def above(records: Mapping[str, Record]) -> float:
    """Measure how far row 9 is above the best other row, in points; NaN where row 1 is not the lowest."""
    rows = [100 * (records[f"row {row}"].metrics["unbiased"] or 0.0) for row in ROWS]
    return rows[-1] - max(rows[:-1]) if rows[0] == min(rows) else float("nan")


ABLATION = Claim(
    id="dcwp/ablation",
    place="Table 2: rows 1 to 9: 43.10, 69.78, 73.20, 74.80, 75.15, 76.49, 79.28, 84.79, 87.96",
    quantity="unbiased accuracy of all parts above the best of fewer, points; none where the net with none is not last",
    cells={f"row {row}": _row(parts) for row, parts in ROWS.items()},
    measure=above,
    paper=3.17,
    spread=None,
    bar=Bar(0.0),
    seeds=4,
    cost="gpu",
    minutes=3,
    needs=("mnist.npz",),
)

CIFAR = {**ADAM, "steps": 10_000, "epochs": 1000, "lr": 1e-3}


def _cifar(ratio: float, **options: Any) -> Cell:
    name, data = "corrupted-cifar10", {"conflicting": ratio / 100, "augment": "crop-flip"}
    return Cell(name, "timm:tf_efficientnet_lite0", "dcwp", data, {"pretrained": True}, name, options, CIFAR)


def of_the_start(fitted: Fitted) -> Mapping[str, float]:
    """Return the unbiased accuracy of what DCWP began with, and how good its list of mined examples was.

    The first is that of ERM of as many steps, which need not be trained twice.
    """
    told, found = fitted.record, dict[str, float | None]()
    data = data_again(told)
    if fitted.start is not None:
        start = evaluate_given("erm", fitted.start, data, seed=told.seed, engine=Engine(device_of(told)))
        found["start_unbiased"] = start.metrics["unbiased"]
    if isinstance(fitted.explanation, Subnetwork) and fitted.explanation.mined is not None:
        quality = fitted.explanation.mined.quality(data.train)
        found |= {"mined_precision": quality.precision, "mined_recall": quality.recall}
    return {name: value for name, value in found.items() if value is not None}


def _corrupted_cifar10(ratio: float, upweight: float, paper: float, rest: str) -> Claim:
    return Claim(
        id=f"dcwp/corrupted-cifar10-{ratio:g}",
        place=f"Table 1, CIFAR10-C, {ratio:g} %; {rest}. There ResNet-18, here EfficientNet-Lite0, both of ImageNet",
        quantity="unbiased accuracy of DCWP, %; of images that were saved as JPEG",
        cells={"dcwp": _cifar(ratio, upweight=upweight)},
        measure=percent("dcwp", "unbiased"),
        paper=paper,
        spread=None,
        bar=Bar(paper - 1.5),
        seeds=4,
        cost="gpu",
        minutes=6,
        needs=("cifar10_jpeg.npz", "weights/tf_efficientnet_lite0_fp16.safetensors"),
        extra=of_the_start,
    )


CORRUPTED_CIFAR10 = (
    _corrupted_cifar10(0.5, 80.0, 35.90, "ERM 22.02"),
    _corrupted_cifar10(1, 50.0, 41.56, "ERM 28.00"),
    _corrupted_cifar10(2, 30.0, 49.01, "ERM 34.63"),
    _corrupted_cifar10(5, 10.0, 56.17, "ERM 45.66"),
)

# The first draws of the authors' mask keep 69 % of the weights, which this net does not stand; see the page on DCWP.
GENTLE = {"squashed": False, "init": 4.6}  # 99 % are kept at first


def best_variant(records: Mapping[str, Record]) -> float:
    """Measure how far the better of the two variants is above DCWP as its authors run it, in points."""
    plain, *others = (100 * (records[cell].metrics["unbiased"] or 0.0) for cell in ("dcwp", "no mask", "gentle mask"))
    return max(others) - plain


CORRUPTED_CIFAR10_MASK = Claim(
    id="dcwp/corrupted-cifar10-mask",
    place="not in the paper: what the mask does to EfficientNet-Lite0 at 1 %; the bar is ours",
    quantity="unbiased accuracy of the better of no mask and of first draws that keep 99 %, above the authors', points",
    cells={
        "dcwp": _cifar(1, upweight=50.0),
        "no mask": _cifar(1, upweight=50.0, mask=False),
        "gentle mask": _cifar(1, upweight=50.0, **GENTLE),
    },
    measure=best_variant,
    paper=None,
    spread=None,
    bar=Bar(0.0),
    seeds=4,
    cost="gpu",
    minutes=12,
    needs=("cifar10_jpeg.npz", "weights/tf_efficientnet_lite0_fp16.safetensors"),
    extra=of_the_start,
)

CLAIMS = (LINEAR_RATIO, COLORED_DIGITS, *COLORED_MNIST, ABLATION, *CORRUPTED_CIFAR10, CORRUPTED_CIFAR10_MASK)
