"""Exchanged words: every case by hand on a few tokens, and random texts against a loop over lists."""

import pytest
import torch
from torch import Tensor

from spurless.data.word_exchange import LengthExchange, SpanExchange, WordExchange, list_exchanges
from spurless.data.words import Vocabulary, Word, build_vocabulary, lay_out, locate_word

PIECES = ("[PAD]", "[CLS]", "[SEP]", "a", "b", "c", "d", "no", "not", "war", "##um")
ID = {piece: token for token, piece in enumerate(PIECES)}
Texts = dict[str, Tensor]


def texts_of(*rows: str, width: int = 0, second: bool = False) -> Texts:
    """Texts of pieces; ``|`` is the separator between two texts, which is the end of the first."""
    pieces = [row.replace("|", "[SEP]").split() for row in rows]
    width = max(width, *map(len, pieces))
    x = {"input_ids": torch.tensor([[ID[p] for p in row] + [0] * (width - len(row)) for row in pieces])}
    x["attention_mask"] = (x["input_ids"] > 0).int()
    if second:
        starts = torch.tensor([row.split().index("|") + 1 for row in rows])
        x["token_type_ids"] = (torch.arange(width) >= starts[:, None]).int() * x["attention_mask"]
    return x


def vocabulary_of(x: Texts) -> Vocabulary:
    return build_vocabulary(x, lambda token: PIECES[token])


def word_of(x: Texts, *words: str, side: int | None = None, is_list: bool = False) -> WordExchange:
    sequences = tuple(tuple(ID[piece] for piece in word.split()) for word in words)
    return WordExchange(Word("a word", sequences, vocabulary_of(x), side, is_list))


def exchange(receiver: str, donor: str, *words: str, is_list: bool = False, width: int = 0) -> str:
    """Return the text after one exchange, and check that its mask covers exactly its tokens."""
    both = texts_of(receiver, donor, width=width)
    x, donors = ({key: part[rows] for key, part in both.items()} for rows in (slice(0, 1), slice(1, 2)))
    result = word_of(both, *words, is_list=is_list)(x, donors)
    assert result["input_ids"].shape == x["input_ids"].shape
    assert torch.equal(result["attention_mask"], (result["input_ids"] > 0).int())
    return read(result)


def read(x: Texts, row: int = 0) -> str:
    return " ".join(PIECES[token] for token in x["input_ids"][row].tolist() if token)


@pytest.mark.parametrize(
    ("receiver", "donor", "expected"),
    [
        ("[CLS] a no b no [SEP]", "[CLS] c d [SEP]", "[CLS] a b [SEP]"),  # all occurrences are deleted
        ("[CLS] a b [SEP] [PAD]", "[CLS] c no d [SEP]", "[CLS] a no b [SEP]"),  # inserted at the donor's position
        ("[CLS] a b [SEP] [PAD]", "[CLS] c d a no [SEP]", "[CLS] a b no [SEP]"),  # not behind the last separator
        ("[CLS] a b [SEP] [PAD]", "[CLS] no d no [SEP]", "[CLS] no a b [SEP]"),  # the first occurrence, behind [CLS]
        ("[CLS] a no [SEP]", "[CLS] no b [SEP]", "[CLS] a no [SEP]"),  # both have it
        ("[CLS] a b [SEP]", "[CLS] c d [SEP]", "[CLS] a b [SEP]"),  # neither has it
        ("[CLS] a b c d [SEP]", "[CLS] no [SEP]", "[CLS] no a b c [SEP]"),  # a full row loses its last word
        ("[CLS] [SEP] [PAD]", "[CLS] no [SEP]", "[CLS] no [SEP]"),  # an empty text
        ("[CLS] [SEP]", "[CLS] no", "[CLS] [SEP]"),  # there are no tokens to drop
        ("a b c", "no d c", "no a b"),  # no special tokens
        ("a b c", "c d no", "a b no"),
    ],
)
def test_a_word_is_deleted_or_inserted(receiver: str, donor: str, expected: str) -> None:
    assert exchange(receiver, donor, "no") == expected


@pytest.mark.parametrize(
    ("receiver", "donor", "expected"),
    [
        ("[CLS] a war ##um b war [SEP]", "[CLS] war b [SEP]", "[CLS] a b war [SEP]"),  # "war" is another word
        ("[CLS] a b [SEP] [PAD] [PAD]", "[CLS] c war ##um [SEP]", "[CLS] a war ##um b [SEP]"),
        (
            "[CLS] a ##um b [SEP] [PAD] [PAD]",
            "[CLS] c war ##um [SEP]",
            "[CLS] war ##um a ##um b [SEP]",
        ),  # not in a word
        ("[CLS] a b c [SEP]", "[CLS] c war ##um [SEP]", "[CLS] a war ##um [SEP]"),  # space for both pieces
    ],
)
def test_pieces_of_a_word_stay_together(receiver: str, donor: str, expected: str) -> None:
    assert exchange(receiver, donor, "war ##um") == expected


