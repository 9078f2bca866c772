r"""Tokens: does the model rely on a word, such as a negation or the name of a group of people?

The words are those of lists (negation, identity terms), each list as one and each of its words alone, and the most
frequent words of the split. In pairs of texts, a word in the first and the same word in the second text are two words.
The statistic is the largest :math:`z` of :mod:`spurless.auditing._overreliance` over all words that are associated with
predictions. Null hypothesis: labels are sampled from the calibrated probabilities. Severity: :math:`V(\text{word}, \hat
y) - V(\text{word}, y)`, the association of the word with predictions minus that with labels, at least 0.

Limits: it does not detect words that mislead only in combination. A rare word has a small severity however much it
misleads. If the spelling of tokens is unknown, they are named by number and lists are not tested.

Gururangan et al., "Annotation Artifacts in Natural Language Inference Data", NAACL 2018, arXiv:1803.02324; Gardner et
al., "Competency Problems: On Finding and Removing Artifacts in Language Data", EMNLP 2021, arXiv:2104.08646; for
identity terms, Dixon et al., "Measuring and Mitigating Unintended Bias in Text Classification", AIES 2018.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spurless.auditing._context import AuditContext, TokenSpelling, make_finding, not_tested
from spurless.auditing._overreliance import find_overreliance, plot_bins, plot_ranking, why_not_testable
from spurless.core.errors import SpurlessError
from spurless.core.findings import Finding
from spurless.core.hf_files import import_transformers, open_pretrained
from spurless.data.loaders.text import HASH_TOKENIZER, hash_word
from spurless.data.split import Split, Splits

NAME = "tokens"
QUESTION = "Does the model rely on a word, such as a negation or the name of a group of people?"
MIN_EFFECT = 0.25  # smallest severity that is flagged; as for image properties, p alone is small for many models
MAX_WORDS = 300  # most frequent words that are tested, in addition to the lists
MIN_TEXTS = 10  # texts with a word, and texts without it, for it to be tested
MIN_FRACTION = 0.005  # the same as a fraction of the split
MAX_TEXTS, MAX_TEXT_LENGTH = 3, 240  # texts that are quoted, and characters of each
SPACE_MARKS = ("\u0120", "\u2581")  # what tokenizers put before a word that begins after a space
END_TOKENS, IGNORED_TOKENS = ("[SEP]", "</s>"), ("[CLS]", "[PAD]", "<s>", "<pad>")
SIDES = (" in the first text", " in the second text")

NEGATION = ("no", "not", "never", "nobody", "nothing", "none", "nor", "neither", "nowhere", "without", "cannot", "n't")
IDENTITY = (
    "man", "men", "woman", "women", "male", "female", "gay", "lesbian", "homosexual", "transgender", "straight",
    "black", "white", "asian", "latino", "african", "american", "mexican", "muslim", "christian", "jewish", "jews",
    "islam", "catholic", "buddhist", "atheist", "immigrant", "immigrants", "old", "young", "deaf", "blind", "disabled",
)  # fmt: skip
WORD_LISTS: Mapping[str, tuple[str, ...]] = {"a negation": NEGATION, "an identity term": IDENTITY}


@dataclass(frozen=True, eq=False)
class WordPresence:
    """Which texts contain which words."""

    names: tuple[str, ...]
    present: Tensor  # ``(N, words)``, 0 or 1
    token_ids: tuple[tuple[int, ...], ...]  # the tokens of each word, as ``2 * id``, plus 1 in a second text


def audit_tokens(context: AuditContext, word_lists: Mapping[str, Sequence[str]] = WORD_LISTS) -> Finding:
    """Return the word with the largest over-reliance; without a spelling of tokens, words are named by number."""
    spelling = context.spelling
    reason = why_not_testable(context)
    if not isinstance(context.split.x, dict) or "input_ids" not in context.split.x:
        reason = "these examples are not texts"
    if reason is not None:
        return not_tested(NAME, f"Not tested: {reason}.")
    words = find_words(context.split, spelling, word_lists)
    if not words.names:
        return not_tested(NAME, "Not tested: no word is in some of the texts and not in others.")
    result = find_overreliance(context, words.present, NAME)
    if result is None:
        return not_tested(NAME, "Not tested: no word is associated with predictions.")
    name = words.names[result.best]
    flagged = result.p <= context.level and result.gap >= MIN_EFFECT
    present, label = words.present[:, result.best], context.split.groups.labels[result.label]
    where = "with" if result.bin else "without"
    rows = result.find_errors(context)
    figure = plot_bins(context, result, present, ["without", "with"], name)
    if rows and spelling is not None:
        figure = replace(figure, caption=f"{figure.caption} {_quote_errors(context, rows[:MAX_TEXTS], spelling)}")
    return make_finding(
        NAME,
        (result.p, result.gap, flagged),
        f"The model relies on {name}: it predicts {label} {where} it",
        "No word explains the errors",
        f"{int(present.sum())} of {len(context)} texts have {name}. "
        + result.describe(context, present, f"{where.capitalize()} {name}"),
        f"Add texts with {name} and other labels, or repair the model: neurontune without attributes, dfr or "
        "group-dro with the word as the attribute.",
        shortcut=name if flagged else None,
        numbers=result.numbers(len(words.names)),
        rows=rows,
        items=(figure, plot_ranking(result, words.names, "words")),
    )


def load_spelling(splits: Splits) -> TokenSpelling | None:
    """Return the spelling of the tokens of a dataset; None if its tokenizer is unknown or not available.

    Words that were numbered by a hash cannot be decoded, except for those of ``WORD_LISTS``.
    """
    from spurless.data import DATASETS

    words = DATASETS[splits.name].vocabulary if splits.name in DATASETS else ()
    if words:
        return lambda token: words[token] if token < len(words) else _name_token(token)
    name = splits.options.get("tokenizer")
    if not isinstance(name, str):
        return None
    if name == HASH_TOKENIZER:
        known = {hash_word(word): word for words in WORD_LISTS.values() for word in words}
        return lambda token: known.get(token, _name_token(token))
    try:
        tokenizer = open_pretrained(import_transformers("Text").AutoTokenizer.from_pretrained, name, "tokenizer")
    except SpurlessError:
        return None
    return lambda token: str(tokenizer.convert_ids_to_tokens(token))


def decode_text(split: Split, row: int, spelling: TokenSpelling) -> str:
    """Return the text of an example from its tokens, with a slash between two texts."""
    x: dict[str, Tensor] = split.x  # type: ignore[assignment]  # text
    ids = x["input_ids"][row].cpu()
    mask = x["attention_mask"][row].cpu().bool() if "attention_mask" in x else torch.ones_like(ids, dtype=torch.bool)
    pieces = [spelling(int(token)) for token in ids[mask]]
    marks_spaces = any(piece.startswith(SPACE_MARKS) for piece in pieces)
    text = ""
    for piece in pieces:
        if piece in END_TOKENS:
            text += " /" if text else ""
        elif piece not in IGNORED_TOKENS:
            continues = piece.startswith("##") or (marks_spaces and not piece.startswith(SPACE_MARKS))
            text += ("" if continues else " ") + piece.removeprefix("##").lstrip("".join(SPACE_MARKS))
    return text.removesuffix(" /").strip()


def find_words(
    split: Split, spelling: TokenSpelling | None = None, word_lists: Mapping[str, Sequence[str]] = WORD_LISTS
) -> WordPresence:
    """Return which texts contain which words: the lists, then the words of the lists, then the most frequent words."""
    token_ids, counts, rows = _find_occurrences(split)
    sides = SIDES if bool((token_ids % 2).any()) else ("",)
    words = ["" if spelling is None else _normalise(spelling(token // 2)) for token in token_ids.tolist()]
    listed = {word for word_list in word_lists.values() for word in word_list}
    candidates: list[tuple[str, list[int]]] = []
    for name, word_list in word_lists.items():
        for number, side in enumerate(sides):
            columns = [j for j, word in enumerate(words) if word in word_list and int(token_ids[j]) % 2 == number]
            candidates += [(f"{name}{side}", columns)] if len(columns) > 1 else []
    order = sorted(range(len(token_ids)), key=lambda j: (words[j] not in listed, -int(counts[j]), j))
    for j in order[: MAX_WORDS + sum(word in listed for word in words)]:
        token_name = _name_token(int(token_ids[j]) // 2)
        name = token_name if words[j] in ("", token_name) else f'the word "{words[j]}"'
        candidates.append((f"{name}{sides[int(token_ids[j]) % 2]}", [j]))
    return _select_words(candidates, token_ids, rows, len(split))


def mark_texts(split: Split, token_ids: Sequence[int]) -> Tensor:
    """Return which texts contain one of the tokens, ``(N,)``, 0 or 1; see ``WordPresence.token_ids``."""
    present, _, rows = _find_occurrences(split)
    return _mark_rows([rows[j] for j, token in enumerate(present.tolist()) if token in token_ids], len(split))


def _find_occurrences(split: Split) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return every token as ``2 * id`` (plus 1 in a second text), in how many texts it occurs, and in which."""
    x: dict[str, Tensor] = {key: value.cpu().long() for key, value in split.x.items()}  # type: ignore[union-attr]
    ids = x["input_ids"]
    mask = x.get("attention_mask", torch.ones_like(ids)).bool()
    tokens = (2 * ids + x.get("token_type_ids", torch.zeros_like(ids)).clamp(0, 1))[mask]
    token_ids, which = torch.unique(tokens, return_inverse=True)
    once = torch.unique(which * len(split) + mask.nonzero()[:, 0])  # a word counts once per text
    counts = torch.bincount(once // len(split), minlength=len(token_ids))
    return token_ids, counts, torch.split(once % len(split), counts.tolist())


def _select_words(
    candidates: list[tuple[str, list[int]]], token_ids: Tensor, rows: tuple[Tensor, ...], n: int
) -> WordPresence:
    """Keep the words that are in enough texts and missing in enough texts."""
    required = max(MIN_TEXTS, round(MIN_FRACTION * n))
    names, columns, tokens = [], [], []
    for name, indices in candidates:
        present = _mark_rows([rows[j] for j in indices], n)
        if required <= int(present.sum()) <= n - required:
            names.append(name)
            columns.append(present)
            tokens.append(tuple(token_ids[indices].tolist()))
    matrix = torch.stack(columns, dim=1) if columns else torch.zeros(n, 0, dtype=torch.long)
    return WordPresence(tuple(names), matrix, tuple(tokens))


def _mark_rows(rows: Sequence[Tensor], n: int) -> Tensor:
    none = torch.zeros(n, dtype=torch.long)
    return none.index_fill(0, torch.cat(list(rows)), 1) if rows else none


def _quote_errors(context: AuditContext, rows: Sequence[int], spelling: TokenSpelling) -> str:
    labels, quotes = context.split.groups.labels, []
    for row in rows:
        text = decode_text(context.split, row, spelling)
        text = text if len(text) <= MAX_TEXT_LENGTH else f"{text[:MAX_TEXT_LENGTH]} ..."
        label, predicted = labels[int(context.y[row])], labels[int(context.predicted[row])]
        quotes.append(f'{row}, label {label}, predicted {predicted}: "{text}"')
    return f"Errors: {'; '.join(quotes)}."


def _normalise(word: str) -> str:
    return word.lstrip("".join(SPACE_MARKS)).lower()


def _name_token(token: int) -> str:
    return f"token {token}"
