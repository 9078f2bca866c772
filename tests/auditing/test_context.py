"""Subject: one pass over the examples, and what follows from it."""

import pytest
import torch
from torch import nn

from spurless.auditing._context import compute_context, label_name, top_rows
from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.data.split import Split
from spurless.models.wrapping import wrap
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, Run, make_run


def run() -> Run:
    return make_run(Compute("cpu"), 0, TrainConfig())


def split(y: list[int], labels: tuple[str, ...] = ("a", "b")) -> Split:
    x = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    return Split(x, torch.tensor(y), torch.full((3,), -1), Groups(labels))


def model() -> nn.Module:
    head = nn.Linear(2, 2, bias=False)
    nn.init.eye_(head.weight)
    return nn.Sequential(nn.Identity(), head)


def test_what_the_model_says_of_every_example() -> None:
    context = compute_context(wrap(model()), split([0, 1, 1]), run())
    assert len(context) == 3
    assert context.features.tolist() == [[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]
    assert context.predicted.tolist() == [0, 1, 0]
    assert context.incorrect.tolist() == [False, False, True]
    assert context.margin.tolist() == [2.0, 1.0, 3.0]
    assert context.probabilities[0, 0] == pytest.approx(0.8808, abs=1e-4)


def test_hidden_labels_and_strange_ones_are_refused() -> None:
    with pytest.raises(InputError, match="labels of this split are hidden"):
        compute_context(wrap(model()), split([0, -1, 1]), run())
    with pytest.raises(InputError, match="2 outputs but the data have 3 classes"):
        compute_context(wrap(model()), split([0, 2, 1], ("a", "b", "c")), run())


def test_the_first_rows_are_the_highest_among_the_given() -> None:
    score = torch.tensor([0.5, 0.9, 0.5, 0.1])
    assert top_rows(score, torch.tensor([True, False, True, True])) == (0, 2, 3)
    assert top_rows(score, torch.ones(4, dtype=torch.bool), limit=2) == (1, 0)
    assert top_rows(score, torch.zeros(4, dtype=torch.bool)) == ()


def test_logits_that_are_no_numbers_are_refused() -> None:
    broken = model()
    nn.init.constant_(broken[1].weight, torch.nan)  # type: ignore[index]  # a Sequential
    with pytest.raises(InputError, match=r"logits of example 0 are not finite .got \[nan, nan\]"):
        compute_context(wrap(broken), split([0, 1, 1]), run())


def test_one_logit_is_too_few_for_three_labels() -> None:
    with pytest.raises(InputError, match="the model has 2 outputs but the data have 3 classes"):
        compute_context(wrap(nn.Sequential(nn.Identity(), nn.Linear(2, 1))), split([0, 1, 2], ("a", "b", "c")), run())


def test_labels_that_only_the_model_knows_have_a_name() -> None:
    four = nn.Linear(2, 4, bias=False)
    nn.init.zeros_(four.weight)
    with torch.no_grad():
        four.weight[3] = 1.0
    context = compute_context(wrap(nn.Sequential(nn.Identity(), four)), split([0, 1, 1]), run())
    assert [context.split.groups.labels[i] for i in context.predicted.tolist()] == ["label 3"] * 3
    assert context.split.groups.labels[:2] == ("a", "b")


def test_a_label_without_a_name_has_a_number() -> None:
    context = compute_context(wrap(nn.Sequential(nn.Identity(), nn.Linear(2, 2))), split([0, 1, 1]), run())
    assert [label_name(context, label) for label in range(3)] == ["a", "b", "label 2"]
