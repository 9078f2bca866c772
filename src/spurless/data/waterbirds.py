"""Waterbirds: birds of the water and of the land, mostly in front of their own background.

Reads the official folder of Sagawa et al.: ``metadata.csv`` with the columns ``img_filename``, ``y``, ``place``
and ``split`` (0 train, 1 val, 2 test), and the images it names. Val and test have half of each class on each
background, so that their plain average says little: read the worst group, and the adjusted average.

Deviation:
    * Images are resized by their short side and cut square. Most papers squeeze them to a square of 8/7 of the
      size first, and cut its centre out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Grouped, Splits
from spurless.data.images import ImageFiles, read
from spurless.data.layout import Layout, compare, find
from spurless.data.limits import check_least
from spurless.data.names import Names
from spurless.data.rows import Inside, check_repeats, codes, columns
from spurless.data.splitting import assemble
from spurless.data.transforms import augmentation

GROUPS = Groups(labels=("landbird", "waterbird"), attributes=("land", "water"))
PUBLISHED = {"train": (3498, 184, 56, 1057), "val": (467, 466, 133, 133), "test": (2255, 2255, 642, 642)}
BINARY = {"0": 0, "1": 1}
SPLITS = {"0": 0, "1": 1, "2": 2}
CARD = Card(
    name="waterbirds",
    summary="Waterbirds against landbirds; in training 95 % are in front of their own background.",
    input="RGB image, 3 x size x size, uint8",
    label="landbird or waterbird",
    attribute="the background, land or water",
    splits="train 4,795 (3498/184/56/1057 by group), val 1,199, test 5,794",
    source="CUB-200-2011 birds cut out and placed on backgrounds of Places",
    licence="research use only (CUB-200-2011, Places)",
    citation="Sagawa et al., Distributionally Robust Neural Networks, ICLR 2020, arXiv:1911.08731",
)
LAYOUT = Layout(
    files=("metadata.csv", "<species>/<image>.jpg"),
    folders=("waterbirds", "waterbird_complete95_forest2water2", "waterbirds_v1.0", "waterbird"),
    markers=("metadata.csv",),
    archives=("waterbird_complete95_forest2water2.tar.gz", "waterbirds_v1.0.tar.gz"),
    obtain=(
        "Get waterbird_complete95_forest2water2.tar.gz from the page of kohpangwei/group_DRO on GitHub, or the "
        "waterbirds of WILDS."
    ),
)


@dataclass(frozen=True)
class WaterbirdsConfig:
    """Where the files are, and how large the images shall be."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    size: int = 224  # pixels; the papers
    augment: str = "none"  # none, flip, crop-flip or turn, in training
    cache: bool | None = None  # keep decoded images for later runs; None: if there are many
    seed: int = 0  # decides nothing: the splits are published


DEFAULT = WaterbirdsConfig()


def waterbirds(config: WaterbirdsConfig = DEFAULT) -> Splits:
    """Read the three splits."""
    check_least(CARD, config, size=8)
    augment = augmentation(config.augment, config.size)
    folder = find(CARD.name, LAYOUT, config.root)
    paths, y, a, split = _table(folder)
    x = read(ImageFiles(paths, config.size), None, cache=config.cache)
    whole = Grouped(x, y, a, GROUPS, augment=augment, names=Names.of_files(paths))
    splits = assemble(whole, split, seeds=Seeds(config.seed), name=CARD.name, options=asdict(config))
    return compare(splits, PUBLISHED)


def _table(folder: Path) -> tuple[list[Path], Tensor, Tensor, Tensor]:
    """Return the files, labels, attributes and splits that the metadata lists."""
    path, inside = folder / "metadata.csv", Inside(folder)
    cells = columns(path, ("img_filename", "y", "place", "split"))
    paths = [inside.file(name, f"{path}, row {row}") for row, name in enumerate(cells["img_filename"], start=2)]
    y, a = (codes(cells[name], BINARY, path, name) for name in ("y", "place"))
    split = codes(cells["split"], SPLITS, path, "split")
    check_repeats(path, paths, cells["y"], split.tolist())
    return paths, y, a, split


DATASET = Dataset(card=CARD, config=WaterbirdsConfig, make=waterbirds, layout=LAYOUT)
