"""Property association: skills by hand, against scikit-learn, and on data with a planted corner."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import spurless as sp
from spurless.auditing import _clear_associations, _require_agreement, audit, find_gaps
from spurless.auditing._context import AuditContext, compute_context
from spurless.auditing.property_association import audit_property_association, bin_by_rank, compute_skill
from spurless.core.findings import Audit, Finding
from spurless.core.groups import Groups
from spurless.data.split import Split
from spurless.models.classifier import Classifier
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, make_run


def context_of(x: Tensor, y: Tensor, a: Tensor | None = None) -> AuditContext:
    attributes = () if a is None else ("left", "right")
    split = Split(x, y, torch.full_like(y, -1) if a is None else a, Groups(("minus", "plus"), attributes))
    model = sp.wrap(nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 2)))
    return replace(compute_context(model, split, make_run(Compute("cpu"), 0, TrainConfig())), permutations=99)


def marked(n: int, rate: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return noise images of two labels; a fraction ``rate`` of label 1 has a bright corner."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    x = torch.randint(0, 200, (n, 1, 10, 10), generator=generator, dtype=torch.uint8)
    x[(y == 1) & (torch.rand(n, generator=generator) < rate), :, :2, :2] = 255
    return x, y


def test_the_skill_of_a_rule_by_hand() -> None:
    # three of four labels follow the bin in every fold: balanced accuracy 3/4, skill (3/4 - 1/2) / (1/2)
    y = torch.tensor([0, 0, 0, 1] * 50 + [1, 1, 1, 0] * 50)
    codes = torch.tensor([0] * 200 + [1] * 200)[:, None]
    assert float(compute_skill(codes, y, torch.Generator().manual_seed(0))) == pytest.approx(0.5)


def test_labels_are_weighted_alike() -> None:
    # nine of ten examples are of label 0, which always predicting it would exploit
    y = (torch.arange(400) % 10 == 0).long()
    codes = torch.randint(0, 4, (400, 1), generator=torch.Generator().manual_seed(0))
    assert float(compute_skill(codes, y, torch.Generator().manual_seed(0))) < 0.15


def test_equal_values_share_a_bin() -> None:
    values = torch.tensor([[1.0, 3.0], [1.0, 2.0], [1.0, 1.0], [7.0, 0.0]])
    assert bin_by_rank(values, 4).tolist() == [[0, 3], [0, 2], [0, 1], [3, 0]]


@pytest.mark.parametrize(("rate", "flagged"), [(1.0, True), (0.9, True), (0.0, False)])
def test_a_corner_that_goes_with_the_label_is_flagged(rate: float, flagged: bool) -> None:
    for seed in range(5):
        finding = audit_property_association(context_of(*marked(200, rate, seed)))
        assert finding.flagged == flagged
        assert not finding.shows_use
        if flagged:
            assert finding.shortcut == "brightness of the top left corner"
            assert finding.severity == pytest.approx(rate, abs=0.12)


def test_tables_and_few_examples_are_not_tested() -> None:
    y = torch.arange(100) % 2
    assert audit_property_association(context_of(torch.randn(100, 3), y)).p is None
    assert audit_property_association(context_of(*marked(30, 1.0, 0))).p is None


class Center(nn.Module):
    """A model that reads the center only."""

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, :, 4:6, 4:6].mean((1, 2, 3)) - 0.6)[:, None]


def test_a_property_that_the_model_does_not_follow_is_cleared() -> None:
    x, y = marked(400, 1.0, 0)
    x[y == 1, :, 4:6, 4:6] = 250
    x[y == 0, :, 4:6, 4:6] = 50
    head = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[-1.0], [1.0]]))
    model = Classifier(Center(), head)
    model.trained = True
    report = audit(model, Split(x, y, torch.full_like(y, -1), Groups(("minus", "plus"))))
    finding = next(f for f in report.findings if f.audit == "property-association")
    assert (finding.flagged, finding.severity) == (False, 1.0)
    assert finding.title.endswith("but no transplant is followed often enough to be flagged")
    assert report.verdict == "inconclusive"  # no errors: a model with a shortcut would look the same


@pytest.mark.parametrize(("skill", "effect", "cleared"), [(0.9, 0.25, False), (0.9, 0.1, True), (0.6, 0.25, True)])
def test_a_strong_association_is_not_cleared_if_a_transplant_is_followed_in_part(
    skill: float, effect: float, cleared: bool
) -> None:
    association = Finding(
        "property-association", "Hue predicts the label", skill, True, 0.01, "b", "r", shows_use=False
    )
    followed = Finding("transplants", "It does not follow", effect, False, 0.002, "b", "r")
    first, _ = _clear_associations([association, followed])
    assert first.flagged is not cleared
    assert _clear_associations([association]) == [association]  # nothing was transplanted
    assert _clear_associations([association, replace(followed, flagged=True)])[0].flagged


def test_gaps_without_attributes_are_few_errors_and_suspects() -> None:
    context = context_of(*marked(400, 0.0, 0))
    tested = [audit_property_association(context)]
    n_errors = int(context.incorrect.sum())
    assert n_errors > 20
    assert len(find_gaps(context, tested, 0)) == 1  # no transplant was tested
    assert "12 examples" in find_gaps(context, tested, 12)[0]
    perfect = replace(context, logits=torch.nn.functional.one_hot(context.y, 2).float())
    assert "0 errors in 400 predictions" in find_gaps(perfect, tested, 0)[0]


def test_gaps_with_attributes_are_small_groups() -> None:
    x, y = marked(400, 0.0, 0)
    a = y.clone()
    a[:7] = 1 - y[:7]
    (gap,) = find_gaps(context_of(x, y, a), [], 50)
    assert "(4)" in gap
    assert "(3)" in gap
    assert find_gaps(context_of(x, y, torch.arange(400) // 2 % 2), [], 50) == ()


def test_gaps_are_kept_in_the_verdict() -> None:
    assert Audit((), gaps=("Too few.",)).verdict == "inconclusive"


def finding_of(name: str, flagged: bool = True) -> Finding:
    return Finding(name, "", 0.5, flagged, 0.001, "", "")


def test_neurons_and_slices_of_a_hard_class_confirm_only_together() -> None:
    def verdict(*names: str, low: float = 0.3) -> str:
        shows_use = {"worst-class": False, "suspects": False}
        tested = [replace(finding_of(name), shows_use=shows_use.get(name, True)) for name in names]
        findings = [replace(f, numbers={"low": low}) if f.audit == "error-slices" else f for f in tested]
        return Audit(tuple(_require_agreement(findings))).verdict

    assert verdict("biased-neurons", "error-slices") == "shortcut"
    assert verdict("biased-neurons") == "suspicious"
    assert verdict("error-slices") == "suspicious"  # hard examples of a clean model
    assert verdict("error-slices", low=0.36) == "shortcut"
    assert verdict("error-slices", "worst-class") == "suspicious"
    assert verdict("error-slices", "suspects") == "suspicious"
    assert verdict("error-slices", "image-properties") == "shortcut"
    assert verdict("error-slices", "worst-class", "biased-neurons") == "shortcut"
    assert verdict("biased-neurons", "transplants") == "shortcut"  # which names what the model follows
