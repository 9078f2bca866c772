"""Attribute use on features and heads made by hand: what is used is found, what is only there is not."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from spurless.auditing._context import AuditContext
from spurless.auditing._permutation import p_value, permute_within_strata
from spurless.auditing.attribute_association import select_known
from spurless.auditing.attribute_use import (
    MIN_EFFECT,
    NAME,
    RIDGE,
    AttributeSwitch,
    _make_switch,
    audit_attribute_use,
    fit_probe,
)
from spurless.core.figures import Figure
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split
from spurless.models.classifier import Classifier
from spurless.models.features import compute_logits

BIRDS = Groups(("landbird", "waterbird"), ("land", "water"))


def linear(*weights: float) -> Classifier:
    """A head of two logits that differ by the weighted sum of the features."""
    head = nn.Linear(len(weights), 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.stack([-torch.tensor(weights) / 2, torch.tensor(weights) / 2]))
    return Classifier(nn.Identity(), head)


def looked(
    model: Classifier, features: Tensor, y: Tensor, a: Tensor, groups: Groups = BIRDS, seed: int = 0
) -> AuditContext:
    split = Split(torch.zeros(len(y), 1), y, a, groups)
    return AuditContext(model, split, features, compute_logits(model, features), None, Seeds(seed), 199)


def birds(model: Classifier, seed: int = 0, n: int = 400, agreement: float = 0.5) -> AuditContext:
    """Three features with noise: the label, the attribute, nothing."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=generator)
    a = torch.where(torch.rand(n, generator=generator) < agreement, y, 1 - y)
    means = torch.stack([2.0 * y - 1, 4.0 * a - 2, 0.0 * y], dim=1)
    return looked(model, means + torch.randn(n, 3, generator=generator), y, a, seed=seed)


def switch_of(context: AuditContext) -> AttributeSwitch:
    known = select_known(context.split)
    switch = _make_switch(known, known.columns[0], torch.Generator().manual_seed(0))
    assert switch is not None
    return switch


def exact(core: float, spurious: float) -> AuditContext:
    """Label and attribute as pure numbers in two features, 10 examples of each group."""
    y, a = torch.arange(40) % 2, torch.arange(40) // 2 % 2
    features = torch.stack([2.0 * y - 1, 2.0 * a - 1], dim=1)
    return looked(linear(core, spurious), features, y, a)


def test_every_prediction_follows_a_model_of_the_attribute_alone() -> None:
    found = audit_attribute_use(exact(1.0, 3.0))

    assert found.audit == NAME
    assert found.flagged
    assert found.p == 1 / 200
    assert found.numbers["flips"] == 1.0
    assert found.severity == 1.0 - found.numbers["flips_by_chance"] > 0.5
    assert found.numbers["directions"] == 1
    # the second feature taken out, the first decides: half of the predictions were wrong, and none is
    assert found.numbers["removal_flips"] == 0.5
    assert found.numbers["removal_average"] == 0.5
    assert found.numbers["removal_worst_group"] == 1.0
    assert found.numbers["probe"] == 1.0
    assert found.numbers["probe_by_chance"] == 0.5


def test_a_push_too_weak_to_change_a_prediction_changes_none() -> None:
    found = audit_attribute_use(exact(3.0, 1.0))

    assert found.numbers["flips"] == 0
    assert found.numbers["removal_flips"] == 0
    assert found.numbers["logit_shift_p"] == 1 / 200
    assert not found.flagged


def test_what_is_used_is_found_and_named_and_the_misled_examples_are_shown() -> None:
    context = birds(linear(1.0, 1.0, 1.0))

    found = audit_attribute_use(context)

    assert found.flagged
    assert found.severity > 0.4
    assert found.shortcut in BIRDS.attributes
    assert found.title in (
        "Predictions follow the attribute: “land” raises the logit of “landbird”",
        "Predictions follow the attribute: “water” raises the logit of “waterbird”",
    )
    assert found.numbers["logit_shift"] == pytest.approx(4 / 3**0.5, rel=0.1)  # +-2 in the sum of three noises
    assert found.numbers["low"] < found.numbers["flips"] < found.numbers["high"]
    assert "dfr" in found.remedy
    assert len(found.rows) == 24
    for row in found.rows:  # wrong, and said to be what goes with the attribute
        assert int(context.predicted[row]) == int(context.split.a[row]) != int(context.y[row])


