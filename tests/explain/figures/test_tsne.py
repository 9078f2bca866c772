"""Clouds: neighbours stay neighbours, one seed is one picture, and the numbers beside it are those of brute force."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.core.figures import Figure, Section
from spurless.core.groups import Groups
from spurless.data.split import Split
from spurless.explain.figures import tsne as clouds
from spurless.explain.figures.tsne import build_representation_section, compute_tsne
from spurless.models import Classifier

HOSTILE = '<img src=x onerror="boom()"> %{x}'
GROUPS = Groups((HOSTILE, "right", "odd"), ("red", "blue</script>"))


def blobs(n: int = 60, groups: Groups = GROUPS) -> Split:
    """Three labels along three axes of five, and an attribute along a fourth."""
    generator = torch.Generator().manual_seed(0)
    y, a = torch.arange(n) % 3, torch.arange(n) // 3 % 2
    x = 0.3 * torch.randn(n, 5, generator=generator)
    x[torch.arange(n), y] += 4.0
    x[:, 3] += 3.0 * a
    return Split(x, y, a, groups)


def linear(keep: list[float]) -> Classifier:
    """A backbone that scales each component."""
    layer = nn.Linear(5, 5, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor(keep)))
    return Classifier(nn.Sequential(layer), nn.Linear(5, 3), name="scales")


def rows(split: Split) -> Tensor:
    assert isinstance(split.x, Tensor)
    return split.x


def figures(section: Section) -> list[Figure]:
    return [item for item in section.items if isinstance(item, Figure)]


def brute(z: Tensor, y: Tensor) -> float:
    """R2 from every pair of examples."""
    unit = z.double() / z.double().norm(dim=1, keepdim=True)
    distance = 1 - unit @ unit.T
    names = sorted(set(y.tolist()))
    cells = torch.tensor([[float(distance[y == i][:, y == j].mean()) for j in names] for i in names])
    return 1 - float(cells.diag().mean() / cells.mean())


def test_what_was_close_stays_close_and_what_was_far_stays_far() -> None:
    split = blobs()
    flat = compute_tsne(rows(split)[:, :3], 0)
    assert flat.shape == (60, 2)
    nearest = torch.cdist(flat, flat).fill_diagonal_(torch.inf).argmin(dim=1)
    assert torch.equal(split.y[nearest], split.y)


def test_one_seed_is_one_picture() -> None:
    z = rows(blobs())
    first = compute_tsne(z, 3)
    assert torch.equal(compute_tsne(z, 3), first)
    assert torch.equal(
        compute_tsne(1e-30 * (z * 2.0**9), 3).isfinite(), torch.ones(60, 2, dtype=torch.bool)
    )  # any scale
    assert torch.equal(compute_tsne(2.0**9 * z, 3), first)  # a power of two: no digit is lost


def test_the_global_generators_are_left_alone() -> None:
    wide = torch.randn(20, 600, generator=torch.Generator().manual_seed(1))  # PCA of so many columns draws numbers
    states = torch.get_rng_state(), repr(np.random.get_state())  # noqa: NPY002  the global generator
    assert torch.equal(compute_tsne(wide, 3), compute_tsne(wide, 3))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert repr(np.random.get_state()) == states[1]  # noqa: NPY002  the global generator


@pytest.mark.parametrize("n", [4, 5, 9])
def test_few_examples_and_a_single_feature_are_laid_flat_too(n: int) -> None:
    z = torch.arange(float(n))[:, None]
    flat = compute_tsne(z, 0)
    assert flat.shape == (n, 2)
    assert bool(flat.isfinite().all())
    assert len(flat.unique(dim=0)) == n  # type: ignore[no-untyped-call]  # torch does not annotate it


def test_representations_that_are_all_the_same_lie_on_one_spot() -> None:
    assert not compute_tsne(torch.full((6, 3), 2.5), 0).any()
    split = blobs(12)
    section = build_representation_section({"dead": linear([0.0] * 5)}, split)
    for figure in figures(section):
        assert f"Separation by {figure.title.split()[-1]}: unknown dead." in figure.caption
        assert {v for trace in figure.spec["data"] for v in trace["x"] + trace["y"]} == {0.0}


def test_the_points_are_painted_by_label_and_by_attribute_and_the_numbers_are_those_of_brute_force() -> None:
    split = blobs()
    models = {"all": linear([1.0] * 5), "labels": linear([1.0, 1.0, 1.0, 0.0, 0.0])}
    section = build_representation_section(models, split, seed=2)
    assert "60 of 60 examples" in section.text
    by_label, by_attribute = figures(section)
    for figure, word, number, names in (
        (by_label, "label", split.y, GROUPS.labels),
        (by_attribute, "attribute", split.a, GROUPS.attributes),
    ):
        data = figure.spec["data"]
        assert [trace["name"] for trace in data] == [*names, *names]
        told = []
        for panel, (panel_word, model) in enumerate(models.items()):
            z = rows(split) @ torch.diag(model.backbone.get_parameter("0.weight").detach().diag())
            told.append(f"{brute(z, number):.2f} {panel_word}")
            flat = compute_tsne(z, 2)
            for k, trace in enumerate(data[panel * len(names) : (panel + 1) * len(names)]):
                mine = number == k
                torch.testing.assert_close(torch.tensor(trace["x"]), flat[mine, 0], atol=0.006, rtol=0)
                torch.testing.assert_close(torch.tensor(trace["y"]), flat[mine, 1], atol=0.006, rtol=0)
                assert trace["text"] == [GROUPS.name(int(g)) for g in split.g[mine]]
                assert (trace["xaxis"], trace["yaxis"]) == (("x", "y"), ("x2", "y2"))[panel]
                assert trace["showlegend"] is (panel == 0)
        for words in (figure.caption, figure.alt):
            assert f"Separation by {word}: {', '.join(told)}." in words
        titles = [figure.spec["layout"][axis]["title"]["text"] for axis in ("xaxis", "xaxis2")]
        assert titles == ["all", "labels"]
    # what the backbone drops is gone from the numbers: the attribute is along the fourth axis
    first, second = (float(v) for v in re.findall(r"(-?\d\.\d\d) ", by_attribute.caption.splitlines()[0]))
    assert first > 0.1 > 0.02 > second


def test_panels_lie_side_by_side() -> None:
    layout = clouds._layout_panels(["a", "b", "c"])
    ends = [layout[f"xaxis{n}"]["domain"] for n in ("", "2", "3")]
    assert ends[0][0] == 0.0
    assert ends[2][1] == 1.0
    assert ends[0][1] < ends[1][0] < ends[1][1] < ends[2][0]


def test_colours_and_symbols_tell_64_classes_apart() -> None:
    looks = [(mark["color"], mark["symbol"]) for mark in map(clouds._marker, range(64))]
    assert len(set(looks)) == 64
    assert len(set(looks[:8])) == len({colour for colour, _ in looks[:8]}) == 8


def test_of_many_examples_some_are_drawn_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clouds, "MAX_EXAMPLES", 30)
    split = blobs(90)
    drawn = [build_representation_section({"it": linear([1.0] * 5)}, split, seed=seed) for seed in (0, 0, 1)]
    assert "30 of 90 examples" in drawn[0].text
    counted = [[trace["text"] for trace in figures(section)[0].spec["data"]] for section in drawn]
    assert sum(map(len, counted[0])) == 30
    assert [item.spec for item in figures(drawn[0])] == [item.spec for item in figures(drawn[1])]
    assert figures(drawn[0])[0].spec != figures(drawn[2])[0].spec


def test_attributes_that_are_hidden_overlap_or_stand_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clouds, "compute_tsne", lambda z, _: z[:, :2])
    models, split = {"it": linear([1.0] * 5)}, blobs()
    (only,) = figures(build_representation_section(models, split.hide_attributes()))
    assert only.title == "Colored by label"
    assert only.spec["data"][1]["text"] == ["right"] * 20
    several = Split(split.x, split.y, torch.ones(60, 2).long(), Groups.overlapping(GROUPS.labels, ("red", "blue")))
    assert [figure.title for figure in figures(build_representation_section(models, several))] == ["Colored by label"]
    domains = Split(split.x, split.y, split.a, Groups.domains(GROUPS.labels, ("north", "south")))
    last = figures(build_representation_section(models, domains))[1]
    assert [trace["name"] for trace in last.spec["data"]] == ["north", "south"]
    crossed = Groups.crossed(GROUPS.labels, {"hue": ("red", "blue"), "size": ("big", "small")})
    columns = torch.stack([split.a, 1 - split.a], dim=1)
    last = figures(build_representation_section(models, Split(split.x, split.y, columns, crossed)))[1]
    assert [trace["name"] for trace in last.spec["data"]] == ["red & small", "blue & big"]


def test_a_legend_has_room_for_some_names_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clouds, "compute_tsne", lambda z, _: z[:, :2])
    for n, shown in ((20, True), (21, False)):
        groups = Groups(tuple(map(str, range(n))))
        split = Split(rows(blobs()), torch.arange(60) % n, torch.full((60,), -1), groups)
        (figure,) = figures(build_representation_section({"it": linear([1.0] * 5)}, split))
        assert figure.spec["layout"]["showlegend"] is shown


def test_models_are_left_as_they_were() -> None:
    model = linear([1.0] * 5).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    build_representation_section({"it": model}, blobs(12), device="cpu")
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_cannot_be_drawn_is_said() -> None:
    model = {"it": linear([1.0] * 5)}
    with pytest.raises(InputError, match=r"labels of this split are hidden"):
        build_representation_section(model, blobs().hide_labels())
    with pytest.raises(InputError, match=r"too few examples for t-SNE \(expected at least 4, got 3\)"):
        build_representation_section(model, blobs(3))
    with pytest.raises(InputError, match=r"features of example 0 are not finite"):
        build_representation_section({"it": linear([torch.nan] * 5)}, blobs())


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    from spurless.reporting import write_sections

    section = build_representation_section({HOSTILE: linear([1.0] * 5)}, blobs(12))
    page = write_sections(tmp_path / "page.html", HOSTILE, [section]).read_text()
    assert "<img src=x" not in page
    assert "blue</script>" not in page
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)
    assert found
    charts: dict[str, Any] = json.loads(found[1])
    traces = next(iter(charts.values()))["data"]
    assert traces[0]["name"].startswith("&lt;img src=x")
    assert traces[0]["text"][0].startswith("&lt;img src=x")
    assert traces[0]["hovertemplate"] == "%{text}<extra></extra>"  # no name in a template: %{x} would be filled in
