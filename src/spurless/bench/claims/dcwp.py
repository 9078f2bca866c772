"""Claims of DCWP: Park et al., CVPR 2023, arXiv:2210.05247."""

from __future__ import annotations

from collections.abc import Mapping

from spurless.bench.cell import Cell
from spurless.bench.claims.base import Bar, Claim
from spurless.bench.fitting import Fitted
from spurless.core.records import Record
from spurless.metrics.shortcut_theory import weight_ratio

# Appendix B.3: 500 epochs in batches of 1024. Optimiser, rate and size of the data are not in the paper.
LINEAR = {"epochs": 500, "batch_size": 1024, "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
AGREEMENTS = (0.6, 0.8, 0.95, 0.99)


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

CLAIMS = (LINEAR_RATIO,)
