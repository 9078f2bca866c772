r"""ReBias: learn features that are independent of those of a network with a small receptive field.

Bahng, Chun, Yun, Choo and Oh, "Learning De-biased Representations with Biased Representations", ICML 2020,
arXiv:1910.02806.

The network f is trained together with a network g that is biased by design: 1x1 convolutions, which see colours and no
shapes. f becomes independent of g, while g, which is trained to classify too, stays as close to f as its design allows:

.. math:: \min_f \; \ell(f) + \lambda_f \, \mathrm{HSIC}(f, g), \qquad \min_g \; \ell(g) - \lambda_g \,
    \mathrm{HSIC}(f, g),

with HSIC of the features of a batch, by RBF kernels K and L of radius :math:`\sigma` and the unbiased estimator of Song
et al. (JMLR 2012), where the diagonals of K and L are set to 0:

.. math:: \frac{1}{m (m - 3)} \Big[ \mathrm{tr}(KL) + \frac{1^\top K 1 \, 1^\top L 1}{(m - 1)(m - 2)}
    - \frac{2}{m - 2} 1^\top K L 1 \Big].

Deviations:
    * f and g step together, by one objective that holds the other side fixed; the authors step g, then f.
    * The authors' code subtracts the diagonal, as a row, from the whole matrix. For a kernel with a constant diagonal
      that gives the same number: it shifts all pairs by a constant, to which the estimator is invariant (tested).
    * g depends on the input: for images the authors' four 1x1 convolutions for MNIST (they use BagNet-18 for
      ImageNet); for rows of numbers a linear map, without products of features. Texts are not supported.
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

from spurless.core.config import CheckedConfig, NotNegative, Positive, Width
from spurless.core.errors import InputError
from spurless.core.modules import Input
from spurless.data.checks import describe_kind
from spurless.data.loader import shuffled_order
from spurless.data.split import Batch, Splits
from spurless.methods.base import ConfiguredMethod, Info
from spurless.methods.lff import Pair
from spurless.models.classifier import Classifier
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage

MIN_BATCH = 4  # number of examples that the unbiased estimator needs


@dataclass(frozen=True)
class ReBiasConfig(CheckedConfig):
    """The weights of the HSIC terms, the kernels, and the size of g."""

    independence: NotNegative = 1.0  # lambda_f; --f_lambda_outer
    pursuit: NotNegative = 1.0  # lambda_g; --g_lambda_inner
    sigma: Positive = 1.0  # radius of both kernels; --rbf_sigma_x, --rbf_sigma_y
    channels: tuple[Width, ...] = (16, 32, 64, 128)  # of g; for rows of numbers, the last is the width

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.channels:
            raise InputError("ReBias's channels cannot be used", expected="for example 16,32,64,128", got=self.channels)


class ReBias(ConfiguredMethod[ReBiasConfig]):
    """Learn features independent of those of a network that sees single pixels; no attributes."""

    info = Info(
        "rebias",
        "Bahng et al. 2020",
        "learn features that are independent of those of a network that sees single pixels",
        title="ReBias",
    )
    presets: ClassVar[Mapping[str, ReBiasConfig]] = {
        # For the embedded digit datasets: the best on the validation split of colored-digits with 2 %, of
        # 1, 10 and 100 with a radius of 1 and 10, 100 and 1000 with 10; two seeds each, with channels 16
        # and 32.
        "digits": ReBiasConfig(independence=1000.0, sigma=10.0),
        "biased-mnist": ReBiasConfig(),  # with rebias-cnn and the recipe colored-mnist-rebias, as the authors
        "colored-mnist": ReBiasConfig(),
        "corrupted-cifar10": ReBiasConfig(),
        "bffhq": ReBiasConfig(),  # the last three as DCWP runs them (arXiv:2210.05247, appendix E.2): a radius of 1
    }

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train f and g together and return f."""
        config, train = self.config, data.train
        if run.train.batch_size // run.world < MIN_BATCH:
            raise InputError(f"ReBias needs a batch size of at least {MIN_BATCH} per device", got=run.train.batch_size)
        with run.seeds.seed_global_rng("biased"):
            biased = make_biased_network(train.example(1), len(train.groups.labels), config.channels)
        dtype = next(model.head.parameters()).dtype

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            pair = cast(Pair, model)
            features = pair.features(batch.x)
            f, g = features[:, : -config.channels[-1]], features[:, -config.channels[-1] :].float()
            logits = pair.debiased.head(f.to(dtype))  # concatenated features have one dtype
            loss = cross_entropy(logits, batch.y) + cross_entropy(pair.biased.head(g), batch.y)
            if len(batch) < MIN_BATCH:  # the last, short batch, which is never captured in a CUDA graph
                return loss
            loss = loss + config.independence * hsic(f, g.detach(), config.sigma)
            return loss - config.pursuit * hsic(f.detach(), g, config.sigma)

        loader = run.loader(train, shuffled_order(len(train), run.seeds.child("train")))
        minimise(Pair(model, biased), loader, objective, run, Stage("train", static=True))
        return model


def make_biased_network(example: Input, n_classes: int, channels: tuple[int, ...]) -> Classifier:
    """Return a network whose receptive field is one pixel, or a linear one for rows of numbers; raise for texts."""
    if isinstance(example, dict):
        raise InputError(
            f"ReBias has no biased network for {describe_kind(example)}",
            expected="images, or rows of numbers",
            hint="Use lff.",
        )
    if not example.is_floating_point():
        raise InputError(
            "ReBias's biased network needs floating-point inputs",
            expected="images as uint8, or rows of float32",
            got=f"{example.dtype} of shape {tuple(example.shape[1:])}".removeprefix("torch."),
            hint="Store the inputs as float32, or use erm.",
        )
    if example.dim() != 4:
        layer = nn.Linear(example[0].numel(), channels[-1])
        return Classifier(nn.Sequential(nn.Flatten(), layer), nn.Linear(channels[-1], n_classes))
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise((example.shape[1], *channels)):
        convolution = nn.Conv2d(n_in, n_out, 1)
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        layers += [convolution, nn.BatchNorm2d(n_out), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return Classifier(nn.Sequential(*layers), nn.Linear(channels[-1], n_classes), name="1x1 convolutions")


def hsic(x: Tensor, y: Tensor, sigma: float = 1.0) -> Tensor:
    """Return the unbiased estimate of the dependence of two sets of features, shapes ``(N, d)`` and ``(N, e)``.

    It is 0 in expectation if they are independent, so that it may be negative.
    """
    m = len(x)
    others = 1 - torch.eye(m, device=x.device)
    kernel_x, kernel_y = rbf(x, sigma) * others, rbf(y, sigma) * others
    paired = (kernel_x * kernel_y).sum()  # the trace of the product, since both are symmetric
    independent = kernel_x.sum() * kernel_y.sum() / ((m - 1) * (m - 2))
    chained = 2 * (kernel_x.sum(dim=0) @ kernel_y.sum(dim=0)) / (m - 2)
    return (paired + independent - chained) / (m * (m - 3))


def rbf(x: Tensor, sigma: float) -> Tensor:
    r"""Return the kernel matrix :math:`\exp(-\lVert x_i - x_j \rVert^2 / 2 \sigma^2)`."""
    x = x.float()
    square = (x * x).sum(dim=1)
    distance = (square[:, None] + square - 2 * x @ x.T).clamp(min=0)
    return torch.exp(-distance / (2 * sigma**2))
