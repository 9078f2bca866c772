"""Abstaining under the protocol: every number of a hand-made model by hand, and a word where a group is harmed."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.groups import Groups
from spurless.core.records import Record
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.split import Split, Splits
from spurless.fitting import evaluate_given, fit
from spurless.fitting.selective import CURVE_POINTS, add_selective_metrics, assess_selective_metrics, describe_harm
from spurless.models import Classifier, build
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, Run, make_run
from spurless.train.selective import Abstainer, assess_selective

GROUPS = Groups(("no", "yes"), ("left", "right"))
CPU = Compute("cpu")
PLANTED = planted(PlantedConfig(n_train=400, n_val=300, n_test=300, agreement=0.9))
TRAIN = {"epochs": 2, "batch_size": 50, "lr": 0.05}


def said(p: list[float]) -> Tensor:
    """Inputs from which :func:`reader` says "yes" with these probabilities."""
    yes = torch.tensor(p, dtype=torch.float64)
    return (yes / (1 - yes)).log()[:, None].float()


def reader(scale: float = 1.0) -> Classifier:
    """A model whose log odds of "yes" are its input."""
    model = Classifier(nn.Identity(), nn.Linear(1, 2))
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[0.0], [scale]]))  # type: ignore[operator]  # a parameter
        model.head.bias.zero_()  # type: ignore[operator]  # a parameter
    return model


def split(p: list[float], y: list[int], a: list[int]) -> Split:
    return Split(said(p), torch.tensor(y), torch.tensor(a), GROUPS)


# Scores of validation: .9 .8 .7 .6, so half of it is kept from .8 on, and all of it from .6 on.
VAL = split([0.9, 0.2, 0.7, 0.4], [1, 1, 1, 1], [0, 0, 0, 0])
# group      no, left     no, right   yes, left    yes, right
# p(yes)     .05   .45    .95   .55   .90   .65    .85   .15
# said       no    no     yes   yes   yes   yes    yes   no
# right      +     +      -     -     +     +      +     -
# score      .95   .55    .95   .55   .90   .65    .85   .85
TEST = split([0.05, 0.45, 0.95, 0.55, 0.90, 0.65, 0.85, 0.15], [0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0, 1, 1])
DATA = Splits(TEST, VAL, TEST, name="by hand")


def a_run() -> Run:
    return make_run(CPU, 0, TrainConfig())


def assessed(
    model: Classifier, data: Splits = DATA, coverages: tuple[float, ...] = (1.0, 0.5), **more: Any
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """The numbers, whatever is said of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpurlessWarning)
        return assess_selective_metrics(
            model, more.get("begun"), data, a_run(), more.get("score", "softmax"), coverages
        )


def test_nothing_is_asked_nothing_is_found() -> None:
    assert assess_selective_metrics(reader(), None, DATA, a_run(), "softmax", ()) == ({}, {})


def test_thresholds_come_from_validation_and_errors_from_test() -> None:
    numbers, found = assessed(reader())
    whole, half = found["rows"]
    assert [row["target"] for row in found["rows"]] == [1.0, 0.5]
    # of test itself, half would be kept from .9 on, and all from .55 on
    assert [row["threshold"] for row in found["rows"]] == pytest.approx([0.6, 0.8])
    assert (whole["coverage"], half["coverage"]) == (6 / 8, 5 / 8)
    assert (whole["error"], half["error"]) == pytest.approx((2 / 6, 2 / 5))
    assert (half["worst_group_error"], half["worst_group"]) == (1.0, "no, right")
    assert numbers["coverage_at_50"] == half["coverage"]
    assert numbers["error_at_100"] == whole["error"]
    assert numbers["worst_group_error_at_50"] == 1.0


def test_every_group_has_its_count_its_kept_and_its_error() -> None:
    _, found = assessed(reader())
    rows = {row["name"]: (row["count"], row["kept"], row["error"]) for row in found["rows"][1]["groups"]}
    assert rows == {
        "no, left": (2, 1, 0.0),
        "no, right": (2, 1, 1.0),
        "yes, left": (2, 1, 0.0),
        "yes, right": (2, 2, 0.5),
    }


