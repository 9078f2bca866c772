r"""Tokens: does the model lean on a word, such as a negation or the name of a group of people?

The question: does the presence of a word go with what the model says more than with what is true? The words are those
of lists (negation, identity terms), each list as one and each of its words alone, and the most frequent words of the
split; in a pair of texts, a word of the first and a word of the second are two.

A word sorts texts into two bins, without it and with it. The statistic is the largest :math:`z` of
:mod:`spurless.auditing.leaning` over all words that go with what the model says.

Null hypothesis: labels are drawn as the model believes, once its confidence is corrected on these examples; the
largest :math:`z` is compared with the largest of every draw.

Severity: :math:`V(\text{word}, \hat y) - V(\text{word}, y)`, the association of the word with predictions less that
with labels, not below 0.

It cannot tell words that mislead together only, nor a word that is as true of the audited texts as of the training
data. A rare word has a small severity however much it misleads: a list of such words is looked for as one. Tokens
are what the tokenizer makes of words, and may be pieces of them; where nobody says how they are spelt, they are told
by their numbers, and the lists cannot be looked for.

Gururangan et al., "Annotation Artifacts in Natural Language Inference Data", NAACL 2018, arXiv:1803.02324; Gardner et
al., "Competency Problems: On Finding and Removing Artifacts in Language Data", EMNLP 2021, arXiv:2104.08646; for
identity terms, Dixon et al., "Measuring and Mitigating Unintended Bias in Text Classification", AIES 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from spurless.auditing.leaning import by_bin, clearest, lean, numbers, ranking, told, unanswerable
from spurless.auditing.subject import Subject, rows_first
from spurless.core.errors import SpurlessError
from spurless.core.findings import Finding
from spurless.core.pretrained import open_pretrained, transformers_for
from spurless.data import words as hashed
from spurless.data.grouped import Grouped, Splits

NAME = "tokens"
QUESTION = "Does the model lean on a word, such as a negation or the name of a group of people?"
FLOOR = 0.25
"""Severity of a finding, at least; as for properties of images, p alone is small for many a model."""
MOST = 300
"""Most frequent words that are looked at, beside the lists."""
LEAST_TEXTS = 10
"""Texts that must have a word, and texts that must not, for it to be looked at."""
LEAST_SHARE = 0.005
"""The same as a share of the split."""
SHOWN, LONG = 3, 240
"""texts that are written out, and letters of each"""
SPACE = ("\u0120", "\u2581")
"""What tokenizers put before a word that begins after a space."""
ENDS, SILENT = ("[SEP]", "</s>"), ("[CLS]", "[PAD]", "<s>", "<pad>")
SIDES = (" in the first text", " in the second text")

NEGATION = ("no", "not", "never", "nobody", "nothing", "none", "nor", "neither", "nowhere", "without", "cannot", "n't")
IDENTITY = (
    "man", "men", "woman", "women", "male", "female", "gay", "lesbian", "homosexual", "transgender", "straight",
    "black", "white", "asian", "latino", "african", "american", "mexican", "muslim", "christian", "jewish", "jews",
    "islam", "catholic", "buddhist", "atheist", "immigrant", "immigrants", "old", "young", "deaf", "blind", "disabled",
)  # fmt: skip
WATCHED: Mapping[str, tuple[str, ...]] = {"a negation": NEGATION, "an identity term": IDENTITY}
"""Lists of words that are looked for together and one by one, by what one calls such a word."""

Spell: TypeAlias = Callable[[int], str]
"""From the number of a token to the word or the piece of a word that it stands for."""


@dataclass(frozen=True, eq=False)
class Words:
    """Which texts have which words."""

    names: tuple[str, ...]
    present: Tensor
    """``(N, words)``, 0 or 1"""
    kinds: tuple[tuple[int, ...], ...]
    """the tokens that each stands for, each as twice its number, plus 1 in a second text"""


def audit_tokens(
    subject: Subject, spell: Spell | None = None, watched: Mapping[str, Sequence[str]] = WATCHED
) -> Finding:
    """Search the words of the texts for the one that the model leans on most.

    Args:
        subject: what is audited.
        spell: what a token stands for; see :func:`spelling`. Without it, words are told by number.
        watched: lists of words to look for, by what one calls such a word.
    """
    reason = unanswerable(subject)
    if not isinstance(subject.split.x, dict) or "input_ids" not in subject.split.x:
        reason = "these examples are no texts"
    if reason is not None:
        return _nothing(f"Not answered: {reason}.")
    found_words = words_of(subject.split, spell, watched)
    if not found_words.names:
        return _nothing("Not answered: no word is in some of the texts and not in others.")
    found = lean(subject, found_words.present, NAME)
    if found is None:
        return _nothing("Not answered: none of the words goes with what the model says.")
    name, severity = found_words.names[found.best], min(1.0, max(0.0, found.gap))
    flagged = found.p <= subject.level and severity >= FLOOR
    has, label = found_words.present[:, found.best], subject.split.groups.labels[found.label]
    where = "with" if found.bin else "without"
    rows = rows_first(clearest(subject, found), subject.wrong & (found.toward > 0))
    bars = by_bin(subject, found, has, ["without", "with"], name)
    if rows and spell is not None:
        bars = replace(bars, caption=f"{bars.caption} {_read_aloud(subject, rows[:SHOWN], spell)}")
    return Finding(
        NAME,
        f"The model leans on {name}: it says {label} {where} it" if flagged else "No word explains the mistakes",
        severity,
        flagged,
        found.p,
        f"{int(has.sum())} of {len(subject)} texts have {name}. "
        + told(subject, found, has, f"{where.capitalize()} {name}"),
        f"Add texts in which {name} goes with other labels, or repair the model: neurontune without attributes, dfr or "
        "group-dro with the word as the attribute."
        if flagged
        else "Nothing to do.",
        shortcut=name if flagged else None,
        numbers=numbers(found, len(found_words.names)),
        rows=rows,
        items=(bars, ranking(found, found_words.names, "words")),
    )


def spelling(splits: Splits) -> Spell | None:
    """Return what the tokens of a dataset stand for; None where its tokenizer is not known or not to be had.

    Words that were numbered by a hash cannot be read back, but those of ``WATCHED`` are known by their numbers.
    """
    from spurless.data import DATASETS

    own = DATASETS[splits.name].words if splits.name in DATASETS else ()
    if own:
        return lambda number: own[number] if number < len(own) else _numbered(number)
    tokenizer = splits.options.get("tokenizer")
    if not isinstance(tokenizer, str):
        return None
    if tokenizer == hashed.NAME:
        known = {hashed.number(word): word for listed in WATCHED.values() for word in listed}
        return lambda number: known.get(number, _numbered(number))
    try:
        opened = open_pretrained(transformers_for("Text").AutoTokenizer.from_pretrained, tokenizer, "tokenizer")
    except SpurlessError:
        return None
    return lambda number: str(opened.convert_ids_to_tokens(number))


def read_back(split: Grouped, row: int, spell: Spell) -> str:
    """Return a text as its tokens spell it: without marks of begin and padding, and with a slash between two texts."""
    x: dict[str, Tensor] = split.x  # type: ignore[assignment]  # text
    ids = x["input_ids"][row].cpu()
    seen = x["attention_mask"][row].cpu().bool() if "attention_mask" in x else torch.ones_like(ids, dtype=torch.bool)
    pieces = [spell(int(number)) for number in ids[seen]]
    spaced = any(piece.startswith(SPACE) for piece in pieces)  # a tokenizer that marks spaces marks every one
    text = ""
    for piece in pieces:
        if piece in ENDS:
            text += " /" if text else ""
        elif piece not in SILENT:
            glued = piece.startswith("##") or (spaced and not piece.startswith(SPACE))
            text += ("" if glued else " ") + piece.removeprefix("##").lstrip("".join(SPACE))
    return text.removesuffix(" /").strip()


def words_of(split: Grouped, spell: Spell | None = None, watched: Mapping[str, Sequence[str]] = WATCHED) -> Words:
    """Return which texts have which words: the lists first, then the words of the lists, then the most frequent."""
    kinds, counts, rows = _occurrences(split)
    sides = SIDES if bool((kinds % 2).any()) else ("",)
    spelt = ["" if spell is None else _plain(spell(kind // 2)) for kind in kinds.tolist()]
    listed = {word for several in watched.values() for word in several}
    wanted: list[tuple[str, list[int]]] = []
    for what, several in watched.items():
        for number, side in enumerate(sides):
            mine = [j for j, word in enumerate(spelt) if word in several and int(kinds[j]) % 2 == number]
            wanted += [(f"{what}{side}", mine)] if len(mine) > 1 else []
    order = sorted(range(len(kinds)), key=lambda j: (spelt[j] not in listed, -int(counts[j]), j))
    for j in order[: MOST + sum(word in listed for word in spelt)]:
        bare = _numbered(int(kinds[j]) // 2)
        word = bare if spelt[j] in ("", bare) else f'the word "{spelt[j]}"'
        wanted.append((f"{word}{sides[int(kinds[j]) % 2]}", [j]))
    return _present(wanted, kinds, rows, len(split))


def having(split: Grouped, kinds: Sequence[int]) -> Tensor:
    """Return which texts of a split have one of these tokens, ``(N,)``, 0 or 1; see ``Words.kinds``."""
    found, _, rows = _occurrences(split)
    return _marked([rows[j] for j, kind in enumerate(found.tolist()) if kind in kinds], len(split))


def _occurrences(split: Grouped) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return every token that occurs, in how many texts, and in which; as twice its number, plus 1 in a second text."""
    x: dict[str, Tensor] = {key: value.cpu().long() for key, value in split.x.items()}  # type: ignore[union-attr]  # text
    ids = x["input_ids"]
    seen = x.get("attention_mask", torch.ones_like(ids)).bool()
    tokens = (2 * ids + x.get("token_type_ids", torch.zeros_like(ids)).clamp(0, 1))[seen]
    kinds, which = torch.unique(tokens, return_inverse=True)
    once = torch.unique(which * len(split) + seen.nonzero()[:, 0])  # a word counts once in each text
    counts = torch.bincount(once // len(split), minlength=len(kinds))
    return kinds, counts, torch.split(once % len(split), counts.tolist())


def _present(wanted: list[tuple[str, list[int]]], kinds: Tensor, rows: tuple[Tensor, ...], n: int) -> Words:
    """Keep what is in some texts and not in others."""
    least = max(LEAST_TEXTS, round(LEAST_SHARE * n))
    names, columns, tokens = [], [], []
    for name, places in wanted:
        has = _marked([rows[j] for j in places], n)
        if least <= int(has.sum()) <= n - least:
            names.append(name)
            columns.append(has)
            tokens.append(tuple(kinds[places].tolist()))
    present = torch.stack(columns, dim=1) if columns else torch.zeros(n, 0, dtype=torch.long)
    return Words(tuple(names), present, tuple(tokens))


def _marked(rows: Sequence[Tensor], n: int) -> Tensor:
    """Return 1 where one of these lists has the row, else 0."""
    none = torch.zeros(n, dtype=torch.long)
    return none.index_fill(0, torch.cat(list(rows)), 1) if rows else none


def _read_aloud(subject: Subject, rows: Sequence[int], spell: Spell) -> str:
    """Write some mistakes out."""
    labels, told = subject.split.groups.labels, []
    for row in rows:
        text = read_back(subject.split, row, spell)
        text = text if len(text) <= LONG else f"{text[:LONG]} ..."
        said = labels[int(subject.predicted[row])]
        told.append(f'{row}, label {labels[int(subject.y[row])]}, predicted {said}: "{text}"')
    return f"Mistakes: {'; '.join(told)}."


def _plain(word: str) -> str:
    """Return a word without the marks that tokenizers put before one that begins after a space."""
    return word.lstrip("".join(SPACE)).lower()


def _numbered(number: int) -> str:
    return f"token {number}"


def _nothing(because: str) -> Finding:
    return Finding(NAME, "This could not be asked of these examples", 0.0, False, None, because, "Nothing to do.")
