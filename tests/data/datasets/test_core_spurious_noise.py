"""Core, spurious, noise: the moments of every component, and the numbers that the docstring states."""

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.data import load
from spurless.data.datasets.synthetic import CoreSpuriousNoiseConfig, core_spurious_noise
from spurless.data.split import Split


def inputs(split: Split) -> Tensor:
    assert isinstance(split.x, Tensor)
    return split.x


def test_the_components_have_the_papers_means_and_variances() -> None:
    n = 200_000
    split = core_spurious_noise(CoreSpuriousNoiseConfig(n_train=n)).train
    means = torch.stack([2.0 * split.y - 1, split.a.float(), torch.zeros(n)], dim=1)
    noise = (inputs(split) - means).double()
    variance = torch.tensor([0.6, 0.1, 0.1], dtype=torch.double)
    assert (noise.mean(dim=0).abs() < 4 * (variance / n).sqrt()).all()
    assert ((noise.var(dim=0) - variance).abs() < 4 * variance * (2 / n) ** 0.5).all()
    assert (torch.corrcoef(noise.T) - torch.eye(3)).abs().max() < 4 / n**0.5


def test_the_attribute_agrees_on_train_and_val_and_misleads_on_test() -> None:
    data = core_spurious_noise()
    for split, share in ((data.train, 0.95), (data.val, 0.95), (data.test, 0.1)):
        assert len(split) == 5000
        assert abs(float((split.a == split.y).double().mean()) - share) < 4 * (share * (1 - share) / 5000) ** 0.5


def logistic_regression(seed: int, core_variance: float, other_variance: float) -> tuple[float, float]:
    from sklearn.linear_model import LogisticRegression

    config = CoreSpuriousNoiseConfig(core_variance, other_variance, other_variance, seed=seed)
    train = core_spurious_noise(config).train
    x, y = inputs(train).numpy(), train.y.numpy()
    right = torch.from_numpy(LogisticRegression().fit(x, y).predict(x) == y).double()
    return 100 * float(right.mean()), 100 * min(float(right[train.g == g].mean()) for g in range(4))


@pytest.mark.parametrize(
    ("core", "other", "average", "worst"),
    [(0.6, 0.1, 95.3, 61.1), (0.36, 0.01, 98.4, 77.5)],  # variances; standard deviations
)
def test_logistic_regression_scores_what_the_docstring_says(
    core: float, other: float, average: float, worst: float
) -> None:
    scores = torch.tensor([logistic_regression(seed, core, other) for seed in range(10)])
    assert scores.mean(dim=0).tolist() == pytest.approx([average, worst], abs=0.1)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("agreement", 1.2),
        ("test_agreement", -0.2),
        ("core_variance", -1.0),
        ("n_test", 0),
    ],
)
def test_bad_options_are_refused(option: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"option '{option}'.*got '?{value}"):
        load("core-spurious-noise", **{option: value})
