"""Weights on disk: whole or not at all, and never a pickle."""

import errno
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import spurless.models.weights
from spurless.core.errors import InputError
from spurless.models import build, load_weights, save_weights, wrap
from spurless.models.classifier import Classifier
from spurless.models.pruning.masks import get_weight_masks, prune
from spurless.models.weights import read_weights_info


def net(seed: int = 0, n_classes: int = 3) -> Classifier:
    return build("mlp", input_shape=(4,), n_classes=n_classes, seed=seed, depth=2, width=5)


class Own(nn.Module):
    """A user's module whose parts are called as ours are."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(4, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.backbone(x))
        return out


def test_a_round_trip_keeps_every_logit(tmp_path: Path) -> None:
    one, two, x = net(0), net(1), torch.randn(6, 4)
    save_weights(tmp_path / "deep" / "w.safetensors", one)
    load_weights(tmp_path / "deep" / "w.safetensors", two)
    assert torch.equal(one(x), two(x))
    assert not two.trained  # it says of itself what the file says
    one.trained = True
    save_weights(tmp_path / "w.safetensors", one)
    load_weights(tmp_path / "w.safetensors", two)
    assert two.trained


def test_a_head_that_was_given_a_bias_comes_back_with_it(tmp_path: Path) -> None:
    one, two, x = net(0), net(1), torch.randn(6, 4)
    one.head = nn.Linear(5, 3)  # as DFR does, whatever head there was
    save_weights(tmp_path / "w.safetensors", one)
    load_weights(tmp_path / "w.safetensors", two)
    assert torch.equal(one(x), two(x))
    assert two.head.bias.requires_grad


def test_a_bias_that_does_not_fit_leaves_the_head_as_it_was(tmp_path: Path) -> None:
    other, mine = net(0, n_classes=4), net(1)
    other.head = nn.Linear(5, 4)
    save_weights(tmp_path / "w.safetensors", other)
    with pytest.raises(InputError, match=r"head.bias is \(4,\) and should be \(3,\)"):
        load_weights(tmp_path / "w.safetensors", mine)
    assert mine.head.bias is None


def test_the_header_says_how_to_build_the_model(tmp_path: Path) -> None:
    model = net(3)
    save_weights(tmp_path / "w.safetensors", model)
    info = read_weights_info(tmp_path / "w.safetensors")
    assert (info["name"], info["n_classes"]) == ("mlp", 3)
    twin = build(info["name"], **info["options"])
    load_weights(tmp_path / "w.safetensors", twin)
    assert all(map(torch.equal, model.state_dict().values(), twin.state_dict().values()))


@pytest.mark.parametrize("head", ["head", None])
def test_the_names_of_the_users_module_are_understood(tmp_path: Path, head: str | None) -> None:
    own, x = Own(), torch.randn(2, 4)
    save_file(own.state_dict(), tmp_path / "w.safetensors")
    model = wrap(Own(), head=head, trained=False)
    load_weights(tmp_path / "w.safetensors", model)
    torch.testing.assert_close(model(x), own(x))
    assert model.trained  # a foreign file is taken for trained
    save_weights(tmp_path / "w.safetensors", model)
    load_weights(tmp_path / "w.safetensors", wrap(Own()))


def test_a_bare_linear_layer_has_bare_names(tmp_path: Path) -> None:
    layer = nn.Linear(4, 3)
    save_file(layer.state_dict(), tmp_path / "w.safetensors")
    model = wrap(nn.Linear(4, 3))
    load_weights(tmp_path / "w.safetensors", model)
    assert torch.equal(model.head.get_parameter("weight"), layer.weight)


def test_tied_weights_survive_and_may_be_left_out(tmp_path: Path) -> None:
    def tied() -> Classifier:
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        second.weight = first.weight
        return Classifier(nn.Sequential(first, second), nn.Linear(4, 2))

    one, two, x = tied(), tied(), torch.randn(3, 4)
    save_weights(tmp_path / "w.safetensors", one)
    load_weights(tmp_path / "w.safetensors", two)
    assert torch.equal(one(x), two(x))
    assert two.backbone.get_parameter("0.weight") is two.backbone.get_parameter("1.weight")
    lean = {name: value for name, value in one.state_dict().items() if name != "backbone.1.weight"}
    save_file(lean, tmp_path / "lean.safetensors")
    three = tied()
    load_weights(tmp_path / "lean.safetensors", three)
    assert torch.equal(one(x), three(x))


def test_pruned_weights_are_saved_as_zeros(tmp_path: Path) -> None:
    model, x = net(), torch.randn(3, 4)
    prune(model, {"head.weight": torch.zeros(3, 5, dtype=torch.bool)})
    save_weights(tmp_path / "w.safetensors", model)
    assert not bool(get_weight_masks(model)["head.weight"].any())  # the model keeps its mask
    fresh = net(1)
    load_weights(tmp_path / "w.safetensors", fresh)
    assert torch.equal(fresh(x), model(x))
    with pytest.raises(InputError, match=r"the model is pruned. Load into an untrained model"):
        load_weights(tmp_path / "w.safetensors", model)


def test_a_wrong_shape_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    save_weights(tmp_path / "w.safetensors", net(n_classes=3))
    model = net(n_classes=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sentence = r"do not fit mlp: head.weight is \(3, 5\) and should be \(2, 5\). The file was saved from 'mlp'"
    with pytest.raises(InputError, match=sentence):
        load_weights(tmp_path / "w.safetensors", model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_missing_and_unexpected_names_are_in_one_sentence(tmp_path: Path) -> None:
    state = net().state_dict()
    state["tail.weight"] = state.pop("head.weight")
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=r"missing head.weight; unexpected tail.weight\."):
        load_weights(tmp_path / "w.safetensors", net())


@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle"])
def test_a_pickle_is_refused_with_the_way_to_convert_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "w.safetensors"  # the name does not decide
    if kind == "pickle":
        path.write_bytes(pickle.dumps({"head.weight": [1.0]}))
    else:
        torch.save(net().state_dict(), path, _use_new_zipfile_serialization=kind == "zip")
    with pytest.raises(InputError, match=r"the file is a pickle.*torch.load\(path, weights_only=True\).*save_weights"):
        load_weights(path, net())


def test_a_header_that_looks_like_a_pickle_is_none(tmp_path: Path) -> None:
    # a header of 640 bytes starts with 0x80 0x02, as a pickle does
    save_file({"a": torch.zeros(1)}, tmp_path / "w.safetensors", metadata={"pad": "x"})
    size = int.from_bytes((tmp_path / "w.safetensors").read_bytes()[:8], "little")
    save_file({"a": torch.zeros(1)}, tmp_path / "w.safetensors", metadata={"pad": "x" * (641 - size)})
    assert (tmp_path / "w.safetensors").read_bytes()[:2] == b"\x80\x02"
    assert read_weights_info(tmp_path / "w.safetensors") == {}


def test_a_torn_file_and_no_file_are_sentences(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    with pytest.raises(InputError, match="no such file"):
        load_weights(path, net())
    save_weights(path, net())
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(InputError, match="not a complete safetensors file"):
        load_weights(path, net())


def test_equal_tensors_are_equal_bytes(tmp_path: Path) -> None:
    model = net()
    model.add_module("Möwe", nn.Linear(2, 2))
    data = {"labels": ["a\u2028", '"b"', "\x7f\x1f"], "options": {"features": ["ö", "x"]}}
    files = set()
    for i in range(12):  # the order of the metadata was random
        save_weights(tmp_path / f"{i}.safetensors", model, seed=1, data=data)
        files.add((tmp_path / f"{i}.safetensors").read_bytes())
    assert len(files) == 1
    assert read_weights_info(tmp_path / "0.safetensors")["labels"] == data["labels"]
    with safe_open(tmp_path / "0.safetensors", framework="pt") as file:
        assert file.metadata()["format"] == "pt"
        assert torch.equal(file.get_tensor("Möwe.weight"), model.get_submodule("Möwe").weight)  # type: ignore[arg-type]


def test_an_unwritable_place_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        save_weights(tmp_path / "file" / "w.safetensors", net())
    with pytest.raises(InputError, match="cannot write"):
        save_weights(tmp_path, net())  # a folder
    assert [p.name for p in tmp_path.parent.iterdir() if p.name.endswith(".tmp")] == []


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, old = tmp_path / "w.safetensors", net(0)
    save_weights(path, old)

    def full(_tensors: Any, scratch: Path, **_: Any) -> None:
        scratch.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spurless.models.weights, "save_file", full)
    with pytest.raises(InputError, match=r"cannot write.*: No space left on device"):
        save_weights(path, net(1))
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]
    with safe_open(path, framework="pt") as file:
        assert torch.equal(file.get_tensor("head.weight"), old.head.get_parameter("weight"))


@pytest.mark.parametrize("around", ["module.", "_orig_mod.", "_orig_mod.module."])
def test_a_word_around_all_names_is_no_hindrance(tmp_path: Path, around: str) -> None:
    theirs, x = Own(), torch.randn(6, 4)
    save_file({f"{around}{name}": value for name, value in theirs.state_dict().items()}, tmp_path / "w.safetensors")
    model = wrap(Own())
    load_weights(tmp_path / "w.safetensors", model)
    assert torch.equal(model(x), theirs(x))


def test_how_many_batches_a_norm_has_seen_may_be_missing_and_nothing_else(tmp_path: Path) -> None:
    theirs, x = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), torch.randn(6, 4)
    theirs(x)  # moves its mean
    state = {name: value for name, value in theirs.state_dict().items() if "num_batches" not in name}
    save_file(state, tmp_path / "w.safetensors")
    model = wrap(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)))
    load_weights(tmp_path / "w.safetensors", model)
    assert torch.equal(model.eval()(x), theirs.eval()(x))
    save_file({name: value for name, value in state.items() if "running" not in name}, tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=r"missing backbone\.0\.running_mean, backbone\.0\.running_var\.$"):
        load_weights(tmp_path / "w.safetensors", model)


class Versioned(nn.Module):
    """Refuses to load without its version, as MNASNet does."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(x)
        return out

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        if local_metadata.get("version") != 2:
            raise ValueError("version should be set to 2")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


