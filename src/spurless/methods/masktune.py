r"""MaskTune: hide the regions that the model used, and fine-tune it, so that it must use other features.

Asgari Taghanaki, Khani, Khani, Gholami, Tran, Mahdavi-Amiri and Hamarneh, "MaskTune: Mitigating Spurious Correlations
by Forcing to Explore", NeurIPS 2022, arXiv:2210.00055.

A heat map :math:`a_i` shows which regions of example :math:`x_i` the trained model used. Regions above a threshold are
hidden, and the model is fine-tuned for exactly one epoch on the rest:

.. math:: \hat x_i = x_i \odot [\, a_i \le \tau_i \,], \qquad \tau_i = \mu_i + k \sigma_i,

with mean and standard deviation of the map's strictly positive values. With several shortcuts, this is repeated: masks
of the fine-tuned model are added to the old ones. It does not help against a shortcut that is everywhere, such as the
colour of a whole image.

Deviations:
    * The optimiser starts from zero; the authors continue with the momentum of ERM.
    * Masks are stored as bits next to the data and applied to raw pixels at the size that the network saw. The authors
      re-encode images, and stretch maps of a cropped input over the whole image.
    * Fine-tuning starts from the model that computed the maps; the authors mix the best and the last checkpoint.
    * The paper fine-tunes at the last, decayed learning rate (``rate="last"``), its code at the initial one, which is
      the default here: 98.8 against 93.5 % on the biased test of the claim ``masktune/biased-mnist``, three seeds.
    * Mean and deviation are of the positive values, as in the authors' code; the paper takes all values of the map. As
      in that code the map is enlarged, then thresholded; the paper thresholds at the layer's size and enlarges the
      mask.
    * The last learning rate is almost 0 if the schedule ends at 0, such as ``cosine``: there is a warning, since such a
      model hardly changes.
    * Rows of features and texts are masked too: by the gradient times the input, of features or of tokens. The first
      and the last token of every text are kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from spurless.core.config import CheckedConfig, Count, Finite, Fraction, InnerFraction
from spurless.core.errors import InputError, SpurlessWarning
from spurless.data.checks import describe_kind
from spurless.data.input_masks import InputMask, SoftInputMask, join_masks
from spurless.data.loader import shuffled_order
from spurless.data.split import Split, Splits
from spurless.explain import iterate_heat_maps
from spurless.methods.base import ConfiguredMethod, Info
from spurless.methods.erm import mean_loss
from spurless.models.classifier import Classifier
from spurless.train.checks import check_trainable
from spurless.train.config import TrainConfig, learning_rate
from spurless.train.evaluate import evaluate
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage

Threshold = Literal["sigma", "mean", "top", "soft"]
MIN_LR_RATIO = 1e-5
"""ratio of last to initial learning rate below which there is a warning; the paper's schedules end at 1/8 and 1/2048"""


@dataclass(frozen=True)
class MaskTuneConfig(CheckedConfig):
    """How regions are hidden, and how the model is fine-tuned."""

    threshold: Threshold = "sigma"
    """hide values above mean + k standard deviations of the map (sigma), above the mean of all maps (mean), or the
    largest fraction (top); soft: fade every pixel by its heat"""
    k: Finite = 2.0  # standard deviations; the paper
    top: InnerFraction = 0.05  # fraction of the pixels for the threshold top
    value: Literal["zero", "mean"] = "zero"  # fill value of a hidden pixel: 0, or the mean of the training data
    explainer: str = "auto"  # xgradcam if the model has feature maps; see spurless.explain.EXPLAINERS
    layer: str | None = None  # of the map; None: found automatically
    epochs: Count = 1  # of fine-tuning; the paper: exactly one
    rate: Literal["initial", "last"] = "initial"  # learning rate of the training before
    iterations: Count = 1  # of masking and fine-tuning; the paper: 3 for two shortcuts
    accumulate: bool = True  # add new masks to the old ones
    fitted: Fraction = 0.75  # minimal accuracy on the masked training data for a further iteration to be accepted


