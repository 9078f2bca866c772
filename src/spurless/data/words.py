"""Words of tokenized texts: which texts contain a word, and where.

A word is a sequence of tokens, because tokenizers split rare words into pieces: ``war ##um``. Pieces are joined, so
that a word is always named and found as a whole. Words are those of lists (negation, identity terms), each list as one
and each of its words alone, the most frequent words, and the most frequent pairs of neighbors. In pairs of texts, a
word in the first and the same word in the second text are two words. Upper and lower case are the same word.

If the spelling of tokens is unknown, every token is a word that is named by its number, and lists are not used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeAlias

import torch
from torch import Tensor

from spurless.core.errors import SpurlessError
from spurless.core.hf_files import import_transformers, open_pretrained
from spurless.data.loaders.text import END, HASH_TOKENIZER, PAD, START, hash_word, split_words
from spurless.data.split import Split, Splits

TokenSpelling: TypeAlias = Callable[[int], str]  # from a token id to the word, or the piece of a word

MAX_WORDS = 300  # most frequent words, in addition to the lists
MAX_BIGRAMS = 100  # most frequent pairs of neighboring words
MIN_TEXTS = 10  # texts with a word, and texts without it
MIN_FRACTION = 0.005  # the same as a fraction of the split
MAX_SPELLED_TEXTS = 20_000  # texts of a split whose words are hashed to spell tokens
ROWS = 8192  # texts that are searched at once
SPACE_MARKS = ("\u0120", "\u2581")  # what tokenizers put before a word that begins after a space
END_TOKENS, IGNORED_TOKENS = ("[SEP]", "</s>"), ("[CLS]", "[PAD]", "<s>", "<pad>")
PADDING_TOKENS = ("[pad]", "<pad>")
SPECIAL_TOKENS = frozenset(
    (*PADDING_TOKENS, "[cls]", "[sep]", "[unk]", "[mask]", "<s>", "</s>", "<unk>", "<mask>", "<cls>", "<sep>", "<bos>",
     "<eos>", "<|endoftext|>")
)  # fmt: skip
SIDES = (" in the first text", " in the second text")

NEGATION = ("no", "not", "never", "nobody", "nothing", "none", "nor", "neither", "nowhere", "without", "cannot", "n't")
IDENTITY = (
    "man", "men", "woman", "women", "male", "female", "gay", "lesbian", "homosexual", "transgender", "straight",
    "black", "white", "asian", "latino", "african", "american", "mexican", "muslim", "christian", "jewish", "jews",
    "islam", "catholic", "buddhist", "atheist", "immigrant", "immigrants", "old", "young", "deaf", "blind", "disabled",
)  # fmt: skip
WORD_LISTS: Mapping[str, tuple[str, ...]] = {"a negation": NEGATION, "an identity term": IDENTITY}


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What tokens are, by id; the last entry of each tensor is for all larger ids."""

    special: Tensor  # padding, separators and others that are not part of any text
    continues: Tensor  # continues the word of the token before it
    standalone: Tensor  # not followed by a piece of the same word: special tokens and punctuation
    padding: int | None  # id of the padding, if known
    _copies: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict, repr=False)

    def look_up(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return whether tokens are special, continue a word, and stand alone; on the device of the ids."""
        if ids.device not in self._copies:  # a copy to a device cannot be a part of a captured CUDA graph
            tables = self.special, self.continues, self.standalone
            self._copies[ids.device] = tables[0].to(ids.device), tables[1].to(ids.device), tables[2].to(ids.device)
        ids = ids.long().clamp(0, len(self.special) - 1)
        special, continues, standalone = self._copies[ids.device]
        return special[ids], continues[ids], standalone[ids]


@dataclass(frozen=True, eq=False)
class Word:
    """A word, the words of a list, or two neighboring words; as the token sequences that spell them."""

    name: str
    sequences: tuple[tuple[int, ...], ...]
    vocabulary: Vocabulary = field(repr=False)
    side: int | None = None  # 0 in the first and 1 in the second text of a pair; None if texts are not pairs
    is_list: bool = False


@dataclass(frozen=True, eq=False)
class WordPresence:
    """Which texts contain which words."""

    words: tuple[Word, ...]
    present: Tensor  # ``(N, words)``, 0 or 1
    vocabulary: Vocabulary

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the words."""
        return tuple(word.name for word in self.words)


@dataclass(frozen=True, eq=False)
class TextLayout:
    """The role of every token, ``(N, L)`` each."""

    ids: Tensor
    real: Tensor  # not padding
    special: Tensor
    begins: Tensor  # first token of a word
    side: Tensor  # 1 in the second text of a pair, otherwise 0

    @property
    def inside(self) -> Tensor:
        """Whether a token continues the word before it."""
        return self.real & ~self.special & ~self.begins


def load_spelling(splits: Splits) -> TokenSpelling | None:
    """Return the spelling of the tokens of a dataset; None if its tokenizer is unknown or not available.

    Hashed words are spelled as in the texts of the splits, if those are known, and in ``WORD_LISTS``.
    """
    from spurless.data import DATASETS

    words = DATASETS[splits.name].vocabulary if splits.name in DATASETS else ()
    if words:
        return lambda token: words[token] if token < len(words) else _name_token(token)
    name = splits.options.get("tokenizer")
    if not isinstance(name, str):
        return None
    if name == HASH_TOKENIZER:
        known = _spell_hashed(splits)
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
            text += ("" if continues else " ") + _strip_marks(piece)
    return text.removesuffix(" /").strip()


def find_words(
    split: Split,
    spelling: TokenSpelling | None = None,
    word_lists: Mapping[str, Sequence[str]] = WORD_LISTS,
    include: Sequence[str] = (),
) -> WordPresence:
    """Return which texts contain which words: the lists, the words of the lists, frequent words, and pairs of words.

    Args:
        split: the texts.
        spelling: spelling of the tokens; without it, words are named by number.
        word_lists: lists of words by name.
        include: names of words and pairs that are returned however rare or frequent they are.
    """
    x: dict[str, Tensor] = {key: value.cpu() for key, value in split.x.items()}  # type: ignore[union-attr]  # text
    vocabulary = build_vocabulary(x, spelling)
    index = _index_words(x, vocabulary, spelling)
    required = max(MIN_TEXTS, round(MIN_FRACTION * len(split)))
    bigrams = _list_bigrams(index, required, include) if spelling else ()
    candidates = [*_list_candidates(index, word_lists, include), *bigrams]
    words, columns = [], []
    for word, rows in candidates:
        present = torch.zeros(len(split), dtype=torch.long).index_fill_(0, rows, 1)
        if required <= int(present.sum()) <= len(split) - required or word.name in include:
            words.append(word)
            columns.append(present)
    matrix = torch.stack(columns, dim=1) if columns else torch.zeros(len(split), 0, dtype=torch.long)
    return WordPresence(tuple(words), matrix, vocabulary)


def mark_texts(split: Split, word: Word) -> Tensor:
    """Return which texts contain a word, ``(N,)``, 0 or 1, on the CPU."""
    x: dict[str, Tensor] = split.x  # type: ignore[assignment]  # text
    parts = []
    for start in range(0, len(split), ROWS):
        part = {key: value[start : start + ROWS] for key, value in x.items()}
        parts.append((locate_word(lay_out(part, word.vocabulary), word) > 0).any(dim=1).long().cpu())
    return torch.cat(parts)


def build_vocabulary(x: Mapping[str, Tensor], spelling: TokenSpelling | None) -> Vocabulary:
    """Return what the tokens of these texts are, by their spelling.

    Without a spelling, no token continues a word, and a token is special if every text begins or ends with it.
    """
    ids = x["input_ids"].long()
    mask = x.get("attention_mask", torch.ones_like(ids)).bool()
    pieces = [] if spelling is None else [_spell(spelling, token) for token in range(int(ids.max()) + 1)]
    size = int(ids.max()) + 2
    special, continues, standalone = (torch.zeros(size, dtype=torch.bool) for _ in range(3))
    has_marks = any(pieces[token].startswith(SPACE_MARKS) for token in torch.unique(ids).tolist() if pieces)
    for token, piece in enumerate(pieces):
        is_word = any(character.isalnum() for character in piece)
        special[token] = piece.lower() in SPECIAL_TOKENS
        standalone[token] = special[token] or not (is_word or piece in SPACE_MARKS)
        joined = piece.startswith("##") or (has_marks and not piece.startswith(SPACE_MARKS))
        continues[token] = joined and is_word and not special[token]
    padding = next((token for token, piece in enumerate(pieces) if piece.lower() in PADDING_TOKENS), None)
    if padding is None and not bool(mask.all()):
        padding = int(ids[~mask].mode().values)
    if spelling is None:
        for token in _find_constant_ends(ids, mask):
            special[token] = standalone[token] = True
    return Vocabulary(special, continues, standalone, padding)


def lay_out(x: Mapping[str, Tensor], vocabulary: Vocabulary) -> TextLayout:
    """Return the role of every token of a batch of texts."""
    ids = x["input_ids"]
    if "attention_mask" in x:
        real = x["attention_mask"].bool()
    else:
        real = torch.ones_like(ids, dtype=torch.bool) if vocabulary.padding is None else ids != vocabulary.padding
    side = x.get("token_type_ids", torch.zeros_like(ids)).clamp(0, 1)
    special, continues, standalone = vocabulary.look_up(ids)
    joins = continues & real
    joins[:, 0] = False
    joins[:, 1:] &= real[:, :-1] & ~standalone[:, :-1] & (side[:, 1:] == side[:, :-1])
    return TextLayout(ids, real, special & real, real & ~special & ~joins, side)


def locate_word(layout: TextLayout, word: Word) -> Tensor:
    """Return the number of tokens of the occurrence that begins at each position, ``(N, L)``; 0 elsewhere."""
    usable = layout.real if word.side is None else layout.real & (layout.side == word.side)
    lengths = {len(sequence) for sequence in word.sequences}
    tokens = [_shift(torch.where(usable, layout.ids, -1), k) for k in range(max(lengths))]
    whole = {n: layout.begins & ~_shift(layout.inside, n) for n in lengths}  # words begin here and after n tokens
    length = torch.zeros_like(layout.ids, dtype=torch.long)
    for sequence in word.sequences:
        match = whole[len(sequence)]
        for token, expected in zip(tokens, sequence, strict=False):
            match = match & (token == expected)
        length = torch.where(match, length.clamp(min=len(sequence)), length)
    return length


@dataclass(frozen=True, eq=False)
class _WordIndex:
    """All distinct words, and every occurrence in the order of the texts."""

    vocabulary: Vocabulary
    texts: list[str]
    sides: list[int]  # of every distinct word; the same text on two sides is two words
    sequences: list[tuple[tuple[int, ...], ...]]
    rows: tuple[Tensor, ...]  # the texts that contain each word
    n_texts: int
    has_pairs: bool
    word: Tensor  # number of the word, of every occurrence
    row: Tensor  # its text
    has_neighbor: Tensor  # whether the next occurrence follows immediately

    def make_word(self, name: str, sequences: Sequence[tuple[int, ...]], side: int, *, is_list: bool = False) -> Word:
        """Return a word, with its side in its name if the texts are pairs."""
        if not self.has_pairs:
            return Word(name, tuple(sequences), self.vocabulary, None, is_list)
        return Word(name + SIDES[side], tuple(sequences), self.vocabulary, side, is_list)


def _index_words(x: Mapping[str, Tensor], vocabulary: Vocabulary, spelling: TokenSpelling | None) -> _WordIndex:
    layout = lay_out(x, vocabulary)
    n_texts, width = layout.ids.shape
    ids, side = layout.ids.long().flatten(), layout.side.long().flatten()
    starts = layout.begins.flatten().nonzero().flatten()
    is_part = (layout.begins | layout.inside).flatten()
    lengths = torch.bincount(layout.begins.flatten().long().cumsum(0)[is_part] - 1, minlength=len(starts))
    codes, number = torch.unique(2 * _number_sequences(ids, starts, lengths) + side[starts], return_inverse=True)
    last = len(number)
    first = torch.full_like(codes, last).scatter_reduce(0, number, torch.arange(last), "amin")  # occurrence of each
    merged: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    keys, pieces = [], dict[int, str]()
    for start, length in zip(starts[first].tolist(), lengths[first].tolist(), strict=True):
        sequence = tuple(ids[start : start + length].tolist())
        keys.append((_join(sequence, spelling, pieces), int(side[start])))
        merged.setdefault(keys[-1], []).append(sequence)
    positions = {key: position for position, key in enumerate(merged)}
    word = torch.tensor([positions[key] for key in keys], dtype=torch.long)[number]
    row = starts // width
    has_neighbor = torch.zeros_like(row, dtype=torch.bool)
    has_neighbor[:-1] = ((starts + lengths)[:-1] == starts[1:]) & (row[1:] == row[:-1])
    has_neighbor[:-1] &= side[starts][1:] == side[starts][:-1]
    return _WordIndex(
        vocabulary,
        [text for text, _ in merged],
        [number for _, number in merged],
        [tuple(sequences) for sequences in merged.values()],
        _list_rows(word, row, n_texts)[1],
        n_texts,
        bool((layout.side * layout.real).any()),
        word,
        row,
        has_neighbor,
    )


def _list_rows(numbers: Tensor, rows: Tensor, n_texts: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the distinct numbers, and the texts in which each occurs; a text counts once."""
    once = torch.unique(numbers * n_texts + rows)
    distinct, counts = torch.unique_consecutive(once // max(1, n_texts), return_counts=True)
    return distinct, torch.split(once % max(1, n_texts), counts.tolist())


def _number_sequences(ids: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """Return a number per word that is equal for equal sequences of tokens."""
    base = size = int(ids.max()) + 1
    codes = ids[starts]
    for k in range(1, int(lengths.max()) if len(lengths) else 0):
        longer = (lengths > k).nonzero().flatten()
        distinct, number = torch.unique(codes[longer] * size + ids[starts[longer] + k], return_inverse=True)
        codes[longer] = base + number
        base += len(distinct)
    return codes


def _list_candidates(
    index: _WordIndex, word_lists: Mapping[str, Sequence[str]], include: Sequence[str]
) -> Iterator[tuple[Word, Tensor]]:
    """Yield the lists, the words of the lists, and the most frequent words, each with the texts that contain it."""
    numbers = range(len(index.texts))
    for name, word_list in word_lists.items():
        for side in (0, 1):
            members = [j for j in numbers if index.texts[j] in word_list and index.sides[j] == side]
            if len(members) > 1:
                sequences = [sequence for j in members for sequence in index.sequences[j]]
                yield index.make_word(name, sequences, side, is_list=True), torch.cat([index.rows[j] for j in members])
    listed = {word for word_list in word_lists.values() for word in word_list}
    order = sorted(numbers, key=lambda j: (index.texts[j] not in listed, -len(index.rows[j]), j))
    limit = MAX_WORDS + sum(text in listed for text in index.texts)
    for rank, j in enumerate(order):
        if rank >= limit and not include:
            return
        text, sequences = index.texts[j], list(index.sequences[j])
        word = index.make_word(text if _is_number(text, sequences) else f'the word "{text}"', sequences, index.sides[j])
        if rank < limit or word.name in include:
            yield word, index.rows[j]


def _list_bigrams(index: _WordIndex, required: int, include: Sequence[str]) -> Iterator[tuple[Word, Tensor]]:
    """Yield the most frequent pairs of neighboring words that both occur without each other in enough texts."""
    size, counts = len(index.texts), [len(rows) for rows in index.rows]
    is_usable = [
        _has_name(text, sequences) and (count >= 2 * required or bool(include))
        for text, sequences, count in zip(index.texts, index.sequences, counts, strict=True)
    ]
    usable = torch.tensor(is_usable, dtype=torch.bool)[index.word]
    at = (index.has_neighbor & usable & usable.roll(-1)).nonzero().flatten()
    pairs, rows = _list_rows(index.word[at] * size + index.word[at + 1], index.row[at], index.n_texts)
    order = sorted(range(len(rows)), key=lambda k: -len(rows[k]))
    n_frequent = 0
    for k in order:
        n_texts = len(rows[k])
        if (n_texts < required or n_frequent == MAX_BIGRAMS) and not include:
            return
        first, second = divmod(int(pairs[k]), size)
        is_frequent = n_texts >= required and min(counts[first], counts[second]) - n_texts >= required
        is_frequent = is_frequent and n_frequent < MAX_BIGRAMS
        n_frequent += is_frequent
        name = f'the words "{index.texts[first]} {index.texts[second]}"'
        sequences = [a + b for a, b in product(index.sequences[first], index.sequences[second])]
        word = index.make_word(name, sequences, index.sides[first])
        if is_frequent or word.name in include:
            yield word, rows[k]


def _is_number(text: str, sequences: Sequence[tuple[int, ...]]) -> bool:
    return len(sequences) == 1 and len(sequences[0]) == 1 and text == _name_token(sequences[0][0])


def _has_name(text: str, sequences: Sequence[tuple[int, ...]]) -> bool:
    """Return whether this is a word with letters, and not the number of a token."""
    return any(character.isalnum() for character in text) and not _is_number(text, sequences)


def _join(sequence: tuple[int, ...], spelling: TokenSpelling | None, pieces: dict[int, str]) -> str:
    """Return the word that a sequence of tokens spells, in lower case."""
    if spelling is None:
        return _name_token(sequence[0])
    for token in sequence:
        if token not in pieces:
            pieces[token] = _strip_marks(_spell(spelling, token)).lower()
    return "".join(pieces[token] for token in sequence) or _name_token(sequence[0])


def _spell(spelling: TokenSpelling, token: int) -> str:
    try:
        return spelling(token)
    except LookupError:  # an id that does not occur in the texts
        return _name_token(token)


def _spell_hashed(splits: Splits) -> dict[int, str]:
    """Return the words of the texts by the hash; of those with the same hash, the most frequent."""
    counts: Counter[str] = Counter()
    for split in (splits.val, splits.train, splits.test):
        if split.names is not None and split.names.texts is not None:
            texts = (split.names.text(i) or "" for i in range(min(len(split), MAX_SPELLED_TEXTS)))
            counts.update(word for text in texts for word in split_words(text))
    known = {PAD: "[PAD]", START: "[CLS]", END: "[SEP]"}
    listed = [word for word_list in WORD_LISTS.values() for word in word_list]
    for word in (*(word for word, _ in counts.most_common()), *listed):
        known.setdefault(hash_word(word), word)
    return known


def _find_constant_ends(ids: Tensor, mask: Tensor) -> list[int]:
    """Return the tokens that all texts begin or end with."""
    positions = torch.arange(ids.shape[1])
    rows = torch.arange(len(ids))
    first = ids[rows, torch.where(mask, positions, ids.shape[1]).amin(dim=1).clamp(max=ids.shape[1] - 1)]
    last = ids[rows, torch.where(mask, positions, -1).amax(dim=1).clamp(min=0)]
    return [int(ends[0]) for ends in (first, last) if bool((ends == ends[0]).all())]


def _shift(values: Tensor, k: int) -> Tensor:
    """Return what is ``k`` positions to the right of each position; -1 or False behind the end."""
    if k == 0:
        return values
    end = values.new_full((len(values), min(k, values.shape[1])), 0 if values.dtype == torch.bool else -1)
    return torch.cat([values[:, k:], end], dim=1)


def _strip_marks(piece: str) -> str:
    return piece.removeprefix("##").lstrip("".join(SPACE_MARKS))


def _name_token(token: int) -> str:
    return f"token {token}"
