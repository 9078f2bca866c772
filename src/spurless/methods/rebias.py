r"""ReBias: learn features that tell nothing of what a network with a small field of view sees.

Bahng, Chun, Yun, Choo and Oh, "Learning De-biased Representations with Biased Representations", ICML 2020,
arXiv:1910.02806.

The network f is trained beside a network g that is biased by design: 1x1 convolutions, which see colours and no shapes.
f becomes independent of g, while g, which must classify as well, stays as close to f as its design allows:

.. math:: \min_f \; \ell(f) + \lambda_f \, \mathrm{HSIC}(f, g), \qquad \min_g \; \ell(g) - \lambda_g \,
    \mathrm{HSIC}(f, g),

with HSIC of the features of a batch, by RBF kernels K and L of radius :math:`\sigma` and the unbiased estimator of Song
et al. (JMLR 2012), where the diagonals of K and L are set to 0:

.. math:: \frac{1}{m (m - 3)} \Big[ \mathrm{tr}(KL) + \frac{1^\top K 1 \, 1^\top L 1}{(m - 1)(m - 2)}
    - \frac{2}{m - 2} 1^\top K L 1 \Big].

Deviations:
    * f and g step at once, by one objective that holds the other side fixed; the authors step g, then f.
    * The authors' code subtracts the diagonal, as a row, from the whole matrix. For a kernel whose diagonal is constant
      that is the same number: pairs are shifted by a constant, to which the estimator is blind. A test says so.
    * g is made for the input: for images the authors' four 1x1 convolutions for MNIST (they use BagNet-18 for
      ImageNet); for rows of numbers a linear map, which knows no products of features. Texts are refused.
    * A batch of fewer than four examples has no unbiased estimate, and no such term.
    * With several processes HSIC is that of each process's part of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.errors import BadInput
from spurless.data.checks import kind_of
from spurless.data.grouped import Batch, Splits
from spurless.data.loader import shuffled
from spurless.methods.base import Info
from spurless.methods.lff import Pair
from spurless.models.classifier import Classifier, Input
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage

LEAST = 4
"""Examples that the unbiased estimator needs."""


@dataclass(frozen=True)
class ReBiasConfig:
    """How independent f becomes, how g follows, and how g is built."""

    independence: float = 1.0  # lambda_f; --f_lambda_outer
    pursuit: float = 1.0  # lambda_g; --g_lambda_inner
    sigma: float = 1.0  # radius of both kernels; --rbf_sigma_x, --rbf_sigma_y
    channels: tuple[int, ...] = (16, 32, 64, 128)  # of g; for rows of numbers, the last is the width

    def __post_init__(self) -> None:
        for name in ("independence", "pursuit"):
            if not getattr(self, name) >= 0:
                raise BadInput(f"ReBias's {name} must not be negative", got=getattr(self, name))
        if not self.sigma > 0:
            raise BadInput("ReBias's sigma must be above 0", got=self.sigma)
        if not self.channels or min(self.channels) < 1:
            raise BadInput("ReBias's channels cannot be used", expected="for example 16,32,64,128", got=self.channels)


REBIAS_DIGITS = ReBiasConfig(independence=1000.0, sigma=10.0)
"""For the embedded digit sets: the best on the validation split of colored-digits with 2 %, of 1, 10 and 100 with a
radius of 1 and 10, 100 and 1000 with 10; two seeds each, with channels 16 and 32."""
REBIAS_BIASED_MNIST = ReBiasConfig()
REBIAS_COLORED_MNIST = ReBiasConfig()
REBIAS_CORRUPTED_CIFAR10 = ReBiasConfig()
REBIAS_BFFHQ = ReBiasConfig()
"""The last three as DCWP runs them (arXiv:2210.05247, appendix E.2): a radius of 1."""


class ReBias:
    """Ask for no attribute, but for knowledge: what is to be ignored can be seen in single pixels."""

    info: ClassVar[Info] = Info(
        "rebias", "Bahng et al. 2020", "features independent of those of a network that sees single pixels"
    )
    presets: ClassVar[Mapping[str, ReBiasConfig]] = {
        "digits": REBIAS_DIGITS,
        "biased-mnist": REBIAS_BIASED_MNIST,
        "colored-mnist": REBIAS_COLORED_MNIST,
        "corrupted-cifar10": REBIAS_CORRUPTED_CIFAR10,
        "bffhq": REBIAS_BFFHQ,
    }

    def __init__(self, config: ReBiasConfig = REBIAS_DIGITS) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train f and g side by side and return f."""
        config, train = self.config, data.train
        if run.train.batch_size // run.world < LEAST:
            raise BadInput(f"ReBias needs a batch size of at least {LEAST} per device", got=run.train.batch_size)
        with run.seeds.borrowed("biased"):
            biased = narrow(train.example(1), len(train.groups.labels), config.channels)
        kind = next(model.head.parameters()).dtype

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            pair = cast(Pair, model)
            features = pair.features(batch.x)
            own, other = features[:, : -config.channels[-1]], features[:, -config.channels[-1] :]
            said, other = pair.debiased.head(own.to(kind)), other.float()  # side by side they are of one kind
            loss = cross_entropy(said, batch.y) + cross_entropy(pair.biased.head(other), batch.y)
            if len(batch) < LEAST:  # the last, short batch, which is never captured
                return loss
            loss = loss + config.independence * hsic(own, other.detach(), config.sigma)
            return loss - config.pursuit * hsic(own.detach(), other, config.sigma)

        loader = run.loader(train, shuffled(len(train), run.seeds.child("train")))
        minimise(Pair(model, biased), loader, objective, run, Stage("train", static=True))
        return model


