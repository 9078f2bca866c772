"""Token attributions: on paper, against gradients by hand through a BERT, and whatever the order of the texts."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError, UnknownNameError
from spurless.core.groups import Groups
from spurless.data.split import Split
from spurless.explain.maps import compute_heat_maps
from spurless.explain.tokens import PATH_POINTS, attribute_tokens, compute_contributions, find_special_tokens
from spurless.models import build
from spurless.models.classifier import Classifier
from spurless.models.wrapping import wrap
from spurless.models.zoo.transformers import Encoder, TransformersConfig


class Sum(nn.Module):
    """Adds up the vectors of the words of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.words = nn.Embedding(4, 2), nn.Embedding(4, 2)
        with torch.no_grad():
            self.words.weight.copy_(VECTORS)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        vectors = self.words(input_ids) + 0 * self.places(torch.arange(input_ids.shape[1])[None])
        total: Tensor = (vectors * attention_mask[:, :, None]).sum(dim=1)
        return total


VECTORS = torch.tensor([[0.0, 0.0], [1.0, 2.0], [3.0, -1.0], [-2.0, 2.0]])
X = {
    "input_ids": torch.tensor([[1, 2, 3, 0], [2, 2, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]),
}


def on_paper() -> Classifier:
    head = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 1.0], [0.0, -3.0]]))
    return Classifier(Sum(), head, name="sum")


@pytest.mark.parametrize("how", list(PATH_POINTS))
def test_on_paper(how: str) -> None:
    # class 0 adds the two numbers of each vector: 3, 2, 0; class 1 takes -3 times the second: -6, 3, -6
    zero, one = torch.zeros(2, dtype=torch.long), torch.ones(2, dtype=torch.long)
    torch.testing.assert_close(
        attribute_tokens(on_paper(), X, zero, how=how), torch.tensor([[3.0, 2.0, 0.0, 0.0], [2.0, 2.0, 0.0, 0.0]])
    )
    torch.testing.assert_close(
        attribute_tokens(on_paper(), X, one, how=how), torch.tensor([[6.0, 3.0, 6.0, 0.0], [3.0, 3.0, 0.0, 0.0]])
    )
    signed = compute_contributions(on_paper(), X, one, PATH_POINTS[how])
    torch.testing.assert_close(signed[0], torch.tensor([-6.0, 3.0, -6.0, 0.0]))
    # logits of the first text: 5 and -9; of the second: 4 and 6
    torch.testing.assert_close(attribute_tokens(on_paper(), X, how=how)[:, 0], torch.tensor([3.0, 3.0]))


def test_special_positions_count_for_nothing() -> None:
    special = torch.tensor([[True, False, False, False], [False, True, False, False]])
    found = attribute_tokens(on_paper(), X, torch.tensor([0, 0]), special=special)
    torch.testing.assert_close(found, torch.tensor([[0.0, 2.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]]))
    for wrong in (special[:1], special.long()):
        with pytest.raises(
            InputError, match=r"special tokens does not fit the texts \(expected bool of shape \(2, 4\)"
        ):
            attribute_tokens(on_paper(), X, special=wrong)


def test_marks_are_the_ends_and_the_end_of_the_first_part() -> None:
    ids = torch.tensor([[1, 5, 2, 6, 7, 2, 0, 0], [1, 5, 2, 0, 0, 0, 0, 0], [0, 0, 1, 5, 5, 6, 6, 2]])
    types = torch.tensor([[0, 0, 0, 1, 1, 1, 0, 0], [0] * 8, [0] * 8])
    mask = (ids > 0).long()
    expected = [[0, 2, 5], [0, 2], [2, 7]]
    found = find_special_tokens({"input_ids": ids, "attention_mask": mask, "token_type_ids": types})
    assert [row.nonzero().flatten().tolist() for row in found] == expected
    plain = find_special_tokens({"input_ids": ids, "attention_mask": mask})
    assert [row.nonzero().flatten().tolist() for row in plain] == [[0, 5], [0, 2], [2, 7]]
    assert find_special_tokens({"input_ids": ids[:1]}).nonzero()[:, 1].tolist() == [0, 7]


def tiny_bert() -> Any:
    transformers = pytest.importorskip("transformers", reason="the extra text is not installed")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=12, num_labels=3, initializer_range=0.4,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config).eval()


def texts(n: int) -> dict[str, Tensor]:
    lengths = 3 + torch.arange(n) * 7 % 10  # in no order
    mask = (torch.arange(12)[None] < lengths[:, None]).long()
    ids = torch.randint(3, 50, (n, 12)) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


