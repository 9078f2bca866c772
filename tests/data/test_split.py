"""Split: hiding, choosing, preparing, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from spurless.core.errors import MissingAttributesError, UndeclaredAccessError
from spurless.core.groups import Groups
from spurless.data.split import SourceSubset, Split, Splits

GROUPS = Groups(("no", "yes"), ("left", "right"))


def split(x: Tensor | None = None) -> Split:
    x = torch.arange(8, dtype=torch.float32).view(4, 2) if x is None else x
    return Split(x, torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1]), GROUPS)


def splits(train: Split | None = None, test: Split | None = None) -> Splits:
    return Splits(train or split(), split(), test or split(), "toy")


class Numbers:
    """A source that reads on demand, and counts how often."""

    def __init__(self, n: int) -> None:
        self.n, self.read = n, 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Tensor:
        self.read += 1
        return torch.full((3,), i, dtype=torch.uint8)

    def fingerprint(self) -> str:
        return f"numbers {self.n}"


def test_hidden_attributes_are_minus_one_and_the_original_keeps_its_own() -> None:
    data = split()
    hidden = data.hide_attributes()
    assert hidden.a.tolist() == [-1] * 4
    assert data.a.tolist() == [0, 1, 0, 1]
    assert data.has_attributes
    assert not hidden.has_attributes
    with pytest.raises(MissingAttributesError):
        hidden.g  # noqa: B018 - the access is tested


def test_counts_by_hand() -> None:
    assert split().counts.tolist() == [1, 1, 1, 1]
    assert split().class_counts.tolist() == [2, 2]
    assert split().g.tolist() == [0, 1, 2, 3]


def test_select_takes_the_examples_in_the_order_given() -> None:
    chosen = split().select(torch.tensor([3, 0]))
    assert isinstance(chosen.x, Tensor)
    assert chosen.x.tolist() == [[6.0, 7.0], [0.0, 1.0]]
    assert chosen.y.tolist() == [1, 0]
    assert chosen.a.tolist() == [1, 0]


def test_select_of_a_source_reads_nothing_yet() -> None:
    source = Numbers(4)
    chosen = Split(source, split().y, split().a, GROUPS).select(torch.tensor([2, 1]))
    assert isinstance(chosen.x, SourceSubset)
    assert source.read == 0
    assert chosen.x[0].tolist() == [2, 2, 2]
    assert chosen.streamed


def test_bytes_become_shares_and_doubles_become_floats() -> None:
    raw = torch.tensor([[0, 255]], dtype=torch.uint8)
    ready = split().prepare(raw)
    assert isinstance(ready, Tensor)
    assert ready.tolist() == [[0.0, 1.0]]
    assert split().prepare(torch.zeros(1, 2, dtype=torch.float64)).dtype == torch.float32  # type: ignore[union-attr]
    assert split().prepare(torch.zeros(1, 2, dtype=torch.long)).dtype == torch.long  # type: ignore[union-attr]


def test_augmentation_is_for_training_and_comes_before_the_transform() -> None:
    data = replace(split(), augment=lambda x: x + 1, transform=lambda x: x * 10)
    assert data.prepare(torch.ones(1, 1)).tolist() == [[10.0]]  # type: ignore[union-attr]
    assert data.prepare(torch.ones(1, 1), training=True).tolist() == [[20.0]]  # type: ignore[union-attr]


def test_texts_are_augmented_in_training_only() -> None:
    def add(x: Any) -> Any:
        return {key: part + 1 for key, part in x.items()}

    data, x = replace(split(), augment=add), {"input_ids": torch.ones(1, 2)}
    assert data.prepare(x) is x
    assert data.prepare(x, training=True)["input_ids"].tolist() == [[2.0, 2.0]]  # type: ignore[index]
    assert replace(data, augment=None).prepare(x, training=True) is x


def test_one_overlapping_attribute_can_be_taken_alone() -> None:
    groups = Groups.overlapping(("civil", "toxic"), ("male", "female"))
    data = Split(torch.zeros(2, 1), torch.tensor([0, 1]), torch.tensor([[1, 0], [1, 1]]), groups)
    assert data.counts.tolist() == [1, 0, 1, 1]
    alone = data.column("female")
    assert alone.a.tolist() == [0, 1]
    whole = Splits(data, data, data).column("female")
    assert whole.test.counts.tolist() == alone.counts.tolist() == [1, 0, 0, 1]
    assert alone.groups.names == ("civil, not female", "civil, female", "toxic, not female", "toxic, female")


def test_the_fingerprint_knows_every_part() -> None:
    data = split()
    others = [
        split(torch.ones(4, 2)),
        replace(data, y=1 - data.y),
        replace(data, a=1 - data.a),
        replace(data, groups=Groups(("no", "maybe"), ("left", "right"))),
    ]
    assert len({part.fingerprint() for part in (data, *others)}) == 5
    assert data.fingerprint() == split().fingerprint()


def test_a_method_is_shown_what_it_declared_and_never_the_test_split() -> None:
    shown = splits().visible(train_attributes=True, val_labels=True, val_attributes=False)
    assert shown.train.has_attributes
    assert not shown.val.has_attributes
    assert shown.val.y.tolist() == [0, 0, 1, 1]
    blind = splits().visible(train_attributes=False, val_labels=False, val_attributes=False)
    assert blind.val.y.tolist() == blind.val.a.tolist() == [-1] * 4
    assert blind.train.y.tolist() == [0, 0, 1, 1]  # the training labels are what training is
    with pytest.raises(UndeclaredAccessError, match=r"Use data\.val for selection"):
        shown.test.y  # noqa: B018 - the access is tested


def test_an_example_is_what_the_model_gets() -> None:
    data = Split(Numbers(4), split().y, split().a, GROUPS)
    example = data.example(2)
    assert isinstance(example, Tensor)
    torch.testing.assert_close(example, torch.tensor([[0.0] * 3, [1 / 255] * 3]))


def test_at_a_prompt_a_split_is_one_line() -> None:
    assert repr(split()) == "Split(4 examples, float32 (2,), 4 groups)"
    assert repr(split().hide_attributes()) == "Split(4 examples, float32 (2,), 4 groups, attributes unknown)"
    assert repr(splits()) == "Splits(toy: train Split(4 examples, float32 (2,), 4 groups), val 4, test 4)"


def in_domains() -> Split:
    y, a = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    groups = Groups(("no", "yes"), ("left", "right"))
    return Split(torch.arange(4.0)[:, None], y, a, groups, domain=torch.tensor([1, 1, 1, 0]), domains=("d0", "d1"))


def test_a_method_is_given_domains_in_place_of_groups() -> None:
    split = in_domains()
    shown = Splits(split, split, split).visible(train_attributes=True, val_labels=True, val_attributes=True)
    assert shown.train.g.tolist() == [1, 1, 1, 0]
    assert shown.groups.names == ("d0", "d1")
    assert shown.val.counts.tolist() == [1, 3]
    assert shown.train.domain is None
    assert split.counts.tolist() == [1, 1, 1, 1]  # what is evaluated stays by label and attribute


def test_domains_are_hidden_with_the_attributes() -> None:
    split = in_domains()
    shown = Splits(split, split, split).visible(train_attributes=False, val_labels=False, val_attributes=False)
    assert not shown.train.has_attributes
    with pytest.raises(MissingAttributesError):
        _ = shown.train.g


def test_domains_follow_their_examples_and_count_in_the_fingerprint() -> None:
    split = in_domains()
    picked = split.select(torch.tensor([3, 0])).to("cpu")
    assert picked.given.a.tolist() == [0, 1]
    assert split.fingerprint() != replace(split, domain=None).fingerprint()
    assert split.fingerprint() != replace(split, domain=torch.tensor([0, 1, 1, 0])).fingerprint()


def test_a_mask_chooses_as_its_indices_do() -> None:
    whole, mask = split(), torch.tensor([True, False, False, True])
    assert torch.equal(whole.select(mask).x, whole.select(torch.tensor([0, 3])).x)  # type: ignore[arg-type]
    assert whole.select(mask).y.tolist() == [0, 1]
