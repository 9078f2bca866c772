"""Charts of findings: values and intervals lie where they belong, and pictures need rows and a gradient."""

import torch
from torch import nn

from spurless.auditing._context import AuditContext
from spurless.auditing._figures import Axis, Series, bars, image_rows
from spurless.core.groups import Groups
from spurless.data.split import Split
from spurless.models.wrapping import wrap

TEXT = ("Title", "Caption.")


def test_vertical_bars_are_grouped_with_their_intervals() -> None:
    rows = [
        Series("one", [1.0, 2.0], "@bad", [0.5, 1.0], [2.0, 4.0]),
        Series("two", [3.0, 4.0], "@ink", kind="markers"),
    ]
    chart = bars(TEXT, ["a", "b"], rows, values=Axis("accuracy", (0, 100)), category_title="class")
    first, second = chart.spec["data"]
    assert (first["type"], first["x"], first["y"], first["marker"]) == (
        "bar",
        ["a", "b"],
        [1.0, 2.0],
        {"color": "@bad"},
    )
    assert (first["error_y"]["array"], first["error_y"]["arrayminus"]) == ([1.0, 2.0], [0.5, 1.0])
    assert (second["type"], second["mode"]) == ("scatter", "markers")
    assert chart.spec["layout"]["barmode"] == "group"
    assert chart.spec["layout"]["yaxis"] == {"title": {"text": "accuracy"}, "range": [0, 100]}
    assert chart.spec["layout"]["xaxis"] == {"title": {"text": "class"}, "type": "category"}
    assert (chart.title, chart.caption) == TEXT
    assert chart.alt == "Bars, accuracy. one: a 1, b 2; two: a 3, b 4."


def test_horizontal_bars_begin_at_the_top_and_grow_with_their_number() -> None:
    few, many = (
        bars(TEXT, names, [Series("n", [1.0] * len(names), "@bad")], values=Axis("n", "tozero"), horizontal=True)
        for names in (["1", "2"], [str(number) for number in range(12)])
    )
    (trace,) = few.spec["data"]
    assert (trace["orientation"], trace["x"], trace["y"]) == ("h", [1.0, 1.0], ["1", "2"])
    assert few.spec["layout"]["yaxis"]["autorange"] == "reversed"
    assert few.spec["layout"]["yaxis"]["type"] == "category"  # names of digits are not numbers
    assert few.spec["layout"]["xaxis"]["rangemode"] == "tozero"
    assert many.height == few.height + 260


def context(model: nn.Module) -> AuditContext:
    split = Split(torch.rand(6, 1, 4, 4), torch.arange(6) % 2, torch.full((6,), -1), Groups(("no", "yes")))
    return AuditContext(wrap(model), split, torch.zeros(6, 16), torch.zeros(6, 2))


class Detached(nn.Flatten):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).detach()


def test_images_need_rows_and_a_gradient() -> None:
    whole = context(nn.Sequential(nn.Flatten(), nn.Linear(16, 2)))
    (picture,) = image_rows(whole, [3, 1], "Two images")
    assert picture.title == "Two images"
    assert image_rows(whole, [], "None") == ()
    assert image_rows(context(nn.Sequential(Detached(), nn.Linear(16, 2))), [3, 1], "Two images") == ()
