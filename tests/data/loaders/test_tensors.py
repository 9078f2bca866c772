"""Tensors: whatever holds numbers becomes splits, and numbers keep their meaning."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor

from spurless.core.errors import InputError
from spurless.data.loaders.tensors import from_tensors
from spurless.data.split import Split, Splits

X = torch.arange(40, dtype=torch.float32)[:, None]
Y = torch.arange(40) % 2
A = torch.arange(40) // 2 % 2


def every(splits: Splits) -> list[Split]:
    return [splits.train, splits.val, splits.test]


def rows(split: Split) -> list[int]:
    assert isinstance(split.x, Tensor)
    return [int(v) for v in split.x[:, 0]]


def test_every_example_keeps_its_label_and_attribute() -> None:
    data = from_tensors(X, Y, A, labels=("cat", "dog"), attributes=("in", "out"), seed=4, name="pets")
    assert (data.name, data.options["seed"]) == ("pets", 4)
    assert data.groups.names == ("cat, in", "cat, out", "dog, in", "dog, out")
    assert sorted(i for split in every(data) for i in rows(split)) == list(range(40))
    for split in every(data):
        assert split.y.tolist() == Y[rows(split)].tolist()
        assert split.a.tolist() == A[rows(split)].tolist()
    assert [split.counts.tolist() for split in every(data)] == [[7] * 4, [2] * 4, [1] * 4]


@pytest.mark.parametrize(
    "y",
    [
        Y,
        Y.to(torch.uint8),
        Y.bool(),
        Y.double(),
        Y[:, None],
        Y.tolist(),
        list(Y),
        Y.numpy().astype(np.int16),
        Y.numpy().astype(">i4"),
        Y.numpy()[::-1][::-1],
    ],
    ids=[
        "long",
        "uint8",
        "bool",
        "whole floats",
        "column",
        "list",
        "list of tensors",
        "int16",
        "big-endian",
        "strided",
    ],
)
def test_labels_of_any_kind_are_the_same_labels(y: Any) -> None:
    data, plain = from_tensors(X, y), from_tensors(X, Y)
    assert data.train.y.dtype == torch.long
    assert data.groups.labels == ("0", "1")
    assert data.fingerprint() == plain.fingerprint()


def test_unknown_attributes_leave_no_groups_but_the_classes() -> None:
    for a in (None, torch.full((40,), -1), torch.full((40, 2), -1)):
        data = from_tensors(X, Y, a)
        assert data.groups.attributes == ()
        assert data.train.a.shape == (28,)
        assert (data.train.a == -1).all()


def test_attributes_may_be_unknown_for_some() -> None:
    data = from_tensors(X, Y, torch.where(X[:, 0] < 20, A, -1), split=[0] * 20 + [1, 2] * 10)
    assert [split.has_attributes for split in every(data)] == [True, False, False]


def test_columns_are_crossed() -> None:
    a = torch.stack([A, torch.arange(40) % 3], dim=1)
    named = from_tensors(X, Y, a, attributes={"place": ("land", "sea"), "age": ("a", "b", "c")})
    assert named.groups.sizes == (2, 3)
    assert named.groups.attributes[4] == "sea & b"
    assert named.train.g.tolist() == [int(Y[i] * 6 + A[i] * 3 + i % 3) for i in rows(named.train)]
    assert from_tensors(X, Y, a).groups.attributes[4] == "1 & 1"
    assert from_tensors(X, Y, A[:, None]).groups.attributes == ("0", "1")  # one column is one attribute


def test_overlapping_attributes_have_a_column_each() -> None:
    a = torch.stack([A, torch.ones(40, dtype=torch.long), torch.zeros(40, dtype=torch.long)], dim=1)
    data = from_tensors(X, Y, a, attributes=("m", "f", "x"), overlapping=True)
    assert data.groups.overlap
    assert data.train.counts.tolist() == [7, 14, 0, 7, 14, 0]
    assert from_tensors(X, Y, a, overlapping=True).groups.attributes == ("0", "1", "2")


@pytest.mark.parametrize("val", ["val", "valid", "Validation", 1])
def test_split_may_be_names_or_numbers(val: object) -> None:
    data = from_tensors(X, Y, split=["train"] * 20 + [val] * 12 + ["test"] * 8)
    assert [rows(split) for split in every(data)] == [list(range(20)), list(range(20, 32)), list(range(32, 40))]
    numbers = from_tensors(X, Y, split=np.repeat([0, 1, 2], [20, 12, 8]))
    assert numbers.fingerprint() == data.fingerprint()


def test_inputs_keep_their_meaning() -> None:
    def dtype(x: Any) -> torch.dtype:
        made = from_tensors(x, Y).train.x
        assert isinstance(made, Tensor)
        return made.dtype

    assert dtype(X.double()) == dtype(X.half()) == dtype(X > 3) == dtype(X.numpy()) == torch.float32
    assert dtype(X.to(torch.uint8)) == torch.uint8
    assert dtype(X.long()) == torch.long


def test_a_dict_of_inputs_is_text() -> None:
    data = from_tensors({"input_ids": X.long(), "mask": np.ones((40, 1), np.int64)}, Y)
    assert isinstance(data.val.x, dict)
    assert {key: len(value) for key, value in data.val.x.items()} == {"input_ids": 6, "mask": 6}
    assert (data.val.x["input_ids"][:, 0] % 2).tolist() == data.val.y.tolist()


def test_arrays_that_cannot_be_written_are_copied() -> None:
    x = X.numpy().copy()
    x.setflags(write=False)
    assert from_tensors(x, Y).fingerprint() == from_tensors(X, Y).fingerprint()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": Y + 0.5}, r"the labels must be integers \(got 0.5\)"),
        ({"y": ["a", "b"] * 20}, r"the labels must be numbers \(got <U1 values\)\. Encode them, .*labels=names"),
        ({"y": torch.zeros(40, 2)}, r"labels must be one number per example \(got shape \(40, 2\)\)"),
        ({"y": Y[:39]}, r"tensors: inputs, labels and attributes differ in number \(got 40, 39 and 39\)"),
        ({"y": Y - 1}, r"the label of example 0 is out of range"),
        ({"y": Y * 0}, r"the data have only one class"),
        ({"y": Y, "labels": ("a", "b", "a")}, r"the class names must be a list of unique names"),
        ({"y": Y, "labels": "ab"}, r"the class names must be a list of unique names \(got 'ab'\)"),
        ({"y": Y, "labels": ("a",)}, r"the label of example 1 is out of range \(expected 0 to 0, got 1\)"),
        ({"y": Y, "attributes": ("a",)}, r"attribute names need attributes"),
        ({"y": Y, "a": A + 0.5}, r"the attributes must be integers"),
        ({"y": Y, "a": A + float("nan")}, r"the attributes must be integers .* Use -1 for an unknown attribute"),
        ({"y": Y, "a": torch.zeros(40, 1, 1)}, r"attributes must be one number or one row per example"),
        ({"y": Y, "a": A, "attributes": ("l",)}, r"the attribute of example 2 is out of range"),
        ({"y": Y, "a": torch.zeros(40, 2), "attributes": ("l", "r")}, r"several attribute columns need a mapping"),
        ({"y": Y, "split": [0, 1]}, r"the split must have one value per example \(expected 40, got 2\)"),
        ({"y": Y, "split": [0] * 39 + [3]}, r"split of example 39: the split '3' is unknown"),
        (
            {"x": X.where(X != 7, torch.nan), "y": Y},
            r"1 examples contain NaN or infinite features, the first is example 7",
        ),
        ({"x": X.to_sparse(), "y": Y}, r"the inputs are sparse\. Convert them"),
        ({"x": csr_array(X.numpy()), "y": Y}, r"the inputs are sparse\. Convert them: x\.toarray"),
        ({"x": {}, "y": Y}, r"the inputs are an empty dict"),
        ({"x": {"a": X, "b": X[:3]}, "y": Y}, r"the inputs differ in number \(got {'a': 40, 'b': 3}\)"),
        ({"x": 3.0, "y": Y}, r"the inputs must have one row per example"),
        ({"x": [[1.0], [1.0, 2.0]], "y": Y}, r"the inputs cannot be converted to a tensor"),
        ({"x": X[:0], "y": Y[:0]}, r"tensors: the data contain no examples"),
    ],
)
def test_what_cannot_be_used_is_answered_with_a_sentence(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_tensors(**{"x": X, **change})


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"split": object()}, "the split must be a list or an array"),
        ({"split": "train"}, "the split must be a list or an array"),
        ({"labels": 5}, "the class names must be a list of unique names"),
        ({"labels": [[1], [1]]}, "the class names must be a list of unique names"),
        ({"x": torch.zeros(8, 2, device="meta")}, "the inputs are on the device 'meta'"),
    ],
)
def test_what_is_not_a_list_is_refused(change: dict[str, Any], match: str) -> None:
    values: dict[str, Any] = {"x": torch.zeros(8, 2), "y": [0, 1] * 4, **change}
    with pytest.raises(InputError, match=match):
        from_tensors(**values)
