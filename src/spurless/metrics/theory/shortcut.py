r"""Theory of DCWP: weights of a linear model on data with a shortcut, and error bounds after pruning.

The claims on DCWP's theory and the dataset ``linear-bits`` are tested with it.

Park, Lee, Lee and Ye, "Training Debiased Subnetworks with Contrastive Weight Pruning", CVPR 2023, arXiv:2210.05247,
section 3 and appendices B and C. An input is :math:`(z_{inv}, z_1, \dots, z_D)` with :math:`z_{inv} = y \in \{-1, 1\}`
and each spurious bit :math:`z_i = y` with probability :math:`p`, independently; this is ``linear-bits``. A linear
model has weights :math:`(w_{inv}, w_1, \dots, w_D)` and ratios :math:`\alpha_i = w_i / w_{inv}`; pruning keeps weight
:math:`i` with probability :math:`\pi_i`.

Deviations from the printed formulas:
    * A sum of 0 counts as half an error; the proofs ignore ties, and the bounds hold with them.
    * In equations 39 and 41 a parenthesis closes too late: :math:`\tanh^{-1}` is of the first term alone, as in its
      derivation. As printed, the argument may be above 1, for which :math:`\tanh^{-1}` is undefined.
    * :math:`M = w_{inv}(T)` in 39 is replaced by its upper bound 38, which can be computed and is conservative.
    * Lemma 1 requires :math:`W^T W = I`, so at least as many features as inputs; a wide :math:`W` is a projection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import atanh, comb, exp, inf, log, prod, sqrt, tanh
from typing import Literal

import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.core.figures import Figure


@dataclass(frozen=True)
class PrunedModel:
    """Weight ratios of a trained linear model, and the probability that each weight is kept."""

    ratios: Tensor  # alpha_i, one per spurious bit
    keep: Tensor  # pi_i, one per spurious bit
    keep_invariant: float = 1.0  # pi_inv


def weight_ratio(weights: Tensor) -> float:
    r"""Return :math:`\mathrm{mean}(w_i) / w_{inv}`, as in figure 2; the invariant weight comes first.

    Example:
        >>> weight_ratio(torch.tensor([2.0, 1.0, 3.0]))
        1.0
    """
    return float(weights[1:].double().mean() / weights[0].double())


def train_bound(pruning: PrunedModel, p: float) -> float:
    r"""Return the bound of the training error, theorem 1, equation 3; ``p = 0.5`` gives the test bound, equation 4.

    .. math:: 2 \exp\left( -\frac{2 (\pi_{inv} + (2p - 1) \sum_i \alpha_i \pi_i)^2}{4 \sum_i \alpha_i^2 + 1} \right)

    Keeping more of the shortcut lowers it if :math:`p > 1/2`, and does not change the test bound.

    Example:
        >>> model = PrunedModel(torch.full((15,), 0.1), torch.ones(15))
        >>> round(train_bound(model, 0.9), 3), round(train_bound(model, 0.5), 3)
        (0.005, 0.573)
    """
    return _bound(pruning, 2 * p - 1)


def mixture_bound(pruning: PrunedModel, p: float, phi: float) -> float:
    r"""Return the bound of the training error if a fraction of the data conflicts, theorem 2, equation 9.

    In a fraction :math:`\phi` every spurious bit differs from the label; the rest is as before. In :func:`train_bound`,
    :math:`2p - 1` becomes :math:`2p(1 - \phi) - 1`, which is 0 at :func:`debiasing_fraction`: the test bound.

    Raises:
        InputError: the fraction is so large that the correlation is reversed.
    """
    largest = debiasing_fraction(p)
    if not 0 <= phi <= largest + 1e-12:
        raise InputError("phi is out of range", expected=f"a fraction from 0 to {largest:.3g}", got=phi)
    return _bound(pruning, 2 * p * (1 - phi) - 1)


def debiasing_fraction(p: float) -> float:
    r"""Return the fraction of conflicting data that removes the correlation, :math:`\phi = 1 - 1 / (2p)`.

    Example:
        >>> round(debiasing_fraction(0.95), 3)
        0.474
    """
    if not 0.5 <= p <= 1:
        raise InputError("p must be at least 0.5 and at most 1", got=p)
    return 1 - 1 / (2 * p)


def pruned_error(pruning: PrunedModel, p: float, n: int, generator: torch.Generator) -> float:
    """Estimate the error of equation 2, which is bounded, by ``n`` samples of spurious bits and masks for label 1."""
    agree = 2.0 * (torch.rand(n, len(pruning.ratios), generator=generator) < p) - 1
    mask = torch.rand(n, len(pruning.ratios), generator=generator) < pruning.keep
    invariant = torch.rand(n, generator=generator) < pruning.keep_invariant
    output = invariant + (pruning.ratios * agree * mask).sum(dim=1)
    return float((1 - output.sign()).double().mean() / 2)


def _bound(pruning: PrunedModel, agreement: float) -> float:
    mean = pruning.keep_invariant + agreement * float((pruning.ratios * pruning.keep).sum())
    if mean < 0:
        raise InputError("the bounds require a nonnegative mean output for label 1", got=mean)
    return 2 * exp(-2 * mean**2 / (4 * float(pruning.ratios.square().sum()) + 1))


@dataclass(frozen=True)
class GradientFlow:
    """Start of gradient flow with equal spurious weights."""

    p: float = 0.95
    spurious: int = 15  # D
    invariant_start: float = 0.1  # w_inv(0)
    spurious_start: float = 0.1  # w_i(0)

    @property
    def limit(self) -> float:
        r"""The limit of each spurious weight under the exponential loss, :math:`\frac12 \log \frac{p}{1-p}`."""
        return inf if self.p == 1 else log(self.p / (1 - self.p)) / 2


def weights_at(
    flow: GradientFlow,
    times: Sequence[float],
    loss: Literal["exponential", "logistic"] = "exponential",
    step: float = 0.05,
) -> Tensor:
    r"""Return :math:`(w_{inv}, w_i)` at increasing times of gradient flow on the population loss, ``(times, 2)``.

    Under the exponential loss, proposition 1,

    .. math:: \dot w_{inv} = e^{-w_{inv}} b^D, \quad \dot w_i = e^{-w_{inv}} (p e^{-w_i} - (1-p) e^{w_i}) b^{D-1},
        \quad b = p e^{-w_i} + (1-p) e^{w_i}.

    The logistic loss is that of the paper's simulation; its expectation is a sum over the number of bits that agree.
    The integration is by the classical Runge-Kutta method with steps of at most ``step``.

    Example:
        >>> ends = [weights_at(GradientFlow(p), [50.0], "logistic")[0] for p in (0.6, 0.8, 0.99)]
        >>> [round(float(spurious / invariant), 2) for invariant, spurious in ends]
        [0.06, 0.41, 0.97]
    """
    agree = torch.arange(flow.spurious + 1, dtype=torch.float64)
    chance = torch.tensor(
        [comb(flow.spurious, k) * flow.p**k * (1 - flow.p) ** (flow.spurious - k) for k in range(flow.spurious + 1)],
        dtype=torch.float64,
    )
    surplus = 2 * agree - flow.spurious  # sum of y z_i if k bits agree

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
    weights = torch.stack(rows)
    if not bool(weights.isfinite().all()):
        raise InputError("the integration diverged", got=f"step {step:g}", hint="Pass a smaller step.")
    return weights


def _runge_kutta(velocity: Callable[[Tensor], Tensor], w: Tensor, h: float) -> Tensor:
    a = velocity(w)
    b = velocity(w + h / 2 * a)
    c = velocity(w + h / 2 * b)
    d = velocity(w + h * c)
    return w + h / 6 * (a + 2 * b + 2 * c + d)


def invariant_bounds(flow: GradientFlow, time: float) -> tuple[float, float]:
    r"""Return the bounds of :math:`w_{inv}(t)`, proposition 1, equations 37 and 38.

    .. math:: \log\left(e^{w_{inv}(0)} + [4p(1-p)]^{D/2} t\right) \le w_{inv}(t) \le
        \log\left(e^{w_{inv}(0)} + t \left(p e^{-w_i(0)} + \sqrt{p(1-p)}\right)^D\right)

    It grows without bound, as :math:`\log t`, so every ratio goes to 0.
    """
    _check(flow)
    p, start = flow.p, exp(flow.invariant_start)
    low = (4 * p * (1 - p)) ** (flow.spurious / 2)
    high = prod([p * exp(-flow.spurious_start) + sqrt(p * (1 - p))] * flow.spurious)
    return log(start + low * time), log(start + high * time)


def ratio_bound(flow: GradientFlow, time: float, end: float) -> float:
    r"""Return the lower bound of a ratio at ``time`` if training ends at ``end``, proposition 1, equation 41.

    .. math:: \alpha(t) > \frac{\log \left[ \sqrt{\frac{p}{1-p}} \tanh\left( \tanh^{-1}\left( \sqrt{\frac{1-p}{p}}
        e^{w_i(0)} \right) + e^{-M} 2^{D-1} [p(1-p)]^{D/2} t \right) \right]}
        {\log\left(e^{w_{inv}(0)} + t \left(p e^{-w_i(0)} + \sqrt{p(1-p)}\right)^D\right)}

    It is positive at every finite time.
    """
    _check(flow)
    p, (_, top), (_, now) = flow.p, invariant_bounds(flow, end), invariant_bounds(flow, time)
    grown = exp(-top) * 2 ** (flow.spurious - 1) * (p * (1 - p)) ** (flow.spurious / 2) * time
    inner = tanh(atanh(sqrt((1 - p) / p) * exp(flow.spurious_start)) + grown)
    return log(sqrt(p / (1 - p)) * inner) / now


def ratio_bound_at_one(flow: GradientFlow, end: float) -> float:
    r"""Return the bound of a ratio at any time before ``end`` as :math:`p \to 1`, proposition 1, equation 42.

    .. math:: \frac{w_i(0)}{\log\left(e^{w_{inv}(0)} + T e^{-D w_i(0)}\right)},

    which decreases no faster than :math:`1 / \log T`.

    Example:
        >>> [round(ratio_bound_at_one(GradientFlow(), end), 3) for end in (1e2, 1e4, 1e6)]
        [0.032, 0.013, 0.008]
    """
    return flow.spurious_start / log(exp(flow.invariant_start) + end * exp(-flow.spurious * flow.spurious_start))


def expected_similarity(spurious: int, p: float, other: float | None = None) -> float:
    r"""Return the expected cosine similarity of two embeddings of one class, lemma 1.

    .. math:: \frac{1 + D (2p - 1)(2p' - 1)}{D + 1}

    for the environments :math:`p` and :math:`p'`, the same by default: equation 44. With :math:`p' = 1/2` it is
    :math:`1 / (D + 1)`, equation 43. The embedding is linear with orthonormal columns.

    Example:
        >>> round(expected_similarity(15, 0.95), 2), expected_similarity(15, 0.95, 0.5)
        (0.82, 0.0625)
    """
    other = p if other is None else other
    return (1 + spurious * (2 * p - 1) * (2 * other - 1)) / (spurious + 1)


def ratio_figure(measured: Mapping[float, Sequence[float]], theory: Mapping[float, float] | None = None) -> Figure:
    """Return figure 2: the mean weight ratio against p, with one dot per seed, and the theory's if given."""
    if not measured or not all(measured.values()):
        raise InputError("measured must have at least one ratio per p")
    means = {p: sum(values) / len(values) for p, values in sorted(measured.items())}
    points = [(p, value) for p, values in sorted(measured.items()) for value in values]
    dots = {"color": "@muted", "size": 5, "opacity": 0.5}
    traces = [
        _trace("one seed", [p for p, _ in points], [v for _, v in points], mode="markers", marker=dots),
        _trace("mean", list(means), list(means.values()), mode="lines+markers", line={"color": "@ink", "width": 2}),
    ]
    if theory:
        line = {"color": "@soft", "width": 2, "dash": "dot"}
        traces.append(_trace("gradient flow", sorted(theory), [theory[p] for p in sorted(theory)], line=line))
    layout = {
        "xaxis": {"title": {"text": "probability p that a spurious bit agrees with the label"}},
        "yaxis": {"title": {"text": "mean spurious weight / invariant weight"}, "rangemode": "tozero"},
    }
    values_text = ", ".join(f"{value:.2f} at {p:g}" for p, value in means.items())
    caption = f"The weight of the shortcut grows with its correlation: {values_text}."
    return Figure("Weight ratio", caption, {"data": traces, "layout": layout}, f"A line: {values_text}.")


def _trace(name: str, x: list[float], y: list[float], **rest: object) -> dict[str, object]:
    return {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, **rest}


def _check(flow: GradientFlow) -> None:
    if not (0.5 < flow.p < 1 and flow.invariant_start > 0 and 0 < flow.spurious_start < flow.limit):
        raise InputError(
            "proposition 1 requires positive initial weights, spurious ones below their limit, and 0.5 < p < 1",
            got=f"p {flow.p}, {flow.invariant_start} and {flow.spurious_start}, limit {flow.limit:.3g}",
        )
