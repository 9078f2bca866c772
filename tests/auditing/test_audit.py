"""The audit as a whole: a model with a planted shortcut is found out, one without is not, and nothing is changed."""

import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spurless as sp
from spurless.auditing import AUDITS, Audited, Auditor, audit
from spurless.auditing._context import AuditContext
from spurless.core import cache as core_cache
from spurless.core.errors import InputError, SpurlessWarning, UnknownNameError
from spurless.core.findings import Finding
from spurless.core.groups import Groups
from spurless.core.progress import progress_reporter
from spurless.data import DATASETS
from spurless.data.split import Split, Splits
from spurless.fitting.protocol import Fitted
from spurless.reporting import audit_json
from spurless.train.evaluate import EVALUATION_BATCH
from spurless.train.run import Compute

CPU = Compute("cpu")
SHORT: dict[str, Any] = {"permutations": 199, "compute": CPU, "pictured": 4}


@cache
def digits() -> tuple[Splits, Fitted]:
    data = sp.load("patched-digits")
    model = sp.build("small-cnn", data)
    return data, sp.fit("erm", model, data, train={"steps": 170, "batch_size": 64, "lr": 0.01}, compute=CPU)


@cache
def found() -> Audited:
    data, fitted = digits()
    return audit(fitted.model, data, **SHORT)


def test_a_model_that_leans_on_the_square_is_found_out() -> None:
    named = {finding.audit: finding for finding in found().findings}
    assert found().verdict == "shortcut"
    assert named["attribute-use"].shortcut == "marked"
    assert named["image-properties"].shortcut is not None
    assert "top left corner" in named["image-properties"].shortcut
    assert named["error-slices"].flagged
    assert not named["worst-class"].flagged


@pytest.mark.slow
def test_without_attributes_it_is_found_out_as_well() -> None:
    data, fitted = digits()
    blind = audit(
        fitted.model, data.visible(train_attributes=False, val_labels=True, val_attributes=False).val, **SHORT
    )
    assert blind.verdict == "shortcut"
    assert {finding.audit for finding in blind.findings}.isdisjoint({"group-gap", "attribute-use"})
    assert blind.facts["attributes"] == []


def test_the_suspected_are_those_who_break_the_shortcut() -> None:
    data, _ = digits()
    rows = torch.tensor([suspect.row for suspect in found().suspects])
    breaks = (data.val.y == data.val.a)[rows]  # marked is 0, and goes with label 0 in training
    assert len(rows) >= 10
    assert float((~breaks).double().mean()) > 0.9