def test_the_full_row_refuses_nothing_where_a_target_of_one_may() -> None:
    _, found = assessed(reader())
    assert found["full"] == {"error": 3 / 8, "worst_group_error": 1.0, "worst_group": "no, right"}
    assert found["rows"][0]["coverage"] < 1


def test_the_curve_is_that_of_test_and_keeps_the_tied_together() -> None:
    _, found = assessed(reader())
    # scores .95 .95 | .90 | .85 .85 | .65 | .55 .55: no threshold keeps one, four or seven of them
    kept = [2, 3, 5, 6, 8]
    wrong = [1, 1, 2, 2, 3]
    assert [point["coverage"] for point in found["curve"]] == pytest.approx([k / 8 for k in kept])
    assert [point["error"] for point in found["curve"]] == pytest.approx(
        [w / k for w, k in zip(wrong, kept, strict=True)]
    )
    assert [point["worst_group_error"] for point in found["curve"]] == [1.0] * 5


def test_the_worst_group_of_the_curve_by_hand() -> None:
    # the surest first: left .9 +, right .85 +, right .8 -, left .7 -, left .65 +, right .6 +
    test = split([0.9, 0.85, 0.2, 0.3, 0.65, 0.6], [1] * 6, [0, 1, 1, 0, 0, 1])
    _, found = assessed(reader(), replace(DATA, test=test))
    assert [point["error"] for point in found["curve"]] == pytest.approx([0, 0, 1 / 3, 2 / 4, 2 / 5, 2 / 6])
    worst = [point["worst_group_error"] for point in found["curve"]]
    assert worst == pytest.approx([0, 0, 1 / 2, 1 / 2, 1 / 2, 1 / 3])


def test_a_long_curve_is_kept_at_so_many_points() -> None:
    _, found = assessed(build("linear", PLANTED), PLANTED)
    coverages = [point["coverage"] for point in found["curve"]]
    assert len(coverages) == CURVE_POINTS
    assert coverages == pytest.approx([part / CURVE_POINTS for part in range(1, CURVE_POINTS + 1)])
    assert found["curve"][-1]["error"] == pytest.approx(found["full"]["error"])
    assert found["curve"][-1]["worst_group_error"] == found["full"]["worst_group_error"]


def test_the_product_is_that_of_the_start_and_the_model() -> None:
    # odds o and o ** -.5: p(yes) = .8 and 1 / 3, so the products are .8 / 3 for yes and .2 * 2 / 3 for no
    first, second = reader(), reader(-0.5)
    one = Split(said([0.8]), torch.tensor([0]), torch.tensor([0]), GROUPS)
    _, found = assessed(second, Splits(one, one, one), (1.0,), begun=first, score="product")
    assert found["rows"][0]["threshold"] == pytest.approx(0.8 / 3)
    assert found["full"]["error"] == 1.0  # the product says yes, where the model alone would say no
    by_hand = assess_selective(Abstainer((first, second), "product"), DATA, (1.0, 0.5))
    numbers, found = assessed(second, begun=first, score="product")
    assert numbers == {name: None if value != value else value for name, value in by_hand.summary().items()}
    assert found["score"] == "product"


def test_of_two_models_the_first_alone_is_kept_beside_them() -> None:
    _, found = assessed(reader(-0.5), begun=reader(), score="product")
    assert found["start"] == assessed(reader())[1]
    assert "start" not in assessed(reader(-0.5), begun=reader())[1]  # a score of one model has no other


def test_a_score_of_two_models_is_refused_of_one() -> None:
    with pytest.raises(InputError, match="the score 'product' needs two models or more"):
        assessed(reader(), score="product")


