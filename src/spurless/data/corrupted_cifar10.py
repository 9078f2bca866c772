"""Corrupted CIFAR-10: small photographs whose kind of damage tells the label in training.

Reads CIFAR-10 (:mod:`spurless.data.cifar`). Class ``i`` goes with corruption ``i`` of DisEnt's ten, which DCWP uses
too, at severity 5. Train has exactly their numbers of aligned and conflicting images at the four shares that the set
exists for; of the 50,000 images, those that are not drawn for train are val. Conflicting images are shared out over
the classes in proportion, drawn at random, and have the nine other corruptions as evenly as possible. Val and test
are unbiased.

The images are made once and kept in the cache folder; on which device they are made changes no pixel.
:mod:`spurless.data.corrupted_digits` is the twin without files.

Deviations:
    * The draw is ours: DisEnt's published images are another one, with the same counts.
    * The corruptions are our own code; see :mod:`spurless.data.corruptions`.
    * This is neither of the two sets of LfF, which have other corruptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.progress import teller
from spurless.core.provenance import digest
from spurless.core.seeds import Seeds
from spurless.data import cifar
from spurless.data.card import Card, Dataset
from spurless.data.corruptions import DCWP_TEN, corrupt
from spurless.data.digits import CONFLICTING_UNBIASED, assign, assign_total
from spurless.data.grouped import Grouped, Splits
from spurless.data.layout import compare
from spurless.data.limits import check_choice, check_shares
from spurless.data.made import kept
from spurless.data.raw import Raw, Three
from spurless.data.transforms import augmentation

SCHEMA = 1
"""Part of every key of the cache: to be raised when other pixels are made of the same images."""
PUBLISHED = {0.005: (44832, 228), 0.01: (44527, 442), 0.02: (44145, 887), 0.05: (42820, 2242)}
"""Aligned and conflicting train images by their nominal share (DCWP, appendix E.1); the sums differ."""
GROUPS = Groups(labels=cifar.CLASSES, attributes=DCWP_TEN)
CARD = Card(
    name="corrupted-cifar10",
    summary="CIFAR-10 photographs whose kind of damage tells the label in training and nothing in the test.",
    input="RGB image, 3 x 32 x 32, uint8",
    label="the thing, 10 classes",
    attribute="the corruption, 10 values; corruption y goes with class y",
    splits=(
        "train 45,060, 44,969, 45,032 or 45,062 (228, 442, 887 or 2,242 conflicting), val the rest of 50,000 and test "
        "10,000 (unbiased)"
    ),
    source=f"{cifar.SOURCE}; corruptions of Hendrycks and Dietterich, pairs and counts of DisEnt",
    licence=cifar.LICENCE,
    citation=(
        "Lee et al., Learning Debiased Representation via Disentangled Feature Augmentation, NeurIPS 2021, "
        "arXiv:2107.01372; Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and "
        f"Perturbations, ICLR 2019, arXiv:1903.12261; {cifar.CITATION}"
    ),
)
LAYOUT = cifar.LAYOUT10


@dataclass(frozen=True)
class CorruptedCifar10Config:
    """Where CIFAR-10 is, how rarely a corruption misleads, and how strong it is."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    form: str = "auto"  # official, or jpeg (a lossy copy); auto: official files where they are
    conflicting: float = 0.01  # share of train images with another corruption; DCWP: 0.005, 0.01, 0.02, 0.05
    severity: int = 5  # 1 to 5; DCWP
    val_conflicting: float | None = None  # None: unbiased, as the test split
    augment: str = "none"  # none, flip, crop-flip (LfF's and DCWP's) or turn, in training
    device: str = "auto"  # where the images are made: auto (CUDA if there is one), cpu or cuda; changes no pixel
    seed: int = 0


DEFAULT = CorruptedCifar10Config()


