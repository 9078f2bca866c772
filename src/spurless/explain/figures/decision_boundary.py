"""Decision boundaries of a model in the plane over the epochs of a training (figure 1 of AVP).

Malik and Fern, "Frequency based pruning improves latent identification and generalization". Areas are colored by the
predicted class. As in the paper, circles are test examples in the color of their class, and crosses are training
examples with a wrong label in the color of that label: a model fits a wrong label if the area under a cross has the
color of the cross.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError, first_line
from spurless.core.figures import Figure, Section
from spurless.core.modules import eval_mode
from spurless.data.split import Split, Splits
from spurless.models.classifier import Classifier, copy_module, device_of
from spurless.models.pruning.masks import sparsity
from spurless.models.wrapping import wrap
from spurless.train.evaluate import predict
from spurless.train.run import Run

Point: TypeAlias = tuple[float, float]
GRID_SIZE = 100  # cells along each side of the plane
CORRUPTED = "corrupted"  # attribute of training examples with a wrong label
COLOURS = [f"@series{i}" for i in (1, 2, 3, 4, 5, 6, 0)]
PANEL_HEIGHT = 240


class HasFit(Protocol):
    """The part of a method that :func:`record_boundaries` needs."""

    @property
    def info(self) -> Any:
        """The labels it declares."""

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train ``model`` on ``data``."""


@dataclass(frozen=True)
class BoundaryFrame:
    """The predictions of a model after an epoch."""

    epoch: int  # from 1; 0 is the model before training
    classes: Tensor  # predicted class of every cell, ``(size, size)``, bottom row first
    accuracy: float  # on the test split
    fitted_wrong: float | None  # fraction of wrong training labels that the model predicts; None without wrong labels
    sparsity: float


@dataclass(frozen=True)
class BoundaryHistory:
    """The frames of one training, the corners of its plane and its data."""

    data: Splits
    low: Point
    high: Point
    frames: tuple[BoundaryFrame, ...]


class BoundaryRecorder:
    """Epoch callback that records the predictions of a model in the plane of two features."""

    def __init__(self, data: Splits, interval: int = 1, size: int = GRID_SIZE) -> None:
        if interval < 1:
            raise InputError("the number of epochs between two frames must be positive", got=interval)
        self.data, self.interval, self.size = data, interval, size
        self.epoch = 0
        self.frames: list[BoundaryFrame] = []
        self.skipped: nn.Module | None = None
        self.wrong = select_wrong_labels(data.train)
        x = torch.cat([check_plane(data.train), check_plane(data.test)])
        low, high = x.amin(dim=0), x.amax(dim=0)
        margin = 0.04 * (high - low).clamp(min=1e-6)
        self.low, self.high = _to_point(low - margin), _to_point(high + margin)

    def __call__(self, model: nn.Module, _step: int = 0) -> None:
        """Count an epoch, and record a frame if one is due."""
        self.epoch += 1
        self.skipped = None if self.epoch % self.interval == 0 else copy_module(model)
        if self.skipped is None:
            self.record(model)

    def record(self, model: nn.Module) -> None:
        """Add a frame of the current epoch."""
        device = device_of(model)

        def accuracy(split: Split) -> float:
            return float((predict(model, split, device) == split.y.cpu()).double().mean())

        classes = predict_plane(model, self.low, self.high, self.size)
        fitted_wrong = accuracy(self.wrong) if len(self.wrong) else None
        frame = BoundaryFrame(self.epoch, classes, accuracy(self.data.test), fitted_wrong, sparsity(model))
        self.frames.append(frame)

    def finish(self) -> BoundaryHistory:
        """Return all frames; the last epoch is among them."""
        if self.skipped is not None:
            self.record(self.skipped)
        return BoundaryHistory(self.data, self.low, self.high, tuple(self.frames))


