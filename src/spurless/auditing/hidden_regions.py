r"""Hidden regions: does the region that a prediction depends on mislead the model?

The region is the top tenth of the pixels by the heat map of the predicted label (xGradCAM if the model has a feature
map, otherwise gradient times input), as in MaskTune. It is compared with the same mask, shifted cyclically by a quarter
to three quarters of each side. Let :math:`\hat y_i` be the prediction of example :math:`i`, :math:`h_i` that with the
hot region hidden, and :math:`m_{ir}` those with shifted regions hidden. With the dependence of a prediction on its hot
region, :math:`q_i = [h_i \ne \hat y_i] - \frac{1}{R} \sum_r [m_{ir} \ne \hat y_i]`, and its calibrated probability
:math:`p_i` (see :mod:`spurless.auditing._overreliance`), the statistic is

.. math:: Z = \sum_i q_i (p_i - [\hat y_i = y_i]),

how much less often such predictions are correct than the model's probabilities imply. Null hypothesis: labels are
sampled from the calibrated probabilities. (Counting recovered labels would not be a fair test: any second prediction
corrects errors of every model.) Severity, over the errors :math:`W`, at least 0:

.. math:: T = \frac{1}{|W|} \sum_{i \in W} \Big( [h_i = y_i] - \frac{1}{R} \sum_r [m_{ir} = y_i] \Big) .

Limits: it does not detect a shortcut that is everywhere, such as the colour of the whole image, or larger than the
region.

Asgari Taghanaki et al., "MaskTune", NeurIPS 2022, arXiv:2210.00055; Zeiler and Fergus, "Visualizing and Understanding
Convolutional Networks", ECCV 2014, arXiv:1311.2901, who hide parts of images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from spurless.auditing._context import AuditContext, make_finding, not_tested, top_rows
from spurless.auditing._figures import MAX_IMAGES, Axis, Series, bars, image_rows
from spurless.auditing._overreliance import calibrate_probabilities
from spurless.auditing._permutation import p_value
from spurless.core.figures import Figure, Picture
from spurless.core.findings import Finding
from spurless.core.progress import progress_reporter
from spurless.data.input_masks import InputMask
from spurless.data.split import Split
from spurless.data.transplants import Transplant
from spurless.explain.gradients import NoGradientError
from spurless.explain.maps import AUTO, compute_heat_maps
from spurless.explain.overlays import has_images
from spurless.metrics.intervals import wilson_intervals
from spurless.train.evaluate import predict

NAME = "hidden-regions"
QUESTION = "Does the region that a prediction depends on mislead the model: does hiding it correct errors?"
HOTTEST, NOT_HOTTEST = "the hottest region of the heat map", "everything but the hottest region"
MIN_EFFECT = 0.2  # smallest severity that is flagged; it is noisy if there are few errors
HIDDEN_FRACTION = 0.1  # fraction of the pixels that are hidden
N_SHIFTED = 3  # shifted regions that each hot region is compared with
MAX_EXAMPLES = 500  # images, sampled at random if there are more
MIN_ERRORS = 10


@dataclass(frozen=True, eq=False)
class HiddenPredictions:
    """Predictions of a sample of examples with regions hidden."""

    index: Tensor  # indices of the examples in the split
    masks: InputMask  # the hot regions
    hot: Tensor  # predictions with these hidden, ``(n,)``
    shifted: Tensor  # predictions with shifted regions hidden, ``(R, n)``


def audit_hidden_regions(context: AuditContext) -> Finding:
    """Return whether hiding the regions that predictions depend on corrects errors."""
    if not has_images(context.split):
        return not_tested(NAME, "Not tested: these examples are not images.")
    index = _sample(context)
    n_errors = int(context.incorrect[index].sum())
    if n_errors < MIN_ERRORS:
        count = f"{n_errors} error{'s' * (n_errors != 1)} in {len(index)} predictions"
        return not_tested(NAME, f"Not tested: the model makes {count}, which is too few.")
    try:
        hidden = predict_hidden(context, index)
    except NoGradientError:
        return not_tested(
            NAME, f"Not tested: no gradient of {context.model.name} reaches its input, so there are no heat maps."
        )
    y, predicted = context.y[index], context.predicted[index]
    p = overconfidence_p_value(context, hidden)
    severity = corrected_fraction(y, predicted, hidden)
    flagged = p <= context.level and severity >= MIN_EFFECT
    incorrect = predicted != y
    corrected = incorrect & (hidden.hot == y)
    fractions = {
        "accuracy": (predicted == y),
        "accuracy_hot_hidden": (hidden.hot == y),
        "accuracy_other_hidden": (hidden.shifted == y),
        "put_right_by_hot": (hidden.hot == y)[incorrect],
        "put_right_by_other": (hidden.shifted == y)[:, incorrect],
    }
    numbers = {name: float(values.double().mean()) for name, values in fractions.items()}
    numbers |= {"mistakes": float(n_errors), "images": float(len(index))}
    # the clearest errors are corrected by the hot region only, and have a large margin
    score = -(hidden.shifted == y).double().mean(dim=0) + 1e-3 * context.margin[index] / (1 + context.margin[index])
    rows = tuple(int(index[i]) for i in top_rows(score, corrected))
    return make_finding(
        NAME,
        (p, severity, flagged),
        "Errors depend on one region: with it hidden, the model predicts the true label",
        "Hiding the region that predictions depend on does not correct errors",
        _describe(numbers, int(corrected.sum()), n_errors, p),
        "Look at the regions below. If they are not what the label is about, repair the model with masktune, or vary "
        "these regions in the training images.",
        shortcut="the region that the prediction depends on" if flagged else None,
        numbers=numbers,
        rows=rows,
        items=(_plot(numbers), *(_draw_images(context, hidden, rows) if flagged else ())),
    )


def predict_hidden(context: AuditContext, index: Tensor) -> HiddenPredictions:
    """Predict examples with the hot region hidden, and with shifted regions hidden."""
    split = replace(context.split.select(index), augment=None)
    masks, value = find_hottest(context, split), _mean_pixel(split)
    device = next((p.device for p in context.model.parameters()), torch.device("cpu"))
    report = progress_reporter("hidden regions", 1 + N_SHIFTED)
    generator = context.seeds.generator(NAME, "moves")
    predicted = []
    for number in range(1 + N_SHIFTED):
        hidden = InputMask.of(shift_masks(masks, generator) if number else masks, value)
        hidden = hidden | split.hidden if isinstance(split.hidden, InputMask) else hidden
        predicted.append(predict(context.model, replace(split, hidden=hidden), device))
        report(number + 1)
    return HiddenPredictions(index, InputMask.of(masks, value), predicted[0], torch.stack(predicted[1:]))


def find_hottest(context: AuditContext, split: Split) -> Tensor:
    """Return masks of the pixels that the predictions of a split depend on most, in the size of the raw images.

    Raises:
        NoGradientError: no gradient of the model reaches its input.
    """
    x: Any = split.x
    heat, size = compute_heat_maps(context.model, split, how=AUTO), tuple(x[0].shape[1:])
    if tuple(heat.shape[1:]) != size:  # the model's input has another size than the raw images
        heat = interpolate(heat[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]
    return mask_hottest(heat)


def make_heat_transplants(context: AuditContext, pool: Split) -> tuple[Transplant, ...]:
    """Return the exchange of the region that the donor's prediction depends on most, and of everything else.

    The region is where the heat map of the donor is highest. It is another one for every donor, so a mark that changes
    its place is exchanged too.
    """
    x: Any = pool.x

    def find(donors: Tensor) -> Tensor:
        rows = torch.zeros(len(donors), dtype=torch.long, device=pool.y.device)
        split = replace(pool, x=pool.y, augment=None, hidden=None).select(rows)
        return find_hottest(context, replace(split, x=donors.to(x.dtype)))[:, None].to(donors.device)

    try:
        find(x[:1])
    except NoGradientError:
        return ()
    return (
        Transplant(HOTTEST, "central", lambda images, donors: torch.where(find(donors), donors, images)),
        Transplant(NOT_HOTTEST, "central", lambda images, donors: torch.where(find(donors), images, donors)),
    )


def corrected_fraction(y: Tensor, predicted: Tensor, hidden: HiddenPredictions) -> float:
    """Return the fraction of errors that hiding the hot region corrects, minus that of shifted regions.

    Example:
        >>> masks = InputMask.of(torch.zeros(3, 2, 2))
        >>> hot, shifted = torch.tensor([1, 1, 0]), torch.tensor([[0, 1, 0], [0, 0, 0]])
        >>> hidden = HiddenPredictions(torch.arange(3), masks, hot, shifted)
        >>> corrected_fraction(torch.tensor([1, 1, 0]), torch.tensor([0, 0, 0]), hidden)  # (1 - 0 + 1 - 1/2) / 2
        0.75
    """
    gain = (hidden.hot == y).double() - (hidden.shifted == y).double().mean(dim=0)
    return float(gain[y != predicted].mean()) if bool((y != predicted).any()) else 0.0


def overconfidence_p_value(context: AuditContext, hidden: HiddenPredictions) -> float:
    """Return the p-value that predictions which depend on the hot region are as often correct as others."""
    y, predicted = context.y[hidden.index], context.predicted[hidden.index]
    dependence = (hidden.hot != predicted).double() - (hidden.shifted != predicted).double().mean(dim=0)
    p = calibrate_probabilities(context.logits[hidden.index], y)
    confidence = p.gather(1, predicted[:, None])[:, 0]
    generator = context.seeds.generator(NAME, "beliefs")
    samples = torch.multinomial(p, context.permutations, replacement=True, generator=generator).T

    def statistic(labels: Tensor) -> Tensor:
        return (confidence - (labels == predicted).double()) @ dependence

    return p_value(float(statistic(y)), statistic(samples))


def mask_hottest(heat: Tensor, fraction: float = HIDDEN_FRACTION) -> Tensor:
    """Return masks of the pixels with the highest heat; a map of zeros gives an empty mask.

    Example:
        >>> mask_hottest(torch.tensor([[[0.0, 3.0], [1.0, 2.0]], [[0.0, 0.0], [0.0, 0.0]]]), 0.5).int().tolist()
        [[[0, 1], [0, 1]], [[0, 0], [0, 0]]]
    """
    flat = heat.flatten(1)
    top = flat.topk(max(1, round(fraction * flat.shape[1])), dim=1).indices
    masks = torch.zeros_like(flat, dtype=torch.bool).scatter(1, top, True)
    return (masks & (flat.amax(dim=1, keepdim=True) > 0)).view_as(heat)


def shift_masks(masks: Tensor, generator: torch.Generator) -> Tensor:
    """Shift every mask cyclically by a random quarter to three quarters of each side."""
    n, height, width = masks.shape
    indices = []
    for side in (height, width):
        quarter = side // 4
        shift = quarter + (torch.rand(n, generator=generator) * (side - 2 * quarter)).long()
        indices.append((torch.arange(side) - shift[:, None]) % side)
    rows, columns = indices
    return masks[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]


def _sample(context: AuditContext) -> Tensor:
    if len(context) <= MAX_EXAMPLES:
        return torch.arange(len(context))
    generator = context.seeds.generator(NAME, "images")
    return torch.randperm(len(context), generator=generator)[:MAX_EXAMPLES].sort().values


def _mean_pixel(split: Split) -> tuple[float, ...]:
    """Return the mean of every channel in the raw scale, which replaces hidden pixels."""
    x: Any = split.x
    means = torch.stack([x[i].double().mean(dim=(1, 2)) for i in range(len(split))])
    return tuple(means.mean(dim=0).tolist())


def _describe(numbers: dict[str, float], corrected: int, n_errors: int, p: float) -> str:
    low, high = (100 * float(v) for v in wilson_intervals(corrected, n_errors))
    return (
        f"Hiding the region that a prediction depends on corrects {corrected} of {n_errors} errors, "
        f"{100 * corrected / n_errors:.0f} % (95 % interval {low:.0f} to {high:.0f}); other regions of the same size "
        f"correct {100 * numbers['put_right_by_other']:.0f} % (p = {p:.3g}). The accuracy is "
        f"{100 * numbers['accuracy']:.0f} %, {100 * numbers['accuracy_hot_hidden']:.0f} % with the region hidden and "
        f"{100 * numbers['accuracy_other_hidden']:.0f} % with other regions hidden."
    )


def _plot(numbers: dict[str, float]) -> Figure:
    keys = {
        "all images": ("accuracy", "accuracy_hot_hidden", "accuracy_other_hidden"),
        "errors": (None, "put_right_by_hot", "put_right_by_other"),
    }
    values = {name: [100 * numbers[key] if key else 0.0 for key in row] for name, row in keys.items()}
    caption = f"Of all {numbers['images']:.0f} images, and of the {numbers['mistakes']:.0f} incorrect predictions."
    text, names = ("Accuracy with regions hidden", caption), ["nothing", "hot region", "other regions"]
    series = [
        Series(name, row, colour) for (name, row), colour in zip(values.items(), ("@series1", "@bad"), strict=True)
    ]
    return bars(text, names, series, values=Axis("accuracy in %", (0, 100)), category_title="hidden")


def _draw_images(context: AuditContext, hidden: HiddenPredictions, rows: tuple[int, ...]) -> tuple[Picture, ...]:
    indices = torch.stack([(hidden.index == row).nonzero().flatten()[0] for row in rows[:MAX_IMAGES]])
    return image_rows(context, rows, "Errors that hiding the region corrects", hidden.masks.select(indices))
