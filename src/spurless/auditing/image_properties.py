r"""Image properties: does the model lean on something as simple as the brightness of a corner?

The question: does a simple property of the image go with what the model says more than with what is true? Properties
are measured on the raw images: colour, hue, saturation, brightness, contrast and sharpness of the whole, brightness
and colour of the four corners (a fifth of each side), of the frame and of the inside, and the brightness of each
ninth. All images of a split have one size here, so that size and shape are no properties.

Each property is cut into four bins of about as many examples each. The statistic is the largest :math:`z` of
:mod:`spurless.auditing.leaning` over all properties that go with what the model says.

Null hypothesis: labels are drawn as the model believes, once its confidence is corrected on these examples; the
largest :math:`z` is compared with the largest of every draw.

Severity: :math:`V(\text{property}, \hat y) - V(\text{property}, y)`, the association of the property with
predictions less that with labels, not below 0.

It cannot tell a shortcut that is no such property (an object, a texture), nor one that is as true of the audited
examples as of the training data: some must conflict with the shortcut. A named property may stand for another that
goes with it.

Geirhos et al., "Shortcut Learning in Deep Neural Networks", Nature Machine Intelligence 2020, arXiv:2004.07780;
Hébert-Johnson et al., "Multicalibration", ICML 2018, arXiv:1711.08513, whose notion of a model that is calibrated
within every part of the data is what the null hypothesis asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from spurless.auditing.leaning import by_bin, clearest, lean, numbers, ranking, told, unanswerable
from spurless.auditing.subject import Subject, rows_first
from spurless.core.errors import BadInput
from spurless.core.figures import Picture
from spurless.core.findings import Finding
from spurless.core.progress import teller
from spurless.data.grouped import Grouped
from spurless.data.loader import Loader, in_order
from spurless.explain.neurons import model_sees_images
from spurless.explain.pictures import contrast
from spurless.explain.probing import NoGradient
from spurless.train.evaluate import EVALUATION_BATCH

NAME = "image-properties"
QUESTION = "Does the model lean on a simple property of the image, such as a colour or the brightness of a corner?"
FLOOR = 0.25
"""Severity of a finding, at least: p alone is small for many a model without a shortcut, since none believes quite what
is true."""
BINS = 4
"""Bins of a property."""
SHOWN = 4
COLOURS = ("red", "green", "blue")
CORNER, FRAME = 5, 8
"""a corner is a fifth of each side, the frame an eighth of the shorter one"""
ROWS, COLUMNS = ("upper", "middle", "lower"), ("left", "centre", "right")

Named = Iterator[tuple[str, Tensor]]


def audit_image_properties(subject: Subject) -> Finding:
    """Search the properties of the images for the one that the model leans on most."""
    reason = unanswerable(subject)
    if not len(subject) or not model_sees_images(subject.split):
        reason = "these examples are no images"
    if reason is not None:
        return _nothing(f"Not answered: {reason}.")
    names, values = properties(subject.split)
    codes = binned(values)
    found = lean(subject, codes, NAME)
    if found is None:
        return _nothing("Not answered: none of the properties goes with what the model says.")
    name, severity = names[found.best], min(1.0, max(0.0, found.gap))
    flagged = found.p <= subject.level and severity >= FLOOR
    mine, column = codes[:, found.best], values[:, found.best]
    bins = [_range(column[mine == b]) for b in range(int(mine.max()) + 1)]
    label, where = subject.split.groups.labels[found.label], f"Where the {name} is {bins[found.bin]}"
    rows = rows_first(clearest(subject, found), subject.wrong & (found.toward > 0))
    return Finding(
        NAME,
        f"The model leans on the {name}: it says {label} where that is {_way(column, mine == found.bin)}"
        if flagged
        else "No simple property of the images explains the mistakes",
        severity,
        flagged,
        found.p,
        told(subject, found, mine, where),
        f"Vary or remove the {name} in the training images, or repair the model: masktune where it sits in one place, "
        "neurontune where it is everywhere; dfr or group-dro where it is an attribute that you know."
        if flagged
        else "Nothing to do.",
        shortcut=name if flagged else None,
        numbers=numbers(found, len(names)),
        rows=rows,
        items=(
            by_bin(subject, found, mine, bins, name),
            ranking(found, names, "properties"),
            *(_pictures(subject, rows, name) if flagged else ()),
        ),
    )


def properties(split: Grouped) -> tuple[tuple[str, ...], Tensor]:
    """Measure every image of a split, as it is before the transform of the model.

    Returns:
        The names of the properties, and their values ``(N, P)`` in float64. The hue is in turns from red, and -1
        where an image has no colour.

    Raises:
        BadInput: the examples are no images.
    """
    if not len(split) or not model_sees_images(split):
        raise BadInput("these examples are no images, so they have no brightness", expected="grey or RGB images")
    raw = replace(split, transform=None, augment=None)
    done, parts = teller("image properties", len(split)), []
    names: tuple[str, ...] = ()
    span: tuple[float, float] | None = None
    for batch in Loader(raw, in_order(len(raw)), EVALUATION_BATCH).batches():
        x: Tensor = batch.x  # type: ignore[assignment]  # images are no dict
        # images of unknown scale are measured in that of the first batch
        span = span or (min(0.0, float(x.min())), max(1.0, float(x.max())))
        found = dict(_measured((x.float() - span[0]) / (span[1] - span[0])))
        names = tuple(found)
        parts.append(torch.stack(list(found.values()), dim=1).double())
        done(sum(map(len, parts)))
    return names, torch.cat(parts)


def binned(values: Tensor, bins: int = BINS) -> Tensor:
    """Return the bin of every value of every column, ``(N, P)``.

    Bins hold about as many examples each: between any two, the cut lies in the widest gap nearby, so that what comes
    in two kinds, such as a corner with a mark or without, is not cut through one of them.

    Example:
        >>> binned(torch.tensor([[0.0], [0.1], [0.2], [0.1], [9.0], [9.1], [9.0], [9.3]]), 2).flatten().tolist()
        [0, 0, 0, 0, 1, 1, 1, 1]
    """
    n = len(values)
    ordered = values.double().sort(dim=0).values
    gaps = ordered.diff(dim=0)
    cuts = []
    for k in range(1, bins):
        middle, reach = n * k // bins, max(1, n // (2 * bins))
        first = max(0, middle - reach)
        widest = first + gaps[first : middle + reach].argmax(dim=0, keepdim=True)
        cuts.append((ordered.gather(0, widest) + ordered.gather(0, widest + 1)) / 2)
    columns = zip(torch.cat(cuts).T, values.double().T, strict=True)
    found = [torch.searchsorted(torch.unique(cut), v.contiguous()) for cut, v in columns]
    # of many equal values the cut is that value, and nothing need lie between it and the next: no bin stays empty
    return torch.stack([torch.unique(codes, return_inverse=True)[1] for codes in found], dim=1)


def _measured(x: Tensor) -> Named:
    """Yield the properties of images ``(n, channels, height, width)`` in [0, 1], the most local first."""
    height, width = x.shape[2:]
    h, w = max(1, round(height / CORNER)), max(1, round(width / CORNER))
    for down, rows in (("top", slice(None, h)), ("bottom", slice(height - h, None))):
        for aside, columns in (("left", slice(None, w)), ("right", slice(width - w, None))):
            yield from _colours(x[:, :, rows, columns].flatten(2), f" of the {down} {aside} corner")
    edge = max(1, min(height, width) // FRAME)
    inside = torch.zeros(height, width, dtype=torch.bool)
    inside[edge : height - edge, edge : width - edge] = True
    if bool(inside.any()):
        yield from _colours(x[:, :, ~inside], " of the frame")
        yield from _colours(x[:, :, inside], " of the inside")
    light = x.mean(dim=1)
    for row, band in zip(ROWS, light.tensor_split(3, dim=1), strict=True):
        for column, tile in zip(COLUMNS, band.tensor_split(3, dim=2), strict=True):
            if tile[0].numel():
                yield f"brightness of the {row} {column}", tile.flatten(1).mean(dim=1)
    yield from _whole(x, light)


def _colours(pixels: Tensor, where: str) -> Named:
    """Yield the mean of every channel of ``(n, channels, pixels)``, if there are three, and the brightness."""
    if pixels.shape[1] == len(COLOURS):
        for c, colour in enumerate(COLOURS):
            yield f"{colour}{where}", pixels[:, c].mean(dim=1)
    yield f"brightness{where}", pixels.mean(dim=(1, 2))


def _whole(x: Tensor, light: Tensor) -> Named:
    yield from _colours(x.flatten(2), " of the image")
    if x.shape[1] == len(COLOURS):
        red, green, blue = x.unbind(dim=1)
        # the mean of all pixels on the colour wheel: its angle is the hue, grey pixels do not count
        across, up = (red - (green + blue) / 2).mean(dim=(1, 2)), (green - blue).mean(dim=(1, 2)) * 3**0.5 / 2
        turn = torch.atan2(up, across) / (2 * torch.pi) % 1
        yield "hue of the image", turn.where(across.hypot(up) > 1e-4, -1.0)
        most = x.amax(dim=1)
        yield "saturation of the image", ((most - x.amin(dim=1)) / most.clamp(min=1e-6)).mean(dim=(1, 2))
    yield "contrast of the image", light.flatten(1).std(dim=1, correction=0)
    steps = [light.diff(dim=d).abs().flatten(1) for d in (1, 2)]
    yield "sharpness of the image", torch.cat(steps, dim=1).sum(dim=1) / max(1, steps[0].shape[1])


def _way(values: Tensor, inside: Tensor) -> str:
    """Say where on its scale a bin of a property lies."""
    if bool((values[inside].max() <= values[~inside]).all()):
        return "low"
    return "high" if bool((values[inside].min() >= values[~inside]).all()) else "in a middle range"


def _pictures(subject: Subject, rows: tuple[int, ...], name: str) -> tuple[Picture, ...]:
    if not rows:
        return ()
    try:
        picture = contrast(subject.model, subject.split, rows[:SHOWN], across=True)
    except NoGradient:  # the audit says so once
        return ()
    return (replace(picture, title=f"Mistakes that the {name} speaks for"),)


def _range(values: Tensor) -> str:
    low, high = (f"{float(v):.3g}" for v in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"


def _nothing(because: str) -> Finding:
    return Finding(NAME, "This could not be asked of these examples", 0.0, False, None, because, "Nothing to do.")
