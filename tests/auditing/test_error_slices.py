"""Error slices: mistakes that share something are found, mistakes of a model that knows its doubt are not."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from spurless.auditing import _residuals as excess
from spurless.auditing import error_slices
from spurless.auditing._context import AuditContext
from spurless.auditing.error_slices import MIN_EFFECT, audit_error_slices
from spurless.core.figures import Figure, Picture
from spurless.core.findings import Finding
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split
from spurless.models.classifier import Classifier


def context(features: Tensor, logits: Tensor, y: Tensor, labels: tuple[str, ...] = ("cow", "camel")) -> AuditContext:
    split = Split(features, y, torch.full_like(y, -1), Groups(labels))
    model = Classifier(nn.Identity(), nn.Linear(features.shape[1], logits.shape[1]))
    return AuditContext(model, split, features, logits, seeds=Seeds(0), permutations=99)


def leaning(seed: int = 0, n: int = 400) -> tuple[AuditContext, Tensor]:
    """A model of two features, the label's own and a shortcut that holds in four of five, of which it reads mostly
    the second; with who breaks the shortcut."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=g)
    breaks = torch.rand(n, generator=g) < 0.2
    sign, shortcut = 2.0 * y - 1, (2.0 * y - 1) * torch.where(breaks, -1.0, 1.0)
    noise = torch.randn(n, 8, generator=g)
    features = torch.cat([sign[:, None] + 0.5 * noise[:, :1], shortcut[:, None] + 0.3 * noise[:, 1:2], noise[:, 2:]], 1)
    score = 0.5 * features[:, 0] + 2 * features[:, 1]
    return context(features, torch.stack([-score, score], dim=1), y), breaks


def clean(seed: int, n: int = 300, classes: int = 2) -> AuditContext:
    """A model whose probabilities are the truth: the label depends on the example only through what it says."""
    g = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 10, generator=g)
    logits = features[:, :classes] * 1.5 + 0.5 * features[:, 5 : 5 + classes]
    y = torch.multinomial(logits.softmax(dim=1), 1, generator=g).flatten()
    return context(features, logits, y, tuple(f"class {i}" for i in range(classes)))


def test_a_shortcut_is_found_and_its_mistakes_are_shown() -> None:
    found, breaks = leaning()
    finding = audit_error_slices(found)
    assert finding.flagged
    assert finding.p == 0.01
    assert finding.severity > 0.5
    assert finding.severity == finding.numbers["correlation"]
    assert finding.numbers["low"] < finding.severity < finding.numbers["high"]
    assert len(finding.rows) == 24
    assert all(bool(found.incorrect[row]) and bool(breaks[row]) for row in finding.rows)
    assert "cow" in finding.title or "camel" in finding.title


def test_rows_are_mistakes_even_where_they_are_few() -> None:
    found, _ = leaning(3, 120)
    finding = audit_error_slices(found)
    assert finding.flagged
    assert 5 < len(finding.rows) < 24
    assert all(bool(found.incorrect[row]) for row in finding.rows)


def test_the_worst_slice_is_of_those_who_break_the_shortcut() -> None:
    finding = audit_error_slices(leaning()[0])
    numbers = finding.numbers
    assert numbers["slice_error"] > 0.8
    assert numbers["slice_expected"] < 0.5  # equally sure predictions are right more often
    assert numbers["slice_low"] <= numbers["slice_error"] <= numbers["slice_high"]
    assert numbers["slice_size"] >= error_slices.MIN_EXAMPLES
    said = "cow" if "predicts “cow”" in finding.title else "camel"
    other = "camel" if said == "cow" else "cow"
    size, wrong = int(numbers["slice_size"]), round(numbers["slice_size"] * numbers["slice_error"])
    assert f"has {size} examples that are predicted as “{said}”" in finding.because
    assert f"their labels are {wrong} “{other}”" in finding.because


def test_models_that_know_their_doubt_are_flagged_as_rarely_as_the_level_allows() -> None:
    findings = [audit_error_slices(clean(seed, classes=2 + seed % 2)) for seed in range(40)]
    assert all(finding.p is not None for finding in findings)
    assert sum((finding.p or 1) <= 0.05 for finding in findings) <= 6  # 99.7 % of binomial(40, 0.05)
    assert sum(finding.flagged for finding in findings) <= 2


