"""DCWP: its stages in order, what moves in each, both readings of its weights, and what it does to coloured digits."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.seeds import Seeds
from spurless.data import load
from spurless.data.loader import Loader, Order
from spurless.data.mined import MinedExamples, data_fingerprint
from spurless.data.split import Batch, Split, Splits
from spurless.data.transforms import augmentation
from spurless.fitting import Fitted, fit
from spurless.methods import dcwp, make_method
from spurless.methods._alignment import alignment
from spurless.methods._learn_mask import finish_pruning, learn_mask
from spurless.methods._mining import MINING_COLORED_MNIST, MiningConfig, mine_conflicting
from spurless.methods.dcwp import DCWP, DCWPConfig, debiased_loss, equation_14
from spurless.models import Classifier, build, wrap
from spurless.models.initial_weights import reset_parameters
from spurless.models.pruning.masks import get_weight_masks, is_pruned
from spurless.train.checkpoint import Checkpoints
from spurless.train.config import TrainConfig
from spurless.train.evaluate import evaluate, logits
from spurless.train.run import Compute, Run, make_run

pytestmark = pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")  # tiny runs predict one class
CPU = Compute("cpu")
TRAIN = {"steps": 30, "batch_size": 64, "lr": 0.05}
SMALL: dict[str, Any] = {
    "mining": {"steps": 30, "lr": 0.1, "batch_size": 64},
    "prune_steps": 20,
    "prune_lr": 0.2,
    "steps": 10,
    "batch_size": 32,
    "upweight": 5.0,
    "prune_upweight": 5.0,
}


@pytest.fixture(scope="module")
def digits() -> Splits:
    return few(load("colored-digits", conflicting=0.1, size=16, seed=0))


@pytest.fixture(scope="module")
def erm(digits: Splits) -> Classifier:
    return fit("erm", net(digits), digits, train=TRAIN, compute=CPU).model


def few(data: Splits) -> Splits:
    return replace(data, train=data.train.select(torch.arange(0, 1000, 2)), val=data.val.select(torch.arange(100)))


def net(data: Splits) -> Classifier:
    return build("pooled-cnn", data, channels="8,16")


def truth(data: Splits) -> MinedExamples:
    chosen = data.train.a != data.train.y
    return MinedExamples(chosen.float(), chosen, "truth", data_fingerprint(data.train))


@pytest.fixture(scope="module")
def listed(digits: Splits, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("mined") / "truth.npz"
    truth(digits).save(path)
    return str(path)


def run(data: Splits, model: Classifier | None = None, **options: Any) -> Fitted:
    given = net(data) if model is None else model
    return fit("dcwp", given, data, train=TRAIN, compute=CPU, **{**SMALL, **options})


def weights(model: Classifier) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_the_stages_come_in_order_and_the_record_tells_of_each(digits: Splits) -> None:
    fitted = run(digits)
    stages = list(dict.fromkeys(row["stage"] for row in fitted.record.history))
    assert stages == ["erm", "mine", "mined", "prune", "retrain", "subnetwork"]
    assert {"erm", "mine", "prune", "retrain"} <= fitted.record.seconds.keys()
    found = fitted.explanation
    rows = {row["stage"]: row for row in fitted.record.history}
    assert rows["mined"]["found"] == found.mined.summary()
    assert rows["subnetwork"]["sparsity"] == found.sparsity
    assert 0 < found.sparsity < 1
    assert found.mined.quality(digits.train).recall > 0.5
    assert fitted.record.supervision == dict.fromkeys(("train_attributes", "val_labels", "val_attributes"), False)


def test_weights_wait_while_the_mask_is_learned_and_zeros_stay_in_retraining(
    digits: Splits, erm: Classifier, listed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def watched(model: Classifier, *rest: Any) -> Any:
        looks = learn_mask(model, *rest)
        seen["pruned"], seen["mask"] = deepcopy(model), get_weight_masks(model)
        return looks

    def last(model: Classifier, *rest: Any) -> Classifier:
        seen["before"] = logits(model, digits.val)
        return finish_pruning(model, *rest)

    monkeypatch.setattr(dcwp, "learn_mask", watched)
    monkeypatch.setattr(dcwp, "finish_pruning", last)
    fitted = run(digits, erm, mined=listed)
    for name, p in seen["pruned"].named_parameters():
        plain = name.replace("parametrizations.", "").replace(".original", "")
        assert torch.equal(p, erm.get_parameter(plain))  # bit by bit
    assert not is_pruned(fitted.model)
    for name, keep in seen["mask"].items():
        weight = fitted.model.get_parameter(name).detach()
        assert not weight[~keep].any()
        assert bool((weight[keep] != erm.get_parameter(name)[keep]).any())
    assert torch.equal(logits(fitted.model, digits.val), seen["before"])  # folding changes nothing
    kept = fitted.explanation.pruned
    assert torch.equal(logits(kept, digits.val), logits(seen["pruned"], digits.val))
    assert {p.device.type for p in kept.parameters()} == {"cpu"}


def test_mined_examples_come_as_much_oftener_as_is_said(
    digits: Splits, erm: Classifier, listed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: dict[str, Order] = {}
    loader = Run.loader

    def noted(self: Run, split: Split, order: Order, batch_size: int) -> Loader:
        orders["retrain" if "prune" in orders else "prune"] = order
        return loader(self, split, order, batch_size)

    monkeypatch.setattr(Run, "loader", noted)
    run(digits, erm, mined=listed, prune_upweight=40.0, upweight=3.0)
    mined = truth(digits).chosen
    for stage, weight in (("prune", 40.0), ("retrain", 3.0)):
        index = torch.cat([orders[stage](epoch) for epoch in range(200)])
        share = weight * int(mined.sum()) / (weight * int(mined.sum()) + int((~mined).sum()))
        assert float(mined[index].double().mean()) == pytest.approx(share, abs=0.02)
    orders.clear()
    run(digits, erm, mined=listed, weighting="eq14")
    for stage in ("prune", "retrain"):
        index = torch.cat([orders[stage](epoch) for epoch in range(200)])
        assert float(mined[index].double().mean()) == pytest.approx(float(mined.double().mean()), abs=0.02)


def test_equation_14_by_hand() -> None:
    chosen = torch.tensor([True, True, False, False, False])
    counts = equation_14(chosen, 6.0)
    losses = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    # lambda / |S_bc| times the sum over the mined, plus 1 / |S_ba| times the sum over the others
    assert float((counts * losses).mean()) == pytest.approx(6.0 / 2 * 3.0 + 12.0 / 3)
    for none in (torch.zeros(3, dtype=torch.bool), torch.ones(3, dtype=torch.bool)):
        assert bool(equation_14(none, 6.0).isfinite().all())


@pytest.mark.parametrize("weighting", ["oversample", "eq14"])
@pytest.mark.parametrize("how", ["authors", "paper"])
def test_the_loss_of_a_batch_by_its_parts(digits: Splits, weighting: Any, how: Any) -> None:
    model, mined = net(digits), truth(digits)
    config = DCWPConfig(weighting=weighting, alignment=how, temperature=0.2)
    index = torch.arange(0, 400, 10)
    part = digits.train.select(index)
    batch = Batch(digits.train.prepare(part.x), part.y, part.a, index)  # type: ignore[arg-type]
    counts = equation_14(mined.chosen, 7.0)[index] if weighting == "eq14" else torch.ones(len(index))
    objective = debiased_loss(mined, config, 7.0, 0.3, make_run(CPU, 0, TrainConfig()))
    model.eval()
    with torch.no_grad():
        losses = cross_entropy(model(batch.x), batch.y, reduction="none")
        aligned = alignment(model.features(batch.x), batch.y, mined.chosen[index], 0.2, how)
        expected = float((counts * losses).mean() + 0.3 * aligned)
        assert float(objective(model, batch)) == pytest.approx(expected, rel=1e-5)
        off = debiased_loss(mined, config, 7.0, 0.0, make_run(CPU, 0, TrainConfig()))
        assert float(off(model, batch)) == pytest.approx(float((counts * losses).mean()), rel=1e-5)


def test_a_list_from_a_file_is_the_same_as_mining_it(digits: Splits, tmp_path: Path) -> None:
    mined = run(digits)
    mined.explanation.mined.save(tmp_path / "list.npz")
    read = run(digits, mined=str(tmp_path / "list.npz"))
    assert torch.equal(weights(read.model), weights(mined.model))
    assert "mine" not in read.record.seconds


def test_what_was_mined_once_is_not_mined_again_for_other_settings_of_the_mask(
    digits: Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    mined: list[MiningConfig] = []

    def counted(*words: Any) -> MinedExamples:
        mined.append(words[-1])
        return mine_conflicting(*words)

    monkeypatch.setattr("spurless.methods._mining.mine_conflicting", counted)
    first, second = run(digits), run(digits, align=0.0, prune_steps=5)
    assert len(mined) == 1
    assert torch.equal(first.explanation.mined.score, second.explanation.mined.score)
    assert first.explanation.mined.fingerprint == second.explanation.mined.fingerprint
    run(digits, seed=1)
    run(digits, mining={"how": "early", "steps": 5})
    run(replace(digits, train=replace(digits.train, augment=augmentation("flip", 16))))
    assert len(mined) == 4  # another seed, another mining, other images
    for _ in range(2):
        run(replace(digits, train=replace(digits.train, augment=torch.nn.Identity())))
    assert len(mined) == 6  # who knows what it does


def test_an_odd_list_is_warned_of_each_time(digits: Splits) -> None:
    for _ in range(2):
        with pytest.warns(SpurlessWarning, match=r"Mining .* most examples conflict with the shortcut"):
            run(digits, mining={"how": "early", "steps": 1, "lr": 1e-6})


def test_a_trained_model_is_mined_from_new_initial_weights_and_pruned_itself(
    digits: Splits, erm: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Classifier] = {}

    def mined(model: Classifier, train: Split, a_run: Run, config: MiningConfig) -> MinedExamples:
        seen["mined"] = model
        return mine_conflicting(model, train, a_run, config)

    def learned(model: Classifier, *rest: Any) -> Any:
        seen["pruned"] = deepcopy(model)
        return learn_mask(model, *rest)

    monkeypatch.setattr("spurless.methods._mining.mine_conflicting", mined)
    monkeypatch.setattr(dcwp, "learn_mask", learned)
    with pytest.warns(SpurlessWarning, match="mining starts from a copy whose layers are initialised again") as caught:
        fitted = run(digits, erm, seed=3)
    initial = reset_parameters(erm, Seeds(3).generator("mine", "initial"))
    assert torch.equal(weights(seen["mined"]), weights(initial))
    assert torch.equal(weights(seen["pruned"]), weights(erm))
    assert fitted.explanation.mined.quality(digits.train).recall > 0.5
    assert {"erm", "mine"} & {row["stage"] for row in fitted.record.history} == {"mine"}
    (message,) = (str(w.message) for w in caught if "initialised again" in str(w.message))
    assert message in fitted.record.warnings
    assert "wrap(model, trained=False)" in message


class Shifted(nn.Module):
    """A backbone with a parameter that no layer resets."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.shift).flatten(1)