def test_random_directions_of_as_much_variance_change_little() -> None:
    context = birds(linear(1.0, 1.0, 1.0))
    noise = torch.randn(400, 37, generator=torch.Generator().manual_seed(1))
    wide = looked(linear(*[1.0] * 3, *[0.0] * 37), torch.cat([context.features, noise], 1), context.y, context.split.a)

    numbers = audit_attribute_use(wide).numbers

    # without the direction of the attribute what is left is the label and the noise of the head's other features
    assert numbers["removal_flips"] > 0.3
    assert numbers["removal_flips_random"] < 0.15
    assert numbers["removal_worst_group"] > 0.2


def test_what_is_there_and_not_used_is_not_flagged() -> None:
    found = audit_attribute_use(birds(linear(1.0, 0.0, 1.0)))

    assert found.numbers["probe"] > 0.95
    assert found.numbers["flips"] < 0.1
    assert not found.flagged


def test_presence_without_use_is_flagged_as_seldom_as_the_level_says() -> None:
    found = [audit_attribute_use(birds(linear(1.0, 0.0, 1.0), seed, 150)) for seed in range(40)]
    p = torch.tensor([finding.p for finding in found])

    assert int((p <= 0.05).sum()) <= 5
    assert 0.35 < float(p.mean()) < 0.65
    assert not any(finding.flagged for finding in found)


def test_a_label_that_goes_with_the_attribute_is_no_use() -> None:
    # 95 of 100 agree, so logits differ with the attribute by 2; at equal label they do not.
    found = audit_attribute_use(birds(linear(1.0, 0.0, 0.0), 1, 2000, agreement=0.95))

    assert found.numbers["flips"] < 0.1
    assert not found.flagged


def test_use_is_found_where_few_break_the_association() -> None:
    found = audit_attribute_use(birds(linear(1.0, 1.0, 0.0), 1, 400, agreement=0.95))

    assert found.flagged
    assert found.numbers["logit_shift"] == pytest.approx(4 / 2**0.5, rel=0.25)


def test_a_slight_use_by_many_is_significant_and_not_flagged() -> None:
    found = audit_attribute_use(birds(linear(1.0, 0.06, 0.0), 0, 6000))

    assert found.p == 1 / 200
    assert 0.01 < found.severity < MIN_EFFECT
    assert not found.flagged


def test_ten_colours_push_to_ten_digits() -> None:
    digits = tuple("0123456789")
    groups = Groups(digits, tuple(f"colour {digit}" for digit in digits))
    generator = torch.Generator().manual_seed(0)
    y, a = (torch.randint(10, (300,), generator=generator) for _ in range(2))
    features = nn.functional.one_hot(y, 10) + 2.0 * nn.functional.one_hot(a, 10)
    features = features + 0.5 * torch.randn(300, 10, generator=generator)
    head = nn.Linear(10, 12, bias=False)  # two logits more than labels
    with torch.no_grad():
        head.weight.copy_(torch.eye(12, 10))
    context = looked(Classifier(nn.Identity(), head), features, y, a, groups)

    found = audit_attribute_use(context)

    value = str(found.shortcut).removeprefix("colour ")
    assert found.title.endswith(f"“colour {value}” raises the logit of “{value}”")
    assert found.flagged
    assert found.numbers["flips"] > 0.85
    assert found.numbers["directions"] == 9
    assert all(int(context.predicted[row]) == int(a[row]) for row in found.rows)


