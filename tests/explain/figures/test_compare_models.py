"""Compared: nets that can look at one half only, so that every map and share is known."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from spurless.core.errors import InputError, UnknownNameError
from spurless.core.figures import Figure, Picture, Section
from spurless.data import load
from spurless.data.shortcut_regions import shortcut_regions
from spurless.data.split import Splits
from spurless.explain.figures.compare_models import _compute_maps, build_attribution_section, compute_fractions
from spurless.models.classifier import Classifier

DATA = load("double-digits")
MASKS = shortcut_regions(DATA)


def looks_at(mask: Tensor, classes: int = 10, channels: int = 1, seed: int = 0) -> Classifier:
    """A linear net that sees nothing outside a mask."""
    head = nn.Linear(channels * mask.numel(), classes)
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, channels, mask.numel(), generator=generator) * mask.flatten()
    head.weight.data = weight.flatten(1)
    return Classifier(nn.Flatten(), head, name="linear")


TWO = {"low": looks_at(MASKS["spurious"]), "high": looks_at(MASKS["core"])}


def parts(section: Section) -> tuple[Picture, Figure]:
    picture, figure = section.items
    assert isinstance(picture, Picture)
    assert isinstance(figure, Figure)
    return picture, figure


def test_shares_are_of_the_half_that_a_net_can_see() -> None:
    picture, figure = parts(build_attribution_section(TWO, DATA, count=3))
    bars = {trace["name"]: trace for trace in figure.spec["data"]}
    assert bars["core"]["x"] == bars["spurious"]["x"] == ["low", "high"]
    assert bars["core"]["y"] == pytest.approx([0, 100])
    assert bars["spurious"]["y"] == pytest.approx([100, 0])
    assert "Mean over 200 examples. low: 0.0 % core, 100.0 % spurious; high: 100.0 % core" in figure.alt
    lines = picture.caption.splitlines()
    assert len(lines) == 4
    assert all("0 % core, 100 % spurious" in line and "100 % core, 0 % spurious" in line for line in lines[:3])


def test_a_share_by_hand() -> None:
    # integrated gradients of a linear net are weight times input: of two pixels of the same size one is three times as
    # strongly weighted, in the region
    split = DATA.test.select(torch.arange(1))
    assert isinstance(split.x, Tensor)
    x = torch.zeros_like(split.x)
    x[0, 0, 5, 5] = x[0, 0, 5, 40] = 200
    net = looks_at(torch.ones(28, 56, dtype=torch.bool))
    assert isinstance(net.head, nn.Linear)
    weight = net.head.weight.data.zero_().view(10, 28, 56)
    weight[int(split.y[0]), 5, 5], weight[int(split.y[0]), 5, 40] = -3.0, 1.0
    weight[(int(split.y[0]) + 1) % 10] = 100.0  # another class: not what is asked
    found = compute_fractions(_compute_maps(net, replace(split, x=x), "integrated-gradients"), MASKS)
    assert found["core"].item() == pytest.approx(0.75, abs=1e-4)
    assert found["spurious"].item() == pytest.approx(0.25, abs=1e-4)


def test_models_are_compared_on_the_same_examples() -> None:
    some = DATA.test.select(torch.arange(2))
    assert isinstance(some.x, Tensor)
    x = torch.full_like(some.x, 200)
    x[1, :, MASKS["spurious"]] = 0  # where the first model sees nothing
    nets = {"low": TWO["low"], "all": looks_at(torch.ones(28, 56, dtype=torch.bool))}
    _, figure = parts(build_attribution_section(nets, replace(DATA, test=replace(some, x=x)), count=1))
    alone = compute_fractions(_compute_maps(nets["all"], replace(some, x=x), "integrated-gradients"), MASKS)["core"]
    assert alone[1].item() == pytest.approx(1.0)
    (core,) = (trace["y"] for trace in figure.spec["data"] if trace["name"] == "core")
    assert core == pytest.approx([0.0, 100 * alone[0].item()])
    assert "Mean over 1 of 2 examples" in figure.alt


def test_the_entropy_is_that_of_the_attributions_clipped_once() -> None:
    some = replace(DATA, test=DATA.test.select(torch.arange(4)))
    assert isinstance(some.test.x, Tensor)
    even = replace(some, test=replace(some.test, x=torch.full_like(some.test.x, 200)))
    net = looks_at(torch.ones(28, 56, dtype=torch.bool))
    assert isinstance(net.head, nn.Linear)
    net.head.weight.data = (torch.arange(1, 1569) ** -0.5).expand(10, -1).clone()
    _, figure = parts(build_attribution_section({"one": net, "two": net}, even, count=1))
    # the first pixel has 1.3 % of the sum and is cut to the second; clipped twice it would be 7.13
    assert "Entropy of a map, in nats: 7.12 of one, 7.12 of two." in figure.alt


def test_the_picture_is_hot_where_a_net_looks() -> None:
    picture, _ = parts(build_attribution_section(TWO, DATA, count=2))
    assert isinstance(picture.png, bytes)
    image = np.asarray(Image.open(BytesIO(picture.png))).astype(int)
    tile = 2 * 56  # twice as large
    tiles = image[:, -3 * (tile + 8) :]
    saturation = (tiles.max(axis=2) - tiles.min(axis=2))[24:]
    low, high = saturation[:, tile + 8 : 2 * tile + 8], saturation[:, 2 * (tile + 8) : 3 * tile + 16]
    assert low[:, : tile // 2].max() < 10 < low[:, tile // 2 :].max()  # a digit is grey, heat is red
    assert high[:, tile // 2 :].max() < 10 < high[:, : tile // 2].max()
    assert "image, low, high" in picture.alt


def test_examples_on_which_first_and_last_disagree_come_first() -> None:
    picture, _ = parts(build_attribution_section(TWO, DATA, count=4, seed=1))
    x = DATA.test.x
    assert isinstance(x, Tensor)
    said = {name: model(x.float() / 255).argmax(dim=1) for name, model in TWO.items()}
    for line in picture.caption.splitlines()[:4]:
        number = int(line.split(":")[0])
        assert said["low"][number] != said["high"][number]
        assert f"label '{int(DATA.test.y[number])}'" in line
        for name, labels in said.items():
            wrong = " (wrong)" * bool(labels[number] != DATA.test.y[number])
            assert f"; {name} '{int(labels[number])}'{wrong}, " in line
    labels = [line.split("'")[1] for line in picture.caption.splitlines()[:4]]
    assert len(set(labels)) == 4  # ten labels, a hundred groups, four rows
    again, _ = parts(build_attribution_section(TWO, DATA, count=4, seed=1))
    assert again.png == picture.png


def test_images_without_regions_are_drawn_and_columns_with_regions_are_counted() -> None:
    own = replace(DATA, name="own data")
    (only,) = build_attribution_section(TWO, own, count=2).items
    assert isinstance(only, Picture)
    assert "%" not in only.caption
    bits = load("parity", core=2, spurious=1, noise=3, n_train=20, n_val=20, n_test=30)
    masks = shortcut_regions(bits)
    models = {name: looks_at(mask, classes=2) for name, mask in masks.items()}
    (bars,) = build_attribution_section(models, bits).items
    assert isinstance(bars, Figure)
    for k, trace in enumerate(bars.spec["data"]):
        assert trace["y"] == pytest.approx([100.0 * (j == k) for j in range(3)])
    assert "Mean over 30 examples" in bars.caption


def test_a_region_finder_is_used_only_without_known_regions() -> None:
    half = MASKS["core"].clone()
    half[:14] = False
    regions = {"top": half, "rest": ~half}
    own = replace(DATA, name="own data")
    _, figure = parts(build_attribution_section(TWO, own, count=1, find_regions=lambda *_: regions))
    assert [trace["name"] for trace in figure.spec["data"]] == ["top", "rest"]
    known, _ = parts(build_attribution_section(TWO, DATA, count=1, find_regions=lambda *_: regions))
    assert "% core" in known.caption


def test_nets_that_look_at_nothing_are_not_drawn_as_bars() -> None:
    blind = {name: looks_at(torch.zeros(28, 56, dtype=torch.bool)) for name in ("low", "high")}
    section = build_attribution_section(blind, DATA, count=1)
    assert len(section.items) == 1
    assert section.text.endswith("None of 200 examples has attributions in several regions.")


def test_models_are_left_as_they_were() -> None:
    TWO["low"].train()
    before = {name: value.clone() for name, value in TWO["low"].state_dict().items()}
    build_attribution_section(TWO, DATA, count=1)
    assert TWO["low"].training
    assert all(parameter.requires_grad for parameter in TWO["low"].parameters())
    assert all(torch.equal(before[name], value) for name, value in TWO["low"].state_dict().items())


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(InputError, match=r"at least two models \(got 1\)"):
        build_attribution_section({"one": TWO["low"]}, DATA)
    with pytest.raises(UnknownNameError, match=r"heat"):
        build_attribution_section(TWO, DATA, how="heat")
    rows = load("planted", n_train=20, n_val=20, n_test=20)
    with pytest.raises(InputError, match=r"neither images nor known regions"):
        build_attribution_section(TWO, Splits(rows.train, rows.val, rows.test, name="planted"))
