r"""Shortcut theory: how a linear model spreads its weight over a shortcut, and what pruning it can and cannot promise.

Park, Lee, Lee and Ye, "Training Debiased Subnetworks with Contrastive Weight Pruning", CVPR 2023, arXiv:2210.05247,
section 3 and appendices B and C. An input is :math:`(z_{inv}, z_1, \dots, z_D)` with :math:`z_{inv} = y \in \{-1, 1\}`
and each spurious bit :math:`z_i = y` with probability :math:`p`, on its own; the dataset ``linear-bits``. A linear
model has weights :math:`(w_{inv}, w_1, \dots, w_D)` and ratios :math:`\alpha_i = w_i / w_{inv}`; pruning keeps weight
:math:`i` with probability :math:`\pi_i`.

Deviations from what is printed:
    * A sum of 0 is no prediction and counts as half an error; the proofs leave ties out, and the bounds hold with them.
    * In equations 39 and 41 a parenthesis closes too late: :math:`\tanh^{-1}` is of the first term alone, as its
      derivation has it. As printed, the argument may be above 1, where there is no :math:`\tanh^{-1}`.
    * :math:`M = w_{inv}(T)` in 39 is replaced by its own upper bound 38, which can be computed and is on the safe side.
    * Lemma 1 needs :math:`W^T W = I`, so at least as many features as inputs; a wide :math:`W` only projects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import atanh, comb, exp, inf, log, prod, sqrt, tanh
from typing import Literal

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.figures import Figure


@dataclass(frozen=True)
class Pruning:
    """A trained linear model by its ratios, and how likely each weight is kept."""

    ratios: Tensor  # alpha_i, one per spurious bit
    keep: Tensor  # pi_i, one per spurious bit
    keep_invariant: float = 1.0  # pi_inv


def weight_ratio(weights: Tensor) -> float:
    r"""Return :math:`\mathrm{mean}(w_i) / w_{inv}`, the number of figure 2; the invariant weight comes first.

    Example:
        >>> weight_ratio(torch.tensor([2.0, 1.0, 3.0]))
        1.0
    """
    return float(weights[1:].double().mean() / weights[0].double())


def train_bound(pruning: Pruning, p: float) -> float:
    r"""Return the bound of the training error, theorem 1, equation 3; ``p = 0.5`` gives the test bound, equation 4.

    .. math:: 2 \exp\left( -\frac{2 (\pi_{inv} + (2p - 1) \sum_i \alpha_i \pi_i)^2}{4 \sum_i \alpha_i^2 + 1} \right)

    Keeping more of the shortcut lowers it wherever :math:`p > 1/2`, and leaves the test bound as it is.

    Example:
        >>> kept = Pruning(torch.full((15,), 0.1), torch.ones(15))
        >>> round(train_bound(kept, 0.9), 3), round(train_bound(kept, 0.5), 3)
        (0.005, 0.573)
    """
    return _bound(pruning, 2 * p - 1)


def mixture_bound(pruning: Pruning, p: float, phi: float) -> float:
    r"""Return the bound of the training error where a share of the data conflicts, theorem 2, equation 9.

    A share :math:`\phi` has every spurious bit against the label; the rest are as before. In :func:`train_bound`,
    :math:`2p - 1` becomes :math:`2p(1 - \phi) - 1`, which is 0 at :func:`debiasing_share`: the test bound.

    Raises:
        BadInput: so much conflicts that the shortcut points the other way.
    """
    most = debiasing_share(p)
    if not 0 <= phi <= most + 1e-12:
        raise BadInput("the mixture must still be biased", expected=f"a share from 0 to {most:.3g}", got=phi)
    return _bound(pruning, 2 * p * (1 - phi) - 1)


def debiasing_share(p: float) -> float:
    r"""Return the share of conflicting data at which the shortcut says nothing, :math:`\phi = 1 - 1 / (2p)`.

    Example:
        >>> round(debiasing_share(0.95), 3)
        0.474
    """
    if not 0.5 <= p <= 1:
        raise BadInput("p must be at least 0.5 and at most 1", got=p)
    return 1 - 1 / (2 * p)


def pruned_error(pruning: Pruning, p: float, n: int, generator: torch.Generator) -> float:
    """Simulate the error that the bounds are about, equation 2: ``n`` draws of spurious bits and masks, for label 1."""
    agree = 2.0 * (torch.rand(n, len(pruning.ratios), generator=generator) < p) - 1
    kept = torch.rand(n, len(pruning.ratios), generator=generator) < pruning.keep
    invariant = torch.rand(n, generator=generator) < pruning.keep_invariant
    output = invariant + (pruning.ratios * agree * kept).sum(dim=1)
    return float((1 - output.sign()).double().mean() / 2)


def _bound(pruning: Pruning, agreement: float) -> float:
    mean = pruning.keep_invariant + agreement * float((pruning.ratios * pruning.keep).sum())
    if mean < 0:
        raise BadInput("the model leans against its inputs, and the bounds are for one that does not", got=mean)
    return 2 * exp(-2 * mean**2 / (4 * float(pruning.ratios.square().sum()) + 1))


@dataclass(frozen=True)
class Flow:
    """Where gradient flow starts; all spurious weights alike."""

    p: float = 0.95
    spurious: int = 15  # D
    invariant_start: float = 0.1  # w_inv(0)
    spurious_start: float = 0.1  # w_i(0)

    @property
    def limit(self) -> float:
        r"""Where each spurious weight goes under the exponential loss, :math:`\frac12 \log \frac{p}{1-p}`."""
        return inf if self.p == 1 else log(self.p / (1 - self.p)) / 2


def weights_at(
    flow: Flow, times: Sequence[float], loss: Literal["exponential", "logistic"] = "exponential", step: float = 0.05
) -> Tensor:
    r"""Return :math:`(w_{inv}, w_i)` at rising times of gradient flow on the population loss, shape ``(times, 2)``.

    Under the exponential loss, proposition 1,

    .. math:: \dot w_{inv} = e^{-w_{inv}} b^D, \quad \dot w_i = e^{-w_{inv}} (p e^{-w_i} - (1-p) e^{w_i}) b^{D-1},
        \quad b = p e^{-w_i} + (1-p) e^{w_i}.

    The logistic loss is the paper's simulation; its expectation is a sum over how many bits agree. By the classical
    Runge-Kutta method with steps of at most ``step``.

    Example:
        >>> ends = [weights_at(Flow(p), [50.0], "logistic")[0] for p in (0.6, 0.8, 0.99)]
        >>> [round(float(spurious / invariant), 2) for invariant, spurious in ends]
        [0.06, 0.41, 0.97]
    """
    agree = torch.arange(flow.spurious + 1, dtype=torch.float64)
    chance = torch.tensor(
        [comb(flow.spurious, k) * flow.p**k * (1 - flow.p) ** (flow.spurious - k) for k in range(flow.spurious + 1)],
        dtype=torch.float64,
    )
    surplus = 2 * agree - flow.spurious  # sum of y z_i where k bits agree

    def velocity(w: Tensor) -> Tensor:
        margin = w[0] + surplus * w[1]
        pull = chance * ((-margin).exp() if loss == "exponential" else torch.sigmoid(-margin))
        return torch.stack([pull.sum(), (pull * surplus).sum() / flow.spurious])

    w, now, rows = torch.tensor([flow.invariant_start, flow.spurious_start], dtype=torch.float64), 0.0, []
    for time in times:
        n = max(1, round((time - now) / step + 0.5))
        for _ in range(n if time > now else 0):
            w = _runge_kutta(velocity, w, (time - now) / n)
        rows.append(w)
        now = time
    found = torch.stack(rows)
    if not bool(found.isfinite().all()):
        raise BadInput("the steps are too large for so fast a start", got=step, do="Pass a smaller step.")
    return found


def _runge_kutta(velocity: Callable[[Tensor], Tensor], w: Tensor, h: float) -> Tensor:
    a = velocity(w)
    b = velocity(w + h / 2 * a)
    c = velocity(w + h / 2 * b)
    d = velocity(w + h * c)
    return w + h / 6 * (a + 2 * b + 2 * c + d)


def invariant_bounds(flow: Flow, time: float) -> tuple[float, float]:
    r"""Return the bounds of :math:`w_{inv}(t)`, proposition 1, equations 37 and 38.

    .. math:: \log\left(e^{w_{inv}(0)} + [4p(1-p)]^{D/2} t\right) \le w_{inv}(t) \le
        \log\left(e^{w_{inv}(0)} + t \left(p e^{-w_i(0)} + \sqrt{p(1-p)}\right)^D\right)

    So it grows without end, as :math:`\log t`, and every ratio goes to 0.
    """
    _check(flow)
    p, start = flow.p, exp(flow.invariant_start)
    low = (4 * p * (1 - p)) ** (flow.spurious / 2)
    high = prod([p * exp(-flow.spurious_start) + sqrt(p * (1 - p))] * flow.spurious)
    return log(start + low * time), log(start + high * time)


def ratio_bound(flow: Flow, time: float, end: float) -> float:
    r"""Return the lower bound of a ratio at ``time`` of a training that ends at ``end``, proposition 1, equation 41.

    .. math:: \alpha(t) > \frac{\log \left[ \sqrt{\frac{p}{1-p}} \tanh\left( \tanh^{-1}\left( \sqrt{\frac{1-p}{p}}
        e^{w_i(0)} \right) + e^{-M} 2^{D-1} [p(1-p)]^{D/2} t \right) \right]}
        {\log\left(e^{w_{inv}(0)} + t \left(p e^{-w_i(0)} + \sqrt{p(1-p)}\right)^D\right)}

    Above 0 at every finite time, however long.
    """
    _check(flow)
    p, (_, top), (_, now) = flow.p, invariant_bounds(flow, end), invariant_bounds(flow, time)
    grown = exp(-top) * 2 ** (flow.spurious - 1) * (p * (1 - p)) ** (flow.spurious / 2) * time
    inner = tanh(atanh(sqrt((1 - p) / p) * exp(flow.spurious_start)) + grown)
    return log(sqrt(p / (1 - p)) * inner) / now


def ratio_bound_at_one(flow: Flow, end: float) -> float:
    r"""Return the bound of a ratio at any time before ``end`` as :math:`p \to 1`, proposition 1, equation 42.

    .. math:: \frac{w_i(0)}{\log\left(e^{w_{inv}(0)} + T e^{-D w_i(0)}\right)},

    which falls no faster than :math:`1 / \log T`.

    Example:
        >>> [round(ratio_bound_at_one(Flow(), end), 3) for end in (1e2, 1e4, 1e6)]
        [0.032, 0.013, 0.008]
    """
    return flow.spurious_start / log(exp(flow.invariant_start) + end * exp(-flow.spurious * flow.spurious_start))


def similarity(spurious: int, p: float, other: float | None = None) -> float:
    r"""Return the expected cosine similarity of two embeddings of one class, lemma 1.

    .. math:: \frac{1 + D (2p - 1)(2p' - 1)}{D + 1}

    for the environments :math:`p` and :math:`p'`, the same by default: equation 44. With :math:`p' = 1/2` it is
    :math:`1 / (D + 1)`, equation 43. The embedding is linear with orthonormal columns.

    Example:
        >>> round(similarity(15, 0.95), 2), similarity(15, 0.95, 0.5)
        (0.82, 0.0625)
    """
    other = p if other is None else other
    return (1 + spurious * (2 * p - 1) * (2 * other - 1)) / (spurious + 1)


def ratio_figure(measured: Mapping[float, Sequence[float]], theory: Mapping[float, float] | None = None) -> Figure:
    """Draw figure 2: the mean ratio of the weights against p, with one dot per seed, and the theory's where given."""
    if not measured or not all(measured.values()):
        raise BadInput("there is no ratio to draw", expected="at least one per p")
    means = {p: sum(values) / len(values) for p, values in sorted(measured.items())}
    every = [(p, value) for p, values in sorted(measured.items()) for value in values]
    dots = {"color": "@muted", "size": 5, "opacity": 0.5}
    traces = [
        _trace("one seed", [p for p, _ in every], [v for _, v in every], mode="markers", marker=dots),
        _trace("mean", list(means), list(means.values()), mode="lines+markers", line={"color": "@ink", "width": 2}),
    ]
    if theory:
        line = {"color": "@soft", "width": 2, "dash": "dot"}
        traces.append(_trace("gradient flow", sorted(theory), [theory[p] for p in sorted(theory)], line=line))
    layout = {
        "xaxis": {"title": {"text": "how often a spurious bit agrees with the label, p"}},
        "yaxis": {"title": {"text": "mean spurious weight / invariant weight"}, "rangemode": "tozero"},
    }
    told = ", ".join(f"{value:.2f} at {p:g}" for p, value in means.items())
    caption = f"The stronger the shortcut, the more it weighs: {told}."
    return Figure("Weight ratio", caption, {"data": traces, "layout": layout}, f"A line: {told}.")


def _trace(name: str, x: list[float], y: list[float], **rest: object) -> dict[str, object]:
    return {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, **rest}


def _check(flow: Flow) -> None:
    if not (0.5 < flow.p < 1 and flow.invariant_start > 0 and 0 < flow.spurious_start < flow.limit):
        raise BadInput(
            "proposition 1 starts with positive weights, the spurious ones under their limit, and 0.5 < p < 1",
            got=f"p {flow.p}, {flow.invariant_start} and {flow.spurious_start}, limit {flow.limit:.3g}",
        )
