"""Hashing: different content has a different hash, and the same content the same hash in every process."""

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spurless.core.hashing import architecture_hash, content_hash, describe_object, describe_values


def test_transforms_of_others_are_described_by_what_is_in_them() -> None:
    from torchvision.transforms import v2

    made: list[Callable[[], Any]] = [
        lambda: v2.Compose([v2.Resize(4), v2.ToDtype(torch.float32, scale=True)]),
        lambda: v2.Compose([v2.Resize(4), v2.ToDtype(torch.float16, scale=True)]),  # its repr is the same
        lambda: v2.Compose([v2.Resize(5), v2.ToDtype(torch.float32, scale=True)]),
        lambda: v2.Compose([v2.Resize(4, v2.InterpolationMode.NEAREST), v2.ToDtype(torch.float32, scale=True)]),
    ]
    told = [str(describe_values(make())) for make in made]
    assert told == [str(describe_values(make())) for make in made]
    assert len(set(told)) == 4
    with pytest.raises(TypeError, match="cannot be described"):
        describe_values(v2.Compose([v2.Lambda(lambda x: x)]))


def scaled(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return x * by


def closure(by: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x * by


class Half:
    def __init__(self, by: float) -> None:
        self.by = by

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


def test_functions_are_known_by_code_defaults_and_what_they_close_over() -> None:
    made: list[Callable[[], Any]] = [
        lambda: scaled,
        lambda: closure(1.0),
        lambda: closure(2.0),
        lambda: partial(scaled, by=1.0),
        lambda: partial(scaled, by=2.0),
        lambda: Half(1.0).turn,
        lambda: Half(2.0).turn,
        lambda: torch.relu,
        lambda: torch.tanh,
        lambda: [lambda x: x in {"a", "b"}],
        lambda: [lambda x: [y for y in x if y]],
        lambda: [lambda x: [y for y in x if not y]],
    ]
    told = [str(describe_object(make())) for make in made]
    assert told == [str(describe_object(make())) for make in made]
    assert len(set(told)) == len(made)


def test_a_name_without_a_value_is_no_error() -> None:
    def early() -> Callable[[], object]:
        def function() -> object:
            return later

        told.append(describe_object(function))
        later = 1
        return function

    told: list[Any] = []
    assert describe_object(early()) != told[0]


def test_an_object_that_holds_itself_is_known_by_its_type() -> None:
    one = Half(1.0)
    one.by = one  # type: ignore[assignment]
    assert describe_object(one) == f"{__name__}.Half"


class Net(nn.Module):
    def __init__(self, act: Any = torch.relu, gain: float = 1.0) -> None:
        super().__init__()
        self.act, self._gain, self.layer = act, gain, nn.Linear(2, 2)


def written_anew(forward: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> nn.Module:
    """A class that was edited: another forward under the same name."""
    made: nn.Module = type("Edited", (nn.Module,), {"forward": forward, "__module__": "__main__"})()
    return made


def frozen(net: nn.Module) -> nn.Module:
    return net.requires_grad_(False)


def hooked(net: nn.Module) -> nn.Module:
    net.register_forward_pre_hook(lambda _part, given: given)
    return net


def buffered(value: float) -> nn.Module:
    net = Net()
    net.register_buffer("scale", torch.tensor(value), persistent=False)
    return net


def test_networks_of_one_form_are_told_apart_by_how_their_layers_are_set() -> None:
    made: list[Callable[[], nn.Module]] = [
        Net,
        lambda: Net(torch.tanh),
        lambda: Net({"act": "relu"}),
        lambda: Net({"act": "tanh"}),
        lambda: Net(SimpleNamespace(act="tanh")),
        lambda: Net(torch.ones(1)),
        lambda: Net(torch.zeros(1)),
        lambda: Net(gain=2.0),
        lambda: frozen(Net()),
        lambda: hooked(Net()),
        lambda: buffered(1.0),
        lambda: buffered(2.0),
        lambda: written_anew(lambda _, x: x.relu()),
        lambda: written_anew(lambda _, x: x.tanh()),
        lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU()),
        lambda: nn.Sequential(nn.Linear(2, 2), nn.Tanh()),
        lambda: nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(0.1)),
        lambda: nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(0.2)),
    ]
    told = [architecture_hash(make()) for make in made]
    assert told == [architecture_hash(make().eval()) for make in made]  # neither weights nor mode
    assert len(set(told)) == len(made)


def test_another_process_says_the_same() -> None:
    code = (
        "from torch import nn; from spurless.core.hashing import architecture_hash, describe_object;"
        "print(architecture_hash(nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU())),"
        "describe_object(lambda x: x in {'a', 'b', 'c', 'd', 'e'}))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


A, B = torch.tensor([1, 2]), torch.tensor([3, 4])


def test_the_digest_is_the_same_for_the_same_content() -> None:
    assert content_hash(A, "x", {"b": 1, "a": 2}) == content_hash(A.clone(), "x", {"a": 2, "b": 1})
    assert re.fullmatch("[0-9a-f]{24}", content_hash(A))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((torch.zeros(2),), (torch.zeros(2, dtype=torch.int32),)),  # the bytes are equal
        ((torch.zeros(2),), (torch.zeros(2, dtype=torch.float64),)),
        ((torch.zeros(2, 3),), (torch.zeros(3, 2),)),
        ((torch.zeros(0, 3),), (torch.zeros(3, 0),)),
        ((A, B), (B, A)),
        ((A, B), (torch.cat([A, B]),)),
        ((A,), (A.flip(0),)),
        (("a", "b"), ("ab",)),
        ((b"a", b"b"), (b"a\0b",)),
        ((b'"a"',), ("a",)),
        ((1,), ("1",)),
        ((None,), ("null",)),
        ((), ("",)),
        ((["a", "b"],), ("a", "b")),
    ],
)
def test_the_digest_tells_apart(one: tuple[Tensor | str, ...], other: tuple[Tensor | str, ...]) -> None:
    assert content_hash(*one) != content_hash(*other)


def test_a_tensor_counts_by_its_content_however_it_is_stored() -> None:
    x = torch.arange(6).reshape(2, 3)
    assert content_hash(x.T) == content_hash(x.T.contiguous())
    assert content_hash(x[:, ::2]) == content_hash(x[:, ::2].clone())
    weight = torch.ones(2, requires_grad=True)
    assert content_hash(weight) == content_hash(torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float16, torch.bfloat16, torch.complex64])
def test_every_kind_of_tensor_has_a_digest(dtype: torch.dtype) -> None:
    assert content_hash(torch.ones((), dtype=dtype)) != content_hash(torch.zeros((), dtype=dtype))
