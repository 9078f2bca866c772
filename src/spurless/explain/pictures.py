"""Pictures: where a model looked, drawn over the examples; before and after a repair, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput
from spurless.core.figures import Picture
from spurless.core.progress import teller
from spurless.core.seeds import Seeds
from spurless.data.checks import kind_of
from spurless.data.grouped import Grouped
from spurless.data.hidden import Faded, Hidden
from spurless.data.loader import Loader, in_order
from spurless.explain.heat import AUTO, Draw, all_maps
from spurless.explain.probing import NoGradient
from spurless.explain.tiles import encode, encode_one, glow, rgb
from spurless.models.classifier import evaluating
from spurless.models.wrapping import wrap
from spurless.train.evaluate import EVALUATION_BATCH


def contrast(  # noqa: PLR0913 - a public door
    before: nn.Module,
    split: Grouped,
    index: Tensor | Sequence[int],
    *,
    after: nn.Module | None = None,
    hidden: Hidden | Faded | None = None,
    how: str | Draw = AUTO,
    layer: str | None = None,
    device: torch.device | str | None = None,
    workers: int = 0,
    across: bool = False,
) -> Picture:
    """Draw one row per example: the image, where ``before`` looked, what was hidden, and where ``after`` looked.

    Args:
        before: a classifier, or any module whose head can be found; it is left exactly as it was.
        split: images, grey or RGB. The models see them whole, also where the split hides something of them: that is
            what the third column shows, unless ``hidden`` is given.
        index: which examples, in the order of the rows.
        after: the repaired model; without it there is no fourth column.
        hidden: what was hidden: one mask per example of the split, or one per row. Without any there is no third
            column.
        how: what draws the heat maps, as for :func:`spurless.explain.maps`.
        layer: where it looks, as for :func:`spurless.explain.maps`.
        device: where the arithmetic is done; by default where each model is.
        workers: processes that read a streamed split.
        across: a column per example instead of a row, for a few of them.

    Returns:
        A picture whose caption names the label and the predictions of each row.

    Raises:
        BadInput: the examples are no images, an index or a mask does not fit, or model and options do not go together.
        UnknownName: no explainer has that name.
    """
    check_images(split)
    rows = _rows(index, len(split))
    shown = _whole(split.select(rows))
    raw = _stacked(shown)
    images = _bytes(raw, raw)
    covered = _covered(raw, split.hidden if hidden is None else hidden, rows, len(split))
    draw = partial(all_maps, split=shown, how=how, layer=layer, device=device, workers=workers)
    models = {"before": before} if after is None else {"before": before, "after": after}
    heat = {word: glow(images, draw(model)) for word, model in models.items()}
    said = {word: predictions(model, shown, device, workers) for word, model in models.items()}
    columns = {"image": rgb(images), "looked at" if after is None else "looked at before": heat["before"]}
    columns |= {} if covered is None else {"hidden": rgb(_bytes(covered, raw))}
    columns |= {} if after is None else {"looked at after": heat["after"]}
    lines = [_line(shown, i, int(row), {w: int(s[i]) for w, s in said.items()}) for i, row in enumerate(rows)]
    return Picture(
        title="Where the model looked" if after is None else "Where the model looked, before and after",
        caption="\n".join([*lines, "The lighter, the hotter; every map has its own scale."]),
        png=encode(columns, [str(int(row)) for row in rows], across),
        alt=f"{len(rows)} row{'s' * (len(rows) > 1)} of {len(columns)} columns: {', '.join(columns)}. "
        "The caption says the label and the prediction of each row.",
    )


def chosen(  # noqa: PLR0913 - a public door
    before: nn.Module,
    after: nn.Module | None,
    split: Grouped,
    n: int,
    seed: int = 0,
    *,
    device: torch.device | str | None = None,
    workers: int = 0,
) -> Tensor:
    """Return which examples to show: those whose prediction changed first, then others.

    Both are taken from the groups in turn; from the labels where some attribute is hidden, or where groups overlap.

    Args:
        before: a classifier, or any module whose head can be found.
        after: the repaired model; without it no prediction changed.
        split: the examples; nothing is hidden of them here.
        n: how many, at most.
        seed: of the choice.
        device: where the arithmetic is done; by default where each model is.
        workers: processes that read a streamed split.
    """
    if n < 1:
        raise BadInput("at least one example must be shown", got=n)
    changed = torch.zeros(len(split), dtype=torch.bool)
    if after is not None:
        whole = _whole(split)
        changed = predictions(before, whole, device, workers) != predictions(after, whole, device, workers)
    apart = split.has_attributes and not split.groups.overlap
    cells = (split.g if apart else split.y).cpu()
    generator = Seeds(seed).generator("pictures")
    parts = [_in_turn(which.nonzero().flatten(), cells, generator) for which in (changed, ~changed)]
    return torch.cat(parts)[:n]


def thumbnails(
    model: nn.Module, split: Grouped, index: Tensor | Sequence[int], *, device: torch.device | str | None = None
) -> list[tuple[bytes, bytes | None]]:
    """Return a small PNG of each example, and one of where the model looked; the model is left as it was.

    The second is None where the model lets no gradient through, so that nobody knows where it looked.

    Raises:
        BadInput: the examples are no images, or there is no such example.
    """
    shown, images = pictured(split, index)
    small = [encode_one(image) for image in rgb(images)]
    try:
        heat = glow(images, all_maps(model, split=shown, how=AUTO, device=device))
    except NoGradient:
        return [(image, None) for image in small]
    return [(image, encode_one(hot)) for image, hot in zip(small, heat, strict=True)]


def pictured(split: Grouped, index: Tensor | Sequence[int]) -> tuple[Grouped, Tensor]:
    """Return some examples with nothing hidden, and their images from 0 to 255.

    Raises:
        BadInput: the examples are no images, or there is no such example.
    """
    check_images(split)
    shown = _whole(split.select(_rows(index, len(split))))
    raw = _stacked(shown)
    return shown, _bytes(raw, raw)


def check_images(split: Grouped) -> None:
    """Refuse what cannot be drawn.

    Raises:
        BadInput: there are no examples, or they are texts, rows of features, or neither grey nor RGB.
    """
    if not len(split):
        raise BadInput("the split is empty, so there is no picture to draw")
    x: Any = split.x
    shape = () if isinstance(x, dict) else tuple(x[0].shape)
    if len(shape) == 3 and shape[0] in (1, 3):
        return
    raise BadInput(
        "these examples are no images, so there is no picture to draw",
        expected="grey or RGB, (1 or 3, height, width) each",
        got=kind_of(x) if not shape else f"rows of {shape[0]} features" if len(shape) == 1 else f"shape {shape}",
        do="For the numbers, use spurless.explain.maps.",
    )


def predictions(model: nn.Module, split: Grouped, device: torch.device | str | None = None, workers: int = 0) -> Tensor:
    """Return the predicted label of every example, in order; the model is left as it was, and where it was."""
    classifier = wrap(model)
    home = next((parameter.device for parameter in classifier.parameters()), torch.device("cpu"))
    place = home if device is None else torch.device(device)
    loader = Loader(split, in_order(len(split)), EVALUATION_BATCH, place, workers=workers)
    done, parts = teller("predictions", len(split)), []
    try:
        with evaluating(classifier.to(place)), torch.no_grad():
            for batch in loader.batches():
                parts.append(classifier(batch.x).argmax(dim=1).cpu())
                done(sum(map(len, parts)))
    finally:
        classifier.to(home)
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)


def _rows(index: Tensor | Sequence[int], n: int) -> Tensor:
    rows = torch.as_tensor(index).flatten().cpu().long()
    if not len(rows):
        raise BadInput("there is no example to draw", expected="at least one index")
    wrong = rows[(rows < 0) | (rows >= n)]
    if len(wrong):
        raise BadInput(f"the split has no example {int(wrong[0])}", expected=f"0 to {n - 1}")
    return rows


def _whole(split: Grouped) -> Grouped:
    """Return the split with nothing hidden."""
    return replace(split, hidden=None)


def _stacked(shown: Grouped) -> Tensor:
    """Return the images as they are stored, ``(n, channels, height, width)``."""
    x: Any = shown.x
    images = x if isinstance(x, Tensor) else torch.stack([x[i] for i in range(len(shown))])
    return images.detach().cpu()


def _bytes(images: Tensor, like: Tensor) -> Tensor:
    """Bring images to 0 to 255; where no range is known, from the smallest value of each of ``like`` to its largest."""
    if images.dtype == torch.uint8:
        return images
    flat = like.float().flatten(1)
    low, high = flat.amin(dim=1), flat.amax(dim=1)
    known = (low >= 0) & (high <= 1)
    low = torch.where(known, 0.0, low)[:, None, None, None]
    high = torch.where(known, 1.0, high)[:, None, None, None]
    return (255 * (images.float() - low) / (high - low).clamp(min=1e-12)).clamp(0, 255).round().to(torch.uint8)


def _covered(raw: Tensor, hidden: Hidden | Faded | None, rows: Tensor, n: int) -> Tensor | None:
    """Return the images with their masks on."""
    if hidden is None:
        return None
    mine = hidden.select(rows).to("cpu") if len(hidden) == n else hidden.to("cpu")
    size = mine.shape if isinstance(mine, Hidden) else tuple(mine.heat.shape[1:])
    if len(mine) != len(rows) or size != tuple(raw.shape[2:]):
        raise BadInput(
            "what was hidden does not fit the images",
            expected=f"masks of shape {tuple(raw.shape[2:])}, {n} of them, or {len(rows)} in the order of the rows",
            got=f"{len(hidden)} of shape {size}",
        )
    covered = mine.apply(raw, torch.arange(len(rows)))
    return covered if isinstance(covered, Tensor) else None


def _in_turn(index: Tensor, cells: Tensor, generator: torch.Generator) -> Tensor:
    """Return the examples in random order, but one of every cell before the second of any."""
    index = index[torch.randperm(len(index), generator=generator)]
    turns: dict[int, int] = {}
    keys = []
    for place, cell in enumerate(cells[index].tolist()):
        turns[cell] = turns.get(cell, 0) + 1
        keys.append((turns[cell], cell, place))
    return index[torch.tensor([place for *_, place in sorted(keys)], dtype=torch.long)]


def _line(shown: Grouped, i: int, number: int, said: Mapping[str, int]) -> str:
    """Say what one row shows."""
    labels, y = shown.groups.labels, int(shown.y[i])

    def word(k: int) -> str:
        return f"'{' '.join(labels[k].split())}'" if k < len(labels) else f"class {k}"

    told = ", ".join(f"{when} {word(k)}" + " (wrong)" * (0 <= y != k) for when, k in said.items())
    if len(said) == 1:
        told = told.replace("before", "predicted", 1)
    return f"{number}: label {word(y)}; {told}." if y >= 0 else f"{number}: {told}."