def test_a_stratum_that_mixes_sure_and_unsure_is_no_shortcut() -> None:
    """Ten labels share 200 examples, so that a stratum is a prediction: certainty itself must be accounted for."""
    flagged = 0
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        features = torch.randn(200, 10, generator=g)
        logits = 3 * features
        y = torch.multinomial(logits.softmax(dim=1), 1, generator=g).flatten()
        flagged += audit_error_slices(context(features, logits, y, tuple("abcdefghij"))).flagged
    assert flagged <= 4


def test_mistakes_of_a_sure_model_that_share_nothing_are_not_flagged() -> None:
    found, _ = leaning()
    g = torch.Generator().manual_seed(3)
    y = torch.where(torch.rand(400, generator=g) < 0.2, 1 - found.predicted, found.predicted)
    finding = audit_error_slices(replace(found, split=replace(found.split, y=y)))
    assert not finding.flagged
    assert finding.p is not None
    assert finding.rows == ()
    assert "The model's probabilities imply an error rate of" in finding.because


def test_a_small_effect_is_below_the_floor_however_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = leaning()
    monkeypatch.setattr(error_slices, "MIN_EFFECT", 0.99)
    finding = audit_error_slices(found)
    assert finding.p == 0.01
    assert not finding.flagged
    assert MIN_EFFECT < finding.severity < 0.99


def test_it_is_the_same_again_and_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = leaning()
    once = audit_error_slices(found)
    again = audit_error_slices(replace(found))
    assert (once.p, once.rows, once.numbers, once.because) == (again.p, again.rows, again.numbers, again.because)
    monkeypatch.setattr(excess, "MAX_ELEMENTS", 1000)
    pieces = audit_error_slices(replace(found))
    assert pieces.p == once.p
    assert pieces.numbers["chance"] == pytest.approx(once.numbers["chance"])


def degenerate() -> list[AuditContext]:
    ones, y = torch.ones(40, 3), torch.arange(40) % 2
    one_sided = torch.tensor([[1.0, 0.0]]).repeat(40, 1)
    return [
        context(torch.randn(1, 3), torch.tensor([[1.0, 0.0]]), torch.tensor([1])),
        context(ones, one_sided, y),
        context(torch.randn(40, 3), one_sided, torch.zeros(40, dtype=torch.long)),
        context(torch.randn(40, 3), one_sided, torch.ones(40, dtype=torch.long)),
        context(torch.randn(40, 3), torch.zeros(40, 1), torch.zeros(40, dtype=torch.long), ("only",)),
    ]


@pytest.mark.parametrize("which", range(5))
def test_what_cannot_be_asked_is_said(which: int) -> None:
    finding = audit_error_slices(degenerate()[which])
    assert (finding.p, finding.severity, finding.flagged) == (None, 0.0, False)
    assert finding.because


def test_one_prediction_for_all_can_be_asked() -> None:
    x = torch.randn(80, 3)
    finding = audit_error_slices(context(x, torch.tensor([[1.0, 0.0]]).repeat(80, 1), (x[:, 0] > 0.3).long()))
    assert finding.flagged  # the features tell the label, and the model does not listen


def test_a_model_may_say_what_the_data_have_no_name_for() -> None:
    found, _ = leaning()
    third = torch.where(found.features[:, 2:3] > 0.5, found.logits[:, 1:] + 0.1, -9.0)
    finding = audit_error_slices(replace(found, logits=torch.cat([found.logits, third], dim=1)))
    assert finding.flagged


def alts(finding: Finding) -> list[str]:
    return [item.alt for item in finding.items]


def test_the_figures_say_what_they_show() -> None:
    found, _ = leaning()
    finding = audit_error_slices(found)
    tenths, slices = finding.items
    assert isinstance(tenths, Figure)
    assert isinstance(slices, Figure)
    error = tenths.spec["data"][0]["y"]
    assert sum(error) / 10 == pytest.approx(100 * float(found.incorrect.double().mean()))
    assert error[-1] > 80
    assert f"10 {round(error[-1], 2):g}; incorrect among equally confident" in tenths.alt
    assert slices.spec["data"][0]["x"][0] == pytest.approx(100 * finding.numbers["slice_error"])
    assert all(alts(finding))


def test_errors_of_images_are_drawn() -> None:
    leaned, _ = leaning()
    x = torch.randint(0, 256, (len(leaned), 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    model = Classifier(nn.Flatten(), nn.Linear(192, 2))
    finding = audit_error_slices(replace(leaned, split=replace(leaned.split, x=x), model=model))
    pictures = [item for item in finding.items if isinstance(item, Picture)]
    assert [picture.title for picture in pictures] == ["Errors of the worst slice"]
    assert not any(isinstance(item, Picture) for item in audit_error_slices(leaned).items)