def test_a_model_without_a_shortcut_is_left_in_peace() -> None:
    data = sp.load("planted", agreement=0.5, core=2.0, n_val=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = sp.fit("erm", sp.build("linear", data), data, train={"epochs": 10, "lr": 0.1}, compute=CPU)
        clean = audit(fitted.model, data, **SHORT)
    assert clean.verdict == "none-found", [(f.audit, f.severity, f.p) for f in clean.flagged]


def test_the_same_seed_gives_the_same_audit_and_the_model_stays_as_it_was() -> None:
    data, fitted = digits()
    before = {name: value.clone() for name, value in fitted.model.state_dict().items()}
    again = audit(fitted.model, data, **SHORT)
    assert [f.p for f in again.findings] == [f.p for f in found().findings]
    assert [s.row for s in again.suspects] == [s.row for s in found().suspects]
    assert all(torch.equal(value, before[name]) for name, value in fitted.model.state_dict().items())


def test_one_question_may_be_asked_alone_and_progress_is_told() -> None:
    data, fitted = digits()
    told: list[tuple[str, int, int, str]] = []
    one = audit(fitted.model, data, only=["error-slices"], progress=lambda *words: told.append(words), **SHORT)
    assert [finding.audit for finding in one.findings] == ["error-slices"]
    assert ("audit", 0, 2, "error-slices") in told
    assert ("audit", 1, 2, "gallery") in told
    assert told[-1] == ("audit", 2, 2, "")


def test_how_far_a_question_is_is_a_word_about_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    data, fitted = digits()
    told: list[tuple[str, int, int, str]] = []

    def slow(_: AuditContext) -> Finding:
        progress_reporter("views", 500, patience=0)(200)
        return Finding("slow", "", 0.0, False, None, "", "")

    monkeypatch.setitem(AUDITS, "slow", Auditor("slow", "", "labels", slow))
    audit(fitted.model, data, only=["slow"], progress=lambda *words: told.append(words), **SHORT)
    assert ("audit", 0, 2, "slow: views, 200 of 500") in told
    assert {stage for stage, *_ in told} <= {"audit", "embed"}


class Watched(nn.Module):
    """Counts the examples that pass, and may be broken off like a program by Ctrl-C."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen, self.patience = nn.Linear(4, 2), 0, 10**9

    def forward(self, x: Tensor) -> Tensor:
        if self.seen >= self.patience:
            raise KeyboardInterrupt
        self.seen += len(x)
        return torch.tanh(self.layer(x))


def test_an_audit_that_was_broken_off_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path))
    monkeypatch.setattr(core_cache, "FAST_SECONDS", -1.0)
    monkeypatch.setattr(core_cache, "COMMIT_SECONDS", 0.0)
    n = 6 * EVALUATION_BATCH
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, 4, generator=generator), torch.randint(2, (n,), generator=generator)
    split = Split(x, y, torch.full((n,), -1), Groups(("a", "b")))
    backbone = Watched()
    model = sp.Classifier(backbone, nn.Linear(2, 2), trained=True)
    ask = {**SHORT, "only": ["worst-class"], "permutations": 19}
    backbone.patience = 4 * EVALUATION_BATCH
    with pytest.raises(KeyboardInterrupt):
        audit(model, split, **ask)
    backbone.seen, backbone.patience = 0, 10**9
    resumed = audit(model, split, **ask)
    # the batch before the one that broke it off may be on its way to the disk; a few are passed again to compare
    assert backbone.seen <= 4 * EVALUATION_BATCH
    backbone.seen = 0
    again = audit(model, split, **ask)
    assert backbone.seen < EVALUATION_BATCH
    assert again.findings[0].numbers == resumed.findings[0].numbers


def test_what_was_used_and_what_it_cannot_tell_is_said() -> None:
    facts = found().facts
    assert facts["examples"] == 297
    assert facts["part"] == "val"
    assert facts["permutations"] == 199
    assert set(facts["seconds"]) >= {"context", "gallery", "error-slices"}
    assert len(found().limits) >= 3
    assert json.loads(audit_json(found()))["verdict"] == "shortcut"
    assert "shortcut" in found()._repr_html_()
    assert len(repr(found().findings[0])) < 5000  # no bytes of pictures


def test_masks_ask_for_the_background() -> None:
    data, fitted = digits()
    masks = torch.zeros(len(data.val), 8, 8)
    masks[:, 2:, :] = 1
    size = tuple(torch.as_tensor(data.val.x).shape[2:])
    masks = torch.nn.functional.interpolate(masks[:, None], size=size)[:, 0].bool()
    swapped = audit(fitted.model, data, masks=masks, only=["swapped-backgrounds"], **SHORT)
    assert [finding.audit for finding in swapped.findings] == ["swapped-backgrounds"]
    assert swapped.findings[0].flagged  # the square is in the rows that count as background


def test_bad_words_are_one_sentence() -> None:
    data, fitted = digits()
    with pytest.raises(UnknownNameError, match="error-slices"):
        audit(fitted.model, data, only=["slices"], **SHORT)
    with pytest.raises(UnknownNameError, match="val"):
        audit(fitted.model, data, part="validation", **SHORT)
    with pytest.raises(InputError, match="level must be at least 1e-09 and below 1"):
        audit(fitted.model, data, level=2.0)


def test_too_few_permutations_can_show_nothing_and_that_is_said() -> None:
    data, fitted = digits()
    with pytest.warns(SpurlessWarning, match=r"at least 39 permutations"):
        audit(fitted.model, data, only=["error-slices", "biased-neurons"], permutations=30, compute=CPU, pictured=0)


def test_every_row_of_the_table_asks_a_question() -> None:
    assert all(row.question.endswith("?") and row.name == name for name, row in AUDITS.items())
    assert all("_" not in name for name in AUDITS)


def test_suspects_of_texts_are_written_out_as_their_tokens_spell_them() -> None:
    data = sp.load("negated-claims", n_train=300, n_val=200, n_test=50)
    model = sp.build("token-mean", data)
    model.trained = True
    with pytest.warns(SpurlessWarning, match="not better than guessing"):
        look = audit(model, data, only=["suspects"], **SHORT)
    words = set(DATASETS["negated-claims"].vocabulary)
    assert look.suspects
    for suspect in look.suspects:
        assert suspect.text is not None
        assert set(suspect.text.replace(" /", "").split()) <= words
    alone = audit(model, data.val, only=["suspects"], **SHORT)  # a split alone does not say how it is spelt
    assert all(suspect.text is None for suspect in alone.suspects)


class Divided(nn.Module):
    """Divides its logits by a temperature, so that it does not end with its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)) / 3.0  # type: ignore[no-any-return]  # a module returns Any


