"""Pictures: what is hidden is dark in the PNG, the map is that of its model, and a changed prediction comes first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from spurless.core.errors import InputError, UnknownNameError
from spurless.core.groups import Groups
from spurless.core.progress import progress_to
from spurless.data.input_masks import InputMask, SoftInputMask
from spurless.data.split import Split
from spurless.explain.overlays import GAP, HEADING, check_images, choose_examples, compare_heat_maps
from spurless.models.classifier import Classifier

N, SIDE, TILE = 8, 28, 112
BIRDS = Groups(("landbird", "waterbird"), ("land", "water"))


class Says(nn.Module):
    """A net that says the second label where the mean of an image is above a limit; or below, if it is contrary."""

    def __init__(self, limit: float, contrary: bool = False) -> None:
        super().__init__()
        self.limit, self.sign = limit, -1.0 if contrary else 1.0

    def forward(self, x: Tensor) -> Tensor:
        light = self.sign * (x.flatten(1).mean(dim=1) - self.limit)
        return torch.stack([-light, light], dim=1)


def says(limit: float, contrary: bool = False) -> Classifier:
    head = nn.Linear(2, 2, bias=False)
    nn.init.eye_(head.weight)
    return Classifier(Says(limit, contrary), head, name="says")


def images(channels: int = 3, shade: int = 200) -> Split:
    """Images that are lighter from one to the next, so that a limit cuts them."""
    steps = torch.linspace(shade - 60, shade, N).round().to(torch.uint8)
    x = steps.view(-1, 1, 1, 1).expand(N, channels, SIDE, SIDE).contiguous()
    return Split(x, torch.arange(N) % 2, torch.arange(N) // 2 % 2, BIRDS)


def corner(_: Any, x: Any) -> Tensor:
    """A heat map that is hot in the top left corner."""
    heat = torch.zeros(len(x), *x.shape[2:])
    heat[:, :4, :4] = 1.0
    return heat


def elsewhere(_: Any, x: Any) -> Tensor:
    return corner(_, x).flip((1, 2))


def tiles(png: bytes, columns: int, rows: int) -> np.ndarray:
    """Return the tiles, ``(rows, columns, side, side, 3)``, one pixel per pixel of the image."""
    sheet = np.asarray(Image.open(BytesIO(png)))
    left = sheet.shape[1] - columns * (TILE + GAP)
    assert sheet.shape[0] == HEADING + rows * (TILE + GAP)
    found = [
        [sheet[HEADING + r * (TILE + GAP) :, left + c * (TILE + GAP) :][:TILE, :TILE][::4, ::4] for c in range(columns)]
        for r in range(rows)
    ]
    return np.array(found)


@pytest.mark.parametrize("channels", [1, 3])
def test_what_is_hidden_is_dark_in_the_picture(channels: int) -> None:
    split = images(channels)
    masks = torch.zeros(N, SIDE, SIDE, dtype=torch.bool)
    for i in range(N):
        masks[i, i : i + 5, 10:20] = True
    drawn = compare_heat_maps(says(0.5), split, [6, 2], after=says(0.6), hidden=InputMask.of(masks), how=corner)
    found = tiles(drawn.png, 4, 2)  # type: ignore[arg-type]
    assert isinstance(split.x, Tensor)
    for row, i in enumerate((6, 2)):
        mask = masks[i].numpy()
        assert (found[row, 2][mask] == 0).all()
        assert (found[row, 2][~mask] == int(split.x[i, 0, 0, 0])).all()
        assert (found[row, 0] == int(split.x[i, 0, 0, 0])).all()


def test_masks_may_be_those_of_the_rows_or_of_the_split_itself() -> None:
    split, rows = images(), torch.tensor([5, 1, 3])
    hidden = InputMask.of(torch.rand(N, SIDE, SIDE, generator=torch.Generator().manual_seed(0)) > 0.5)
    whole = compare_heat_maps(says(0.5), split, rows, hidden=hidden, how=corner).png
    assert compare_heat_maps(says(0.5), split, rows, hidden=hidden.select(rows), how=corner).png == whole
    inside = replace(split, hidden=hidden)
    assert compare_heat_maps(says(0.5), inside, rows, how=corner).png == whole
    seen: list[float] = []

    def watch(_: Any, x: Tensor) -> Tensor:
        seen.append(float(x.min()))
        return corner(_, x)

    compare_heat_maps(says(0.5), inside, rows, how=watch)
    assert min(seen) > 0.5  # the models see the images whole


def test_faded_pixels_fade() -> None:
    split = images()
    faded = SoftInputMask(torch.full((N, SIDE, SIDE), 51, dtype=torch.uint8))  # a fifth
    found = tiles(compare_heat_maps(says(0.5), split, [7], hidden=faded, how=corner).png, 3, 1)  # type: ignore[arg-type]
    assert (found[0, 2] == 160).all()


def test_each_map_is_that_of_its_model() -> None:
    def by(model: Classifier, x: Tensor) -> Tensor:
        return corner(model, x) if model.name == "first" else elsewhere(model, x)

    first, second = says(0.5), says(0.5)
    first.name, second.name = "first", "second"
    found = tiles(compare_heat_maps(first, images(), [0], after=second, how=by).png, 3, 1)  # type: ignore[arg-type]
    assert (found[0, 1][:4, :4] == 255).all()
    assert (found[0, 2][-4:, -4:] == 255).all()
    assert (found[0, 1][-4:, -4:] < 120).all()
    assert (found[0, 2][:4, :4] < 120).all()


def test_the_caption_tells_labels_and_predictions() -> None:
    split = images()  # means from 0.549 to 0.784
    two = compare_heat_maps(says(0.6), split, [0, 7], after=says(0.9), how=corner)
    assert two.caption.splitlines()[:2] == [
        "0: label 'landbird'; before 'landbird', after 'landbird'.",
        "7: label 'waterbird'; before 'waterbird', after 'landbird' (wrong).",
    ]
    assert two.alt.startswith("2 rows of 3 columns: image, heat map before, heat map after.")
    one = compare_heat_maps(says(0.6), split.hide_labels(), [7], how=corner)
    assert one.caption.startswith("7: predicted 'waterbird'.\n")
    assert one.alt.startswith("1 row of 2 columns: image, heat map.")


def test_a_real_net_and_the_automatic_explainer(warm: Classifier) -> None:
    x = torch.zeros(3, 1, SIDE, SIDE, dtype=torch.uint8)
    x[:, :, 18:24, 18:24] = 255
    split = Split(x, torch.zeros(3, dtype=torch.long), torch.full((3,), -1), Groups(("a", "b", "c")))
    found = tiles(compare_heat_maps(warm, split, [0]).png, 2, 1)  # type: ignore[arg-type]
    light = found[0, 1].sum(axis=2)
    assert light[16:26, 16:26].mean() > 3 * light[:10, :10].mean()
    assert all(m.training for m in warm.modules())


class Stored:
    """Images that are read on demand, and a list of those that were."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.read = x, list[int]()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Tensor:
        self.read.append(i)
        return self.x[i]

    def fingerprint(self) -> str:
        return ""


