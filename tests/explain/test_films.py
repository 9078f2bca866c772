"""Films: the numbers of the frames in captions and lines, as many frames as there are, and pages that take them."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spurless.core.errors import BadInput
from spurless.core.figures import Picture, Section
from spurless.core.progress import listening
from spurless.data import load
from spurless.data.grouped import Splits
from spurless.explain.boundaries import Film, Frame
from spurless.explain.films import REST, TICK, animation, boundary_section, curves, save_gif
from spurless.explain.panels import COLOURS, SOFT
from spurless.reporting.page import write_sections
from spurless.reporting.sections import shown_figure

CORNERS = (-2.0, -2.0), (2.0, 2.0)


@pytest.fixture(scope="module")
def data() -> Splits:
    return load("gaussians", per_class=3, mislabelled=1, test_per_class=2)


def made(data: Splits, count: int, every: int = 10, obeyed: bool = True) -> Film:
    """Frames whose numbers tell which one they are: frame i says class i everywhere."""
    return Film(
        data,
        tuple(
            Frame(
                every * i,
                torch.full((4, 4), i % 5),
                *CORNERS,
                accuracy=0.9 - i / 100,
                obeyed=1 - i / 10 if obeyed else None,
                sparsity=i / 20,
            )
            for i in range(count)
        ),
    )


def picture_of(section: Section) -> Picture:
    (picture,) = section.items
    assert isinstance(picture, Picture)
    return picture


def opened(png: bytes | Path | str) -> Any:
    return Image.open(BytesIO(png if isinstance(png, bytes) else Path(png).read_bytes()))


def grounds(image: Image.Image) -> list[int]:
    """The classes whose soft colour covers at least a hundredth of the image, in order from left to right."""
    pixels = np.asarray(image.convert("RGB")).astype(int)
    found = {}
    for k in range(5):
        soft = [round(255 - SOFT * (255 - channel)) for channel in COLOURS[k]]
        mine = (abs(pixels - np.array(soft)) <= 1).all(axis=2)
        if mine.mean() > 0.01:
            found[int(np.flatnonzero(mine.any(axis=0))[0])] = k
    return [found[left] for left in sorted(found)]


def test_a_section_has_columns_as_far_apart_as_they_can_be(data: Splits) -> None:
    picture = picture_of(boundary_section({"one <b>": made(data, 5), "two": made(data, 5)}, columns=3))
    assert picture.caption.splitlines() == [
        "From left to right: epoch 0, 20, 40. Numbers in %.",
        "one <b>: accuracy 90.0, 88.0, 86.0; wrong labels obeyed 100, 80, 60; sparsity 0, 10, 20.",
        "two: accuracy 90.0, 88.0, 86.0; wrong labels obeyed 100, 80, 60; sparsity 0, 10, 20.",
    ]
    assert picture.title == "Epochs 0 to 40"
    assert all(line in picture.alt for line in picture.caption.splitlines())
    assert grounds(opened(picture.png)) == [0, 2, 4]


def test_few_frames_are_all_shown_once(data: Splits) -> None:
    assert grounds(opened(picture_of(boundary_section({"a": made(data, 2)})).png)) == [0, 1]
    alone = picture_of(boundary_section({"a": made(data, 4)}, columns=1))
    assert (alone.title, grounds(opened(alone.png))) == ("Epoch 0", [0])


def test_films_without_wrong_labels_do_not_speak_of_them(data: Splits) -> None:
    clean = made(data, 3, obeyed=False)
    assert "obeyed" not in picture_of(boundary_section({"a": clean})).caption
    figure = curves(clean, "a")
    assert [trace["name"] for trace in figure.spec["data"]] == ["accuracy on test", "sparsity"]


def test_an_animation_has_a_frame_per_frame_and_rests_at_the_end(data: Splits) -> None:
    films = {"left": made(data, 4), "right": made(data, 4)}
    heard: list[tuple[str, int, int, str]] = []
    with listening(lambda *told: heard.append(told)):
        picture = animation(films, plays=3)
    moving = opened(picture.png)
    assert moving.n_frames == 4
    assert moving.info["loop"] == 3
    for i in range(4):
        moving.seek(i)
        assert grounds(moving) == [i]
        assert moving.info["duration"] == (REST if i == 3 else TICK)
    assert picture.caption == "4 frames; it plays 3 times and rests at the end."
    assert "At the end, in %: left: accuracy 87.0; wrong labels obeyed 70; sparsity 15. right: " in picture.alt
    short = {"a": made(data, 1)}
    assert [animation(short, plays=n).caption.split()[4] for n in (1, 2)] == ["once", "twice"]


def test_frames_that_differ_by_their_epoch_alone_are_all_kept(data: Splits) -> None:
    first = made(data, 1).frames[0]
    same = Film(data, tuple(Frame(i, first.classes, *CORNERS, 0.5, 0.5, 0.5) for i in range(3)))
    assert opened(animation({"same": same}).png).n_frames == 3


@pytest.mark.parametrize(("plays", "loop"), [(1, None), (3, 2)])
def test_a_gif_has_the_same_frames(data: Splits, tmp_path: Path, plays: int, loop: int | None) -> None:
    path = save_gif(tmp_path / "new" / "film.gif", {"a": made(data, 4)}, plays)
    moving = opened(path)
    assert (moving.format, moving.n_frames, moving.info.get("loop")) == ("GIF", 4, loop)
    for i in range(4):
        moving.seek(i)
        assert grounds(moving) == [i]
        assert moving.info["duration"] == (REST if i == 3 else TICK)
    assert [each.name for each in path.parent.iterdir()] == ["film.gif"]


def test_lines_are_percent_over_epochs(data: Splits) -> None:
    figure = curves(made(data, 3), "AVP")
    accuracy, obeyed, zeros = figure.spec["data"]
    assert accuracy["x"] == obeyed["x"] == zeros["x"] == [0, 10, 20]
    assert accuracy["y"] == pytest.approx([90, 89, 88])
    assert obeyed["y"] == pytest.approx([100, 90, 80])
    assert zeros["y"] == pytest.approx([0, 5, 10])
    assert len({trace["line"]["dash"] for trace in (accuracy, obeyed, zeros)}) == 3  # not by colour alone
    said = "At epochs 0 and 20: accuracy on test 90.0 and 88.0 %; wrong labels obeyed 100.0 and 80.0 %"
    assert said in figure.caption
    assert said in figure.alt
    assert shown_figure(figure)["title"] == "AVP"


def test_a_page_takes_all_of_it(data: Splits, tmp_path: Path) -> None:
    films = {"AVP": made(data, 3)}
    sections = [
        boundary_section(films),
        Section("Moving", "It moves.", [animation(films), curves(films["AVP"], "AVP")]),
    ]
    text = write_sections(tmp_path / "page.html", "Films", sections).read_text()
    assert text.count('<img src="data:image/png;base64,') == 2
    assert "wrong labels obeyed 100, 90, 80" in text


@pytest.mark.parametrize("show", [boundary_section, animation, lambda films: save_gif("never.gif", films)])
def test_films_that_do_not_go_together_are_refused(data: Splits, show: Any) -> None:
    with pytest.raises(BadInput, match=r"the film 'b' has frames of other epochs than the first. Take all films alike"):
        show({"a": made(data, 3), "b": made(data, 3, every=5)})
    for empty in ({}, {"a": Film(data, ())}):
        with pytest.raises(BadInput, match=r"there is no frame to draw \(expected at least one film with frames\)"):
            show(empty)
    assert not Path("never.gif").exists()


def test_a_moving_picture_plays_at_least_once(data: Splits) -> None:
    with pytest.raises(BadInput, match=r"a moving picture plays at least once \(got 0\)"):
        animation({"a": made(data, 2)}, plays=0)