def corrupted_cifar10(config: CorruptedCifar10Config = DEFAULT) -> Splits:
    """Corrupt the images of the three splits."""
    check(CARD, config)
    check_choice(CARD, config, "form", cifar.FORMS)
    augment = augmentation(config.augment, 32)
    found = cifar.read_cifar10(config.root, config.form, CARD.name)
    n_train, n_conflicting = counts(config.conflicting, len(found.train[1]))
    raw = found.cut(CARD.name, len(found.train[1]) - n_train, Seeds(config.seed))
    attributes = assigned(raw, config, n_conflicting)
    train, val, test = corrupted(raw, attributes, config, GROUPS)
    splits = found.splits(CARD.name, (replace(train, augment=augment), val, test), config)
    expected, _ = counts(config.conflicting, cifar.TRAIN)
    return compare(splits, {"train": expected, "val": cifar.TRAIN - expected, "test": cifar.TEST})


def check(card: Card, config: Any) -> None:
    """Refuse options that are out of range."""
    check_shares(card, config, "conflicting", "val_conflicting")
    check_choice(card, config, "device", ("auto", "cpu", "cuda"))
    if not 1 <= config.severity <= 5:
        raise BadInput("option 'severity' is out of range", where=card.name, expected="1 to 5", got=config.severity)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise BadInput("option 'device' is cuda, and there is none", where=card.name, do="Leave it at auto.")


def counts(conflicting: float, n: int) -> tuple[int, int]:
    """Return how many of ``n`` images are train, and how many of those conflict: as published where that is known.

    Example:
        >>> counts(0.01, 50_000), counts(0.1, 50_000)
        ((44969, 442), (45000, 4500))
    """
    if n == cifar.TRAIN and conflicting in PUBLISHED:
        aligned, wrong = PUBLISHED[conflicting]
        return aligned + wrong, wrong
    n_train = n - n // 10
    return n_train, round(conflicting * n_train)


def assigned(raw: Raw, config: Any, n_conflicting: int | None = None) -> dict[str, Tensor]:
    """Return the attributes of every split; by default, ``conflicting`` of each class in train conflict."""
    seeds, n = Seeds(config.seed), len(DCWP_TEN)
    val = CONFLICTING_UNBIASED if config.val_conflicting is None else config.val_conflicting
    shares = {"train": config.conflicting, "val": val, "test": CONFLICTING_UNBIASED}
    found = {}
    for name, index in raw.parts.items():
        y, generator = raw.y[index], seeds.generator("attribute", name)
        exact = n_conflicting if name == "train" else None
        found[name] = assign(y, n, shares[name], generator) if exact is None else assign_total(y, n, exact, generator)
    return found


def corrupted(raw: Raw, attributes: Mapping[str, Tensor], config: Any, groups: Groups) -> Three:
    """Corrupt any RGB images by their attributes, or take what an earlier run made; the twin goes through here too."""
    facts = {key: value for key, value in asdict(config).items() if key not in ("root", "form", "augment", "device")}
    indices = [part for name, index in raw.parts.items() for part in (index, attributes[name])]
    key = digest("corrupted", SCHEMA, facts, list(DCWP_TEN), raw.x, *indices)

    def make() -> dict[str, Tensor]:
        order = torch.cat(list(raw.parts.values()))
        a = torch.empty(len(raw.y), dtype=torch.long)
        a[order] = torch.cat([attributes[name] for name in raw.parts])
        return {"x": _corrupt_all(raw.x, a, config)}

    x = kept(key, make)["x"]
    whole = (Grouped(x[index], raw.y[index], attributes[name], groups) for name, index in raw.parts.items())
    train, val, test = whole
    return train, val, test


def _corrupt_all(images: Tensor, a: Tensor, config: Any) -> Tensor:
    """Corrupt image ``i`` by corruption ``a[i]``; its draws depend on its place in the dataset alone."""
    cuda = torch.cuda.is_available() and config.device != "cpu"
    out, tell = torch.empty_like(images), teller("corrupt", len(DCWP_TEN))
    for number, corruption in enumerate(DCWP_TEN):
        index = (a == number).nonzero().flatten()
        x = images[index].to("cuda" if cuda else "cpu")
        if len(index):
            out[index] = corrupt(x, corruption, config.severity, seed=config.seed, index=index).cpu()
        tell(number + 1)
    return out


DATASET = Dataset(card=CARD, config=CorruptedCifar10Config, make=corrupted_cifar10, layout=LAYOUT)
