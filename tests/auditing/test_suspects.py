"""Suspects: those who break a shortcut are found and ranked first, and flagged where they look alike."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from spurless.auditing import suspects
from spurless.auditing._context import AuditContext
from spurless.auditing._minority_views import VIEWS
from spurless.auditing.suspects import audit_suspects, find_suspected
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split
from spurless.models.classifier import Classifier


def context(features: Tensor, logits: Tensor, y: Tensor, labels: tuple[str, ...] = ("cow", "camel")) -> AuditContext:
    split = Split(features, y, torch.full_like(y, -1), Groups(labels))
    model = Classifier(nn.Identity(), nn.Linear(features.shape[1], logits.shape[1]))
    return AuditContext(model, split, features, logits, seeds=Seeds(0), permutations=39)


def leaning(seed: int = 0, n: int = 400) -> tuple[AuditContext, Tensor]:
    """A shortcut that is plainer than the label's own feature, and a tenth of examples that break it."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=g)
    breaks = torch.rand(n, generator=g) < 0.1
    sign, shortcut = 2.0 * y - 1, (2.0 * y - 1) * torch.where(breaks, -1.0, 1.0)
    noise = torch.randn(n, 8, generator=g)
    features = torch.cat([sign[:, None] + 0.5 * noise[:, :1], 3 * shortcut[:, None] + noise[:, 1:2], noise[:, 2:]], 1)
    score = 0.5 * features[:, 0] + features[:, 1]
    return context(features, torch.stack([-score, score], dim=1), y), breaks


def clean(seed: int, n: int = 300, classes: int = 2) -> AuditContext:
    g = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 10, generator=g)
    logits = features[:, :classes] * 1.5 + 0.5 * features[:, 5 : 5 + classes]
    y = torch.multinomial(logits.softmax(dim=1), 1, generator=g).flatten()
    return context(features, logits, y, tuple(f"class {i}" for i in range(classes)))


def test_those_who_break_the_shortcut_are_suspected() -> None:
    found, breaks = leaning()
    who = find_suspected(found)
    both = int((who.suspected & breaks).sum())
    assert both / int(who.suspected.sum()) > 0.9
    assert both / int(breaks.sum()) > 0.8
    assert who.agreement > 0.8
    assert set(who.views) == set(VIEWS)


def test_suspected_is_what_two_views_find_and_half_of_the_score() -> None:
    for found in (leaning()[0], clean(0), clean(1, classes=3)):
        who = find_suspected(found)
        votes = torch.stack(list(who.views.values())).sum(dim=0)
        assert torch.equal(who.suspected, votes >= 2)
        assert torch.equal(who.suspected, who.score >= 0.5)
        assert float(who.score.min()) >= 0
        assert float(who.score.max()) <= 1
        assert bool((who.score[votes == 3].min() if bool((votes == 3).any()) else 1) > who.score[votes < 3].max())


def test_a_minority_that_looks_alike_is_flagged() -> None:
    found, breaks = leaning()
    finding = audit_suspects(found)
    assert finding.flagged
    assert finding.p == 1 / 40
    assert finding.severity > 0.4
    assert finding.severity == pytest.approx(finding.numbers["correlation"] - finding.numbers["chance"])
    assert finding.title.startswith(f"{int(finding.numbers['suspected'])} examples seem to conflict with a shortcut")
    who = find_suspected(found)
    rows = torch.tensor(finding.rows)
    assert bool(who.suspected[rows].all())
    assert bool((who.score[rows][:-1] >= who.score[rows][1:]).all())
    assert float(breaks[rows].double().mean()) > 0.9
    assert not finding.shows_use


def test_the_worst_inferred_group_is_counted_by_hand() -> None:
    found, _ = leaning()
    finding = audit_suspects(found)
    who = find_suspected(found).suspected
    accuracy = {
        (label, flag): float((~found.incorrect[(found.y == label) & (who == flag)]).double().mean())
        for label in range(2)
        for flag in (False, True)
    }
    assert finding.numbers["worst_inferred"] == pytest.approx(min(accuracy.values()))
    assert finding.numbers["worst_low"] <= finding.numbers["worst_inferred"] <= finding.numbers["worst_high"]
    assert "suspected”" in finding.because
    assert "pessimistic" in finding.because


def test_models_that_know_their_doubt_are_flagged_as_rarely_as_the_level_allows() -> None:
    few = (replace(clean(seed, 200, 2 + seed % 2), permutations=19) for seed in range(40))
    findings = [audit_suspects(found) for found in few]
    assert sum((finding.p or 1) <= 0.05 for finding in findings) <= 6  # 99.7 % of binomial(40, 0.05)
    assert sum(finding.flagged for finding in findings) <= 2


def test_mislabelled_examples_are_suspected_but_not_flagged() -> None:
    found, _ = leaning()
    g = torch.Generator().manual_seed(5)
    flipped = torch.rand(400, generator=g) < 0.1
    y = torch.where(flipped, 1 - found.predicted, found.predicted)
    noisy = replace(found, split=replace(found.split, y=y))
    assert float(find_suspected(noisy).suspected[flipped].double().mean()) > 0.9
    finding = audit_suspects(noisy)
    assert not finding.flagged


def test_permutations_are_few_and_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "MAX_PERMUTATIONS", 9)
    found, _ = leaning()
    one, two = audit_suspects(found), audit_suspects(replace(found))
    assert one.p == 0.1
    assert "by 9 permutations" in one.because
    assert (one.numbers, one.rows) == (two.numbers, two.rows)


def test_a_floor_below_which_nothing_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "MIN_EFFECT", 0.99)
    assert not audit_suspects(leaning()[0]).flagged


def test_too_few_to_hold_some_out_suspects_nobody() -> None:
    who = find_suspected(context(torch.randn(9, 3), torch.randn(9, 2), torch.arange(9) % 2))
    assert not bool(who.suspected.any())
    assert who.score.tolist() == [0.0] * 9
    assert who.agreement == 0


@pytest.mark.parametrize(
    ("features", "logits", "y"),
    [
        (torch.randn(1, 3), torch.tensor([[1.0, 0.0]]), torch.tensor([1])),
        (torch.ones(40, 3), torch.tensor([[1.0, 0.0]]).repeat(40, 1), torch.arange(40) % 2),
        (torch.randn(40, 3), torch.tensor([[1.0, 0.0]]).repeat(40, 1), torch.zeros(40, dtype=torch.long)),
        (torch.randn(40, 3), torch.tensor([[1.0, 0.0]]).repeat(40, 1), torch.ones(40, dtype=torch.long)),
    ],
)
def test_what_cannot_be_asked_is_said(features: Tensor, logits: Tensor, y: Tensor) -> None:
    found = context(features, logits, y)
    finding = audit_suspects(found)
    assert (finding.p, finding.severity, finding.flagged) == (None, 0.0, False)
    assert finding.because
    assert len(find_suspected(found).score) == len(y)


def test_the_figure_counts_the_suspects() -> None:
    found, _ = leaning()
    finding = audit_suspects(found)
    (figure,) = finding.items
    bars = figure.spec["data"]  # type: ignore[union-attr] # a figure, not a picture
    assert sum(sum(bar["x"]) for bar in bars) == finding.numbers["suspected"]
    assert "cow" in figure.alt
