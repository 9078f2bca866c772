"""Embedding: the features of the model, and a head on them is the head of the model."""

from dataclasses import replace

import torch

from spurless.bench.fitting import fit
from spurless.data import load
from spurless.data.transforms import Normalise, RandomFlip
from spurless.models import build
from spurless.models.features import logits_of_features
from spurless.train.embed import embed
from spurless.train.evaluate import logits


def test_the_head_reads_the_embedded_inputs_as_it_reads_the_models_features() -> None:
    data = load("colored-digits")
    data = replace(data, train=replace(data.train, augment=RandomFlip(), transform=Normalise((0.5,) * 3, (0.5,) * 3)))
    model = build("small-cnn", data).train()
    features = embed(model, data)
    assert features.name == "colored-digits through small-cnn"
    assert model.training
    for name in ("train", "val", "test"):
        before, after = getattr(data, name), getattr(features, name)
        torch.testing.assert_close(logits_of_features(model, after.x), logits(model, before))
        assert torch.equal(after.g, before.g)
        assert after.augment is after.transform is None


def test_a_linear_model_on_them_is_a_linear_probe() -> None:
    data = load("colored-digits", conflicting=0.9)
    model = build("mlp", data, width=256)
    features = embed(model, data)
    settings = {"epochs": 20, "lr": 0.01, "optimiser": "adam"}
    probe = fit("erm", build("linear", features), features, train=settings)
    assert (probe.record.metrics["average"] or 0.0) > 0.5  # features of an untrained net; chance is 0.1
    assert probe.record.data["name"] == "colored-digits through mlp"