def test_overlapping_crossed_and_unknown() -> None:
    generator = torch.Generator().manual_seed(0)
    y, a = torch.randint(2, (500,), generator=generator), torch.randint(2, (500, 3), generator=generator)
    features = torch.cat([2.0 * y[:, None] - 1, 4.0 * a - 2], dim=1) + torch.randn(500, 4, generator=generator)
    talk = Groups.overlapping(("civil", "toxic"), ("male", "female", "other"))
    faces = Groups.crossed(("no", "yes"), {"gender": ("f", "m"), "age": ("young", "old"), "hat": ("on", "off")})
    model = linear(1.0, 0.0, 0.0, 1.0)

    overlapping = audit_attribute_use(looked(model, features, y, a, talk))
    assert overlapping.flagged
    assert overlapping.shortcut == "other"

    crossed = audit_attribute_use(looked(model, features, y, a, faces))
    assert crossed.flagged
    assert crossed.title.endswith(("on” raises the logit of “no”", "off” raises the logit of “yes”"))

    a[::2] = -1
    half = audit_attribute_use(looked(model, features, y, a, talk))
    assert half.flagged
    assert half.numbers["examples"] == 250
    assert all(row % 2 for row in half.rows)


def test_the_probe_leaves_the_example_out() -> None:
    generator = torch.Generator().manual_seed(3)
    y, a = torch.randint(2, (60,), generator=generator), torch.randint(3, (60,), generator=generator)
    features = torch.randn(60, 5, generator=generator) + torch.stack([1.4 * a, 2.0 * y] + [0.0 * y] * 3, dim=1)
    context = looked(linear(1, 1, 1, 1, 1), features, y, a, Groups(("n", "y"), ("a", "b", "c")))
    switch = switch_of(context)

    # By brute force: a level for each label, weights that make all groups count alike, one example left out.
    size = torch.bincount(3 * y + a)
    w = 1 / size[3 * y + a].double()
    levels = nn.functional.one_hot(y, 2).double()
    x = features.double()
    x = x - levels @ torch.linalg.solve(levels.T * w @ levels, levels.T * w @ x)
    x = torch.cat([x / x.std(dim=0), levels], dim=1)
    ridge = torch.diag(torch.tensor([RIDGE * float(w.sum())] * 5 + [0.0] * 2, dtype=torch.double))
    z, hits = nn.functional.one_hot(a, 3).double(), torch.zeros(6, dtype=torch.double)
    for i in range(60):
        rest = torch.arange(60) != i
        part = x[rest].T * w[rest]
        weights = torch.linalg.solve(part @ x[rest] + ridge, part @ z[rest])
        hits[3 * y[i] + a[i]] += float((x[i] @ weights).argmax() == a[i])

    found = fit_probe(features, y, switch)
    assert found["probe"] == pytest.approx(float((hits / size).mean()))
    assert found["probe_by_chance"] == pytest.approx(1 / 3)
    assert 0.4 < found["probe"] < 0.9


def test_the_probe_of_noise_guesses() -> None:
    context = birds(linear(1.0, 1.0, 1.0), 0, 600, agreement=0.8)
    noise = torch.randn(600, 30, generator=torch.Generator().manual_seed(0)) + 3 * context.y[:, None]

    assert fit_probe(noise, context.y, switch_of(context))["probe"] == pytest.approx(0.5, abs=0.08)


def test_the_push_is_least_squares() -> None:
    context = birds(linear(1.0, 0.5, 1.0), 2, 100, agreement=0.8)
    switch = switch_of(context)
    logits = context.logits.double()

    push, _ = switch.effects(logits)

    design = torch.cat([nn.functional.one_hot(context.y, 2), nn.functional.one_hot(context.split.a, 2)[:, 1:]], dim=1)
    weights = torch.linalg.lstsq(design.double(), logits).solution
    assert torch.allclose(push[1] - push[0], weights[2])


