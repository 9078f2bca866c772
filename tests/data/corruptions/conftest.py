"""Photographs that ship with scikit-learn, cut to the two published sizes."""

import numpy as np
import pytest
import torch
from torch import Tensor


def crops(side: int, shrink: int, each: int) -> Tensor:
    from PIL import Image
    from sklearn.datasets import load_sample_image

    found = []
    for name in ("china.jpg", "flower.jpg"):
        photo = Image.fromarray(load_sample_image(name))
        photo = photo.resize((photo.width // shrink, photo.height // shrink), Image.Resampling.BOX)
        whole = torch.from_numpy(np.array(photo)).permute(2, 0, 1)
        columns = range(0, whole.shape[2] - side + 1, side)
        places = [(row, column) for row in range(0, whole.shape[1] - side + 1, side) for column in columns]
        found += [whole[:, row : row + side, column : column + side] for row, column in places[:each]]
    return torch.stack(found)


@pytest.fixture(scope="session")
def small() -> Tensor:
    """Sixteen cuts of 32 pixels, as small pictures of large things, like CIFAR's."""
    return crops(32, 5, 8)


@pytest.fixture(scope="session")
def large() -> Tensor:
    """Eight cuts of 128 pixels at full sharpness, like a part of ImageNet's."""
    return crops(128, 1, 4)
