"""Representations: sizes, in both modes, and the model is left as it was."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.models.classifier import Classifier
from spurless.models.features import collect_features, collect_magnitudes


def batches(*parts: Tensor) -> list[SimpleNamespace]:
    return [SimpleNamespace(x=part) for part in parts]


def normed() -> Classifier:
    """A batch norm that remembers mean 1 and variance 4, then dropout."""
    norm = nn.BatchNorm1d(2, eps=1e-12)
    norm.running_mean, norm.running_var = torch.full((2,), 1.0), torch.full((2,), 4.0)
    return Classifier(nn.Sequential(norm, nn.Dropout(0.5)), nn.Linear(2, 2))


X = torch.tensor([[-3.0, 1.0], [5.0, 3.0], [1.0, 2.0]])


def test_in_eval_mode_they_are_the_sizes_of_the_features() -> None:
    model = normed()
    assert collect_magnitudes(model, batches(X)).tolist() == [[2.0, 0.0], [2.0, 1.0], [0.0, 0.5]]
    assert torch.equal(collect_magnitudes(model, batches(X)), collect_features(model, batches(X)).abs())


def test_in_train_mode_each_batch_has_its_own_statistics_and_dropout_stays_off() -> None:
    found = collect_magnitudes(normed(), batches(X[:2], X[1:]), train_mode=True)
    torch.testing.assert_close(found, torch.ones(4, 2))  # of two numbers, both are one deviation from their mean


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("train_mode", [True, False])
def test_the_model_is_left_as_it_was(training: bool, train_mode: bool) -> None:
    model = normed().train(training)
    model.head.train(not training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    collect_magnitudes(model, batches(X), train_mode=train_mode)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(m.track_running_stats for m in model.modules() if isinstance(m, nn.BatchNorm1d))


def test_without_batch_norms_the_modes_are_one() -> None:
    model = Classifier(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), nn.Linear(3, 2))
    assert torch.equal(collect_magnitudes(model, batches(X)), collect_magnitudes(model, batches(X), train_mode=True))


def test_what_is_refused() -> None:
    model = normed()
    with pytest.raises(InputError, match=r"more than 1 value per channel.* Use batches of at least two examples"):
        collect_magnitudes(model, batches(X[:1]), train_mode=True)
    assert model.training  # put back after the error, too
    for train_mode in (True, False):
        with pytest.raises(InputError, match="no batches"):
            collect_magnitudes(model, [], train_mode=train_mode)
    with pytest.raises(InputError, match="features of example 0 are not finite"):
        collect_magnitudes(model, batches(X / 0), train_mode=True)
