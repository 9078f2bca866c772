"""Panels of a sweep: means, bands and words that can be checked with a pencil, and what a browser makes of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spurless.core.figures import Figure
from spurless.core.records import Record
from spurless.reporting import report
from spurless.reporting.page import render
from spurless.reporting.sweeps import sweep_sections

Make = Callable[..., Record]
HOSTILE = "</script><script>alert(1)</script>"


def swept(make: Make, lr: str, seed: int, unbiased: float | None, **more: Any) -> Record:
    metrics = {"average": 0.9, "unbiased": unbiased, "worst_group": 0.1, **more.pop("metrics", {})}
    metrics = {"val_average": None} if unbiased is None else metrics
    return make(cell=f"sweep-1 lr={lr}", seed=seed, metrics=metrics, key=f"{lr} {seed}", **more)


def sweep(make: Make) -> list[Record]:
    """Three rates, two seeds: accuracy 50 and 60, 70 and 90, 80 and 80."""
    rows = []
    for lr, accuracies in (("0.001", (0.5, 0.6)), ("0.01", (0.7, 0.9)), ("0.1", (0.8, 0.8))):
        for seed, unbiased in enumerate(accuracies):
            metrics = {
                "prunability": 0.5 + float(lr),
                "prunability_at_0.1": 1.0,
                "prunability_at_0.5": 0.5,
                "magnitude_prunability_at_0.5": 0.25,
                "csi": 0.2,
                "max_loss_ratio": unbiased + 0.05,
                "max_loss_ratio_over_10": -unbiased,
            }
            history = tuple({"epoch": e, "loss": 1.0, "loss_ratio": 0.1 * e} for e in (1, 2, 3))
            rows.append(swept(make, lr, seed, unbiased, metrics=metrics, history=history))
    return rows


def figures(records: list[Record]) -> dict[str, Figure]:
    (section,) = sweep_sections(records)
    return {item.title: item for item in section.items if isinstance(item, Figure)}


def traces(figure: Figure) -> dict[str, Any]:
    return {trace["name"]: trace for trace in figure.spec["data"] if "name" in trace}


def test_every_panel_with_numbers_is_drawn_and_no_other(make: Make) -> None:
    assert list(figures(sweep(make))) == [
        "Accuracy",
        "Prunability",
        "Selectivity of neurons",
        "Accuracy and the highest loss ratio",
        "Loss ratio through training",
        "Accuracy under pruning of nodes and kernels",
        "Accuracy under pruning of single weights",
    ]
    assert list(figures([swept(make, lr, 0, 0.5) for lr in ("1", "2")])) == ["Accuracy"]


def test_lines_are_means_and_bands_reach_from_the_lowest_to_the_highest(make: Make) -> None:
    accuracy = figures(sweep(make))["Accuracy"]
    line = traces(accuracy)["unbiased"]
    assert line["x"] == [0.001, 0.01, 0.1]
    assert line["y"] == pytest.approx([55, 80, 80])
    assert line["text"][1] == "unbiased, 0.01: 80 (70 to 90)"
    band = accuracy.spec["data"][accuracy.spec["data"].index(line) - 1]
    assert band["x"] == [0.001, 0.01, 0.1, 0.1, 0.01, 0.001]
    assert band["y"] == pytest.approx([60, 90, 80, 80, 70, 50])
    assert band["showlegend"] is False
    assert accuracy.spec["layout"]["xaxis"]["type"] == "log"
    assert accuracy.spec["layout"]["xaxis"]["tickvals"] == [0.001, 0.01, 0.1]
    assert set(traces(accuracy)) == {"unbiased", "worst group"}  # the average is another test split's
    assert "unbiased: 55 at 0.001, 80 at 0.01, 80 at 0.1" in accuracy.alt


def test_an_axis_is_logarithmic_only_where_values_grow_tenfold(make: Make) -> None:
    def kind(*values: str) -> str | None:
        rows = [make(cell=f"s momentum={v}", key=v) for v in values]
        found: str | None = figures(rows)["Accuracy"].spec["layout"]["xaxis"].get("type")
        return found

    assert kind("0.1", "0.9") is None
    assert kind("0", "10") is None
    assert kind("1", "10") == "log"
    assert (
        "tickvals"
        not in figures([make(cell=f"s n={n}", key=str(n)) for n in range(9)])["Accuracy"].spec["layout"]["xaxis"]
    )


def test_the_scatter_has_a_dot_per_run_and_the_correlation_of_every_window(make: Make) -> None:
    scatter = figures(sweep(make))["Accuracy and the highest loss ratio"]
    assert traces(scatter)["lr 0.01"]["x"] == pytest.approx([0.75, 0.95])
    assert traces(scatter)["lr 0.01"]["y"] == pytest.approx([70, 90])
    said = "Correlation over runs with the highest ratio: 1.00 of a mini-batch and \u22121.00 of 10 steps."
    assert scatter.caption == said
    same = [swept(make, lr, 0, 0.5, metrics={"max_loss_ratio": 0.5}) for lr in ("1", "2", "3")]
    assert figures(same)["Accuracy and the highest loss ratio"].caption == ""


def test_accuracy_under_pruning_starts_at_the_whole_and_is_the_share_times_it(make: Make) -> None:
    found = figures(sweep(make))
    line = traces(found["Accuracy under pruning of nodes and kernels"])["lr 0.01"]
    assert line["x"] == [0, 10, 50]
    assert line["y"] == pytest.approx([80, 80, 40])
    assert traces(found["Accuracy under pruning of single weights"])["lr 0.01"]["y"] == pytest.approx([80, 20])


def test_every_run_has_a_line_through_training_and_every_value_one_name(make: Make) -> None:
    drawn = figures(sweep(make))["Loss ratio through training"].spec["data"]
    assert len(drawn) == 6
    assert [trace["showlegend"] for trace in drawn] == [True, False] * 3
    assert drawn[0]["x"] == [1, 2, 3]
    assert drawn[0]["y"] == pytest.approx([0.1, 0.2, 0.3])


def used(make: Make, rates: str) -> Figure:
    """The panel of neurons, of two seeds and as many epochs per rate."""
    rows = []
    for k, lr in enumerate(rates.split(), start=1):
        for seed in range(2):
            part = {"spurious_utilisation_10": 0.05, "spurious_utilisation_90": 0.95, "core_utilisation": 0.3}
            history = tuple({"epoch": e, "loss": 1.0, "spurious_utilisation": 0.1 * k * e, **part} for e in (1, 2))
            rows.append(swept(make, lr, seed, 0.5, history=history))
    return figures(rows)["Use of the shortcut by neurons through training"]


def test_the_use_of_both_features_is_drawn_for_every_run(make: Make) -> None:
    drawn = used(make, "0.001 0.1").spec["data"]
    band, spurious, core, second = drawn[:4]
    assert (band["x"], band["y"]) == ([1, 2, 2, 1], [0.95, 0.95, 0.05, 0.05])
    assert (spurious["y"], spurious["line"]["dash"], spurious["showlegend"]) == ([0.1, 0.2], "solid", True)
    assert (core["y"], core["line"]["dash"], core["showlegend"]) == ([0.3, 0.3], "dash", False)
    assert core["line"]["color"] == spurious["line"]["color"] == band["fillcolor"]
    assert second["showlegend"] is False
    assert next(trace["y"] for trace in drawn if trace.get("name") == "lr 0.1") == [0.2, 0.4]
    assert len(drawn) == 2 * (1 + 2 * 2)  # one band per value


def test_of_many_values_no_bands_are_drawn(make: Make) -> None:
    few, many = used(make, "1 2 3"), used(make, "1 2 3 4")
    assert [sum("fill" in trace for trace in figure.spec["data"]) for figure in (few, many)] == [3, 0]
    assert "A band" in few.caption
    assert "A band" not in many.caption


def test_runs_that_do_not_count_are_left_out_and_counted_in_words(make: Make) -> None:
    late = {"train": {"stop_accuracy": 1.0}, "history": ({"epoch": 1, "loss": 0.5, "train_accuracy": 0.9},)}
    rows = [
        *sweep(make),
        swept(make, "1", 0, None),
        swept(make, "1", 1, None),
        swept(make, "0.0001", 0, 0.4, **late),
    ]
    (section,) = sweep_sections(rows)
    assert section.title == "Learning rate: ERM on marked-digits with small-cnn"
    assert section.text.splitlines() == [
        "6 runs over 2 seeds. Lines are means over seeds; a band spans the lowest and the highest run.",
        "Excluded: 2 runs diverged (2 at lr 1); 1 run did not reach the stopping rule (1 at lr 0.0001).",
    ]
    assert traces(figures(rows)["Accuracy"])["unbiased"]["x"] == [0.001, 0.01, 0.1]
    (nothing,) = sweep_sections(rows[6:])
    assert not nothing.items


def test_lines_of_two_parameters_say_which_they_are(make: Make) -> None:
    rows = [make(cell=f"s lr={lr}, l2={l2}", key=f"{lr} {l2}") for lr in (1, 2) for l2 in (0, 0.1)]
    names = set(traces(figures(rows)["Accuracy"]))
    assert names == {"average, l2 0", "average, l2 0.1", "worst group, l2 0", "worst group, l2 0.1"}


def test_the_page_shows_the_panels_and_keeps_the_curves_out_of_the_table(make: Make) -> None:
    page = render(sweep(make))
    assert "Learning rate: ERM on marked-digits" in page
    table = page[page.index('id="averages-0"') : page.index('id="labels-0"')]
    assert ">Prunability<" in table.replace("\n", "")
    assert "prunability at" not in table
    assert "Learning rate:" not in render([make()])


def test_hostile_names_stay_text(make: Make) -> None:
    rows = [make(HOSTILE, cell=f"{HOSTILE.replace(' ', '')} lr={v}", key=v) for v in (HOSTILE.replace("=", ""), "2")]
    page = render(rows)
    assert HOSTILE not in page
    charts = json.loads(page.split('id="charts">')[1].split("</script>")[0])
    assert all("<script" not in json.dumps(chart) for chart in charts.values())


@pytest.mark.slow
def test_a_browser_draws_every_panel(make: Make, browser: Any, tmp_path: Path) -> None:
    path = report(tmp_path / "page.html", sweep(make))
    for width in (1200, 400):
        page = browser.new_page(viewport={"width": width, "height": 900})
        trouble: list[str] = []
        page.on("pageerror", lambda error, trouble=trouble: trouble.append(str(error)))
        page.goto(path.as_uri())
        if page.locator(".draw").count():
            page.locator(".draw .main-svg").first.wait_for(state="attached")  # Plotly is unpacked after the load
        page.wait_for_function(
            "document.querySelectorAll('section[aria-labelledby=section-0] .draw svg.main-svg').length"
        )
        page.wait_for_timeout(300)
        section = page.locator("section[aria-labelledby=section-0]")
        assert section.locator(".draw").count() == 7
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert trouble == []
        page.close()