def test_permutations_one_by_one_say_the_same() -> None:
    context = birds(linear(1.0, 0.3, 1.0), 4, 80, agreement=0.7)
    a = (context.split.a + torch.arange(80) // 40) % 3  # a third value, which both labels have
    context = replace(context, split=replace(context.split, a=a, groups=Groups(BIRDS.labels, tuple("abc"))))
    known = select_known(context.split)
    switch = _make_switch(known, known.columns[0], context.seeds.generator(NAME, "switch"))
    assert switch is not None
    ones = [nn.functional.one_hot(context.y, 2), nn.functional.one_hot(a, 3)]
    design, shares = torch.cat(ones, dim=1).double(), []
    mixed = permute_within_strata(context.y, context.permutations, context.seeds.generator(NAME, "permutations"))
    for rows in [torch.arange(80), *mixed]:
        logits = context.logits[rows].double()
        push = (torch.linalg.pinv(design) @ logits)[2:]
        moved = logits - push[a] + push[switch.b]
        shares.append(float((moved.argmax(dim=1) != logits.argmax(dim=1)).double().mean()))

    found = audit_attribute_use(context)

    assert bool((switch.b != a).all())
    assert found.numbers["flips"] == pytest.approx(shares[0])
    assert found.numbers["flips_by_chance"] == pytest.approx(sum(shares[1:]) / 199)
    assert found.p == p_value(shares[0], shares[1:])


def test_rare_values_are_left_out() -> None:
    context = birds(linear(1.0, 1.0, 0.0))
    a = context.split.a.clone()
    a[:4] = 2
    groups = Groups(BIRDS.labels, ("land", "water", "air"))

    found = audit_attribute_use(replace(context, split=replace(context.split, a=a, groups=groups)))

    assert found.numbers["examples"] == 396
    assert found.flagged


@pytest.mark.parametrize(
    ("a", "groups", "why"),
    [
        (torch.full((40,), -1), BIRDS, "No example has a known attribute"),
        (torch.full((40,), -1), Groups(BIRDS.labels), "no attribute"),
        (torch.zeros(40, dtype=torch.long), BIRDS, "two attribute values"),
        (torch.arange(40) % 2, BIRDS, "No label has examples with two"),  # the attribute is the label
        ((torch.arange(40) < 3).long(), BIRDS, "at least 5 examples"),
    ],
)
def test_what_cannot_be_asked(a: Tensor, groups: Groups, why: str) -> None:
    found = audit_attribute_use(looked(linear(1.0, 1.0), torch.randn(40, 2), torch.arange(40) % 2, a, groups))

    assert (found.p, found.severity, found.flagged) == (None, 0.0, False)
    assert why in found.because


def test_constant_features_are_answered() -> None:
    context = looked(linear(1.0, 1.0), torch.ones(40, 2), torch.arange(40) % 2, torch.arange(40) // 2 % 2)

    found = audit_attribute_use(context)

    assert found.p == 1
    assert not found.flagged
    assert found.numbers["directions"] == 0


def test_a_head_of_several_layers() -> None:
    head = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    found = audit_attribute_use(birds(Classifier(nn.Identity(), head)))

    assert found.numbers["removal_flips"] <= 1
    assert found.p is not None


def test_the_same_seed_says_the_same_and_the_global_generator_is_not_moved() -> None:
    context, state = birds(linear(1.0, 0.1, 0.0)), torch.get_rng_state()

    assert audit_attribute_use(context).numbers == audit_attribute_use(context).numbers
    assert torch.equal(torch.get_rng_state(), state)


def test_the_figure_shows_the_push() -> None:
    figure = audit_attribute_use(exact(1.0, 3.0)).items[0]

    assert isinstance(figure, Figure)
    land, water = figure.spec["data"]
    assert (land["name"], water["name"]) == BIRDS.attributes
    assert land["y"] == pytest.approx([1.5, -1.5])  # half of 3, for and against
    assert "land: landbird 1.5" in figure.alt