def test_a_layer_that_asks_for_its_version_is_told_it(tmp_path: Path) -> None:
    one, two, x = wrap(Versioned()), wrap(Versioned()), torch.randn(6, 4)
    save_weights(tmp_path / "w.safetensors", one)
    load_weights(tmp_path / "w.safetensors", two)
    assert torch.equal(one(x), two(x))
    with pytest.raises(ValueError, match="version"):  # the layer does ask
        two.load_state_dict(dict(one.state_dict()))


def test_a_head_that_was_fitted_anew_loads_into_the_model_that_it_was_fitted_for(tmp_path: Path) -> None:
    def normed() -> nn.Module:
        return nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))  # type: ignore[no-any-return]  # it is untyped

    for head in (normed, lambda: nn.Linear(4, 3, bias=False)):
        model, again, x = wrap(nn.Sequential(head())), wrap(nn.Sequential(head())), torch.randn(5, 4)
        model.head = nn.Linear(4, 3)  # as DFR leaves it
        save_weights(tmp_path / "w.safetensors", model)
        load_weights(tmp_path / "w.safetensors", again)
        assert torch.equal(again(x), model(x))
        assert torch.equal(again.unwrap()(x), model(x))


def test_a_head_that_does_not_fit_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model, other = wrap(nn.Linear(4, 3, bias=False)), wrap(nn.Linear(4, 2))
    save_weights(tmp_path / "w.safetensors", other)
    with pytest.raises(InputError, match=r"head.weight is \(2, 4\) and should be \(3, 4\)"):
        load_weights(tmp_path / "w.safetensors", model)
    assert model.head.bias is None


class Tied(nn.Module):
    """Reads features by the vectors that it made them of."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle, self.answer = nn.Embedding(3, 3), nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
        self.answer.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.answer(self.middle(self.table(x)))
        return out


def test_a_head_that_was_tied_and_is_tuned_does_not_change_the_backbone(tmp_path: Path) -> None:
    model, again, x = wrap(Tied()), wrap(Tied()), torch.tensor([0, 1, 2])
    model.head = nn.Linear(3, 3, bias=False)
    save_weights(tmp_path / "w.safetensors", model)
    load_weights(tmp_path / "w.safetensors", again)
    assert torch.equal(again(x), model(x))
    tied = Tied()
    tied.answer = nn.Linear(3, 3, bias=False)
    tied.middle.weight = tied.table.weight
    torn = wrap(tied)
    with pytest.raises(InputError, match=r"backbone.middle.weight and backbone.table.weight differ and should be one"):
        load_weights(tmp_path / "w.safetensors", torn)
