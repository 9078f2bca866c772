r"""Words as transplants: which words are tested, between which texts, and when a word is a shortcut.

A prediction that changes with a word is not a shortcut by itself: the content of a text is in its words, and a model
that has learned the task follows them too. A word is a shortcut if it decides many predictions alone. With the follow
rate :math:`r` of a word and its association :math:`V` with predictions (bias-corrected Cramér's V), its *influence* is
:math:`r V`, which is small for a word that is followed but rare or used for all labels, and for a word that occurs with
one label but is not used. Of the words that are in at least ``MIN_PRESENCE`` of the texts and followed in at least
``MIN_FOLLOW_RATE`` of the pairs, that with the largest influence is a shortcut if its influence is at least
``MIN_INFLUENCE`` and ``MIN_RATIO`` times that of any independent word: content has synonyms.

Limits: of two independent words that are used alike, neither is named. A shortcut in few texts is not named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from spurless.auditing._context import AuditContext
from spurless.auditing._overreliance import MIN_ASSOCIATION, compute_association
from spurless.core.seeds import Seeds
from spurless.data.split import Split
from spurless.data.transplants import Transplant
from spurless.data.word_exchange import WordExchange
from spurless.data.words import TextLayout, lay_out

MAX_CANDIDATES = 40  # words with the highest association with predictions
MIN_FOLLOW_RATE = 0.25  # below it, most of the predictions with the word depend on other words
MIN_INFLUENCE = 0.15  # planted words reached 0.25 or more; profanities, on clean data, up to 0.2 but a ratio of 2
MIN_RATIO = 3.0  # of the influence to that of the next independent word: content words have others near them
MIN_PRESENCE = 0.05  # fraction of texts: a profanity in 3 % of tweets had an influence of 0.26, and all others 0.09
MAX_OVERLAP = 0.3  # association of two words from which they are not independent, as those of one phrase


def select_words(context: AuditContext, transplants: Mapping[str, Transplant]) -> dict[str, Transplant]:
    """Return the transplants of the words with the highest association with predictions, the highest first."""
    names = list(transplants)
    codes = _encode(context.split, [transplants[name] for name in names])
    associations = {
        name: compute_association(column, context.predicted) for name, column in zip(names, codes, strict=True)
    }
    order = sorted(names, key=lambda name: -associations[name])
    return {name: transplants[name] for name in order[:MAX_CANDIDATES] if associations[name] >= MIN_ASSOCIATION}


def sample_word_donors(
    pool: Split, rows: Tensor, transplant: Transplant, seeds: Seeds, max_pairs: int
) -> tuple[Tensor, Tensor]:
    """Return receivers, and for each a donor of another and one of the same class, ``(2, n)``.

    The donor of another class differs in the property: half of the receivers lose a word and the others gain it, so
    that there are few pairs if few texts have it. The donor of the same class is a random one: it is the control.

    Args:
        pool: texts from which donors are drawn.
        rows: positions in the pool of possible receivers.
        transplant: the property.
        seeds: the source of randomness.
        max_pairs: maximum number of receivers.
    """
    generator = seeds.generator("word donors", transplant.name)
    y, codes = pool.y.cpu(), _encode(pool, [transplant])[0]
    rows = rows[torch.randperm(len(rows), generator=generator)]
    rows = rows[(_differ(y, y[rows]) & _differ(codes, codes[rows])).any(dim=1)]
    if isinstance(transplant.apply, WordExchange):
        lose, gain = rows[codes[rows] == 1], rows[codes[rows] == 0]
        n = min(len(lose), len(gain), max_pairs // 2)
        rows = torch.cat([lose[:n], gain[:n]])
    rows = rows[:max_pairs]
    same = ~_differ(y, y[rows])
    if len(rows):
        same[torch.arange(len(rows)), rows] = same.sum(dim=1) == 1  # itself only if it is alone in its class
    other = _differ(y, y[rows]) & _differ(codes, codes[rows])
    return rows, torch.stack([_draw(other, generator), _draw(same, generator)])


def find_shortcut_word(
    context: AuditContext, transplants: Mapping[str, Transplant], rates: Mapping[str, float]
) -> str | None:
    """Return the name of the word that is a shortcut; None if there is none.

    Args:
        context: the audited model and texts.
        transplants: transplants by name.
        rates: the follow rates of all selected words, by name.
    """
    influences = compute_influences(context, transplants, rates)
    codes = dict(zip(influences, _encode(context.split, [transplants[name] for name in influences]), strict=True))
    followed = [
        name
        for name, column in codes.items()
        if rates[name] >= MIN_FOLLOW_RATE and _measure_presence(transplants[name], column) >= MIN_PRESENCE
    ]
    best = max(followed, key=lambda name: influences[name], default=None)
    if best is None or influences[best] < MIN_INFLUENCE:
        return None
    rivals = [
        influences[name]
        for name, column in codes.items()
        if name != best
        and not _share_tokens(transplants[best], transplants[name])
        and compute_association(codes[best], column) < MAX_OVERLAP
    ]
    return best if influences[best] >= MIN_RATIO * max(rivals, default=0.0) else None


def compute_influences(
    context: AuditContext, transplants: Mapping[str, Transplant], rates: Mapping[str, float]
) -> dict[str, float]:
    """Return follow rate times association with predictions, by name."""
    codes = _encode(context.split, [transplants[name] for name in rates])
    return {
        name: rate * compute_association(column, context.predicted)
        for (name, rate), column in zip(rates.items(), codes, strict=True)
    }


def _encode(split: Split, transplants: list[Transplant]) -> list[Tensor]:
    """Return a number per text for each property, on the CPU: the presence of a word, or which words are at an end."""
    layouts: dict[int, TextLayout] = {}
    x: Any = split.x
    codes = []
    for transplant in transplants:
        exchange: Any = transplant.apply
        key = id(exchange.vocabulary)
        if key not in layouts:
            layouts[key] = lay_out(x, exchange.vocabulary)
        codes.append(exchange.encode(layouts[key]).cpu())
    return codes


def _differ(all_values: Tensor, values: Tensor) -> Tensor:
    return values[:, None] != all_values[None]


def _draw(allowed: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one allowed position per row."""
    if not len(allowed):
        return torch.zeros(0, dtype=torch.long)
    return torch.multinomial(allowed.double(), 1, generator=generator).flatten()


def _measure_presence(transplant: Transplant, codes: Tensor) -> float:
    """Return the fraction of texts that contain a word; every text has words at its ends."""
    return float(codes.double().mean()) if isinstance(transplant.apply, WordExchange) else 1.0


def _share_tokens(one: Transplant, other: Transplant) -> bool:
    return bool(_list_tokens(one.apply) & _list_tokens(other.apply))


def _list_tokens(exchange: Any) -> set[tuple[int, int | None]]:
    """Return the tokens that spell a word, with its side; none for words at an end of the text."""
    if not isinstance(exchange, WordExchange):
        return set()
    return {(token, exchange.word.side) for sequence in exchange.word.sequences for token in sequence}
