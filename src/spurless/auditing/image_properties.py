r"""Image properties: does the model rely on something as simple as the brightness of a corner?

Properties are measured on the raw images: colour, hue, saturation, brightness, contrast and sharpness of the image,
brightness and colour of the corners, of the frame and of the inside, and the brightness of each ninth. Each is cut into
four bins of about the same number of examples. The statistic is the largest :math:`z` of
:mod:`spurless.auditing._overreliance` over all properties that are associated with predictions. Null hypothesis: labels
are sampled from the calibrated probabilities. Severity: :math:`V(\text{property}, \hat y) - V(\text{property}, y)`, the
association of the property with predictions minus that with labels, at least 0.

Limits: it does not detect other shortcuts (an object, a texture), or one that holds in the audited examples as often as
in training. A named property may be a proxy of a correlated one.

Geirhos et al., "Shortcut Learning in Deep Neural Networks", Nature Machine Intelligence 2020, arXiv:2004.07780;
Hébert-Johnson et al., "Multicalibration", ICML 2018, arXiv:1711.08513: the null hypothesis is calibration in every bin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from spurless.auditing._context import AuditContext, make_finding, not_tested
from spurless.auditing._figures import image_rows
from spurless.auditing._overreliance import find_overreliance, plot_bins, plot_ranking, why_not_testable
from spurless.core.errors import InputError
from spurless.core.findings import Finding
from spurless.core.progress import progress_reporter
from spurless.data.loader import Loader, sequential_order
from spurless.data.split import Split
from spurless.explain.overlays import has_images
from spurless.train.evaluate import EVALUATION_BATCH

NAME = "image-properties"
QUESTION = "Does the model rely on a simple property of the image, such as a colour or the brightness of a corner?"
MIN_EFFECT = 0.25
"""Smallest severity that is flagged: p alone is small for many models without a shortcut, as none is perfectly
calibrated."""
N_BINS = 4  # bins of a property
COLOURS = ("red", "green", "blue")
CORNER_DIVISOR, FRAME_DIVISOR = 5, 8  # A corner is a fifth of each side, the frame an eighth of the shorter side
ROWS, COLUMNS = ("upper", "middle", "lower"), ("left", "centre", "right")

NamedValues = Iterator[tuple[str, Tensor]]


def audit_image_properties(context: AuditContext) -> Finding:
    """Return the image property with the largest over-reliance."""
    reason = why_not_testable(context)
    if not len(context) or not has_images(context.split):
        reason = "these examples are not images"
    if reason is not None:
        return not_tested(NAME, f"Not tested: {reason}.")
    names, values = measure_properties(context.split)
    codes = bin_values(values)
    result = find_overreliance(context, codes, NAME)
    if result is None:
        return not_tested(NAME, "Not tested: no property is associated with predictions.")
    name = names[result.best]
    flagged = result.p <= context.level and result.gap >= MIN_EFFECT
    code, column = codes[:, result.best], values[:, result.best]
    bins = [_format_range(column[code == b]) for b in range(int(code.max()) + 1)]
    label = context.split.groups.labels[result.label]
    rows = result.find_errors(context)
    title = f"Errors that the {name} supports"
    return make_finding(
        NAME,
        (result.p, result.gap, flagged),
        f"The model relies on the {name}: it predicts {label} if that is {_describe_level(column, code == result.bin)}",
        "No simple property of the images explains the errors",
        result.describe(context, code, f"If the {name} is {bins[result.bin]}"),
        f"Vary or remove the {name} in the training images, or repair the model: masktune if it is in one region, "
        "neurontune if it is everywhere; dfr or group-dro if it is an attribute that you know.",
        shortcut=name if flagged else None,
        numbers=result.numbers(len(names)),
        rows=rows,
        items=(
            plot_bins(context, result, code, bins, name),
            plot_ranking(result, names, "properties"),
            *(image_rows(context, rows, title) if flagged else ()),
        ),
    )


def measure_properties(split: Split) -> tuple[tuple[str, ...], Tensor]:
    """Measure every image of a split, before the model's transform.

    Returns:
        The names of the properties, and their values ``(N, P)`` in float64. The hue is in [0, 1) from red, and -1 if an
        image has no colour.

    Raises:
        InputError: the examples are not images.
    """
    if not len(split) or not has_images(split):
        raise InputError("these examples are not images, so they have no brightness", expected="grey or RGB images")
    raw = replace(split, transform=None, augment=None)
    report, parts = progress_reporter("image properties", len(split)), []
    names: tuple[str, ...] = ()
    span: tuple[float, float] | None = None
    for batch in Loader(raw, sequential_order(len(raw)), EVALUATION_BATCH).batches():
        x: Tensor = batch.x  # type: ignore[assignment]  # images are not a dict
        # images of unknown scale are scaled by the range of the first batch
        span = span or (min(0.0, float(x.min())), max(1.0, float(x.max())))
        values = dict(_measure((x.float() - span[0]) / (span[1] - span[0])))
        names = tuple(values)
        parts.append(torch.stack(list(values.values()), dim=1).double())
        report(sum(map(len, parts)))
    return names, torch.cat(parts)


def bin_values(values: Tensor, n_bins: int = N_BINS) -> Tensor:
    """Return the bin of every value of every column, ``(N, P)``.

    Bins have about the same number of examples. Each cut is moved to the widest gap nearby, so that it does not divide
    one of two distinct kinds, such as corners with and without a mark.

    Example:
        >>> bin_values(torch.tensor([[0.0], [0.1], [0.2], [0.1], [9.0], [9.1], [9.0], [9.3]]), 2).flatten().tolist()
        [0, 0, 0, 0, 1, 1, 1, 1]
    """
    n = len(values)
    ordered = values.double().sort(dim=0).values
    gaps = ordered.diff(dim=0)
    cuts = []
    for k in range(1, n_bins):
        middle, reach = n * k // n_bins, max(1, n // (2 * n_bins))
        first = max(0, middle - reach)
        widest = first + gaps[first : middle + reach].argmax(dim=0, keepdim=True)
        cuts.append((ordered.gather(0, widest) + ordered.gather(0, widest + 1)) / 2)
    columns = zip(torch.cat(cuts).T, values.double().T, strict=True)
    codes = [torch.searchsorted(torch.unique(cut), v.contiguous()) for cut, v in columns]
    # with many equal values two cuts may have nothing between them: number the bins without the empty ones
    return torch.stack([torch.unique(code, return_inverse=True)[1] for code in codes], dim=1)


def _measure(x: Tensor) -> NamedValues:
    """Yield the properties of images ``(n, channels, height, width)`` in [0, 1], local ones first."""
    height, width = x.shape[2:]
    h, w = max(1, round(height / CORNER_DIVISOR)), max(1, round(width / CORNER_DIVISOR))
    for vertical, rows in (("top", slice(None, h)), ("bottom", slice(height - h, None))):
        for side, columns in (("left", slice(None, w)), ("right", slice(width - w, None))):
            yield from _measure_colours(x[:, :, rows, columns].flatten(2), f" of the {vertical} {side} corner")
    edge = max(1, min(height, width) // FRAME_DIVISOR)
    inside = torch.zeros(height, width, dtype=torch.bool)
    inside[edge : height - edge, edge : width - edge] = True
    if bool(inside.any()):
        yield from _measure_colours(x[:, :, ~inside], " of the frame")
        yield from _measure_colours(x[:, :, inside], " of the inside")
    light = x.mean(dim=1)
    for row, band in zip(ROWS, light.tensor_split(3, dim=1), strict=True):
        for column, tile in zip(COLUMNS, band.tensor_split(3, dim=2), strict=True):
            if tile[0].numel():
                yield f"brightness of the {row} {column}", tile.flatten(1).mean(dim=1)
    yield from _measure_whole(x, light)


def _measure_colours(pixels: Tensor, suffix: str) -> NamedValues:
    """Yield the mean of each of three channels of ``(n, channels, pixels)``, and the brightness."""
    if pixels.shape[1] == len(COLOURS):
        for c, colour in enumerate(COLOURS):
            yield f"{colour}{suffix}", pixels[:, c].mean(dim=1)
    yield f"brightness{suffix}", pixels.mean(dim=(1, 2))


def _measure_whole(x: Tensor, light: Tensor) -> NamedValues:
    yield from _measure_colours(x.flatten(2), " of the image")
    if x.shape[1] == len(COLOURS):
        red, green, blue = x.unbind(dim=1)
        # the hue is the angle of the mean pixel on the colour wheel, to which grey pixels do not contribute
        across, up = (red - (green + blue) / 2).mean(dim=(1, 2)), (green - blue).mean(dim=(1, 2)) * 3**0.5 / 2
        hue = torch.atan2(up, across) / (2 * torch.pi) % 1
        yield "hue of the image", hue.where(across.hypot(up) > 1e-4, -1.0)
        highest = x.amax(dim=1)
        yield "saturation of the image", ((highest - x.amin(dim=1)) / highest.clamp(min=1e-6)).mean(dim=(1, 2))
    yield "contrast of the image", light.flatten(1).std(dim=1, correction=0)
    steps = [light.diff(dim=d).abs().flatten(1) for d in (1, 2)]
    yield "sharpness of the image", torch.cat(steps, dim=1).sum(dim=1) / max(1, steps[0].shape[1])


def _describe_level(values: Tensor, inside: Tensor) -> str:
    if bool((values[inside].max() <= values[~inside]).all()):
        return "low"
    return "high" if bool((values[inside].min() >= values[~inside]).all()) else "in a middle range"


def _format_range(values: Tensor) -> str:
    low, high = (f"{float(v):.3g}" for v in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"
