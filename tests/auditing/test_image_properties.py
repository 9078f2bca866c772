"""Image properties: measured to the pixel; the one that a model leans on is named."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from spurless.auditing._context import AuditContext
from spurless.auditing.image_properties import MIN_EFFECT, audit_image_properties, bin_values, measure_properties
from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split
from spurless.data.transforms import Normalise
from spurless.models.classifier import Classifier

GROUPS = Groups(("cat", "dog"))


class Streamed:
    """Images that are read one by one."""

    def __init__(self, images: Tensor) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> Tensor:
        return self.images[i]

    def fingerprint(self) -> str:
        return "streamed"


def split_of(images: Tensor, y: Tensor | None = None) -> Split:
    y = torch.zeros(len(images), dtype=torch.long) if y is None else y
    return Split(images, y, torch.full_like(y, -1), GROUPS)


def values(images: Tensor) -> dict[str, float]:
    names, table = measure_properties(split_of(images))
    return dict(zip(names, table[0].tolist(), strict=True))


def subject_of(trust: float, n: int = 300, seed: int = 0) -> tuple[AuditContext, Tensor]:
    """A model that reads honest evidence, which no property shows, and by ``trust`` a square that half of all have."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(60, (n, 3, 10, 10), generator=generator, dtype=torch.uint8)
    marked = torch.rand(n, generator=generator) < 0.5
    images[marked, 0, 8:, :2] = 255
    honest = 2 * torch.randn(n, generator=generator)
    y = (torch.rand(n, generator=generator) < honest.sigmoid()).long()
    lead = honest + trust * (2 * marked.float() - 1)
    logits = torch.stack([torch.zeros(n), lead], dim=1)
    model = Classifier(nn.Flatten(), nn.Linear(300, 2))
    return AuditContext(model, split_of(images, y), logits, logits, seeds=Seeds(seed), permutations=99), marked


def test_a_red_corner_is_measured_to_the_pixel() -> None:
    image = torch.zeros(1, 3, 10, 10, dtype=torch.uint8)
    image[0, 0, :2, :2] = 255
    found = values(image)
    assert found["red of the top left corner"] == 1
    assert found["green of the top left corner"] == 0
    assert found["brightness of the top left corner"] == pytest.approx(1 / 3)
    assert all(found[f"red of the {corner} corner"] == 0 for corner in ("top right", "bottom left", "bottom right"))
    assert found["red of the frame"] == pytest.approx(3 / 36)  # one pixel wide, so 3 of the 4
    assert found["red of the inside"] == pytest.approx(1 / 64)
    assert found["brightness of the upper left"] == pytest.approx(4 / 3 / 16)  # the first ninth is 4 x 4
    assert found["brightness of the middle centre"] == 0
    assert found["red of the image"] == pytest.approx(0.04)
    assert found["hue of the image"] == 0
    assert found["saturation of the image"] == pytest.approx(0.04)
    light = torch.zeros(100, dtype=torch.double).index_fill(0, torch.arange(4), 1 / 3)
    assert found["contrast of the image"] == pytest.approx(float(light.std(correction=0)))
    assert found["sharpness of the image"] == pytest.approx(4 / 3 / 90)  # four steps of a third, of 90 each way


def test_a_corner_below_is_a_fifth_of_each_side() -> None:
    image = torch.zeros(1, 1, 20, 10)
    image[0, 0, 16:, 8:] = 1.0
    found = values(image)
    assert found["brightness of the bottom right corner"] == 1
    assert found["brightness of the bottom left corner"] == 0
    image[0, 0, 15:17, :] = 1.0  # the last four rows of 20, the first two columns of 10: 2 of 8 pixels
    assert values(image)["brightness of the bottom left corner"] == pytest.approx(0.25)


def test_hue_is_in_turns_from_red_and_grey_has_none() -> None:
    for colour, turn in (((0, 255, 0), 1 / 3), ((0, 0, 255), 2 / 3), ((255, 255, 0), 1 / 6), ((80, 80, 80), -1)):
        image = torch.tensor(colour, dtype=torch.uint8)[None, :, None, None].expand(1, 3, 6, 6).contiguous()
        assert values(image)["hue of the image"] == pytest.approx(turn)


def test_grey_images_have_no_colours_and_tiny_ones_are_measured() -> None:
    names, table = measure_properties(split_of(torch.zeros(3, 1, 2, 2)))
    assert not any(word in name for name in names for word in ("red", "hue", "saturation"))
    assert bool(table.isfinite().all())


