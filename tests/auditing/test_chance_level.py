"""Guessing: a model that has learnt nothing is not said to lean; one that lives by its shortcut alone still is."""

import warnings
from functools import cache
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spurless as sp
from spurless.auditing import Audited, audit
from spurless.auditing._chance_level import LEVEL, MIN_CONSTANT_FRACTION, beats_chance, find_chance_level_reason
from spurless.auditing._context import AuditContext
from spurless.core.errors import SpurlessWarning
from spurless.core.groups import Groups
from spurless.data.split import Split, Splits
from spurless.models.classifier import Classifier
from spurless.reporting import summarize_audit
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, make_run

CPU = Compute("cpu")
SHORT: dict[str, Any] = {"permutations": 199, "compute": CPU, "pictured": 0}


@cache
def patched() -> Splits:
    return sp.load("patched-digits")


def quiet(model: nn.Module, data: Splits | Split, **words: Any) -> Audited:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpurlessWarning)
        return audit(model, data, **{**SHORT, **words})


def constant(data: Splits) -> Classifier:
    """A net whose head reads nothing."""
    model = sp.build("small-cnn", data)
    model.head = nn.Linear(model.head.in_features, 2)  # type: ignore[arg-type]  # of a linear layer
    nn.init.zeros_(model.head.weight)
    model.head.bias.data.copy_(torch.tensor([0.0, 1.0]))
    model.trained = True
    return model


def fresh(seed: int) -> Classifier:
    model = sp.build("small-cnn", patched(), seed=seed)
    model.trained = True
    return model


def reads(weight: list[list[float]]) -> Classifier:
    """A linear rule on two numbers, the core and the shortcut of planted data."""
    model = Classifier(nn.Identity(), nn.Linear(2, 2, bias=False), trained=True)
    model.head.weight.data.copy_(torch.tensor(weight))  # type: ignore[operator]  # of a linear layer
    return model


def context(said: Tensor, y: Tensor, train: Split | None = None) -> AuditContext:
    logits = torch.nn.functional.one_hot(said, int(max(said.max(), y.max())) + 1).float()
    split = Split(logits, y, torch.full_like(y, -1), Groups(tuple("abcdef"[: logits.shape[1]])))
    model = Classifier(nn.Identity(), nn.Identity(), trained=True)
    return AuditContext(model, split, logits, logits, train)


def why(said: Tensor, y: Tensor) -> str | None:
    return find_chance_level_reason(context(said, y), make_run(CPU, 0, TrainConfig()))


@pytest.mark.parametrize("part", ["val", "test"])
def test_a_head_that_reads_nothing_leans_on_nothing(part: str) -> None:
    with pytest.warns(SpurlessWarning, match=r"predicts '.*' for every example, so it uses nothing in its input"):
        found = audit(constant(patched()), patched(), part=part, **SHORT)
    assert found.verdict == "inconclusive"
    assert not found.confirmed
    assert summarize_audit(found).headline == "This audit is inconclusive: the model is not better than guessing."
    assert "for every example" in summarize_audit(found).what
    slices = next(finding for finding in found.findings if finding.audit == "error-slices")
    assert (slices.flagged, slices.p) == (False, None)
    assert "do not show what it relies on" in slices.because


@pytest.mark.parametrize("seed", range(3))
def test_an_untrained_net_leans_on_nothing_either(seed: int) -> None:
    found = quiet(fresh(seed), patched())
    assert found.verdict == "inconclusive"
    assert found.chance_level_reason is not None
    assert found.facts["notes"][-1].startswith(found.chance_level_reason.rstrip("."))


def test_without_train_a_model_that_says_one_thing_is_known_as_well() -> None:
    assert quiet(constant(patched()), patched().val).verdict == "inconclusive"


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("attributes", [False, True])
def test_a_model_that_lives_by_its_shortcut_alone_leans_though_it_is_right_by_chance(
    alone: bool, attributes: bool
) -> None:
    data = sp.load("planted", n_val=1000)
    model = reads([[0.0, -1.0], [0.0, 1.0]])
    split = data.val if attributes else data.val.hide_attributes()
    found = quiet(model, split if alone else Splits(data.train, split, data.test))
    assert 0.45 < found.facts["accuracy"] < 0.55
    assert found.chance_level_reason is None
    assert found.verdict == "shortcut"


def test_answers_that_follow_an_attribute_show_use_though_nothing_was_learnt() -> None:
    data = sp.load("planted", agreement=0.5, n_val=1000)  # the shortcut is none: it pays nowhere
    found = quiet(reads([[0.0, -1.0], [0.0, 1.0]]), data)
    assert found.chance_level_reason is not None
    assert "training examples" in found.chance_level_reason
    assert [finding.audit for finding in found.confirmed] == ["attribute-use"]
    assert found.verdict == "shortcut"


def test_mistakes_of_a_model_that_guesses_are_no_evidence() -> None:
    data = sp.load("planted", agreement=0.5, n_val=1000)
    hidden = Splits(data.train, data.val.hide_attributes(), data.test)
    assert quiet(reads([[0.0, -1.0], [0.0, 1.0]]), hidden).verdict == "inconclusive"


def test_one_that_is_fair_to_a_rare_label_does_not_guess() -> None:
    y = torch.cat([torch.zeros(950), torch.ones(50)]).long()
    said = y.clone()
    said[:150], said[950:960] = 1, 0
    assert float((said == y).double().mean()) < 0.95  # always saying the frequent label is right more often
    assert beats_chance(said, y)
    assert why(said, y) is None


def test_guesses_pass_for_learnt_as_often_as_they_may() -> None:
    g = torch.Generator().manual_seed(0)
    y = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), 300, replacement=True, generator=g)
    said = torch.multinomial(torch.tensor([0.2, 0.3, 0.5]), 300, replacement=True, generator=g)
    passed = [beats_chance(said[torch.randperm(300, generator=g)], y) for _ in range(1000)]
    assert sum(passed) / 1000 == pytest.approx(LEVEL, abs=0.025)


def test_the_moments_are_those_of_all_ways_to_deal_the_answers_out(monkeypatch: pytest.MonkeyPatch) -> None:
    y, said = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([0, 1, 3, 1, 0, 2])  # 3 is a label that nobody has
    dealt = [torch.tensor(order) for order in permutations(said.tolist())]
    n = torch.bincount(y).double()
    sums = torch.stack([((order == y) / n[y]).sum() for order in dealt])
    z = (((said == y) / n[y]).sum() - sums.mean()) / sums.std(unbiased=False)
    for level, expected in ((z - 1e-6, True), (z + 1e-6, False)):
        monkeypatch.setattr("spurless.auditing._chance_level.LEVEL", 0.5 * torch.erfc(level / 2**0.5).item())
        assert beats_chance(said, y) is expected


def test_without_train_only_nearly_one_answer_is_a_guess() -> None:
    y = torch.arange(200) % 2
    for others, guesses in ((int(200 * (1 - MIN_CONSTANT_FRACTION)), True), (40, False)):
        said = torch.zeros(200).long()
        said[:others] = 1  # as often right as wrong
        found = why(said, y)
        assert (found is not None and "not better than guessing" in found) is guesses


def test_of_one_label_nobody_can_tell() -> None:
    assert why(torch.ones(30).long(), torch.ones(30).long()) is None
