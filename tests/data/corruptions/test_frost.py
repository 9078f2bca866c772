"""The textures of ice: what makes them look like frost, in numbers."""

import torch

from spurless.data.corruptions.ops import luma
from spurless.data.corruptions.weather import DARK_RGB, N_TEXTURES, TEXTURE_SIDE, WHITE_RGB, frost_textures


def test_there_are_five_different_textures_in_bytes() -> None:
    full = frost_textures()
    assert full.shape == (N_TEXTURES, 3, TEXTURE_SIDE, TEXTURE_SIDE)
    assert full.dtype == torch.uint8
    for a in range(N_TEXTURES):
        for b in range(a):
            difference = (full[a].double() - full[b].double()).abs().mean()
            assert difference > 20, (a, b)


def test_ice_is_bluish_from_dark_to_white() -> None:
    red, green, blue = frost_textures().double().unbind(1)
    assert (red <= green).all()
    assert (green <= blue).all()
    for channel, low, high in zip((red, green, blue), DARK_RGB, WHITE_RGB, strict=True):
        assert channel.min() >= low
        assert channel.max() == high  # some ice is as white as ice gets
    assert 90 < luma(frost_textures().double()).mean() < 140


def test_ice_lies_in_patches_and_has_fine_lines() -> None:
    grey = luma(frost_textures().double())
    patches = torch.nn.functional.avg_pool2d(grey, 64)
    assert (patches.amax(dim=(1, 2, 3)) > 1.5 * patches.amin(dim=(1, 2, 3))).all()
    around = torch.nn.functional.avg_pool2d(grey, 15, stride=1, padding=7, count_include_pad=False)
    lines = (grey - around > 60).double().mean(dim=(1, 2, 3))  # far brighter than what is around
    assert (lines > 0.01).all()
    assert (lines < 0.2).all()


def test_a_fifth_of_the_size_shows_the_same_ice() -> None:
    full, fifth = frost_textures().double(), frost_textures(0.2).double()
    assert fifth.shape == (N_TEXTURES, 3, TEXTURE_SIDE // 5, TEXTURE_SIDE // 5)
    blocks = torch.nn.functional.avg_pool2d(full, 5)
    assert (fifth.mean(dim=(2, 3)) - blocks.mean(dim=(2, 3))).abs().max() < 0.5
    for k in range(N_TEXTURES):
        pair = torch.stack([fifth[k].flatten(), blocks[k].flatten()])
        assert float(torch.corrcoef(pair)[0, 1]) > 0.97
