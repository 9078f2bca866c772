"""Views: heads that never saw the example, many labellings at once, and the upper of two clusters."""

import pytest
import torch
from torch import Tensor, nn

from spurless.auditing import _minority_views as views
from spurless.auditing._context import AuditContext
from spurless.auditing._minority_views import FOLDS, VIEWS, find_upper_cluster, mean_kappa, run_views
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split
from spurless.models.classifier import Classifier


def drawn(seed: int = 0, n: int = 60, classes: int = 3) -> AuditContext:
    g = torch.Generator().manual_seed(seed)
    features, y = torch.randn(n, 20, generator=g), torch.randint(classes, (n,), generator=g)
    features[:, :classes] += 2 * nn.functional.one_hot(y, classes)
    logits = features[:, :classes] + torch.randn(n, classes, generator=g)
    split = Split(features, y, torch.full_like(y, -1), Groups(tuple("abc"[:classes])))
    return AuditContext(Classifier(nn.Identity(), nn.Linear(20, classes)), split, features, logits, seeds=Seeds(seed))


def test_many_labellings_at_once_are_each_as_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = drawn()
    y = torch.stack([found.y, found.y[torch.randperm(60)], found.y.flip(0)])
    together, losses = run_views(found, y)
    assert together.shape == (len(VIEWS), 3, 60)
    for i in range(3):
        alone, loss = run_views(found, y[i : i + 1])
        assert torch.equal(alone[:, 0], together[:, i])
        assert losses[:, i] == pytest.approx(loss[:, 0], abs=1e-5)
    monkeypatch.setattr(views, "MAX_ELEMENTS", 200)
    assert torch.equal(run_views(found, y)[0], together)


def test_a_head_does_not_learn_from_whom_it_is_asked_about() -> None:
    """With another label of one example, the loss of those in its fold stays: their head saw none of them."""
    found = drawn()
    other = found.y.clone()
    other[5] = (other[5] + 1) % 3
    before, after = run_views(found, found.y[None])[1], run_views(found, other[None])[1]
    same = (before[0, 0] - after[0, 0]).abs() < 1e-7
    same[5] = False
    assert int(same.sum()) == 60 // FOLDS - 1
    assert bool((before[1, 0] - after[1, 0]).abs()[same].max() < 1e-7)


def test_a_step_goes_down_the_slope() -> None:
    """One step by cross-entropy from 0, by hand: the rate times the mean of x (onehot - 1/3)."""
    x, y = torch.randn(30, 4), torch.randint(3, (2, 30))
    head = views.HeadFit(views.HEADS[1].loss, 1, 2.0)
    weight = views._fit_heads(x, y, 3, head).view(4, 2, 3)
    for i in range(2):
        by_hand = 2.0 * x.T @ (nn.functional.one_hot(y[i], 3) - 1 / 3) / 30
        assert weight[:, i] == pytest.approx(by_hand, abs=1e-6)


def test_heads_know_what_features_tell() -> None:
    found = drawn(1, 400)
    wrong = run_views(found, found.y[None])[0][:2, 0].double().mean(dim=1)
    assert bool((wrong < 0.25).all())
    scattered = run_views(found, found.y[torch.randperm(400)][None])[0][:2, 0].double().mean(dim=1)
    assert bool((scattered > 0.55).all())


def test_it_works_without_gradients_around_it() -> None:
    with torch.no_grad():
        assert run_views(drawn(), drawn().y[None])[0].shape == (3, 1, 60)


def test_features_that_say_nothing_leave_the_most_frequent_label() -> None:
    y = torch.tensor([0] * 40 + [1] * 20)
    split = Split(torch.ones(60, 2), y, torch.full_like(y, -1), Groups(("a", "b")))
    found = AuditContext(Classifier(nn.Identity(), nn.Linear(2, 2)), split, torch.ones(60, 2), torch.zeros(60, 2))
    robust, early, loss = run_views(found, y[None])[0][:, 0]
    assert torch.equal(early, y == 1)
    assert torch.equal(robust, y == 1)
    assert not bool(loss.any())


def brute(values: Tensor) -> Tensor:
    """The best split of sorted values in two, by the squares within."""
    order = values.sort().values
    within = [
        order[:k].var(unbiased=False) * k + order[k:].var(unbiased=False) * (len(order) - k)
        for k in range(1, len(order))
    ]
    return values > order[int(torch.stack(within).argmin())]


def test_the_upper_cluster_is_that_of_the_best_split() -> None:
    g = torch.Generator().manual_seed(0)
    y = torch.randint(2, (3, 60), generator=g)
    loss = torch.rand(3, 60, generator=g).double() * 0.2 + (torch.rand(3, 60, generator=g) < 0.2) * 0.7
    found = find_upper_cluster(loss, y)
    for row in range(3):
        for label in range(2):
            mine = y[row] == label
            assert torch.equal(found[row, mine], brute(loss[row, mine]))


def test_clusters_of_three_lumps_are_the_best_and_not_the_nearest() -> None:
    """From the smallest and the largest, two-means would end with the one at 1 alone."""
    loss = torch.tensor([[0.0] * 5 + [0.45] * 5 + [1.0]])
    assert find_upper_cluster(loss, torch.zeros(1, 11, dtype=torch.long)).tolist() == [[False] * 5 + [True] * 6]


def test_losses_that_are_all_the_same_have_no_upper_cluster() -> None:
    assert not bool(find_upper_cluster(torch.full((2, 6), 0.3), torch.arange(6).repeat(2, 1) % 2).any())


def test_kappa_is_that_of_cohen() -> None:
    from sklearn.metrics import cohen_kappa_score

    g = torch.Generator().manual_seed(0)
    first = torch.rand(2, 50, generator=g) < 0.3
    second = first ^ (torch.rand(2, 50, generator=g) < 0.2)
    third = torch.rand(2, 50, generator=g) < 0.5
    found = mean_kappa(torch.stack([first, second, third]))
    for i in range(2):
        pairs = ((first[i], second[i]), (first[i], third[i]), (second[i], third[i]))
        expected = sum(cohen_kappa_score(a.numpy(), b.numpy()) for a, b in pairs) / 3
        assert float(found[i]) == pytest.approx(expected)


def test_views_that_find_nobody_agree_by_chance() -> None:
    assert mean_kappa(torch.zeros(3, 1, 10, dtype=torch.bool)).tolist() == [0.0]