def test_numbers_that_do_not_exist_are_none() -> None:
    sure = replace(DATA, val=split([0.999], [1], [0]))  # a threshold that nothing of test reaches
    numbers, found = assessed(reader(), sure, (1.0,))
    assert found["rows"][0]["coverage"] == 0
    assert found["rows"][0]["error"] is found["rows"][0]["worst_group_error"] is numbers["error_at_100"] is None
    assert found["rows"][0]["worst_group"] == ""


@pytest.mark.parametrize("coverage", [0.0, -0.1, 1.1, 80.0, float("nan")])
def test_a_coverage_that_is_no_share_is_refused(coverage: float) -> None:
    with pytest.raises(InputError, match=r"the coverage must be a fraction \(expected above 0 and at most 1, got"):
        assessed(reader(), coverages=(1.0, coverage))


def test_harm_to_a_group_is_said_with_the_group_and_the_two_numbers() -> None:
    # right: one of two is wrong, and surer; left is all right. At half, what is left of right is wrong.
    test = split([0.9, 0.8, 0.95, 0.6], [1, 1, 0, 0], [0, 0, 1, 1])
    test = replace(test, x=torch.cat([test.x[:3], -test.x[3:]]))  # type: ignore[index]  # a tensor
    with pytest.warns(SpurlessWarning) as heard:
        assess_selective_metrics(reader(), None, replace(DATA, test=test), a_run(), "softmax", (1.0, 0.9, 0.5))
    (sentence,) = [str(each.message) for each in heard]
    assert "at a coverage of 50 % the error of 'no, right' is 100.0 %" in sentence
    assert "at full coverage the worst-group error is 50.0 %" in sentence


def found_of(lowest: float | None, full: float | None, target: float = 0.5) -> dict[str, Any]:
    row = {"target": 1.0, "worst_group_error": 0.9, "worst_group": "other"}
    low = {"target": target, "worst_group_error": lowest, "worst_group": "g"}
    return {"rows": [low, row], "full": {"worst_group_error": full}}


def test_no_harm_no_word() -> None:
    assert describe_harm(found_of(0.31, 0.3))
    assert not describe_harm(found_of(0.3, 0.3))
    assert not describe_harm(found_of(0.2, 0.3))
    assert not describe_harm(found_of(None, 0.3))  # nothing was predicted
    assert not describe_harm(found_of(0.3, None))
    assert not describe_harm(found_of(0.31, 0.3, target=1.0))  # nobody asked it to abstain


def test_the_warning_lands_in_the_record_of_a_fit() -> None:
    with pytest.warns(SpurlessWarning, match="Abstaining harms a group"):
        fitted = fit("erm", build("linear", PLANTED), PLANTED, train=TRAIN, compute=CPU, coverages=(1.0, 0.5))
    assert fitted.record.warnings == (describe_harm(fitted.record.selective),)
    row = fitted.record.selective["rows"][-1]
    # ERM leans on the shortcut: where the two disagree, it is sure of its mistakes
    assert row["worst_group"] in ("minus, right", "plus, left")
    assert row["worst_group_error"] > fitted.record.selective["full"]["worst_group_error"]
    again = Record.from_json(fitted.record.to_json())
    assert again.selective == fitted.record.selective


def test_a_given_model_gets_the_same_numbers_as_the_run_that_made_it() -> None:
    with pytest.warns(SpurlessWarning, match="Abstaining harms a group"):
        fitted = fit("erm", build("linear", PLANTED), PLANTED, train=TRAIN, compute=CPU, coverages=(1.0, 0.5))
    given = evaluate_given("mine", fitted.model, PLANTED, compute=CPU)
    with pytest.warns(SpurlessWarning, match="Abstaining harms a group"):
        record = add_selective_metrics(given, Abstainer((fitted.model,)), PLANTED, (1.0, 0.5))
    assert record.metrics == fitted.record.metrics
    assert record.selective == fitted.record.selective
    assert record.warnings == fitted.record.warnings
    assert (record.method, given.selective) == ("mine", {})