def test_a_model_that_cannot_be_reset_is_refused_unless_its_weights_are_the_initial_ones(digits: Splits) -> None:
    module = Classifier(Shifted(), nn.Linear(3 * 16 * 16, 10), trained=True)
    refused = r"no layer resets backbone\.shift\. Pass the untrained model.*wrap\(model, trained=False\)"
    with pytest.raises(InputError, match=refused):
        run(digits, module)
    untrained = wrap(module.unwrap(), trained=False)
    assert "mine" in run(digits, untrained).record.seconds


def test_a_list_of_other_data_and_unknown_initial_weights_are_refused(
    digits: Splits, erm: Classifier, listed: str
) -> None:
    other = few(load("colored-digits", conflicting=0.1, size=16, seed=1))
    with pytest.raises(InputError, match="the examples were mined from other data"):
        run(other, mined=listed)
    for path in (listed, None):
        with pytest.raises(
            InputError, match=r"the initial weights are unknown.*ImageNet.*wrap\(model, trained=False\)"
        ):
            make_method("dcwp", mined=path, reset=True).check(erm, digits)  # type: ignore[attr-defined]  # before mining


def test_every_row_of_table_2_can_be_asked_for(digits: Splits, listed: str) -> None:
    off = {"upweight": 1.0, "prune_upweight": 1.0}
    plain, both = {"align": 0.0, "prune_align": 0.0}, {"align": 0.1, "prune_align": 0.1}
    rows: dict[int, Mapping[str, Any]] = {
        1: {**off, **plain, "mask": False},
        2: {**plain, "mask": False},  # and 3, which is mined otherwise
        4: plain,  # and 8
        5: {"align": 0.1, "prune_align": 0.0},
        6: both,  # and 9
        7: {"align": 0.1, "mask": False},
    }
    found = {index: run(digits, mined=listed, **options) for index, options in rows.items()}
    assert len({round(float(weights(each.model).double().sum()), 9) for each in found.values()}) == len(rows)
    assert [index for index, each in found.items() if each.explanation.sparsity > 0] == [4, 5, 6]
    assert [index for index, each in found.items() if each.explanation.pruned is not None] == [4, 5, 6]
    masks = {index: weights(found[index].model) == 0 for index in (4, 5, 6)}
    assert torch.equal(masks[4], masks[5])  # the mask of 5 was learned without alignment
    assert not torch.equal(masks[5], masks[6])
    assert DCWPConfig(mining=MiningConfig("early")).mining.how == "early"  # 2 and 4 to 6: CE in the place of GCE


