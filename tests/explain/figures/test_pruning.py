"""Subnetworks: every number on the page is one that the models and the list have, and a stage is rebuilt bit by bit."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spurless as sp
from spurless.core.errors import InputError
from spurless.core.figures import Figure, Section
from spurless.core.groups import Groups
from spurless.data import load
from spurless.data.mined import MinedExamples, data_fingerprint
from spurless.data.split import Splits
from spurless.explain import build_subnetwork_sections
from spurless.explain.figures.pruning import (
    build_accuracy_section,
    build_layers_section,
    build_mined_section,
    have_same_sparsity,
    rebuild_pruned_model,
)
from spurless.explain.figures.tsne import compute_tsne
from spurless.fitting import Fitted, fit
from spurless.methods._learn_mask import SNAPSHOT_EXAMPLES, MaskSnapshot, Subnetwork
from spurless.metrics.separation import separation
from spurless.models import Classifier, build
from spurless.models.features import collect_features
from spurless.models.pruning.size import layer_sparsity
from spurless.train.evaluate import evaluate

pytestmark = pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")  # tiny runs predict one class
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
    data = load("colored-digits", conflicting=0.1, size=16, seed=0)
    some = torch.arange(0, 1000, 2)
    return replace(data, train=data.train.select(some), test=data.test.select(torch.arange(60)))


def run(data: Splits, model: str = "pooled-cnn", method: str = "dcwp", **options: Any) -> Fitted:
    wide: dict[str, Any] = {"channels": "8,16"} if model == "pooled-cnn" else {}
    own = SMALL if method == "dcwp" else {"prune_steps": 20, "prune_lr": 0.2, "batch_size": 32, "steps": 10}
    train = {"steps": 30, "batch_size": 64, "lr": 0.05}
    return fit(method, build(model, data, **wide), data, train=train, compute=sp.Compute("cpu"), **{**own, **options})


@pytest.fixture(scope="module")
def fitted(digits: Splits) -> Fitted:
    return run(digits)


@pytest.fixture(scope="module")
def sections(digits: Splits, fitted: Fitted) -> dict[str, Section]:
    assert fitted.start is not None
    found = build_subnetwork_sections(fitted.start, fitted.model, digits.test, fitted.explanation, train=digits.train)
    return {section.title: section for section in found}


def figures(section: Section) -> Iterator[Figure]:
    return (item for item in section.items if isinstance(item, Figure))


class Batch:
    def __init__(self, x: Any) -> None:
        self.x = x


def features(model: nn.Module, data: Splits) -> Tensor:
    assert isinstance(model, Classifier)
    assert isinstance(data.test.x, Tensor)
    return collect_features(model, [Batch(data.test.prepare(data.test.x))])


def test_the_three_stages_are_the_three_models(digits: Splits, fitted: Fitted, sections: dict[str, Section]) -> None:
    models: dict[str, Any] = {"pretrained": fitted.start, "pruned": fitted.explanation.pruned}
    models["retrained"] = fitted.model
    by_label, by_attribute = figures(sections["Representations"])
    for figure, number in ((by_label, digits.test.y), (by_attribute, digits.test.a)):
        told = ", ".join(f"{separation(features(m, digits), number).r2:.2f} {w}" for w, m in models.items())
        assert told in figure.caption
    data, n = by_label.spec["data"], len(set(digits.test.y.tolist()))
    for panel, model in enumerate(models.values()):
        flat, first = compute_tsne(features(model, digits), 0), data[panel * n]
        torch.testing.assert_close(torch.tensor(first["x"]), flat[digits.test.y == 0, 0], atol=0.006, rtol=0)
    assert "rebuilt" not in sections["Representations"].text


def test_accuracy_is_drawn_against_sparsity(fitted: Fitted, sections: dict[str, Section]) -> None:
    looks = fitted.explanation.snapshots
    (figure,) = figures(sections["Accuracy against sparsity"])
    mined, others = figure.spec["data"]
    assert mined["x"] == others["x"] == [100 * look.sparsity for look in looks]
    assert mined["y"] == [100 * look.mined for look in looks]
    assert others["y"] == [100 * look.others for look in looks]
    assert mined["text"][-1] == f"after {looks[-1].step} steps"
    assert f"{100 * looks[-1].sparsity:.1f} % after 20 steps" in figure.caption
    assert f"mined examples from {100 * looks[0].mined:.1f} % to {100 * looks[-1].mined:.1f} % correct" in figure.alt


def test_a_mask_that_was_learned_from_all_examples_has_one_line() -> None:
    (figure,) = figures(build_accuracy_section([MaskSnapshot(5, 0.0, None, 0.5), MaskSnapshot(1500, 0.25, None, 0.75)]))
    (line,) = figure.spec["data"]
    assert (line["name"], line["x"], line["y"]) == ("all examples", [0.0, 25.0], [50.0, 75.0])
    assert figure.caption == (
        "From 0.0 % pruned after 5 steps to 25.0 % after 1,500 steps: all examples from 50.0 % to 75.0 % correct."
    )
    assert (
        build_accuracy_section([MaskSnapshot(5, 0.0, 0.5, None)])
        .items[0]
        .caption.endswith("other examples from n/a to n/a correct.")
    )


def test_the_bars_are_the_zeros_of_the_model(fitted: Fitted, sections: dict[str, Section]) -> None:
    (figure,) = figures(sections["Layer-wise sparsity"])
    (bars,) = figure.spec["data"]
    layers = layer_sparsity(fitted.model)
    assert bars["x"] == pytest.approx([*(100 * share for share in layers.values()), 100 * fitted.explanation.sparsity])
    assert [f"{name}.weight" for name in bars["text"][:-1]] == list(layers)
    assert figure.spec["layout"]["yaxis"]["ticktext"] == bars["text"]
    weights = torch.cat([p.detach().flatten() for name, p in fitted.model.named_parameters() if p.dim() > 1])
    assert bars["x"][-1] == pytest.approx(100 * float((weights == 0).double().mean()))


def test_the_densest_and_the_sparsest_layer_are_named() -> None:
    (figure,) = figures(build_layers_section({"a.weight": 0.5, "b.weight": 0.125, "weight": 0.75}, 0.4))
    assert figure.caption == "From 12.5 % in b to 75.0 % in weight; 40.0 % of all layers."


def test_what_mining_found_is_told(digits: Splits, fitted: Fitted, sections: dict[str, Section]) -> None:
    mined = fitted.explanation.mined
    first, second = sections["Mined examples"].text.split("\n")
    assert first == mined.summary()
    truth = digits.train.a != digits.train.y
    both, chosen = int((mined.chosen & truth).sum()), int(mined.chosen.sum())
    assert f"Precision {100 * both / chosen:.1f} %" in second
    assert f"Recall {100 * both / int(truth.sum()):.1f} %" in second
    assert f"{100 * float(truth.double().mean()):.1f} %)" in second


def test_mining_is_told_as_far_as_the_truth_is_known(digits: Splits, fitted: Fitted) -> None:
    mined = fitted.explanation.mined
    assert build_mined_section(mined).text == mined.summary()
    assert "attributes are not known" in build_mined_section(mined, digits.train.hide_attributes()).text
    halves = replace(digits.train, a=digits.train.a // 5, groups=Groups(digits.groups.labels, ("low", "high")))
    assert "do not correspond" in build_mined_section(mined, halves).text
    nobody = MinedExamples(
        torch.zeros(500), torch.zeros(500, dtype=torch.bool), "nobody", data_fingerprint(digits.train)
    )
    assert "Precision n/a" in build_mined_section(nobody, digits.train).text
    assert "Recall 0.0 %" in build_mined_section(nobody, digits.train).text
    with pytest.raises(InputError, match=r"examples were mined from other data"):
        build_mined_section(mined, digits.test)


def test_the_pruned_stage_is_rebuilt_bit_by_bit_but_for_batchnorm(digits: Splits, fitted: Fitted) -> None:
    assert fitted.start is not None
    guess, true = rebuild_pruned_model(fitted.start, fitted.model).state_dict(), fitted.explanation.pruned.state_dict()
    assert guess.keys() == true.keys()
    moved = {name for name, value in guess.items() if not torch.equal(value, true[name])}
    assert moved == {name for name in guess if "running" in name or "num_batches" in name}
    plain = run(digits, "mlp")
    assert plain.start is not None
    again = rebuild_pruned_model(plain.start, plain.model)
    assert all(map(torch.equal, again.state_dict().values(), plain.explanation.pruned.state_dict().values()))
    assert layer_sparsity(plain.start) != layer_sparsity(again)  # a copy: the first is as it was


def test_a_rebuilt_stage_is_said_to_be_one(digits: Splits, fitted: Fitted, sections: dict[str, Section]) -> None:
    assert fitted.start is not None
    bare = replace(fitted.explanation, pruned=None, snapshots=(), mined=None)
    found = build_subnetwork_sections(fitted.start, fitted.model, digits.test, bare)
    assert [section.title for section in found] == ["Representations", "Layer-wise sparsity"]
    assert "is rebuilt" in found[0].text
    assert "BatchNorm statistics are the pretrained ones" in found[0].text
    told, true = (next(figures(each)).caption for each in (found[0], sections["Representations"]))
    assert told.split(",")[0] == true.split(",")[0]  # the first stage is the same
    z = features(rebuild_pruned_model(fitted.start, fitted.model), digits)
    assert f"{separation(z, digits.test.y).r2:.2f} pruned" in told
    plain = run(digits, "mlp")
    assert plain.start is not None
    bare = replace(plain.explanation, pruned=None)
    assert "BatchNorm" not in build_subnetwork_sections(plain.start, plain.model, digits.test, bare)[0].text


def test_mrm_has_no_mined_examples(digits: Splits) -> None:
    fitted = run(digits, method="mrm")
    assert fitted.start is not None
    found = build_subnetwork_sections(fitted.start, fitted.model, digits.test, fitted.explanation)
    assert [section.title for section in found] == [
        "Representations",
        "Accuracy against sparsity",
        "Layer-wise sparsity",
    ]


def test_a_model_that_is_all_head_has_nothing_to_draw_of_it() -> None:
    data = load("planted", n_train=200, n_val=20, n_test=20)
    start, model = build("linear", data), build("linear", data)
    with torch.no_grad():
        model.head.get_parameter("weight")[0, 0] = 0.0
    found = Subnetwork(None, 0.25, layer_sparsity(model), ())
    first, layers = build_subnetwork_sections(start, model, data.test, found)
    assert "linear has no weights before its head" in first.text
    assert not first.items
    assert layers.title == "Layer-wise sparsity"


def test_what_does_not_go_together_is_said_in_a_sentence(digits: Splits, fitted: Fitted) -> None:
    assert fitted.start is not None
    start, found = fitted.start, fitted.explanation
    with pytest.raises(InputError, match=r"no weight of pooled-cnn is zero, so there is no subnetwork.*dcwp or mrm"):
        build_subnetwork_sections(start, start, digits.test, found)
    with pytest.raises(InputError, match=r"different layers \(expected the layers of pooled-cnn.*got those of mlp"):
        build_subnetwork_sections(build("mlp", digits), fitted.model, digits.test, found)
    with pytest.raises(InputError, match=r"the explanation belongs to another model"):
        build_subnetwork_sections(
            start, fitted.explanation.pruned, digits.test, replace(found, layers={"head.weight": 0.5})
        )


def test_shares_of_two_devices_are_the_same() -> None:
    assert have_same_sparsity({"a": 0.1}, {"a": 0.1 + 1e-16})
    assert not have_same_sparsity({"a": 0.1}, {"a": 0.1 + 1e-7})
    assert not have_same_sparsity({"a": 0.1}, {"a": 0.1, "b": 0.0})


def test_the_copy_of_the_pruned_model_is_what_the_last_look_saw(digits: Splits, fitted: Fitted) -> None:
    found = fitted.explanation
    others = digits.train.select(~found.mined.chosen)
    assert 0 < len(others) <= SNAPSHOT_EXAMPLES  # all of them were looked at
    assert evaluate(found.pruned, others).average == pytest.approx(found.snapshots[-1].others)


def test_hostile_names_stay_text_in_a_report(digits: Splits, fitted: Fitted, tmp_path: Path) -> None:
    assert fitted.start is not None
    hostile = '<img src=x onerror="boom()">'
    groups = Groups((hostile, *digits.groups.labels[1:]), ("</script><b>", *digits.groups.attributes[1:]))
    test = replace(digits.test, groups=groups)
    own = replace(fitted.explanation, mined=replace(fitted.explanation.mined, how=hostile))
    shown = build_subnetwork_sections(fitted.start, fitted.model, test, own)
    page = Path(sp.report(tmp_path / "page.html", [fitted], sections=shown)).read_text()
    for title in ("Representations", "Accuracy against sparsity", "Layer-wise sparsity", "Mined examples"):
        assert f"<bdi>{title}</bdi>" in page
    assert "<img src=x" not in page
    assert "</script><b>" not in page
    assert "&lt;img src=x" in page