def record_boundaries(method: HasFit, model: nn.Module, data: Splits, run: Run, interval: int = 20) -> BoundaryHistory:
    """Fit a method and record frames of the starting point, of every ``interval``-th epoch and of the last epoch.

    The starting point is copied, not changed; a method that repairs a model needs a trained one. The method gets the
    labels that it declares, and never the test split.

    Raises:
        InputError: the model or the data do not have two features, the run has checkpoints, or the method trains
            without epochs.
    """
    check_arguments(record_boundaries, locals())
    if run.checkpoints is not None:
        raise InputError("a resumed run has no frames of earlier epochs", hint="Start the run without checkpoints.")
    recorder, start_model = BoundaryRecorder(data, interval), copy_module(wrap(model)).to(run.device)
    recorder.record(start_model)
    declared = {name: getattr(method.info, name) for name in ("train_attributes", "val_labels", "val_attributes")}
    method.fit(start_model, data.visible(**declared), replace(run, on_epoch_end=recorder))
    if not recorder.epoch:
        raise InputError(f"{method.info.name} trains without epochs, so there are no frames")
    return recorder.finish()


@torch.no_grad()
def predict_plane(model: nn.Module, low: Point, high: Point, size: int = GRID_SIZE) -> Tensor:
    """Return the predicted class at the center of every cell of a grid, ``(size, size)``, bottom row first.

    Raises:
        InputError: the model does not take two features, or the corners do not span a plane.
    """
    check_arguments(predict_plane, locals())
    if not (low[0] < high[0] and low[1] < high[1] and size > 0):
        raise InputError(
            "the corners do not span a plane", expected="bottom left, top right", got=f"{low}, {high}, {size}"
        )
    x, y = (torch.tensor(centers, dtype=torch.double) for centers in _cell_centers(low, high, size))
    grid = torch.cartesian_prod(y, x).flip(1).float()
    name = getattr(model, "name", type(model).__name__)
    with eval_mode(model):
        try:
            logits: Tensor = model(grid.to(device_of(model)))
        except RuntimeError as error:
            raise InputError(f"{name} does not take rows of two features: {first_line(error)}") from None
    if logits.dim() != 2:
        raise InputError(f"{name} does not return logits", expected=f"({size**2}, classes)", got=tuple(logits.shape))
    return logits.argmax(dim=1).view(size, size).cpu()


def select_wrong_labels(train: Split) -> Split:
    """Return the training examples that are known to have a wrong label."""
    names = train.groups.attributes
    if CORRUPTED not in names:
        return train.select(torch.empty(0, dtype=torch.long))
    return train.select(train.column(CORRUPTED).a == 1 if train.groups.overlap else train.a == names.index(CORRUPTED))


def check_plane(split: Split) -> Tensor:
    """Return the coordinates of the examples, ``(N, 2)``."""
    x = split.x
    if not isinstance(x, Tensor) or x.dim() != 2 or x.shape[1] != 2:
        raise InputError(
            "the examples are not points in a plane",
            expected="rows of two features",
            got=f"examples of shape {tuple(x.shape[1:])}" if isinstance(x, Tensor) else "texts or streamed examples",
        )
    if split.transform is not None:
        raise InputError("the examples are transformed, so their plane is not the plane of the model's input")
    return x.float().cpu()


def build_boundary_section(histories: Mapping[str, BoundaryHistory], columns: int = 6) -> Section:
    """Return the paper's figure 1, a row per training and a column per epoch, and a figure with a slider of epochs.

    Raises:
        InputError: there is no frame, or the trainings were recorded at different epochs.
    """
    check_arguments(build_boundary_section, locals())
    epochs = _check_epochs(histories)
    count = max(1, min(columns, len(epochs)))
    chosen = [round(i * (len(epochs) - 1) / max(1, count - 1)) for i in range(count)]
    numbers = [f"{name}: {_format_numbers(history, chosen)}." for name, history in histories.items()]
    caption = "\n".join([f"From left to right: epoch {', '.join(str(epochs[i]) for i in chosen)}. In %.", *numbers])
    rows = [
        [(history, i, f"{name + ', ' if i == chosen[0] else ''}epoch {epochs[i]}") for i in chosen]
        for name, history in histories.items()
    ]
    grid = Figure(
        f"Epochs {epochs[chosen[0]]} to {epochs[chosen[-1]]}",
        caption,
        _draw_panels(rows),
        f"Predicted class in the plane. Rows: {', '.join(histories)}. {caption}",
        PANEL_HEIGHT * len(rows),
    )
    text = (
        "Areas have the color of the predicted class. Circles are test examples in the color of their class; crosses "
        "are training examples with a wrong label, in the color of that label. A wrong label is fitted if the area "
        "under its cross has the same color."
    )
    return Section("Decision boundaries", text, (grid, plot_boundary_slider(histories)))