@pytest.mark.parametrize(
    "options",
    [
        {"squashed": False},
        {"penalty": "absolute", "sparsity": 0.01},
        {"penalty": "expected", "sparsity": 0.01},
        {"reset": True},
        {"optimiser": "sgd"},
        {"weighting": "eq14"},
        {"alignment": "paper"},
    ],
)
def test_every_choice_makes_a_difference(digits: Splits, listed: str, options: dict[str, Any]) -> None:
    assert not torch.equal(
        weights(run(digits, mined=listed, **options).model), weights(run(digits, mined=listed).model)
    )


@pytest.mark.parametrize("name", ["small-cnn", "pooled-cnn", "mlp", "resnet20"])
def test_it_works_on_any_net(digits: Splits, listed: str, name: str) -> None:
    fitted = fit(
        "dcwp",
        build(name, digits),
        digits,
        train={**TRAIN, "steps": 5},
        compute=CPU,
        **{**SMALL, "mined": listed, "prune_steps": 3, "prune_lr": 1.0},
    )
    assert 0 < fitted.explanation.sparsity < 1
    assert set(fitted.explanation.layers) == {
        name for name, p in fitted.model.named_parameters() if p.dim() > 1 and name.endswith("weight")
    }


class KilledError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize(("stage", "step"), [("mine", 20), ("prune", 13), ("retrain", 7)])
def test_a_killed_run_goes_on_to_the_same_weights(
    digits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, step: int
) -> None:
    whole = run(digits)

    def kill(_self: Run, at: str, number: int, *_: object) -> None:
        if (at, number) == (stage, step):
            raise KilledError

    monkeypatch.setattr(Checkpoints, "is_due", lambda *_: True)
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path / "empty"))  # else nothing is mined again
    with monkeypatch.context() as patch:
        patch.setattr(Run, "report_progress", kill)
        with pytest.raises(KilledError):
            run(digits, folder=tmp_path)
    again = run(digits, folder=tmp_path)
    assert torch.equal(weights(again.model), weights(whole.model))
    assert again.explanation.snapshots == whole.explanation.snapshots
    states = (each.explanation.pruned.state_dict() for each in (again, whole))
    assert all(map(torch.equal, *(state.values() for state in states)))
    assert [row["stage"] for row in again.record.history][-1] == "subnetwork"


