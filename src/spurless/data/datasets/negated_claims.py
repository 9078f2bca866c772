"""Negated claims: an offline version of MultiNLI, in which negation words predict contradiction in training.

A premise states one property of an animal (a colour, a size or a mood); a hypothesis claims the same (entailment),
another value of that property (contradiction) or another property (neutral), so that both must be compared. The claim
is introduced by a phrase with a negation word ("nobody doubts", "no wonder") or without one ("everybody knows").

In training the phrase has a negation word if and only if the label is contradiction, except for exactly
``round(conflicting * n)`` of the ``n`` pairs of every class; on val and test half of every class has one. The
vocabulary is fixed, and ``[pad]`` is token 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from spurless.core.config import CheckedConfig, Fraction, Range, SeedNumber
from spurless.core.groups import Groups
from spurless.data.dataset import Card, Dataset
from spurless.data.datasets._common import MAX_EXAMPLES, sample_splits
from spurless.data.split import Split, Splits

GROUPS = Groups(labels=("contradiction", "entailment", "neutral"), attributes=("no negation", "negation"))
CONTRADICTION, ENTAILMENT, NEUTRAL = range(3)

PROPERTIES = (("red", "blue", "green", "white"), ("tiny", "small", "large", "huge"), ("happy", "sad", "angry", "calm"))
ANIMALS = ("fox", "cat", "dog", "hen", "horse", "goat")
VERBS = ("sleeps", "waits", "walks", "eats")
LOCATIONS = ("barn", "yard", "field", "shed")
PLAIN_PHRASES = (("everybody", "knows"), ("yes", "indeed"), ("always", "remember"), ("something", "new"))
NEGATED_PHRASES = (("nobody", "doubts"), ("no", "wonder"), ("never", "forget"), ("nothing", "new"))
PAD = "[pad]"
VOCABULARY = (
    PAD, "[sep]", "the", "is", "in", *ANIMALS, *VERBS, *LOCATIONS, *(word for values in PROPERTIES for word in values),
    *dict.fromkeys(word for phrase in (*PLAIN_PHRASES, *NEGATED_PHRASES) for word in phrase),
)  # fmt: skip
"""All words; the index of a word is its token id."""

CARD = Card(
    name="negated-claims",
    summary="Does a claim follow from a sentence? In training a negation word predicts contradiction.",
    input="a pair of sentences, 15 tokens at most: input_ids, attention_mask and token_type_ids, int32",
    label="contradiction, entailment or neutral",
    attribute="whether the claim is introduced with a negation word (nobody, no, never, nothing)",
    splits="train 6,000 (biased), val 1,200 and test 2,400 (unbiased), a third of each class",
    source="generated from a list of 44 words",
    licence="that of this package",
    citation="Gururangan et al., Annotation Artifacts in Natural Language Inference Data, NAACL 2018, arXiv:1803.02324",
)


@dataclass(frozen=True)
class NegatedClaimsConfig(CheckedConfig):
    """Options of ``negated-claims``."""

    conflicting: Fraction = 0.02  # fraction of every train class with the other phrase; 0.5 is unbiased
    n_train: Annotated[int, Range(3, MAX_EXAMPLES)] = 6000
    n_val: Annotated[int, Range(3, MAX_EXAMPLES)] = 1200
    n_test: Annotated[int, Range(3, MAX_EXAMPLES)] = 2400
    seed: SeedNumber = 0


def negated_claims(config: NegatedClaimsConfig = NegatedClaimsConfig()) -> Splits:
    """Generate the pairs of the three splits."""
    return sample_splits(CARD, config, _sample, (config.conflicting, 0.5, 0.5))


def decode_tokens(ids: Tensor) -> str:
    """Return the words of one example.

    Example:
        >>> decode_tokens(torch.tensor([2, 5, 3, 19, 1, 0, 0]))
        'the fox is red [sep]'
    """
    return " ".join(VOCABULARY[i] for i in ids.tolist() if i)


def _sample(_: NegatedClaimsConfig, n: int, conflicting: float, generator: torch.Generator) -> Split:
    y = (torch.arange(n) % 3)[torch.randperm(n, generator=generator)]
    a = _assign_phrases(y, conflicting, generator)
    stated, claimed = _sample_properties(y, generator)
    value = _sample_integers(4, n, generator)
    other = (value + 1 + _sample_integers(3, n, generator)) % 4
    claim = torch.where(
        y == ENTAILMENT, value, torch.where(y == CONTRADICTION, other, _sample_integers(4, n, generator))
    )
    animal = _sample_words(ANIMALS, n, generator)
    words = torch.tensor([[_id(word) for word in values] for values in PROPERTIES])
    phrases = torch.tensor(
        [[[_id(word) for word in phrase] for phrase in side] for side in (PLAIN_PHRASES, NEGATED_PHRASES)]
    )
    phrase = phrases[a, _sample_integers(len(PLAIN_PHRASES), n, generator)]
    premise = _sentence("the", words[stated, value], animal, _sample_words(VERBS, n, generator))
    location = _sentence("in", "the", _sample_words(LOCATIONS, n, generator))
    claims = _sentence("[sep]", phrase[:, 0], phrase[:, 1], "the", animal, "is", words[claimed, claim], "[sep]")
    long = torch.cat([premise, location, claims], dim=1)
    short = torch.cat([premise, claims, torch.zeros_like(location)], dim=1)  # without a location
    is_short = torch.rand(n, 1, generator=generator) < 0.5
    ids = torch.where(is_short, short, long).int()
    is_separator = (ids == _id("[sep]")).int()
    second = ((is_separator.cumsum(dim=1) - is_separator) == 1).int()  # a separator belongs to the part before it
    x = {"input_ids": ids, "attention_mask": (ids > 0).int(), "token_type_ids": second}
    return Split(x, y, a, GROUPS)


def _assign_phrases(y: Tensor, conflicting: float, generator: torch.Generator) -> Tensor:
    """Return 1 for contradictions and 0 for others, except for the conflicting fraction."""
    a = (y == CONTRADICTION).long()
    for label in range(3):
        members = (y == label).nonzero().flatten()
        order = torch.randperm(len(members), generator=generator)
        flipped = members[order[: round(conflicting * len(members))]]
        a[flipped] = 1 - a[flipped]
    return a


def _sample_properties(y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the stated and the claimed property, which differ if the label is neutral."""
    stated = _sample_integers(3, len(y), generator)
    other = (stated + 1 + _sample_integers(2, len(y), generator)) % 3
    return stated, torch.where(y == NEUTRAL, other, stated)


def _sample_integers(limit: int, n: int, generator: torch.Generator) -> Tensor:
    return torch.randint(limit, (n,), generator=generator)


def _sample_words(words: tuple[str, ...], n: int, generator: torch.Generator) -> Tensor:
    return torch.tensor([_id(word) for word in words])[_sample_integers(len(words), n, generator)]


def _sentence(*words: str | Tensor) -> Tensor:
    """Return token ids, a row per example; a word that all examples share is passed as a string."""
    n = next(len(word) for word in words if isinstance(word, Tensor))
    return torch.stack([torch.full((n,), _id(w)) if isinstance(w, str) else w for w in words], dim=1)


def _id(word: str) -> int:
    return VOCABULARY.index(word)


DATASET = Dataset(card=CARD, config=NegatedClaimsConfig, make=negated_claims, vocabulary=VOCABULARY)