def test_of_a_list_all_words_are_deleted_and_all_words_of_the_donor_are_inserted() -> None:
    words = {"is_list": True, "width": 9}
    assert exchange("[CLS] no a not b no [SEP]", "[CLS] c [SEP]", "no", "not", **words) == "[CLS] a b [SEP]"  # type: ignore[arg-type]
    inserted = exchange("[CLS] a b [SEP]", "[CLS] c not no d no [SEP]", "no", "not", **words)  # type: ignore[arg-type]
    assert inserted == "[CLS] a not no b no [SEP]"
    assert exchange("[CLS] a no [SEP]", "[CLS] not [SEP]", "no", "not", **words) == "[CLS] a no [SEP]"  # type: ignore[arg-type]


def test_words_of_one_text_of_a_pair_stay_in_that_text() -> None:
    both = texts_of("[CLS] a b | c d [SEP]", "[CLS] no | a no [SEP]", "[CLS] a no | no c [SEP]", width=9, second=True)
    x = {key: part[[0, 2, 2]] for key, part in both.items()}
    donors = {key: part[[1, 0, 1]] for key, part in both.items()}
    result = word_of(both, "no", side=1)(x, donors)
    assert read(result, 0) == "[CLS] a b [SEP] c no d [SEP]"  # at its position in the second text
    assert result["token_type_ids"][0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 0]
    assert read(result, 1) == "[CLS] a no [SEP] c [SEP]"
    assert result["token_type_ids"][1].tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0]
    assert read(result, 2) == "[CLS] a no [SEP] no c [SEP]"
    for key in both:
        assert result[key].dtype == both[key].dtype


def test_a_text_without_a_second_text_does_not_get_a_word_of_it() -> None:
    both = texts_of("[CLS] a | no [SEP]", "[CLS] a b |", width=6, second=True)
    x, donors = ({key: part[rows] for key, part in both.items()} for rows in (slice(1, 2), slice(0, 1)))
    assert read(word_of(both, "no", side=1)(x, donors)) == "[CLS] a b [SEP]"


def test_other_tensors_move_along_and_the_inputs_stay_the_same() -> None:
    both = texts_of("[CLS] a b [SEP]", "[CLS] c no [SEP]", width=5)
    both["weights"] = torch.arange(10.0).view(2, 5)
    both["length"] = torch.tensor([2, 2])
    before = {key: part.clone() for key, part in both.items()}
    x, donors = ({key: part[rows] for key, part in both.items()} for rows in ([0, 1], [1, 0]))
    result = word_of(both, "no")(x, donors)
    assert result["weights"].tolist() == [[0.0, 1.0, 7.0, 2.0, 3.0], [5.0, 6.0, 8.0, 9.0, 0.0]]
    assert result["length"].tolist() == [2, 2]
    assert all(torch.equal(both[key], before[key]) for key in both)


def test_padding_on_the_left_makes_space_too() -> None:
    ids = torch.tensor([[0, 0, ID["a"], ID["b"]], [0, ID["c"], ID["no"], ID["d"]]])
    both = {"input_ids": ids, "attention_mask": (ids > 0).int()}
    x, donors = ({key: part[rows] for key, part in both.items()} for rows in ([0], [1]))
    result = word_of(both, "no")(x, donors)
    assert result["input_ids"].tolist() == [[0, ID["a"], ID["no"], ID["b"]]]
    assert result["attention_mask"].tolist() == [[0, 1, 1, 1]]


def test_random_texts_are_changed_as_by_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    width, letters, word = 8, [ID[name] for name in "abcd"], ID["no"]
    rows = []
    for _ in range(600):
        n = int(torch.randint(0, width - 1, (1,), generator=generator))
        draw = torch.randint(0, 6, (n,), generator=generator).tolist()
        rows.append([ID["[CLS]"], *(word if k >= 4 and n % 2 else letters[k % 4] for k in draw), ID["[SEP]"]])
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    x = {"input_ids": ids, "attention_mask": (ids > 0).int()}
    order = torch.randperm(600, generator=generator)
    donors = {key: part[order] for key, part in x.items()}
    result = word_of(x, "no")(x, donors)
    expected = [loop(row, rows[j], word, width) for row, j in zip(rows, order.tolist(), strict=True)]
    assert result["input_ids"].tolist() == expected
    has, donor_has = ((part["input_ids"] == word).any(dim=1) for part in (result, donors))
    fits = (x["input_ids"] > 2).any(dim=1) | (x["attention_mask"].sum(dim=1) < width)
    assert torch.equal(has[fits], donor_has[fits])
    assert bool((has != (ids == word).any(dim=1)).any())


def loop(row: list[int], donor: list[int], word: int, width: int) -> list[int]:
    row = list(row)
    if word in row and word not in donor:
        row = [token for token in row if token != word]
    elif word in donor and word not in row:
        at = min(donor.index(word), len(row) - 1)
        while len(row) == width:
            del row[-2]
            at = min(at, len(row) - 1)
        row.insert(at, word)
    return row + [0] * (width - len(row))


