"""The small ResNets."""

from typing import Literal

import pytest
import torch

from spurless.models.zoo.resnet_small import PaddedShortcut, SmallResNetConfig, resnet20, resnet32


def by_hand(blocks: int, shortcut: str) -> int:
    stem, head = 3 * 16 * 9 + 2 * 16, 64 * 10 + 10
    total = stem + head
    for n_in, n_out in ((16, 16), (16, 32), (32, 64)):
        total += 9 * n_in * n_out + 9 * n_out * n_out + 4 * n_out
        total += (blocks - 1) * (18 * n_out * n_out + 4 * n_out)
        if shortcut == "B" and n_in != n_out:
            total += n_in * n_out + 2 * n_out
    return total


@pytest.mark.parametrize(("shortcut", "twenty", "thirty_two"), [("A", 269_722, 464_154), ("B", 272_474, 466_906)])
def test_parameters_by_hand(shortcut: Literal["A", "B"], twenty: int, thirty_two: int) -> None:
    assert (by_hand(3, shortcut), by_hand(5, shortcut)) == (twenty, thirty_two)
    config = SmallResNetConfig(shortcut)
    assert resnet20((3, 32, 32), 10, config).parameters_count == twenty
    assert resnet32((3, 32, 32), 10, config).parameters_count == thirty_two


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 33, 17), (2, 1, 1)])
@pytest.mark.parametrize("shortcut", ["A", "B"])
def test_any_size_gives_64_features(shape: tuple[int, int, int], shortcut: Literal["A", "B"]) -> None:
    model = resnet20(shape, 4, SmallResNetConfig(shortcut))
    assert model.features(torch.zeros(2, *shape)).shape == (2, 64)
    assert model(torch.zeros(2, *shape)).shape == (2, 4)


def test_shortcut_a_by_hand() -> None:
    x = torch.arange(9.0).reshape(1, 1, 3, 3)  # rows 0 1 2, 3 4 5, 6 7 8
    y = PaddedShortcut(2)(x)
    assert y.shape == (1, 3, 2, 2)
    assert y[0, 1].tolist() == [[0.0, 2.0], [6.0, 8.0]]
    assert float(y[0, [0, 2]].abs().sum()) == 0.0


def test_the_last_map_is_a_quarter_of_the_side() -> None:
    model = resnet32((3, 32, 32), 10, SmallResNetConfig())
    shapes: list[torch.Size] = []
    model.backbone.get_submodule("layer3.4").register_forward_hook(lambda _m, _x, y: shapes.append(y.shape))
    model(torch.zeros(1, 3, 32, 32))
    assert shapes == [(1, 64, 8, 8)]
