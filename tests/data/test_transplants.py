"""Transplants between texts: listed by the names of words, in memory, and at random while training."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from spurless.core.errors import UnknownNameError
from spurless.core.groups import Groups
from spurless.data.loader import Loader, sequential_order
from spurless.data.split import Split
from spurless.data.transplants import (
    RandomTransplant,
    get_transplants,
    list_transplants,
    list_transplants_of_shape,
    read_rows,
    transplant_split,
)

VOCABULARY = ("[PAD]", "[CLS]", "[SEP]", "cat", "dog", "sun", "war", "##um")
CAT, DOG, SUN, WAR, UM = range(3, 8)
NAME = 'the word "warum"'


def spell(token: int) -> str:
    return VOCABULARY[token]


def texts() -> Split:
    """Twelve texts with "warum" and twelve without it."""
    rows = [[1, CAT, WAR, UM, 2], [1, DOG, SUN, 2, 0]] * 12
    ids = torch.tensor(rows, dtype=torch.int32)
    y = torch.tensor([0, 1] * 12)
    x = {"input_ids": ids, "attention_mask": (ids > 0).int()}
    return Split(x, y, torch.full_like(y, -1), Groups(("no", "yes")))


def ids_of(split: Split) -> list[list[int]]:
    x: dict[str, Tensor] = split.x  # type: ignore[assignment]
    return x["input_ids"].tolist()


def test_every_word_of_a_text_is_a_property() -> None:
    transplants = list_transplants(texts(), spell)
    assert list(transplants) == ['the word "cat"', 'the word "dog"', 'the word "sun"', NAME]
    assert {transplant.kind for transplant in transplants.values()} == {"word"}
    assert list(list_transplants(texts()))[-3:] == [
        f"token {WAR}",
        f"token {UM}",
        "the length of the text",
    ]
    long = texts().x["input_ids"].repeat(1, 3)  # type: ignore[index]
    assert list(list_transplants(replace(texts(), x={"input_ids": long}), spell))[-2:] == [
        "the first two words",
        "the last two words",
    ]
    assert list_transplants(replace(texts(), x={"pixels": torch.zeros(24, 3)})) == {}


def test_words_are_found_by_name() -> None:
    assert [transplant.name for transplant in get_transplants(texts(), (NAME,), spell)] == [NAME]
    with pytest.raises(UnknownNameError, match="cow"):
        get_transplants(texts(), ('the word "cow"',), spell)


def test_a_word_that_is_frequent_in_another_split_is_found_by_name() -> None:
    few = texts().select(torch.arange(4))
    assert list_transplants(few, spell) == {}
    names = (NAME, "the last two words")
    assert tuple(transplant.name for transplant in get_transplants(few, names, spell)) == names


def test_texts_are_transplanted_in_memory() -> None:
    split = texts()
    (transplant,) = get_transplants(split, (NAME,), spell)
    changed = transplant_split(split, torch.tensor([0, 1, 2]), torch.tensor([1, 0, 4]), transplant)
    assert ids_of(changed) == [[1, CAT, 2, 0, 0], [1, DOG, WAR, UM, 2], [1, CAT, WAR, UM, 2]]
    assert changed.y.tolist() == [0, 1, 0]
    assert changed.x["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1] * 5, [1] * 5]  # type: ignore[index]
    assert ids_of(split) == ids_of(texts())
    assert repr(transplant) == repr(get_transplants(texts(), (NAME,), spell)[0])  # caches depend on it


def test_rows_of_texts_are_read() -> None:
    x: dict[str, Tensor] = texts().x  # type: ignore[assignment]
    assert read_rows(x, torch.tensor([1, 1]))["input_ids"].tolist() == [[1, DOG, SUN, 2, 0]] * 2


def test_a_random_donor_gives_or_takes_the_word() -> None:
    split = texts()
    (transplant,) = get_transplants(split, (NAME,), spell)
    x: dict[str, Tensor] = split.x  # type: ignore[assignment]
    torch.manual_seed(0)
    order = torch.randperm(24)
    torch.manual_seed(0)
    result = RandomTransplant((transplant,))(x)
    has = (result["input_ids"] == WAR).any(dim=1)
    assert torch.equal(has, (x["input_ids"][order] == WAR).any(dim=1))
    assert not torch.equal(has, (x["input_ids"] == WAR).any(dim=1))
    assert torch.equal(RandomTransplant((transplant,), p=0.0)(x)["input_ids"], x["input_ids"])
    half = RandomTransplant((transplant,), p=0.5)(x)["input_ids"]
    assert 0 < int((half != x["input_ids"]).any(dim=1).sum()) < 24


def test_the_amount_of_ink_is_not_a_color_of_grey_images() -> None:
    much, little = torch.zeros(1, 3, 4, 4), torch.zeros(1, 3, 4, 4)
    much[..., :3], little[..., :1] = 0.5, 0.5
    color = list_transplants_of_shape((3, 4, 4))["the color"]
    assert torch.equal(color(much, little), much)
    red = little * torch.tensor([1.0, 0.0, 0.0])[:, None, None]
    assert not torch.equal(color(much, red), much)
    assert float(color(much, red)[:, 1:].abs().max()) == 0.0  # red, as the donor
    # red again: 3 of 4 columns have ink, so with the donor's mean of 0.5 / 4 they get 0.5 / 4 * 4 / 3
    assert color(much, red)[0, 0, :, :3].flatten().tolist() == pytest.approx([0.5 / 3] * 12)


def test_texts_are_augmented_in_training_only() -> None:
    (transplant,) = get_transplants(texts(), (NAME,), spell)
    split = replace(texts(), augment=RandomTransplant((transplant,)))
    order = sequential_order(24)
    for training in (True, False):
        (batch,) = Loader(split, order, 24, torch.device("cpu"), training=training).batches()
        assert isinstance(batch.x, dict)
        assert (batch.x["input_ids"].tolist() != ids_of(split)) is training
