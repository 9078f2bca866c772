"""Examples: a picture keeps its pixels, a text its words, a row its numbers."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spurless.cli.data_examples import maker_for, png, token_ids
from spurless.core.groups import Groups
from spurless.data.grouped import Grouped, Splits
from spurless.data.text import from_texts

GROUPS = Groups(("no", "yes"))


def pixels(data: bytes) -> Any:
    return np.asarray(Image.open(BytesIO(data)))


def splits_of(x: Any, **options: Any) -> Splits:
    split = Grouped(x, torch.tensor([0, 1]), torch.tensor([-1, -1]), GROUPS)
    return Splits(split, split, split, options=options)


def test_small_picture_is_enlarged_pixel_by_pixel() -> None:
    image = torch.randint(256, (3, 8, 8), dtype=torch.uint8)
    found = pixels(png(image))
    assert found.shape == (64, 64, 3)
    assert (found[::8, ::8] == image.permute(1, 2, 0).numpy()).all()
    assert (found[3::8, 7::8] == image.permute(1, 2, 0).numpy()).all()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 28, 28), (84, 84)),  # height, width; grey
        ((3, 64, 64), (64, 64, 3)),
        ((3, 100, 30), (200, 60, 3)),  # not square: no side beyond what a page has room for
        ((3, 4, 300), (2, 144, 3)),
        ((3, 288, 144), (144, 72, 3)),
        ((1, 200, 200), (144, 144)),
    ],
)
def test_picture_keeps_its_form(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert pixels(png(torch.zeros(shape, dtype=torch.uint8))).shape == expected


def test_pixels_of_any_range_become_visible() -> None:
    shares = torch.tensor([0.0, 0.5, 1.0]).view(1, 1, 3).expand(1, 64, 3)
    assert pixels(png(shares))[0, [0, 6, -1]].tolist() == [0, 128, 255]
    assert pixels(png(shares * 40 - 20))[0, [0, 6, -1]].tolist() == [0, 128, 255]
    assert pixels(png(torch.full((1, 64, 64), 7.0))).max() == 0  # nothing to see, and no error


def test_kind_of_example_follows_the_inputs() -> None:
    picture = maker_for(splits_of(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)))
    assert picture.facts == (("Input", "grey image, 8 x 8 pixels, uint8"),)
    assert picture.make(splits_of(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).train, 1).png
    numbers = splits_of(torch.tensor([[0.123456, 2.0], [3.0, -1e9]]), features=["core", "spurious"])
    row = maker_for(numbers)
    assert row.columns == ("core", "spurious")
    assert row.make(numbers.train, 1).values == ("3", "-1e+09")
    assert row.make(numbers.train, 0).values == ("0.1235", "2")


def test_long_rows_and_odd_tensors_show_their_first_numbers() -> None:
    for x in (torch.arange(80.0).view(2, 40), torch.arange(80.0).view(2, 5, 2, 4)):
        row = maker_for(splits_of(x))
        assert row.columns == tuple(f"x{i}" for i in range(12))
        assert row.make(splits_of(x).train, 1).values[:2] == ("40", "41")
        assert row.facts[-1] == ("Shown", "the first 12 numbers of each example")


def test_tokens_without_a_tokenizer_are_numbers_and_the_page_says_so() -> None:
    x = {"input_ids": torch.tensor([[5, 6, 0], [7, 0, 0]]), "attention_mask": torch.tensor([[1, 1, 0], [1, 0, 0]])}
    for options in ({}, {"tokenizer": "/no/such/folder"}):
        text = maker_for(splits_of(x, **options))
        assert text.make(splits_of(x).train, 0).text == "5 6"
        assert "token numbers" in text.notes[0]
    assert token_ids(splits_of(x).train, 1) == [7]
    assert token_ids(splits_of({"tokens": x["input_ids"]}).train, 1) == [7, 0, 0]


def test_tokens_become_words_where_the_tokenizer_is_to_be_had(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "nobody", "doubts"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    ids = torch.tensor([[2, 5, 6, 3], [2, 5, 3, 0]])
    x = {"input_ids": ids, "attention_mask": (ids > 0).int()}
    text = maker_for(splits_of(x, tokenizer=str(tmp_path)))
    assert text.notes == ()
    assert text.make(splits_of(x).train, 1).text == "[CLS] nobody [SEP]"
    assert text.make(splits_of(x).train, 1).caption == "example 1, 3 tokens"


def test_own_texts_are_shown_as_they_were_given_and_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the tokenizer 'words' is no name on the hub")

    monkeypatch.setattr("spurless.core.pretrained.open_pretrained", refuse)
    texts = ["Never, ever!", "so good"] * 10
    data = from_texts(texts, [0, 1] * 10, tokenizer="words")
    maker = maker_for(data)
    assert {maker.make(data.train, i).text for i in range(len(data.train))} == set(texts)
    assert maker.make(data.train, 0).caption in ("example 0, 6 tokens", "example 0, 4 tokens")
    ids = {"input_ids": torch.tensor([[5, 6], [7, 0]])}
    assert maker_for(splits_of(ids, tokenizer="words")).make(splits_of(ids).train, 0).text == "5 6"


def test_a_dataset_with_words_of_its_own_is_shown_in_them() -> None:
    from spurless.data import load

    data = load("negated-claims")
    maker = maker_for(data)
    text = maker.make(data.train, 0).text
    assert text is not None
    assert text.startswith("the ")
    assert "[sep]" in text
    assert maker.notes == ()
