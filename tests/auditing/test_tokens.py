"""Tokens: the word that a model leans on is named, alone or by its list, in the right text of a pair."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from spurless.auditing._context import AuditContext
from spurless.auditing.tokens import audit_tokens
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split
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


def test_pieces_are_named_as_the_word_that_they_spell() -> None:
    """The same texts with "cat" in two pieces, ``war ##um``, are audited alike, and the whole word is named."""
    context = subject_of(3.0, word="cat")
    x: dict[str, Tensor] = context.split.x  # type: ignore[assignment]
    n, width = x["input_ids"].shape
    pieces = [*VOCABULARY, "war", "##um"]
    rows = []
    for row in x["input_ids"].tolist():
        split = [piece for token in row for piece in ((12, 13) if token == WORD["cat"] else (token,))]
        rows.append([piece for piece in split if piece] + [0] * (width + 1 - sum(piece > 0 for piece in split)))
    ids = torch.tensor(rows)
    texts = replace(context.split, x={"input_ids": ids, "attention_mask": (ids > 0).int()})
    found = audit_tokens(replace(context, split=texts, spelling=lambda token: pieces[token]))
    whole = audit_tokens(replace(context, spelling=spell))
    assert (found.shortcut, whole.shortcut) == ('the word "warum"', 'the word "cat"')
    assert (found.severity, found.p) == (whole.severity, whole.p)
    assert len(ids) == n
    assert "##" not in found.because + found.title + found.items[0].caption


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
