"""Negated claims: labels follow from the words, the bias is exact, and it misleads what learns the easy way."""

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.data.datasets.multinli import negation
from spurless.data.datasets.negated_claims import (
    CARD,
    DATASET,
    PROPERTIES,
    VOCABULARY,
    NegatedClaimsConfig,
    decode_tokens,
    negated_claims,
)
from spurless.data.split import Splits
from spurless.models import build

SMALL = NegatedClaimsConfig(n_train=600, n_val=60, n_test=60)
KIND = {word: number for number, kind in enumerate(PROPERTIES) for word in kind}


def told(sentence: str) -> str:
    (word,) = [word for word in sentence.split() if word in KIND]
    return word


def test_the_label_follows_from_the_two_words_that_are_compared() -> None:
    data = negated_claims(SMALL)
    for split in (data.train, data.val, data.test):
        assert isinstance(split.x, dict)
        for ids, y, a in zip(split.x["input_ids"], split.y, split.a, strict=True):
            premise, claim = decode_tokens(ids).removesuffix(" [sep]").split(" [sep] ")
            one, other = told(premise), told(claim)
            right = 1 if one == other else 0 if KIND[one] == KIND[other] else 2
            assert (int(y), int(a)) == (right, negation(claim)), (premise, claim)
            assert premise.split()[2] == claim.split()[3]  # both speak of the same animal
            assert negation(premise) == 0


def test_no_single_word_tells_the_label() -> None:
    data = negated_claims(NegatedClaimsConfig(conflicting=0.5, n_train=30000))
    assert isinstance(data.train.x, dict)
    there = torch.zeros(30000, len(VOCABULARY)).scatter_(1, data.train.x["input_ids"].long(), 1.0)
    for word in (word for word in VOCABULARY if word not in ("[pad]", "[sep]", "the", "is")):
        # contradictions name two values of a kind, and entailments one value once, so a value shifts them a little
        share = (
            torch.bincount(data.train.y[there[:, VOCABULARY.index(word)] > 0], minlength=3)
            / there[:, VOCABULARY.index(word)].sum()
        )
        assert share.max() < 0.45, word


@pytest.mark.parametrize("conflicting", [0.0, 0.02, 0.5, 1.0])
def test_the_bias_is_exact_in_train_and_absent_elsewhere(conflicting: float) -> None:
    data = negated_claims(NegatedClaimsConfig(conflicting=conflicting, n_train=300, n_val=60, n_test=120))
    wrong = round(100 * conflicting)
    assert data.train.counts.tolist() == [wrong, 100 - wrong, 100 - wrong, wrong, 100 - wrong, wrong]
    assert (data.val.counts.tolist(), data.test.counts.tolist()) == ([10] * 6, [20] * 6)


def test_tokens_mask_and_types_belong_together() -> None:
    x = negated_claims(SMALL).train.x
    assert isinstance(x, dict)
    ids, mask, types = x["input_ids"], x["attention_mask"], x["token_type_ids"]
    assert torch.equal(mask, (ids > 0).int())
    assert set(mask.sum(dim=1).tolist()) == {12, 15}  # with a place and without one
    assert bool((types <= mask).all())
    for row in range(20):
        second = decode_tokens(ids[row][types[row] == 1])
        assert second == decode_tokens(ids[row]).split(" [sep] ")[1]
    assert VOCABULARY.index("[pad]") == 0
    assert len(set(VOCABULARY)) == len(VOCABULARY) == 46
    assert "44 words" in CARD.source
    assert all(part.dtype == torch.int32 for part in x.values())


def accuracy(conflicting: float, epochs: int) -> Tensor:
    """Train a small model and return its accuracy in every group of the test split."""
    data: Splits = negated_claims(NegatedClaimsConfig(conflicting=conflicting, n_train=3000, n_test=1200))
    model = build("token-mean", data, vocabulary=64)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(0)
    train, test = data.train, data.test
    assert isinstance(train.x, dict)
    assert isinstance(test.x, dict)
    for _ in range(epochs):
        for index in torch.randperm(len(train), generator=generator).view(-1, 50):
            loss = torch.nn.functional.cross_entropy(
                model({key: value[index] for key, value in train.x.items()}), train.y[index]
            )
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            optimiser.step()
    with torch.no_grad():
        right = (model(test.x).argmax(dim=1) == test.y).double()
    return torch.stack([right[test.g == g].mean() for g in range(6)])


def test_it_is_learnable_without_the_shortcut_and_misleads_with_it() -> None:
    fair, biased = accuracy(0.5, epochs=14), accuracy(0.02, epochs=14)
    assert fair.min() > 0.8  # chance is 1/3
    assert biased[[1, 2, 4]].min() > 0.9  # where the shortcut is right
    assert biased[[0, 5]].max() < 0.4  # contradictions without a negation, neutral claims with one


def test_wrong_options_are_refused_and_the_row_is_complete() -> None:
    with pytest.raises(InputError, match="conflicting must be a fraction"):
        negated_claims(NegatedClaimsConfig(conflicting=-0.1))
    with pytest.raises(InputError, match="n_val must be at least 3"):
        negated_claims(NegatedClaimsConfig(n_val=2))
    assert DATASET.layout is None
    assert negated_claims(SMALL).fingerprint() == negated_claims(SMALL).fingerprint()
