r"""Swapped backgrounds: does the model predict the object, or its background?

Foregrounds :math:`i` are put on the backgrounds of randomly chosen images :math:`j`, each used equally often. A
background is the image without its foreground, filled smoothly from its surroundings. With the predictions :math:`\hat
y` of the original images, :math:`o_{ij}` of the swapped ones, and :math:`K` labels, the statistic is

.. math:: T = P(o_{ij} = \hat y_j \mid \hat y_j \ne \hat y_i)
    - \frac{1}{K - 1} P(o_{ij} \ne \hat y_i \mid \hat y_j = \hat y_i),

how much more often a foreground gets the prediction of its background image than it would by chance. Null hypothesis:
the prediction of a swapped image is independent of that of its background image; the latter are permuted. Severity:
:math:`T`, at least 0: the fraction of predictions that the background decides.

Limits: the background may be legitimate evidence, and a filled region may keep the outline of the removed object.

Xiao, Engstrom, Ilyas and Madry, "Noise or Signal: The Role of Image Backgrounds in Object Recognition", ICLR 2021,
arXiv:2006.09994; backgrounds with the same and other predictions correspond to their Mixed-Same and Mixed-Rand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from spurless.auditing._context import AuditContext, make_finding, not_tested, top_rows
from spurless.auditing._figures import MAX_IMAGES, Axis, Series, bars
from spurless.auditing._permutation import p_value
from spurless.core.errors import InputError
from spurless.core.figures import Figure, Picture
from spurless.core.findings import Finding
from spurless.core.progress import progress_reporter
from spurless.data.split import Split
from spurless.explain.overlays import encode_grid, has_images, to_rgb
from spurless.metrics.intervals import wilson_intervals
from spurless.train.evaluate import predict

NAME = "swapped-backgrounds"
QUESTION = "Does the model predict the object, or its background?"
MIN_EFFECT = 0.25  # smallest severity that is flagged: a filled region keeps traces of the removed object
MAX_EXAMPLES = 500  # images, sampled at random if there are more
N_BACKGROUNDS = 2  # backgrounds that each foreground is put on
MIN_EXAMPLES = 20
BATCH_SIZE = 64  # swapped images that are made at once


@dataclass(frozen=True, eq=False)
class SwappedPredictions:
    """Predictions of foregrounds on other backgrounds."""

    index: Tensor  # the images, ``(n,)``; each is used as foreground and as background
    behind: Tensor  # position in ``index`` of the image that gives the background, ``(backgrounds, n)``
    predicted: Tensor  # ``(backgrounds, n)``


def audit_swapped_backgrounds(context: AuditContext) -> Finding:
    """Return whether foregrounds on other backgrounds get the prediction of the background image."""
    masks = context.masks
    if not has_images(context.split):
        return not_tested(NAME, "Not tested: these examples are not images.")
    if masks is None:
        return not_tested(NAME, "Not tested: there are no masks.", "Pass masks of the foreground.")
    check_masks(context.split, masks)
    index = _sample(context, masks)
    if len(index) < MIN_EXAMPLES or len(torch.unique(context.predicted[index])) < 2:
        reason = "too few images have a foreground and a background, or all have the same prediction"
        return not_tested(NAME, f"Not tested: {reason}.")
    swapped = predict_swapped(context, masks, index)
    y, original, n_classes = context.y[index], context.predicted[index], context.logits.shape[1]
    generator = context.seeds.generator(NAME, "predictions")
    order = torch.stack([torch.randperm(len(original), generator=generator) for _ in range(context.permutations)])
    observed = compute_following(swapped, original, original[None], n_classes)
    null = compute_following(swapped, original, original[order], n_classes)
    p = p_value(float(observed), null)
    flagged = p <= context.level and float(observed) >= MIN_EFFECT
    behind, predicted = original[swapped.behind], swapped.predicted
    other = behind != original
    numbers = {
        "follows_background": _mean((predicted == behind)[other]),
        "says_so_elsewhere": _mean((predicted != original)[~other]) / max(1, n_classes - 1),
        "accuracy": _mean(original == y),
        "accuracy_other_background": _mean((predicted == y)[other]),
        "accuracy_equal_background": _mean((predicted == y)[~other]),
        "changed_other_background": _mean((predicted != original)[other]),
        "changed_equal_background": _mean((predicted != original)[~other]),
        "images": float(len(index)), "swaps": float(other.sum()),
    }  # fmt: skip
    clearest = top_rows(context.margin[index], ((predicted == behind) & other).any(dim=0))
    return make_finding(
        NAME,
        (p, float(observed), flagged),
        "The model follows the background: an object is predicted as the image that it is put on",
        "The model does not follow the background",
        _describe(numbers, int((predicted == behind)[other].sum()), p),
        "Vary the backgrounds of the training images, for example by swapping them as here, or repair the model with "
        "masktune; with dfr or group-dro if the kind of background is known.",
        shortcut="the background" if flagged else None,
        numbers=numbers,
        rows=tuple(index[list(clearest)].tolist()),
        items=(_plot(numbers), *(_draw_images(context, masks, swapped, clearest) if flagged else ())),
    )


def predict_swapped(context: AuditContext, masks: Tensor, index: Tensor) -> SwappedPredictions:
    """Put the foreground of every image on the backgrounds of ``N_BACKGROUNDS`` others, and predict."""
    generator = context.seeds.generator(NAME, "backgrounds")
    behind = torch.stack([torch.randperm(len(index), generator=generator) for _ in range(N_BACKGROUNDS)])
    device = next((p.device for p in context.model.parameters()), torch.device("cpu"))
    report, predicted = progress_reporter("swapped backgrounds", behind.numel()), []
    front = index.expand(N_BACKGROUNDS, -1).flatten()
    for start in range(0, len(front), BATCH_SIZE):
        rows, back = front[start : start + BATCH_SIZE], index[behind.flatten()[start : start + BATCH_SIZE]]
        images = swap_backgrounds(context.split, masks, rows, back)
        predicted.append(predict(context.model, replace(context.split.select(rows), x=images, hidden=None), device))
        report(start + len(rows))
    return SwappedPredictions(index, behind, torch.cat(predicted).view_as(behind))


def compute_following(swapped: SwappedPredictions, original: Tensor, behind: Tensor, n_classes: int) -> Tensor:
    """Return the statistic for each row of background predictions ``(B, n)``; ``original`` are those of foregrounds.

    Example:
        >>> swapped = SwappedPredictions(torch.arange(3), torch.tensor([[1, 2, 0]]), torch.tensor([[0, 1, 0]]))
        >>> compute_following(swapped, torch.tensor([0, 0, 1]), torch.tensor([[0, 0, 1]]), 2)
        tensor([1.], dtype=torch.float64)
    """
    back = behind[:, swapped.behind]  # (B, backgrounds, n)
    other = back != original
    followed = ((swapped.predicted == back) & other).sum(dim=(1, 2)) / other.sum(dim=(1, 2)).clamp(min=1).double()
    changed = ((swapped.predicted != original) & ~other).sum(dim=(1, 2))
    return followed - changed / (~other).sum(dim=(1, 2)).clamp(min=1).double() / max(1, n_classes - 1)


def swap_backgrounds(split: Split, masks: Tensor, front: Tensor, behind: Tensor) -> Tensor:
    """Return the foregrounds of images on the backgrounds of others, in the raw scale and type."""
    foreground, background = _raw_images(split, front), _raw_images(split, behind)
    filled = fill_masked(background.float(), masks[behind].bool())
    images = torch.where(masks[front].bool()[:, None], foreground.float(), filled)
    return images.to(foreground.dtype) if foreground.is_floating_point() else images.round().to(foreground.dtype)


def fill_masked(images: Tensor, masks: Tensor) -> Tensor:
    """Fill masked pixels from their surroundings, from coarse to fine.

    Example:
        >>> image = torch.tensor([[[[1.0, 1.0, 9.0, 5.0]]]])
        >>> fill_masked(image, torch.tensor([[[False, False, True, False]]])).flatten().tolist()
        [1.0, 1.0, 4.0, 5.0]
    """
    known = (~masks)[:, None].float()
    return _fill_unknown(images * known, known)


def check_masks(split: Split, masks: Tensor) -> None:
    """Raise InputError if the number or the size of the masks differs from that of the images."""
    x: Any = split.x
    expected = (len(split), *x[0].shape[1:])
    if tuple(masks.shape) != expected:
        raise InputError("the masks do not fit the images", expected=f"shape {expected}", got=tuple(masks.shape))


def _fill_unknown(sums: Tensor, known: Tensor) -> Tensor:
    """Return the mean of known pixels, and that of the coarser image elsewhere."""
    height, width = sums.shape[2:]
    mean = sums / known.clamp(min=1e-12)
    if height * width == 1 or bool((known > 0).all()):
        return mean
    window = (2 if height > 1 else 1, 2 if width > 1 else 1)
    coarse = _fill_unknown(*(avg_pool2d(v, window, ceil_mode=True) for v in (sums, known)))
    return torch.where(known > 0, mean, interpolate(coarse, size=(height, width), mode="bilinear"))


def _sample(context: AuditContext, masks: Tensor) -> Tensor:
    """Return up to ``MAX_EXAMPLES`` images that have both a foreground and a background."""
    fractions = torch.tensor([float(mask.float().mean()) for mask in masks.cpu()])
    rows = ((fractions > 0) & (fractions < 1)).nonzero().flatten()
    generator = context.seeds.generator(NAME, "images")
    return rows[torch.randperm(len(rows), generator=generator)[:MAX_EXAMPLES]].sort().values


def _raw_images(split: Split, index: Tensor) -> Tensor:
    x: Any = split.x
    return torch.stack([x[int(i)] for i in index]).cpu()


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if len(values) else 0.0


def _describe(numbers: dict[str, float], followed: int, p: float) -> str:
    n, percent = int(numbers["swaps"]), {key: f"{100 * value:.0f} %" for key, value in numbers.items()}
    low, high = (100 * float(v) for v in wilson_intervals(followed, max(1, n)))
    return (
        f"On {n} backgrounds of images with another prediction, {followed} foregrounds get that prediction, "
        f"{percent['follows_background']} (95 % interval {low:.0f} to {high:.0f}); by chance "
        f"{percent['says_so_elsewhere']} get it (p = {p:.3g}). The accuracy is {percent['accuracy']} on the original "
        f"images, {percent['accuracy_equal_background']} on backgrounds of images with the same prediction and "
        f"{percent['accuracy_other_background']} on those of others; these change "
        f"{percent['changed_equal_background']} and {percent['changed_other_background']} of the predictions."
    )


def _plot(numbers: dict[str, float]) -> Figure:
    backgrounds = ["original", "same prediction", "other prediction"]
    accuracy = [100 * numbers[f"accuracy{which}"] for which in ("", "_equal_background", "_other_background")]
    followed = [0.0, 100 * numbers["says_so_elsewhere"], 100 * numbers["follows_background"]]
    caption = f"{numbers['images']:.0f} foregrounds, each on its original background and on {N_BACKGROUNDS} others."
    series = [
        Series("label of the foreground", accuracy, "@series1"),
        Series("label of the other background", followed, "@bad"),
    ]
    text, axis = ("Predictions by background", caption), Axis("% of predictions", (0, 100))
    return bars(text, backgrounds, series, values=axis, category_title="background")


def _draw_images(
    context: AuditContext, masks: Tensor, swapped: SwappedPredictions, order: tuple[int, ...]
) -> tuple[Picture, ...]:
    """Draw images, and their foregrounds on a background that changed the prediction."""
    top, labels, original = list(order[:MAX_IMAGES]), context.split.groups.labels, context.predicted[swapped.index]
    back = original[swapped.behind]
    which = ((swapped.predicted == back) & (back != original)).int().argmax(dim=0)[top]
    front, behind = swapped.index[top], swapped.index[swapped.behind[which, top]]
    images = torch.cat([_raw_images(context.split, front), swap_backgrounds(context.split, masks, front, behind)])
    if images.is_floating_point():
        low, high = min(0.0, float(images.min())), max(1.0, float(images.max()))
        images = 255 * (images - low) / (high - low)
    parts = torch.split(to_rgb(images.float().round().to(torch.uint8)), len(top))
    lines = [
        f"{int(a)}: label {labels[int(context.y[a])]}, predicted {labels[int(context.predicted[a])]}; on the "
        f"background of {int(b)}, predicted {labels[int(context.predicted[b])]}."
        for a, b in zip(front, behind, strict=True)
    ]
    return (
        Picture(
            "Foregrounds that follow the background",
            "\n".join(lines),
            encode_grid({"image": parts[0], "swapped": parts[1]}, [str(int(row)) for row in front]),
            f"{len(top)} rows of 2 columns: the image, and its foreground on another background.",
        ),
    )