def test_a_criterion_chooses_among_the_epochs_of_retraining_alone(digits: Splits, listed: str) -> None:
    fitted = run(digits, mined=listed, select="val-average")
    scored = {row["stage"] for row in fitted.record.history if "score" in row}
    assert scored == {"erm", "retrain"} or scored == {"retrain"}  # the first where it was not cached
    scores = [row["score"] for row in fitted.record.history if row["stage"] == "retrain"]
    assert evaluate(fitted.model, digits.val).average == pytest.approx(max(scores))


def test_the_presets_are_those_of_the_authors() -> None:
    default = make_method("dcwp").config
    assert default == DCWP.presets["colored-mnist-0.5"]
    assert default.mining is MINING_COLORED_MNIST
    assert [DCWP.presets[f"colored-mnist-{r}"].upweight for r in ("0.5", "1", "2", "5")] == [80.0, 50.0, 30.0, 10.0]
    assert (default.prune_upweight, default.align, default.prune_align, default.temperature) == (80.0, 0.05, 0.05, 0.07)
    assert (default.prune_steps, default.prune_lr, default.steps, default.lr) == (2000, 1e-2, 1000, 1e-3)
    assert (default.sparsity, default.init, default.squashed, default.penalty) == (1e-8, 1.5, True, "signed")
    ablation = DCWP.presets["colored-mnist-ablation"]
    assert (ablation.optimiser, ablation.lr, ablation.steps, ablation.upweight) == ("sgd", 0.01, 500, 80.0)
    assert (ablation.mining.lr, ablation.mining.steps, ablation.mining.decay_steps) == (0.1, 2000, 600)
    paper = DCWP.presets["colored-mnist-paper"]
    assert (paper.weighting, paper.alignment, paper.squashed, paper.penalty) == ("eq14", "paper", False, "absolute")
    for name in ("corrupted-cifar10", "bffhq"):
        assert (DCWP.presets[name].sparsity, DCWP.presets[name].lr) == (1e-9, 5e-4)
    assert DCWP.presets["corrupted-cifar10"].mining.how == "ensemble"
    assert DCWP.presets["bffhq"].batch_size == DCWP.presets["bffhq"].mining.batch_size == 64


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mining": "gce"}, "mining must be a MiningConfig or a table of its fields"),
        ({"mining": {"stepz": 3}}, "DCWP's mining has no option 'stepz'"),
        ({"upweight": 0.5}, "upweight.* must be at least 1"),
        ({"prune_upweight": 0.0}, "prune_upweight.* must be at least 1"),
        ({"steps": 0}, "steps.* must be at least 1"),
        ({"align": -1.0}, "align.* must not be negative"),
        ({"prune_align": -1.0}, "prune_align.* must not be negative"),
        ({"temperature": 0.0}, "temperature.* must be above 0"),
        ({"prune_lr": 0.0}, "prune_lr.* must be above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_method("dcwp", **options)
