"""Biased neurons: the neuron that speaks for a mistake is named, and only beyond what doubt explains."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from spurless.auditing import biased_neurons
from spurless.auditing._context import AuditContext
from spurless.auditing._residuals import PredictionStrata, make_orders, stratify_predictions
from spurless.auditing.biased_neurons import audit_biased_neurons, compare_neurons
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split
from spurless.explain.figures.neurons import plot_distributions
from spurless.models.classifier import Classifier


def context(features: Tensor, logits: Tensor, y: Tensor, labels: tuple[str, ...] = ("cow", "camel")) -> AuditContext:
    split = Split(features, y, torch.full_like(y, -1), Groups(labels))
    model = Classifier(nn.Identity(), nn.Linear(features.shape[1], logits.shape[1]))
    return AuditContext(model, split, features, logits, seeds=Seeds(0), permutations=99)


def leaning(seed: int = 0, n: int = 500) -> AuditContext:
    """Neuron 3 answers to a shortcut for the camel, which holds in four of five; neuron 0 answers to the camel."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=g)
    shortcut = torch.where(torch.rand(n, generator=g) < 0.2, 1 - y, y)
    features = torch.rand(n, 12, generator=g)
    features[:, 0] += 1.2 * y + 0.3 * torch.randn(n, generator=g)
    features[:, 3] += 2.0 * shortcut
    score = features[:, 0] + 2 * features[:, 3] - 4.0
    return context(features, torch.stack([-score, score], dim=1), y)


def clean(seed: int, n: int = 300, classes: int = 2) -> AuditContext:
    g = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 10, generator=g)
    logits = features[:, :classes] * 1.5 + 0.5 * features[:, 5 : 5 + classes]
    y = torch.multinomial(logits.softmax(dim=1), 1, generator=g).flatten()
    return context(features, logits, y, tuple(f"class {i}" for i in range(classes)))


def test_the_neuron_of_the_shortcut_is_named() -> None:
    for seed in range(5):
        found = leaning(seed)
        finding = audit_biased_neurons(found)
        assert finding.flagged
        assert finding.p == 0.01
        assert finding.shortcut == "neuron 3"
        assert finding.title.startswith("The model follows neuron 3 into errors when it predicts")
        assert finding.severity > 0.4
        assert finding.numbers["neuron"] == 3
        assert finding.numbers["low"] < finding.severity < finding.numbers["high"]


def test_rows_are_mistakes_in_which_it_spoke_most() -> None:
    seen = set()
    for seed in range(8):
        found = leaning(seed)
        finding = audit_biased_neurons(found)
        rows, label = torch.tensor(finding.rows), int(finding.numbers["prediction"])
        assert bool(found.incorrect[rows].all())
        assert bool((found.predicted[rows] == label).all())
        spoken = found.features[:, 3] * (1 if label == 1 else -1)  # it speaks for the camel and against the cow
        assert finding.numbers["speaks_for"] == label
        assert bool((spoken[rows][:-1] >= spoken[rows][1:]).all())
        others = found.incorrect & (found.predicted == label)
        others[rows] = False
        assert not bool(others.any()) or float(spoken[others].max()) <= float(spoken[rows].min())
        seen.add(label)
    assert seen == {0, 1}


def test_it_is_the_size_that_counts() -> None:
    found = leaning()
    flipped = replace(found, features=found.features * torch.tensor([1.0, -1.0]).repeat(6))
    assert audit_biased_neurons(flipped).numbers == audit_biased_neurons(found).numbers


def test_a_neuron_that_knew_better_is_not_named() -> None:
    """Neuron 0 speaks for the camel and is neglected: silent where the camel is wrong, active where the cow is."""
    compared = compare_neurons(leaning())
    assert compared is not None
    assert compared.sign[:, [0, 3]].tolist() == [[-1, -1], [1, 1]]
    assert float(compared.z[1, 0]) < -3
    assert float(compared.z[0, 0]) > 3
    assert float(compared.z[1, 3]) > 3
    assert float(compared.z[0, 3]) < -3
    assert next(dim for _, dim in compared.strongest(3)) == 3
    assert 0 not in [dim for _, dim in compared.strongest(3)]


def test_a_neuron_that_the_model_does_not_follow_is_not_named() -> None:
    """Neuron 7 marks camels that are called cows; it has nothing to do with what the model says."""
    found = leaning()
    marked = found.features.clone()
    marked[:, 7] = torch.rand(500, generator=torch.Generator().manual_seed(1))
    wrong = found.incorrect & (found.predicted == 0)
    marked[wrong, 7] += 0.9
    right = ((found.predicted == 1) & ~found.incorrect).nonzero().flatten()[: int(wrong.sum())]
    marked[right, 7] += 0.9  # as often active where the camel is said
    compared = compare_neurons(replace(found, features=marked))
    assert compared is not None
    assert float(compared.z[0, 7]) > 5
    assert compared.sign[:, 7].tolist() == [0, 0]
    assert 7 not in [dim for _, dim in compared.strongest(3)]


