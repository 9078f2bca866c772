"""Exchange words between texts: the presence of a word, the first or last words of a text, or its number of words.

All texts of a batch are changed at once: tokens are deleted, and others are inserted before given positions. Every
token gets a number, its place in the result, and a sort by these numbers moves the tokens.

Limit: tokenizers that mark spaces (RoBERTa) spell the first word of a text without a mark, so that a word that is
inserted before it, or comes from the start of another text, may be joined with the word after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from spurless.data.words import SIDES, TextLayout, Vocabulary, Word, lay_out, locate_word

Texts: TypeAlias = dict[str, Tensor]

N_SPAN_WORDS = 2  # words at the start or the end of a text that are exchanged
SPAN_NAMES = {"start": "the first two words", "end": "the last two words"}
MIN_WORDS = 3 * N_SPAN_WORDS  # median number of words of texts whose ends are exchanged, so that most words are kept
HASH_BASE = 1_000_003
LENGTH_NAME = "the length of the text"
N_LENGTHS = 4  # ranges of the number of words, about as many texts in each
N_DOUBLINGS = 3  # a text is repeated up to this many times, so it becomes at most eight times as long


@dataclass(frozen=True)
class WordExchange:
    """The function ``(receivers, donors) -> texts`` that transplants the presence of a word.

    If only the receiver has the word, all its occurrences are deleted. If only the donor has it, its first occurrence
    (of a list: all of them) is inserted at the donor's position, inside the receiver's text and not inside another
    word.
    """

    word: Word

    @property
    def vocabulary(self) -> Vocabulary:
        """What the tokens are."""
        return self.word.vocabulary

    def __call__(self, x: Texts, donors: Texts) -> Texts:
        """Return texts that contain the word if and only if their donors do."""
        layout, other = lay_out(x, self.vocabulary), lay_out(donors, self.vocabulary)
        length, other_length = locate_word(layout, self.word), locate_word(other, self.word)
        has, donor_has = (length > 0).any(dim=1, keepdim=True), (other_length > 0).any(dim=1, keepdim=True)
        deleted = _cover(length) & has & ~donor_has
        inserted = _cover(other_length if self.word.is_list else _keep_first(other_length)) & donor_has & ~has
        begin = torch.where(other_length > 0, _positions(other), 0).cummax(dim=1).values  # of each token's occurrence
        n_before = (inserted.long().cumsum(dim=1) - inserted.long()).gather(1, begin)
        low, high = _find_bounds(layout, self.word.side)
        relative = begin - n_before - _find_bounds(other, self.word.side)[0]
        target = _move_to_boundary(layout, torch.minimum(low + relative, high).maximum(low))
        inserted &= _select_side(layout, self.word.side).any(dim=1, keepdim=True)
        return _move_tokens((x, layout, deleted), (donors, inserted, target), self.vocabulary)

    def encode(self, layout: TextLayout) -> Tensor:
        """Return which texts contain the word, ``(N,)``, 0 or 1."""
        return (locate_word(layout, self.word) > 0).any(dim=1).long()


@dataclass(frozen=True)
class SpanExchange:
    """The function ``(receivers, donors) -> texts`` that exchanges the first or the last words of a text.

    It shows what models follow if several words at the same position are redundant, so that each of them alone can be
    deleted without an effect: one word of a phrase, or one of several phrases that texts begin with.
    """

    where: Literal["start", "end"]
    vocabulary: Vocabulary = field(repr=False)
    side: int | None = None

    @property
    def name(self) -> str:
        """The name of the property."""
        return SPAN_NAMES[self.where] + ("" if self.side is None else SIDES[self.side])

    def __call__(self, x: Texts, donors: Texts) -> Texts:
        """Return texts with the first or last words of their donors."""
        layout, other = lay_out(x, self.vocabulary), lay_out(donors, self.vocabulary)
        deleted, inserted = self._cover(layout), self._cover(other)
        exists = deleted.any(dim=1, keepdim=True) & inserted.any(dim=1, keepdim=True)
        target = _find_bounds(layout, self.side)[self.where == "end"].expand_as(layout.ids)
        return _move_tokens((x, layout, deleted & exists), (donors, inserted & exists, target), self.vocabulary)

    def encode(self, layout: TextLayout) -> Tensor:
        """Return a number per text, ``(N,)``, that is equal for equal words at this position."""
        covered = self._cover(layout)
        rank = covered.long().cumsum(dim=1)
        powers = torch.tensor(HASH_BASE, device=rank.device) ** torch.arange(rank.shape[1] + 1, device=rank.device)
        hashes = ((layout.ids.long() + 1) * powers[rank] * covered).sum(dim=1)
        number: Tensor = torch.unique(hashes, return_inverse=True)[1]
        return number

    def _cover(self, layout: TextLayout) -> Tensor:
        usable = _select_side(layout, self.side) & ~layout.special
        number = (layout.begins & usable).long().cumsum(dim=1)  # of the word that a token is part of, from 1
        if self.where == "end":
            number = number.amax(dim=1, keepdim=True) + 1 - number
        return usable & (number >= 1) & (number <= N_SPAN_WORDS)


@dataclass(frozen=True)
class LengthExchange:
    """The function ``(receivers, donors) -> texts`` that gives texts the number of words of their donors.

    A longer text loses its last words, a shorter one is repeated.
    """

    vocabulary: Vocabulary = field(repr=False)
    name: str = LENGTH_NAME

    def __call__(self, x: Texts, donors: Texts) -> Texts:
        """Return texts with as many words as their donors have, if they fit."""
        wanted = _count_words(lay_out(donors, self.vocabulary)).clamp(min=1)  # models may not take empty texts
        for _ in range(N_DOUBLINGS):
            layout = lay_out(x, self.vocabulary)
            words = layout.real & ~layout.special
            number = layout.begins.long().cumsum(dim=1)  # of the word that a token is part of, from 1
            repeated = words & (number >= 1) & (number <= wanted - _count_words(layout))
            free = (~layout.real).sum(dim=1, keepdim=True)
            repeated &= repeated.cumsum(dim=1) <= free
            target = _find_bounds(layout, None)[1].expand_as(layout.ids)
            x = _move_tokens((x, layout, words & (number > wanted)), (x, repeated, target), self.vocabulary)
        return x

    def encode(self, layout: TextLayout) -> Tensor:
        """Return the range that the number of words is in, ``(N,)``, from the shortest texts to the longest."""
        n_words = _count_words(layout).flatten()
        quantiles = torch.linspace(0, 1, N_LENGTHS + 1, device=n_words.device)[1:-1]
        return torch.bucketize(n_words.double(), torch.quantile(n_words.double(), quantiles.double()))


def _count_words(layout: TextLayout) -> Tensor:
    return layout.begins.sum(dim=1, keepdim=True)


def list_exchanges(
    x: Texts, vocabulary: Vocabulary, min_words: int = MIN_WORDS
) -> tuple[SpanExchange | LengthExchange, ...]:
    """Return the exchanges of the first and last words and of the number of words.

    Args:
        x: the texts.
        vocabulary: what the tokens are.
        min_words: median number of words from which the ends of texts are exchanged.
    """
    layout = lay_out(x, vocabulary)
    is_pair = bool((layout.side * layout.real).any())
    exchanges: list[SpanExchange | LengthExchange] = []
    for side in (0, 1) if is_pair else (None,):
        n_words = (layout.begins & _select_side(layout, side)).sum(dim=1)
        if float(n_words.median()) >= min_words:
            exchanges += [SpanExchange("start", vocabulary, side), SpanExchange("end", vocabulary, side)]
    if not is_pair and len(torch.unique(_count_words(layout))) > 1:
        exchanges.append(LengthExchange(vocabulary))
    return tuple(exchanges)


def _move_tokens(
    receiver: tuple[Texts, TextLayout, Tensor], donor: tuple[Texts, Tensor, Tensor], vocabulary: Vocabulary
) -> Texts:
    """Return the receivers without some of their tokens, and with some of the donors' tokens.

    The width of the texts is kept: padding is added at the end, or removed. If there is not enough of it, the last
    tokens that are not special are dropped; if there are not enough of these either, a text is not changed. All tensors
    of the shape of ``input_ids`` move along.

    Args:
        receiver: the texts, their layout, and the tokens that are deleted.
        donor: the texts, the tokens that are inserted, and before which token of the receiver each of them goes.
        vocabulary: what the tokens are.
    """
    (x, layout, deleted), (donors, inserted, target) = receiver, donor
    n_missing = (inserted.sum(dim=1, keepdim=True) - deleted.sum(dim=1, keepdim=True)).clamp(min=0)
    is_free = ~layout.special & ~deleted
    fits = n_missing <= is_free.sum(dim=1, keepdim=True)
    dropped = (deleted | _find_last(layout, is_free, n_missing)) & fits
    # a donor's token goes before the receiver's token at its target, in the order of the donor
    n, positions = layout.ids.shape[1], _positions(layout)
    last = n * (n + 2)  # larger than the number of any token of the result
    number = (positions * (n + 1) + n).expand_as(layout.ids).masked_fill(dropped, last)
    donor_number = (target * (n + 1) + positions).masked_fill(~(inserted & fits), last)
    number, order = torch.cat([number, donor_number], dim=1).sort(dim=1, stable=True)
    order, is_empty = order[:, :n], number[:, :n] == last
    fill = {"input_ids": vocabulary.padding or 0}

    def move(key: str, part: Tensor) -> Tensor:
        if part.shape != layout.ids.shape:
            return part
        moved = torch.cat([part, donors[key].to(part.dtype)], dim=1).gather(1, order)
        return moved.masked_fill(is_empty, fill.get(key, 0))

    return {key: move(key, part) for key, part in x.items()}


def _find_last(layout: TextLayout, is_free: Tensor, count: Tensor) -> Tensor:
    """Return which tokens make space for others: first padding, then the last tokens that are free."""
    n = layout.ids.shape[1]
    score = (_positions(layout) + n * (~layout.real).long()).masked_fill(~is_free, -1)
    rank = score.argsort(dim=1, descending=True).argsort(dim=1)
    return rank < count


def _move_to_boundary(layout: TextLayout, target: Tensor) -> Tensor:
    """Return the first position of the word at each target, so that nothing is inserted inside a word."""
    n = layout.ids.shape[1]
    first = torch.where(layout.inside, -1, _positions(layout)).cummax(dim=1).values
    return torch.where(target < n, first.gather(1, target.clamp(max=n - 1)), target)


def _find_bounds(layout: TextLayout, side: int | None) -> tuple[Tensor, Tensor]:
    """Return the first and the last position for a new word: after a first and before a last special token."""
    n, positions = layout.ids.shape[1], _positions(layout)
    part = _select_side(layout, side)
    first = torch.where(part, positions, n - 1).amin(dim=1, keepdim=True)
    last = torch.where(part, positions, 0).amax(dim=1, keepdim=True)
    is_start = first == torch.where(layout.real, positions, n - 1).amin(dim=1, keepdim=True)
    low = first + (layout.special.gather(1, first) & is_start).long()
    return low, (last + 1 - layout.special.gather(1, last).long()).maximum(low)


def _select_side(layout: TextLayout, side: int | None) -> Tensor:
    return layout.real if side is None else layout.real & (layout.side == side)


def _cover(length: Tensor) -> Tensor:
    """Return the tokens of all occurrences."""
    positions = torch.arange(length.shape[1], device=length.device)
    end = torch.where(length > 0, positions + length, 0).cummax(dim=1).values
    return positions < end


def _keep_first(length: Tensor) -> Tensor:
    return length * ((length > 0).cumsum(dim=1) == 1)


def _positions(layout: TextLayout) -> Tensor:
    return torch.arange(layout.ids.shape[1], device=layout.ids.device)
