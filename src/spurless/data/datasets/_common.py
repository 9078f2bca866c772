"""Options and steps that several datasets share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor

from spurless.core.config import CheckedConfig, Range, SeedNumber
from spurless.core.groups import Groups
from spurless.core.limits import check_bytes
from spurless.core.seeds import Seeds
from spurless.data.dataset import Card, Layout, check_published_counts, find_folder
from spurless.data.loaders.images import ImageFiles, read_images
from spurless.data.loaders.text import choose_tokenizer, tokenise
from spurless.data.split import ExampleIds, Split, Splits
from spurless.data.splitting import make_splits, split_stratified
from spurless.data.transforms import augmentation

BINARY_CODES = {"0": 0, "1": 1}
SPLIT_CODES = {"0": 0, "1": 1, "2": 2}
MAX_EXAMPLES, MAX_SIDE, MAX_TOKENS = 10**7, 4096, 65_536
Examples = Annotated[int, Range(1, MAX_EXAMPLES)]
PixelsOrZero = Annotated[int, Range(0, MAX_SIDE)]
PhotoSize = Annotated[int, Range(8, MAX_SIDE)]
DigitSize = Annotated[int, Range(8, 256)]


@dataclass(frozen=True)
class FilesConfig(CheckedConfig):
    """The first option of datasets that are read from files."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data


@dataclass(frozen=True)
class ImageConfig(FilesConfig):
    """Options of datasets of photographs."""

    size: PixelsOrZero = 224  # pixels; 0: as stored, in datasets of one file
    augment: str = "none"  # none, flip, crop-flip or turn, in training
    seed: SeedNumber = 0  # not used if the splits are published


@dataclass(frozen=True)
class ImageFilesConfig(ImageConfig):
    """Options of datasets with a file per image."""

    size: PhotoSize = 224  # pixels
    cache: bool | None = None  # cache decoded images on disk; None: only if there are many


@dataclass(frozen=True)
class TextConfig(FilesConfig):
    """Options of datasets of texts."""

    tokenizer: str = "auto"  # minilm if installed, else words
    max_length: Annotated[int, Range(4, MAX_TOKENS)] = 128  # tokens
    seed: SeedNumber = 0  # of the split, if none is published


_Text = TypeVar("_Text", bound=TextConfig)


def read_image_split(paths: list[Path], y: Tensor, a: Tensor | None, groups: Groups, config: ImageFilesConfig) -> Split:
    """Return image files as one split; without attributes if ``a`` is None."""
    augment = augmentation(config.augment, config.size)
    x = read_images(ImageFiles(paths, config.size), None, cache=config.cache)
    a = torch.full_like(y, -1) if a is None else a
    return Split(x, y, a, groups, augment=augment, names=ExampleIds.of_files(paths))


def find_file(card: Card, layout: Layout, root: str | None) -> Path:
    """Return the first file among the markers of a layout that is present."""
    folder = find_folder(card.name, layout, root)
    return next(folder / name for name in layout.markers if (folder / name).is_file())


def tokenise_with(config: _Text, *texts: Sequence[str]) -> tuple[dict[str, Tensor], _Text]:
    """Return the tokens of texts, or of pairs of texts, and the options with the tokenizer that was chosen."""
    config = replace(config, tokenizer=choose_tokenizer(config.tokenizer))
    return tokenise(*texts, tokenizer=config.tokenizer, max_length=config.max_length), config


def sample_split_numbers(
    cells: Tensor, fractions: Sequence[float], seeds: Seeds, classes: Tensor | None = None
) -> Tensor:
    """Return the split of each example (train 0, val 1, test 2), sampled and stratified by ``cells``."""
    split = torch.zeros_like(cells)
    for number, part in enumerate(split_stratified(cells, fractions, seeds=seeds, classes=classes)):
        split[part] = number
    return split


def split_examples(
    card: Card,
    config: Any,
    examples: Split,
    split: Tensor | None,
    published: Mapping[str, int | Sequence[int]] | None = None,
) -> Splits:
    """Return the splits of a dataset; warn if their counts are not the published ones."""
    splits = make_splits(examples, split, seeds=Seeds(config.seed), name=card.name, options=asdict(config))
    return check_published_counts(splits, published or {})


def sample_splits(
    card: Card, config: Any, sample: Callable[[Any, int, float, torch.Generator], Split], fractions: Sequence[float]
) -> Splits:
    """Sample ``n_train``, ``n_val`` and ``n_test`` examples with ``sample(config, n, fraction, generator)``."""
    seeds = Seeds(config.seed)
    few = sample(config, 3, fractions[0], seeds.generator("size")).x
    total = sum(getattr(config, f"n_{name}") for name in ("train", "val", "test"))
    parts_of_few = few.values() if isinstance(few, dict) else (few,)
    per_example = sum(part[0].numel() * part.element_size() for part in parts_of_few if isinstance(part, Tensor))
    check_bytes(per_example * total, "the dataset", card.name)
    parts = [
        sample(config, getattr(config, f"n_{name}"), fraction, seeds.generator(name))
        for name, fraction in zip(("train", "val", "test"), fractions, strict=True)
    ]
    return join_splits(card, config, parts)


def join_splits(card: Card, config: Any, parts: Sequence[Split]) -> Splits:
    """Return train, val and test as the splits of a dataset."""
    train, val, test = parts
    return Splits(train, val, test, card.name, asdict(config))


def total_counts(published: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the size of every split from the counts of its groups."""
    return {name: sum(counts) for name, counts in published.items()}
