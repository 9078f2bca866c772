"""Tokens: the word that a model leans on is named, alone or by its list, in the right text of a pair."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from spurless.auditing._context import AuditContext
from spurless.auditing.tokens import NEGATION, audit_tokens, decode_text, find_words, load_spelling
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.datasets.negated_claims import NegatedClaimsConfig, negated_claims
from spurless.data.loaders import text as words
from spurless.data.split import Split, Splits
from spurless.models.classifier import Classifier

GROUPS = Groups(("no", "yes"))
VOCABULARY = ("[pad]", "[cls]", "the", "film", "never", "nobody", "good", "bad", "gay", "cat", "dog", "sun")
WORD = {word: number for number, word in enumerate(VOCABULARY)}


def spell(number: int) -> str:
    return VOCABULARY[number]


def texts_of(rows: list[list[str]], y: Tensor | None = None, second: list[int] | None = None) -> Split:
    """Texts of words; ``second`` says where the second text of each begins."""
    length = max(map(len, rows))
    ids = torch.tensor([[WORD[word] for word in row] + [0] * (length - len(row)) for row in rows], dtype=torch.int32)
    x = {"input_ids": ids, "attention_mask": (ids > 0).int()}
    if second is not None:
        x["token_type_ids"] = (torch.arange(length) >= torch.tensor(second)[:, None]).int() * (ids > 0)
    y = torch.zeros(len(rows), dtype=torch.long) if y is None else y
    return Split(x, y, torch.full_like(y, -1), GROUPS)


def subject_of(trust: float, n: int = 400, seed: int = 0, word: str = "never") -> AuditContext:
    """A model that reads honest evidence, which no word shows, and by ``trust`` one word."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(n):
        others = [w for w in VOCABULARY[2:] if float(torch.rand(1, generator=generator)) < 0.4]
        rows.append(["[cls]", *others])
    has = torch.tensor([word in row for row in rows]).float()
    honest = 2 * torch.randn(n, generator=generator)
    y = (torch.rand(n, generator=generator) < honest.sigmoid()).long()
    logits = torch.stack([torch.zeros(n), honest + trust * (2 * has - 1)], dim=1)
    model = Classifier(nn.Identity(), nn.Linear(2, 2))
    return AuditContext(model, texts_of(rows, y), logits, logits, seeds=Seeds(seed), permutations=99)


def test_the_word_is_named_and_its_mistakes_are_shown() -> None:
    context = subject_of(3.0, word="cat")
    found = audit_tokens(replace(context, spelling=spell))
    assert found.flagged
    assert found.shortcut == 'the word "cat"'
    assert 'relies on the word "cat"' in found.title
    ids = context.split.x["input_ids"]  # type: ignore[index]
    has = (ids == WORD["cat"]).any(dim=1)
    assert all(bool(context.incorrect[row]) and bool(has[row]) == bool(context.predicted[row]) for row in found.rows)
    assert f"{int(has.sum())} of 400 texts have the word" in found.because
    assert "Errors: " in found.items[0].caption
    assert "[cls]" in found.items[0].caption


def test_without_spelling_a_word_is_told_by_number() -> None:
    assert audit_tokens(subject_of(3.0, word="cat")).shortcut == f"token {WORD['cat']}"


def test_words_of_a_list_are_looked_for_together() -> None:
    """The model reads either negation; the list as one goes with what it says more than each word."""
    context = subject_of(0.0)
    ids = context.split.x["input_ids"]  # type: ignore[index]
    negated = ((ids == WORD["never"]) | (ids == WORD["nobody"])).any(dim=1).float()
    logits = context.logits + torch.stack([torch.zeros(400), 3 * (2 * negated - 1)], dim=1)
    found = audit_tokens(replace(context, logits=logits, spelling=spell))
    assert found.shortcut == "a negation"
    assert found.flagged
    other = audit_tokens(replace(context, logits=logits, spelling=spell), {"a word of mine": ("nobody", "never")})
    assert other.shortcut == "a word of mine"


def test_a_calibrated_model_is_left_alone() -> None:
    flags = sum(audit_tokens(replace(subject_of(0.0, n=150, seed=seed), spelling=spell)).flagged for seed in range(40))
    assert flags <= 2


def test_words_are_counted_once_in_each_text() -> None:
    rows = [["the", "never", "never"]] * 12 + [["the", "cat"]] * 30
    found = find_words(texts_of(rows), spell)
    assert found.names == ('the word "never"', 'the word "cat"')  # "the" is everywhere
    assert found.present.sum(dim=0).tolist() == [12, 30]


