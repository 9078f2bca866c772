"""The types of arguments: what an annotation allows passes, the rest is an error that names argument and type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spurless.core.arguments import check_arguments, describe_value
from spurless.core.errors import InputError


class Named(Protocol):
    name: str


def function(
    whole: int = 0,
    number: float | None = None,
    path: Path | str = "",
    names: Sequence[str] = (),
    pair: tuple[int, ...] = (),
    point: tuple[float, float] = (0.0, 0.0),
    table: Mapping[str, float] | None = None,
    kind: Literal["a", "b"] = "a",
    report: Callable[[int], None] | None = None,
    x: Tensor | None = None,
    model: nn.Module | None = None,
    named: Named | None = None,
    device: torch.device | None = None,
    where: torch.device | str | None = None,
    **more: Any,
) -> None:
    check_arguments(function, locals())


@pytest.mark.parametrize(
    "values",
    [
        {"whole": np.int64(3), "number": np.float32(0.5)},
        {"number": 1, "path": Path("x"), "names": ["a"], "pair": [1, 2], "point": (1, 2.0)},
        {"names": np.array(["a", "b"]), "table": {"a": 1}, "report": print},
        {"x": torch.zeros(2), "model": nn.Linear(1, 1), "named": Path("x"), "device": "cpu", "where": "cpu"},
        {"whole": 1, "more": object()},
    ],
)
def test_what_an_annotation_allows_passes(values: dict[str, Any]) -> None:
    function(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"whole": "3"},
        {"whole": True},
        {"whole": 2.0},
        {"number": "nan"},
        {"path": 5},
        {"names": "ab"},
        {"names": [1]},
        {"names": {"a"}},
        {"names": np.zeros((2, 2))},
        {"pair": ["1"]},
        {"point": ()},
        {"point": (1.0, 2.0, 3.0)},
        {"point": (1.0, "2")},
        {"table": {"a": "1"}},
        {"table": [1]},
        {"kind": "c"},
        {"kind": []},
        {"report": 3},
        {"x": [1.0]},
        {"model": torch.zeros(2)},
        {"named": 3},
        {"device": torch.device("meta")},
        {"device": "no such device"},
        {"where": ""},
    ],
    ids=str,
)
def test_another_type_is_refused_by_the_name_of_the_argument(values: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        function(**values)
    (name,) = values
    assert caught.value.what == f"the argument {name!r} has the wrong type"
    assert caught.value.where == "function"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"x": torch.empty(2, device="meta")}, "is on the meta device"),
        ({"x": torch.zeros(2, 2).to_sparse()}, "is sparse"),
    ],
)
def test_tensors_without_values_are_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        function(**values)


def test_values_are_shown_in_a_few_words() -> None:
    assert describe_value(torch.zeros(2, 3)) == "a tensor of shape (2, 3) and type float32"
    assert describe_value("x" * 1000) == f"'{'x' * 59}..."
    assert describe_value(nn.Linear(1, 1)) == "Linear"