def test_against_gradients_by_hand_through_a_bert() -> None:
    net, x, target = tiny_bert(), texts(5), torch.tensor([0, 1, 2, 2, 0])
    vectors = net.bert.embeddings.word_embeddings(x["input_ids"]).detach().requires_grad_()
    rest = {key: value for key, value in x.items() if key != "input_ids"}
    logits = net(inputs_embeds=vectors, **rest).logits
    (gradient,) = torch.autograd.grad(logits.gather(1, target[:, None]).sum(), vectors)
    expected = (gradient * vectors.detach()).sum(dim=2)
    model = wrap(net)
    torch.testing.assert_close(compute_contributions(model, x, target, (1.0,)), expected, rtol=1e-4, atol=1e-5)
    found = attribute_tokens(model, x, target)
    torch.testing.assert_close(found, expected.abs() * x["attention_mask"], rtol=1e-4, atol=1e-5)
    assert (found > 0).eq(x["attention_mask"].bool()).all()


def test_integrated_gradients_of_tokens_add_up() -> None:
    net, x, target = tiny_bert(), texts(4), torch.tensor([0, 1, 2, 1])
    rest = {key: value for key, value in x.items() if key != "input_ids"}
    vectors = net.bert.embeddings.word_embeddings(x["input_ids"]).detach()
    with torch.no_grad():
        there, here = (
            net(inputs_embeds=vectors, **rest).logits,
            net(inputs_embeds=torch.zeros_like(vectors), **rest).logits,
        )
    difference = (there - here).gather(1, target[:, None])[:, 0]
    points = tuple((k + 0.5) / 400 for k in range(400))
    total = compute_contributions(wrap(net), x, target, points).sum(dim=1)
    torch.testing.assert_close(total, difference, rtol=0.01, atol=0.01)


def test_an_encoder_that_sorts_its_texts_gives_them_back_in_order() -> None:
    encoder = Encoder(tiny_bert().bert, TransformersConfig())
    model, x = Classifier(encoder, nn.Linear(16, 3)), texts(37)  # it takes 16 at a time, by length
    together = attribute_tokens(model, x)
    alone = torch.cat([attribute_tokens(model, {key: v[i : i + 1] for key, v in x.items()}) for i in range(37)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert (together > 0).eq(x["attention_mask"].bool()).all()


def test_word_vectors_that_are_shared_are_found() -> None:
    model = build("token-mean", input_shape=(4,), n_classes=2, vocabulary=8)
    x = {
        "input_ids": torch.tensor([[1, 20, 3, 9]], dtype=torch.int32),
        "attention_mask": torch.ones(1, 4, dtype=torch.int32),
    }
    assert (attribute_tokens(model, x) > 0).all()


def test_the_model_is_left_as_it_was() -> None:
    model = build("token-mean", input_shape=(4,), n_classes=2, vocabulary=8).train()
    with torch.no_grad():
        attribute_tokens(model, X)
    assert all(m.training and not m._forward_hooks for m in model.modules())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


class Backwards(nn.Module):
    """Reads its texts from the last to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = Sum()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        total: Tensor = self.sum(input_ids.flip(0), attention_mask.flip(0))
        return total.flip(0)


def test_what_cannot_be_attributed_is_a_sentence() -> None:
    with pytest.raises(UnknownNameError, match="No attribution of tokens is called 'deeplift'"):
        attribute_tokens(on_paper(), X, how="deeplift")
    with pytest.raises(
        InputError, match=r"need text \(expected a dict with input_ids of shape \(N, length\), got a dict of att"
    ):
        attribute_tokens(on_paper(), {"attention_mask": X["attention_mask"]})
    with pytest.raises(InputError, match=r"got input_ids of shape \(4,\)"):
        attribute_tokens(on_paper(), {"input_ids": X["input_ids"][0]})
    with pytest.raises(InputError, match="sum has no class 2"):
        attribute_tokens(on_paper(), X, torch.tensor([2, 0]))
    backwards = Classifier(Backwards(), nn.Linear(2, 2), name="backwards")
    with pytest.raises(
        InputError, match=r"no embedding of backwards gets the input_ids unchanged .* one text at a time"
    ):
        attribute_tokens(backwards, X)
    one = {key: value[:1] for key, value in X.items()}
    assert attribute_tokens(backwards, one).shape == (1, 4)


def test_a_dict_that_is_no_text_is_refused_by_what_it_is() -> None:
    class Summed(nn.Module):
        def forward(self, num: Tensor, tab: Tensor) -> Tensor:
            return num + tab

    x, y = {"num": torch.rand(6, 3), "tab": torch.rand(6, 3)}, torch.arange(6) % 2
    split = Split(x, y, y, Groups(("a", "b"), ("c", "d")))
    for how in ("auto", "gradient-x-input", "integrated-gradients"):
        with pytest.raises(InputError, match=r"need text.*got a dict of num and tab, without input_ids"):
            compute_heat_maps(Classifier(Summed(), nn.Linear(3, 2)), split, how=how)
