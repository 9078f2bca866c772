"""MRM: the initial weights under the mask, trained as the whole net was."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.data import load
from spurless.data.split import Splits
from spurless.fitting import Fitted, fit
from spurless.methods import make_method, mrm
from spurless.methods._learn_mask import reset
from spurless.methods.mrm import MRM
from spurless.models import Classifier, build
from spurless.models.pruning.masks import get_weight_masks
from spurless.train.run import Compute

pytestmark = pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")  # tiny runs predict one class
CPU = Compute("cpu")
TRAIN = {"steps": 30, "batch_size": 64, "lr": 0.05}
SMALL: dict[str, Any] = {"prune_steps": 20, "prune_lr": 0.2, "batch_size": 32}


@pytest.fixture(scope="module")
def digits() -> Splits:
    data = load("colored-digits", conflicting=0.1, size=16, seed=0)
    return replace(data, train=data.train.select(torch.arange(0, 1000, 2)))


def net(data: Splits) -> Classifier:
    return build("pooled-cnn", data, channels="8,16")


def run(data: Splits, model: Classifier | None = None, **options: Any) -> Fitted:
    given = net(data) if model is None else model
    return fit("mrm", given, data, train=TRAIN, compute=CPU, **{**SMALL, **options})


def last_step(fitted: Fitted) -> int:
    return max(int(row["step"]) for row in fitted.record.history if row["stage"] == "retrain")


def test_it_goes_back_to_the_initial_weights_and_the_zeros_stay(
    digits: Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def noted(model: Classifier, *rest: Any) -> Classifier:
        seen["mask"] = get_weight_masks(model)
        seen["reset"] = again = reset(model, *rest)
        seen["weights"] = {name: p.detach().clone() for name, p in again.named_parameters()}
        return again

    monkeypatch.setattr(mrm, "reset", noted)
    fitted = run(digits)
    initial = dict(net(digits).named_parameters())
    for name, p in seen["weights"].items():
        assert torch.equal(p, initial[name.replace("parametrizations.", "").replace(".original", "")])
    for name, keep in seen["mask"].items():
        assert not fitted.model.get_parameter(name)[~keep].any()
        assert not torch.equal(fitted.model.get_parameter(name)[keep], initial[name][keep])
    assert 0 < fitted.explanation.sparsity < 1
    assert fitted.explanation.mined is None
    assert fitted.start is not None
    for name, keep in seen["mask"].items():  # of the pruned stage: the trained weights, before the reset
        kept = fitted.explanation.pruned.get_parameter(name)
        assert torch.equal(kept, torch.where(keep, fitted.start.get_parameter(name), 0))
    assert list(dict.fromkeys(row["stage"] for row in fitted.record.history)) == [
        "erm",
        "prune",
        "retrain",
        "subnetwork",
    ]


def test_it_is_trained_as_long_as_the_whole_net_unless_told(digits: Splits) -> None:
    assert last_step(run(digits)) == 30
    assert last_step(run(digits, steps=7)) == 7


def test_without_a_reset_it_goes_on_from_the_trained_weights(digits: Splits) -> None:
    trained = fit("erm", net(digits), digits, train=TRAIN, compute=CPU).model
    with pytest.raises(
        InputError, match=r"the initial weights are unknown.*use reset=False.*ImageNet.*wrap\(model, trained=False\)"
    ):
        run(digits, trained)
    kept = run(digits, trained, reset=False, steps=1)

    def far(a: Classifier, b: Classifier) -> float:
        def flat(model: Classifier) -> Tensor:
            return torch.cat([p.detach()[p != 0] for p in model.parameters() if p.dim() > 1])

        where = [p != 0 for p in a.parameters() if p.dim() > 1]
        others = [p.detach()[w] for p, w in zip((p for p in b.parameters() if p.dim() > 1), where, strict=True)]
        return float((flat(a) - torch.cat(others)).norm())

    assert far(kept.model, trained) < 0.2 * far(kept.model, net(digits))


def test_a_way_back_that_is_not_known_is_refused_before_a_mask_is_learned(
    digits: Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learned(*_: Any) -> None:
        raise AssertionError("thousands of steps for nothing")

    monkeypatch.setattr(mrm, "learn_mask", learned)
    trained = net(digits)
    trained.trained = True
    with pytest.raises(InputError, match="the initial weights are unknown"):
        run(digits, trained)


def test_the_mask_is_learned_from_all_examples_alike(digits: Splits) -> None:
    # DCWP with nothing of its own learns the same mask: other draws, but the same rule; so only roughly as sparse
    plain = {"upweight": 1.0, "prune_upweight": 1.0, "align": 0.0, "prune_align": 0.0, "steps": 1}
    twin = fit(
        "dcwp", net(digits), digits, train=TRAIN, compute=CPU, mining={"steps": 5, "how": "early"}, **{**SMALL, **plain}
    )
    assert run(digits).explanation.sparsity == pytest.approx(twin.explanation.sparsity, abs=0.03)


def test_the_presets_are_those_of_the_comparison_in_dcwp() -> None:
    assert make_method("mrm").config.sparsity == 1e-8
    assert make_method("mrm").config.steps is None
    assert (MRM.presets["corrupted-cifar10"].sparsity, MRM.presets["corrupted-cifar10"].steps) == (1e-9, 20_000)
    assert MRM.presets["bffhq"].sparsity == 1e-9


@pytest.mark.parametrize(
    ("options", "said"),
    [({"steps": 0}, "steps.* must be at least 1"), ({"prune_steps": 0}, "prune_steps.* must be at least 1")],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_method("mrm", **options)