class MaskTune(ConfiguredMethod[MaskTuneConfig]):
    """Fine-tune on inputs without the regions that the model used; no attributes."""

    info = Info(
        "masktune",
        "Asgari Taghanaki et al. 2022",
        "hide the regions that the model used, then fine-tune it for one epoch on the rest",
        start="trained",
        score="product",
        title="MaskTune",
        fix="fast",
    )
    presets: ClassVar[Mapping[str, MaskTuneConfig]] = {
        "biased-mnist": MaskTuneConfig(),
        "paper": MaskTuneConfig(rate="last"),
        "two-squares": MaskTuneConfig(iterations=3),
        "digits": MaskTuneConfig(epochs=5),  # for the embedded digits, of which one epoch has only a few steps
    }

    def check(self, model: Classifier, data: Splits) -> None:
        """Raise if the model cannot be trained or the inputs have no heat map."""
        check_trainable(model)
        if isinstance(data.train.x, dict) and "input_ids" not in data.train.x:
            raise InputError(
                "MaskTune supports images, rows of numbers and texts",
                got=describe_kind(data.train.x),
                hint="Use another method, such as jtt-head.",
            )

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Mask and fine-tune ``iterations`` times; stop before the masked data can no longer be fitted."""
        train, model = data.train, model.to(run.device)
        for number in range(1, self.config.iterations + 1):
            visible = train if self.config.accumulate else data.train
            with run.timed("masks"):
                hidden = compute_masks(model, visible, self.config, run)
            hidden = join_masks(visible.hidden, hidden)
            train, before = replace(data.train, hidden=hidden), deepcopy(model)
            self._finetune(model, train, run, number)
            if number > 1 and evaluate(model, train, run.device, run.workers).average < self.config.fitted:
                warnings.warn(
                    f"MaskTune stopped after {number - 1} iterations: the rest of the training data after the next one "
                    f"({1 - hidden.fraction:.0%}) could not be fitted.",
                    SpurlessWarning,
                    stacklevel=2,
                )
                return before
        return model

    def _finetune(self, model: Classifier, train: Split, run: Run, number: int) -> None:
        order = shuffled_order(len(train), run.seeds.child("tune", number))
        loader = run.loader(train, order)
        lr, epochs = _finetune_lr(run.train, loader.steps(), self.config.rate), self.config.epochs
        train_config = replace(run.train, epochs=epochs, steps=None, lr=lr, schedule="constant", warmup_steps=0)
        minimise(model, loader, mean_loss, run, Stage(f"tune {number}", train_config, static=True, select=False))


def compute_masks(model: Classifier, train: Split, config: MaskTuneConfig, run: Run) -> InputMask | SoftInputMask:
    """Return masks of the regions where the model's heat maps are above the threshold."""
    fill, size = _fill_value(train, config), _raw_size(train)

    def heat() -> Iterator[Tensor]:
        for part in iterate_heat_maps(model, train, how=config.explainer, layer=config.layer, device=run.device):
            yield _resize(part, size)

    if config.threshold == "soft":
        return SoftInputMask(torch.cat([(255 * part).round().to(torch.uint8).cpu() for part in heat()]), fill)
    level = _dataset_mean(heat()) if config.threshold == "mean" else None
    parts = [InputMask.of(above_threshold(part, config, level).cpu(), fill) for part in heat()]
    return replace(parts[0], bits=torch.cat([part.bits for part in parts]))


def above_threshold(heat: Tensor, config: MaskTuneConfig, level: float | None = None) -> Tensor:
    """Return where heat maps ``(N, ...)`` are above the threshold.

    Mean and deviation are over values above 0; a map without positive values hides nothing.

    Example:
        >>> heat = torch.tensor([[0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 10.0]])
        >>> above_threshold(heat, MaskTuneConfig(k=2.0)).nonzero()[:, 1]  # mean 2.125, deviation 2.976
        tensor([9])
    """
    flat = heat.flatten(1)
    if config.threshold == "top":
        n_visible = flat.shape[1] - max(1, round(config.top * flat.shape[1]))
        limit = flat.kthvalue(max(1, n_visible), dim=1, keepdim=True).values
        return ((flat > limit) & (flat > 0)).view_as(heat)
    if level is not None:
        return heat > level
    positive = flat > 0
    count = positive.sum(dim=1, keepdim=True).clamp(min=1)
    mean = (flat * positive).sum(dim=1, keepdim=True) / count
    deviation = (((flat - mean) * positive).square().sum(dim=1, keepdim=True) / count).sqrt()
    return (flat > (mean + config.k * deviation).clamp(min=torch.finfo(flat.dtype).tiny)).view_as(heat)


def _raw_size(train: Split) -> tuple[int, ...] | None:
    """Return height and width of the raw images, before any transform; None for other inputs."""
    raw = replace(train.select(torch.arange(1)), transform=None, hidden=None).example()
    return tuple(raw.shape[2:]) if isinstance(raw, Tensor) and raw.dim() == 4 else None


def _resize(heat: Tensor, size: tuple[int, ...] | None) -> Tensor:
    """Return maps at the size of the raw images, by the nearest pixel, as the authors' code does."""
    if size is None or heat.dim() != 3 or tuple(heat.shape[1:]) == size:
        return heat
    return interpolate(heat[:, None], size=size, mode="nearest-exact")[:, 0]


def _dataset_mean(heat: Iterator[Tensor]) -> float:
    total, count = 0.0, 0
    for part in heat:
        total, count = total + float(part.double().sum()), count + part.numel()
    return total / max(1, count)


def _fill_value(train: Split, config: MaskTuneConfig) -> tuple[float, ...]:
    """Return the value of a hidden pixel, in the raw scale."""
    if config.value == "zero" or isinstance(train.x, dict):
        return (0.0,)
    sample: Any = train.select(torch.arange(0, len(train), max(1, len(train) // 2000))).x
    x = sample if isinstance(sample, Tensor) else torch.stack([sample[i] for i in range(len(sample))])
    return tuple(x.double().mean(dim=[d for d in range(x.dim()) if d != 1]).tolist()) if x.dim() == 4 else (0.0,)


def _finetune_lr(train: TrainConfig, per_epoch: int, which: str) -> float:
    if which == "initial":
        return train.lr
    total = train.steps or train.epochs * per_epoch
    last = learning_rate(train, total - 1, total, per_epoch)
    if last < MIN_LR_RATIO * train.lr:
        warnings.warn(
            f"MaskTune fine-tunes at the last learning rate of the schedule {train.schedule!r}, which is {last:.1g}: "
            "the model will hardly change. Use rate='initial', or a schedule that does not end at 0, such as step.",
            SpurlessWarning,
            stacklevel=4,
        )
    return last
