"""Subject: one pass over the examples, and what follows from it."""

import pytest
import torch
from torch import nn

from spurless.auditing.subject import look, rows_first
from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.data.grouped import Grouped
from spurless.models.wrapping import wrap
from spurless.train.config import TrainConfig
from spurless.train.run import Engine, Run, start


def run() -> Run:
    return start(Engine("cpu"), 0, TrainConfig())


def split(y: list[int], labels: tuple[str, ...] = ("a", "b")) -> Grouped:
    x = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    return Grouped(x, torch.tensor(y), torch.full((3,), -1), Groups(labels))


def model() -> nn.Module:
    head = nn.Linear(2, 2, bias=False)
    nn.init.eye_(head.weight)
    return nn.Sequential(nn.Identity(), head)


def test_what_the_model_says_of_every_example() -> None:
    subject = look(wrap(model()), split([0, 1, 1]), run())
    assert len(subject) == 3
    assert subject.features.tolist() == [[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]
    assert subject.predicted.tolist() == [0, 1, 0]
    assert subject.wrong.tolist() == [False, False, True]
    assert subject.margin.tolist() == [2.0, 1.0, 3.0]
    assert subject.probabilities[0, 0] == pytest.approx(0.8808, abs=1e-4)


def test_hidden_labels_and_strange_ones_are_refused() -> None:
    with pytest.raises(BadInput, match="labels of this split are hidden"):
        look(wrap(model()), split([0, -1, 1]), run())
    with pytest.raises(BadInput, match="none of the model's"):
        look(wrap(model()), split([0, 2, 1], ("a", "b", "c")), run())


def test_the_first_rows_are_the_highest_among_the_given() -> None:
    score = torch.tensor([0.5, 0.9, 0.5, 0.1])
    assert rows_first(score, torch.tensor([True, False, True, True])) == (0, 2, 3)
    assert rows_first(score, torch.ones(4, dtype=torch.bool), most=2) == (1, 0)
    assert rows_first(score, torch.zeros(4, dtype=torch.bool)) == ()


def test_logits_that_are_no_numbers_are_refused() -> None:
    broken = model()
    nn.init.constant_(broken[1].weight, torch.nan)  # type: ignore[index]  # a Sequential
    with pytest.raises(BadInput, match=r"logits of example 0 are not finite .got \[nan, nan\]"):
        look(wrap(broken), split([0, 1, 1]), run())


def test_one_logit_is_told_what_to_do() -> None:
    with pytest.raises(BadInput, match="one logit must be given two"):
        look(wrap(nn.Sequential(nn.Identity(), nn.Linear(2, 1))), split([0, 1, 1]), run())


def test_labels_that_only_the_model_knows_have_a_name() -> None:
    four = nn.Linear(2, 4, bias=False)
    nn.init.zeros_(four.weight)
    with torch.no_grad():
        four.weight[3] = 1.0
    subject = look(wrap(nn.Sequential(nn.Identity(), four)), split([0, 1, 1]), run())
    assert [subject.split.groups.labels[i] for i in subject.predicted.tolist()] == ["label 3"] * 3
    assert subject.split.groups.labels[:2] == ("a", "b")
