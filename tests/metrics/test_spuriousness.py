"""Spuriousness: against numpy's medians, feature by feature."""

import numpy as np
import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.metrics.spuriousness import Neurons, RankedFeatures, Scores, biased_features, sfit, spuriousness


def by_hand(features: Tensor, y: Tensor, pred: Tensor, n_classes: int, absolute: bool) -> np.ndarray:
    """Return the scores by two medians each."""
    v = features.numpy().astype(np.float64)
    v = np.abs(v) if absolute else v
    found = np.full((n_classes, v.shape[1]), np.nan)
    for label in range(n_classes):
        here, right = (y == label).numpy(), (pred == y).numpy()
        if (here & right).any() and (here & ~right).any():
            found[label] = np.median(v[here & ~right], axis=0) - np.median(v[here & right], axis=0)
    return found


@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("share", [0.03, 0.3, 0.5, 0.9])
def test_the_scores_are_differences_of_numpys_medians(share: float, absolute: bool) -> None:
    for n in (40, 41, 42, 43, 200):  # even and odd parts, in all four combinations
        generator = torch.Generator().manual_seed(n)
        features = torch.randn(n, 7, generator=generator)
        features[:, 2:4] = features[:, 2:4].round()  # ties
        features[:, 4] = 1.0
        y = torch.randint(3, (n,), generator=generator)
        wrong = torch.rand(n, generator=generator) < share
        pred = torch.where(wrong, (y + 1) % 4, y)
        found = spuriousness(features, y, pred, 4, absolute=absolute)
        np.testing.assert_allclose(found.delta.numpy(), by_hand(features, y, pred, 4, absolute), atol=1e-6)
        assert found.incorrect.tolist() == [int((wrong & (y == label)).sum()) for label in range(4)]
        assert found.correct.tolist() == [int((~wrong & (y == label)).sum()) for label in range(4)]
        assert 3 in found.skipped  # nobody has that label


def test_one_ranking_serves_many_predictions() -> None:
    generator = torch.Generator().manual_seed(0)
    features, y = torch.randn(60, 3, generator=generator), torch.randint(2, (60,), generator=generator)
    ranked = RankedFeatures(features, y, 2)
    for _ in range(5):
        pred = torch.randint(2, (60,), generator=generator)
        np.testing.assert_allclose(ranked.scores(pred).delta.numpy(), by_hand(features, y, pred, 2, True), atol=1e-6)


def test_a_label_without_mistakes_or_without_hits_is_skipped() -> None:
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    found = spuriousness(torch.arange(6.0)[:, None], y, torch.tensor([0, 0, 0, 0, 2, 0]), 3)
    assert found.skipped == (0, 1)
    assert found.delta[:2].isnan().all()
    assert found.delta[2].item() == 1.0  # 5 - 4
    assert sfit(found) == 1.0


def test_a_feature_is_biased_if_one_label_says_so_and_by_more_than_the_threshold() -> None:
    delta = torch.tensor([[0.5, -1.0, 0.0, -2.0], [-1.0, 0.25, 0.0, -3.0], [torch.nan] * 4])
    scores = Scores(delta, torch.ones(3), torch.ones(3))
    assert biased_features(scores).tolist() == [True, True, False, False]
    assert biased_features(scores, 0.25).tolist() == [True, False, False, False]
    assert biased_features(scores, -1.5).tolist() == [True, True, True, False]
    assert sfit(scores) == pytest.approx(0.5 + 1 + 2 + 1 + 0.25 + 3)


def test_without_any_mistake_nothing_is_biased_and_the_fitness_is_zero() -> None:
    found = spuriousness(torch.rand(4, 2), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 1]), 2)
    assert not biased_features(found).any()
    assert sfit(found) == 0.0
    assert found.skipped == (0, 1)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"one row per label"):
        RankedFeatures(torch.rand(3, 2), torch.zeros(4, dtype=torch.long), 2)
    with pytest.raises(InputError, match=r"one prediction per example"):
        RankedFeatures(torch.rand(4, 2), torch.zeros(4, dtype=torch.long), 2).scores(torch.zeros(3))


NEURONS = Neurons(
    Scores(torch.tensor([[0.1, 0.9, -0.5], [torch.nan] * 3]), torch.tensor([2, 0]), torch.tensor([2, 4])),
    torch.tensor([True, True, False]),
    ("cat", "dog"),
    epoch=2,
    fitness=(1.0, 1.5),
)


def test_neurons_are_listed_from_both_ends() -> None:
    assert NEURONS.order[0].tolist() == [1, 0, 2]
    assert NEURONS.most_biased(0, 2) == [1, 0]
    assert NEURONS.least_biased(0, 2) == [2, 0]
    found = NEURONS.summary()
    top = found.pop("most_biased")
    assert found == {"epoch": 2, "suppressed": 2, "features": 3}
    assert top == {"cat": [[1, pytest.approx(0.9)], [0, pytest.approx(0.1)], [2, pytest.approx(-0.5)]]}


def test_the_examples_that_activate_a_neuron_most() -> None:
    features = torch.tensor([[0.0, 1.0], [0.0, -5.0], [0.0, 3.0], [0.0, 4.0]])
    assert NEURONS.top_examples(features, 1, 2) == [1, 3]  # by size
    assert NEURONS.top_examples(features, 1, 4, mask=torch.tensor([True, False, True, False])) == [2, 0]
    signed = Neurons(NEURONS.scores, NEURONS.suppressed, NEURONS.labels, 1, (1.0,), activations="signed")
    assert signed.top_examples(features, 1, 1) == [3]
