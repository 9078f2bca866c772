r"""Swapped backgrounds: does the model say what the object is, or what it stands in front of?

The question: put on the background of another image, does an object get the label that the model gives to that image?
Where masks of the foreground are given, the foregrounds :math:`i` are put on the backgrounds of images :math:`j` that
are drawn at random, each used as often as any other. A background is the image without its foreground, filled up
smoothly from around it. With what the model says of the images, :math:`\hat y`, of the swapped ones, :math:`o_{ij}`,
and :math:`K` labels, the statistic is

.. math:: T = P(o_{ij} = \hat y_j \mid \hat y_j \ne \hat y_i)
    - \frac{1}{K - 1} P(o_{ij} \ne \hat y_i \mid \hat y_j = \hat y_i),

how much more often the model says of a foreground what it said of the image behind it than it would elsewhere.
Predictions rather than labels are followed, because backgrounds may go with labels in training and not here.

Null hypothesis: what the model says of a swapped image has nothing to do with what it said of the one behind it. The
predictions of the images behind are permuted; those of the foregrounds stay.

Severity: :math:`T`, not below 0: the share of predictions that the background decides. Told beside it: the accuracy on
backgrounds of the same and of other predictions, and how often either changes what the model says.

It cannot tell whether the model uses the background together with the object only, nor whether a background rightly
tells something. Swapped images are none that it was trained on, whatever stands behind, so that the comparison is
fair; but a fill may keep the outline of what stood there. It looks at ``MOST`` images at most.

Xiao, Engstrom, Ilyas and Madry, "Noise or Signal: The Role of Image Backgrounds in Object Recognition", ICLR 2021,
arXiv:2006.09994, whose Mixed-Same and Mixed-Rand differ as equal and other backgrounds do here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from spurless.auditing.chance import p_value
from spurless.auditing.subject import Subject, rows_first
from spurless.core.errors import BadInput
from spurless.core.figures import Figure, Picture
from spurless.core.findings import Finding
from spurless.core.progress import teller
from spurless.data.grouped import Grouped
from spurless.explain.neurons import model_sees_images
from spurless.explain.tiles import encode, rgb
from spurless.metrics.intervals import wilson
from spurless.train.evaluate import predict

NAME = "swapped-backgrounds"
QUESTION = "Does the model say what the object is, or what it stands in front of?"
FLOOR = 0.25
"""Severity of a finding, at least: a fill keeps something of what stood there, so that models that do not use the
background follow it a little, too."""
MOST = 500
"""Images that are looked at, drawn at random where there are more."""
ROUNDS = 2
"""Backgrounds that each foreground is put on."""
LEAST = 20
"""Images that are needed."""
SHOWN = 4
BATCH = 64
"""Images that are put together at once."""


@dataclass(frozen=True, eq=False)
class Swapped:
    """What the model says of foregrounds on other backgrounds."""

    index: Tensor
    """the images, ``(n,)``: all are foregrounds, and all are backgrounds"""
    behind: Tensor
    """which of them gave the background of each, by their places in ``index``, ``(rounds, n)``"""
    said: Tensor
    """what the model says, ``(rounds, n)``"""


def audit_swapped_backgrounds(subject: Subject, masks: Tensor) -> Finding:
    """Put foregrounds on other backgrounds, and see whether the model says what those stand for.

    Args:
        subject: what is audited; images.
        masks: True on the foreground, ``(N, H, W)`` in the order of the split, of the size of the raw images.

    Raises:
        BadInput: the masks do not fit the images.
    """
    if not len(subject) or not model_sees_images(subject.split):
        return _nothing("these examples are no images")
    check_masks(subject.split, masks)
    index = _drawn(subject, masks)
    if len(index) < LEAST or len(torch.unique(subject.predicted[index])) < 2:
        return _nothing("too few images have a foreground and a background, or the model says the same of all of them")
    found = swap(subject, masks, index)
    y, own, classes = subject.y[index], subject.predicted[index], subject.logits.shape[1]
    generator = subject.seeds.generator(NAME, "predictions")
    mixed = torch.stack([torch.randperm(len(own), generator=generator) for _ in range(subject.permutations)])
    observed, chance = follows(found, own, own[None], classes), follows(found, own, own[mixed], classes)
    p, severity = p_value(float(observed), chance), min(1.0, max(0.0, float(observed)))
    flagged = p <= subject.level and severity >= FLOOR
    back, said = own[found.behind], found.said
    other = back != own
    numbers = {
        "follows_background": _mean((said == back)[other]),
        "says_so_elsewhere": _mean((said != own)[~other]) / max(1, classes - 1),
        "accuracy": _mean(own == y),
        "accuracy_other_background": _mean((said == y)[other]),
        "accuracy_equal_background": _mean((said == y)[~other]),
        "changed_other_background": _mean((said != own)[other]),
        "changed_equal_background": _mean((said != own)[~other]),
        "images": float(len(index)), "swaps": float(other.sum()),
    }  # fmt: skip
    clear = ((said == back) & other).any(dim=0)
    order = list(rows_first(subject.margin[index], clear))
    return Finding(
        NAME,
        "The model follows the background: an object gets the label of what it is put in front of"
        if flagged
        else "The model does not follow the background",
        severity,
        flagged,
        p,
        _because(numbers, int((said == back)[other].sum()), p),
        "Vary the backgrounds of the training images, by putting foregrounds on others as here, or repair the model "
        "with masktune; with dfr or group-dro where the kind of background is known."
        if flagged
        else "Nothing to do.",
        shortcut="the background" if flagged else None,
        numbers=numbers,
        rows=tuple(index[order].tolist()),
        items=(_bars(numbers), *(_pictures(subject, masks, found, order) if flagged else ())),
    )


def swap(subject: Subject, masks: Tensor, index: Tensor) -> Swapped:
    """Put the foreground of every image on that of ``ROUNDS`` others, and predict."""
    generator = subject.seeds.generator(NAME, "backgrounds")
    behind = torch.stack([torch.randperm(len(index), generator=generator) for _ in range(ROUNDS)])
    device = next((p.device for p in subject.model.parameters()), torch.device("cpu"))
    done, said = teller("swapped backgrounds", behind.numel()), []
    front = index.expand(ROUNDS, -1).flatten()
    for start in range(0, len(front), BATCH):
        rows, back = front[start : start + BATCH], index[behind.flatten()[start : start + BATCH]]
        shown = replace(subject.split.select(rows), x=put_together(subject.split, masks, rows, back), hidden=None)
        said.append(predict(subject.model, shown, device))
        done(start + len(rows))
    return Swapped(index, behind, torch.cat(said).view_as(behind))


def follows(found: Swapped, own: Tensor, behind: Tensor, classes: int) -> Tensor:
    """Return the statistic for each row of predictions ``(B, n)`` of the images behind; ``own`` are of those in front.

    Example:
        >>> found = Swapped(torch.arange(3), torch.tensor([[1, 2, 0]]), torch.tensor([[0, 1, 0]]))
        >>> follows(found, torch.tensor([0, 0, 1]), torch.tensor([[0, 0, 1]]), 2)  # the same, then twice another
        tensor([1.], dtype=torch.float64)
    """
    back = behind[:, found.behind]  # (B, rounds, n)
    other = back != own
    led = ((found.said == back) & other).sum(dim=(1, 2)) / other.sum(dim=(1, 2)).clamp(min=1).double()
    strayed = ((found.said != own) & ~other).sum(dim=(1, 2)) / (~other).sum(dim=(1, 2)).clamp(min=1).double()
    return led - strayed / max(1, classes - 1)


def put_together(split: Grouped, masks: Tensor, front: Tensor, behind: Tensor) -> Tensor:
    """Return the foregrounds of some images on the backgrounds of others, in the raw scale and type."""
    fore, back = _raw(split, front), _raw(split, behind)
    filled = fill(back.float(), masks[behind].bool())
    images = torch.where(masks[front].bool()[:, None], fore.float(), filled)
    return images.round().to(fore.dtype) if not fore.is_floating_point() else images.to(fore.dtype)


def fill(images: Tensor, masks: Tensor) -> Tensor:
    """Fill the places where the masks are True, from what is around them: from coarse to fine.

    Example:
        >>> image = torch.tensor([[[[1.0, 1.0, 9.0, 5.0]]]])
        >>> fill(image, torch.tensor([[[False, False, True, False]]])).flatten().tolist()
        [1.0, 1.0, 4.0, 5.0]
    """
    known = (~masks)[:, None].float()
    return _filled(images * known, known)


def check_masks(split: Grouped, masks: Tensor) -> None:
    """Refuse masks that are not those of the images.

    Raises:
        BadInput: their number or their size is another.
    """
    x: Any = split.x
    expected = (len(split), *x[0].shape[1:])
    if tuple(masks.shape) != expected:
        raise BadInput("the masks do not fit the images", expected=f"shape {expected}", got=tuple(masks.shape))


def _filled(sums: Tensor, known: Tensor) -> Tensor:
    """Return the mean where something is known, and the mean of the coarser image elsewhere."""
    height, width = sums.shape[2:]
    here = sums / known.clamp(min=1e-12)
    if height * width == 1 or bool((known > 0).all()):
        return here
    window = (2 if height > 1 else 1, 2 if width > 1 else 1)
    coarse = _filled(*(avg_pool2d(v, window, ceil_mode=True) for v in (sums, known)))
    return torch.where(known > 0, here, interpolate(coarse, size=(height, width), mode="bilinear"))


def _drawn(subject: Subject, masks: Tensor) -> Tensor:
    """Return the images that have both a foreground and a background, at most ``MOST`` of them."""
    shares = torch.tensor([float(mask.float().mean()) for mask in masks.cpu()])
    able = ((shares > 0) & (shares < 1)).nonzero().flatten()
    generator = subject.seeds.generator(NAME, "images")
    return able[torch.randperm(len(able), generator=generator)[:MOST]].sort().values


def _raw(split: Grouped, index: Tensor) -> Tensor:
    """Return images as they are stored, on the CPU."""
    x: Any = split.x
    return torch.stack([x[int(i)] for i in index]).cpu()


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if len(values) else 0.0


def _because(numbers: dict[str, float], led: int, p: float) -> str:
    n, percent = int(numbers["swaps"]), {key: f"{100 * value:.0f} %" for key, value in numbers.items()}
    low, high = (100 * float(v) for v in wilson(led, max(1, n)))
    return (
        f"On {n} backgrounds of images of which the model says something else, {led} foregrounds get that label, "
        f"{percent['follows_background']} (95 % interval {low:.0f} to {high:.0f}); elsewhere "
        f"{percent['says_so_elsewhere']} get it (p = {p:.3g}). The accuracy is {percent['accuracy']} on the images as "
        f"they are, {percent['accuracy_equal_background']} on backgrounds of images of which it says the same and "
        f"{percent['accuracy_other_background']} on those of others; these change "
        f"{percent['changed_equal_background']} and {percent['changed_other_background']} of the predictions."
    )


def _bars(numbers: dict[str, float]) -> Figure:
    words = ("its own", "of the same prediction", "of another")
    right = [100 * numbers[f"accuracy{which}"] for which in ("", "_equal_background", "_other_background")]
    astray = [0.0, 100 * numbers["says_so_elsewhere"], 100 * numbers["follows_background"]]
    sets = (("label of the foreground", right, "@arm1"), ("label of the other background", astray, "@bad"))
    traces = [
        {"type": "bar", "x": list(words), "y": y, "name": name, "marker": {"color": colour}} for name, y, colour in sets
    ]
    across, up = {"title": {"text": "background"}}, {"title": {"text": "% of predictions"}, "range": [0, 100]}
    said = "; ".join(f"{word} {value:.0f} %" for word, value in zip(words, right, strict=True))
    return Figure(
        "What the model says by background",
        f"{numbers['images']:.0f} foregrounds, each on its own background and on {ROUNDS} others.",
        {"data": traces, "layout": {"barmode": "group", "xaxis": across, "yaxis": up}},
        f"Right on a background: {said}. The label of another background: {astray[1]:.0f} % when it is not there, "
        f"{astray[2]:.0f} % when it is.",
        260,
    )


def _pictures(subject: Subject, masks: Tensor, found: Swapped, order: list[int]) -> tuple[Picture, ...]:
    """Draw foregrounds as they are, and on a background that led the model astray."""
    if not order:
        return ()
    places, labels, own = order[:SHOWN], subject.split.groups.labels, subject.predicted[found.index]
    back = own[found.behind]
    turns = ((found.said == back) & (back != own)).int().argmax(dim=0)[places]
    front, behind = found.index[places], found.index[found.behind[turns, places]]
    images = torch.cat([_raw(subject.split, front), put_together(subject.split, masks, front, behind)])
    if images.is_floating_point():
        low, high = min(0.0, float(images.min())), max(1.0, float(images.max()))
        images = 255 * (images - low) / (high - low)
    parts = torch.split(rgb(images.float().round().to(torch.uint8)), len(places))
    lines = [
        f"{int(a)}: label {labels[int(subject.y[a])]}, predicted {labels[int(subject.predicted[a])]}; on the "
        f"background of {int(b)}, predicted {labels[int(subject.predicted[b])]}."
        for a, b in zip(front, behind, strict=True)
    ]
    return (
        Picture(
            "Foregrounds that follow the background",
            "\n".join(lines),
            encode({"image": parts[0], "swapped": parts[1]}, [str(int(row)) for row in front]),
            f"{len(places)} rows of 2 columns: the image, and its foreground on another background.",
        ),
    )


def _nothing(reason: str) -> Finding:
    return Finding(NAME, "No background was swapped", 0.0, False, None, f"Not answered: {reason}.", "Nothing to do.")