def plot_boundary_slider(histories: Mapping[str, BoundaryHistory]) -> Figure:
    """Return one panel per training, with a slider that selects the epoch.

    Raises:
        InputError: there is no frame, or the trainings were recorded at different epochs.
    """
    check_arguments(plot_boundary_slider, locals())
    epochs = _check_epochs(histories)
    spec = _draw_panels([[(history, 0, name) for name, history in histories.items()]])
    areas = [i for i, trace in enumerate(spec["data"]) if trace["type"] == "contour"]
    runs = histories.values()
    steps = [
        {
            "label": str(epoch),
            "method": "restyle",
            "args": [{"z": [run.frames[i].classes.tolist() for run in runs]}, areas],
        }
        for i, epoch in enumerate(epochs)
    ]
    spec["layout"]["sliders"] = [{"active": 0, "currentvalue": {"prefix": "epoch "}, "steps": steps, "pad": {"t": 24}}]
    last = [len(epochs) - 1]
    numbers = " ".join(f"{name}: {_format_numbers(history, last)}." for name, history in histories.items())
    return Figure(
        f"From epoch {epochs[0]} to epoch {epochs[-1]}",
        f"{len(epochs)} frames; move the slider to change the epoch.",
        spec,
        f"Decision boundaries side by side: {', '.join(histories)}. After the last epoch, in %: {numbers}",
        PANEL_HEIGHT + 160,
    )


def plot_boundary_curves(history: BoundaryHistory, title: str) -> Figure:
    """Return test accuracy, the fraction of fitted wrong labels, and sparsity over the epochs."""
    check_arguments(plot_boundary_curves, locals())
    frames = history.frames
    epochs = [frame.epoch for frame in frames]
    fitted_wrong = [frame.fitted_wrong for frame in frames if frame.fitted_wrong is not None]
    curves: dict[str, tuple[list[float], str, str]] = {
        "test accuracy": ([frame.accuracy for frame in frames], "@series1", "solid"),
        "wrong labels fitted": (fitted_wrong, "@series2", "dash"),
        "sparsity": ([frame.sparsity for frame in frames], "@series0", "dot"),
    }
    traces: list[dict[str, Any]] = []
    ends = []
    for name, (values, colour, dash) in curves.items():
        if not values:
            continue
        percent = [100 * value for value in values]
        style = {"mode": "lines", "line": {"color": colour, "dash": dash, "width": 2}}
        hover = f"{name} %{{y:.1f}} %, epoch %{{x}}<extra></extra>"
        traces.append({"x": epochs, "y": percent, "name": name, "hovertemplate": hover, **style})
        ends.append(f"{name} {percent[0]:.1f} and {percent[-1]:.1f} %")
    layout = {"xaxis": {"title": {"text": "epoch"}}, "yaxis": {"title": {"text": "%"}, "range": [-2, 102]}}
    caption = f"At epochs {epochs[0]} and {epochs[-1]}: {'; '.join(ends)}."
    return Figure(title, caption, {"data": traces, "layout": layout}, f"{title}, lines over the epochs. {caption}", 280)


