"""Words: pieces are joined, a word counts once per text, and both texts of a pair are searched separately."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from spurless.core.groups import Groups
from spurless.data import words
from spurless.data.datasets.negated_claims import NegatedClaimsConfig, negated_claims
from spurless.data.loaders import text
from spurless.data.split import Split, Splits
from spurless.data.words import (
    NEGATION,
    Vocabulary,
    build_vocabulary,
    decode_text,
    find_words,
    lay_out,
    load_spelling,
    locate_word,
    mark_texts,
)

GROUPS = Groups(("no", "yes"))
VOCABULARY = (
    "[PAD]",
    "[CLS]",
    "[SEP]",
    "the",
    "film",
    "never",
    "nobody",
    "cat",
    "dog",
    "sun",
    "war",
    "##um",
    "##s",
    ".",
)
ID = {word: number for number, word in enumerate(VOCABULARY)}


def spell(token: int) -> str:
    return VOCABULARY[token]


def texts_of(rows: list[str], second: list[int] | None = None) -> Split:
    """Texts of pieces, separated by spaces; ``second`` is the position at which the second text of each begins."""
    pieces = [row.split() for row in rows]
    length = max(map(len, pieces))
    ids = torch.tensor([[ID[piece] for piece in row] + [0] * (length - len(row)) for row in pieces], dtype=torch.int32)
    x = {"input_ids": ids, "attention_mask": (ids > 0).int()}
    if second is not None:
        x["token_type_ids"] = (torch.arange(length) >= torch.tensor(second)[:, None]).int() * (ids > 0)
    return Split(x, torch.zeros(len(rows), dtype=torch.long), torch.full((len(rows),), -1), GROUPS)


def count(split: Split) -> dict[str, int]:
    found = find_words(split, spell)
    assert found.present.dtype == torch.long
    return dict(zip(found.names, found.present.sum(dim=0).tolist(), strict=True))


def test_pieces_of_a_word_are_joined() -> None:
    rows = ["[CLS] the war ##um [SEP]"] * 20 + ["[CLS] the war [SEP]"] * 15 + ["[CLS] the war ##um ##s [SEP]"] * 12
    split = texts_of(rows)
    assert count(split) == {'the word "warum"': 20, 'the word "war"': 15, 'the word "warums"': 12}
    for word in find_words(split, spell).words:
        marked = mark_texts(split, word).tolist()
        assert marked == [row.replace(" ##", "").split()[2] == word.name.split('"')[1] for row in rows]


def test_punctuation_ends_a_word_and_special_tokens_are_not_words() -> None:
    layout = lay_out(*with_vocabulary(texts_of(["[CLS] war . ##um [SEP] ##s", "[CLS] the [SEP]"])))
    assert layout.begins.int().tolist() == [[0, 1, 1, 1, 0, 1], [0, 1, 0, 0, 0, 0]]
    assert layout.inside.int().tolist() == [[0] * 6, [0] * 6]
    assert layout.special.int().tolist() == [[1, 0, 0, 0, 1, 0], [1, 0, 1, 0, 0, 0]]
    assert layout.real.int().tolist() == [[1] * 6, [1, 1, 1, 0, 0, 0]]


def with_vocabulary(split: Split) -> tuple[dict[str, Tensor], Vocabulary]:
    x: dict[str, Tensor] = split.x  # type: ignore[assignment]
    return x, build_vocabulary(x, spell)


def test_words_with_and_without_a_mark_of_a_space_are_the_same_word() -> None:
    """``The`` at the start, ``Ġthe`` elsewhere; ``un`` + ``The`` is another word."""
    pieces = ("<s>", "The", "\u0120the", "\u0120un", "\u0120cat", ",", "</s>")
    rows = [[0, 1, 4, 6]] * 10 + [[0, 4, 2, 6]] * 10 + [[0, 3, 1, 6]] * 10 + [[0, 4, 5, 6]] * 10
    split = replace(texts_of(["the"] * 40), x={"input_ids": torch.tensor(rows)})
    found = find_words(split, lambda token: pieces[token])
    table = dict(zip(found.names, found.present.sum(dim=0).tolist(), strict=True))
    single = {name: n_texts for name, n_texts in table.items() if "words" not in name}
    assert single == {'the word "cat"': 30, 'the word "the"': 20, 'the word "unthe"': 10, 'the word ","': 10}
    the = found.words[found.names.index('the word "the"')]
    assert sorted(the.sequences) == [(1,), (2,)]
    assert mark_texts(split, the).tolist() == [1] * 20 + [0] * 20


def test_an_occurrence_is_located_by_its_first_token_and_length() -> None:
    split = texts_of(["[CLS] war ##um the war ##um [SEP]"] * 10 + ["[CLS] the war ##um ##s dog [SEP]"] * 10)
    found = find_words(split, spell)
    x, vocabulary = with_vocabulary(split)
    word = found.words[found.names.index('the word "warum"')]
    assert word.sequences == ((ID["war"], ID["##um"]),)
    located = locate_word(lay_out(x, vocabulary), word)
    assert located[[0, 10]].tolist() == [[0, 2, 0, 0, 2, 0, 0], [0] * 7]


def test_neighbors_are_a_pair_if_both_words_also_occur_without_each_other() -> None:
    rows = ["film dog"] * 12 + ["film . dog"] * 11 + ["the never cat"] * 20 + ["never . the cat"] * 9 + ["sun sun"] * 30
    table = count(texts_of(rows))
    pairs = {name: number for name, number in table.items() if name.startswith("the words")}
    # film and dog occur 11 times with a full stop between them; "never" is in 9 texts without "the never", "cat" in 9
    # without "never cat", one less than necessary; "sun" does not occur alone
    assert pairs == {'the words "film dog"': 12}
    table = count(texts_of([*rows, "never . the cat"]))
    assert {name for name in table if "words" in name} == {
        'the words "film dog"',
        'the words "the never"',
        'the words "never cat"',
        'the words "the cat"',
    }


def test_neighbors_are_in_the_same_text_and_on_the_same_side() -> None:
    rows = ["film dog", "cat sun"] * 12 + ["dog cat"] * 12 + ["sun film"] * 12
    table = count(texts_of(rows))  # without padding, the last word of a text is next to the first of the next one
    assert {name for name in table if "words" in name} == {
        'the words "film dog"',
        'the words "cat sun"',
        'the words "dog cat"',
        'the words "sun film"',
    }
    assert table['the words "dog cat"'] == 12
    rows = ["film dog"] * 12 + ["film cat"] * 12 + ["sun dog"] * 12
    assert count(texts_of(rows))['the words "film dog"'] == 12
    assert not any("words" in name for name in count(texts_of(rows, second=[1] * 36)))
    piece = texts_of(["war ##um the"] * 12 + ["the film ."] * 12, second=[1] * 24)
    assert count(piece)['the word "war" in the first text'] == 12
    assert count(piece)['the word "um" in the second text'] == 12


def test_words_are_counted_once_in_each_text() -> None:
    found = count(texts_of(["the never never"] * 12 + ["the cat"] * 30))
    assert found == {'the word "never"': 12, 'the word "cat"': 30}  # "the" is everywhere


def test_the_texts_of_a_pair_are_separate() -> None:
    rows = ["never cat dog"] * 20 + ["cat never dog"] * 15 + ["sun film dog"] * 15
    table = count(texts_of(rows, second=[1] * 50))
    assert table['the word "never" in the first text'] == 20
    assert table['the word "never" in the second text'] == 15
    assert table['the word "cat" in the second text'] == 20
    assert not any(name.startswith("a negation") for name in table)  # one word is not a list
    assert not any("dog" in name and "words" not in name for name in table)
    rows += ["nobody cat dog"] * 5 + ["cat nobody dog"] * 5
    both = texts_of(rows, second=[1] * 60)
    lists = count(both)
    assert lists["a negation in the first text"] == 25
    assert lists["a negation in the second text"] == 20
    found = find_words(both, spell)
    assert torch.equal(mark_texts(both, found.words[0]), found.present[:, 0])
    assert found.words[0].is_list


def test_rare_words_are_left_out() -> None:
    assert count(texts_of(["the cat"] * 9 + ["the dog sun"] * 40)) == {}
    found = find_words(texts_of(["the cat"] * 10 + ["the dog sun"] * 40), spell)
    assert found.names == ('the word "dog"', 'the word "sun"', 'the word "cat"')


def test_named_words_are_found_however_rare_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    split = texts_of(["the film dog"] * 2 + ["the cat . sun"] * 20 + ["the never"] * 20)
    names = ('the word "film"', 'the words "film dog"', 'the word "the"', 'the words "film cat"')
    assert not set(names) & set(find_words(split, spell).names)
    found = find_words(split, spell, include=names)
    table = dict(zip(found.names, found.present.sum(dim=0).tolist(), strict=True))
    assert {name: table[name] for name in names[:3]} == dict(zip(names, (2, 2, 42), strict=False))
    assert 'the word "dog"' not in table
    assert names[3] not in table
    monkeypatch.setattr(words, "MAX_WORDS", 1)
    monkeypatch.setattr(words, "MAX_BIGRAMS", 0)
    assert set(find_words(split, spell).names) == {'the word "never"'}  # of the lists, and "the" is in all texts
    assert set(names[:3]) < set(find_words(split, spell, include=names).names)


@pytest.mark.parametrize("missing", ["attention_mask", "token_type_ids"])
def test_ids_alone_are_enough(missing: str) -> None:
    split = texts_of(["never cat"] * 12 + ["sun cat"] * 12, second=[1] * 24)
    x = {key: value for key, value in split.x.items() if key != missing}  # type: ignore[union-attr]
    names = find_words(replace(split, x=x), spell).names
    assert names[0] == 'the word "never"' + (" in the first text" if missing == "attention_mask" else "")


def test_without_a_spelling_tokens_that_begin_or_end_all_texts_are_special() -> None:
    split = texts_of(["[CLS] cat sun [SEP]"] * 12 + ["[CLS] dog [SEP]"] * 12)
    found = find_words(split)
    assert found.names == (f"token {ID['cat']}", f"token {ID['dog']}", f"token {ID['sun']}")
    assert found.vocabulary.special.nonzero().flatten().tolist() == [ID["[CLS]"], ID["[SEP]"]]
    assert found.vocabulary.padding == 0


def test_tokens_beyond_the_vocabulary_are_words() -> None:
    split = texts_of(["the cat"] * 10 + ["the dog"] * 10)
    word = find_words(split, spell).words[0]
    more = replace(split, x={"input_ids": torch.tensor([[ID["the"], ID["cat"], 999]] * 20)})
    assert mark_texts(more, word).tolist() == [int(word.name == 'the word "cat"')] * 20


def test_spelling_of_a_dataset_of_its_own_vocabulary() -> None:
    spelling = load_spelling(negated_claims(NegatedClaimsConfig(n_train=30, n_val=30, n_test=30)))
    assert spelling is not None
    assert (spelling(2), spelling(5), spelling(9999)) == ("the", "fox", "token 9999")


def test_hashed_words_are_known_if_they_are_in_lists() -> None:
    empty = texts_of(["the"])
    spelling = load_spelling(Splits(empty, empty, empty, options={"tokenizer": "words"}))
    assert spelling is not None
    assert (spelling(0), spelling(1), spelling(2)) == ("[PAD]", "[CLS]", "[SEP]")
    assert spelling(text.hash_word("never")) == "never"
    assert "never" in NEGATION
    ids = torch.tensor([[text.hash_word("never")]] * 12 + [[777]] * 12)
    hashed = Split({"input_ids": ids}, *(torch.zeros(24),) * 2, GROUPS)
    assert find_words(hashed, spelling).names == ('the word "never"', "token 777")
    assert spelling(text.hash_word("xylophone")) == f"token {text.hash_word('xylophone')}"
    assert load_spelling(Splits(empty, empty, empty)) is None
    assert load_spelling(Splits(empty, empty, empty, options={"tokenizer": "/no/such/folder"})) is None


def test_hashed_words_are_spelled_as_in_the_texts() -> None:
    data = text.from_texts(["Warum is a word"] * 20 + ["Is it a word?"] * 20, [0, 1] * 20, tokenizer="words")
    spelling = load_spelling(data)
    assert spelling is not None
    assert spelling(text.hash_word("warum")) == "warum"
    assert 'the word "warum"' in find_words(data.train, spelling).names


@pytest.mark.parametrize(
    ("pieces", "decoded"),
    [
        (["[CLS]", "un", "##believ", "##able", "film", "[SEP]", "[PAD]"], "unbelievable film"),
        (["[CLS]", "a", "cat", "[SEP]", "no", "cat", "[SEP]"], "a cat / no cat"),
        (["<s>", "The", "\u0120un", "believ", "able", "</s>"], "The unbelievable"),
        (["\u2581so", "\u2581it", "\u2581is", "nt"], "so it isnt"),
    ],
)
def test_a_text_is_decoded_from_its_pieces(pieces: list[str], decoded: str) -> None:
    ids = torch.arange(len(pieces))[None]
    split = Split({"input_ids": ids}, torch.zeros(1, dtype=torch.long), torch.full((1,), -1), GROUPS)
    assert decode_text(split, 0, lambda token: pieces[token]) == decoded
    masked = replace(split, x={"input_ids": ids, "attention_mask": torch.zeros_like(ids)})
    assert decode_text(masked, 0, lambda token: pieces[token]) == ""