def narrow(example: Input, n_classes: int, channels: tuple[int, ...]) -> Classifier:
    """Return a network that sees no more than one pixel at once; of rows of numbers, a linear one.

    Raises:
        BadInput: the input is text, a dict of something else, or whole numbers.
    """
    if isinstance(example, dict):
        raise BadInput(
            f"ReBias has no biased network for {kind_of(example)}", expected="images, or rows of numbers", do="Use lff."
        )
    if not example.is_floating_point():
        raise BadInput(
            "ReBias's biased network reads numbers with a fraction",
            expected="images as uint8, or rows of float32",
            got=f"{example.dtype} of shape {tuple(example.shape[1:])}".removeprefix("torch."),
            do="Store the inputs as float32, or use erm.",
        )
    if example.dim() != 4:
        size = example[0].numel()
        return Classifier(
            nn.Sequential(nn.Flatten(), nn.Linear(size, channels[-1])), nn.Linear(channels[-1], n_classes)
        )
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise((example.shape[1], *channels)):
        convolution = nn.Conv2d(n_in, n_out, 1)
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        layers += [convolution, nn.BatchNorm2d(n_out), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return Classifier(nn.Sequential(*layers), nn.Linear(channels[-1], n_classes), name="1x1 convolutions")


def hsic(x: Tensor, y: Tensor, sigma: float = 1.0) -> Tensor:
    """Return the unbiased estimate of the dependence of two sets of features, shapes ``(N, d)`` and ``(N, e)``.

    It is 0 in expectation where they are independent, so that it may well be negative.
    """
    m = len(x)
    others = 1 - torch.eye(m, device=x.device)
    kernel_x, kernel_y = rbf(x, sigma) * others, rbf(y, sigma) * others
    paired = (kernel_x * kernel_y).sum()  # the trace of the product, since both are symmetric
    apart = kernel_x.sum() * kernel_y.sum() / ((m - 1) * (m - 2))
    chained = 2 * (kernel_x.sum(dim=0) @ kernel_y.sum(dim=0)) / (m - 2)
    return (paired + apart - chained) / (m * (m - 3))


def rbf(x: Tensor, sigma: float) -> Tensor:
    r"""Return the kernel matrix :math:`\exp(-\lVert x_i - x_j \rVert^2 / 2 \sigma^2)`."""
    x = x.float()
    square = (x * x).sum(dim=1)
    distance = (square[:, None] + square - 2 * x @ x.T).clamp(min=0)
    return torch.exp(-distance / (2 * sigma**2))
