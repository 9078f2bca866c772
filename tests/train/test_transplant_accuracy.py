"""Tests of the accuracy under transplants: donors, numbers by hand, and the strongest of several properties."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import spurless as sp
from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.data.transplants import get_transplants
from spurless.train.transplant_accuracy import (
    DONORS,
    MAX_EXAMPLES,
    TOGETHER,
    average_classes,
    sample_balanced_donors,
    transplant_examples,
)

GROUPS = Groups(("no", "yes"))
CPU = torch.device("cpu")


class Linear(nn.Module):
    """Predict the class 1 if a weighted sum of the features is positive."""

    def __init__(self, *weights: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weights))

    def forward(self, x: Tensor) -> Tensor:
        value = x @ self.weight
        return torch.stack([-value, value], dim=1)


def make_table(n: int = 400, minority: int = 200) -> sp.Split:
    """Return rows whose two features both are the label: -1 or 1."""
    y = (torch.arange(n) < minority).long()
    x = (2.0 * y - 1)[:, None].repeat(1, 2)
    return sp.Split(x, y, torch.full_like(y, -1), GROUPS)


def measure(model: nn.Module, split: sp.Split, *names: str) -> tuple[float, str]:
    examples = transplant_examples(split, get_transplants(split, names))
    return examples.find_lowest(examples.compute_correct(model, CPU))


@pytest.mark.parametrize(("n", "minority"), [(400, 200), (400, 40)])
def test_a_model_that_follows_the_property_is_at_chance_and_one_that_does_not_keeps_its_accuracy(
    n: int, minority: int
) -> None:
    split = make_table(n, minority)
    follows, ignores = Linear(1.0, 0.0), Linear(0.0, 1.0)
    value, name = measure(follows, split, "feature 0")
    assert value == pytest.approx(0.5, abs=0.06)  # donors are of every class equally often, whatever their numbers are
    assert name == "feature 0"
    assert measure(ignores, split, "feature 0")[0] == 1.0


def test_the_lowest_of_all_properties_together_and_each_alone_is_the_criterion() -> None:
    split = make_table()
    second = Linear(1.0, 2.0)  # each feature alone leaves the larger weight to the other
    assert measure(second, split, "feature 0")[0] == 1.0
    assert measure(second, split, "feature 0", "feature 1")[1] in (TOGETHER, "feature 1")
    both = Linear(1.0, 1.5)
    assert measure(both, split, "feature 0", "feature 1")[0] == pytest.approx(0.5, abs=0.06)
    three = replace(split, x=split.y[:, None].repeat(1, 3) * 2.0 - 1)
    majority = Linear(1.0, 1.0, 1.0)  # two of three features agree
    assert measure(majority, three, "feature 0")[0] == 1.0
    value, name = measure(majority, three, "feature 0", "feature 1")
    assert name == TOGETHER
    assert value == pytest.approx(0.5, abs=0.06)


def test_all_properties_come_from_the_same_donor() -> None:
    split = replace(make_table(), x=torch.arange(400.0)[:, None].repeat(1, 3))
    examples = transplant_examples(split, get_transplants(split, ["feature 0", "feature 1"]))
    together = examples.splits[TOGETHER]
    x = together.x.batch(torch.arange(len(together)))  # type: ignore[union-attr]
    assert torch.equal(x[:, 0], x[:, 1])
    assert torch.equal(x[:, 2], torch.arange(400.0).repeat(DONORS))
    alone = examples.splits["feature 0"].x.batch(torch.arange(len(together)))  # type: ignore[union-attr]
    assert torch.equal(alone[:, 0], x[:, 0])
    assert torch.equal(together.y, split.y.repeat(DONORS))


def test_every_model_gets_the_same_examples_and_many_are_sampled() -> None:
    split = make_table(MAX_EXAMPLES + 500, 300)
    one, two = (transplant_examples(split, get_transplants(split, ["feature 1"])) for _ in range(2))
    assert len(one.rows) == len(set(one.rows.tolist())) == MAX_EXAMPLES
    assert torch.equal(one.rows, two.rows)
    assert torch.equal(one.y, split.y[one.rows])
    assert one.splits["feature 1"].fingerprint() == two.splits["feature 1"].fingerprint()


def test_donors_are_of_every_class_equally_often() -> None:
    y = torch.tensor([0] * 95 + [1] * 3 + [4] * 2)
    donors = sample_balanced_donors(y, 100)
    assert donors.shape == (DONORS, 100)
    assert torch.bincount(y[donors].flatten(), minlength=5).tolist() == [100, 100, 0, 0, 100]


def test_classes_are_weighted_alike() -> None:
    values, y = torch.tensor([1.0, 1.0, 0.0, 0.5]), torch.tensor([0, 0, 0, 1])
    assert average_classes(values, y) == pytest.approx((2 / 3 + 0.5) / 2)


def test_it_needs_properties_and_labels() -> None:
    split = make_table()
    with pytest.raises(InputError, match="needs the name of a property"):
        transplant_examples(split, ())
    with pytest.raises(InputError, match="needs examples with labels"):
        transplant_examples(split.hide_labels(), get_transplants(split, ["feature 0"]))
