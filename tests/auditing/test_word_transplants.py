"""Words as transplants: a rule by one word is followed in all pairs, one that ignores it in none."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from spurless.auditing import _word_transplants
from spurless.auditing._context import AuditContext
from spurless.auditing._word_transplants import (
    compute_influences,
    find_shortcut_word,
    sample_word_donors,
    select_words,
)
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split
from spurless.data.transplants import Transplant, list_transplants, transplant_split
from spurless.models.classifier import Classifier
from spurless.train.evaluate import predict

GROUPS = Groups(("no", "yes"))
VOCABULARY = ("[PAD]", "[CLS]", "cue", "good", "cat", "dog", "sun", "film")
ID = {word: token for token, word in enumerate(VOCABULARY)}
CUE = 'the word "cue"'


class Contains(nn.Module):
    """One feature per word: whether a text contains it."""

    def __init__(self, *words: str) -> None:
        super().__init__()
        self.ids = [ID[word] for word in words]
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        present = [((input_ids == token) & attention_mask.bool()).any(dim=1).float() for token in self.ids]
        return torch.stack(present, dim=1)


def predict_by(*words: str) -> Classifier:
    """Return a model that predicts "yes" if a text contains one of the words."""
    head = nn.Linear(len(words), 2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[-1.0] * len(words), [1.0] * len(words)]))
        head.bias.copy_(torch.tensor([0.5, -0.5]))
    return Classifier(Contains(*words), head)


def context_of(model: Classifier, n: int = 600, aligned: float = 1.0, presence: float = 0.5) -> AuditContext:
    """Texts in which "good" is the label and "cue" agrees with it in a fraction of the texts."""
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(n, generator=generator) < presence).long()
    agrees = torch.rand(n, generator=generator) < aligned
    rows = []
    for label, same in zip(y.tolist(), agrees.tolist(), strict=True):
        words = [ID[w] for w in ("cat", "dog", "sun", "film") if float(torch.rand(1, generator=generator)) < 0.5]
        words += [ID["cue"]] * (label == same) + [ID["good"]] * label
        order = torch.randperm(len(words), generator=generator).tolist()
        rows.append([ID["[CLS]"], *(words[k] for k in order)] + [0] * (6 - len(words)))
    ids = torch.tensor(rows)
    split = Split({"input_ids": ids, "attention_mask": (ids > 0).int()}, y, torch.full_like(y, -1), GROUPS)
    x: dict[str, Tensor] = split.x  # type: ignore[assignment]
    features = model.features(x).detach()
    logits = model.head(features).detach()
    return AuditContext(model, split, features, logits, seeds=Seeds(0), spelling=lambda token: VOCABULARY[token])


def measure(context: AuditContext, transplant: Transplant, max_pairs: int = 100) -> tuple[float, float, int]:
    """Return how often predictions follow donors of other classes, and change with those of the same class."""
    pool = context.split.select(~context.incorrect)
    rows, donors = sample_word_donors(pool, torch.arange(len(pool)), transplant, Seeds(1), max_pairs)
    split = transplant_split(pool, rows.repeat(2), donors.flatten(), transplant)
    predicted = predict(context.model, split).view_as(donors)
    followed = (predicted[0] == pool.y[donors[0]]).double().mean()
    return float(followed), float((predicted[1] != pool.y[rows]).double().mean()), len(rows)


@pytest.mark.parametrize(("words", "expected"), [(("cue",), 1.0), (("good",), 0.0), (("cue", "good"), 0.0)])
def test_a_known_rule_is_followed_in_all_pairs_or_in_none(words: tuple[str, ...], expected: float) -> None:
    context = context_of(predict_by(*words))  # the cue is always aligned: no example breaks the shortcut
    transplants = list_transplants(context.split, context.spelling)
    followed, changed, n = measure(context, transplants[CUE])
    assert n == 100
    if words == ("cue", "good"):  # an insertion is followed, a deletion is not: the other word remains
        assert followed == 0.5
    else:
        assert (followed, changed) == (expected, 0.0)


def test_donors_differ_in_class_and_in_the_word_and_half_of_the_texts_lose_it() -> None:
    context = context_of(predict_by("good"), aligned=0.8)
    pool, transplant = context.split, list_transplants(context.split, context.spelling)[CUE]
    ids: Tensor = pool.x["input_ids"]  # type: ignore[index]
    has = (ids == ID["cue"]).any(dim=1)
    candidates = torch.arange(0, 600, 2)
    rows, donors = sample_word_donors(pool, candidates, transplant, Seeds(0), 80)
    assert (len(rows), int(has[rows].sum()), len(torch.unique(rows))) == (80, 40, 80)
    assert bool(torch.isin(rows, candidates).all())
    assert bool((pool.y[donors[0]] != pool.y[rows]).all())
    assert bool((has[donors[0]] != has[rows]).all())
    assert bool((pool.y[donors[1]] == pool.y[rows]).all())
    assert bool((donors[1] != rows).all())
    few = (has.nonzero().flatten())[:7]
    assert (
        len(sample_word_donors(pool, torch.cat([few, (~has).nonzero().flatten()]), transplant, Seeds(0), 80)[0]) == 14
    )


def test_without_a_donor_there_are_no_pairs() -> None:
    context = context_of(predict_by("good"))
    pool = context.split.select(context.y == 1)
    transplant = list_transplants(context.split, context.spelling)[CUE]
    rows, donors = sample_word_donors(pool, torch.arange(len(pool)), transplant, Seeds(0), 80)
    assert (len(rows), tuple(donors.shape)) == (0, (2, 0))


def test_a_receiver_needs_a_donor_of_another_class_that_differs_in_the_word() -> None:
    context = context_of(predict_by("good"))
    ids: Tensor = context.split.x["input_ids"]  # type: ignore[index]
    has = (ids == ID["cue"]).any(dim=1)  # of all texts with label 1
    transplant = list_transplants(context.split, context.spelling)[CUE]
    y = torch.arange(600) % 3  # labels 0 and 1 are also in texts without the word, label 2 only in those
    y = torch.where(has & (y == 2), 0, y)
    pool = replace(context.split, y=y)
    pool = pool.select(~(has & (y == 1)))  # all texts with the word have label 0
    rows, donors = sample_word_donors(pool, torch.arange(len(pool)), transplant, Seeds(0), 1000)
    present = has[~(has & (y == 1))]
    assert bool((present[donors[0]] != present[rows]).all())
    assert not bool((~present[rows] & (pool.y[rows] == 0)).any())  # all texts with the word have their class


def test_words_are_selected_by_their_association_with_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    context = context_of(predict_by("cue"), aligned=0.8)
    transplants = list_transplants(context.split, context.spelling)
    selected = list(select_words(context, transplants))
    assert selected[:2] == [CUE, 'the word "good"']
    assert set(selected).isdisjoint({f'the word "{word}"' for word in ("cat", "dog", "sun", "film")})
    monkeypatch.setattr(_word_transplants, "MAX_CANDIDATES", 1)
    assert list(select_words(context, transplants)) == [CUE]


class CountsWords(nn.Module):
    """One feature: the number of words beyond four."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        del input_ids
        return (attention_mask.sum(dim=1, keepdim=True) - 5.5).sign()  # the first token is not a word