def test_z_is_over_the_deviation_that_permuted_labels_have() -> None:
    found = clean(0, 400)
    compared = compare_neurons(found)
    assert compared is not None
    strata = stratify_predictions(found)
    order = make_orders(strata.stratum, 3000, torch.Generator().manual_seed(1))
    mine = strata.predicted == 1
    wrong = (strata.predicted != found.y[order]).double()
    x = strata.residuals(found.features.abs())
    sums = (wrong * mine) @ x
    z = sums[0] / sums[1:].std(dim=0)
    assert compared.z[1] == pytest.approx(z, abs=0.12)
    assert float(sums[1:].mean(dim=0).abs().max()) < 0.1 * float(sums[1:].std(dim=0).max())


def test_the_deviation_is_exact_in_the_smallest_strata() -> None:
    """Two strata of two, one mistake each: four permutations, all of them counted."""
    strata = PredictionStrata(
        torch.zeros(4, dtype=torch.long), torch.tensor([0, 0, 1, 1]), torch.zeros(4, dtype=torch.double)
    )
    size = torch.tensor([[1.0, 2.0], [4.0, 2.5], [0.0, 7.0], [1.0, 1.0]]).double()
    wrong = torch.tensor([[1.0, 0, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1], [0, 1, 0, 1]]).double()
    x, scale = biased_neurons._size_residuals(size, strata, wrong[0] - 0.5)
    assert scale == pytest.approx((wrong @ x).std(dim=0, unbiased=False))


def test_the_statistics_are_the_largest_and_the_sum_of_squares() -> None:
    compared = compare_neurons(leaning())
    assert compared is not None
    assert float(compared.statistics[0, 0]) == pytest.approx(float((compared.sign * compared.z).max()))
    assert float(compared.statistics[0, 1]) == pytest.approx(float((compared.z**2).sum()))


def test_models_that_know_their_doubt_are_flagged_as_rarely_as_the_level_allows() -> None:
    findings = [audit_biased_neurons(clean(seed, classes=2 + seed % 2)) for seed in range(40)]
    assert sum((finding.p or 1) <= 0.05 for finding in findings) <= 6  # 99.7 % of binomial(40, 0.05)


def test_what_chance_gives_is_not_severe() -> None:
    finding = next(f for f in map(audit_biased_neurons, map(clean, range(9))) if (f.p or 0) > 0.05)
    assert finding.severity == 0
    assert finding.numbers["correlation"] > 0
    assert (finding.shortcut, finding.rows) == (None, ())


def test_many_labels_with_few_mistakes_each_add_up() -> None:
    """Each of eight labels has its own neuron and three mistakes: the best one alone is hardly more than chance."""
    g = torch.Generator().manual_seed(0)
    said_label = torch.arange(240) % 8
    wrong = torch.arange(240) < 24
    features = torch.rand(240, 16, generator=g)
    features[torch.arange(240), said_label] += 0.3
    features[wrong, said_label[wrong]] += 0.8
    y = torch.where(wrong, (said_label + 1) % 8, said_label)
    logits = nn.functional.one_hot(said_label, 8).float() * 4
    finding = audit_biased_neurons(context(features, logits, y, tuple("abcdefgh")))
    assert finding.p is not None
    assert finding.p <= 0.05
    compared = compare_neurons(context(features, logits, y, tuple("abcdefgh")))
    assert compared is not None
    both = compared.statistics
    assert float(both[0, 1]) > float(both[1:, 1].max())


def test_a_floor_below_which_nothing_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(biased_neurons, "MIN_EFFECT", 0.99)
    finding = audit_biased_neurons(leaning())
    assert finding.p == 0.01
    assert not finding.flagged


def test_the_figures_are_those_of_the_neurons() -> None:
    found = leaning()
    finding = audit_biased_neurons(found)
    mine = found.predicted == int(finding.numbers["prediction"])
    first = finding.items[0]
    assert len(finding.items) == biased_neurons.MAX_FIGURES
    assert first == plot_distributions(found.features[mine, 3].abs(), ~found.incorrect[mine], first.title)
    assert "NeuronTune's score of it is" in finding.because


@pytest.mark.parametrize(
    ("features", "logits", "y"),
    [
        (torch.randn(1, 3), torch.tensor([[1.0, 0.0]]), torch.tensor([1])),
        (torch.ones(40, 3), torch.tensor([[1.0, 0.0]]).repeat(40, 1), torch.arange(40) % 2),
        (torch.randn(40, 3), torch.tensor([[1.0, 0.0]]).repeat(40, 1), torch.ones(40, dtype=torch.long)),
        (torch.randn(40, 3), torch.eye(2).repeat(20, 1), torch.arange(40) // 2 * 0),  # one prediction is all wrong
    ],
)
def test_what_cannot_be_asked_is_said(features: Tensor, logits: Tensor, y: Tensor) -> None:
    finding = audit_biased_neurons(context(features, logits, y))
    assert (finding.p, finding.severity, finding.flagged) == (None, 0.0, False)
    assert finding.because


def test_it_is_the_same_again() -> None:
    one, two = audit_biased_neurons(leaning()), audit_biased_neurons(leaning())
    assert (one.p, one.numbers, one.rows) == (two.p, two.numbers, two.rows)


def test_a_model_that_says_one_thing_of_everything_is_asked_all_the_same() -> None:
    """No neuron can speak for the only prediction there is; the other is never made."""
    one = leaning()
    always = torch.tensor([[0.0, 9.0]]).repeat(len(one), 1) + 0.1 * one.features[:, :2]
    finding = audit_biased_neurons(replace(one, logits=always))
    assert not finding.flagged
    assert finding.numbers["prediction"] == 1
