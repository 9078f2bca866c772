"""Words: the same number on every machine, laid out as BERT does."""

from spurless.data.words import END, START, VOCABULARY, encode, number


def test_a_word_has_one_number_whatever_its_letters_and_its_place() -> None:
    (ids, types), (again, _) = encode(["No, never NO!", "never"], None, 16)
    assert ids == [START, number("no"), number(","), number("never"), number("no"), number("!"), END]
    assert types == [0] * 7
    assert again == [START, number("never"), END]


def test_the_numbers_are_fixed_and_leave_room_for_the_marks() -> None:
    assert number("cat") == 3 + 0x9E5E43A8 % (VOCABULARY - 3)  # the CRC-32 of "cat"
    numbers = [number(str(i)) for i in range(20_000)]
    assert min(numbers) > END
    assert max(numbers) < VOCABULARY
    assert len(set(numbers)) > 14_000  # what chance leaves of 20,000 in 32,765: 14,973


def test_an_apostrophe_stays_inside_its_word() -> None:
    ((ids, _),) = encode(["isn't 'so'"], None, 16)
    assert ids == [START, number("isn't"), number("'"), number("so"), number("'"), END]


def test_the_longer_part_of_a_pair_is_cut_first() -> None:
    ((ids, types),) = encode(["a b c d e f"], ["x y"], 8)
    assert ids == [START, number("a"), number("b"), number("c"), END, number("x"), number("y"), END]
    assert types == [0, 0, 0, 0, 0, 1, 1, 1]
    ((ids, _),) = encode(["a b c d e f"], None, 5)
    assert ids == [START, number("a"), number("b"), number("c"), END]


def test_an_empty_text_is_its_marks() -> None:
    assert next(encode([""], None, 8)) == ([START, END], [0, 0])
    assert next(encode([""], [""], 8)) == ([START, END, END], [0, 0, 1])