def _draw_panels(rows: list[list[tuple[BoundaryHistory, int, str]]]) -> dict[str, Any]:
    """Return a specification with a panel per (history, index of the frame, title)."""
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"showlegend": False, "annotations": []}
    gap = 0.02
    for row, panels in enumerate(rows):
        top, bottom = 1 - row / len(rows), 1 - (row + 0.85) / len(rows)
        for column, (history, frame, title) in enumerate(panels):
            suffix = str(number) if (number := row * len(panels) + column + 1) > 1 else ""
            axes = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
            data += [trace | axes for trace in _draw_traces(history, frame)]
            left, right = column / len(panels) + gap * (column > 0), (column + 1) / len(panels)
            plain = {"showgrid": False, "showticklabels": False, "zeroline": False, "ticks": ""}
            x_range, y_range = ([history.low[i], history.high[i]] for i in (0, 1))
            across = {"domain": [left, right], "anchor": f"y{suffix}", "range": x_range}
            up = {"domain": [bottom, top - 0.08 / len(rows)], "anchor": f"x{suffix}", "range": y_range}
            layout |= {f"xaxis{suffix}": plain | across, f"yaxis{suffix}": plain | up}
            position = {"x": left, "y": top, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "top"}
            layout["annotations"].append({"text": title, "showarrow": False, **position})
    return {"data": data, "layout": layout}


def _draw_traces(history: BoundaryHistory, index: int) -> list[dict[str, Any]]:
    """Return the traces of one panel: areas by predicted class, test examples, and wrong training labels."""
    frame, wrong, test = history.frames[index], select_wrong_labels(history.data.train), history.data.test
    n = max(2, len(history.data.groups.labels))
    x, y = _cell_centers(history.low, history.high, len(frame.classes))
    scale = [[k / (n - 1), COLOURS[k % len(COLOURS)]] for k in range(n)]
    areas = {"type": "contour", "x": x, "y": y, "z": frame.classes.tolist(), "colorscale": scale, "showscale": False}
    areas |= {"zmin": 0, "zmax": n - 1, "contours": {"start": 0.5, "end": n - 1.5, "size": 1}, "opacity": 0.4}
    areas |= {"line": {"color": "@ink", "width": 1.5}, "hovertemplate": "class %{z}<extra></extra>"}
    return [areas, _draw_points(test, "circle", 4), *([_draw_points(wrong, "x", 7)] if len(wrong) else [])]


def _draw_points(split: Split, symbol: str, size: int) -> dict[str, Any]:
    x, y = ([round(value, 3) for value in column] for column in check_plane(split).T.tolist())
    colours = [COLOURS[label % len(COLOURS)] for label in split.y.tolist()]
    marker = {"symbol": symbol, "size": size, "color": colours, "line": {"width": 0.5, "color": "@ink"}}
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "marker": marker, "hoverinfo": "skip"}


def _format_numbers(history: BoundaryHistory, chosen: list[int]) -> str:
    frames = [history.frames[i] for i in chosen]
    listed = {
        "accuracy": [f"{100 * frame.accuracy:.1f}" for frame in frames],
        "wrong labels fitted": [f"{100 * f.fitted_wrong:.0f}" for f in frames if f.fitted_wrong is not None],
        "sparsity": [f"{100 * frame.sparsity:.0f}" for frame in frames],
    }
    return "; ".join(f"{name} {', '.join(values)}" for name, values in listed.items() if values)


def _check_epochs(histories: Mapping[str, BoundaryHistory]) -> list[int]:
    """Return the epochs of the frames, which must be the same for all trainings."""
    epochs = {name: [frame.epoch for frame in history.frames] for name, history in histories.items()}
    first = next(iter(epochs.values()), [])
    if not first:
        raise InputError("there is no frame to draw", expected="at least one training with frames")
    other = next((name for name, numbers in epochs.items() if numbers != first), None)
    if other is not None:
        what = f"{other!r} was recorded at other epochs than the first"
        raise InputError(what, hint="Use the same interval= for all.")
    return first


def _cell_centers(low: Point, high: Point, size: int) -> tuple[list[float], list[float]]:
    x, y = ([low[i] + (k + 0.5) / size * (high[i] - low[i]) for k in range(size)] for i in (0, 1))
    return x, y


def _to_point(corner: Tensor) -> Point:
    return float(corner[0]), float(corner[1])