def test_the_first_and_the_last_words_are_exchanged() -> None:
    both = texts_of("[CLS] a b c d a b [SEP]", "[CLS] war ##um no not d c d [SEP]", width=11)
    x, donors = ({key: part[rows] for key, part in both.items()} for rows in ([0, 1], [1, 0]))
    vocabulary = vocabulary_of(both)
    start, end = (SpanExchange(where, vocabulary)(x, donors) for where in ("start", "end"))
    assert (read(start, 0), read(start, 1)) == (
        "[CLS] war ##um no c d a b [SEP]",
        "[CLS] a b not d c d [SEP]",
    )
    assert (read(end, 0), read(end, 1)) == ("[CLS] a b c d c d [SEP]", "[CLS] war ##um no not d a b [SEP]")
    assert torch.equal(start["attention_mask"], (start["input_ids"] > 0).int())


def test_the_words_of_the_second_text_are_exchanged_there() -> None:
    both = texts_of("[CLS] a b | c d a [SEP]", "[CLS] c | no not b [SEP]", width=8, second=True)
    x, donors = ({key: part[rows] for key, part in both.items()} for rows in ([0], [1]))
    result = SpanExchange("start", vocabulary_of(both), 1)(x, donors)
    assert read(result) == "[CLS] a b [SEP] no not a [SEP]"
    assert result["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]


def test_equal_words_at_an_end_have_equal_codes() -> None:
    x = texts_of("[CLS] a b c [SEP]", "[CLS] a b d [SEP]", "[CLS] b a c [SEP]", "[CLS] a war ##um c [SEP]")
    layout = lay_out(x, vocabulary_of(x))
    codes = SpanExchange("start", vocabulary_of(x)).encode(layout).tolist()
    assert codes[0] == codes[1]
    assert len(set(codes)) == 3
    assert len(set(SpanExchange("end", vocabulary_of(x)).encode(layout).tolist())) == 4
    assert word_of(x, "war ##um").encode(layout).tolist() == [0, 0, 0, 1]
    assert int(locate_word(layout, word_of(x, "war").word).sum()) == 0


def test_ends_are_exchanged_only_in_texts_of_six_words() -> None:
    long, short = texts_of("[CLS] a b c d a ##um b [SEP]"), texts_of("[CLS] a b c d a ##um [SEP]")
    assert [span.name for span in list_exchanges(long, vocabulary_of(long))] == [
        "the first two words",
        "the last two words",
    ]
    assert list_exchanges(short, vocabulary_of(short)) == ()
    pair = texts_of("[CLS] a b c | a b c d a b [SEP]", second=True)
    names = [span.name for span in list_exchanges(pair, vocabulary_of(pair))]
    assert names == ["the first two words in the second text", "the last two words in the second text"]


def give_length(receiver: str, donor: str, width: int) -> str:
    both = texts_of(receiver, donor, width=width)
    x, donors = ({key: part[rows] for key, part in both.items()} for rows in ([0], [1]))
    result = LengthExchange(vocabulary_of(both))(x, donors)
    assert torch.equal(result["attention_mask"], (result["input_ids"] > 0).int())
    return read(result)


@pytest.mark.parametrize(
    ("receiver", "donor", "expected"),
    [
        ("[CLS] a b c d [SEP]", "[CLS] no no [SEP]", "[CLS] a b [SEP]"),  # the last words are deleted
        ("[CLS] a war ##um d [SEP]", "[CLS] no no [SEP]", "[CLS] a war ##um [SEP]"),  # pieces of a word stay together
        ("[CLS] a b c [SEP]", "[CLS] no no no no [SEP]", "[CLS] a b c a [SEP]"),  # the first words are repeated
        ("[CLS] a b [SEP]", "[CLS] no no no no no no no [SEP]", "[CLS] a b a b a b a [SEP]"),
        ("[CLS] a [SEP]", "[CLS] no no no no no no no no no no [SEP]", "[CLS] a a a a a a a a [SEP]"),  # eight times
        ("[CLS] a b c [SEP]", "[CLS] no no no [SEP]", "[CLS] a b c [SEP]"),
        ("[CLS] a b [SEP]", "[CLS] [SEP]", "[CLS] a [SEP]"),
    ],
)
def test_a_text_gets_the_number_of_words_of_the_donor(receiver: str, donor: str, expected: str) -> None:
    assert give_length(receiver, donor, 12) == expected


def test_a_text_is_repeated_only_as_far_as_there_is_space() -> None:
    assert give_length("[CLS] a b c [SEP]", "d d d d d d d", 7) == "[CLS] a b c a b [SEP]"


def test_lengths_are_coded_by_ranges_of_equal_size() -> None:
    x = texts_of(*("[CLS] " + "a " * n + "[SEP]" for n in range(1, 9)))
    assert LengthExchange(vocabulary_of(x)).encode(lay_out(x, vocabulary_of(x))).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_lengths_are_exchanged_in_single_texts_only() -> None:
    texts, pairs = texts_of("[CLS] a b", "[CLS] a"), texts_of("[CLS] a b | c", "[CLS] a | c", second=True)
    assert [e.name for e in list_exchanges(texts, vocabulary_of(texts))] == ["the length of the text"]
    assert list_exchanges(pairs, vocabulary_of(pairs)) == ()
    same = texts_of("[CLS] a b", "[CLS] b a")
    assert list_exchanges(same, vocabulary_of(same)) == ()
