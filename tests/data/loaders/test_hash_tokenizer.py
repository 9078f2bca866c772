"""Words: the same number on every machine, laid out as BERT does."""

from spurless.data.loaders.text import END, HASH_VOCABULARY, START, encode_hashed, hash_word


def test_a_word_has_one_number_whatever_its_letters_and_its_place() -> None:
    (ids, types), (again, _) = encode_hashed(["No, never NO!", "never"], None, 16)
    assert ids == [START, hash_word("no"), hash_word(","), hash_word("never"), hash_word("no"), hash_word("!"), END]
    assert types == [0] * 7
    assert again == [START, hash_word("never"), END]


def test_the_numbers_are_fixed_and_leave_room_for_the_marks() -> None:
    assert hash_word("cat") == 3 + 0x9E5E43A8 % (HASH_VOCABULARY - 3)  # the CRC-32 of "cat"
    numbers = [hash_word(str(i)) for i in range(20_000)]
    assert min(numbers) > END
    assert max(numbers) < HASH_VOCABULARY
    assert len(set(numbers)) > 14_000  # what chance leaves of 20,000 in 32,765: 14,973


def test_an_apostrophe_stays_inside_its_word() -> None:
    ((ids, _),) = encode_hashed(["isn't 'so'"], None, 16)
    assert ids == [START, hash_word("isn't"), hash_word("'"), hash_word("so"), hash_word("'"), END]


def test_the_longer_part_of_a_pair_is_cut_first() -> None:
    ((ids, types),) = encode_hashed(["a b c d e f"], ["x y"], 8)
    assert ids == [START, hash_word("a"), hash_word("b"), hash_word("c"), END, hash_word("x"), hash_word("y"), END]
    assert types == [0, 0, 0, 0, 0, 1, 1, 1]
    ((ids, _),) = encode_hashed(["a b c d e f"], None, 5)
    assert ids == [START, hash_word("a"), hash_word("b"), hash_word("c"), END]


def test_an_empty_text_is_its_marks() -> None:
    assert next(encode_hashed([""], None, 8)) == ([START, END], [0, 0])
    assert next(encode_hashed([""], [""], 8)) == ([START, END, END], [0, 0, 1])
