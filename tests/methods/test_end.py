"""EnD: both terms by hand and by brute force, no pair no harm, and what it does to coloured digits."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.data.datasets.colored import ColoredDigitsConfig, colored_digits
from spurless.data.mined import MinedExamples, data_fingerprint
from spurless.data.split import Split, Splits
from spurless.fitting import fit
from spurless.methods.end import EnD, EnDConfig, cosines, cross_attribute_dissimilarity, same_attribute_similarity
from spurless.models import build
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, make_run

# directions of 0, 60, 90 and 180 degrees, of any length
FEATURES = torch.tensor([[2.0, 0.0], [0.5, 0.75**0.5], [0.0, 3.0], [-1.0, 0.0]])
HALF, SQRT = 0.5, 0.75**0.5


def test_the_cosines_do_not_know_lengths() -> None:
    expected = [[1, HALF, 0, -1], [HALF, 1, SQRT, -HALF], [0, SQRT, 1, 0], [-1, -HALF, 0, 1]]
    torch.testing.assert_close(cosines(FEATURES), torch.tensor(expected))
    torch.testing.assert_close(cosines(5 * FEATURES), cosines(FEATURES))


def test_the_same_attribute_apart_by_hand() -> None:
    gram = cosines(FEATURES)
    # attribute 0 has the pair of 60 degrees, attribute 1 that of 90: (|1/2| + |0|) / 2
    assert float(same_attribute_similarity(gram, torch.tensor([0, 0, 1, 1]), 2)) == pytest.approx(0.25)
    # three of one attribute: |1/2 + 0 + sqrt(3)/2| / 3; an attribute with one example has no pair
    assert float(same_attribute_similarity(gram, torch.tensor([0, 0, 0, 1]), 2)) == pytest.approx((HALF + SQRT) / 3)
    # the sign is dropped per attribute, not per pair: |1/2 - 1 - 1/2| / 3
    assert float(same_attribute_similarity(gram, torch.tensor([0, 0, 1, 0]), 2)) == pytest.approx(1 / 3)


def test_the_same_label_together_by_hand() -> None:
    gram, a = cosines(FEATURES), torch.tensor([0, 1, 0, 1])
    # label 0: pair (0, 1) of cosine 1/2; label 1: pair (2, 3) of cosine 0; likeness (3/4 + 1/2) / 2
    assert float(cross_attribute_dissimilarity(gram, torch.tensor([0, 0, 1, 1]), a)) == pytest.approx(1 - 0.625)
    # one label: the pairs of equal attribute, (0, 2) and (1, 3), do not count
    likeness = (1 + HALF) / 2 + 0.0 + (1 + SQRT) / 2 + HALF
    assert float(cross_attribute_dissimilarity(gram, torch.zeros(4, dtype=torch.long), a)) == pytest.approx(
        1 - likeness / 4
    )


def test_both_terms_by_brute_force() -> None:
    features, y, a = torch.randn(40, 6), torch.randint(3, (40,)), torch.randint(4, (40,))
    unit = features / features.norm(dim=1, keepdim=True)
    by_attribute, n_same, likeness = [0.0] * 4, 0, []
    for i, j in combinations(range(40), 2):
        cosine = float(unit[i] @ unit[j])
        if a[i] == a[j]:
            by_attribute[int(a[i])] += cosine
            n_same += 1
        elif y[i] == y[j]:
            likeness.append((1 + cosine) / 2)
    gram = cosines(features)
    assert float(same_attribute_similarity(gram, a, 4)) == pytest.approx(sum(map(abs, by_attribute)) / n_same, rel=1e-4)
    assert float(cross_attribute_dissimilarity(gram, y, a)) == pytest.approx(
        1 - sum(likeness) / len(likeness), rel=1e-4
    )


def test_a_batch_without_pairs_costs_nothing_and_has_a_gradient() -> None:
    features = torch.zeros(3, 2, requires_grad=True)  # no direction at all
    gram, alone = cosines(features), torch.arange(3)
    loss = same_attribute_similarity(gram, alone, 3) + cross_attribute_dissimilarity(gram, alone, alone)
    (slope,) = torch.autograd.grad(loss, features)
    assert float(loss.detach()) == 0.0
    assert bool(slope.isfinite().all())


def test_one_step_is_cross_entropy_and_the_two_terms() -> None:
    data = digits(0.5)
    model = build("mlp", data, width=8)
    x, y = data.train.x, data.train.y
    assert isinstance(x, Tensor)
    with torch.no_grad():
        features = model.features(x.float() / 255)
        gram = cosines(features)
        plain = torch.nn.functional.cross_entropy(model.head(features), y)
        expected = (
            plain
            + 2.0 * same_attribute_similarity(gram, data.train.a, 10)
            + 3.0 * cross_attribute_dissimilarity(gram, y, data.train.a)
        )
    run = make_run(Compute("cpu"), 0, TrainConfig(steps=1, batch_size=1000))
    EnD(EnDConfig(2.0, 3.0)).fit(model, data, run)
    assert run.history[0]["loss"] == pytest.approx(float(expected), rel=1e-4)


def digits(conflicting: float) -> Splits:
    return colored_digits(ColoredDigitsConfig(conflicting=conflicting, size=8))


def test_raises_the_accuracy_where_the_colour_misleads() -> None:
    data = digits(0.02)
    settings = {"epochs": 20, "lr": 0.01, "batch_size": 100, "optimiser": "adam", "weight_decay": 0.0}
    gains = []
    for seed in range(3):
        erm, end = (
            fit(
                name,
                build("mlp", data, seed=seed, width=100),
                data,
                seed=seed,
                train=settings,
                compute=Compute("cpu"),
            ).record
            for name in ("erm", "end")
        )
        gains.append(end.metrics["conflicting"] - erm.metrics["conflicting"])  # type: ignore[operator]
        assert end.supervision["train_attributes"]
    assert sorted(gains)[1] > 0.05


def test_overlapping_attributes_are_refused() -> None:
    groups = Groups.overlapping(("civil", "toxic"), ("male", "female"))
    split = Split(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]), torch.tensor([[1, 1], [0, 1], [0, 0], [1, 0]]), groups)
    data = Splits(split, split, split)
    with pytest.raises(InputError, match=r"these groups overlap"):
        EnD().fit(build("linear", data), data, make_run(Compute("cpu"), 0, TrainConfig()))


def test_domains_that_are_no_attributes_are_refused() -> None:
    data = colored_digits(ColoredDigitsConfig(conflicting=0.1))
    listed = data.train.y != data.train.a
    mined = MinedExamples(listed.float(), listed, "gce", data_fingerprint(data.train))
    with pytest.raises(
        InputError, match=r"attributes that occur with several labels.*got 0, not listed, 0, listed.*Use group-dro"
    ):
        fit("end", build("mlp", data), mined.as_groups(data), train=TrainConfig(steps=1))


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match=r"alpha.* must not be negative \(got -1"):
        EnDConfig(alpha=-1.0)
    with pytest.raises(InputError, match=r"beta.* must not be negative"):
        EnDConfig(beta=-1.0)