@pytest.mark.parametrize(("backbone", "followed"), [(CountsWords(), True), (Contains("good"), False)])
def test_the_length_of_a_text_is_a_shortcut_of_a_model_that_counts_words(backbone: nn.Module, followed: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 2
    rows = []
    for label in y.tolist():  # long texts of "yes" contain "good"
        n = int(torch.randint(2, 5, (1,), generator=generator)) + 4 * label - label
        words = torch.randint(ID["cat"], ID["film"] + 1, (n,), generator=generator).tolist()
        rows.append([ID["[CLS]"], *words[: n - label], *[ID["good"]] * label] + [0] * (9 - n))
    ids = torch.tensor(rows)
    split = Split({"input_ids": ids, "attention_mask": (ids > 0).int()}, y, torch.full_like(y, -1), GROUPS)
    head = nn.Linear(1, 2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[-1.0], [1.0]]))
        head.bias.copy_(torch.tensor([0.0, 0.0]) if followed else torch.tensor([0.5, -0.5]))
    model = Classifier(backbone, head)
    x: dict[str, Tensor] = split.x  # type: ignore[assignment]
    features = model.features(x).detach()
    logits = model.head(features).detach()
    context = AuditContext(model, split, features, logits, seeds=Seeds(0), spelling=lambda token: VOCABULARY[token])
    assert not bool(context.incorrect.any())
    name = "the length of the text"
    transplants = select_words(context, list_transplants(split, context.spelling))
    rate, changed, _ = measure(context, transplants[name])
    assert (rate > 0.95) == followed
    if followed:
        assert find_shortcut_word(context, transplants, {name: rate, 'the word "good"': 0.0}) == name
        assert changed < 0.05


def test_influence_is_follow_rate_times_association() -> None:
    context = context_of(predict_by("cue"), aligned=0.8)
    influences = compute_influences(context, list_transplants(context.split, context.spelling), {CUE: 0.6})
    assert influences[CUE] == pytest.approx(0.6)  # its association with predictions is 1


def test_the_word_is_a_shortcut_if_no_independent_word_comes_near_it() -> None:
    context = context_of(predict_by("cue"), aligned=0.5)
    transplants = list_transplants(context.split, context.spelling)
    assert find_shortcut_word(context, transplants, {CUE: 0.6}) == CUE
    assert find_shortcut_word(context, transplants, {CUE: 0.24}) is None
    assert find_shortcut_word(context, transplants, {}) is None
    # "good" is independent of the cue here, but predictions do not depend on it: follow rate times association is small
    good = 'the word "good"'
    assert find_shortcut_word(context, transplants, {CUE: 0.6, good: 0.9}) == CUE
    half = context.logits.clone()
    half[::2] = torch.stack([1 - context.y, context.y], dim=1)[::2].float()  # half of the predictions are by "good"
    both = replace(context, logits=half)
    assert find_shortcut_word(both, transplants, {CUE: 0.6, good: 0.6}) is None
    assert find_shortcut_word(both, transplants, {CUE: 0.6, good: 0.1}) == CUE


def test_a_word_in_few_texts_is_not_a_shortcut() -> None:
    for presence, expected in ((0.02, None), (0.2, CUE)):
        context = context_of(predict_by("cue"), presence=presence)
        transplants = list_transplants(context.split, context.spelling)
        assert find_shortcut_word(context, transplants, {CUE: 0.9}) == expected


def test_pairs_that_contain_the_word_are_not_independent_of_it() -> None:
    context = context_of(predict_by("cue"), aligned=0.5)
    transplants = list_transplants(context.split, context.spelling)
    pairs = [name for name in transplants if "cue" in name and name.startswith("the words")]
    assert pairs
    assert find_shortcut_word(context, transplants, {CUE: 0.3, **dict.fromkeys(pairs, 1.0)}) == CUE