def test_a_streamed_split_gives_the_same_picture_and_no_other_example_is_read() -> None:
    split = images()
    assert isinstance(split.x, Tensor)
    source = Stored(split.x)
    streamed = replace(split, x=source)
    assert compare_heat_maps(says(0.5), streamed, [4, 2], how=corner) == compare_heat_maps(
        says(0.5), split, [4, 2], how=corner
    )
    assert set(source.read) - {0} == {2, 4}  # the first one tells what an input is


def test_images_of_numbers_are_brought_to_light() -> None:
    split = images(1)
    unit, wide = (
        replace(split, x=torch.linspace(low, high, SIDE * SIDE).view(1, 1, SIDE, SIDE).repeat(N, 1, 1, 1))
        for low, high in ((0.0, 0.5), (-2.0, 2.0))
    )
    hidden = InputMask.of(torch.ones(N, SIDE, SIDE, dtype=torch.bool))
    assert tiles(compare_heat_maps(says(0.5), unit, [0], how=corner).png, 2, 1)[0, 0].max() == 128  # type: ignore[arg-type]
    found = tiles(compare_heat_maps(says(0.5), wide, [0], hidden=hidden, how=corner).png, 3, 1)  # type: ignore[arg-type]
    assert (found[0, 0].min(), found[0, 0].max()) == (0, 255)
    assert set(np.unique(found[0, 2])) == {128}  # zero lies halfway from -2 to 2


@pytest.mark.parametrize(
    ("x", "got"),
    [
        (torch.zeros(4, 5), "rows of 5 features"),
        ({"input_ids": torch.zeros(4, 6, dtype=torch.long)}, "texts"),
        (torch.zeros(4, 2, 8, 8), r"shape \(2, 8, 8\)"),
    ],
)
def test_what_is_no_image_is_refused(x: Any, got: str) -> None:
    split = Split(x, torch.zeros(4, dtype=torch.long), torch.zeros(4, dtype=torch.long), BIRDS)
    with pytest.raises(InputError, match=rf"not images, so they cannot be drawn \(.*got {got}\)"):
        compare_heat_maps(says(0.5), split, [0])


