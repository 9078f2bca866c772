"""Text: tokens are those of the tokenizer itself, made once, found by content, and made again when they are broken."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError, MissingExtraError, SpurlessWarning
from spurless.core.progress import progress_to
from spurless.data.loader import Loader, sequential_order
from spurless.data.loaders import text
from spurless.data.loaders.text import choose_tokenizer, from_texts, tokenise
from spurless.data.loaders.text import hash_word as word_number

TEXTS = ["the cat sat", "a dog", "", "no"]
PAIRS = ["it sat down on a mat", "cat", "so it goes", "yes"]


@pytest.fixture
def cache() -> Path:
    return Path(os.environ["SPURLESS_CACHE"])


def kept(cache: Path) -> list[Path]:
    return sorted((cache / "tensors").glob("*.safetensors"))


def reference(folder: str, *parts: Any, max_length: int) -> dict[str, Tensor]:
    import transformers

    found = transformers.AutoTokenizer.from_pretrained(folder)(
        *parts, truncation=True, max_length=max_length, padding="longest", return_tensors="pt"
    )
    return {key: value.int() for key, value in found.items()}


@pytest.mark.parametrize("pairs", [None, PAIRS])
@pytest.mark.parametrize("max_length", [8, 64])
def test_the_tokens_are_those_of_the_tokenizer_itself(
    speller: str, pairs: list[str] | None, max_length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "CHUNK", 3)  # a last chunk that is not full
    expected = reference(speller, TEXTS, *([] if pairs is None else [pairs]), max_length=max_length)
    for _ in range(2):  # made, then found
        x = tokenise(TEXTS, pairs, tokenizer=speller, max_length=max_length)
        assert x.keys() == expected.keys() == {"input_ids", "attention_mask", "token_type_ids"}
        for key, value in expected.items():
            assert x[key].dtype == torch.int32
            assert torch.equal(x[key], value), key


def test_a_tokenizer_without_token_types_gives_none(tmp_path: Path, make_tokenizer: Callable[..., str]) -> None:
    folder = make_tokenizer(tmp_path / "roberta-like")
    config = Path(folder) / "tokenizer_config.json"
    listed = '"model_input_names": ["input_ids", "attention_mask"],'
    config.write_text(config.read_text().replace("{", "{" + listed, 1))
    assert tokenise(TEXTS, PAIRS, tokenizer=folder, max_length=16).keys() == {"input_ids", "attention_mask"}


def test_the_second_time_nothing_is_tokenised(speller: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tokenise(TEXTS, tokenizer=speller, max_length=8)
    assert len(kept(cache)) == 1
    monkeypatch.setitem(sys.modules, "transformers", None)  # not even imported
    again = tokenise(TEXTS, tokenizer=speller, max_length=8)
    assert all(torch.equal(first[key], again[key]) for key in first)
    with pytest.raises(MissingExtraError, match="Text needs the package 'transformers'"):
        tokenise(["other"], tokenizer=speller, max_length=8)


def test_the_key_is_the_content_and_not_the_path(
    tmp_path: Path, cache: Path, make_tokenizer: Callable[..., str]
) -> None:
    one, same = make_tokenizer(tmp_path / "one"), make_tokenizer(tmp_path / "two")
    other = make_tokenizer(tmp_path / "three", ("cat", "dog"))
    tokenise(TEXTS, tokenizer=one, max_length=8)
    tokenise(TEXTS, tokenizer=same, max_length=8)
    assert len(kept(cache)) == 1
    changes: list[tuple[Any, Any, str, int]] = [
        (TEXTS, None, other, 8),
        (TEXTS, None, one, 9),
        (TEXTS, PAIRS, one, 8),
        (PAIRS, TEXTS, one, 8),
        ([*TEXTS[1:], TEXTS[0]], None, one, 8),
        ([*TEXTS, *PAIRS], None, one, 8),
    ]
    for number, (texts, pairs, folder, length) in enumerate(changes, start=2):
        tokenise(texts, pairs, tokenizer=folder, max_length=length)
        assert len(kept(cache)) == number


@pytest.mark.parametrize("harm", ["cut", "empty", "foreign"])
def test_a_broken_file_is_made_again(speller: str, cache: Path, harm: str) -> None:
    first = tokenise(TEXTS, PAIRS, tokenizer=speller, max_length=32)
    (path,) = kept(cache)
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[:-7], "empty": b"", "foreign": b"\x80\x04pickle"}[harm])
    again = tokenise(TEXTS, PAIRS, tokenizer=speller, max_length=32)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert path.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_warned_of(
    speller: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path / "file"))
    with pytest.warns(SpurlessWarning, match=r"Could not write to the cache.*cannot write.*\$SPURLESS_CACHE"):
        x = tokenise(TEXTS, tokenizer=speller, max_length=8)
    assert len(x["input_ids"]) == 4


def test_progress_is_told_by_the_text(speller: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    monkeypatch.setattr(text, "CHUNK", 2)
    monkeypatch.setattr(text, "progress_reporter", lambda stage, total: lambda done: heard.append((stage, done, total)))
    with progress_to(None):
        tokenise(TEXTS[:3], tokenizer=speller, max_length=8)
    assert heard == [("tokenise", 2, 3), ("tokenise", 3, 3)]


@pytest.mark.parametrize(
    ("texts", "pairs", "length", "said"),
    [
        ([], None, 8, "the list of texts is empty"),
        ("one text", None, 8, "texts must be a list of strings"),
        (["a", None], None, 8, "the text of example 1 is not a string .got None"),
        (["a"], [3], 8, "the pair of example 0 is not a string .got 3"),
        (["a"], ["b", "c"], 8, "texts and pairs differ in number .expected 1, got 2"),
        (["a"], None, 3, "max_length must be at least 4 .got 3"),
    ],
)
def test_what_cannot_be_tokenised_is_a_sentence(speller: str, texts: Any, pairs: Any, length: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        tokenise(texts, pairs, tokenizer=speller, max_length=length)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(
        InputError, match=rf"{tmp_path}: (the tokenizer cannot be opened|the vocabulary of the tokenizer is empty)"
    ):
        tokenise(["a"], tokenizer=str(tmp_path), max_length=8)


def test_a_model_that_was_saved_without_its_tokenizer_is_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1).save_pretrained(tmp_path)
    with pytest.raises(
        InputError, match=rf"{tmp_path}: (the tokenizer cannot be opened|the vocabulary of the tokenizer is empty)"
    ):
        tokenise(["a"], tokenizer=str(tmp_path), max_length=8)  # every word would be unknown to it


def test_own_text_in_one_call(speller: str, spoken: Callable[[Tensor], str]) -> None:
    texts = [f"{'good' if i % 2 else 'bad'} {i}" for i in range(40)]
    data = from_texts(
        texts,
        ["good" if i % 2 else "bad" for i in range(40)],
        ["long" if i % 3 else None for i in range(40)],
        ["test" if i >= 30 else "val" if i >= 20 else "train" for i in range(40)],
        tokenizer=speller,
        max_length=16,
    )
    assert (data.groups.labels, data.groups.attributes) == (("bad", "good"), ("long",))
    assert [len(split) for split in (data.train, data.val, data.test)] == [20, 10, 10]
    for k, split in enumerate((data.train, data.val, data.test)):
        assert isinstance(split.x, dict)
        said = [spoken(ids) for ids in split.x["input_ids"]]
        assert said == texts[(0, 20, 30)[k] : (20, 30, 40)[k]]
        assert [data.groups.labels[y] for y in split.y] == [text.split()[0] for text in said]
        assert split.a.tolist() == [0 if int(text.split()[1]) % 3 else -1 for text in said]
    batch = next(iter(Loader(data.train, sequential_order(20), 6).batches()))
    assert isinstance(batch.x, dict)
    assert batch.x["input_ids"].shape[0] == 6


def test_a_column_of_a_table_is_read_by_its_place_and_what_it_lacks_is_unknown() -> None:
    pandas = pytest.importorskip("pandas")
    rows = range(39, -1, -1)  # labels that run backwards, as after a shuffle
    texts = pandas.Series([f"{'good' if i % 2 else 'bad'} {i}" for i in range(40)], index=rows)
    place = pandas.Series([float(i % 3) if i % 3 else float("nan") for i in range(40)], index=rows)
    verdict = pandas.Series(["bad", "good"] * 20, index=rows)
    data = from_texts(texts, verdict, place, ["train"] * 20 + ["val"] * 10 + ["test"] * 10, tokenizer="words")
    assert data.val.names is not None
    assert [data.val.names.text(i) for i in (0, 9)] == ["bad 20", "good 29"]
    assert data.groups.attributes == ("attribute 1.0", "attribute 2.0")
    assert data.train.a.tolist()[:4] == [-1, 0, 1, -1]
    with pytest.raises(InputError, match="example 0 has no label"):
        from_texts(texts, place, tokenizer="words")


def test_numbers_get_the_name_of_their_column_and_columns_are_crossed(speller: str) -> None:
    y = torch.tensor([0, 1] * 100)
    a = {"place": ["here", "there"] * 100, "time": [0] * 100 + [1] * 100}
    data = from_texts([f"text {i}" for i in range(200)], y, a, tokenizer=speller, name="mine")
    assert data.groups.labels == ("label 0", "label 1")
    assert data.groups.attributes == ("here & time 0", "here & time 1", "there & time 0", "there & time 1")
    assert data.name == "mine"
    assert len(data.train) == 140  # 70 %


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": ["a"] * 9}, "'label' and the texts differ in number .expected 10, got 9"),
        ({"labels": ["a", None] * 5}, "example 1 has no label"),
        ({"attributes": ["x"]}, "'attribute' and the texts differ in number"),
        ({"attributes": {"split": ["x"] * 10}}, "an attribute cannot be called 'split'"),
        ({"split": ["train", "trane"] * 5}, "split of example 1: the split 'trane' is unknown"),
    ],
)
def test_own_text_that_does_not_fit_is_a_sentence(speller: str, change: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"texts": list("abcdefghij"), "labels": ["x", "y"] * 5, "tokenizer": speller, **change}
    with pytest.raises(InputError, match=said):
        from_texts(**given)


def test_auto_is_the_best_that_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "encoder_folder", lambda _: "somewhere")
    assert choose_tokenizer("auto") == "minilm"
    assert choose_tokenizer("some/folder") == "some/folder"

    def absent(name: str) -> str:
        raise InputError(f"the encoder {name!r} is not installed")

    monkeypatch.setattr(text, "encoder_folder", absent)
    with pytest.warns(SpurlessWarning, match=r"No tokenizer is installed, so words are hashed.*tokenizer="):
        assert choose_tokenizer("auto") == "words"


def test_words_need_nothing_and_are_kept_like_other_tokens(cache: Path) -> None:
    found = tokenise(["a cat", "no"], ["A dog", ""], tokenizer="words", max_length=16)
    assert found["input_ids"].tolist() == [
        [1, word_number("a"), word_number("cat"), 2, word_number("a"), word_number("dog"), 2],
        [1, word_number("no"), 2, 2, 0, 0, 0],
    ]
    assert found["attention_mask"].sum(dim=1).tolist() == [7, 4]
    assert found["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 0, 0, 0]]
    again = tokenise(["a cat", "no"], ["A dog", ""], tokenizer="words", max_length=16)
    assert all(torch.equal(found[key], again[key]) for key in found)
    assert len(kept(cache)) == 1


def test_the_default_names_the_tokenizer_that_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "choose_tokenizer", lambda _: "words")
    data = from_texts(["good film", "bad film"] * 10, ["good", "bad"] * 10)
    assert data.options["tokenizer"] == "words"