def test_the_two_texts_of_a_pair_are_apart() -> None:
    rows = [["never", "cat", "dog"]] * 20 + [["cat", "never", "dog"]] * 15 + [["sun", "good", "dog"]] * 15
    found = find_words(texts_of(rows, second=[1] * 50), spell)
    table = dict(zip(found.names, found.present.sum(dim=0).tolist(), strict=True))
    assert table['the word "never" in the first text'] == 20
    assert table['the word "never" in the second text'] == 15
    assert table['the word "cat" in the second text'] == 20
    assert not any(name.startswith("a negation") for name in found.names)  # one word is no list
    rows += [["nobody", "cat", "dog"]] * 5 + [["cat", "nobody", "dog"]] * 5
    both = find_words(texts_of(rows, second=[1] * 60), spell)
    lists = dict(zip(both.names, both.present.sum(dim=0).tolist(), strict=True))
    assert lists["a negation in the first text"] == 25
    assert lists["a negation in the second text"] == 20
    assert not any("dog" in name for name in found.names)


def test_rare_words_are_left_out_and_padding_is_no_word() -> None:
    rows = [["the", "cat"]] * 9 + [["the", "dog", "sun"]] * 40
    assert find_words(texts_of(rows), spell).names == ()
    rows = [["the", "cat"]] * 10 + [["the", "dog", "sun"]] * 40
    assert find_words(texts_of(rows), spell).names == ('the word "dog"', 'the word "sun"', 'the word "cat"')


def test_spelling_of_a_dataset_of_its_own_vocabulary() -> None:
    data = negated_claims(NegatedClaimsConfig(n_train=30, n_val=30, n_test=30))
    said = load_spelling(data)
    assert said is not None
    assert (said(2), said(5), said(9999)) == ("the", "fox", "token 9999")


def test_hashed_words_are_known_where_they_are_listed() -> None:
    empty = texts_of([["the"]])
    said = load_spelling(Splits(empty, empty, empty, options={"tokenizer": "words"}))
    assert said is not None
    assert said(words.hash_word("never")) == "never"
    assert "never" in NEGATION
    hashed = Split(
        {"input_ids": torch.tensor([[words.hash_word("never")]] * 12 + [[777]] * 12)}, *(torch.zeros(24),) * 2, GROUPS
    )
    assert find_words(hashed, said).names == ('the word "never"', "token 777")
    assert said(words.hash_word("xylophone")) == f"token {words.hash_word('xylophone')}"
    assert load_spelling(Splits(empty, empty, empty)) is None
    assert load_spelling(Splits(empty, empty, empty, options={"tokenizer": "/no/such/folder"})) is None


def test_what_cannot_be_answered_is_said() -> None:
    context = subject_of(3.0)
    rows = Split(torch.randn(400, 4), context.y, context.split.a, GROUPS)
    found = audit_tokens(replace(context, split=rows, spelling=spell))
    assert (found.p, found.flagged, found.because) == (None, False, "Not tested: these examples are not texts.")
    same = texts_of([["the", "cat"]] * 400, context.y)
    assert "no word is in some of the texts" in audit_tokens(replace(context, split=same, spelling=spell)).because
    assert "no word is associated with" in audit_tokens(replace(subject_of(0.0, n=2000), spelling=spell)).because
    sure = torch.nn.functional.one_hot(context.y, 2) * 9.0
    assert "0 errors" in audit_tokens(replace(context, logits=sure, spelling=spell)).because


@pytest.mark.parametrize("missing", ["attention_mask", "token_type_ids"])
def test_ids_alone_are_enough(missing: str) -> None:
    split = texts_of([["never", "cat"]] * 12 + [["sun", "cat"]] * 12, second=[1] * 24)
    x = {key: value for key, value in split.x.items() if key != missing}  # type: ignore[union-attr]
    names = find_words(replace(split, x=x), spell).names
    assert names[0] == 'the word "never"' + (" in the first text" if missing == "attention_mask" else "")


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["[CLS]", "un", "##believ", "##able", "film", "[SEP]", "[PAD]"], "unbelievable film"),
        (["[CLS]", "a", "cat", "[SEP]", "no", "cat", "[SEP]"], "a cat / no cat"),
        (["<s>", "The", "\u0120un", "believ", "able", "</s>"], "The unbelievable"),
        (["\u2581so", "\u2581it", "\u2581is", "nt"], "so it isnt"),
    ],
)
def test_a_text_is_read_back_from_its_pieces(pieces: list[str], text: str) -> None:
    ids = torch.arange(len(pieces))[None]
    split = Split({"input_ids": ids}, torch.zeros(1, dtype=torch.long), torch.full((1,), -1), Groups(("a", "b")))
    assert decode_text(split, 0, lambda number: pieces[number]) == text
    masked = replace(split, x={"input_ids": ids, "attention_mask": torch.zeros_like(ids)})
    assert decode_text(masked, 0, lambda number: pieces[number]) == ""
