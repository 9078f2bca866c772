"""Datasets by name, and loaders of the user's data. To add a dataset, write its file and add it to ``DATASETS``."""

from __future__ import annotations

from typing import Any

from spurless.core.arguments import check_arguments
from spurless.core.config import configure
from spurless.core.errors import UnknownNameError
from spurless.core.groups import Groups
from spurless.data.checks import check_splits
from spurless.data.dataset import Card, Dataset
from spurless.data.datasets.bffhq import DATASET as BFFHQ
from spurless.data.datasets.cats_vs_dogs import DATASET as CATS_VS_DOGS
from spurless.data.datasets.celeba import CELEBA, CELEBA10K
from spurless.data.datasets.cifar import CIFAR10, CIFAR100
from spurless.data.datasets.civilcomments import DATASET as CIVILCOMMENTS
from spurless.data.datasets.colored import COLORED_DIGITS, COLORED_MNIST
from spurless.data.datasets.corrupted import CORRUPTED_CIFAR10, CORRUPTED_DIGITS
from spurless.data.datasets.dominoes import DOMINOES_DIGITS, MNIST_CIFAR
from spurless.data.datasets.double import DOUBLE_DIGITS, DOUBLE_MNIST
from spurless.data.datasets.fdcl18 import DATASET as FDCL18
from spurless.data.datasets.gaussians import DATASET as GAUSSIANS
from spurless.data.datasets.imagenet import DATASET as IMAGENET
from spurless.data.datasets.imagenet9 import DATASET as IMAGENET_9
from spurless.data.datasets.imagenet_a import DATASET as IMAGENET_A
from spurless.data.datasets.moon_star import DATASET as MOON_STAR
from spurless.data.datasets.multinli import MNLI20K, MULTINLI
from spurless.data.datasets.negated_claims import DATASET as NEGATED_CLAIMS
from spurless.data.datasets.patched import BIASED_MNIST, PATCHED_DIGITS
from spurless.data.datasets.reviews_source import DATASET as REVIEWS_SOURCE
from spurless.data.datasets.svhn import DATASET as SVHN
from spurless.data.datasets.synthetic import CORE_SPURIOUS_NOISE, LINEAR_BITS, PARITY, PLANTED
from spurless.data.datasets.tweets import DATASET as TWEETS
from spurless.data.datasets.utkface_age_gender import DATASET as UTKFACE_AGE_GENDER
from spurless.data.datasets.waterbirds import WATERBIRDS, WATERBIRDS_REBUILT
from spurless.data.loaders.csv import from_csv
from spurless.data.loaders.folder import from_folder
from spurless.data.loaders.huggingface import from_huggingface
from spurless.data.loaders.npz import from_npz
from spurless.data.loaders.objects import as_splits
from spurless.data.loaders.tensors import from_tensors
from spurless.data.loaders.text import from_texts
from spurless.data.loaders.torch_dataset import from_dataset
from spurless.data.split import Batch, Split, Splits

_SYNTHETIC = (COLORED_DIGITS, PATCHED_DIGITS, DOUBLE_DIGITS, DOMINOES_DIGITS, CORRUPTED_DIGITS, NEGATED_CLAIMS, PLANTED)
_THEORY = (GAUSSIANS, LINEAR_BITS, CORE_SPURIOUS_NOISE, PARITY, MOON_STAR)
_BASE_IMAGES = (COLORED_MNIST, BIASED_MNIST, DOUBLE_MNIST, MNIST_CIFAR, CORRUPTED_CIFAR10, CIFAR10, CIFAR100, SVHN)
_PHOTOS = (CATS_VS_DOGS, WATERBIRDS, WATERBIRDS_REBUILT, CELEBA, CELEBA10K, BFFHQ, UTKFACE_AGE_GENDER)
_IMAGENET = (IMAGENET, IMAGENET_9, IMAGENET_A)
_TEXTS = (MULTINLI, MNLI20K, CIVILCOMMENTS, FDCL18, TWEETS, REVIEWS_SOURCE)

DATASETS: dict[str, Dataset] = {
    dataset.card.name: dataset for dataset in (*_SYNTHETIC, *_THEORY, *_BASE_IMAGES, *_PHOTOS, *_IMAGENET, *_TEXTS)
}


def get_dataset(name: str) -> Dataset:
    """Return a dataset by name."""
    check_arguments(get_dataset, locals())
    try:
        return DATASETS[name]
    except KeyError:
        raise UnknownNameError("dataset", name, DATASETS) from None


def load(name: str, **options: Any) -> Splits:
    """Load a dataset by name; options are the fields of its config.

    Example:
        >>> data = load("planted", agreement=1.0, n_train=100)
        >>> bool((data.train.a == data.train.y).all())
        True

    Raises:
        UnknownNameError: no dataset has that name.
        InputError: an option is unknown or its value is invalid.
    """
    check_arguments(load, locals())
    dataset = get_dataset(name)
    return check_splits(dataset.make(configure(dataset.config, options, owner=f"dataset {name!r}")))


__all__ = [
    "DATASETS",
    "Batch",
    "Card",
    "Dataset",
    "Groups",
    "Split",
    "Splits",
    "as_splits",
    "check_splits",
    "from_csv",
    "from_dataset",
    "from_folder",
    "from_huggingface",
    "from_npz",
    "from_tensors",
    "from_texts",
    "get_dataset",
    "load",
]
