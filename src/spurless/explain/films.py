"""Films: what a model made of the plane, epoch by epoch, as small multiples, moving, and as lines; figure 1 of AVP.

Malik and Fern, "Frequency based pruning improves latent identification and generalization". A row is a method on its
data, a column an epoch. As in the paper, circles are test examples in the colour of their class, and crosses are
training examples with a wrong label in the colour of that label: a model has learnt a wrong label by heart where the
ground under a cross has the cross's colour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spurless.core.errors import BadInput
from spurless.core.figures import Figure, Picture, Section
from spurless.core.files import replace_file
from spurless.core.progress import teller
from spurless.data.grouped import Splits
from spurless.explain.boundaries import Film, Frame, plane_of, wrong_labels
from spurless.explain.panels import Panel, encode, encode_moving, in_one_palette, sheet

if TYPE_CHECKING:
    from PIL.Image import Image

SMALL = 300
"""pixels of a panel that moves"""
TICK, REST = 90, 1800
"""milliseconds of a moving picture: of every frame, and of the last"""


def boundary_section(films: Mapping[str, Film], columns: int = 6) -> Section:
    """Return figure 1: a row per film, by its name, and a column per epoch, as far apart as they can be.

    Raises:
        BadInput: there is no film, or the films were not taken at the same epochs.
    """
    epochs = _epochs(films)
    count = max(1, min(columns, len(epochs)))
    chosen = [round(i * (len(epochs) - 1) / max(1, count - 1)) for i in range(count)]
    shown = {name: replace(each, frames=tuple(each.frames[i] for i in chosen)) for name, each in films.items()}
    numbers = [f"{name}: {_told(each)}." for name, each in shown.items()]
    lines = [f"From left to right: epoch {', '.join(str(epochs[i]) for i in chosen)}. Numbers in %.", *numbers]
    picture = Picture(
        f"Epochs {epochs[0]} to {epochs[-1]}" if count > 1 else f"Epoch {epochs[0]}",
        "\n".join(lines),
        encode(_sheet(shown)),
        f"The class that each model says everywhere in the plane. Rows: {', '.join(shown)}. {' '.join(lines)}",
    )
    text = (
        "The ground is coloured by the class that the model says there. Circles are test examples in the colour of "
        "their class; crosses are training examples with a wrong label, in the colour of that label. A wrong label is "
        "obeyed where the ground under a cross has its colour."
    )
    return Section("Decision boundaries", text, (picture,))


def animation(films: Mapping[str, Film], plays: int = 2) -> Picture:
    """Return all frames as one moving picture, the films side by side: a PNG that plays so often and then rests.

    Raises:
        BadInput: there is no film, the films were not taken at the same epochs, or ``plays`` is not positive.
    """
    images, times = _moving(films, plays)
    epochs, often = _epochs(films), {1: "once", 2: "twice"}.get(plays, f"{plays} times")
    ends = [f"{name}: {_told(replace(each, frames=each.frames[-1:]))}." for name, each in films.items()]
    return Picture(
        f"From epoch {epochs[0]} to epoch {epochs[-1]}",
        f"{len(images)} frames; it plays {often} and rests at the end.",
        encode_moving(images, times, plays),
        f"A moving picture of the boundaries, side by side: {', '.join(films)}. At the end, in %: {' '.join(ends)}",
    )


def save_gif(path: Path | str, films: Mapping[str, Film], plays: int = 2) -> Path:
    """Write the moving picture as a GIF, for places that show no animated PNG; whole or not at all.

    Raises:
        BadInput: as for :func:`animation`, or the place cannot be written.
    """
    images, times = _moving(films, plays)
    repeats = {} if plays == 1 else {"loop": plays - 1}  # a GIF counts what comes after the first time
    options: dict[str, Any] = {"append_images": images[1:], "duration": times, **repeats}
    path = Path(path)
    replace_file(path, lambda scratch: images[0].save(scratch, "GIF", save_all=True, **options))
    return path


def curves(film: Film, title: str) -> Figure:
    """Draw accuracy on the test split, the share of wrong labels obeyed, and sparsity over the epochs."""
    epochs = [frame.epoch for frame in film.frames]
    parts: dict[str, tuple[list[float], str, str]] = {
        "accuracy on test": ([frame.accuracy for frame in film.frames], "@arm1", "solid"),
        "wrong labels obeyed": ([f.obeyed for f in film.frames if f.obeyed is not None], "@arm2", "dash"),
        "sparsity": ([frame.sparsity for frame in film.frames], "@arm0", "dot"),
    }
    traces: list[dict[str, Any]] = []
    told = []
    for word, (values, colour, dash) in parts.items():
        if not values:
            continue
        known = [100 * value for value in values]
        look = {"mode": "lines", "line": {"color": colour, "dash": dash, "width": 2}}
        hover = f"{word} %{{y:.1f}} %, epoch %{{x}}<extra></extra>"
        traces.append({"x": epochs, "y": known, "name": word, "hovertemplate": hover, **look})
        told.append(f"{word} {known[0]:.1f} and {known[-1]:.1f} %")
    layout = {"xaxis": {"title": {"text": "epoch"}}, "yaxis": {"title": {"text": "%"}, "range": [-2, 102]}}
    said = f"At epochs {epochs[0]} and {epochs[-1]}: {'; '.join(told)}."
    return Figure(title, said, {"data": traces, "layout": layout}, f"{title}, three lines over the epochs. {said}", 280)


def _sheet(films: Mapping[str, Film]) -> Image:
    return sheet(
        {
            name: [_panel(each.data, frame, f"epoch {frame.epoch}") for frame in each.frames]
            for name, each in films.items()
        }
    )


def _moving(films: Mapping[str, Film], plays: int) -> tuple[list[Image], list[int]]:
    """Return the images, and how long each is shown."""
    if plays < 1:
        raise BadInput("a moving picture plays at least once", got=plays)
    epochs, images = _epochs(films), []
    done = teller("frames", len(epochs))
    for i, epoch in enumerate(epochs):
        row = [_panel(each.data, each.frames[i], name) for name, each in films.items()]
        images.append(sheet({f"epoch {epoch} of {epochs[-1]}": row}, SMALL))
        done(i + 1)
    return in_one_palette(images), [TICK] * (len(images) - 1) + [REST]


def _panel(data: Splits, frame: Frame, above: str) -> Panel:
    wrong = wrong_labels(data.train)
    obeyed = "" if frame.obeyed is None else f"obeyed {100 * frame.obeyed:.0f} %"
    return Panel(
        frame.classes,
        frame.low,
        frame.high,
        plane_of(data.test),
        data.test.y.cpu(),
        plane_of(wrong),
        wrong.y.cpu(),
        above,
        (f"accuracy {100 * frame.accuracy:.1f} %", *filter(None, [obeyed]), f"sparsity {100 * frame.sparsity:.0f} %"),
    )


def _told(film: Film) -> str:
    """Say the numbers of some frames, in percent."""
    listed = {
        "accuracy": [f"{100 * frame.accuracy:.1f}" for frame in film.frames],
        "wrong labels obeyed": [f"{100 * frame.obeyed:.0f}" for frame in film.frames if frame.obeyed is not None],
        "sparsity": [f"{100 * frame.sparsity:.0f}" for frame in film.frames],
    }
    return "; ".join(f"{word} {', '.join(values)}" for word, values in listed.items() if values)


def _epochs(films: Mapping[str, Film]) -> list[int]:
    """Return at which epochs all films have a frame."""
    found = {name: [frame.epoch for frame in each.frames] for name, each in films.items()}
    first = next(iter(found.values()), [])
    if not first:
        raise BadInput("there is no frame to draw", expected="at least one film with frames")
    other = next((name for name, epochs in found.items() if epochs != first), None)
    if other is not None:
        raise BadInput(f"the film {other!r} has frames of other epochs than the first", do="Take all films alike.")
    return first
