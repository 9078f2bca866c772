"""Asking: what a module cannot take is a sentence, what the device says is not."""

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.models.input_errors import readable_forward_errors
from spurless.models.wrapping import wrap


def test_what_a_module_raises_is_a_sentence_and_the_device_is_heard() -> None:
    x = torch.zeros(2, 3)
    with (
        pytest.raises(InputError, match=r"Linear does not accept this input: 'no'"),
        readable_forward_errors(nn.Linear(3, 2), x),
    ):
        raise KeyError("no") from None
    with pytest.raises(RuntimeError, match="out of memory"), readable_forward_errors(nn.Linear(3, 2), x):
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_tokens_that_the_model_does_not_know_are_named() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(10, 4), nn.Linear(4, 2)

        def forward(self, input_ids: Tensor) -> Tensor:
            return self.head(self.table(input_ids).mean(dim=1))  # type: ignore[no-any-return]  # a module returns Any

    wrap(Words(), example={"input_ids": torch.tensor([[1, 9]])})
    for head in (None, "head"):  # found by a run, and checked by one
        with pytest.raises(
            InputError, match=r"token id 12, the model has 10 tokens: load them with the model's tokenizer="
        ):
            wrap(Words(), head, example={"input_ids": torch.tensor([[1, 12]])})
