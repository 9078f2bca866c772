"""Tests of sections: a caller's chart lies over the layout of the house, and no string of it is more than text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spurless.core.errors import InputError
from spurless.core.figures import Figure, Picture, Section
from spurless.reporting.charts import base_layout
from spurless.reporting.sections import figure_context, picture_context, section_contexts

HOSTILE = "</script><b>x</b> & <a href='javascript:alert(1)'>y</a>"


def figure(*data: dict[str, Any], **layout: Any) -> Figure:
    return Figure("t", "c", {"data": list(data), "layout": layout}, "a")


def test_the_house_lies_under_what_the_caller_gives() -> None:
    made = figure_context(figure({"x": [1], "y": [2]}, xaxis={"title": "dose", "gridcolor": "red"}, margin={"l": 99}))
    layout = made["spec"]["layout"]
    assert layout["xaxis"]["title"] == {"standoff": 8, "text": "dose"}  # a bare title is in today's form
    assert layout["xaxis"]["gridcolor"] == "red"
    assert layout["yaxis"]["gridcolor"] == "@grid"
    assert layout["margin"] == {"l": 99, "r": 22, "t": 8, "b": 44}
    assert layout["font"] == base_layout()["font"]
    assert layout["paper_bgcolor"] == "@clear"


def test_further_axes_look_like_the_first() -> None:
    layout = figure_context(figure({"y": [1]}, yaxis2={"overlaying": "y"}))["spec"]["layout"]
    assert layout["yaxis2"] == layout["yaxis"] | {"overlaying": "y"}


def test_there_is_a_legend_where_there_are_two_names() -> None:
    one, two = {"y": [1], "name": "a"}, {"y": [1], "name": "b"}
    assert [figure_context(f)["spec"]["layout"]["showlegend"] for f in (figure(one), figure(one, two))] == [False, True]
    assert not figure_context(figure(one, two, showlegend=False))["spec"]["layout"]["showlegend"]


def test_no_string_of_a_chart_is_markup() -> None:
    trace = {"x": [HOSTILE], "y": [1], "name": HOSTILE, "text": [HOSTILE], "customdata": [[HOSTILE]]}
    made = figure_context(figure(trace, title=HOSTILE, annotations=[{"text": HOSTILE}], xaxis={"ticktext": [HOSTILE]}))
    text = json.dumps(made["spec"])
    assert "<" not in text
    assert text.count("&lt;b&gt;x&lt;/b&gt; &amp; ") == 7


def test_in_a_template_plotlys_own_marks_stay() -> None:
    (trace,) = figure_context(figure({"y": [1], "hovertemplate": "<b>n</b><br>%{y}<extra></extra>"}))["spec"]["data"]
    assert trace["hovertemplate"] == "&lt;b&gt;n&lt;/b&gt;<br>%{y}<extra></extra>"


def test_numbers_become_plain_and_what_is_none_is_a_gap() -> None:
    trace = {"x": (1, np.int64(2)), "y": [np.float32(0.5), float("nan")], "visible": True, "z": None}
    (made,) = figure_context(figure(trace))["spec"]["data"]
    assert made == {"x": [1, 2], "y": [0.5, None], "visible": True, "z": None}
    assert json.dumps(made, allow_nan=False)


def test_the_callers_specification_is_left_alone() -> None:
    spec = {"data": [{"y": [float("inf")], "name": "<"}], "layout": {"xaxis": {"title": "t"}}}
    figure_context(Figure("t", "c", spec, "a"))
    assert spec == {"data": [{"y": [float("inf")], "name": "<"}], "layout": {"xaxis": {"title": "t"}}}


@pytest.mark.parametrize("spec", [{}, {"data": []}, {"data": None}, {"data": [{}]}, {"data": "x"}, {"layout": {}}])
def test_a_chart_without_data_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(
        InputError, match=r"figure 'empty': the specification has no data \(expected .*Leave the figure"
    ):
        figure_context(Figure("empty", "c", spec, "a"))


def test_what_json_has_no_word_for_is_refused() -> None:
    with pytest.raises(InputError, match=r"figure 't': the specification contains a ndarray under 'y' .*\.tolist\(\)"):
        figure_context(figure({"y": np.zeros(3)}))


def test_captions_keep_their_lines(pixel: bytes) -> None:
    assert picture_context(Picture("t", "1: a\n\n2:\tb", pixel, "alt"))["caption"] == "1: a\n2: b"


def test_a_picture_that_is_no_png_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"picture 'cow': the picture is not a PNG. Save it as PNG."):
        section_contexts([Section("s", "", [Picture("cow", "c", b"GIF89a", "a")])])
    with pytest.raises(InputError, match=r"none\.png: the picture cannot be read: No such file"):
        picture_context(Picture("cow", "c", tmp_path / "none.png", "a"))


def test_sections_keep_their_order_and_their_items(pixel: bytes) -> None:
    mixed: list[Picture | Figure] = [Picture("p", "c", pixel, "a"), figure({"y": [1]}), Picture("q", "c", pixel, "a")]
    first, second = section_contexts([Section("one", "a\nb", mixed), Section("two", "")])
    assert [part["kind"] for part in first["parts"]] == ["picture", "chart", "picture"]
    assert (first["id"], second["id"], first["text"], second["text"]) == ("section-0", "section-1", ["a", "b"], [])


def test_long_and_steering_names_are_tamed() -> None:
    long, steering = {"y": [1], "name": "x" * 10_000}, {"y": [1], "name": "a\u202eb"}
    names = [trace["name"] for trace in figure_context(figure(long, steering))["spec"]["data"]]
    assert (len(names[0]), names[1]) == (400, "ab")
