"""MNIST-CIFAR and its offline version "dominoes-digits": a digit on top of an image predicts the image's class.

The label is the class of the lower half: a photograph of CIFAR-10, or one of ten
:mod:`spurless.data.datasets._textures`. In train the digit above has the same number, except for exactly
``round(conflicting * n)`` images of every class; val and test are unbiased. The digit is padded to 32 pixels and
sampled from the same split, so that no digit occurs in two splits. Val is 5,000 of CIFAR's train images.

Deviation:
    * The paper trains on all 50,000 images and has no val split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from spurless.core.config import CheckedConfig, Fraction, SeedNumber
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.checks import check_choice
from spurless.data.dataset import Card, Dataset, Layout, check_published_counts
from spurless.data.datasets import _digits as digits
from spurless.data.datasets import _mnist as mnist
from spurless.data.datasets import cifar
from spurless.data.datasets._base_images import BaseImages
from spurless.data.datasets._common import FilesConfig, join_splits
from spurless.data.datasets._textures import TEXTURES, draw_textures
from spurless.data.split import Split, Splits

N_VAL = 5_000
DIGIT_ON_TOP = tuple(f"{digit} on top" for digit in digits.DIGITS)
MNIST_CIFAR_GROUPS = Groups(labels=cifar.CIFAR10_CLASSES, attributes=DIGIT_ON_TOP)
DOMINOES_GROUPS = Groups(labels=TEXTURES, attributes=DIGIT_ON_TOP)
SHAH = "Shah et al., The Pitfalls of Simplicity Bias in Neural Networks, NeurIPS 2020, arXiv:2006.07710"

MNIST_CIFAR_CARD = Card(
    name="mnist-cifar",
    summary="An MNIST digit on top of a CIFAR-10 photograph: the photograph is the label, the digit mostly agrees.",
    input="RGB image, 3 x 64 x 32, uint8",
    label="the photograph below, 10 classes",
    attribute="the digit above, 10 values; digit y goes with class y",
    splits="train 45,000 (10 % conflicting), val 5,000 and test 10,000 (unbiased)",
    source=f"{mnist.SOURCE}; {cifar.CIFAR10_SOURCE}; stacked",
    licence=f"{mnist.LICENCE}; {cifar.LICENCE}",
    citation=f"{SHAH}; {digits.BARSBEY}; {mnist.CITATION}; {cifar.CITATION}",
)
DOMINOES_DIGITS_CARD = Card(
    name="dominoes-digits",
    summary="A digit on top of a noisy pattern: the pattern is the label, the digit mostly agrees.",
    input="RGB image, 3 x 64 x 32, uint8",
    label="the pattern below, 10 classes",
    attribute="the digit above, 10 values; digit y goes with pattern y",
    splits="train 1,000 (biased), val 297 and test 500 (unbiased)",
    source=f"{digits.SOURCE}; patterns drawn by formula; stacked as in MNIST-CIFAR",
    licence=digits.LICENCE,
    citation=f"{SHAH}; {digits.BARSBEY}; {digits.CITATION}",
)


def download(root: Path) -> None:
    """Download MNIST and CIFAR-10 with torchvision, which checks their checksums."""
    mnist.download(root)
    cifar.download_cifar("CIFAR10", root)


MNIST_CIFAR_LAYOUT = Layout(
    files=(*mnist.LAYOUT.files, *cifar.CIFAR10_LAYOUT.files),
    folders=(*mnist.LAYOUT.folders, *cifar.CIFAR10_LAYOUT.folders),
    markers=cifar.CIFAR10_LAYOUT.markers,
    archives=cifar.CIFAR10_LAYOUT.archives,
    obtain=f"{mnist.LAYOUT.obtain} {cifar.CIFAR10_LAYOUT.obtain}",
    download=download,
)


@dataclass(frozen=True)
class _Config(CheckedConfig):
    """Options of both datasets."""

    conflicting: Fraction = 0.1  # rho of the train split; Barsbey et al.; Shah et al.: 0.25 for a fully connected net
    seed: SeedNumber = 0


@dataclass(frozen=True)
class MnistCifarConfig(_Config, FilesConfig):
    """Options of ``mnist-cifar``."""

    form: str = "auto"  # of CIFAR-10: official, or jpeg (a lossy copy); auto: official files if present


@dataclass(frozen=True)
class DominoesDigitsConfig(_Config):
    """Options of ``dominoes-digits``."""


def mnist_cifar(config: MnistCifarConfig) -> Splits:
    """Stack MNIST digits on CIFAR-10 photographs."""
    card = MNIST_CIFAR_CARD
    check_choice(card, config, "form", cifar.FORMS)
    seeds = Seeds(config.seed)
    top = mnist.load_base_mnist(card.name, config.root, N_VAL, seeds.child("mnist"))
    photos = cifar.read_cifar10(config.root, config.form, card.name)
    bottom = photos.hold_out_val(card.name, len(photos.train[1]) * N_VAL // cifar.N_TRAIN, seeds)
    parts = _stack_splits(top, bottom, config, MNIST_CIFAR_GROUPS)
    splits = photos.make_splits(card, parts, config)
    return check_published_counts(splits, {"train": cifar.N_TRAIN - N_VAL, "val": N_VAL, "test": cifar.N_TEST})


def dominoes_digits(config: DominoesDigitsConfig) -> Splits:
    """Stack the digits of scikit-learn on textures."""
    card = DOMINOES_DIGITS_CARD
    seeds = Seeds(config.seed)
    top = digits.load_base_digits(28, seeds)
    bottom = make_base_textures({name: len(index) for name, index in top.indices.items()}, seeds)
    parts = _stack_splits(top, bottom, config, DOMINOES_GROUPS)
    return join_splits(card, config, parts)


def make_base_textures(sizes: Mapping[str, int], seeds: Seeds) -> BaseImages:
    """Draw textures for every split; class sizes differ by at most one."""
    labels, images = [], []
    for name, size in sizes.items():
        y = torch.arange(size) % len(TEXTURES)
        y = y[torch.randperm(size, generator=seeds.generator("label", name))]
        labels.append(y)
        images.append(draw_textures(y, seeds.generator("texture", name)))
    train, val, test = torch.split(torch.arange(sum(sizes.values())), list(sizes.values()))
    return BaseImages(torch.cat(images), torch.cat(labels), train, val, test)


def stack(grey: Tensor, rgb: Tensor) -> Tensor:
    """Return ``(N, 3, 64, 32)``: grey images of 28 pixels, padded to 32, above RGB ones."""
    padded = torch.nn.functional.pad(grey, [2] * 4)[:, None].expand(-1, 3, -1, -1)
    return torch.cat([padded, rgb], dim=2)


def _stack_splits(top: BaseImages, bottom: BaseImages, config: _Config, groups: Groups) -> list[Split]:
    """Assign a digit to every lower image and stack them: grey ``(N, 28, 28)`` on RGB ``(N, 3, 32, 32)``."""
    parts = []
    for name, a in digits.assign_by_split(bottom, config).items():
        lower, upper = bottom.indices[name], top.indices[name]
        partner = upper[digits.draw_partners(top.y[upper], a, Seeds(config.seed).generator("partner", name))]
        parts.append(Split(stack(top.x[partner], bottom.x[lower]), bottom.y[lower], a, groups))
    return parts


MNIST_CIFAR = Dataset(MNIST_CIFAR_CARD, MnistCifarConfig, mnist_cifar, MNIST_CIFAR_LAYOUT)
DOMINOES_DIGITS = Dataset(DOMINOES_DIGITS_CARD, DominoesDigitsConfig, dominoes_digits)
