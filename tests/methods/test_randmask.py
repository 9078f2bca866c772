"""RandMask: a square is hidden in training, and only there."""

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.data import load
from spurless.data.loaders.tensors import from_tensors
from spurless.data.transforms import RandomFlip
from spurless.fitting import fit
from spurless.methods import make_method
from spurless.methods.randmask import RandMask
from spurless.models import Classifier, build
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, make_run

CPU = Compute("cpu")


def test_training_sees_holes_and_evaluation_does_not() -> None:
    from dataclasses import replace

    data = load("patched-digits", conflicting=0.5)
    data = replace(data, train=replace(data.train, x=torch.full_like(data.train.x, 200), augment=RandomFlip()))  # type: ignore[arg-type]
    seen: list[Tensor] = []
    model = build("linear", data)
    model.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    RandMask().fit(model, data, make_run(CPU, 0, TrainConfig(steps=3, batch_size=50)))
    holes = torch.cat(seen).eq(0).any(dim=1).flatten(1).sum(dim=1)
    sides = holes.double().sqrt()
    assert torch.equal(sides, sides.round())  # each hole is a square
    assert sides.min() >= 2
    assert sides.max() <= 14
    assert len(set(sides.tolist())) > 8


@pytest.mark.slow
def test_it_does_not_repair_what_it_covers_by_chance_only() -> None:
    data = load("patched-digits", conflicting=0.01, seed=0)
    train = {"steps": 170, "batch_size": 64, "lr": 0.01}
    plain = fit("erm", build("small-cnn", data, seed=0), data, train=train, compute=CPU).record.metrics
    random = fit("randmask", build("small-cnn", data, seed=0), data, train=train, compute=CPU).record.metrics
    assert abs((random["unbiased"] or 0) - (plain["unbiased"] or 0)) < 0.2
    assert (random["worst_group"] or 0) < 0.6  # MaskTune leaves 0.93 on the same model


def test_texts_and_holes_of_nothing_are_refused() -> None:
    data = load("negated-claims")
    with pytest.raises(InputError, match="RandMask supports images, but these data are texts"):
        fit("randmask", build("token-mean", data, vocabulary=64), data, train={"steps": 1}, compute=CPU)
    with pytest.raises(InputError, match=r"smallest.* must be at least 1"):
        make_method("randmask", smallest=0)


Y = torch.arange(120) % 2


def test_images_without_channels_are_taken() -> None:
    data = from_tensors(torch.rand(120, 6, 7), Y, Y)
    model = Classifier(nn.Flatten(), nn.Linear(42, 2))
    assert fit("randmask", model, data, train={"epochs": 1}, compute=CPU).record.metrics


class Summed(nn.Module):
    """Takes a dict of tensors."""

    def forward(self, num: Tensor, tab: Tensor) -> Tensor:
        return num + tab


def test_what_has_no_squares_is_refused_by_what_it_is() -> None:
    films = from_tensors(torch.rand(120, 1, 4, 4, 4), Y, Y)
    with pytest.raises(
        InputError, match=r"RandMask supports images, but these data are of shape \(1, 4, 4, 4\)\. Use erm\."
    ):
        fit("randmask", Classifier(nn.Flatten(), nn.Linear(64, 2)), films, compute=CPU)
    mixed = from_tensors({"num": torch.rand(120, 3), "tab": torch.rand(120, 3)}, Y, Y)
    with pytest.raises(InputError, match=r"these data are a dict of num and tab, without input_ids\. Use erm\."):
        fit("randmask", Classifier(Summed(), nn.Linear(3, 2)), mixed, compute=CPU)
