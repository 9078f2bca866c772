"""The table of datasets: to add one, write its file and add its row here. Nothing else changes."""

from __future__ import annotations

from typing import Any

from spurless.core.errors import UnknownName
from spurless.core.groups import Groups
from spurless.core.options import configure
from spurless.data.bffhq import DATASET as BFFHQ
from spurless.data.biased_mnist import DATASET as BIASED_MNIST
from spurless.data.card import Card, Dataset
from spurless.data.cats_vs_dogs import DATASET as CATS_VS_DOGS
from spurless.data.celeba import DATASET as CELEBA
from spurless.data.celeba10k import DATASET as CELEBA10K
from spurless.data.checks import check_splits
from spurless.data.cifar10 import DATASET as CIFAR10
from spurless.data.cifar100 import DATASET as CIFAR100
from spurless.data.civilcomments import DATASET as CIVILCOMMENTS
from spurless.data.colored_digits import DATASET as COLORED_DIGITS
from spurless.data.colored_mnist import DATASET as COLORED_MNIST
from spurless.data.core_spurious_noise import DATASET as CORE_SPURIOUS_NOISE
from spurless.data.corrupted_cifar10 import DATASET as CORRUPTED_CIFAR10
from spurless.data.corrupted_digits import DATASET as CORRUPTED_DIGITS
from spurless.data.dominoes_digits import DATASET as DOMINOES_DIGITS
from spurless.data.double_digits import DATASET as DOUBLE_DIGITS
from spurless.data.double_mnist import DATASET as DOUBLE_MNIST
from spurless.data.fdcl18 import DATASET as FDCL18
from spurless.data.folder import from_folder
from spurless.data.gaussians import DATASET as GAUSSIANS
from spurless.data.grouped import Batch, Grouped, Splits
from spurless.data.huggingface import from_huggingface
from spurless.data.imagenet import DATASET as IMAGENET
from spurless.data.imagenet9 import DATASET as IMAGENET_9
from spurless.data.imagenet_a import DATASET as IMAGENET_A
from spurless.data.linear_bits import DATASET as LINEAR_BITS
from spurless.data.mnist_cifar import DATASET as MNIST_CIFAR
from spurless.data.mnli20k import DATASET as MNLI20K
from spurless.data.moon_star import DATASET as MOON_STAR
from spurless.data.multinli import DATASET as MULTINLI
from spurless.data.negated_claims import DATASET as NEGATED_CLAIMS
from spurless.data.npz import from_npz
from spurless.data.pack import from_pack
from spurless.data.parity import DATASET as PARITY
from spurless.data.patched_digits import DATASET as PATCHED_DIGITS
from spurless.data.planted import DATASET as PLANTED
from spurless.data.reviews_source import DATASET as REVIEWS_SOURCE
from spurless.data.svhn import DATASET as SVHN
from spurless.data.table import from_csv
from spurless.data.tensors import from_tensors
from spurless.data.text import from_texts
from spurless.data.torch_dataset import from_dataset
from spurless.data.tweets import DATASET as TWEETS
from spurless.data.utkface_age_gender import DATASET as UTKFACE_AGE_GENDER
from spurless.data.waterbirds import DATASET as WATERBIRDS
from spurless.data.waterbirds_rebuilt import DATASET as WATERBIRDS_REBUILT

DATASETS: dict[str, Dataset] = {
    dataset.card.name: dataset
    for dataset in (
        COLORED_DIGITS,
        PATCHED_DIGITS,
        DOUBLE_DIGITS,
        DOMINOES_DIGITS,
        CORRUPTED_DIGITS,
        NEGATED_CLAIMS,
        PLANTED,
        GAUSSIANS,
        LINEAR_BITS,
        CORE_SPURIOUS_NOISE,
        PARITY,
        MOON_STAR,
        COLORED_MNIST,
        BIASED_MNIST,
        DOUBLE_MNIST,
        MNIST_CIFAR,
        CORRUPTED_CIFAR10,
        CIFAR10,
        CIFAR100,
        SVHN,
        CATS_VS_DOGS,
        WATERBIRDS,
        WATERBIRDS_REBUILT,
        CELEBA,
        CELEBA10K,
        BFFHQ,
        UTKFACE_AGE_GENDER,
        IMAGENET,
        IMAGENET_9,
        IMAGENET_A,
        MULTINLI,
        MNLI20K,
        CIVILCOMMENTS,
        FDCL18,
        TWEETS,
        REVIEWS_SOURCE,
    )
}


def dataset_named(name: str) -> Dataset:
    """Return the dataset of that name."""
    try:
        return DATASETS[name]
    except KeyError:
        raise UnknownName("dataset", name, DATASETS) from None


def load(name: str, **options: Any) -> Splits:
    """Make the splits of a dataset; options are the fields of its config.

    Example:
        >>> data = load("planted", agreement=1.0, n_train=100)
        >>> bool((data.train.a == data.train.y).all())
        True

    Raises:
        UnknownName: no dataset has that name.
        BadInput: an option is unknown or its value cannot be used.
    """
    dataset = dataset_named(name)
    return check_splits(dataset.make(configure(dataset.config, options, owner=f"dataset {name!r}")))


__all__ = [
    "DATASETS",
    "Batch",
    "Card",
    "Dataset",
    "Grouped",
    "Groups",
    "Splits",
    "check_splits",
    "dataset_named",
    "from_csv",
    "from_dataset",
    "from_folder",
    "from_huggingface",
    "from_npz",
    "from_pack",
    "from_tensors",
    "from_texts",
    "load",
]