class HeadFirst(nn.Module):
    """Adds its head before its body, and has a layer that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body, self.old = nn.Linear(6, 2), nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).tanh())  # type: ignore[no-any-return]  # a module returns Any


def rows(n: int = 90) -> Splits:
    return sp.from_tensors(torch.randn(n, 4, generator=torch.Generator().manual_seed(0)), torch.arange(n) % 2)


def test_a_module_that_does_not_end_with_its_head_is_refused_and_not_split_in_the_wrong_place() -> None:
    with pytest.raises(InputError, match=r"Divided does not end with its layer 'head'"):
        audit(Divided(), rows(), **SHORT)
    with pytest.raises(InputError, match=r"Divided does not end with its layer 'head'"):
        sp.fix(Divided(), rows(), compute=CPU)
    data, module = rows(), HeadFirst()
    with pytest.warns(SpurlessWarning, match="not better than guessing"):
        found = audit(module, data, only=["worst-class"], **SHORT)
    right = module(data.val.example(len(data.val))).argmax(dim=1) == data.val.y
    assert found.facts["accuracy"] == pytest.approx(float(right.double().mean()))


def test_a_module_that_cannot_take_the_examples_is_one_sentence() -> None:
    with pytest.raises(InputError, match=r"Sequential does not accept this input: .*shapes cannot be multiplied"):
        audit(nn.Sequential(nn.Identity(), nn.Linear(5, 2)), rows(), **SHORT)
    with pytest.raises(InputError, match=r"input is float32 and the weights are float16: .*module\.float\(\)"):
        audit(nn.Sequential(nn.Identity(), nn.Linear(4, 2)).half(), rows(), **SHORT)


def test_backgrounds_are_not_swapped_without_masks_and_that_is_said() -> None:
    with pytest.raises(InputError, match="swapped-backgrounds needs masks"):
        audit(nn.Sequential(nn.Identity(), nn.Linear(4, 2)), rows(), only=["swapped-backgrounds"], **SHORT)


def test_attributes_that_are_known_of_some_are_asked_about_with_those() -> None:
    data = rows(300)
    half = torch.arange(len(data.val)) % 2
    some = Split(data.val.x, data.val.y, torch.where(half == 0, -1, half), Groups(("0", "1"), ("in", "out")))
    found = audit(nn.Sequential(nn.Identity(), nn.Linear(4, 2)), some, **SHORT)
    assert {"group-gap", "attribute-use"} <= {finding.audit for finding in found.findings}
    assert found.facts["attributes"] == ["in", "out"]


def test_what_could_not_be_asked_is_called_that() -> None:
    data = sp.from_tensors(torch.rand(60, 3, 8, 8), torch.arange(60) % 2)
    right = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    found = audit(right, Split(data.val.x, torch.zeros_like(data.val.y), data.val.a, data.val.groups), **SHORT)
    unasked = {finding.audit: finding.title for finding in found.findings if finding.p is None}
    assert unasked
    assert unasked == {name: f"Not tested: {AUDITS[name].question}" for name in unasked}


def test_of_a_model_that_says_one_thing_that_is_said_first() -> None:
    data, one = rows(300), nn.Sequential(nn.Identity(), nn.Linear(4, 2))
    nn.init.zeros_(one[1].weight)  # type: ignore[arg-type]  # of a linear layer
    one[1].bias.data.copy_(torch.tensor([1.0, 0.0]))  # type: ignore[operator]  # likewise
    with pytest.warns(SpurlessWarning, match=r"predicts '0' for every example, so it uses nothing"):
        found = audit(one, data, only=["worst-class"], **SHORT)
    assert found.facts["notes"][-1].startswith("The model predicts '0' for every example")


class Cut(nn.Module):
    """A network whose backbone runs without gradients, as frozen ones are often written."""

    def __init__(self, net: sp.Classifier) -> None:
        super().__init__()
        self.backbone, self.last = net.backbone, net.head

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.backbone(x)
        out: Tensor = self.last(x)
        return out


def test_a_model_that_lets_no_gradient_through_is_audited_without_heat_maps_and_says_so() -> None:
    data, fitted = digits()
    with pytest.warns(SpurlessWarning, match=r"No gradient of Cut reaches its input.*no heat maps.*Freeze that part"):
        cut = audit(Cut(fitted.model), data, **SHORT)
    named = {finding.audit: finding for finding in cut.findings}
    assert named["hidden-regions"].because.startswith("Not tested: no gradient of Cut reaches its input")
    assert named["attribute-use"].shortcut == "marked"  # the others find what they find
    assert named["image-properties"].flagged
    assert [(one.picture is not None, one.heat) for one in cut.suspects[:4]] == [(True, None)] * 4
    assert any(note.startswith("No gradient of Cut") for note in cut.facts["notes"])