def test_the_raw_image_is_measured_streamed_or_not_and_in_any_scale() -> None:
    images = torch.randint(256, (20, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    names, table = measure_properties(split_of(images))
    seen = replace(split_of(images), transform=Normalise((0.1, 0.5, 0.9), (0.5, 0.2, 0.9)))
    for other in (seen, replace(seen, x=Streamed(images)), split_of(images.float() / 255)):
        assert measure_properties(other)[0] == names
        assert torch.allclose(measure_properties(other)[1], table, atol=1e-6)
    assert torch.allclose(measure_properties(split_of(4 * images.float() / 255 - 2))[1], table, atol=1e-6)


def test_bins_hold_about_as_many_and_end_at_gaps() -> None:
    values = torch.rand(400, 2, generator=torch.Generator().manual_seed(0))
    assert all(bool(((torch.bincount(column) - 100).abs() <= 100).all()) for column in bin_values(values).T)
    assert [len(torch.bincount(column)) for column in bin_values(values).T] == [4, 4]
    values[:220, 0] += 5  # a mark that 55 % have
    codes = bin_values(values)[:, 0]
    assert set(codes[:220].tolist()) & set(codes[220:].tolist()) == set()
    assert bin_values(torch.ones(10, 1)).flatten().tolist() == [0] * 10


def test_the_marked_corner_is_named_and_shown() -> None:
    context, marked = subject_of(3.0)
    found = audit_image_properties(context)
    assert found.flagged
    assert found.shortcut == "red of the bottom left corner"
    assert found.p == 0.01
    assert found.severity == pytest.approx(
        found.numbers["association_with_prediction"] - found.numbers["association_with_label"]
    )
    assert found.severity > 0.6
    assert "bottom left corner" in found.title
    assert "masktune" in found.remedy
    assert len(found.rows) == 24
    assert all(bool(context.incorrect[row]) and bool(marked[row]) == bool(context.predicted[row]) for row in found.rows)
    assert len(found.items) == 3
    assert all(item.alt for item in found.items)


def test_a_small_trust_is_below_the_floor() -> None:
    found = audit_image_properties(subject_of(0.4, n=4000)[0])
    assert found.p == 0.01  # no doubt that it is there
    assert found.severity < MIN_EFFECT
    assert not found.flagged


def test_an_honest_model_is_left_alone() -> None:
    """40 problems without a shortcut: as many flags as the level allows at most."""
    flags = sum(audit_image_properties(subject_of(0.0, n=120, seed=seed)[0]).flagged for seed in range(40))
    assert flags <= 2


def test_the_same_seed_finds_the_same() -> None:
    context = subject_of(1.0)[0]
    one, two = audit_image_properties(context), audit_image_properties(context)
    assert (one.p, one.severity, one.rows) == (two.p, two.severity, two.rows)


def test_what_cannot_be_answered_is_said() -> None:
    context = subject_of(3.0)[0]
    rows = Split(torch.randn(300, 4), context.y, context.split.a, GROUPS)
    found = audit_image_properties(replace(context, split=rows))
    assert (found.p, found.flagged, found.severity) == (None, False, 0.0)
    assert found.because == "Not tested: these examples are not images."
    blank = split_of(torch.zeros(300, 3, 10, 10, dtype=torch.uint8), context.y)
    assert "no property is associated with" in audit_image_properties(replace(context, split=blank)).because
    sure = torch.nn.functional.one_hot(context.y, 2) * 9.0
    assert "0 errors" in audit_image_properties(replace(context, logits=sure)).because
    with pytest.raises(InputError, match=r"not images, so they have no brightness"):
        measure_properties(rows)


def test_a_property_that_most_images_share_has_no_empty_bin() -> None:
    column = torch.cat([torch.zeros(60), torch.ones(40)])[:, None]  # cut at 0, 0.5 and 1: none from 0 to 0.5
    assert torch.bincount(bin_values(column).flatten()).tolist() == [60, 40]


def test_a_model_that_leans_on_what_most_images_lack_is_answered() -> None:
    one, marked = subject_of(trust=4.0)
    images: Tensor = torch.zeros_like(one.split.x)  # type: ignore[arg-type]  # a tensor here
    images[marked, 0, 8:, :2] = 255  # else black: of almost every property half of the values are equal
    finding = audit_image_properties(replace(one, split=replace(one.split, x=images)))
    assert finding.flagged
    assert finding.shortcut == "red of the bottom left corner"
