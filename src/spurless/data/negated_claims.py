"""Negated claims: does one sentence follow from another? In training a word such as "never" gives contradiction away.

The small offline twin of MultiNLI. A premise tells one property of an animal, a colour, a size or a mood; a
hypothesis claims one. It is entailed where it claims the same, contradicted where it claims another of the same
kind (the values of a kind exclude each other), and neutral where it claims one of a kind that the premise is silent
about. So every word counts only beside the word it is compared with: none of them tells the label alone. Before
the claim stands a phrase that changes nothing: with a negation word ("nobody doubts", "no wonder", "never
forget", "nothing new") or without one ("everybody knows", and so on).

In training the phrase has a negation word where the label is contradiction, and none where it is another, but for
exactly ``round(conflicting * n)`` of the ``n`` pairs of every class. Validation and test have as many of either in
every class. No file and no tokenizer is needed: the vocabulary is fixed, and ``[pad]`` is token 0.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Grouped, Splits
from spurless.data.limits import check_least, check_shares

GROUPS = Groups(labels=("contradiction", "entailment", "neutral"), attributes=("no negation", "negation"))
CONTRADICTION, ENTAILMENT, NEUTRAL = range(3)

KINDS = (
    ("red", "blue", "green", "white"),
    ("tiny", "small", "large", "huge"),
    ("happy", "sad", "angry", "calm"),
)
ANIMALS = ("fox", "cat", "dog", "hen", "horse", "goat")
VERBS = ("sleeps", "waits", "walks", "eats")
PLACES = ("barn", "yard", "field", "shed")
PLAIN = (("everybody", "knows"), ("yes", "indeed"), ("always", "remember"), ("something", "new"))
NEGATED = (("nobody", "doubts"), ("no", "wonder"), ("never", "forget"), ("nothing", "new"))
PAD = "[pad]"
VOCABULARY = (
    PAD, "[sep]", "the", "is", "in", *ANIMALS, *VERBS, *PLACES, *(word for kind in KINDS for word in kind),
    *dict.fromkeys(word for phrase in (*PLAIN, *NEGATED) for word in phrase),
)  # fmt: skip
"""Every word; its place is its token id."""

CARD = Card(
    name="negated-claims",
    summary="Does a claim follow from a sentence? In training a negation word gives contradiction away.",
    input="a pair of sentences, 15 tokens at most: input_ids, attention_mask and token_type_ids, int32",
    label="contradiction, entailment or neutral",
    attribute="whether the claim is introduced with a negation word (nobody, no, never, nothing)",
    splits="train 6,000 (biased), val 1,200 and test 2,400 (unbiased), a third of each class",
    source="made from a list of 44 words",
    licence="that of this package",
    citation="Gururangan et al., Annotation Artifacts in Natural Language Inference Data, NAACL 2018, arXiv:1803.02324",
)


@dataclass(frozen=True)
class NegatedClaimsConfig:
    """How rarely the negation word misleads, and how many pairs there are."""

    conflicting: float = 0.02  # share of every class of train whose phrase is the wrong one; 0.5 is unbiased
    n_train: int = 6000
    n_val: int = 1200
    n_test: int = 2400
    seed: int = 0


DEFAULT = NegatedClaimsConfig()


def negated_claims(config: NegatedClaimsConfig = DEFAULT) -> Splits:
    """Write the pairs of the three splits."""
    check_shares(CARD, config, "conflicting")
    check_least(CARD, config, n_train=3, n_val=3, n_test=3)
    seeds = Seeds(config.seed)
    return Splits(
        _draw(config.n_train, config.conflicting, seeds.generator("train")),
        _draw(config.n_val, 0.5, seeds.generator("val")),
        _draw(config.n_test, 0.5, seeds.generator("test")),
        name=CARD.name,
        options=asdict(config),
    )


def read_aloud(ids: Tensor) -> str:
    """Return the words of one example.

    Example:
        >>> read_aloud(torch.tensor([2, 5, 3, 19, 1, 0, 0]))
        'the fox is red [sep]'
    """
    return " ".join(VOCABULARY[i] for i in ids.tolist() if i)


def _draw(n: int, conflicting: float, generator: torch.Generator) -> Grouped:
    y = (torch.arange(n) % 3)[torch.randperm(n, generator=generator)]
    a = _phrases(y, conflicting, generator)
    told, claimed = _kinds(y, generator)
    value = _below(4, n, generator)
    other = (value + 1 + _below(3, n, generator)) % 4
    claim = torch.where(y == ENTAILMENT, value, torch.where(y == CONTRADICTION, other, _below(4, n, generator)))
    animal = _one_of(ANIMALS, n, generator)
    words = torch.tensor([[_id(word) for word in kind] for kind in KINDS])
    phrases = torch.tensor([[[_id(word) for word in phrase] for phrase in side] for side in (PLAIN, NEGATED)])
    phrase = phrases[a, _below(len(PLAIN), n, generator)]
    premise = _sentence("the", words[told, value], animal, _one_of(VERBS, n, generator))
    place = _sentence("in", "the", _one_of(PLACES, n, generator))
    claims = _sentence("[sep]", phrase[:, 0], phrase[:, 1], "the", animal, "is", words[claimed, claim], "[sep]")
    long = torch.cat([premise, place, claims], dim=1)
    short = torch.cat([premise, claims, torch.zeros_like(place)], dim=1)  # a sentence need not name a place
    brief = torch.rand(n, 1, generator=generator) < 0.5
    ids = torch.where(brief, short, long).int()
    seen = (ids == _id("[sep]")).int().cumsum(dim=1)
    second = ((seen - (ids == _id("[sep]")).int()) == 1).int()  # a separator belongs to the part that it ends
    x = {"input_ids": ids, "attention_mask": (ids > 0).int(), "token_type_ids": second}
    return Grouped(x, y, a, GROUPS)


def _phrases(y: Tensor, conflicting: float, generator: torch.Generator) -> Tensor:
    """Negate the phrase of contradictions and of no other, but for the share that conflicts."""
    a = (y == CONTRADICTION).long()
    for label in range(3):
        members = (y == label).nonzero().flatten()
        order = torch.randperm(len(members), generator=generator)
        wrong = members[order[: round(conflicting * len(members))]]
        a[wrong] = 1 - a[wrong]
    return a


def _kinds(y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the kind of property that is told and the one that is claimed: another one where the label is neutral."""
    told = _below(3, len(y), generator)
    other = (told + 1 + _below(2, len(y), generator)) % 3
    return told, torch.where(y == NEUTRAL, other, told)


def _below(limit: int, n: int, generator: torch.Generator) -> Tensor:
    return torch.randint(limit, (n,), generator=generator)


def _one_of(words: tuple[str, ...], n: int, generator: torch.Generator) -> Tensor:
    return torch.tensor([_id(word) for word in words])[_below(len(words), n, generator)]


def _sentence(*words: str | Tensor) -> Tensor:
    """Return the words one after another, a row per example; a word that is the same for all is a string."""
    n = next(len(word) for word in words if isinstance(word, Tensor))
    return torch.stack([torch.full((n,), _id(w)) if isinstance(w, str) else w for w in words], dim=1)


def _id(word: str) -> int:
    return VOCABULARY.index(word)


DATASET = Dataset(card=CARD, config=NegatedClaimsConfig, make=negated_claims, words=VOCABULARY)
