"""Evaluation: in order, in eval mode, whatever the size of a batch."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.data.split import Split
from spurless.train.evaluate import EVALUATION_BATCH, _batch_size, evaluate, logits, predict

GROUPS = Groups(("no", "yes"), ("left", "right"))


def split(n: int) -> Split:
    x = torch.linspace(-1, 1, n)[:, None]
    return Split(x, (x[:, 0] > 0).long(), torch.arange(n) % 2, GROUPS)


def sign() -> nn.Module:
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0], [1.0]]))
    return model


def test_logits_come_in_order_over_many_batches() -> None:
    data = split(2 * EVALUATION_BATCH + 7)
    assert isinstance(data.x, torch.Tensor)
    torch.testing.assert_close(logits(sign(), data)[:, 1], data.x[:, 0])


def test_a_perfect_rule_is_right_in_every_group() -> None:
    table = evaluate(sign(), split(100))
    assert table.accuracy.tolist() == [1.0] * 4
    assert table.n == 100


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_model_that_says_no_numbers_has_no_accuracy(broken: float) -> None:
    model = nn.Sequential(sign(), nn.Threshold(0.5, broken))  # of -1 it says 1 and nothing
    with pytest.raises(InputError, match=r"the logits of example 0 are not finite \(got \[1.0, (nan|inf)\]\)"):
        evaluate(model, split(3))
    ruled_out = nn.Sequential(sign(), nn.Threshold(0.0, -math.inf))  # a class that cannot be
    assert evaluate(ruled_out, split(100)).average == 1.0


def test_batch_norm_and_dropout_are_off_and_the_mode_is_put_back() -> None:
    model = nn.Sequential(nn.Dropout(0.9), sign())
    model.train()
    assert predict(model, split(1000)).tolist() == split(1000).y.tolist()
    assert model.training
    model[0].eval()  # as a part that is frozen
    predict(model, split(10))
    assert [part.training for part in model] == [False, True]


def test_without_an_example_there_is_nothing_to_predict() -> None:
    with pytest.raises(InputError, match="the split has no examples"):
        evaluate(sign(), split(3).select(torch.arange(0)))


class Saying(nn.Module):
    """Answers as transformers do: takes keywords, returns more than logits."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"features": x, "logits": torch.cat([-x, x], dim=1)}


def test_a_plain_module_may_take_keywords_and_return_more_than_logits() -> None:
    data = split(100)
    assert isinstance(data.x, Tensor)
    assert evaluate(Saying(), data).accuracy.tolist() == [1.0] * 4
    assert evaluate(Saying(), replace(data, x={"x": data.x})).accuracy.tolist() == [1.0] * 4


def test_a_module_that_takes_the_dict_is_given_it() -> None:
    class Own(nn.Module):
        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return torch.cat([-batch["x"], batch["x"]], dim=1)

    data = split(100)
    assert isinstance(data.x, Tensor)
    assert evaluate(Own(), replace(data, x={"x": data.x})).accuracy.tolist() == [1.0] * 4


class Pair(nn.Module):
    """Returns what it read before what it says."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([x, -x], dim=1), torch.cat([-x, x], dim=1)


def test_logits_are_not_guessed() -> None:
    with pytest.raises(InputError, match="Pair returns 2 values, and it is not clear which are the logits"):
        evaluate(Pair(), split(4))
    with pytest.raises(InputError, match=r"one logit per class .expected \(4, 2\), got \(4, 1\).*a second one"):
        evaluate(nn.Linear(1, 1), split(4))  # a sigmoid's logit: the label 0 every time, by argmax


def test_examples_that_do_not_fit_are_a_sentence() -> None:
    with pytest.raises(
        InputError, match=r"Linear does not accept this input: .*weights are float64: convert the model"
    ):
        evaluate(sign().double(), split(4))
    with pytest.raises(InputError, match=r"Linear does not accept this input: .*mat1 and mat2"):
        evaluate(nn.Linear(2, 2), split(4))


def test_an_accelerator_is_given_more_at_once_where_inputs_are_small() -> None:
    def images(side: int) -> Split:
        return replace(split(2), x=torch.zeros(2, 3, side, side, dtype=torch.uint8))

    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert _batch_size(images(28), gpu) == _batch_size(split(2), gpu) == 4 * EVALUATION_BATCH
    enlarged = replace(images(28), transform=lambda x: nn.functional.interpolate(x, 224))
    for few in ((images(28), cpu), (images(224), gpu), (enlarged, gpu)):
        assert _batch_size(*few) == EVALUATION_BATCH
