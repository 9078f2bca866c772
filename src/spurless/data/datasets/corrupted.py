"""Corrupted CIFAR-10 and its offline version "corrupted-digits": the image corruption predicts the label in training.

Class ``i`` goes with corruption ``i`` of ten, except for the conflicting images, which have one of the nine
others; val and test are unbiased. At the four fractions for which DisEnt published its dataset, train has their numbers
of aligned and conflicting images, and val is the rest of the 50,000. In ``corrupted-digits`` exactly
``round(conflicting * n)`` images of every class conflict. The option ``corruptions`` names the ten, one of the lists
``PAIRED_TEN``: those of DCWP's text (the default), or one of LfF's two. Corrupted images are cached; the device changes
no pixel.

Deviations:
    * The sample is ours: DisEnt's published images are another one, with the same counts.
    * The corruptions are reimplemented; see :mod:`spurless.data.corruptions`.
    * The ten of DCWP's text, "following Lee et al." (DisEnt), are not those in the pictures of DisEnt's and DCWP's
      repositories, which are LfF's first list. ``corruptions="lff-0"`` is the set of the papers' tables.
    * LfF's code calls severity 5 "4".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from spurless.core.cache import cached_tensors
from spurless.core.config import CheckedConfig, Fraction, Range, SeedNumber
from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.hashing import content_hash
from spurless.core.progress import progress_reporter
from spurless.core.seeds import Seeds
from spurless.data.checks import check_choice
from spurless.data.corruptions import ORIGINAL, PAIRED_TEN, corrupt
from spurless.data.dataset import Card, Dataset, check_published_counts
from spurless.data.datasets import _digits as digits
from spurless.data.datasets import cifar
from spurless.data.datasets._base_images import BaseImages
from spurless.data.datasets._common import FilesConfig, join_splits
from spurless.data.split import Split, Splits
from spurless.data.transforms import augmentation

CACHE_VERSION = 1  # part of every cache key; increase it if the same images get other pixels
PUBLISHED_COUNTS = {0.005: (44832, 228), 0.01: (44527, 442), 0.02: (44145, 887), 0.05: (42820, 2242)}
"""Aligned and conflicting train images by nominal fraction (DCWP, appendix E.1); the sums differ."""
DISENT = (
    "Lee et al., Learning Debiased Representation via Disentangled Feature Augmentation, NeurIPS 2021, arXiv:2107.01372"
)

CORRUPTED_CIFAR10_CARD = Card(
    name="corrupted-cifar10",
    summary="CIFAR-10 photographs whose corruption predicts the label in training and is independent of it in the test "
    "split.",
    input="RGB image, 3 x 32 x 32, uint8",
    label="the object, 10 classes",
    attribute="the corruption, 10 values; corruption y goes with class y",
    splits=(
        "train 45,060, 44,969, 45,032 or 45,062 (228, 442, 887 or 2,242 conflicting), val the rest of 50,000 and test "
        "10,000 (unbiased)"
    ),
    source=f"{cifar.CIFAR10_SOURCE}; corruptions of Hendrycks and Dietterich, pairs of DCWP's text or of LfF, "
    "counts of DisEnt",
    licence=cifar.LICENCE,
    citation=f"{DISENT}; Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and "
    f"Perturbations, ICLR 2019, arXiv:1903.12261; {cifar.CITATION}",
)
CORRUPTED_DIGITS_CARD = Card(
    name="corrupted-digits",
    summary="Digits whose corruption predicts the label in training and is independent of it in the test split.",
    input="RGB image, 3 x 32 x 32, uint8",
    label="the digit, 10 classes",
    attribute="the corruption, 10 values; corruption y goes with digit y",
    splits="train 1,000 (biased), val 297 and test 500 (unbiased)",
    source=f"{digits.SOURCE}; corruptions of Hendrycks and Dietterich, pairs of DCWP's text or of LfF",
    licence=digits.LICENCE,
    citation=f"{DISENT}; {digits.CITATION}",
)


@dataclass(frozen=True)
class _Config(CheckedConfig):
    """Options of both datasets."""

    conflicting: Fraction = 0.01  # fraction of train images with another corruption; DCWP: 0.005, 0.01, 0.02, 0.05
    corruptions: str = "dcwp-text"
    """the ten that go with the classes: dcwp-text, lff-0 (as in DisEnt's images) or lff-1"""
    severity: Annotated[int, Range(1, 5)] = 5  # 1 to 5; DCWP
    val_conflicting: Fraction | None = None  # None: unbiased, as the test split
    device: str = "auto"  # where the images are computed: auto (CUDA if available), cpu or cuda; changes no pixel
    seed: SeedNumber = 0


@dataclass(frozen=True)
class CorruptedCifar10Config(_Config, FilesConfig):
    """Options of ``corrupted-cifar10``."""

    form: str = "auto"  # of CIFAR-10: official, or jpeg (a lossy copy); auto: official files if present
    augment: str = "none"  # none, flip, crop-flip (LfF's and DCWP's) or turn, in training


@dataclass(frozen=True)
class CorruptedDigitsConfig(_Config):
    """Options of ``corrupted-digits``."""


def corrupted_cifar10(config: CorruptedCifar10Config) -> Splits:
    """Corrupt CIFAR-10 photographs."""
    card = CORRUPTED_CIFAR10_CARD
    _check(card, config)
    check_choice(card, config, "form", cifar.FORMS)
    augment = augmentation(config.augment, 32)
    photos = cifar.read_cifar10(config.root, config.form, card.name)
    n_train, n_conflicting = count_train_and_conflicting(config.conflicting, len(photos.train[1]))
    base = photos.hold_out_val(card.name, len(photos.train[1]) - n_train, Seeds(config.seed))
    attributes = digits.assign_by_split(base, config, n_conflicting)
    train, val, test = _corrupt_splits(base, attributes, config, cifar.CIFAR10_CLASSES)
    splits = photos.make_splits(card, (replace(train, augment=augment), val, test), config)
    expected, _ = count_train_and_conflicting(config.conflicting, cifar.N_TRAIN)
    return check_published_counts(splits, {"train": expected, "val": cifar.N_TRAIN - expected, "test": cifar.N_TEST})


def corrupted_digits(config: CorruptedDigitsConfig) -> Splits:
    """Corrupt the digits of scikit-learn."""
    card = CORRUPTED_DIGITS_CARD
    _check(card, config)
    grey = digits.load_base_digits(32, Seeds(config.seed))
    base = replace(grey, x=grey.x[:, None].repeat(1, 3, 1, 1))
    parts = _corrupt_splits(base, digits.assign_by_split(base, config), config, digits.DIGITS)
    return join_splits(card, config, parts)


def count_train_and_conflicting(fraction: float, n: int) -> tuple[int, int]:
    """Return how many of ``n`` images are train, and how many of those conflict: as published if known.

    Example:
        >>> count_train_and_conflicting(0.01, 50_000), count_train_and_conflicting(0.1, 50_000)
        ((44969, 442), (45000, 4500))
    """
    if n == cifar.N_TRAIN and fraction in PUBLISHED_COUNTS:
        aligned, conflicting = PUBLISHED_COUNTS[fraction]
        return aligned + conflicting, conflicting
    n_train = n - n // 10
    return n_train, round(fraction * n_train)


def _check(card: Card, config: _Config) -> None:
    check_choice(card, config, "corruptions", tuple(PAIRED_TEN))
    check_choice(card, config, "device", ("auto", "cpu", "cuda"))
    if config.device == "cuda" and not torch.cuda.is_available():
        raise InputError("option 'device' is cuda, but CUDA is not available", where=card.name, hint="Use device=auto.")


def _corrupt_splits(
    base: BaseImages, attributes: Mapping[str, Tensor], config: _Config, labels: tuple[str, ...]
) -> list[Split]:
    """Corrupt RGB images by their attributes, or read them from the cache."""
    names, elsewhere = PAIRED_TEN[config.corruptions], ("root", "form", "augment", "device", "corruptions")
    groups = Groups(labels=labels, attributes=names)
    relevant = {key: value for key, value in asdict(config).items() if key not in elsewhere}
    tensors = [tensor for name, index in base.indices.items() for tensor in (index, attributes[name])]
    key = content_hash("corrupted", CACHE_VERSION, relevant, list(names), base.x, *tensors)

    def compute() -> dict[str, Tensor]:
        order = torch.cat(list(base.indices.values()))
        a = torch.empty(len(base.y), dtype=torch.long)
        a[order] = torch.cat([attributes[name] for name in base.indices])
        return {"x": _corrupt_all(base.x, a, config)}

    x = cached_tensors(key, compute)["x"]
    return [Split(x[index], base.y[index], attributes[name], groups) for name, index in base.indices.items()]


def _corrupt_all(images: Tensor, a: Tensor, config: _Config) -> Tensor:
    """Corrupt image ``i`` by corruption ``a[i]``; its random numbers depend only on its index in the dataset."""
    device = "cuda" if torch.cuda.is_available() and config.device != "cpu" else "cpu"
    names = PAIRED_TEN[config.corruptions]
    out, report_progress = images.clone(), progress_reporter("corrupt", len(names))
    for number, corruption in enumerate(names):
        index = (a == number).nonzero().flatten()
        if len(index) and corruption != ORIGINAL:
            x = images[index].to(device)
            out[index] = corrupt(x, corruption, config.severity, seed=config.seed, index=index).cpu()
        report_progress(number + 1)
    return out


CORRUPTED_CIFAR10 = Dataset(CORRUPTED_CIFAR10_CARD, CorruptedCifar10Config, corrupted_cifar10, cifar.CIFAR10_LAYOUT)
CORRUPTED_DIGITS = Dataset(CORRUPTED_DIGITS_CARD, CorruptedDigitsConfig, corrupted_digits)
