r"""Hidden regions: does what the model looks at mislead it?

The question: does hiding the region that a prediction rests on bring the true label back, where it was wrong? The
region is the hottest tenth of the image by the heat map of the predicted label (xGradCAM where the model keeps a map,
the gradient times the input elsewhere), as in MaskTune. It is compared with regions of the same size and shape
elsewhere: the same mask, moved around the edges of the image by a quarter to three quarters of each side.

What the model says of example :math:`i` is :math:`\hat y_i`, with the hot region hidden :math:`h_i`, and with the moved
ones hidden :math:`m_{ir}`. With how much a prediction rests on the hot region,
:math:`q_i = [h_i \ne \hat y_i] - \frac{1}{R} \sum_r [m_{ir} \ne \hat y_i]`, and the belief :math:`p_i` in it (see
:mod:`spurless.auditing.leaning`), the statistic is

.. math:: Z = \sum_i q_i (p_i - [\hat y_i = y_i]),

how much less often such predictions are right than the model believes.

Null hypothesis: labels are drawn as the model believes, once its confidence is corrected on these examples. What it
says with something hidden is made of the image alone. Without a shortcut, predictions that a hidden region changes are
those of which the model is unsure, and it says so. (Permuting labels among equally sure predictions, and counting the
mistakes that become right, is no fair test: a second look at an image tells of the label too, and puts mistakes of any
model right.)

Severity, over the mistakes :math:`W`, and not below 0:

.. math:: T = \frac{1}{|W|} \sum_{i \in W} \Big( [h_i = y_i] - \frac{1}{R} \sum_r [m_{ir} = y_i] \Big),

the share of the mistakes that the hot region puts right when it is hidden, less that of other regions. The accuracies
with the hot and with other regions hidden are told beside it.

It cannot tell a shortcut that is everywhere, such as the colour of the whole image, nor one that is larger than the
region; nor does a region that the model needs for being right speak against it. It looks at ``MOST`` images at most.

Asgari Taghanaki et al., "MaskTune", NeurIPS 2022, arXiv:2210.00055; Zeiler and Fergus, "Visualizing and Understanding
Convolutional Networks", ECCV 2014, arXiv:1311.2901, who hide parts of images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from spurless.auditing.chance import p_value
from spurless.auditing.leaning import belief
from spurless.auditing.subject import Subject, rows_first
from spurless.core.figures import Figure, Picture
from spurless.core.findings import Finding
from spurless.core.progress import teller
from spurless.data.grouped import Grouped
from spurless.data.hidden import Hidden
from spurless.explain.heat import AUTO, all_maps
from spurless.explain.neurons import model_sees_images
from spurless.explain.pictures import contrast
from spurless.explain.probing import NoGradient
from spurless.metrics.intervals import wilson
from spurless.train.evaluate import predict

NAME = "hidden-regions"
QUESTION = "Does what the model looks at mislead it: does hiding that region put its mistakes right?"
FLOOR = 0.2
"""Severity of a finding, at least; it is noisy where mistakes are few."""
SHARE = 0.1
"""Of the pixels that are hidden."""
MOVED = 3
"""Other regions that each hot one is compared with."""
MOST = 500
"""Images that are looked at, drawn at random where there are more."""
LEAST_MISTAKES = 10
SHOWN = 4


@dataclass(frozen=True, eq=False)
class Looked:
    """Some examples, and what the model says of them when something is hidden."""

    index: Tensor
    """where they lie in the split"""
    masks: Hidden
    """the hot regions"""
    hot: Tensor
    """what is said when these are hidden, ``(n,)``"""
    moved: Tensor
    """when other regions are, ``(R, n)``"""


def audit_hidden_regions(subject: Subject) -> Finding:
    """Hide what the model looks at, and see whether its mistakes become right."""
    if not len(subject) or not model_sees_images(subject.split):
        return _nothing("these examples are no images")
    index = _drawn(subject)
    wrong = int(subject.wrong[index].sum())
    if wrong < LEAST_MISTAKES:
        return _nothing(f"the model makes {wrong} mistake{'s' * (wrong != 1)} in {len(index)}, too few to put right")
    try:
        found = look_hidden(subject, index)
    except NoGradient:
        return _nothing(f"no gradient of {subject.model.name} reaches its input, so nobody knows where it looks")
    y, said = subject.y[index], subject.predicted[index]
    p, severity = too_bold(subject, found), min(1.0, max(0.0, put_right(y, said, found)))
    flagged = p <= subject.level and severity >= FLOOR
    missed = said != y
    back = missed & (found.hot == y)
    shares = {
        "accuracy": (said == y),
        "accuracy_hot_hidden": (found.hot == y),
        "accuracy_other_hidden": (found.moved == y),
        "put_right_by_hot": (found.hot == y)[missed],
        "put_right_by_other": (found.moved == y)[:, missed],
    }
    numbers = {name: float(values.double().mean()) for name, values in shares.items()}
    numbers |= {"mistakes": float(wrong), "images": float(len(index))}
    # the clearest are put right by the hot region and by no other, and the model was sure
    score = -(found.moved == y).double().mean(dim=0) + 1e-3 * subject.margin[index] / (1 + subject.margin[index])
    rows = tuple(int(index[i]) for i in rows_first(score, back))
    return Finding(
        NAME,
        "Mistakes rest on one region: with what the model looks at hidden, it sees the truth"
        if flagged
        else "Hiding what the model looks at does not put its mistakes right",
        severity,
        flagged,
        p,
        _because(numbers, int(back.sum()), wrong, p),
        "Look at the regions below; if they are not what the label is about, repair the model with masktune, or vary "
        "what is there in the training images."
        if flagged
        else "Nothing to do.",
        shortcut="the region that the model looks at" if flagged else None,
        numbers=numbers,
        rows=rows,
        items=(_bars(numbers), *(_pictures(subject, found, rows) if flagged else ())),
    )


def look_hidden(subject: Subject, index: Tensor) -> Looked:
    """Predict some examples with the hot region hidden, and with others of its shape."""
    split = replace(subject.split.select(index), augment=None)
    x: Any = split.x
    masks = hottest(_as_large(all_maps(subject.model, split, how=AUTO), tuple(x[0].shape[1:])))
    value = _mean_pixel(split)
    device = next((p.device for p in subject.model.parameters()), torch.device("cpu"))
    done = teller("hidden regions", 1 + MOVED)
    generator = subject.seeds.generator(NAME, "moves")
    said = []
    for turn in range(1 + MOVED):
        hidden = Hidden.of(masks if not turn else moved(masks, generator), value)
        hidden = hidden | split.hidden if isinstance(split.hidden, Hidden) else hidden
        said.append(predict(subject.model, replace(split, hidden=hidden), device))
        done(turn + 1)
    return Looked(index, Hidden.of(masks, value), said[0], torch.stack(said[1:]))


def put_right(y: Tensor, said: Tensor, found: Looked) -> float:
    """Return the share of the mistakes that become right when the hot region is hidden, less that by others.

    Example:
        >>> masks = Hidden.of(torch.zeros(3, 2, 2))
        >>> found = Looked(torch.arange(3), masks, torch.tensor([1, 1, 0]), torch.tensor([[0, 1, 0], [0, 0, 0]]))
        >>> put_right(torch.tensor([1, 1, 0]), torch.tensor([0, 0, 0]), found)  # (1 - 0 + 1 - 1/2) / 2
        0.75
    """
    gain = (found.hot == y).double() - (found.moved == y).double().mean(dim=0)
    return float(gain[y != said].mean()) if bool((y != said).any()) else 0.0


def too_bold(subject: Subject, found: Looked) -> float:
    """Return p of: predictions that rest on the hot region are right no less often than the model believes."""
    y, said = subject.y[found.index], subject.predicted[found.index]
    rests = (found.hot != said).double() - (found.moved != said).double().mean(dim=0)
    p = belief(subject.logits[found.index], y)
    believed = p.gather(1, said[:, None])[:, 0]
    generator = subject.seeds.generator(NAME, "beliefs")
    drawn = torch.multinomial(p, subject.permutations, replacement=True, generator=generator).T

    def over(labels: Tensor) -> Tensor:
        return (believed - (labels == said).double()) @ rests

    return p_value(float(over(y)), over(drawn))


def hottest(heat: Tensor, share: float = SHARE) -> Tensor:
    """Return masks of the hottest pixels, as many in each map; a map without heat hides nothing.

    Example:
        >>> hottest(torch.tensor([[[0.0, 3.0], [1.0, 2.0]], [[0.0, 0.0], [0.0, 0.0]]]), 0.5).int().tolist()
        [[[0, 1], [0, 1]], [[0, 0], [0, 0]]]
    """
    flat = heat.flatten(1)
    top = flat.topk(max(1, round(share * flat.shape[1])), dim=1).indices
    masks = torch.zeros_like(flat, dtype=torch.bool).scatter(1, top, True)
    return (masks & (flat.amax(dim=1, keepdim=True) > 0)).view_as(heat)


def moved(masks: Tensor, generator: torch.Generator) -> Tensor:
    """Move every mask by a quarter to three quarters of each side; what leaves the image comes in opposite."""
    n, height, width = masks.shape
    places = []
    for side in (height, width):
        least = side // 4
        by = least + (torch.rand(n, generator=generator) * (side - 2 * least)).long()
        places.append((torch.arange(side) - by[:, None]) % side)
    rows, columns = places
    return masks[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]


def _drawn(subject: Subject) -> Tensor:
    if len(subject) <= MOST:
        return torch.arange(len(subject))
    return torch.randperm(len(subject), generator=subject.seeds.generator(NAME, "images"))[:MOST].sort().values


def _as_large(heat: Tensor, size: tuple[int, int]) -> Tensor:
    """Bring maps to the size of the raw images, where the model sees these in another."""
    if tuple(heat.shape[1:]) == size:
        return heat
    return interpolate(heat[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


def _mean_pixel(split: Grouped) -> tuple[float, ...]:
    """Return the mean of every channel, in the raw scale: what hides a pixel."""
    x: Any = split.x
    means = torch.stack([x[i].double().mean(dim=(1, 2)) for i in range(len(split))])
    return tuple(means.mean(dim=0).tolist())


def _because(numbers: dict[str, float], back: int, wrong: int, p: float) -> str:
    low, high = (100 * float(v) for v in wilson(back, wrong))
    return (
        f"Hiding the region that the model looks at puts {back} of {wrong} mistakes right, "
        f"{100 * back / wrong:.0f} % (95 % interval {low:.0f} to {high:.0f}); other regions of that size put "
        f"{100 * numbers['put_right_by_other']:.0f} % right (p = {p:.3g}). The accuracy is "
        f"{100 * numbers['accuracy']:.0f} %, {100 * numbers['accuracy_hot_hidden']:.0f} % with the region hidden and "
        f"{100 * numbers['accuracy_other_hidden']:.0f} % with others."
    )


def _bars(numbers: dict[str, float]) -> Figure:
    words = ("nothing", "what it looks at", "other regions")
    sets = {
        "all images": ("accuracy", "accuracy_hot_hidden", "accuracy_other_hidden"),
        "mistakes": (None, "put_right_by_hot", "put_right_by_other"),
    }
    traces, lines = [], []
    for (name, keys), colour in zip(sets.items(), ("@arm1", "@bad"), strict=True):
        y = [100 * numbers[key] if key else 0.0 for key in keys]
        traces.append({"type": "bar", "x": list(words), "y": y, "name": name, "marker": {"color": colour}})
        lines.append(f"{name} " + ", ".join(f"{v:.0f} %" for v in y))
    layout = {
        "barmode": "group",
        "xaxis": {"title": {"text": "hidden"}},
        "yaxis": {"title": {"text": "% right"}, "range": [0, 100]},
    }
    return Figure(
        "Right with something hidden",
        f"Of all {numbers['images']:.0f} images, and of the {numbers['mistakes']:.0f} that the model gets wrong.",
        {"data": traces, "layout": layout},
        f"Right when nothing, what it looks at, other regions are hidden: {'; '.join(lines)}.",
        260,
    )


def _pictures(subject: Subject, found: Looked, rows: tuple[int, ...]) -> tuple[Picture, ...]:
    if not rows:
        return ()
    places = torch.stack([(found.index == row).nonzero().flatten()[0] for row in rows[:SHOWN]])
    picture = contrast(
        subject.model, subject.split, rows[:SHOWN], hidden=found.masks.select(places), how=AUTO, across=True
    )
    return (replace(picture, title="Mistakes that become right when the region is hidden"),)


def _nothing(reason: str) -> Finding:
    return Finding(
        NAME,
        "This could not be asked of these examples",
        0.0,
        False,
        None,
        f"Not answered: {reason}.",
        "Nothing to do.",
    )