def test_what_does_not_fit_is_refused() -> None:
    split = images()
    with pytest.raises(InputError, match=r"the split has no example 8 \(expected 0 to 7\)"):
        compare_heat_maps(says(0.5), split, [0, 8])
    with pytest.raises(InputError, match="there is no example to draw"):
        compare_heat_maps(says(0.5), split, [])
    with pytest.raises(InputError, match=r"do not fit .*\(28, 28\), 8 of them, or 1 in .*got 3 of shape \(28, 28\)"):
        compare_heat_maps(says(0.5), split, [0], hidden=InputMask.of(torch.zeros(3, SIDE, SIDE)), how=corner)
    with pytest.raises(InputError, match=r"got 8 of shape \(14, 14\)"):
        compare_heat_maps(
            says(0.5), split, [0], hidden=SoftInputMask(torch.zeros(N, 14, 14, dtype=torch.uint8)), how=corner
        )
    with pytest.raises(UnknownNameError, match=r"No explainer is called 'xgradcan'. Did you mean 'xgradcam'"):
        compare_heat_maps(says(0.5), split, [0], how="xgradcan")
    with pytest.raises(InputError, match="the split is empty"):
        check_images(split.select(torch.tensor([], dtype=torch.long)))


def test_changed_predictions_come_first_and_groups_take_turns() -> None:
    split = images()  # 0.6 and 0.7 part the images 2, 3 and 4 from the others
    assert isinstance(split.x, Tensor)
    light = split.x.float().mean(dim=(1, 2, 3)) / 255
    changed = (light > 0.6) & (light <= 0.7)
    assert changed.sum() == 3
    order = choose_examples(says(0.6), says(0.7), split, N, seed=3)
    assert sorted(order.tolist()) == list(range(N))
    assert changed[order].tolist() == [True] * 3 + [False] * 5
    assert len(set(split.g[order[:3]].tolist())) == 3
    assert len(set(split.g[order[3:7]].tolist())) == 4
    assert torch.equal(order, choose_examples(says(0.6), says(0.7), split, N, seed=3))
    assert torch.equal(order[:2], choose_examples(says(0.6), says(0.7), split, 2, seed=3))


def test_another_seed_chooses_others() -> None:
    split = Split(torch.zeros(500, 3, 2, 2), torch.arange(500) % 2, torch.arange(500) // 2 % 2, BIRDS)
    some = [tuple(choose_examples(says(0.5), None, split, 8, seed).tolist()) for seed in range(3)]
    assert len(set(some)) == 3
    for index in some:
        assert torch.bincount(split.g[list(index)]).tolist() == [2, 2, 2, 2]


def test_hidden_attributes_are_not_looked_at() -> None:
    groups = torch.cat([torch.zeros(100), torch.ones(4)]).long()
    split = Split(torch.zeros(104, 3, 2, 2), groups, torch.zeros(104, dtype=torch.long), BIRDS)
    for a in (torch.full((104,), -1), torch.arange(104) % 2 * 2 - 1):  # all hidden, some hidden
        order = choose_examples(says(0.5), None, replace(split, a=a), 4)
        assert torch.bincount(split.y[order]).tolist() == [2, 2]  # labels take turns
        assert torch.equal(order, choose_examples(says(0.5), None, split.hide_attributes(), 4))


def test_overlapping_groups_are_spread_over_labels() -> None:
    groups = Groups.overlapping(("no", "yes"), ("a", "b"))
    split = Split(torch.zeros(20, 3, 2, 2), torch.arange(20) // 10, torch.ones(20, 2, dtype=torch.long), groups)
    assert torch.bincount(split.y[choose_examples(says(0.5), None, split, 6)]).tolist() == [3, 3]
    with pytest.raises(InputError, match=r"at least one example must be shown \(got 0\)"):
        choose_examples(says(0.5), None, split, 0)


def test_predictions_tell_their_progress_and_leave_the_model_alone(
    warm: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock: Iterator[float] = iter(range(0, 10**6, 10))
    monkeypatch.setattr("spurless.core.progress.time.monotonic", lambda: float(next(clock)))
    heard: list[tuple[str, int, int, str]] = []
    with progress_to(lambda *told: heard.append(told)):
        choose_examples(warm, warm, images(1), 2)
    assert heard == [("predictions", N, N, "")] * 2
    assert all(m.training for m in warm.modules())
